"""The gate: the one place that judges a call. Policies are asked in order; the first answer that is not Allow stands."""

from collections.abc import Sequence
from logging import getLogger
from typing import assert_never

from anyio import fail_after

from mainspring.events import CallJudged
from mainspring.loop.run import Call, Run
from mainspring.ports import Allow, Ask, CallPolicy, Client, Deny, Verdict

log = getLogger(__name__)


class Gate:
    """Judges calls by `policies`. One that raises or answers nonsense has said no, and so has whoever is asked when
    `seconds` have passed since the first was."""

    def __init__(self, policies: Sequence[CallPolicy], seconds: float = 10.0) -> None:
        self._policies = tuple(policies)
        self._seconds = seconds

    async def judge(self, call: Call, run: Run) -> CallJudged:
        name = "gate"
        try:
            with fail_after(self._seconds):
                for policy in self._policies:
                    name = policy.name
                    verdict = _reviewed(await policy.judge(call, run), call, run)
                    if verdict is not None:
                        return _judged(call, name, verdict)
        except TimeoutError:
            return _judged(call, name, Deny(f"The policy `{name}` did not answer in {self._seconds:g} s."))
        except Exception:
            log.exception("policy %s failed on call %s of run %s", name, call.item.call_id, run.spec.id)
            return _judged(call, name, Deny(f"The policy `{name}` failed."))
        return _judged(call, "gate", Allow())


def _reviewed(verdict: object, call: Call, run: Run) -> Verdict | None:
    """The verdict if it stands; None if the next policy is to be asked. A question that a person has answered is settled."""
    match verdict:
        case Allow():
            return None
        case Deny() | Client():
            return verdict
        case Ask():
            if (said := run.approval(call.item)) is None:
                return verdict
            why = f": {said.reason}" if said.reason else ""
            return None if said.approve else Deny(f"A person refused this call{why}.")
        case _:
            return Deny("The policy gave no valid answer.")


def _judged(call: Call, policy: str, verdict: Verdict) -> CallJudged:
    call_id = call.item.call_id
    match verdict:
        case Allow():
            return CallJudged(call_id, "allow", policy)
        case Deny(reason, stop):
            return CallJudged(call_id, "deny", policy, reason, stop)
        case Ask(prompt):
            return CallJudged(call_id, "ask", policy, prompt)
        case Client():
            return CallJudged(call_id, "client", policy)
        case _:
            assert_never(verdict)
