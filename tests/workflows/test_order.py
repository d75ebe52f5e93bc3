"""The order of steps, proved by what meets whom: steps send requests, and the server holds them until others are there."""

import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import pytest
from tests.workflows.world import defined, ended, ends, engine_for, failure, tallying

from mainspring.features.workflows.workflow_log import WorkflowJournal
from mainspring.features.workflows.workflow_run import (
    StepCompleted,
    StepFailed,
    StepSkipped,
    StepStarted,
    WorkflowOrder,
    WorkflowStarted,
)


class Meeting:
    """Lets requests pass when `size` of them are there at once; counts how many were, at most."""

    def __init__(self, size: int) -> None:
        self._barrier = threading.Barrier(size, timeout=30)
        self._lock = threading.Lock()
        self._here = 0
        self.most = 0

    def __call__(self, path: str) -> None:
        with self._lock:
            self._here += 1
            self.most = max(self.most, self._here)
        with suppress(threading.BrokenBarrierError):  # that one never came is seen in what follows
            self._barrier.wait()
        with self._lock:
            self._here -= 1


def request(id: str, *after: str) -> str:
    return f"  - {{id: {id}, action: http-request, url: '{{{{ inputs.base }}}}/{id}', depends_on: [{', '.join(after)}]}}\n"


def workflow(steps: Sequence[str], execution: str = "{}") -> str:
    return f"name: order\ninputs: {{base: {{}}}}\nexecution: {execution}\nsteps:\n{''.join(steps)}"


async def test_steps_that_do_not_need_each_other_run_at_once_up_to_the_limit(tmp_path: Path) -> None:
    with tallying() as tally:
        tally.on_arrival = meeting = Meeting(3)
        text = workflow([request(f"s{n}") for n in range(9)], "{parallel_limit: 3}")
        async with engine_for(tmp_path, text) as engine:
            run = await engine.workflows.run("order", {"base": tally.url})
    assert run.status == "success"
    assert meeting.most == 3, "three were there together, and never a fourth"
    assert len(tally.arrivals) == 9


async def test_a_group_has_a_limit_of_its_own(tmp_path: Path) -> None:
    inside = "".join(["    " + request(f"s{n}") for n in range(4)])
    text = workflow([f"  - id: group\n    action: parallel-group\n    parallel_limit: 2\n    steps:\n{inside}"])
    with tallying() as tally:
        tally.on_arrival = meeting = Meeting(2)
        async with engine_for(tmp_path, text) as engine:
            run = await engine.workflows.run("order", {"base": tally.url})
    assert run.status == "success"
    assert meeting.most == 2


async def test_a_step_begins_when_all_that_it_needs_have_ended_and_not_before(tmp_path: Path) -> None:
    steps = [request("last", "left", "right"), request("left", "first"), request("right", "first"), request("first")]
    with tallying() as tally:
        both = Meeting(2)
        tally.on_arrival = lambda path: both(path) if path in ("/left", "/right") else None
        async with engine_for(tmp_path, workflow(steps)) as engine:
            handle = await engine.workflows.start("order", {"base": tally.url})
            events = [record.event async for record in handle.events()]
    order = [(type(event), event.step) for event in events if isinstance(event, StepStarted | StepCompleted)]
    assert both.most == 2, "left and right were there together"
    assert order[:2] == [(StepStarted, "first"), (StepCompleted, "first")]
    assert order[-2:] == [(StepStarted, "last"), (StepCompleted, "last")]


@pytest.mark.parametrize("mode", ["sequential", "parallel"])
async def test_modes(tmp_path: Path, mode: str) -> None:
    with tallying() as tally:
        tally.on_arrival = meeting = Meeting(1 if mode == "sequential" else 3)
        text = workflow([request(id) for id in ("c", "a", "b")], f"{{mode: {mode}}}")
        async with engine_for(tmp_path, text) as engine:
            run = await engine.workflows.run("order", {"base": tally.url})
    assert run.status == "success"
    assert meeting.most == (1 if mode == "sequential" else 3)
    if mode == "sequential":
        assert tally.arrivals == ["GET /c", "GET /a", "GET /b"]


