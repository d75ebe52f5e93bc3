"""Strangers' URLs lead to public machines only, by whichever door, however they are written and whatever DNS says."""

import asyncio
import socket
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

import anyio
import pytest
from aiohttp import web
from msgspec import Struct
from tests.kit.waiting import PATIENCE
from yarl import URL

from mainspring.core.errors import InvalidRequest, ToolUnavailable
from mainspring.net.client import make_endpoint
from mainspring.net.connection import HttpError
from mainspring.tools.addresses import MOST_OF_DOMAIN, AddressGuard, Lookup, is_public, parse_endpoint
from mainspring.tools.guarded_http import make_guarded_http
from mainspring.tools.mcp.server_connection import McpConnection
from mainspring.tools.mcp.server_specs import ServerSpec

PUBLIC = ["93.184.215.14", "8.8.8.8", "1.1.1.1", "2606:4700:4700::1111", "2a00:1450::1", "::ffff:8.8.8.8", "64:ff9b::808:808"]
NOT_PUBLIC = [
    "0.0.0.0", "10.1.2.3", "100.64.0.1", "100.100.100.200", "127.0.0.1", "127.255.255.254", "168.63.129.16", "169.254.169.254",
    "172.16.0.1", "192.0.0.8", "192.0.2.1", "192.88.99.1", "192.168.1.1", "198.18.0.1", "203.0.113.9", "224.0.0.1", "239.1.1.1",
    "240.0.0.1", "255.255.255.255", "::", "::1", "::127.0.0.1", "::ffff:127.0.0.1", "::ffff:a9fe:a9fe", "64:ff9b::7f00:1",
    "64:ff9b:1::1", "100::1", "2001::1", "2001:db8::1", "2002:7f00:1::", "3fff::1", "5f00::1", "fc00::1", "fd00:ec2::254",
    "fe80::1", "fe80::1%eth0", "fec0::1", "ff02::1", "not an address", "",
]  # fmt: skip

# What a name means. The last answer of several is the one that stays.
NAMES: dict[str, list[list[str]]] = {
    "public.example": [["93.184.215.14"]],
    "inside.example": [["10.0.0.7"]],
    "loop.example": [["127.0.0.1"]],
    "mixed.example": [["93.184.215.14", "127.0.0.1"]],
    "six.example": [["::1"]],
    "mapped.example": [["::ffff:127.0.0.1"]],
    "nat64.example": [["64:ff9b::7f00:1"]],
    "metadata.example": [["169.254.169.254"]],
    "shared.example": [["100.64.1.1"]],
    "unique.example": [["fd12::1"]],
    "rebinding.example": [["93.184.215.14"], ["127.0.0.1"]],
}
# Each of these reached an internal address with a client that only looks at the URL.
HOSTILE = [
    "http://127.0.0.1:{port}/", "http://0x7f000001:{port}/", "http://0x7f.0.0.1:{port}/", "http://0.0.0.0:{port}/",
    "http://localhost:{port}/", "http://[::1]:{port}/", "http://[::]:{port}/", "http://[0:0:0:0:0:0:0:1]:{port}/",
    "http://[::ffff:127.0.0.1]:{port}/", "http://[::ffff:7f00:1]:{port}/", "http://127\u3002" "0\u30020\u30021:{port}/",
    "http://public.example@127.0.0.1:{port}/", "http://loop.example:{port}/", "http://inside.example:{port}/",
    "http://mixed.example:{port}/", "http://six.example:{port}/", "http://mapped.example:{port}/", "http://nat64.example:{port}/",
    "http://metadata.example:{port}/latest", "http://shared.example:{port}/", "http://unique.example:{port}/",
]  # fmt: skip

# These are refused by one client or the other before anything is looked up.
ODD = [
    "http://127.1:{port}/", "http://2130706433:{port}/", "http://0177.0.0.1:{port}/", "http://0:{port}/", "http://LOCALHOST.:{port}/",
    "http://\u2460\u2461\u2466.0.0.1:{port}/",
]  # fmt: skip

