"""Runs: shown live and late, cancelled, taken up, and kept from those whose they are not."""

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import anyio
import pytest
from tests.kit.engine import make_order
from tests.kit.waiting import PATIENCE
from tests.workflows.world import Tally, defined, ended, engine_for, failure, tallying, written

from mainspring.app.engine import Engine
from mainspring.core.errors import Interrupted, NotFound, StoreError, Superseded
from mainspring.core.events import ToolStarted
from mainspring.core.items import encode
from mainspring.core.memory_quota import MemoryQuota
from mainspring.features.workflows.step_work import derive_run_id
from mainspring.features.workflows.workflow_log import OPEN, RUN, WorkflowJournal, list_unfinished
from mainspring.features.workflows.workflow_run import (
    StepFailed,
    StepStarted,
    WorkflowCancelled,
    WorkflowOrder,
    WorkflowResumed,
    WorkflowStarted,
)
from mainspring.features.workflows.workflows import KeyReused, WorkflowHandle
from mainspring.ports import Document, StoredRun
from mainspring.storage.memory_runs import MemoryStore
from mainspring.storage.sqlite_runs import SqliteStore

HELD = """
name: held
inputs: {base: {}}
steps:
  - {id: first, action: http-request, method: POST, url: "{{ inputs.base }}/first"}
  - {id: second, action: http-request, METHOD, url: "{{ inputs.base }}/second", depends_on: [first]}
  - {id: third, action: transform, value: "{{ steps.second.output.status }}"}
outputs: {status: "{{ steps.third.output }}"}
"""
SAFE = HELD.replace("METHOD", "method: GET")
UNSAFE = HELD.replace("METHOD", "method: POST")
REPEATABLE = HELD.replace("METHOD", "method: POST, repeatable: true")


class Held:
    """Holds the first request to a path until it is let go, and says when it is there."""

    def __init__(self, tally: Tally, path: str = "/second") -> None:
        self._path = path
        self._there, self._go = threading.Event(), threading.Event()
        self._is_used = False
        tally.on_arrival = self._arrived

    def _arrived(self, path: str) -> None:
        if path == self._path and not self._is_used:
            self._is_used = True
            self._there.set()
            self._go.wait(30)

    async def there(self) -> None:
        assert await anyio.to_thread.run_sync(lambda: self._there.wait(30))

    def let_go(self) -> None:
        self._go.set()


async def begun(engine: Engine, tally: Tally, held: Held, **options: str) -> WorkflowHandle:
    handle = await engine.workflows.start("held", {"base": tally.url}, **options)  # type: ignore[arg-type]
    await held.there()
    return handle


async def test_events_can_be_read_live_late_and_from_anywhere(tmp_path: Path) -> None:
    with tallying() as tally:
        held = Held(tally)
        async with engine_for(tmp_path, SAFE, database=tmp_path / "db") as engine:
            handle = await begun(engine, tally, held)
            seen = [record.seq for record in await handle.more(-1)]
            held.let_go()
            rest = [record.seq async for record in handle.events(seen[-1])]
            whole = [record async for record in (await engine.workflows.attach(handle.id)).events()]
        assert [*seen, *rest] == [record.seq for record in whole] == list(range(len(whole)))
        async with engine_for(tmp_path, SAFE, database=tmp_path / "db") as later:
            assert [record async for record in (await later.workflows.attach(handle.id)).events()] == whole
            assert await list_unfinished(later.store) == []


@pytest.mark.parametrize("text", [SAFE, REPEATABLE, UNSAFE], ids=["safe", "repeatable", "unsafe"])
async def test_a_step_that_was_under_way_is_repeated_only_if_it_may_be(tmp_path: Path, text: str) -> None:
    """The first engine is left in the midst of a request; the second one takes its run up."""
    with tallying() as tally:
        held = Held(tally)
        async with engine_for(tmp_path, text, database=tmp_path / "db") as engine:
            handle = await begun(engine, tally, held)
        held.let_go()
        with pytest.raises(Interrupted, match="can be resumed"):
            await handle.wait()
        async with engine_for(tmp_path, text, database=tmp_path / "db") as engine:
            await engine.resume_all()
            handle = await engine.workflows.attach(handle.id)
            assert handle.is_live
            run = await handle.wait()
            resumed = [record for record in handle._journal.log if isinstance(record.event, WorkflowResumed)]
    assert len(resumed) == 1
    arrived = [arrival.split()[1] for arrival in tally.arrivals]
    assert arrived.count("/first") == 1, "what was done is not done again"
    if text is UNSAFE:
        assert run.status == "failed"
        assert "its outcome is unknown" in failure(run, "second")
        assert "`repeatable: true`" in failure(run, "second")
        assert arrived.count("/second") == 1
        assert ended(run)["third"] == "skipped"
    else:
        assert (run.status, run.outputs) == ("success", {"status": 200})
        assert arrived.count("/second") == 2
        assert tally.counted == {"/first": 1, "/second": 1} if text is REPEATABLE else {"/first": 1, "/second": 2}


