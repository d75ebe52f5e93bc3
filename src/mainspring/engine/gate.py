"""The gate: the one place that judges a call, and the answer.

Policies are asked in order, and the first verdict that is not Allow stands. A question for a person stands only if no later
policy denies: nobody is asked about a call that would be denied anyway.
"""

from collections.abc import Sequence
from logging import getLogger
from typing import assert_never

from msgspec import UNSET, UnsetType

from mainspring.core.actions import Finish
from mainspring.core.events import CallJudged, ErrorInfo, Reason
from mainspring.core.items import ApprovalResponse
from mainspring.core.run import Call, Run
from mainspring.engine.guard import Guard, TimedOut
from mainspring.ports import Allow, AnswerCheck, Ask, CallPolicy, Client, CountingPolicy, Deny, QuickPolicy, Verdict

log = getLogger(__name__)


class Gate:
    """Judges calls by `policies`, answers by `checks`. One that raises, answers nonsense, or takes longer than `seconds` has
    said no."""

    def __init__(
        self, policies: Sequence[CallPolicy], guard: Guard, checks: Sequence[AnswerCheck] = (), seconds: float = 10.0
    ) -> None:
        self._policies = tuple([(policy, isinstance(policy, QuickPolicy) and policy.never_waits) for policy in policies])
        self._counting = frozenset(
            [id(policy) for policy in policies if isinstance(policy, CountingPolicy) and policy.counts_calls]
        )
        self._checks = tuple(checks)
        self._guard = guard
        self._seconds = seconds

    async def judge(self, call: Call, run: Run) -> CallJudged:
        notes: list[str] = []
        question: CallJudged | None = None
        for policy, is_quick in self._policies:
            if question is not None and id(policy) in self._counting:
                continue  # it is asked when the call may run
            try:
                answer: object = await (
                    policy.judge(call, run) if is_quick else self._guard.run(policy.judge(call, run), self._seconds)
                )
            except Exception as error:
                answer = self._deny(policy, call, run, error)
            if type(answer) is Allow and answer.note == "":
                continue
            verdict = _review(answer, call, run)
            if isinstance(verdict, Deny) or (verdict is not None and question is None):
                judged = _record_verdict(call, str(policy.name), verdict)
                if not isinstance(verdict, Ask):
                    return judged
                question = judged
            if isinstance(answer, Allow) and answer.note:
                notes.append(f"{policy.name}: {answer.note}")
        if question is not None:
            return question
        if (said := run.approval(call.item)) is not None and not said.approve and isinstance(said.kept, UnsetType):
            # No policy of this engine asks, but a person was asked, and a no stays a no.
            return _record_verdict(call, "approval", _refuse(said))
        return _record_verdict(call, "gate", Allow("; ".join(notes)))

    def check_answer(self, finish: Finish, run: Run) -> Finish:
        """How the run ends, now that its answer is looked at: an answer that cannot count has failed, and says why."""
        if finish.reason is not Reason.FINAL_ANSWER or run.spec.goal != "answer":
            return finish
        for check in self._checks:
            try:
                flaw = check.flaw(run)
            except Exception:
                log.exception("check %s failed on run %s", check.name, run.spec.id)
                flaw = f"the check `{check.name}` failed"
            if flaw is not None:
                return Finish("failed", Reason.PROVIDER_ERROR, ErrorInfo("provider_invalid_output", flaw))
        return finish

    def _deny(self, policy: CallPolicy, call: Call, run: Run, error: Exception) -> Deny:
        """The answer of a policy that gave none."""
        if isinstance(error, TimedOut):
            return Deny(f"The policy `{policy.name}` did not answer in {self._seconds:g} s.")
        log.error("policy %s failed on call %s of run %s", policy.name, call.item.call_id, run.spec.id, exc_info=error)
        return Deny(f"The policy `{policy.name}` failed.")


def _review(verdict: object, call: Call, run: Run) -> Verdict | None:
    """The verdict if it stands; None if the next policy is to be asked. A question that a person has answered is settled."""
    match verdict:
        case Allow(str()):
            return None
        case Deny(str(), None | Reason()) | Client():
            return verdict
        case Ask(str()):
            if (said := run.approval(call.item)) is None:
                return verdict
            # A call that asks something itself is told of a no, and goes on without what it wanted.
            return None if said.approve or not isinstance(said.kept, UnsetType) else _refuse(said)
        case _:
            return Deny("The policy gave no valid answer.")


def _refuse(said: ApprovalResponse) -> Deny:
    why = f": {said.reason}" if said.reason else ""
    return Deny(f"A person refused this call{why}.")


def _record_verdict(call: Call, policy: str, verdict: Verdict) -> CallJudged:
    call_id = call.item.call_id
    match verdict:
        case Allow(note):
            return CallJudged(call_id, "allow", policy, note)
        case Deny(reason, stop, is_returned):
            return CallJudged(call_id, "deny", policy, reason, stop, is_returned=is_returned or UNSET)
        case Ask(prompt):
            return CallJudged(call_id, "ask", policy, prompt)
        case Client():
            return CallJudged(call_id, "client", policy)
        case _:
            assert_never(verdict)
