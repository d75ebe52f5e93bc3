"""The audit: who did what, with what outcome, as a projection of the log.

Theory of operation. When the journal hands a segment of the log to the store, an `Auditor` makes a note of every verdict, every
start and end of a call, every answer of a person, every flagged input and the end of the run. The store writes notes and segment
in one transaction, so what is in the log is in the audit, and a tool whose start is not in both does not run. Tokens cost
nothing: they make no note.

A note holds no more of the arguments than a digest, and an excerpt without secrets; of outputs it holds nothing. Deleting a
response leaves its notes.
"""

from collections.abc import Iterable, Sequence
from hashlib import sha256
from typing import Final, Literal

import msgspec
from msgspec import Struct

from mainspring.core.errors import StoreError
from mainspring.core.events import CallJudged, Event, ItemDone, Recorded, RunEnded, RunStarted, ToolEnded, ToolStarted
from mainspring.core.history import approval_id, list_answers
from mainspring.core.items import ApprovalResponse, FunctionCall, decode, encode
from mainspring.core.redact import make_presentable, redact_arguments, shorten
from mainspring.core.run import canonical
from mainspring.core.spec import RunSpec
from mainspring.ports import Note

ARGUMENT_CHARS: Final = 200
REASON_CHARS: Final = 300

What = Literal["flagged", "judged", "approval", "started", "ended", "run_ended", "triggered"]


class AuditEntry(Struct, frozen=True, omit_defaults=True):
    """What a note says. `outcome` is the verdict, `approved` or `refused`, `ok`, `error` or `reused`, or the status of the run.

    `seq` is the event's place in the log of the run. `subject` is who of the tenant ordered the run. Of a verdict, `policy` and
    `reason` say which rule decided, and why.
    """

    at: float
    run: str
    seq: int
    what: What
    outcome: str = ""
    tenant: str = ""
    subject: str = ""
    call: str = ""
    tool: str = ""
    digest: str = ""
    arguments: str = ""
    policy: str = ""
    reason: str = ""
    seconds: float = 0.0


class _Known(Struct, frozen=True):
    tool: str
    digest: str


class Auditor:
    """Makes notes of one run, segment by segment. `waiting` are the calls that it has taken over, `past` the log up to now."""

    def __init__(self, spec: RunSpec, waiting: Iterable[FunctionCall] = (), past: Iterable[Recorded] = ()) -> None:
        self._spec = spec
        self._calls = {call.call_id: call for call in waiting}
        self._known: dict[str, _Known] = {}
        for record in past:
            self._learn(record.event)

    def notes(self, segment: Iterable[Recorded]) -> list[Note]:
        return [Note(encode(entry), entry.call) for entry in self.entries(segment)]

    def entries(self, segment: Iterable[Recorded]) -> list[AuditEntry]:
        return [entry for record in segment if type(record.event) in _TOLD for entry in self._make_entries(record)]

    def _learn(self, event: Event) -> None:
        if isinstance(event, ItemDone) and isinstance(event.item, FunctionCall):
            self._calls[event.item.call_id] = event.item
            self._known.pop(event.item.call_id, None)

    def _make_entries(self, record: Recorded) -> Sequence[AuditEntry]:
        event = record.event
        if type(event) is CallJudged:
            call = self._calls.get(event.call_id)
            excerpt = "" if call is None else shorten(redact_arguments(call.arguments), ARGUMENT_CHARS)
            why = _excerpt(event.reason, REASON_CHARS)
            return [self._entry(record, "judged", event.verdict, event.call_id, event.policy, why, excerpt)]
        if type(event) is ToolStarted:
            return [self._entry(record, "started", "", event.call_id)]
        if type(event) is ToolEnded:
            outcome = "reused" if event.outcome == "reused" else "error" if event.is_error else "ok"
            return [self._entry(record, "ended", outcome, event.call_id, seconds=round(event.seconds, 6))]
        if type(event) is RunStarted:
            return [*self._flags(record, event.spec), *[self._answer(record, said) for said in list_answers(event.spec.input)]]
        if type(event) is RunEnded:
            return [self._entry(record, "run_ended", event.status, reason=event.reason.value)]
        self._learn(event)
        return ()

    def _flags(self, record: Recorded, spec: RunSpec) -> list[AuditEntry]:
        return [self._entry(record, "flagged", reason=_excerpt("; ".join(spec.flags), REASON_CHARS))] if spec.flags else []

    def _answer(self, record: Recorded, said: ApprovalResponse) -> AuditEntry:
        """What a person said about a call that the run takes over."""
        about = [call.call_id for call in self._calls.values() if approval_id(call) == said.approval_request_id]
        why = _excerpt(said.reason or "", REASON_CHARS)
        outcome = "approved" if said.approve else "refused"
        return self._entry(record, "approval", outcome, about[-1] if about else "", reason=why)

    def _entry(
        self,
        record: Recorded,
        what: What,
        outcome: str = "",
        call_id: str = "",
        policy: str = "",
        reason: str = "",
        arguments: str = "",
        seconds: float = 0.0,
    ) -> AuditEntry:
        spec, known = self._spec, self._of(call_id)
        return AuditEntry(
            record.at, spec.id, record.seq, what, outcome, spec.tenant, spec.caller.subject,
            call_id, known.tool, known.digest, arguments, policy, reason, seconds,
        )  # fmt: skip

    def _of(self, call_id: str) -> _Known:
        if (known := self._known.get(call_id)) is None:
            call = self._calls.get(call_id)
            known = _Known("", "") if call is None else _Known(call.name, digest_of(call.arguments))
            self._known[call_id] = known
        return known


def digest_of(arguments: str) -> str:
    """What arguments are bound by: equal for equal meaning, whatever the order of keys and the spaces between them."""
    return sha256(canonical(arguments).encode()).hexdigest()


def entry_of(note: Note) -> AuditEntry:
    """What a note says. Raises `StoreError` for one that is none of ours."""
    try:
        return decode(note.body, AuditEntry)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise StoreError(f"the audit holds what no Mainspring wrote ({error}); see `mainspring audit verify`") from error


def _excerpt(text: str, most: int) -> str:
    shown = make_presentable(text, most) if text else ""
    assert isinstance(shown, str)
    return shown


# `ItemDone` makes no note; it says what a call is.
_TOLD: Final = frozenset({CallJudged, ToolStarted, ToolEnded, RunStarted, RunEnded, ItemDone})