@pytest.mark.parametrize("repeatable", [False, True])
async def test_a_command_that_was_under_way_is_repeated_only_if_it_may_be(tmp_path: Path, repeatable: bool) -> None:
    """The first engine is left while the command sleeps; in the second one, which has a new workspace, it would not."""
    text = f"""
name: command
steps:
  - id: s
    action: run-command
    repeatable: {str(repeatable).lower()}
    inputs: {{seconds: "{{{{ 'SECONDS' | int }}}}"}}
    command: sleep "$seconds" && echo rested
"""
    slow, quick = text.replace("SECONDS", "50"), text.replace("SECONDS", "0")
    async with engine_for(tmp_path, slow, builtins=["shell"], database=tmp_path / "db") as engine:
        handle = await engine.workflows.start("command")
        await tool_started(engine, handle)
        # The stored order is what counts: only a new run reads the new definition.
        written(tmp_path / "flows", quick)
    async with engine_for(tmp_path, builtins=["shell"], database=tmp_path / "db") as engine:
        resumed = await engine.workflows.resume(handle.id)
        if repeatable:
            await tool_started(engine, resumed, again=True)
            assert (await engine.workflows.cancel(handle.id)).status == "cancelled"
        else:
            run = await resumed.wait()
            assert "its outcome is unknown" in failure(run, "s")
        assert (await engine.workflows.run("command")).steps["s"].output == {"exit_code": 0, "text": "rested"}


async def tool_started(engine: Engine, handle: WorkflowHandle, *, again: bool = False) -> None:
    """Waits until the command of the step `s` has begun, or has begun again."""
    step = derive_run_id(handle.id, "s", 1)
    with anyio.fail_after(PATIENCE):
        while step not in engine.core._live:  # noqa: ASYNC110
            await anyio.sleep(0.01)
        starts = 0
        async for record in (await engine.attach(step)).events():
            starts += isinstance(record.event, ToolStarted)
            if starts == 1 + again:
                return


async def test_an_unknown_outcome_is_not_tried_again_whatever_the_step_says_of_retries(tmp_path: Path) -> None:
    text = HELD.replace("METHOD", "method: POST, retry: {max_attempts: 3}")
    with tallying() as tally:
        held = Held(tally)
        async with engine_for(tmp_path, text, database=tmp_path / "db") as engine:
            handle = await begun(engine, tally, held)
        held.let_go()
        async with engine_for(tmp_path, text, database=tmp_path / "db") as engine:
            run = await (await engine.workflows.resume(handle.id)).wait()
    assert "its outcome is unknown" in failure(run, "second")
    assert tally.arrivals == ["POST /first", "POST /second"]


async def test_a_definition_that_changes_does_not_change_a_run_that_has_begun(tmp_path: Path) -> None:
    with tallying() as tally:
        held = Held(tally)
        async with engine_for(tmp_path, SAFE, database=tmp_path / "db") as engine:
            handle = await begun(engine, tally, held)
        held.let_go()
        (written(tmp_path / "flows") / "held.yaml").unlink()
        async with engine_for(tmp_path, database=tmp_path / "db") as engine:
            assert dict(engine.workflows.folders.definitions) == {}
            run = await (await engine.workflows.resume(handle.id)).wait()
    assert run.outputs == {"status": 200}


async def test_two_engines_on_one_store_never_carry_out_the_same_run(tmp_path: Path) -> None:
    with tallying() as tally:
        held = Held(tally)
        async with (
            engine_for(tmp_path, SAFE, database=tmp_path / "db") as first,
            engine_for(tmp_path, SAFE, database=tmp_path / "db") as second,
        ):
            handle = await begun(first, tally, held)
            assert await second.workflows.resume_all() == []
            beside = await second.workflows.resume(handle.id)
            assert not beside.is_live
            held.let_go()
            # The second one follows what the first one does.
            assert (await beside.wait()).outputs == (await handle.wait()).outputs == {"status": 200}
    assert tally.arrivals == ["POST /first", "GET /second"]