FAILING = [request("bad"), request("slow"), request("next", "slow"), request("needs", "bad")]


async def failing(tmp_path: Path, execution: str) -> tuple[dict[str, str], str, list[str]]:
    """A step that fails while another is under way: how each ended, how the whole did, what arrived.

    The other one is held until the failure is known; with `fail_fast` it has no end but to be stopped.
    """
    held, both = threading.Event(), Meeting(2)

    def arrived(path: str) -> None:
        if path in ("/bad", "/slow"):
            both(path)
        if path == "/slow":
            held.wait(30)

    with tallying() as tally:
        tally.answers["/bad"] = (500,)
        tally.on_arrival = arrived
        try:
            async with engine_for(tmp_path, workflow(FAILING, execution)) as engine:
                handle = await engine.workflows.start("order", {"base": tally.url})
                async for record in handle.events():
                    if isinstance(record.event, StepFailed) and record.event.step == "bad" and "fail_fast: true" not in execution:
                        held.set()
        finally:
            held.set()
    assert "answered 500" in failure(handle.run, "bad")
    return ended(handle.run), handle.run.status, tally.arrivals


async def test_fail_fast_stops_what_is_under_way(tmp_path: Path) -> None:
    states, status, arrivals = await failing(tmp_path, "{fail_fast: true}")
    assert (states, status) == ({"bad": "failed", "slow": "failed", "next": "skipped", "needs": "skipped"}, "failed")
    assert "GET /next" not in arrivals


async def test_without_fail_fast_what_is_under_way_may_end_and_nothing_else_begins(tmp_path: Path) -> None:
    states, status, arrivals = await failing(tmp_path, "{fail_fast: false}")
    assert (states, status) == ({"bad": "failed", "slow": "success", "next": "skipped", "needs": "skipped"}, "failed")
    assert "GET /next" not in arrivals


async def test_continue_on_error_goes_on_with_all_that_does_not_need_what_failed(tmp_path: Path) -> None:
    states, status, _ = await failing(tmp_path, "{continue_on_error: true}")
    assert (states, status) == ({"bad": "failed", "slow": "success", "next": "success", "needs": "skipped"}, "partial")


async def test_a_sequence_goes_on_behind_a_failure_if_it_is_to(tmp_path: Path) -> None:
    text = """
name: order
execution: {mode: sequential, continue_on_error: true}
steps:
  - {id: bad, action: transform, value: "{{ 1 / 0 }}"}
  - {id: good, action: transform, value: 1}
  - {id: needs, action: transform, value: "{{ steps.bad.output }}"}
"""
    async with engine_for(tmp_path, text) as engine:
        handle = await engine.workflows.start("order")
        events = [record.event async for record in handle.events()]
    assert ends(events) == ["bad", "good", "needs"]
    assert ended(handle.run) == {"bad": "failed", "good": "success", "needs": "skipped"}
    assert handle.run.steps["needs"].error == "step `bad` failed"


async def test_when_no_step_s_condition_holds_the_workflow_is_skipped(tmp_path: Path) -> None:
    text = 'name: order\nsteps: [{id: s, action: transform, value: 1, condition: false}]\noutputs: {x: "{{ steps.s.output.y }}"}'
    async with engine_for(tmp_path, text) as engine:
        run = await engine.workflows.run("order")
    assert (run.status, run.outputs) == ("skipped", {})


async def test_outputs_that_cannot_be_had_fail_the_workflow(tmp_path: Path) -> None:
    text = 'name: order\nsteps: [{id: s, action: transform, value: 1}]\noutputs: {x: "{{ steps.s.output.y }}"}'
    async with engine_for(tmp_path, text) as engine:
        run = await engine.workflows.run("order")
    assert run.status == "failed"
    assert run.error is not None
    assert run.error.startswith("the outputs of the workflow: ")


CHAIN = """
name: order
execution: {continue_on_error: true}
steps:
  - {id: build, action: transform, value: "{{ 1 / 0 }}"}
  - {id: test, action: transform, value: 1, depends_on: [build]}
  - {id: deploy, action: transform, value: 1, depends_on: [test]}
  - {id: aside, action: transform, value: 1}
  - {id: never, action: transform, value: 1, condition: false}
  - {id: behind, action: transform, value: 1, depends_on: [never]}
"""
CHAINED = {"build": "failed", "test": "skipped", "deploy": "skipped", "aside": "success", "never": "skipped", "behind": "success"}


