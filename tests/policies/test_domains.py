"""Domains: whom a run may speak to, at each step of the way. The tricks of spelling are in the corpus."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import anyio
import pytest
from aiohttp import web
from tests.kit.waiting import PATIENCE
from tests.policies.world import lookup, order, tried
from yarl import URL

from mainspring.core.errors import InvalidRequest
from mainspring.core.items import ToolDefinition, ToolKind
from mainspring.engine.engine import Engine
from mainspring.engine.policy_order import order_policies
from mainspring.features.governance.scope_policies import DomainPolicy
from mainspring.features.governance.tool_policies import fill_standard_slots
from mainspring.net.client import make_endpoint
from mainspring.ports import CallContext, ToolCall, ToolResult
from mainspring.providers.scripted import Scripted, call, say
from mainspring.storage.memory_runs import MemoryStore
from mainspring.tools.addresses import AddressGuard
from mainspring.tools.guarded_http import make_guarded_http

REDIRECTS = 5


def domains(allowed: Sequence[str] = (), denied: Sequence[str] = ()) -> DomainPolicy:
    return DomainPolicy(AddressGuard(lookup=lookup).check, allowed, denied)


@pytest.mark.parametrize(
    ("url", "rule"),
    [
        ("https://docs.example/x", None),
        ("https://api.docs.example", None),
        ("https://DOCS.EXAMPLE.:443", None),
        ("https://notdocs.example", "not among the allowed domains: docs.example"),
        ("https://docs.example.evil.example", "not among the allowed domains"),
        ("https://bad.docs.example", "`bad.docs.example` is denied"),
        ("https://very.bad.docs.example", "`bad.docs.example` is denied"),
        ("https://93.184.216.34/", "not among the allowed domains"),
    ],
)
async def test_domain_stands_for_itself_and_all_below_it(url: str, rule: str | None) -> None:
    why = await domains(allowed=[".Docs.Example"], denied=["bad.docs.example"]).flaw(url)
    assert (why is None) if rule is None else (why is not None and rule in why)


async def test_denied_host_is_not_even_looked_up() -> None:
    asked: list[str] = []

    async def listening(host: str, port: int) -> Sequence[str]:
        asked.append(host)
        return await lookup(host, port)

    policy = DomainPolicy(AddressGuard(lookup=listening).check, denied=["evil.example"])
    assert await policy.flaw("http://evil.example/") is not None
    assert await policy.flaw("http://docs.example/") is None
    assert asked == ["docs.example"]


async def test_private_host_that_the_operator_names_is_allowed() -> None:
    policy = DomainPolicy(AddressGuard(["inward.example", "127.0.0.1"], lookup=lookup).check)
    assert await policy.flaw("http://inward.example/") is None
    assert await policy.flaw("http://127.0.0.1:1/") is None
    assert "--allow-host localhost" in str(await policy.flaw("http://localhost/"))


@pytest.mark.parametrize("domain", ["", "*.example", "http://docs.example", "a b", "docs.example/x", "user@docs.example"])
def test_domain_that_no_host_could_fit_is_refused(domain: str) -> None:
    with pytest.raises(InvalidRequest, match="is no domain"):
        domains(allowed=[domain])


@pytest.mark.requirement("D66")
async def test_refusal_is_about_the_host_and_names_the_rule() -> None:
    outcome = await tried([domains(denied=["evil.example"])], ("web_fetch", '{"url": "https://evil.example/long/path"}'))
    assert outcome.only.reason == "The rule `domains` denies this call: `evil.example` is denied."


class Fetching:
    """A fetcher as one is to be built: each URL is judged, each connection goes to a checked address."""

    kind: ToolKind = "builtin"

    def __init__(self, policy: DomainPolicy, guard: AddressGuard) -> None:
        self._policy, self._guard = policy, guard

    def can_execute(self, tool: ToolDefinition) -> bool:
        return tool.name == "web_fetch"

    async def execute(self, call: ToolCall, context: CallContext) -> ToolResult:
        url = str(call.parsed["url"])
        async with make_guarded_http(self._guard, PATIENCE) as client:
            for _ in range(REDIRECTS):
                if (why := await self._policy.flaw(url)) is not None:
                    return ToolResult(call.id, why, is_error=True)
                answer = await client.request("GET", make_endpoint(URL(url)))
                if "location" not in answer.headers:
                    return ToolResult(call.id, (await answer.read()).decode())
                url = answer.headers["location"]
        return ToolResult(call.id, "too many redirects", is_error=True)


@asynccontextmanager
async def site(redirects: dict[str, str]) -> AsyncIterator[tuple[int, list[str]]]:
    """A real server on this machine that redirects as told, with the port and what it was asked for."""
    seen: list[str] = []

    async def answer(request: web.Request) -> web.Response:
        seen.append(f"{request.host.partition(':')[0]}{request.path}")
        if request.path in redirects:
            return web.Response(status=302, headers={"location": redirects[request.path].replace("PORT", str(port))})
        return web.Response(text="the page")

    app = web.Application()
    app.router.add_get("/{path:.*}", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        port = int(runner.addresses[0][1])
        yield port, seen
    finally:
        await runner.cleanup()


async def fetched(url: str, policy: DomainPolicy, guard: AddressGuard, expect: str) -> None:
    hands = Fetching(policy, guard)
    with Scripted(call("web_fetch", url=url), say("Well.", expect=expect)) as script:
        async with Engine(
            script, MemoryStore(), executors=[hands], policies=order_policies(fill_standard_slots([hands]), {"custom": [policy]})
        ) as engine:
            run = await (await engine.start(order(1))).wait()
    assert run.text == "Well."


@pytest.mark.parametrize(
    ("path", "expect", "hits"),
    [
        ("/again", "the page", ["site.example/again", "site.example/page"]),
        ("/denied", "`evil.example` is denied", ["site.example/denied"]),
        ("/inward", "host `127.0.0.1` is not public", ["site.example/inward"]),
        ("/twice", "host `127.0.0.1` is not public", ["site.example/twice", "site.example/inward"]),
        ("/file", "is no HTTP URL", ["site.example/file"]),
    ],
)
async def test_each_redirect_is_judged_again(path: str, expect: str, hits: list[str]) -> None:
    here = "http://site.example:PORT"
    redirects = {
        "/again": f"{here}/page",
        "/denied": "http://evil.example/",
        "/inward": "http://127.0.0.1:PORT/secret",
        "/twice": f"{here}/inward",
        "/file": "file:///etc/passwd",
    }

    async def named(host: str, port: int) -> Sequence[str]:
        return ["127.0.0.1"] if host == "site.example" else await lookup(host, port)

    guard = AddressGuard(["site.example"], lookup=named)
    async with site(redirects) as (port, seen):
        await fetched(f"http://site.example:{port}{path}", DomainPolicy(guard.check, denied=["evil.example"]), guard, expect)
    assert seen == hits


async def test_name_that_means_another_address_a_moment_later_is_not_connected_to() -> None:
    answers = iter(["93.184.216.34", "93.184.216.34"])

    async def rebinding(host: str, port: int) -> Sequence[str]:
        return [next(answers, "127.0.0.1")]

    guard = AddressGuard(lookup=rebinding)
    async with site({}) as (port, seen):
        await fetched(f"http://rebinds.example:{port}/", DomainPolicy(guard.check), guard, "host `rebinds.example` is not public")
    assert (seen, list(answers)) == ([], [])


async def test_host_that_nobody_can_look_up_in_time_is_refused() -> None:
    async def hang(url: str) -> None:
        await anyio.sleep_forever()

    assert (
        await DomainPolicy(hang, seconds=0.01).flaw("https://docs.example/") == "`docs.example` could not be looked up in 0.01 s"
    )


@pytest.mark.parametrize("url", ["http://example.com../", "http://a..example.com/"])
async def test_a_host_that_cannot_be_a_name_is_told_so(url: str) -> None:
    why = await domains().flaw(url)
    assert why is not None
    assert "has a host that is no name" in why