async def test_a_driver_whose_run_was_taken_over_stops_and_leaves_it_alone(tmp_path: Path) -> None:
    with tallying() as tally:
        held = Held(tally)
        async with engine_for(tmp_path, SAFE, database=tmp_path / "db") as engine:
            handle = await begun(engine, tally, held)
            async with SqliteStore(tmp_path / "db") as other:
                taken = await WorkflowJournal.read(other, handle.id, "")
                await taken.record(WorkflowResumed("drv_other"))
                held.let_go()
                await engine.drain()
                assert not handle.is_live
                assert (await WorkflowJournal.read(other, handle.id, "")).log == taken.log
                # Whoever reads the run here is shown what happens there.
                await taken.record(WorkflowCancelled())
                assert (await handle.wait()).status == "cancelled"


async def test_cancel_stops_the_run_and_what_its_step_has_begun(tmp_path: Path) -> None:
    with tallying() as tally:
        held = Held(tally)
        async with engine_for(tmp_path, SAFE, database=tmp_path / "db") as engine:
            handle = await begun(engine, tally, held)
            run = await engine.workflows.cancel(handle.id)
            step = await engine.attach(run.steps["second"].run_id)
            assert step.run.status == "cancelled"
            assert (await engine.workflows.cancel(handle.id)).status == "cancelled", "a second time does nothing"
        held.let_go()
    assert run.status == "cancelled"
    assert isinstance(handle._journal.log[-1].event, WorkflowCancelled)
    assert failure(run, "second") == "stopped: the workflow was cancelled"
    assert "third" not in run.steps
    async with engine_for(tmp_path, SAFE, database=tmp_path / "db") as engine:
        await engine.resume_all()
        assert (await engine.workflows.attach(handle.id)).run.status == "cancelled"


async def test_cancel_reaches_the_steps_of_workflows_inside(tmp_path: Path) -> None:
    step = "{id: o, action: sub-workflow, workflow: held, inputs: {base: '{{ inputs.base }}'}}"
    outer = f"name: outer\ninputs: {{base: {{}}}}\nsteps: [{step}]"
    with tallying() as tally:
        held = Held(tally)
        async with engine_for(tmp_path, SAFE, outer) as engine:
            handle = await engine.workflows.start("outer", {"base": tally.url})
            await held.there()
            run = await engine.workflows.cancel(handle.id)
            assert (await engine.attach(run.steps["o/second"].run_id)).run.status == "cancelled"
        held.let_go()
    assert ended(run) == {"o": "failed", "o/first": "success", "o/second": "failed"}


async def test_a_failure_that_was_recorded_before_a_crash_still_stops_the_others(tmp_path: Path) -> None:
    text = """
name: both
inputs: {base: {}}
steps:
  - {id: second, action: http-request, url: "{{ inputs.base }}/second"}
  - {id: bad, action: transform, value: 1}
  - {id: third, action: http-request, url: "{{ inputs.base }}/third", depends_on: [second]}
"""
    with tallying() as tally:
        held = Held(tally)
        async with engine_for(tmp_path, text, database=tmp_path / "db") as engine:
            handle = await engine.workflows.start("both", {"base": tally.url})
            await held.there()
        held.let_go()
        async with SqliteStore(tmp_path / "db") as store:
            journal = await WorkflowJournal.read(store, handle.id, "")
            assert ended(journal.run) == {"second": "running", "bad": "success"}
            # As if the process had died when a step had just failed.
            await journal.record(StepStarted("third", "http-request"), StepFailed("third", "broken"))
        async with engine_for(tmp_path, text, database=tmp_path / "db") as engine:
            run = await (await engine.workflows.resume(handle.id)).wait()
            assert (await engine.attach(run.steps["second"].run_id)).run.status == "cancelled"
    assert (run.status, run.error) == (
        "failed",
        "step `second` failed: stopped, because step `third` failed; step `third` failed: broken",
    )
    assert tally.arrivals == ["GET /second"]


