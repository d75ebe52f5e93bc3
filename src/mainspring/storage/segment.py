"""One append, as both stores understand it, and the errors both of them give."""

from collections.abc import Iterable, Sequence

from msgspec import Struct
from msgspec.structs import replace

from mainspring.core.drafts import item_id
from mainspring.core.errors import Malformed, NotFound, Superseded
from mainspring.core.events import Recorded, RunEnded, RunStarted, Status
from mainspring.core.history import Entry
from mainspring.core.items import Item
from mainspring.ports import Note, Snapshot, StoredRun


class Ending(Struct, frozen=True):
    """How a run ended, and what is kept of it besides the log."""

    status: Status
    at: float
    snapshot: Snapshot


class Segment(Struct, frozen=True):
    """A stretch of a run's log that is written whole or not at all, with what the audit is to hold of it.

    Raises `Malformed` unless the records are numbered in a row, number 0 is `RunStarted`, and a snapshot comes with `RunEnded`
    and only with it.
    """

    run_id: str
    records: list[Recorded]
    snapshot: Snapshot | None = None
    notes: tuple[Note, ...] = ()

    def __post_init__(self) -> None:
        records = self.records
        if not records:
            raise Malformed(f"an append to run `{self.run_id}` holds no events")
        first, last = records[0], records[-1]
        if last.seq - first.seq != len(records) - 1:
            raise Malformed(f"events {first.seq} to {last.seq} of run `{self.run_id}` are not numbered in a row")
        if (first.seq == 0) is not isinstance(first.event, RunStarted):
            raise Malformed(f"event {first.seq} of run `{self.run_id}` cannot be {type(first.event).__name__}")
        if (self.snapshot is not None) is not isinstance(last.event, RunEnded):
            raise Malformed(f"run `{self.run_id}`: a snapshot is written with RunEnded, not with {type(last.event).__name__}")

    @property
    def first(self) -> int:
        return self.records[0].seq

    @property
    def last(self) -> int:
        return self.records[-1].seq

    @property
    def opening(self) -> StoredRun | None:
        """The run that begins here; None if this goes on with one."""
        match self.records[0]:
            case Recorded(0, at, RunStarted(spec)):
                begun = StoredRun(self.run_id, "in_progress", at, spec.parent, spec.model, spec.background)
                return replace(begun, tenant=spec.tenant, conversation=spec.conversation)
        return None

    @property
    def ending(self) -> Ending | None:
        if self.snapshot is None:
            return None
        match self.records[-1]:
            case Recorded(_, at, RunEnded(status)):
                return Ending(status, at, self.snapshot)
        return None


def explain_mismatch(segment: Segment, *, length: int, has_ended: bool) -> Superseded:
    """Why this segment does not continue a log that holds `length` events."""
    run = f"run `{segment.run_id}`"
    if not length:
        return Superseded(f"{run} is not stored, so event {segment.first} cannot follow; it may have been deleted")
    if has_ended:
        return Superseded(f"{run} has ended; event {segment.first} cannot follow")
    why = "another driver has taken it over" if segment.first < length else "what comes before was not written"
    return Superseded(f"{run} goes on with event {length}, not {segment.first}; {why}")


def not_found(run_id: str, param: str | None = None) -> NotFound:
    return NotFound(f"run `{run_id}` is not stored; it may have been deleted", param=param)


def not_ended(run_id: str) -> NotFound:
    return NotFound(f"run `{run_id}` has not ended; it can be continued when it has")


def collect_item_ids(entries: Iterable[Entry]) -> set[str]:
    """The ids of these items, those that have one."""
    return {id for entry in entries if (id := item_id(entry.item))}


def pick_items(ids: Sequence[str], logs: Iterable[Sequence[Entry]]) -> dict[str, Item]:
    """Those of these items that are among the entries, by id. An item without one is never meant."""
    wanted = set(ids) - {""}
    return {id: entry.item for entries in logs for entry in entries if (id := item_id(entry.item)) in wanted}
