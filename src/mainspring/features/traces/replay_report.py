"""A stored run, replayed from its log, and what came of it."""

from msgspec import Struct

from mainspring.core.errors import CallerError
from mainspring.core.events import RunStarted
from mainspring.core.history import History, history_of, replace_lost_history
from mainspring.core.items import Item, Usage
from mainspring.core.spec import RunSpec
from mainspring.engine.conversation import reread
from mainspring.features.traces.replay import Replay, replay_log
from mainspring.ports import Store, StoredRun


class ReplayReport(Struct, frozen=True):
    """A replay as it is told. `same` is whether it went as the log says."""

    run: str
    same: bool
    events: int
    decisions: int
    status: str = ""
    reason: str | None = None
    output: tuple[Item, ...] = ()
    usage: Usage = Usage()
    event: int | None = None
    expected: str | None = None
    found: str | None = None


async def replay_run(store: Store, stored: StoredRun) -> ReplayReport:
    """Replays a run without model and tools. Raises `NotFound` if it is deleted meanwhile."""
    records = await store.events(stored.id)
    first = records[0].event
    history = await _read_history(store, first.spec) if isinstance(first, RunStarted) else History()
    kept = None if stored.response is None else await store.history(stored.id)
    return _summarize(stored.id, len(records), replay_log(records, history, stored.response, kept))


async def _read_history(store: Store, spec: RunSpec) -> History:
    """What was before the run. If that has been deleted, what the run itself says of it must do."""
    try:
        if spec.conversation is not None:
            return await reread(store, spec.tenant, spec.conversation)
        return History() if spec.parent is None else history_of(await store.history(spec.parent, tenant=spec.tenant))
    except CallerError:
        return replace_lost_history(spec.input)


def _summarize(run_id: str, events: int, again: Replay) -> ReplayReport:
    if (where := again.difference) is not None:
        return ReplayReport(run_id, False, events, again.decisions, event=where.seq, expected=where.expected, found=where.found)
    run = again.run
    assert run is not None, "without a difference there is a run"
    reason = None if run.reason is None else run.reason.value
    return ReplayReport(run_id, True, events, again.decisions, run.status, reason, run.output, run.usage)