async def test_cancel_reaches_a_run_that_another_process_carries_out(tmp_path: Path) -> None:
    with tallying() as tally:
        held = Held(tally)
        async with (
            engine_for(tmp_path, SAFE, database=tmp_path / "db") as first,
            engine_for(tmp_path, SAFE, database=tmp_path / "db") as second,
        ):
            handle = await begun(first, tally, held)
            assert (await second.workflows.cancel(handle.id)).status == "cancelled"
            held.let_go()
            assert (await handle.wait()).status == "cancelled"
            await first.drain()
    assert tally.arrivals == ["POST /first", "GET /second"]


@pytest.mark.requirement("M5")
async def test_a_step_whose_run_is_about_to_begin_elsewhere_does_not_begin_after_a_cancel(tmp_path: Path) -> None:
    async with (
        engine_for(tmp_path, SAFE, database=tmp_path / "db") as first,
        engine_for(tmp_path, SAFE, database=tmp_path / "db") as second,
    ):
        # The first one drives it, and has just written that the step begins.
        await first.core.presence.show()
        order = WorkflowOrder("wfr_1", "held", {"held": defined(SAFE)}, {"base": "http://127.0.0.1:9"}, 1.0)
        started = WorkflowStarted("held", order.inputs, False, first.core.presence.id)
        journal = await WorkflowJournal.begin(first.store, order, started)
        run_id = derive_run_id(order.id, "first", 1)
        await journal.record(StepStarted("first", "http-request", 1, run_id))
        assert (await second.workflows.cancel(order.id)).status == "cancelled"
        with pytest.raises(Superseded):
            await first.core.start(make_order(run_id, background=True))
        assert (await first.attach(run_id)).run.status == "cancelled"


class Forgetful(SqliteStore):
    """Cannot be asked for a run, once."""

    has_failed = False

    async def load(self, run_id: str) -> StoredRun:
        if not self.has_failed:
            self.has_failed = True
            raise StoreError("not now")
        return await super().load(run_id)


@pytest.mark.requirement("M5")
async def test_a_cancel_that_is_asked_for_again_reaches_the_steps_that_the_first_did_not(tmp_path: Path) -> None:
    async with engine_for(tmp_path, SAFE, store=Forgetful(tmp_path / "db")) as engine:
        order = WorkflowOrder("wfr_1", "held", {"held": defined(SAFE)}, {"base": "http://127.0.0.1:9"}, 1.0)
        journal = await WorkflowJournal.begin(engine.store, order, WorkflowStarted("held", order.inputs, False, "another"))
        run_id = derive_run_id(order.id, "first", 1)
        await journal.record(StepStarted("first", "http-request", 1, run_id))
        with pytest.raises(StoreError):
            await engine.workflows.cancel(order.id)
        assert (await engine.workflows.cancel(order.id)).status == "cancelled"
        with pytest.raises(Superseded):
            await engine.core.start(make_order(run_id, background=True))


async def test_a_workflow_that_runs_out_of_time_fails_and_stops(tmp_path: Path) -> None:
    with tallying() as tally:
        held = Held(tally)
        async with engine_for(tmp_path, SAFE.replace("inputs:", "execution: {timeout: 60}\ninputs:", 1)) as engine:
            handle = await begun(engine, tally, held)
            assert handle._driver is not None
            handle._driver.scope.deadline = anyio.current_time()
            run = await handle.wait()
        held.let_go()
    assert (run.status, run.error) == ("failed", "it exceeded its timeout of 60 s")
    assert failure(run, "second") == "stopped: the workflow ran out of time"


async def test_tenants_do_not_see_each_other_s_runs(tmp_path: Path) -> None:
    text = "name: plain\nsteps: [{id: s, action: transform, value: 1}]"
    async with engine_for(tmp_path, text) as engine:
        mine = await engine.workflows.start("plain", tenant="mine")
        await mine.wait()
        theirs = await engine.workflows.start("plain", tenant="theirs")
        await theirs.wait()
        assert [run.id for run in (await engine.workflows.list(tenant="mine")).runs] == [mine.id]
        for tenant in ("", "theirs"):
            with pytest.raises(NotFound):
                await engine.workflows.attach(mine.id, tenant=tenant)
            with pytest.raises(NotFound):
                await engine.workflows.cancel(mine.id, tenant=tenant)
            with pytest.raises(NotFound):
                await engine.workflows.resume(mine.id, tenant=tenant)


