"""The checker finds what it is there to find: a sound history has no breach, and each rule that is broken is named, alone."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.cluster.checker import RULES, check
from tests.cluster.history import (
    DONE,
    Accepted,
    Answered,
    Arrived,
    Cancelled,
    Contents,
    Conversed,
    Effect,
    Faulted,
    Fired,
    Froze,
    Indexed,
    Kept,
    Seen,
    StoredRun,
    Streamed,
    Told,
    Unanswered,
    WorkflowAccepted,
    WorkflowCancelled,
)


def frame(number: int, text: str = "x") -> bytes:
    return f'event: t\ndata: {{"type":"t","sequence_number":{number},"delta":"{text}"}}\n\n'.encode()


LAST = b'event: t\ndata: {"type":"t","sequence_number":2}\n\n'
WHOLE = frame(0) + frame(1) + LAST + DONE
AT_ALL = {"server1": WHOLE, "server2": WHOLE}
HISTORY: list[Seen] = [
    Accepted(1.0, "r1", "k1"),
    Accepted(1.0, "r2", "k2"),
    Accepted(1.0, "r3", "k3"),
    Streamed(2.0, "r1", "server1", -1, frame(0) + frame(1)),
    Streamed(3.0, "r1", "server2", 1, LAST + DONE),
    Cancelled(4.0, "r2"),
    Accepted(4.0, "r0", "k4"),
    Accepted(4.5, "r4", "k4"),
    Answered(5.0, "q1", "r3", "r5"),
    Answered(5.0, "q1", "r3"),
    WorkflowAccepted(1.0, "w1", "k5"),
    WorkflowAccepted(1.0, "w2", "k6"),
    Arrived(2.0, "w1", "first"),
    WorkflowCancelled(6.0, "w2"),
    Arrived(6.1, "w2", "first"),
    Kept(2.0, "box", "a", "12"),
    Conversed(2.0, "talk", "one"),
    Conversed(3.0, "talk", "two"),
    Fired(2.0, 100.0, "started", "w3"),
    Fired(5.0, 105.0, "started", "w4"),
    Fired(6.0, 105.0, "started", "w4"),
    Arrived(2.1, "w3", "first"),
    Told(5.0, "e1", "response.completed", "r1", is_taken=False),
    Told(6.0, "e1", "response.completed", "r1"),
    Told(6.0, "e1", "response.completed", "r1"),
    Told(6.0, "e2", "workflow.completed", "w1"),
    Told(6.0, "e3", "workflow.cancelled", "w2"),
    Told(6.0, "e6", "workflow.completed", "w3"),
    Told(6.0, "e4", "approval.requested", "q1"),
    Indexed(3.0, "library", "f1", "tides"),
]
CONTENTS = Contents(
    runs={
        "r0": StoredRun("failed", AT_ALL),
        "r1": StoredRun("completed", AT_ALL, frozenset({"c1", "c4"}), is_told=True),
        "r2": StoredRun("cancelled", AT_ALL, frozenset({"c2"})),
        "r3": StoredRun("completed", AT_ALL),
        "r4": StoredRun("completed", AT_ALL),
        "r5": StoredRun("completed", AT_ALL, frozenset({"c3"}), parent="r3"),
    },
    effects=(
        Effect(1.5, "r1", "c1", "count", "frugal", "begun"),
        Effect(1.6, "r1", "c1", "count", "frugal", "done"),
        Effect(1.6, "r1", "c4", "look", "", "begun"),
        Effect(2.6, "r1", "c4", "look", "", "begun"),
        Effect(1.5, "r2", "c2", "count", "", "begun"),
        Effect(5.5, "r5", "c3", "wipe", "", "begun"),
    ),
    allowances={"frugal": 1},
    spent={"frugal": 1},
    workflows={"w1": "success", "w2": "cancelled", "w3": "success"},
    files={"box": {"a": "12", "b": "34"}},
    conversations={"talk": ("one", "failed", "two")},
    found={"tides": ("f1",)},
)


def with_run(contents: Contents, name: str, stored: StoredRun) -> Contents:
    return replace(contents, runs={**contents.runs, name: stored})


def with_effect(contents: Contents, effect: Effect) -> Contents:
    return replace(contents, effects=(*contents.effects, effect))


def test_a_sound_history_breaks_nothing() -> None:
    assert check(HISTORY, CONTENTS) == []


def test_a_step_that_is_finished_when_its_process_wakes_up_is_not_late() -> None:
    late = with_effect(CONTENTS, Effect(9.1, "r2", "c2", "count", "", "done", 7))
    assert {breach.rule for breach in check(HISTORY, late)} == {"late"}
    assert check([*HISTORY, Froze(3.0, 7, 9.0)], late) == []


moments = st.floats(0.0, 20.0)


@given(moments, moments, moments, st.integers(7, 8))
def test_only_the_frozen_process_is_excused_and_only_as_it_wakes_up(frozen: float, woken: float, done: float, pid: int) -> None:
    """Whatever froze and whenever: `r2` was answered to be cancelled at 4.0."""
    late = with_effect(CONTENTS, Effect(done, "r2", "c2", "count", "", "done", 7))
    found = {breach.rule for breach in check([*HISTORY, Froze(frozen, pid, woken)], late)}
    is_excused = done <= 4.0 or (pid == 7 and frozen < 4.0 < woken <= done < woken + 1.0)
    assert found == (set() if is_excused else {"late"})


@pytest.mark.parametrize("fault", ["freeze", "kill", "partition", "outage", "skew"])
def test_no_other_fault_excuses_a_late_effect(fault: str) -> None:
    late = with_effect(CONTENTS, Effect(9.1, "r2", "c2", "count", "", "done", 7))
    assert {breach.rule for breach in check([*HISTORY, Faulted(3.0, fault, "worker1", 6.0)], late)} == {"late"}


Damage = Callable[[list[Seen], Contents], Contents]


def see(*more: Seen) -> Damage:
    def damage(history: list[Seen], contents: Contents) -> Contents:
        history.extend(more)
        return contents

    return damage


def without(name: str) -> Damage:
    return lambda _, contents: replace(contents, runs={run: kept for run, kept in contents.runs.items() if run != name})


def store(name: str, stored: StoredRun) -> Damage:
    return lambda _, contents: with_run(contents, name, stored)


def effect(at: float, run: str, call: str, tool: str = "count", tenant: str = "") -> Damage:
    return lambda _, contents: with_effect(contents, Effect(at, run, call, tool, tenant, "begun"))


SOUND = CONTENTS.runs
BROKEN: list[tuple[str, Damage]] = [
    ("unended", without("r4")),
    ("unended", store("r1", replace(SOUND["r1"], status="in_progress"))),
    ("unended", store("r9", StoredRun("in_progress", AT_ALL))),
    ("unanswered", see(Unanswered(9.0, "POST /responses"))),
    ("doubled", see(Accepted(6.0, "r3", "k1"))),
    ("repeated", effect(1.8, "r1", "c1")),
    ("unrecorded", effect(1.8, "r1", "c9")),
    ("unrecorded", effect(1.8, "r9", "c1", "look")),
    ("late", effect(4.1, "r2", "c2", "look")),
    ("late", store("r2", replace(SOUND["r2"], status="completed"))),
    ("torn", see(Streamed(2.0, "r1", "server1", -1, frame(0) + frame(1, "y")))),
    ("torn", see(Streamed(2.0, "r1", "server2", 0, LAST + DONE))),
    ("torn", see(Streamed(2.0, "r1", "server2", -1, frame(0) + DONE))),
    ("torn", see(Streamed(2.0, "r1", "server2", 7, frame(8)))),
    ("torn", store("r1", replace(SOUND["r1"], streams={"server1": WHOLE, "server2": frame(0) + DONE}))),
    ("approvals", see(Answered(6.0, "q1", "r3", "r4"))),
    ("approvals", store("r9", replace(SOUND["r5"], started=frozenset()))),
    ("approvals", store("r5", replace(SOUND["r5"], parent=""))),
    ("approvals", see(Answered(6.0, "q2", "r4"), Told(6.0, "e5", "approval.requested", "q2"))),
    ("overspent", lambda _, contents: replace(contents, spent={"frugal": 0})),
    ("overspent", lambda _, contents: replace(contents, spent={"frugal": 2})),
    ("overspent", lambda _, contents: replace(contents, allowances={"frugal": 0}, spent={})),
    ("workflows", lambda _, contents: replace(contents, workflows={**contents.workflows, "w1": "running"})),
    ("workflows", see(WorkflowAccepted(2.0, "w2", "k5"))),
    ("steps", see(Arrived(3.0, "w1", "first"))),
    ("late steps", see(Arrived(7.1, "w2", "second"))),
    ("late steps", see(WorkflowCancelled(6.0, "w3"))),
    ("files", lambda _, contents: replace(contents, files={"box": {"a": "34"}})),
    ("files", see(Kept(3.0, "box", "c", "56"))),
    ("conversations", see(Conversed(4.0, "talk", "three"))),
    ("conversations", lambda _, contents: replace(contents, conversations={"talk": ("two", "one")})),
    ("conversations", lambda _, contents: replace(contents, conversations={"talk": ("one", "one", "two")})),
    ("schedule", see(Fired(7.0, 110.0, "failed"))),
    ("schedule", see(Fired(7.0, 105.0, "started", "w5"))),
    ("schedule", see(Fired(9.0, 115.0, "started", "w5"))),
    ("schedule", see(Arrived(7.0, "w5", "first"))),
    ("events", store("r3", replace(SOUND["r3"], is_told=True))),
    ("events", lambda _, contents: replace(contents, workflows={**contents.workflows, "w9": "failed"})),
    ("events", see(Answered(6.0, "q2", "r3", "r5"))),
    ("events", see(Told(7.0, "e5", "response.completed", "r1"))),
    ("events", see(Told(7.0, "e5", "response.failed", "r1"))),
    ("events", see(Told(7.0, "e5", "workflow.completed", "w2"))),
    ("search", see(Indexed(7.0, "library", "f2", "moon"))),
    ("search", lambda _, contents: replace(contents, found={"tides": ("f1", "f1")})),
    ("audit", lambda _, contents: replace(contents, audit="record 7 was changed")),
]


@pytest.mark.parametrize(("rule", "damage"), BROKEN)
def test_each_broken_rule_is_found_and_no_other(rule: str, damage: Damage) -> None:
    history = list(HISTORY)
    contents = damage(history, CONTENTS)
    assert {breach.rule for breach in check(history, contents)} == {rule}


def test_every_rule_is_broken_by_some_history() -> None:
    assert {rule for rule, _ in BROKEN} == set(RULES)
