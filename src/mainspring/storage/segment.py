"""What a segment of a log means to every store, and the errors that all of them give."""

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from msgspec import MsgspecError, Struct
from msgspec.structs import replace

from mainspring.core.compact_json import omit_usual
from mainspring.core.conversation_items import build_history
from mainspring.core.drafts import item_id
from mainspring.core.errors import InvalidRequest, NotFound, Superseded
from mainspring.core.events import Recorded, RunEnded, RunStarted, Status
from mainspring.core.history import ASKED, Entry
from mainspring.core.items import Item, Message, decode, encode
from mainspring.core.response import Response
from mainspring.core.spec import Conversation, RunSpec
from mainspring.core.stored_log import decode_log, shrink_log
from mainspring.ports import Document, Segment, Snapshot, StoredRun

RECORD_BYTES: Final = 256
"""About what a record takes in memory beside its text."""
MOST_HOLDING_BYTES: Final = 256 * 1024 * 1024
"""What the runs may have together that are read to find items by their ids."""
PRUNED_AT_ONCE: Final = 200
MANY_DELTAS: Final = 16
"""From how many on it is worth to leave the texts of deltas to the items that have them."""
MOST_SHRUNK: Final = 1_048_576
PROMPT_CHARS: Final = 300
FOREVER: Final = 253_402_300_799.0
"""The end of the year 9999, for what waits without a limit."""


class Ending(Struct, frozen=True):
    """How a run ended, and what is kept of it besides the log."""

    status: Status
    at: float
    snapshot: Snapshot


def find_opening(segment: Segment) -> StoredRun | None:
    """The run that begins with this segment; None if it goes on with one."""
    match segment.records[0]:
        case Recorded(0, at, RunStarted(spec)):
            order = (spec.parent, spec.model, spec.background)
            return StoredRun(segment.run_id, "in_progress", at, *order, tenant=spec.tenant, conversation=spec.conversation)
    return None


def find_driver(segment: Segment) -> str | None:
    """Whose the run is that begins with this segment; None if it is nobody's."""
    match segment.records[0].event:
        case RunStarted(driver=driver):
            return driver or None
    return None


def find_ending(segment: Segment) -> Ending | None:
    """How the run ends with this segment; None if it goes on."""
    match segment.snapshot, segment.records[-1]:
        case Snapshot() as snapshot, Recorded(_, at, RunEnded(status)):
            return Ending(status, at, snapshot)
    return None


class OpeningLine(NamedTuple):
    """What a list of runs tells of a run when it begins."""

    owner: str
    begun_at: float
    agent: str
    caller: str
    prompt: str


class EndingLine(NamedTuple):
    """What it tells besides when the run has ended."""

    reason: str
    input_tokens: int
    output_tokens: int
    error: str
    waits_until: float | None


UNENDED: Final = EndingLine("", 0, 0, "", None)


def summarize_opening(segment: Segment) -> OpeningLine:
    """The line of a run that begins with this segment."""
    first = segment.records[0]
    assert isinstance(first.event, RunStarted)
    spec = first.event.spec
    return OpeningLine(spec.tenant, first.at, spec.agent, spec.caller.subject, find_prompt(spec))


def summarize_ending(segment: Segment) -> EndingLine:
    """The rest of the line of a run that ends with this segment."""
    last = segment.records[-1].event
    assert isinstance(last, RunEnded)
    assert segment.snapshot is not None
    usage = segment.snapshot.response.usage or {}
    asked = [decode(each.body, _Question).until or FOREVER for each in segment.snapshot.documents if each.kind == ASKED]
    error = "" if last.error is None else last.error.message[:PROMPT_CHARS]
    tokens = (usage.get("input_tokens", 0), usage.get("output_tokens", 0))
    return EndingLine(last.reason.value, *tokens, error, min(asked, default=None))


def find_prompt(spec: RunSpec) -> str:
    """The beginning of what the user has said last, in one line."""
    said = [item.text for item in spec.input if isinstance(item, Message) and item.role == "user"]
    text = next((text for text in reversed(said) if text), "")
    return " ".join(text[: 4 * PROMPT_CHARS].split())[:PROMPT_CHARS]


class _Question(Struct, frozen=True):
    until: float | None = None


class HistoryLink(NamedTuple):
    """What one run adds to the history of those that continue it."""

    entries: list[Entry]
    tenant: str
    conversation: Conversation | None


LinkRow = tuple[str | None, bytes | None, str, bytes | None]
"""The parent, entries, tenant and conversation of a run, as a database has them."""


def order_links(run_id: str, rows: dict[str, LinkRow]) -> list[HistoryLink]:
    """The chain of runs that ends with this one, oldest first. Raises `NotFound` if one is missing, comes again or has not
    ended."""
    chain: list[HistoryLink] = []
    wanted: str | None = run_id
    while wanted is not None:
        if wanted not in rows:
            raise not_found(wanted)
        parent, entries, tenant, conversation = rows.pop(wanted)
        if entries is None:
            raise not_ended(wanted)
        shared = None if conversation is None else decode(conversation, Conversation)
        chain.append(HistoryLink(decode(entries, list[Entry]), tenant, shared))
        wanted = parent
    return chain[::-1]


