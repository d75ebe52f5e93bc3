"""The gate records the warnings that policies give with an Allow."""

import pytest

from mainspring.core.events import CallJudged, Recorded, RunStarted
from mainspring.core.history import History
from mainspring.core.items import FunctionCall, user
from mainspring.core.run import Call, Run, open_run
from mainspring.core.spec import spec_for
from mainspring.engine.gate import Gate
from mainspring.engine.guard import Guard
from mainspring.ports import Allow, Ask, CallPolicy, Client, Deny, Verdict

CALL = Call(FunctionCall("call_1", "look", id="fc_1"), 0)
RUN = open_run(Recorded(0, 0.0, RunStarted(spec_for("responses", id="r", model="m", input=(user("Go."),)))), History())


class Says:
    """A policy with one answer."""

    def __init__(self, name: str, verdict: Verdict) -> None:
        self.name, self._verdict = name, verdict

    async def judge(self, call: Call, run: Run) -> Verdict:
        return self._verdict


async def judged(*policies: CallPolicy) -> CallJudged:
    return await Gate(policies, Guard()).judge(CALL, RUN)


async def test_an_allow_without_a_word_has_no_reason() -> None:
    assert await judged(Says("a", Allow()), Says("b", Allow())) == CallJudged("call_1", "allow", "gate")


async def test_warnings_of_all_policies_are_recorded_with_the_allow_under_their_names() -> None:
    verdict = await judged(Says("a", Allow("nearly spent")), Says("b", Allow()), Says("c", Allow("late")))
    assert verdict == CallJudged("call_1", "allow", "gate", "a: nearly spent; c: late")


@pytest.mark.parametrize(("answer", "expected"), [(Deny("no"), "no"), (Ask("may I?"), "may I?"), (Client(), "")])
async def test_a_call_that_is_not_allowed_has_only_the_reason_for_that(answer: Verdict, expected: str) -> None:
    assert (await judged(Says("a", Allow("nearly spent")), Says("b", answer))).reason == expected


async def test_a_warning_that_is_no_text_is_no_answer() -> None:
    verdict = await judged(Says("a", Allow(7)))  # type: ignore[arg-type]
    assert (verdict.verdict, verdict.policy) == ("deny", "a")