async def test_runs_of_every_tenant_are_taken_up(tmp_path: Path) -> None:
    with tallying() as tally:
        held = Held(tally)
        async with engine_for(tmp_path, SAFE, database=tmp_path / "db") as engine:
            handle = await begun(engine, tally, held, tenant="theirs")
        held.let_go()
        async with engine_for(tmp_path, SAFE, database=tmp_path / "db") as engine:
            await engine.resume_all()
            run = await (await engine.workflows.attach(handle.id, tenant="theirs")).wait()
            step = await engine.attach(run.steps["second"].run_id)
    assert run.status == "success"
    assert step.run.spec.tenant == "theirs"


async def test_the_steps_of_a_run_give_no_more_than_there_is_room_for(tmp_path: Path) -> None:
    steps = [f"{{id: s{n}, action: transform, value: '{{{{ inputs.x ~ {n} }}}}'}}" for n in range(76)]
    text = f"name: w\ninputs: {{x: {{type: string}}}}\nsteps: [{', '.join(steps)}]"
    async with engine_for(tmp_path, text) as engine:
        run = await engine.workflows.run("w", {"x": "x" * 990_000})
        assert run.status == "failed"
        assert "more than 64 MiB" in str(run.error)
    async with engine_for(tmp_path, text, quota=MemoryQuota(8_000_000)) as engine:
        run = await engine.workflows.run("w", {"x": "x" * 990_000})
        assert run.status == "failed"
        assert 3 <= list(ended(run).values()).count("success") <= 8
        assert engine.core.quota.held == 0


async def test_a_step_that_has_begun_is_finished_though_there_is_no_room_for_others(tmp_path: Path) -> None:
    large = "{id: large, action: transform, value: \"{{ 'x' * 100000 }}\"}\n  - {id: first,"
    text = REPEATABLE.replace("{id: first,", large)
    with tallying() as tally:
        held = Held(tally)
        async with engine_for(tmp_path, text, database=tmp_path / "db") as engine:
            handle = await begun(engine, tally, held)
        held.let_go()
        async with engine_for(tmp_path, text, database=tmp_path / "db", quota=MemoryQuota(150_000)) as engine:
            run = await (await engine.workflows.resume(handle.id)).wait()
    assert ended(run) == {"large": "success", "first": "success", "second": "success", "third": "failed"}


class Weighing(MemoryStore):
    """Knows how much was read at once."""

    most = 0

    async def documents(self, kind: str, **options: Any) -> Sequence[Document]:
        found = await super().documents(kind, **options)
        self.most = max(self.most, sum([len(document.body) for document in found]))
        return found


async def test_a_list_does_not_read_all_that_large_runs_were_given(tmp_path: Path) -> None:
    store = Weighing()
    text = "name: w\ninputs: {x: {type: string}}\nsteps: [{id: s, action: transform, value: 1}]"
    async with engine_for(tmp_path, text, store=store) as engine:
        ids = [(await engine.workflows.run("w", {"x": "x" * 3_000_000})).id for _ in range(6)]
        store.most = 0
        assert [run.id for run in (await engine.workflows.list(newest_first=False)).runs] == ids
    assert store.most < 13_000_000


async def test_lists_go_page_by_page_and_by_workflow(tmp_path: Path) -> None:
    texts = [f"name: w{n}\nsteps: [{{id: s, action: transform, value: 1}}]" for n in range(2)]
    async with engine_for(tmp_path, *texts) as engine:
        ids = [(await engine.workflows.run(f"w{n % 2}")).id for n in range(5)]
        first = await engine.workflows.list(limit=2)
        assert [run.id for run in first.runs] == [ids[4], ids[3]]
        assert first.has_more
        second = await engine.workflows.list(limit=3, after=ids[3])
        assert [run.id for run in second.runs] == [ids[2], ids[1], ids[0]]
        assert not second.has_more
        only = await engine.workflows.list(workflow="w1", newest_first=False)
        assert [(run.id, run.status) for run in only.runs] == [(ids[1], "success"), (ids[3], "success")]
        with pytest.raises(NotFound):
            await engine.workflows.list(after="wfr_none")


async def test_an_end_that_was_recorded_just_before_a_crash_is_not_lost(tmp_path: Path) -> None:
    """The note that a run has not ended goes after the end is written; whoever finds it later only takes it away."""
    store = MemoryStore()
    async with store, engine_for(tmp_path, "name: plain\nsteps: [{id: s, action: transform, value: 1}]", store=store) as engine:
        run = await engine.workflows.run("plain")
        await store.put([Document(OPEN, f"open-{run.id}", b""), Document(OPEN, "open-wfr_gone", b"")])
        assert await engine.workflows.resume_all() == []
        assert await list_unfinished(store) == []
        assert (await engine.workflows.attach(run.id)).run == run