def read_conversation(items: Iterable[Document], conversation: Conversation) -> Sequence[Entry]:
    """What a run found in its conversation: these items, oldest first."""
    return build_history([decode(item.body, Item) for item in items], conversation.waiting).entries


def encode_response(snapshot: Snapshot) -> bytes:
    """The Response as it is kept: without what is usual, and without its output if the entries have that."""
    told = snapshot.response
    if told.output != _list_output(snapshot.entries):
        return encode(omit_usual(told))
    return WITHOUT_OUTPUT + encode(omit_usual(replace(told, output=())))


def decode_response(body: bytes, entries: bytes | None) -> Response:
    """The inverse, also for responses of older versions, which are whole."""
    if not body.startswith(WITHOUT_OUTPUT):
        return decode(body, Response)
    told = decode(body[len(WITHOUT_OUTPUT) :], Response)
    return replace(told, output=_list_output(decode(entries or b"[]", tuple[Entry, ...])))


def _list_output(entries: Iterable[Entry]) -> tuple[Item, ...]:
    return tuple([entry.item for entry in entries if entry.origin in ("model", "tool")])


WITHOUT_OUTPUT: Final = b"="


def shrink_rows(bodies: Sequence[bytes], entered: Sequence[Item]) -> bytes | None:
    """One row for these of a log that has ended, without the texts that its items have; None if that is not worth it."""
    body = b"\n".join(bodies)
    if len(body) > MOST_SHRUNK:
        return None
    shrunk = shrink_log(body, entered)
    return shrunk if len(shrunk) < len(body) else None


def decode_rows(bodies: Iterable[bytes], entries: bytes | None) -> list[Recorded]:
    """The records of these rows of a log; `entries` are those of its run, if it has ended."""
    entered = [entry.item for entry in decode(entries or b"[]", list[Entry])]
    return [record for body in bodies for record in decode_log(body, entered)]


def explain_mismatch(segment: Segment, *, length: int, has_ended: bool) -> Superseded:
    """Why this segment does not continue a log that holds `length` events."""
    run, first = f"run `{segment.run_id}`", segment.records[0].seq
    if not length:
        return Superseded(f"{run} is not stored, so event {first} cannot follow; it may have been deleted")
    if has_ended:
        return Superseded(f"{run} has ended; event {first} cannot follow")
    why = "another driver has taken it over" if first < length else "what comes before was not written"
    return Superseded(f"{run} goes on with event {length}, not {first}; {why}")


def not_found(run_id: str, param: str | None = None) -> NotFound:
    return NotFound(f"run `{run_id}` is not stored; it may have been deleted", param=param)


def not_ended(run_id: str) -> NotFound:
    return NotFound(f"run `{run_id}` has not ended; it can be continued when it has")


def check_holding(size: int, count: int) -> None:
    """Raises `InvalidRequest` if the runs that hold `count` items are too large to be read."""
    if size > MOST_HOLDING_BYTES:
        told = f"the responses that hold these {count} items have more than {MOST_HOLDING_BYTES} bytes; name fewer"
        raise InvalidRequest(told, param="input", code="string_above_max_length")


def collect_item_ids(entries: Iterable[Entry]) -> set[str]:
    """The ids of these items, those that have one."""
    return {id for entry in entries if (id := item_id(entry.item))}


def find_held(entries: bytes | None) -> set[str] | None:
    """The ids of the items that a run holds by its stored entries, None if these cannot be read."""
    try:
        return collect_item_ids(decode(entries, list[Entry])) if entries is not None else set()
    except MsgspecError:
        return None


def tell_damaged(run_ids: Sequence[str]) -> str:
    """What to say of old runs that a store has left because they cannot be read."""
    some = ", ".join(run_ids[:3]) + (f" and {len(run_ids) - 3} more" if len(run_ids) > 3 else "")
    return f"runs that cannot be read are left: {some}; restore a backup, or delete them, too, with: mainspring prune --damaged"


def cut_documents(found: Iterable[Document], most_bytes: int | None) -> list[Document]:
    """Those up to the one with which there are more than `most_bytes`."""
    taken, size = list[Document](), 0
    for document in found:
        if most_bytes is not None and size > most_bytes:
            break
        taken.append(document)
        size += len(document.body)
    return taken


def pick_items(ids: Sequence[str], logs: Iterable[Sequence[Entry]]) -> dict[str, Item]:
    """Those of these items that are among the entries, by id. An item without one is never meant."""
    wanted = set(ids) - {""}
    return {id: entry.item for entries in logs for entry in entries if (id := item_id(entry.item)) in wanted}
