"""Containers last from call to call, belong to one tenant, serve one call at a time, and go when nobody needs them."""

import asyncio

import anyio
import pytest
from tests.kit.waiting import PATIENCE
from tests.sandbox.traces import processes_of

from mainspring.app.engine import Engine
from mainspring.core.conversation_items import CONVERSATION
from mainspring.core.errors import InvalidRequest, NotFound, SandboxError, SandboxFull
from mainspring.core.items import FunctionCallOutput
from mainspring.core.spec import Conversation
from mainspring.ports import Document
from mainspring.providers.scripted import Scripted, call, say
from mainspring.storage.memory_runs import MemoryStore
from mainspring.tools.builtin.container_tools import CodeInterpreter, Shell
from mainspring.tools.builtin.containers import NEW, Containers, find_container_id
from mainspring.tools.contract import ToolContext
from mainspring.tools.sandbox.lease import gather_output
from mainspring.tools.sandbox.local import LocalSandbox


class Clock:
    """Shows the time it is set to."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


async def ran(containers: Containers, command: str, scope: str = "conv_1", tenant: str = "") -> str:
    with anyio.fail_after(PATIENCE):
        result = await Shell(containers).execute({"command": command}, ToolContext(scope=scope, tenant=tenant))
    return str(result.output) or result.error


async def leases(sandbox: LocalSandbox) -> int:
    return (await sandbox.health()).leases


def test_a_call_works_in_the_container_of_its_conversation_or_run() -> None:
    assert find_container_id(ToolContext(run_id="resp_a1", scope="conv_b2")) == "cntr_b2"
    assert find_container_id(ToolContext(run_id="resp_a1")) == "cntr_a1"
    assert find_container_id(ToolContext(run_id="resp_a1", scope="cntr_c3")) == "cntr_c3"


async def test_another_tenants_container_does_not_exist(containers: Containers) -> None:
    await ran(containers, "echo secret > file", tenant="acme")
    assert await containers.get("acme", "cntr_1", "file") == b"secret\n"
    for tenant in ("", "other"):
        with pytest.raises(NotFound, match="there is no container `cntr_1`"):
            await containers.get(tenant, "cntr_1", "file")
        with pytest.raises(NotFound, match="there is no container `cntr_1`"):
            await containers.list(tenant, "cntr_1")
        with pytest.raises(NotFound):
            await containers.remove(tenant, "cntr_1")
        assert (await ran(containers, "ls", tenant=tenant)).startswith(NEW), "under that name it has its own"
    assert await ran(containers, "cat file", tenant="acme") == "secret\n[exit code 0]"


async def test_files_that_are_not_there_or_lead_out_are_refused(containers: Containers) -> None:
    await ran(containers, "ln -s /etc/passwd link")
    with pytest.raises(NotFound, match="there is no file `gone`"):
        await containers.get("", "cntr_1", "gone")
    for path in ("link", "../x", "/etc/passwd"):
        with pytest.raises(InvalidRequest):
            await containers.get("", "cntr_1", path)
    assert (await containers.list("", "cntr_1")).entries == ()


async def test_calls_in_one_container_take_turns(containers: Containers) -> None:
    alone = "mkdir busy && sleep 0.1 && rmdir busy && echo alone"
    told = await asyncio.gather(*[ran(containers, alone) for _ in range(5)])
    assert [text.removeprefix(f"{NEW}\n") for text in told] == ["alone\n[exit code 0]"] * 5


@pytest.mark.slow
async def test_twenty_calls_in_different_containers_run_at_once_and_end_when_they_are_cancelled(sandbox: LocalSandbox) -> None:
    before = processes_of(sandbox)
    async with Containers(sandbox) as containers:
        up = [asyncio.Event() for _ in range(20)]

        async def wait(number: int) -> None:
            context = ToolContext(scope=f"conv_{number}", progress=lambda text: up[number].set())
            await Shell(containers).execute({"command": f"echo {number} > mine; echo up; sleep 600"}, context)

        waiting = [asyncio.get_running_loop().create_task(wait(number)) for number in range(20)]
        with anyio.fail_after(PATIENCE):
            await asyncio.gather(*[event.wait() for event in up])
        assert not any(task.done() for task in waiting), "all are under way"
        for task in waiting:
            task.cancel()
        await asyncio.wait(waiting)
        told = await asyncio.gather(*[ran(containers, "cat mine", f"conv_{number}") for number in range(20)])
        assert told == [f"{number}\n[exit code 0]" for number in range(20)]
    with anyio.fail_after(PATIENCE):
        while set(processes_of(sandbox)) - set(before):  # noqa: ASYNC110 (processes set no event)
            await asyncio.sleep(0.01)


async def test_a_container_that_lies_idle_is_ended_and_the_next_call_is_told_that_it_is_new(sandbox: LocalSandbox) -> None:
    clock = Clock()
    async with Containers(sandbox, idle_seconds=100, clock=clock) as containers:
        assert await ran(containers, "echo x > file") == f"{NEW}\n[exit code 0]"
        clock.now = 60
        assert await ran(containers, "cat file") == "x\n[exit code 0]"
        clock.now = 159
        await containers.expire()
        assert len((await containers.list("", "cntr_1")).entries) == 1, "it was used at 60, and now by this"
        clock.now = 259
        await containers.expire()
        with pytest.raises(NotFound):
            await containers.list("", "cntr_1")
        assert await leases(sandbox) == 0
        assert (await ran(containers, "cat file 2>&1")).startswith(f"{NEW}\ncat: file: No such file")


async def test_a_container_in_use_is_not_ended_however_long_it_takes(sandbox: LocalSandbox) -> None:
    clock = Clock()
    async with Containers(sandbox, idle_seconds=100, clock=clock) as containers, containers.use("", "cntr_1") as container:
        clock.now = 1000
        await containers.expire()
        assert (await gather_output(container.lease.run("print(1)"))).stdout == "1\n"


async def test_idle_containers_are_looked_for_without_being_asked(sandbox: LocalSandbox) -> None:
    async with Containers(sandbox, idle_seconds=0.01) as containers:
        await ran(containers, "true")
        with anyio.fail_after(PATIENCE):
            while await leases(sandbox):  # noqa: ASYNC110 (it ends by itself and tells nobody)
                await asyncio.sleep(0.01)
        with pytest.raises(NotFound):
            await containers.list("", "cntr_1")


async def test_when_there_are_too_many_the_one_unused_longest_makes_room(sandbox: LocalSandbox) -> None:
    async with Containers(sandbox, most=2) as containers:
        for scope in ("conv_1", "conv_2", "conv_1", "conv_3"):
            await ran(containers, "touch file", scope)
        assert await leases(sandbox) == 2
        with pytest.raises(NotFound):
            await containers.list("", "cntr_2")
        assert len((await containers.list("", "cntr_1")).entries) == 1


async def test_when_all_are_in_use_one_more_is_refused_and_nothing_is_lost(sandbox: LocalSandbox) -> None:
    async with Containers(sandbox, most=1) as containers:
        async with containers.use("", "cntr_1"):
            assert await ran(containers, "true", "conv_2") == (
                "all 1 containers are in use; try again when some of the work there is done, or delete one"
            )
        assert await ran(containers, "echo now", "conv_2") == f"{NEW}\nnow\n[exit code 0]"


async def ids(containers: Containers, tenant: str) -> list[str]:
    return [about.id for about in await containers.list_all(tenant)]


async def test_a_tenant_makes_room_among_its_own_containers_first(sandbox: LocalSandbox) -> None:
    async with Containers(sandbox, most=4, most_each=3) as containers:
        await containers.create("old", "cntr_1")
        for number in (1, 2, 3):
            await containers.create("acme", f"cntr_{number}")
        await containers.create("acme", "cntr_4")
        assert (await ids(containers, "old"), await ids(containers, "acme")) == (["cntr_1"], ["cntr_2", "cntr_3", "cntr_4"])


async def test_a_new_tenant_takes_an_unused_one_of_whoever_has_most(sandbox: LocalSandbox) -> None:
    async with Containers(sandbox, most=3, most_each=2) as containers:
        await containers.create("few", "cntr_1")
        for number in (1, 2):
            await containers.create("many", f"cntr_{number}")
        await containers.create("new", "cntr_1")
        assert [await ids(containers, tenant) for tenant in ("few", "many", "new")] == [["cntr_1"], ["cntr_2"], ["cntr_1"]]


async def test_what_a_tenant_uses_no_other_can_take_and_none_has_all(sandbox: LocalSandbox) -> None:
    async with Containers(sandbox, most=2, most_each=1) as containers, containers.use("acme", "cntr_1") as container:
        with pytest.raises(SandboxFull, match="your 1 containers are in use"):
            await containers.create("acme", "cntr_2")
        async with containers.use("other", "cntr_1"):
            with pytest.raises(SandboxFull, match="all 2 containers are in use"):
                await containers.create("third", "cntr_1")
        await containers.create("third", "cntr_1")
        assert await ids(containers, "other") == [], "which was not in use any more"
        assert (await gather_output(container.lease.run("print(1)"))).stdout == "1\n"


async def test_a_container_may_have_a_shorter_life_than_others(sandbox: LocalSandbox) -> None:
    clock = Clock()
    async with Containers(sandbox, idle_seconds=100, clock=clock) as containers:
        await containers.create("", "cntr_1", "short", 10)
        await containers.create("", "cntr_2", "long")
        clock.now = 11
        await containers.expire()
        assert [(about.id, about.name, about.idle_seconds) for about in await containers.list_all("")] == [
            ("cntr_2", "long", 100)
        ]


async def test_a_container_that_is_removed_is_gone_and_those_who_wait_get_a_new_one(containers: Containers) -> None:
    await ran(containers, "touch file")
    async with containers.use("", "cntr_1"):
        removing = asyncio.get_running_loop().create_task(containers.remove("", "cntr_1"))
        await asyncio.sleep(0)
        behind = asyncio.get_running_loop().create_task(ran(containers, "ls"))
        await asyncio.sleep(0)
    await removing
    assert await behind == f"{NEW}\n[exit code 0]"


async def test_a_container_in_which_nothing_starts_any_more_is_given_up(containers: Containers) -> None:
    async with containers.use("", "cntr_1") as container:
        await container.lease.release()
    assert "the lease was released" in await ran(containers, "true")
    assert (await ran(containers, "echo again")).endswith("again\n[exit code 0]")


async def test_closing_ends_what_runs_and_refuses_those_who_wait(sandbox: LocalSandbox) -> None:
    up = asyncio.Event()
    async with Containers(sandbox) as containers:
        context = ToolContext(scope="conv_1", progress=lambda text: up.set())
        running = asyncio.get_running_loop().create_task(Shell(containers).execute({"command": "echo up; sleep 600"}, context))
        await asyncio.wait_for(up.wait(), PATIENCE)
        waiting = asyncio.get_running_loop().create_task(ran(containers, "true"))
        await asyncio.sleep(0)
    assert str((await asyncio.wait_for(running, PATIENCE)).output).endswith("up\n[ended by signal 9]")
    assert "the engine is shutting down" in await waiting
    assert await leases(sandbox) == 0


async def test_making_a_container_that_is_not_wanted_any_more_leaves_none(sandbox: LocalSandbox) -> None:
    async with Containers(sandbox) as containers:
        task = asyncio.get_running_loop().create_task(ran(containers, "sleep 600"))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        with pytest.raises(NotFound):
            await containers.list("", "cntr_1")
    assert await leases(sandbox) == 0


async def test_runs_of_one_conversation_share_a_container_and_other_runs_do_not(containers: Containers) -> None:
    script = Scripted(
        *(call("code_interpreter", code="x = 41"), say("Kept.")),
        *(call("code_interpreter", code="x + 1"), say("42.")),
        *(call("code_interpreter", code="x"), say("Unknown.")),
    )
    store = MemoryStore()
    await store.put([Document(CONVERSATION, "conv_1", b"{}", tenant="acme")])
    async with Engine(script, tools=[CodeInterpreter(containers)], store=store) as engine:
        await engine.run("Keep 41.", conversation=Conversation("conv_1"), tenant="acme")
        second = await engine.run("One more?", conversation=Conversation("conv_1"), tenant="acme")
        third = await engine.run("And here?", tenant="acme")
    [told] = [item.output for item in second.output if isinstance(item, FunctionCallOutput)]
    assert told == "42"
    [told] = [item.output for item in third.output if isinstance(item, FunctionCallOutput)]
    assert "NameError" in str(told)
    assert (await containers.list("acme", "cntr_1")).is_complete


async def test_after_a_restart_a_call_is_told_that_its_container_is_new(sandbox: LocalSandbox) -> None:
    for _ in range(2):
        async with Containers(sandbox) as containers:
            assert (await ran(containers, "ls; touch file")) == f"{NEW}\n[exit code 0]"


async def test_a_sandbox_error_reaches_whoever_uses_a_container(sandbox: LocalSandbox) -> None:
    closed = Containers(sandbox)
    async with closed:
        pass
    with pytest.raises(SandboxError, match="shutting down"):
        await closed.create("", "cntr_1")
