"""A zoo of bad servers that are reached by HTTP: whatever one does, the request ends in time and says what happened."""

import asyncio

import anyio
import pytest
from tests.kit.waiting import PATIENCE, until
from tests.mcp.conftest import Connect
from tests.mcp.web import HUGE, Web, served

from mainspring.core.errors import InvalidRequest, ToolUnavailable
from mainspring.tools.addresses import AddressGuard
from mainspring.tools.mcp.server_specs import ServerSpec, parse_server_spec

# Each starts a server of its own, and there are many.
pytestmark = pytest.mark.slow


def spec(web: Web) -> ServerSpec:
    return ServerSpec("web", url=web.url, headers={"X-Key": "spring"}, trusted=True)


async def test_a_good_server_is_sent_our_headers_with_every_request(connect: Connect) -> None:
    async with served("good") as web:
        connection = connect(spec(web))
        assert [tool.name for tool in (await connection.list_tools()).tools] == ["read", "write"]
        assert (await connection.call("read", {})).content == ({"type": "text", "text": "call 1"},)
        await connection.close()
    assert len(web.headers) >= 5
    assert all(headers["X-Key"] == "spring" for headers in web.headers)


async def test_a_lost_session_is_opened_again_and_a_repeatable_call_repeated(connect: Connect) -> None:
    async with served("good") as web:
        connection = connect(spec(web))
        await connection.list_tools()
        web.forget_sessions()
        assert (await connection.call("read", {}, repeatable=True)).content[0]["text"] == "call 1"
        await connection.close()


async def test_a_lost_session_leaves_a_call_that_may_not_be_repeated_to_the_model(connect: Connect) -> None:
    async with served("good") as web:
        connection = connect(spec(web))
        await connection.list_tools()
        web.forget_sessions()
        with pytest.raises(ToolUnavailable, match=r"lost during the call .*look before you call again"):
            await connection.call("write", {})
        assert (await connection.call("write", {})).content[0]["text"] == "call 1"
        await connection.close()


@pytest.mark.parametrize("animal", ["abort", "cut"])
async def test_an_answer_that_breaks_off_is_asked_for_once_more_if_it_may_be(animal: str, connect: Connect) -> None:
    async with served(animal) as web:
        connection = connect(spec(web))
        await connection.list_tools()
        with pytest.raises(ToolUnavailable, match="lost during the call"):
            await connection.call("write", {})
        assert web.calls == 1
        with pytest.raises(ToolUnavailable, match="lost twice"):
            await connection.call("read", {}, repeatable=True)
        assert web.calls == 3
        await connection.close()


async def test_a_page_instead_of_an_answer_fails_that_call_alone(connect: Connect) -> None:
    async with served("page") as web:
        connection = connect(spec(web))
        with pytest.raises(ToolUnavailable, match="refused the call of `read`: Unexpected content type: text/html"):
            await connection.call("read", {}, repeatable=True)
        web.animal = "good"
        assert (await connection.call("read", {})).content[0]["text"] == "call 2"
        await connection.close()


@pytest.mark.parametrize(("animal", "told"), [("huge", "larger than 16 MiB"), ("huge event", "larger than 16 MiB")])
async def test_an_answer_of_100_mb_is_not_read_to_its_end(animal: str, told: str, connect: Connect) -> None:
    async with served(animal) as web:
        connection = connect(spec(web))
        with pytest.raises(ToolUnavailable, match=told):
            await connection.call("read", {}, repeatable=True)
        assert web.calls == 1
        assert web.sent < HUGE / 2
        web.animal = "good"
        assert (await connection.call("read", {})).content[0]["text"] == "call 2"
        await connection.close()


async def test_a_compressed_answer_is_not_unpacked(connect: Connect) -> None:
    async with served("zip") as web:
        connection = connect(spec(web))
        await connection.list_tools()
        with pytest.raises(ToolUnavailable, match="the answer is compressed"):
            await connection.call("write", {})
        await connection.close()


async def test_a_stalled_call_ends_at_its_deadline_and_is_cancelled_at_the_server(connect: Connect) -> None:
    async with served("stall") as web:
        connection = connect(spec(web))
        await connection.list_tools()
        with pytest.raises(ToolUnavailable, match=r"did not answer within 0\.2 s"):
            await connection.call("read", {}, seconds=0.2)
        with anyio.fail_after(PATIENCE):
            await web.cancelled.wait()
        await connection.close()


async def test_a_server_that_wants_a_key_is_told_apart(connect: Connect) -> None:
    async with served("locked") as web:
        with pytest.raises(ToolUnavailable, match="`web` refused the handshake: HTTP 401"):
            await connect(spec(web)).list_tools()


async def test_an_event_stream_that_is_refused_is_told_without_its_url(connect: Connect) -> None:
    async with served("locked") as web:
        hidden = ServerSpec("web", "sse", url=f"{web.url}?key=spring", trusted=True)
        with pytest.raises(ToolUnavailable) as raised:
            await connect(hidden).list_tools()
    assert raised.value.message == "MCP server `web` refused the connection: HTTP 401"


async def test_a_redirect_to_another_host_is_not_followed(connect: Connect) -> None:
    async with served("elsewhere") as web:
        with pytest.raises(ToolUnavailable, match="Redirect to http://localhost:1/mcp not followed"):
            await connect(spec(web)).list_tools()


async def test_a_server_that_is_not_there_is_told_by_its_label_and_not_by_its_address(connect: Connect) -> None:
    async with served("good") as web:
        gone = spec(web)
    with pytest.raises(ToolUnavailable, match="MCP server `web` cannot be used: it cannot be reached") as raised:
        await connect(gone).list_tools()
    assert web.url not in raised.value.message


async def test_a_server_of_a_request_is_not_reached_on_this_machine_unless_the_operator_allows_it(connect: Connect) -> None:
    async with served("good") as web:
        asked = parse_server_spec({"type": "mcp", "server_label": "mine", "server_url": web.url})
        with pytest.raises(InvalidRequest, match=r"host `127\.0\.0\.1` is not public"):
            await connect(asked).list_tools()
        assert web.headers == []
        allowed = connect(asked, guard=AddressGuard(["127.0.0.1"]))
        assert (await allowed.list_tools()).tools
        await allowed.close()


async def test_closing_does_not_wait_for_a_server_that_stalls(connect: Connect) -> None:
    async with served("stall") as web:
        connection = connect(spec(web))
        await connection.list_tools()
        call = asyncio.create_task(connection.call("read", {}))
        await until(lambda: web.calls == 1)
        await connection.close()
        with pytest.raises(ToolUnavailable, match="lost during the call"):
            await call
        assert connection.is_over
