"""How an answer is looked at: held against the form that was ordered, and counted if its backend did not."""

from typing import Any

import pytest

from mainspring.app.engine import Engine
from mainspring.core.events import ItemDone, ItemStarted, Reason, TextDelta, TurnEnded
from mainspring.core.items import FunctionCall, Json, Message, Usage, assistant, user
from mainspring.core.run import Run
from mainspring.core.spec import spec_for
from mainspring.engine.engine import Engine as Core
from mainspring.providers.scripted import Scripted, call, raw, refuse, say, turn
from mainspring.storage.memory_runs import MemoryStore
from mainspring.tools.functions import tool

SCHEMA: Json = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "degrees": {"type": "integer"}},
    "required": ["city", "degrees"],
    "additionalProperties": False,
}
FORM: Json = {"format": {"type": "json_schema", "name": "weather", "schema": SCHEMA, "strict": True}}


EMPTY = Message("assistant", id="msg_1", status="in_progress")
SPOKEN = assistant("Half past nine.", id="msg_1")


@tool
def look(city: str) -> str:
    """The weather in a city."""
    return f"12 degrees in {city}"


async def asked(script: Scripted, form: Any) -> Run:
    async with Engine(script, tools=[look]) as engine:
        return await engine.run("How is Oslo?", text=form)


async def test_an_answer_in_the_ordered_form_is_completed() -> None:
    with Scripted(call("look", city="Oslo"), say('{"city": "Oslo", "degrees": 12}')) as script:
        run = await asked(script, FORM)
    assert (run.status, run.reason) == ("completed", Reason.FINAL_ANSWER)
    assert [request.text for request in script.requests] == [FORM, FORM]


@pytest.mark.parametrize(
    ("form", "answer", "why"),
    [
        (FORM, '{"city": "Oslo", "degrees": "12"}', "degrees"),
        (FORM, '{"city": "Oslo"}', "degrees"),
        (FORM, "It is 12 degrees.", "is not the JSON"),
        (FORM, '{"city": "Oslo", "degrees": 12', "is not the JSON"),
        ({"format": {"type": "json_object"}}, "[1]", "object"),
        ({"format": {**FORM["format"], "strict": None}}, "{}", "city"),
    ],
)
async def test_an_answer_in_another_form_has_failed_and_is_kept(form: Any, answer: str, why: str) -> None:
    with Scripted(say(answer)) as script:
        run = await asked(script, form)
    assert (run.status, run.reason) == ("failed", Reason.PROVIDER_ERROR)
    assert run.error is not None
    assert run.error.code == "provider_invalid_output"
    assert why in run.error.message
    assert run.text == answer


@pytest.mark.parametrize("form", [None, {"verbosity": "low"}, {"format": {"type": "text"}}])
async def test_an_answer_nobody_ordered_a_form_for_is_as_it_is(form: Any) -> None:
    with Scripted(say("12")) as script:
        assert (await asked(script, form)).status == "completed"


async def test_a_form_that_is_not_strict_is_only_tried_for() -> None:
    with Scripted(say("12 degrees")) as script:
        assert (await asked(script, {"format": {**FORM["format"], "strict": False}})).status == "completed"


async def test_a_refusal_needs_no_form() -> None:
    with Scripted(refuse("I would rather not.")) as script:
        run = await asked(script, FORM)
    assert (run.status, run.reason) == ("completed", Reason.REFUSAL)


async def test_an_answer_that_was_cut_off_is_incomplete_and_not_wrong() -> None:
    with Scripted(turn(say='{"city": "Os', finish="length")) as script:
        run = await asked(script, FORM)
    assert (run.status, run.reason) == ("incomplete", Reason.OUTPUT_TRUNCATED)


class Broken:
    name = "broken"

    def flaw(self, run: Run) -> str | None:
        raise RuntimeError("no idea")


async def test_a_check_that_breaks_lets_nothing_pass(caplog: pytest.LogCaptureFixture) -> None:
    async with Core(Scripted(say("hi")), MemoryStore(), checks=[Broken()]) as engine:
        run = await (await engine.start(spec_for("responses", id="resp_1", model="m", input=(user("hi"),)))).wait()
    assert run.status == "failed"
    assert run.error is not None
    assert "broken" in run.error.message
    assert "no idea" in caplog.text


async def test_a_turn_that_nobody_counted_is_estimated_and_marked() -> None:
    silent = raw([ItemStarted(EMPTY), TextDelta("msg_1", "Half past nine."), ItemDone(SPOKEN), TurnEnded()])
    with Scripted(silent) as script:
        async with Engine(script) as engine:
            run = await engine.run("What time is it?")
    # The question has 16 characters, the answer 15, at 3.5 a token and 4 for each item.
    assert run.usage == Usage(9, 9, is_estimated=True)


async def test_a_limit_on_tokens_holds_for_a_backend_that_does_not_count() -> None:
    call = FunctionCall("call_1", "look", '{"city": "Oslo"}', id="fc_1")
    calling = raw([ItemStarted(call), ItemDone(call), TurnEnded()])
    async with Engine(Scripted(calling), tools=[look]) as engine:
        run = await engine.run("How is Oslo?", max_tokens=20)
    assert (run.status, run.reason) == ("incomplete", Reason.BUDGET)