Fetch = Callable[[AddressGuard, str], Awaitable[str]]


class Inside(Struct):
    """A machine that no stranger may reach, and how often one did."""

    port: int = 0
    visits: int = 0


def scripted() -> Lookup:
    """DNS by script; what the script does not know is for the machine's own resolver, which knows odd spellings of addresses."""
    answers: dict[str, Iterator[list[str]]] = {name: iter([*said[:-1], *[said[-1]] * 100]) for name, said in NAMES.items()}

    async def lookup(host: str, port: int) -> Sequence[str]:
        if host in answers:
            return next(answers[host])
        return [str(found[4][0]) for found in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)]

    return lookup


@pytest.fixture
async def inside() -> AsyncIterator[Inside]:
    async with serving() as machine:
        yield machine


@asynccontextmanager
async def serving() -> AsyncIterator[Inside]:
    machine = Inside()

    async def visit(request: web.Request) -> web.Response:
        machine.visits += 1
        if target := request.query.get("to"):
            raise web.HTTPFound(target)
        return web.Response(text="secret")

    app = web.Application()
    app.router.add_get("/{path:.*}", visit)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.SockSite(runner, listening()).start()
    machine.port = runner.addresses[0][1]
    yield machine
    await runner.cleanup()


def listening() -> socket.socket:
    """Both families, so that no URL fails for want of a listener."""
    found = socket.socket(socket.AF_INET6, socket.SOCK_STREAM)
    found.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
    found.bind(("::", 0))
    return found


async def by_mcp(guard: AddressGuard, url: str) -> str:
    connection = McpConnection(ServerSpec("stranger", url=url), guard=guard)
    try:
        return str(await connection.list_tools())
    finally:
        await connection.close()


async def by_client(guard: AddressGuard, url: str) -> str:
    """Follows redirects on one client, which `web_fetch` does not."""
    async with make_guarded_http(guard, PATIENCE) as client:
        while True:
            answer = await client.request("GET", make_endpoint(URL(url)))
            if "Location" not in answer.headers:
                return (await answer.read()).decode()
            answer.close()
            url = answer.headers["Location"]


@pytest.mark.parametrize("address", PUBLIC)
def test_a_public_address_is_public(address: str) -> None:
    assert is_public(address)


@pytest.mark.parametrize("address", NOT_PUBLIC)
def test_no_other_address_is_public(address: str) -> None:
    assert not is_public(address)


@pytest.mark.parametrize("url", HOSTILE)
@pytest.mark.parametrize("fetch", [by_mcp, by_client])
async def test_a_hostile_url_reaches_nothing(fetch: Fetch, url: str, inside: Inside) -> None:
    # A stranger's server may have no user in its URL at all.
    with pytest.raises(ValueError if fetch is by_mcp and "@" in url else InvalidRequest):
        await fetch(AddressGuard(lookup=scripted()), url.format(port=inside.port))
    assert inside.visits == 0


@pytest.mark.parametrize("url", ODD)
@pytest.mark.parametrize("fetch", [by_mcp, by_client])
async def test_an_odd_url_reaches_nothing(fetch: Fetch, url: str, inside: Inside) -> None:
    with pytest.raises((InvalidRequest, HttpError, ValueError, ToolUnavailable)):
        await fetch(AddressGuard(lookup=scripted()), url.format(port=inside.port))
    assert inside.visits == 0


async def test_a_host_that_the_operator_allows_is_reached(inside: Inside) -> None:
    for host in ("127.0.0.1", "loop.example", "Loop.Example.", "six.example"):
        guard = AddressGuard([host], lookup=scripted())
        assert await by_client(guard, f"http://{host.lower().rstrip('.')}:{inside.port}/") == "secret"