async def test_a_run_that_cannot_be_read_keeps_no_other_from_being_taken_up(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with tallying() as tally:
        held = Held(tally)
        async with engine_for(tmp_path, SAFE, database=tmp_path / "db") as engine:
            handle = await begun(engine, tally, held)
            foreign = Document(RUN, "wfr_foreign", b'{"id": "wfr_foreign", "of": "another version"}')
            await engine.store.put([foreign, Document(OPEN, "open-wfr_foreign", b"")])
        held.let_go()
        async with engine_for(tmp_path, SAFE, database=tmp_path / "db") as engine:
            assert [taken.id for taken in await engine.workflows.resume_all()] == [handle.id]
    assert "workflow run wfr_foreign was not resumed" in caplog.text


async def test_the_log_reads_back_as_it_was_written(tmp_path: Path) -> None:
    with tallying() as tally:
        async with engine_for(tmp_path, SAFE, database=tmp_path / "db") as engine:
            handle = await engine.workflows.start("held", {"base": tally.url})
            run = await handle.wait()
            read = await WorkflowJournal.read(engine.store, handle.id, "")
    assert encode(read.run) == encode(run)
    assert read.log == handle._journal.log
    assert [record.event.run_id != "" for record in read.log if isinstance(record.event, StepStarted)] == [True, True, False]


async def test_a_request_in_flight_is_stopped_when_another_process_cancels_its_run(tmp_path: Path) -> None:
    """It is never let go: without being told, whoever waits for its answer would wait on."""
    with tallying() as tally:
        held = Held(tally)
        async with (
            engine_for(tmp_path, SAFE, database=tmp_path / "db") as first,
            engine_for(tmp_path, SAFE, database=tmp_path / "db") as second,
        ):
            handle = await begun(first, tally, held)
            await second.workflows.cancel(handle.id)
            with anyio.fail_after(PATIENCE):
                await first.drain()
            assert (await first.workflows.attach(handle.id)).run.status == "cancelled"
            with anyio.fail_after(PATIENCE):
                assert (await handle.wait()).status == "cancelled"
        held.let_go()


async def test_a_key_starts_one_run_however_often_it_is_sent(tmp_path: Path) -> None:
    text = "name: keyed\ninputs: {n: {default: 1}}\nsteps: [{id: s, action: transform, value: '{{ inputs.n }}'}]"
    async with engine_for(tmp_path, text, database=tmp_path / "db") as engine:
        start, handles = engine.workflows.start, list[WorkflowHandle]()

        async def send() -> None:
            handles.append(await start("keyed", key="k", tenant="t"))

        async with anyio.create_task_group() as group:
            for _ in range(3):
                group.start_soon(send)
        await handles[0].wait()
        assert {handle.id for handle in handles} == {(await start("keyed", {"n": 1}, key="k", tenant="t")).id}
        with pytest.raises(KeyReused, match="with other inputs"):
            await start("keyed", {"n": 2}, key="k", tenant="t")
        assert len((await engine.workflows.list(tenant="t")).runs) == 1
        others = [await start("keyed", key="k", tenant="u"), await start("keyed", key="l", tenant="t")]
        assert len({handles[0].id, *[handle.id for handle in others]}) == 3


async def test_the_log_of_a_run_that_another_process_drives_is_not_read_to_leave_it_alone(tmp_path: Path) -> None:
    with tallying() as tally:
        held = Held(tally)
        async with (
            engine_for(tmp_path, SAFE, database=tmp_path / "db") as engine,
            engine_for(tmp_path, SAFE, database=tmp_path / "db") as other,
        ):
            handle = await begun(engine, tally, held)
            read: list[str] = []
            get = other.store.get

            async def note(kind: str, id: str, *, tenant: str = "", parent: str = "") -> Document | None:
                read.append(id)
                return await get(kind, id, tenant=tenant, parent=parent)

            other.store.get = note  # type: ignore[method-assign]
            assert await other.workflows.resume_all() == []
            assert handle.id not in read
            held.let_go()
            assert (await handle.wait()).status == "success"