async def test_what_needs_a_failed_step_is_skipped_however_far_behind_it_is(tmp_path: Path) -> None:
    async with engine_for(tmp_path, CHAIN) as engine:
        run = await engine.workflows.run("order")
    assert (ended(run), run.status) == (CHAINED, "partial")
    assert run.steps["deploy"].error == "step `build` failed"


async def test_what_was_lost_to_a_failure_before_a_crash_stays_lost(tmp_path: Path) -> None:
    """As if the process had died when the step between had just been skipped."""
    definition = defined(CHAIN)
    order = WorkflowOrder("wfr_1", "order", {"order": definition}, {}, time.time())
    async with engine_for(tmp_path, CHAIN, database=tmp_path / "db") as engine:
        journal = await WorkflowJournal.begin(engine.store, order, WorkflowStarted("order", driver="gone"))
        failed = StepStarted("build", "transform"), StepFailed("build", "broken")
        skipped = StepSkipped("never", "its condition does not hold"), StepSkipped("test", "step `build` failed")
        await journal.record(*failed, *skipped)
        run = await (await engine.workflows.resume("wfr_1")).wait()
    assert ended(run) == CHAINED


@pytest.mark.parametrize("execution", ["{}", "{fail_fast: false}", "{continue_on_error: true}"])
@pytest.mark.parametrize("is_broken", [True, False])
async def test_a_failure_can_be_dealt_with(tmp_path: Path, execution: str, is_broken: bool) -> None:
    text = f"""
name: order
inputs: {{by: {{}}}}
execution: {execution}
steps:
  - {{id: build, action: transform, value: "{{{{ 1 / inputs.by }}}}"}}
  - {{id: mend, action: transform, value: "{{{{ steps.build.error }}}}", condition: steps.build.status == 'failed'}}
  - {{id: told, action: transform, value: "told {{{{ steps.mend.output }}}}", condition: "steps.build.status == 'failed'"}}
  - id: either
    action: conditional
    if: steps.build.error
    then: [{{id: bad, action: transform, value: 1}}]
    else: [{{id: good, action: transform, value: 1}}]
  - {{id: use, action: transform, value: "{{{{ steps.build.output }}}}"}}
"""
    async with engine_for(tmp_path, text) as engine:
        run = await engine.workflows.run("order", {"by": 0 if is_broken else 1})
    if is_broken:
        assert run.status == ("partial" if "continue" in execution else "failed")
        assert ended(run) == {
            "build": "failed", "mend": "success", "told": "success", "either": "success", "bad": "success", "good": "skipped",
            "use": "skipped",
        }  # fmt: skip
        assert "division by zero" in run.steps["told"].output
    else:
        assert run.status == "success"
        assert {id for id, status in ended(run).items() if status == "success"} == {"build", "either", "good", "use"}


async def test_a_partial_run_has_the_outputs_that_do_not_need_what_failed(tmp_path: Path) -> None:
    outputs = """
outputs:
  fine: "{{ steps.aside.output + 1 }}"
  how: "{{ steps.build.status }}"
  skipped: "{{ steps.never.output or 7 }}"
  lost: "{{ steps.deploy.output }}"
  broken: "{{ steps.build.output }}"
"""
    async with engine_for(tmp_path, CHAIN + outputs) as engine:
        run = await engine.workflows.run("order")
    assert (run.status, run.outputs) == ("partial", {"fine": 2, "how": "failed", "skipped": 7})


async def test_a_workflow_that_is_carried_out_in_part_fails_the_step_that_it_is(tmp_path: Path) -> None:
    outer = "name: outer\nsteps: [{id: s, action: sub-workflow, workflow: order}]"
    async with engine_for(tmp_path, CHAIN, outer) as engine:
        run = await engine.workflows.run("outer")
    assert run.status == "failed"
    assert failure(run, "s").startswith("workflow `order`: step `build` failed: ")
