"""A zoo of bad servers that are processes: whatever one does, the request ends in time and says what happened."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import anyio
import pytest
import uvloop
from tests.kit.waiting import until
from tests.mcp.conftest import Connect, Zoo

from mainspring.core.errors import ToolUnavailable
from mainspring.tools.mcp import exchange
from mainspring.tools.mcp.exchange import ToolAnswer
from mainspring.tools.mcp.server_connection import McpConnection
from mainspring.tools.mcp.server_specs import ServerSpec
from mainspring.tools.sandbox.grants import Program
from mainspring.tools.sandbox.wrap import build_bare_command

# Each starts a server of its own, and there are many.
pytestmark = pytest.mark.slow


def text(answer: ToolAnswer) -> str:
    return "".join([block["text"] for block in answer.content])


async def test_a_good_server_answers_callers_of_any_task(zoo: Zoo, connect: Connect) -> None:
    connection = connect(zoo.spec("good"))
    assert [tool.name for tool in (await connection.list_tools()).tools] == ["read", "write"]
    answers = await asyncio.gather(*[connection.call("read", {"text": str(number)}) for number in range(20)])
    assert [json.loads(text(answer)) for answer in answers] == [{"text": str(number)} for number in range(20)]
    assert zoo.count("good", "initialize") == 1


async def test_a_stalled_call_ends_at_its_deadline_and_is_cancelled_at_the_server(zoo: Zoo, connect: Connect) -> None:
    connection = connect(zoo.spec("stall"))
    await connection.list_tools()
    with pytest.raises(ToolUnavailable, match=r"`stall` did not answer within 0\.2 s"):
        await connection.call("read", {}, seconds=0.2)
    # The next answer comes from the same session, so what was sent before it has arrived.
    connection.forget_tools()
    await connection.list_tools()
    assert zoo.count("stall", "notifications/cancelled") == 1
    assert zoo.count("stall", "initialize") == 1


async def test_a_cancelled_caller_cancels_its_call_at_the_server_and_no_other(zoo: Zoo, connect: Connect) -> None:
    connection = connect(zoo.spec("stall"))
    await connection.list_tools()
    caller = asyncio.create_task(connection.call("read", {}))
    await until(lambda: zoo.count("stall", "tools/call") == 1)
    caller.cancel()
    with suppress(asyncio.CancelledError):
        await caller
    connection.forget_tools()
    assert (await connection.list_tools()).tools
    assert zoo.count("stall", "notifications/cancelled") == 1


async def test_a_server_that_never_says_anything_is_given_up(zoo: Zoo, connect: Connect) -> None:
    connection = connect(zoo.spec("mute"), connect_seconds=0.3)
    with pytest.raises(ToolUnavailable, match=r"`mute` cannot be used: it did not get ready within 0\.3 s"):
        await connection.list_tools()


async def test_a_server_that_starts_slowly_is_waited_for(zoo: Zoo, connect: Connect) -> None:
    assert (await connect(zoo.spec("slow")).list_tools()).tools


async def test_garbage_between_the_messages_is_left_out(zoo: Zoo, connect: Connect) -> None:
    connection = connect(zoo.spec("garbage"))
    assert (await connection.list_tools()).tools
    assert json.loads(text(await connection.call("read", {"text": "a"}))) == {"text": "a"}


async def test_a_call_that_may_be_repeated_survives_a_crash(zoo: Zoo, connect: Connect) -> None:
    connection = connect(zoo.spec("crash"))
    await connection.list_tools()
    assert json.loads(text(await connection.call("read", {"text": "again"}, repeatable=True))) == {"text": "again"}
    assert zoo.count("crash", "tools/call") == 2
    assert zoo.count("crash", "initialize") == 2


async def test_a_call_that_may_not_be_repeated_is_made_once_and_its_outcome_is_unknown(zoo: Zoo, connect: Connect) -> None:
    connection = connect(zoo.spec("crash"))
    await connection.list_tools()
    with pytest.raises(ToolUnavailable, match=r"exited with status 1; its last words: the spring broke.*not known"):
        await connection.call("write", {})
    assert zoo.count("crash", "tools/call") == 1
    assert json.loads(text(await connection.call("write", {"text": "b"}))) == {"text": "b"}


async def test_a_server_that_crashes_every_time_is_repeated_once_and_then_left_alone_for_a_while(
    zoo: Zoo, connect: Connect
) -> None:
    connection = connect(zoo.spec("doomed"))
    await connection.list_tools()
    with pytest.raises(ToolUnavailable, match=r"lost twice .*the spring broke again"):
        await connection.call("read", {}, repeatable=True)
    with pytest.raises(ToolUnavailable, match="it is tried again in"):
        await connection.call("read", {}, repeatable=True)
    assert zoo.count("doomed", "tools/call") == 2


async def test_a_result_of_100_mb_is_not_read_to_its_end(zoo: Zoo, connect: Connect) -> None:
    connection = connect(zoo.spec("huge"))
    await connection.list_tools()
    with pytest.raises(ToolUnavailable, match="`huge` said more than 16 MiB at once"):
        await connection.call("read", {}, repeatable=True)
    assert zoo.count("huge", "tools/call") == 1
    assert (await connection.list_tools()).tools


async def test_a_message_just_within_the_limit_arrives(zoo: Zoo, connect: Connect) -> None:
    connection = connect(zoo.spec("good"))
    long = "x" * (exchange.MOST_BYTES // 2)
    assert json.loads(text(await connection.call("read", {"text": long}))) == {"text": long}


async def test_a_server_that_does_not_listen_cannot_hold_its_caller(zoo: Zoo, connect: Connect) -> None:
    connection = connect(zoo.spec("deaf"))
    await connection.list_tools()
    with pytest.raises(ToolUnavailable, match="did not answer within"):
        await connection.call("read", {"text": "x" * 1_000_000}, seconds=0.2)


async def test_renamed_tools_are_listed_anew_once_the_server_says_so(zoo: Zoo, connect: Connect) -> None:
    connection = connect(zoo.spec("renamed"))
    assert [tool.name for tool in (await connection.list_tools()).tools] == ["read", "write"]
    await connection.call("read", {})
    await until(lambda: connection._listing is None)
    assert [tool.name for tool in (await connection.list_tools()).tools] == ["peruse"]
    with pytest.raises(ToolUnavailable, match=r"`renamed` refused the call of `read`: Unknown tool: read \(-32602\)"):
        await connection.call("read", {})


async def test_an_unchanged_list_is_asked_for_once(zoo: Zoo, connect: Connect) -> None:
    connection = connect(zoo.spec("good"))
    first, second = await asyncio.gather(connection.list_tools(), connection.list_tools())
    assert first is second is await connection.list_tools()
    assert zoo.count("good", "tools/list") == 1


async def test_all_who_wait_for_a_list_wait_no_longer_than_one(zoo: Zoo, connect: Connect) -> None:
    connection = connect(zoo.spec("mute"), connect_seconds=0.3)
    told = await asyncio.gather(*[connection.list_tools() for _ in range(5)], return_exceptions=True)
    assert [str(error) for error in told] == ["MCP server `mute` cannot be used: it did not get ready within 0.3 s"] * 5
    assert zoo.count("mute", "server/discover") == 1


async def test_a_caller_that_is_cancelled_leaves_the_list_to_the_others(zoo: Zoo, connect: Connect) -> None:
    connection = connect(zoo.spec("good"))
    one, other = [asyncio.create_task(connection.list_tools()) for _ in range(2)]
    await asyncio.sleep(0)
    one.cancel()
    assert (await other).tools
    assert one.cancelled()


async def test_a_result_that_its_own_schema_forbids_is_an_error(zoo: Zoo, connect: Connect) -> None:
    connection = connect(zoo.spec("liar"))
    await connection.list_tools()
    with pytest.raises(ToolUnavailable, match=r"`liar` answered the call of `read` with what it may not.*word"):
        await connection.call("read", {})


async def test_malformed_tools_are_set_aside_one_by_one(zoo: Zoo, connect: Connect) -> None:
    listing = await connect(zoo.spec("malformed")).list_tools()
    assert [tool.name for tool in listing.tools] == ["read", "regex", "write", "write"]
    assert [found.name for found in listing.rejected] == ["schemaless", "null", "array", "empty", "untyped", "tool 6", "tool 7"]
    assert "inputSchema" in listing.rejected[0].reason


async def test_a_list_without_end_is_cut(zoo: Zoo, connect: Connect) -> None:
    assert len((await connect(zoo.spec("endless")).list_tools()).tools) == 100


async def test_questions_to_the_user_are_declined(zoo: Zoo, connect: Connect) -> None:
    connection = connect(zoo.spec("curious"))
    assert text(await connection.call("read", {})) == "refused refused"


@pytest.mark.parametrize(
    ("animal", "said"), [("wrong", "for you"), ("twice", "one"), ("deep", "not so deep"), ("asker", "asked")]
)
async def test_each_call_gets_its_own_answer_and_one_only(animal: str, said: str, zoo: Zoo, connect: Connect) -> None:
    connection = connect(zoo.spec(animal))
    assert [text(await connection.call("read", {})) for _ in range(3)] == [said] * 3
    assert zoo.count(animal, "initialize") == 1


async def test_an_error_that_names_no_request_is_that_of_the_only_one_if_that_was_not_read(zoo: Zoo, connect: Connect) -> None:
    """Else the probe for the stateless protocol would be waited for, for longer than this test does. The list is not to blame for
    the notification before it, of which this server complains as well."""
    connection = connect(zoo.spec("nameless"), connect_seconds=8)
    assert (await connection.list_tools()).tools


async def test_a_server_that_ends_when_asked_for_the_stateless_protocol_is_started_once_more(zoo: Zoo, connect: Connect) -> None:
    connection = connect(zoo.spec("brittle"))
    assert [tool.name for tool in (await connection.list_tools()).tools] == ["read", "write"]
    assert zoo.count("brittle", "server/discover") == 1
    await connection.close()


async def test_progress_is_told_while_the_call_runs(zoo: Zoo, connect: Connect) -> None:
    told: list[str] = []
    assert text(await connect(zoo.spec("progress")).call("read", {}, progress=told.append)) == "done"
    assert told == ["1 of 2", "2 of 2"]


async def test_a_server_gets_its_own_environment_and_not_ours(
    zoo: Zoo, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OUR_SECRET", "spring")
    connection = connect(zoo.spec("env", env={"THEIR_SECRET": "gear"}))
    found = json.loads(text(await connection.call("read", {})))
    assert found["THEIR_SECRET"] == "gear"
    assert found["PATH"] == os.environ["PATH"]
    assert "OUR_SECRET" not in found


async def test_a_command_can_be_wrapped(zoo: Zoo, connect: Connect) -> None:
    seen: list[str] = []

    @asynccontextmanager
    async def wrap(program: Program) -> AsyncIterator[Sequence[str]]:
        seen.append(program.argv[0])
        yield ["env", "WRAPPED=yes", *build_bare_command(program)]
        seen.append("left")

    connection = connect(zoo.spec("env", sandboxed=True), wrap=wrap)
    assert json.loads(text(await connection.call("read", {})))["WRAPPED"] == "yes"
    await connection.close()
    assert seen == [sys.executable, "left"]


async def test_without_a_sandbox_a_server_that_is_to_be_held_does_not_start(zoo: Zoo, connect: Connect) -> None:
    with pytest.raises(ToolUnavailable, match=r"`good` cannot start in the sandbox: this engine has none.*`sandboxed = false`"):
        await connect(zoo.spec("good", sandboxed=True)).list_tools()
    assert zoo.count("good", "initialize") == 0


async def test_a_server_does_not_outlive_an_engine_that_was_killed(zoo: Zoo) -> None:
    """The server would stay for ten minutes, with the child it has, and ignores that its input ends."""
    spec = zoo.spec("stubborn")
    code = (
        "import asyncio, sys\nfrom mainspring.tools.mcp.server_connection import McpConnection\n"
        "from mainspring.tools.mcp.server_specs import ServerSpec\n"
        "async def main():\n"
        f"    spec = ServerSpec('s', 'stdio', command={spec.command!r}, args={spec.args!r}, trusted=True, sandboxed=False)\n"
        "    await McpConnection(spec).list_tools()\n    print('up', flush=True)\n    await asyncio.sleep(600)\n"
        "asyncio.run(main())\n"
    )
    async with await anyio.open_process([sys.executable, "-c", code]) as engine:
        assert engine.stdout is not None
        await engine.stdout.receive()
        pids = zoo.pids("stubborn")
        assert all(is_running(pid) for pid in pids)
        engine.kill()
        await until(lambda: not any(is_running(pid) for pid in pids))


async def test_closing_ends_a_server_that_will_not_go_and_its_children(zoo: Zoo, connect: Connect) -> None:
    connection = connect(zoo.spec("stubborn"))
    await connection.list_tools()
    pids = zoo.pids("stubborn")
    assert len(pids) == 2
    assert all(is_running(pid) for pid in pids)
    await connection.close()
    await until(lambda: not any(is_running(pid) for pid in pids))
    assert connection.is_over


async def test_closing_while_a_call_runs_ends_the_call(zoo: Zoo, connect: Connect) -> None:
    connection = connect(zoo.spec("stall"))
    await connection.list_tools()
    call = asyncio.create_task(connection.call("read", {}))
    await until(lambda: zoo.count("stall", "tools/call") == 1)
    await connection.close()
    with pytest.raises(ToolUnavailable, match="lost during the call"):
        await call
    with pytest.raises(ToolUnavailable, match="is closed"):
        await connection.list_tools()


async def test_a_server_killed_while_nobody_asks_is_started_again_for_the_next_call(zoo: Zoo, connect: Connect) -> None:
    connection = connect(zoo.spec("good"))
    await connection.list_tools()
    os.kill(zoo.pids("good")[0], signal.SIGKILL)
    await until(lambda: connection.is_over)
    # Not a repetition: the call is made for the first time, in a new session.
    assert json.loads(text(await connection.call("write", {"text": "c"}))) == {"text": "c"}
    assert zoo.count("good", "tools/call") == 1


async def test_a_command_that_does_not_exist_is_named(connect: Connect) -> None:
    with pytest.raises(ToolUnavailable, match=r"`gone` cannot be started: .*is `/no/such/program` installed"):
        await connect(ServerSpec("gone", "stdio", command="/no/such/program", trusted=True)).list_tools()


async def _under_uvloop(zoo: Zoo) -> list[str]:
    connection = McpConnection(zoo.spec("good"))
    try:
        return [tool.name for tool in (await connection.list_tools()).tools]
    finally:
        await connection.close()


def test_all_of_it_works_on_the_event_loop_of_the_server(zoo: Zoo) -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert runner.run(_under_uvloop(zoo)) == ["read", "write"]


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] != "Z"
    except FileNotFoundError:
        return False


async def test_a_server_that_complains_without_end_is_not_listened_to_all_the_time(zoo: Zoo, connect: Connect) -> None:
    connection = connect(zoo.spec("shouter"))
    for _ in range(300):
        assert (await connection.call("read", {})).content[0]["text"] == "heard"
    shouts = zoo.log("shouter").with_suffix(".shouts").read_text()
    assert len(shouts) < 60, "64 MiB with the lines are some eight, and a pipe has room for a few"