async def test_an_allowed_host_cannot_redirect_to_one_that_is_not(inside: Inside) -> None:
    guard = AddressGuard(["loop.example"], lookup=scripted())
    with pytest.raises(InvalidRequest, match=r"`inside\.example` is not public"):
        await by_client(guard, f"http://loop.example:{inside.port}/?to=http://inside.example/")
    assert inside.visits == 1


async def test_the_address_that_was_checked_is_the_one_that_is_used() -> None:
    guard = AddressGuard(lookup=scripted())
    assert await guard.resolve("rebinding.example", 80) == ("93.184.215.14",)
    with pytest.raises(InvalidRequest, match=r"`rebinding\.example` is not public"):
        await guard.resolve("rebinding.example", 80)


async def test_what_a_private_name_means_stays_unsaid() -> None:
    with pytest.raises(InvalidRequest) as raised:
        await AddressGuard(lookup=scripted()).check("https://inside.example/mcp")
    assert raised.value.message == "host `inside.example` is not public; the operator can allow it: --allow-host inside.example"


async def test_a_name_that_means_nothing_is_told() -> None:
    async def nothing(host: str, port: int) -> Sequence[str]:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    with pytest.raises(InvalidRequest, match=r"`gone\.example` cannot be resolved \(Name or service not known\)"):
        await AddressGuard(lookup=nothing).check("https://gone.example/")


@pytest.mark.parametrize(
    "url", ["ftp://public.example/", "file:///etc/passwd", "public.example", "http://", "http://[::1", "http://a:b/"]
)
def test_what_is_no_http_url_has_no_endpoint(url: str) -> None:
    with pytest.raises(InvalidRequest, match="is no "):
        parse_endpoint(url)


def test_an_endpoint_has_the_port_of_its_scheme() -> None:
    assert parse_endpoint("https://public.example/a") == ("public.example", 443)
    assert parse_endpoint("http://public.example:81/a") == ("public.example", 81)


@pytest.mark.parametrize("host", ["example.com..", "a..b", f"{'a' * 64}.example"])
async def test_a_host_that_cannot_be_a_name_is_refused_and_nothing_breaks(host: str) -> None:
    with pytest.raises(InvalidRequest, match="cannot be resolved"):
        await AddressGuard().check(f"http://{host}/")


async def test_names_that_nobody_answers_keep_no_thread_from_others(monkeypatch: pytest.MonkeyPatch) -> None:
    look_up, answers, begun = socket.getaddrinfo, threading.Event(), list[str]()

    def wait_and_look_up(host: str, *options: Any, **more: Any) -> Any:
        if host.endswith(".silent.example"):
            begun.append(host)
            answers.wait(PATIENCE)
            raise OSError("no answer")
        return look_up("127.0.0.1", *options, **more)

    monkeypatch.setattr(socket, "getaddrinfo", wait_and_look_up)
    guard = AddressGuard(["fine.example"])

    async def ask(host: str) -> None:
        with suppress(OSError):
            await guard.resolve(host, 80)

    async def ask_for_all(names: range, scope: anyio.CancelScope) -> None:
        with scope:
            async with anyio.create_task_group() as group:
                for number in names:
                    group.start_soon(ask, f"n{number}.silent.example")

    given_up = anyio.CancelScope()
    async with anyio.create_task_group() as group:
        group.start_soon(ask_for_all, range(20), given_up)
        group.start_soon(ask_for_all, range(20, 40), anyio.CancelScope())
        with anyio.fail_after(PATIENCE):
            await anyio.wait_all_tasks_blocked()
            assert await asyncio.to_thread(lambda: "free") == "free"
            assert await guard.resolve("fine.example", 80) == ("127.0.0.1",)
            # Who gives up does not make room for one more: the thread is not over.
            given_up.cancel()
            await anyio.wait_all_tasks_blocked()
            assert len(begun) == MOST_OF_DOMAIN
        answers.set()
    assert len(begun) == MOST_OF_DOMAIN + 20
