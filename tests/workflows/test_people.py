"""Steps that wait for a person: they say so, hold nothing up, and their question goes when they do."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from tests.agents.world import written as agent
from tests.kit.waiting import PATIENCE
from tests.workflows.world import Tally, engine_for, failure, tallying

from mainspring.app.engine import Engine
from mainspring.core.errors import InvalidRequest
from mainspring.engine.approvals import SPENT
from mainspring.features.approvals.pending import Approvals
from mainspring.features.governance.governance_settings import build_policies
from mainspring.features.governance.settings import GovernanceSettings
from mainspring.features.workflows.view import render_run
from mainspring.features.workflows.workflow_run import StepWaiting
from mainspring.features.workflows.workflows import WorkflowHandle
from mainspring.providers.scripted import Scripted, call, calls, say
from mainspring.tools.addresses import AddressGuard
from mainspring.tools.functions import tool

ASKS = """
name: asks
inputs: {base: {}}
steps:
  - {id: send, action: http-request, method: POST, url: "{{ inputs.base }}/send"}
  - {id: later, action: transform, value: "{{ steps.send.output.status }}"}
outputs: {status: "{{ steps.later.output }}"}
"""
POSTING = GovernanceSettings(rules={"http_request:POST": "ask"})


async def waiting(handle: WorkflowHandle) -> tuple[str, ...]:
    """The approvals that a run waits for, as soon as it does."""
    async for record in handle.events():
        if isinstance(record.event, StepWaiting) and record.event.approvals:
            return record.event.approvals
    raise AssertionError("the run has ended")


@asynccontextmanager
async def asking(tmp_path: Path, **options: Any) -> AsyncIterator[tuple[Engine, Tally]]:
    policies = build_policies(POSTING, AddressGuard(("127.0.0.1",)))
    with tallying() as tally:
        async with engine_for(tmp_path, ASKS, policies=policies, database=tmp_path / "db", **options) as engine:
            yield engine, tally


async def test_a_step_that_waits_for_a_person_says_so_until_it_goes_on(tmp_path: Path) -> None:
    async with asking(tmp_path) as (engine, tally):
        handle = await engine.workflows.start("asks", {"base": tally.url})
        (id,) = await waiting(handle)
        assert [step.approvals for step in render_run(handle.run).steps] == [(id,)]
        assert handle.run.is_waiting
        await Approvals(engine.core).answer(id, approve=True)
        run = await handle.wait()
    told = [record.event.approvals for record in handle._journal.log if isinstance(record.event, StepWaiting)]
    assert (run.status, run.outputs, told) == ("success", {"status": 200}, [(id,), ()])
    assert tally.arrivals == ["POST /send"]


@pytest.mark.parametrize("how", ["cancelled", "late", "cancelled elsewhere"])
async def test_what_a_stopped_step_has_asked_can_be_approved_no_more(tmp_path: Path, how: str) -> None:
    async with asking(tmp_path) as (engine, tally), engine_for(tmp_path, ASKS, database=tmp_path / "db") as other:
        handle = await engine.workflows.start("asks", {"base": tally.url})
        (id,) = await waiting(handle)
        if how == "late":
            assert handle._driver is not None
            handle._driver.scope.deadline = anyio.current_time()
            await handle.wait()
        else:
            await (engine if how == "cancelled" else other).workflows.cancel(handle.id)
        await engine.drain()
        approvals = Approvals(engine.core)
        assert (await approvals.list(state="pending")).approvals == ()
        assert (await approvals.get(id)).state == "refused"
        with pytest.raises(InvalidRequest) as refused:
            await approvals.answer(id, approve=True)
        assert refused.value.code == SPENT
        await engine.drain()
    assert tally.arrivals == []


async def test_an_answer_that_came_first_is_followed_and_what_it_began_is_stopped(tmp_path: Path) -> None:
    """The agent goes on with the answer, and asks once more."""

    @tool
    def act(word: str) -> str:
        """Does something."""
        done.append(word)
        return "done"

    done: list[str] = []
    agent(tmp_path / "agents", "doer")
    model = Scripted(calls(call("act", word="a")), calls(call("act", word="b")), say("unasked"))
    text = "name: one\nsteps: [{id: s, action: invoke-agent, agent: doer, inputs: {task: work it out}}]"
    options: dict[str, Any] = {
        "policies": build_policies(GovernanceSettings(rules={"act": "ask"}), AddressGuard()),
        "database": tmp_path / "db",
    }
    async with engine_for(tmp_path, text, model=model, tools=[act], agents=[tmp_path / "agents"], **options) as engine:
        handle = await engine.workflows.start("one")
        (first,) = await waiting(handle)
        await Approvals(engine.core).answer(first, approve=True)
        second = first
        async for record in handle.events():
            if isinstance(record.event, StepWaiting) and record.event.approvals not in ((), (first,)):
                (second,) = record.event.approvals
                break
        await engine.workflows.cancel(handle.id)
        states = [(await Approvals(engine.core).get(id)).state for id in (first, second)]
    assert (states, done) == (["approved", "refused"], ["a"])


async def test_a_run_that_only_waits_for_a_person_holds_up_no_stop(tmp_path: Path) -> None:
    async with asking(tmp_path) as (engine, tally):
        handle = await engine.workflows.start("asks", {"base": tally.url})
        (id,) = await waiting(handle)
        with anyio.fail_after(PATIENCE):
            await engine.drain()
        assert handle.is_live
    async with asking(tmp_path) as (engine, _):
        await engine.resume_all()
        handle = await engine.workflows.attach(handle.id)
        await Approvals(engine.core).answer(id, approve=False, reason="not today")
        with anyio.fail_after(PATIENCE):
            await handle.wait()
        assert "A person refused this call: not today" in failure(handle.run, "send")


async def test_a_step_whose_question_is_deleted_waits_no_more(tmp_path: Path) -> None:
    async with asking(tmp_path) as (engine, tally):
        handle = await engine.workflows.start("asks", {"base": tally.url})
        await waiting(handle)
        await engine.forget(handle.run.steps["send"].run_id)
        with anyio.fail_after(PATIENCE):
            run = await handle.wait()
    assert run.status == "failed"
    assert "may have been deleted" in failure(run, "send")
