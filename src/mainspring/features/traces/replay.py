"""Replays a run from its log, without a model and without tools.

Theory of operation. A log holds what the loop asked for and what the world answered. Here `next_action` decides again, step by
step, and each decision must match what happened next. What came from outside (model output, verdicts, tool results, a cancel, a
crash) is taken from the log; what the loop derives from it (nudges, answers to calls that are not run, the end) is computed
again and must be the same. `Replay.difference` is the first event that is not.
"""

from collections.abc import Callable, Iterable, Sequence
from itertools import zip_longest
from typing import Final, assert_never, get_args

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from mainspring.core.actions import Action, CallModel, Compact, Execute, Finish, Judge, Nudge, Reuse, Withhold
from mainspring.core.compaction import summary_of
from mainspring.core.decide import closing, next_action, recovery
from mainspring.core.errors import MainspringError
from mainspring.core.events import (
    CallJudged,
    Compacted,
    Event,
    ModelEvent,
    Nudged,
    Reason,
    Recorded,
    RunEnded,
    RunResumed,
    ToolEnded,
    ToolProgress,
    ToolStarted,
    ToolWithheld,
    TurnStarted,
)  # fmt: skip
from mainspring.core.history import Entry, History
from mainspring.core.items import Json, encode, to_json
from mainspring.core.response import Response, response
from mainspring.core.run import Run, fold, open_run

_SAID: Final = get_args(ModelEvent)
# Ends that come from outside, at any moment: somebody cancels, the time is up, the engine or its store breaks.
_FROM_OUTSIDE: Final = frozenset({Reason.CANCELLED, Reason.DEADLINE, Reason.INTERNAL_ERROR})
# An answer that a check of the engine found wrong; the loop alone would have let it pass.
_CHECKED: Final = "provider_invalid_output"
# Of what is not the same, these say most.
_FIRST: Final = ("status", "error", "incomplete_details", "output", "usage")


class Difference(Struct, frozen=True):
    """Where a replay leaves the log: at which event, what should be there, and what is."""

    seq: int
    expected: str
    found: str

    def __str__(self) -> str:
        return f"event {self.seq}: expected {self.expected}, found {self.found}"


class Replay(Struct, frozen=True):
    """What became of a replay: the run as far as it got, the decisions that were made again, and the first difference."""

    run: Run | None
    decisions: int
    difference: Difference | None = None


class _Differs(Exception):
    def __init__(self, difference: Difference) -> None:
        super().__init__(str(difference))
        self.difference = difference


def replay_log(
    records: Sequence[Recorded], history: History, stored: Response | None = None, kept: Sequence[Entry] | None = None
) -> Replay:
    """Replays a log. With the `stored` Response, the run must end as that says, too, and with the entries that are `kept` of the
    conversation up to its end, with the same items. Pure; raises nothing."""
    stage = _Replayer(records)
    try:
        run = stage.open(history)
        while stage.is_left and not run.has_ended:
            run = stage.step(run)
        if stage.is_left:
            raise stage.differs("nothing, since the run has ended")
        if stored is not None:
            _compare(run, stored, len(records) - 1)
        if kept is not None and run.has_ended:
            _compare_entries(run, kept, len(records) - 1)
    except _Differs as error:
        return Replay(stage.run, stage.decisions, error.difference)
    return Replay(run, stage.decisions)


