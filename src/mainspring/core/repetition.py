"""Repetition: whether a run goes round in circles, and which rung of the ladder that has brought it to. Pure.

Theory of operation. A turn is compared with the turns before it, once for every length that a cycle may have. It continues the
cycle of a length if it makes most of the calls of the turn that many before it, and adds to the score of that length: fully if
all of these calls gave the same results as then, half if only most did, and a quarter if the results have changed, for that may
be progress. If, besides, one of its calls is new, it is: an agent that looks, edits and tests does so turn by turn. Otherwise the
score of that length starts again. Turns without calls, and calls of tools that poll, do not count.

A score of `max_repeats - 1` whole turns, and of one whole cycle, earns a nudge. If the cycle goes on, then for one time round the
results that are known are given back, for one more the tools are withheld, and after that the run ends. What is kept is bounded
by the longest cycle, so a turn costs the same however long the run is.
"""

from collections.abc import Sequence
from typing import Final, Literal

from msgspec import Struct
from msgspec.structs import replace

from mainspring.core.items import Part
from mainspring.core.spec import Limits

Rung = Literal["reuse", "withhold", "close"]

_RUNGS: Final[tuple[Rung, ...]] = ("reuse", "withhold", "close")
# Of the score: a turn that repeats all calls and results, most of them, or calls alone.
_WHOLE: Final = 4
_MOST: Final = 2
_CALLS: Final = 1


class CallResult(Struct, frozen=True):
    """The result of a call. Only one that the tool itself gave `is_reusable`."""

    output: str | tuple[Part, ...]
    is_error: bool
    is_reusable: bool


class PastCall(Struct, frozen=True):
    """A call as far as it matters here, its arguments in canonical form. Without a result it was withheld, or is under way."""

    call_id: str
    name: str
    arguments: str
    result: CallResult | None = None


class Streak(Struct, frozen=True):
    """How many turns have continued a cycle, and the score of that."""

    turns: int = 0
    score: int = 0


class Repetition(Struct, frozen=True):
    """Where a run stands. `past` are the turns before this one, the newest last; `streaks` has one entry for each length of a
    cycle. `calls` are those of the turn under way, `cycle` is the length of the cycle that it continues, 0 for none, and `rung`
    what follows from that. `is_warned` claims that the model was told of it."""

    past: tuple[tuple[PastCall, ...], ...] = ()
    streaks: tuple[Streak, ...] = ()
    calls: tuple[PastCall, ...] = ()
    cycle: int = 0
    rung: Rung | None = None
    is_warned: bool = False


def begin_turn(state: Repetition, calls: Sequence[PastCall], limits: Limits) -> Repetition:
    """The state once the model has made these calls, from that between turns: which cycle they continue, and what is to be done
    about it."""
    if not calls:
        # Runs of older versions have no `max_cycle`; for them, text ended a repetition.
        return state if limits.max_cycle is not None else Repetition()
    cycle, rung = 0, -1
    for length, (streak, earlier) in enumerate(zip(state.streaks, reversed(state.past), strict=False), 1):
        beyond = streak.score // _WHOLE - _count_needed(length, limits)
        if beyond >= 0 and _compare(calls, earlier, limits) and beyond // length > rung:
            cycle, rung = length, beyond // length
    if cycle == 0:
        return replace(state, calls=tuple(calls), is_warned=False)
    reached = _RUNGS[min(rung, 2)] if limits.max_cycle is not None else "close"
    return replace(state, calls=tuple(calls), cycle=cycle, rung=reached)


def note_result(state: Repetition, call_id: str, result: CallResult | None) -> Repetition:
    calls = tuple([replace(call, result=result) if call.call_id == call_id else call for call in state.calls])
    return replace(state, calls=calls)


def end_turn(state: Repetition, limits: Limits) -> Repetition:
    """The state once every call of the turn has its result."""
    if not state.calls:
        return state
    most = limits.max_cycle or 1
    past = (*state.past, state.calls)
    streaks = [
        _extend(streak, _compare(state.calls, past[-1 - length], limits) if length < len(past) else 0)
        for length, streak in enumerate(state.streaks or (Streak(),) * most, 1)
    ]
    # A result is given back if it was the same in the last two rounds, so two rounds are kept.
    return Repetition(past[-2 * most :], tuple(streaks), is_warned=state.is_warned)


def find_due_cycle(state: Repetition, limits: Limits) -> int:
    """The length of the cycle that earns a nudge now, the shortest of several; 0 if none does."""
    lengths = enumerate(state.streaks, 1)
    return next((length for length, streak in lengths if streak.score >= _WHOLE * _count_needed(length, limits)), 0)


def find_repeated_calls(state: Repetition) -> dict[str, CallResult | None]:
    """The calls of the turn under way that were made in the last two rounds of its cycle as well, by call id, each with the
    result that it had both times; None if that has changed."""
    last, before = [{_key(call): call.result for call in state.past[-state.cycle * rounds]} for rounds in (1, 2)]
    return {
        call.call_id: last[key] if last[key] == before[key] else None
        for call in state.calls
        if (key := _key(call)) in last and key in before
    }


def _count_needed(length: int, limits: Limits) -> int:
    """The turns that must repeat others before anything is said."""
    assert limits.max_repeats is not None
    return limits.max_repeats - 1 if limits.max_cycle is None else max(limits.max_repeats - 1, length)


def _extend(streak: Streak, score: int) -> Streak:
    return Streak(streak.turns + 1, streak.score + score) if score else Streak()


def _compare(calls: Sequence[PastCall], earlier: Sequence[PastCall], limits: Limits) -> int:
    """The score of a turn that follows an earlier one, 0 if it does not continue its cycle."""
    if limits.max_cycle is None:
        return _WHOLE if [_key(call) for call in calls] == [_key(call) for call in earlier] else 0
    waiting: dict[tuple[str, str], list[CallResult | None]] = {}
    for call in earlier:
        waiting.setdefault(_key(call), []).append(call.result)
    pairs = [(call.result, results.pop(0)) for call in calls if (results := waiting.get(_key(call)))]
    most = max(len(calls), len(earlier))
    # A call that was withheld has no result, and is no progress.
    same = sum(result is None or result == known for result, known in pairs)
    if 2 * same > most:
        return _WHOLE if same == most else _MOST
    return _CALLS if len(pairs) == most else 0


def _key(call: PastCall) -> tuple[str, str]:
    return call.name, call.arguments