class _Replayer:
    """The log, read from its beginning, and the run that comes of it."""

    def __init__(self, records: Sequence[Recorded]) -> None:
        self._records = records
        self._place = 0
        self.run: Run | None = None
        self.decisions = 0

    @property
    def is_left(self) -> bool:
        return self._place < len(self._records)

    def differs(self, expected: str) -> _Differs:
        found = _describe(self._records[self._place].event) if self.is_left else "the end of the log"
        return _Differs(Difference(self._place, expected, found))

    def open(self, history: History) -> Run:
        if not self._records:
            raise self.differs("run_started")
        return self._fold(lambda record: open_run(record, history))

    def step(self, run: Run) -> Run:
        """The run after the next decision, or after what came between."""
        if isinstance(self._event, RunResumed):
            return self._expect(run, recovery(run))
        self.decisions += 1
        return self._perform(run, next_action(run))

    def _perform(self, run: Run, action: Action) -> Run:
        if (ended := self._find_outside_end(run)) is not None:
            return ended
        match action:
            case CallModel():
                return self._turn(self._expect(run, [TurnStarted()]))
            case Judge(call_ids):
                return self._take_verdicts(run, call_ids)
            case Execute(call_ids):
                return self._take_results(self._expect(run, map(ToolStarted, call_ids)), call_ids)
            case Nudge(kind, text, reason):
                return self._expect(run, [Nudged(kind, text, reason)])
            case Reuse(call_id, output, is_error):
                return self._expect(run, [ToolEnded(call_id, output, is_error, recorded="reused")])
            case Withhold(name, reason):
                return self._expect(run, [ToolWithheld(name, reason)])
            case Compact(keeps):
                return self._take_summary(run, keeps)
            case Finish() as finish:
                return self._expect(run, closing(run, self._apply_check(finish)))
            case unknown:
                assert_never(unknown)

    def _turn(self, run: Run) -> Run:
        while run.in_turn:
            if (stopped := self._find_stop(run)) is not None:
                return stopped
            if not isinstance(self._event, _SAID):
                raise self.differs("what the model says")
            run = self._take(run)
        return run

    def _take_verdicts(self, run: Run, call_ids: Sequence[str]) -> Run:
        for call_id in call_ids:
            if (stopped := self._find_stop(run)) is not None:
                return stopped
            if not (isinstance(self._event, CallJudged) and self._event.call_id == call_id):
                raise self.differs(f"a verdict on call `{call_id}`")
            run = self._take(run)
        return run

    def _take_results(self, run: Run, call_ids: Sequence[str]) -> Run:
        """Calls that were begun together, until each has ended; a call may turn out to be the client's."""
        under_way = set(call_ids)
        while under_way:
            if (stopped := self._find_stop(run)) is not None:
                return stopped
            event = self._event
            if not isinstance(event, ToolEnded | ToolProgress | CallJudged) or event.call_id not in under_way:
                raise self.differs("what becomes of " + ", ".join([f"call `{id}`" for id in call_ids if id in under_way]))
            if not isinstance(event, ToolProgress):
                under_way.discard(event.call_id)
            run = self._take(run)
        return run

    def _take_summary(self, run: Run, keeps: int) -> Run:
        event = self._event
        if not isinstance(event, Compacted):
            raise self.differs("a summary of what came before")
        if event.item is not None and ((summary := summary_of(event.item)) is None or summary.keeps != keeps):
            raise self.differs(f"a summary that keeps {keeps} items")
        return self._take(run)

    def _apply_check(self, finish: Finish) -> Finish:
        """The end as the loop wants it, unless a check of the engine found fault with the answer."""
        match self._records[-1].event:
            case RunEnded("failed", Reason.PROVIDER_ERROR, error) if error is not None and error.code == _CHECKED:
                return Finish("failed", Reason.PROVIDER_ERROR, error) if finish.reason is Reason.FINAL_ANSWER else finish
            case _:
                return finish

    def _find_stop(self, run: Run) -> Run | None:
        """The run, if what is under way goes no further: the log is over, its driver died, or somebody ended it."""
        if not self.is_left or isinstance(self._event, RunResumed):
            return run
        return self._find_outside_end(run)

    def _find_outside_end(self, run: Run) -> Run | None:
        """The run at its end, if the rest of the log is an end that nothing in it calls for."""
        match self._records[-1].event:
            case RunEnded(status, reason, error) if reason in _FROM_OUTSIDE:
                events = closing(run, Finish(status, reason, error))
                if len(events) != len(self._records) - self._place:
                    return None
                rest = [record.event for record in self._records[self._place :]]
                return self._expect(run, events) if all(map(_is_same, rest, events)) else None
            case _:
                return None

    def _expect(self, run: Run, events: Iterable[Event]) -> Run:
        """The run after events that follow from it; each must be in the log as it is made here."""
        for event in events:
            if not self.is_left:
                return run
            if not _is_same(self._event, event):
                raise self.differs(_describe(event))
            run = self._take(run)
        return run

    def _take(self, run: Run) -> Run:
        return self._fold(lambda record: fold(run, record))

    def _fold(self, fold: Callable[[Recorded], Run]) -> Run:
        try:
            self.run = fold(self._records[self._place])
        except MainspringError as error:
            raise self.differs(f"an event that can be here ({error.message})") from error
        self._place += 1
        return self.run

    @property
    def _event(self) -> Event:
        return self._records[self._place].event


def _compare(run: Run, stored: Response, seq: int) -> None:
    """Raises unless the run has ended as its stored Response says."""
    known: Json = msgspec.json.decode(encode(stored))
    made: Json = msgspec.json.decode(encode(response(run)))
    for field in dict.fromkeys((*_FIRST, *known, *made)):
        if known.get(field) != made.get(field):
            told = f"the {field} of the stored response, {_short(to_json(known.get(field)))}"
            raise _Differs(Difference(seq, told, _short(to_json(made.get(field)))))


def _compare_entries(run: Run, kept: Sequence[Entry], seq: int) -> None:
    """Raises unless the run has added what is kept to the conversation."""
    added, kept = run.own_entries, [entry for entry in kept if not entry.hidden]
    last = kept[max(len(kept) - len(added), 0) :]
    for ours, theirs in zip_longest(added, last):
        if encode(ours) != encode(theirs):
            told = f"the stored item {_short(to_json(theirs))}"
            raise _Differs(Difference(seq, told, _short(to_json(ours))))


def _is_same(found: Event, made: Event) -> bool:
    """Whether both say the same, but for what only their time and place could say: older versions recorded no outcome."""
    match found, made:
        case RunResumed(), _:
            return replace(found, driver="") == made
        case ToolEnded(recorded=None), ToolEnded():
            return found == replace(made, recorded=None)
        case _:
            return found == made


def _describe(event: Event) -> str:
    return _short(to_json(event))


def _short(text: str, most: int = 200) -> str:
    return text if len(text) <= most else f"{text[:most]}..."
