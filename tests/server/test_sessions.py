"""Signing in: an API key becomes a cookie for pages of this server, and nobody else's, for as long as the key is good."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest
from tests.server.test_keys import House, Now, house
from yarl import URL

from mainspring.core.items import Json
from mainspring.http.auth import Keys
from mainspring.http.faults import Fault
from mainspring.http.sessions import COOKIE, SESSION_SECONDS
from mainspring.storage.memory_runs import MemoryStore

FOREIGN = "https://evil.example"


class Browser:
    """A browser with its cookies, on a page of the server."""

    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        self._session, self.url = session, url
        self.origin = url.removesuffix("/v1")

    async def ask(self, method: str, path: str, body: Json | None = None, **headers: str) -> tuple[int, Json]:
        headers = {"origin": self.origin, **headers}
        sent = {name: value for name, value in headers.items() if value}
        async with self._session.request(method, self.url + path, json=body, headers=sent) as answer:
            return answer.status, await answer.json()

    async def sign_in(self, key: str) -> tuple[int, Json]:
        return await self.ask("POST", "/session", {"key": key})


@asynccontextmanager
async def browsing(at: House) -> AsyncIterator[Browser]:
    jar = aiohttp.CookieJar(unsafe=True)  # it takes cookies of addresses
    async with aiohttp.ClientSession(cookie_jar=jar) as session:
        yield Browser(session, at.base_url)


async def test_without_keys_nobody_signs_in(tmp_path: Path) -> None:
    async with house(tmp_path) as at, browsing(at) as browser:
        status, told = await browser.ask("GET", "/session")
        assert (status, told["needs_key"], told["is_operator"], told["scopes"]) == (200, False, True, ["*"])


async def test_a_session_acts_with_exactly_the_tenant_and_scopes_of_its_key(tmp_path: Path) -> None:
    async with house(tmp_path) as at, browsing(at) as browser:
        key = await at.keys.create(tenant="acme", scopes=("responses", "tools:execute"))
        _, told = await browser.ask("GET", "/session")
        assert (told["needs_key"], told["signed_in"], told["scopes"]) == (True, False, [])
        assert (await browser.ask("GET", "/responses"))[0] == 401
        status, told = await browser.sign_in(key)
        assert (status, told["signed_in"], told["tenant"]) == (200, True, "acme")
        assert (told["scopes"], told["is_operator"]) == (["responses", "tools:execute"], False)
        assert (await browser.ask("GET", "/session"))[1] == told
        assert (await browser.ask("POST", "/responses", {"input": "hi"}))[0] == 200
        _, page = await browser.ask("GET", "/runs")
        assert [line["tenant"] for line in page["data"]] == ["acme"]
        status, told = await browser.ask("GET", "/models")
        assert (status, told["error"]["code"]) == (403, "insufficient_scope")
        status, told = await browser.ask("GET", "/runs", authorization="Bearer ms_wrong")
        assert (status, told["error"]["code"]) == (401, "invalid_api_key"), "a key that is sent counts, not the cookie"


async def test_the_cookie_is_for_pages_of_this_site_alone_and_no_script_reads_it(tmp_path: Path) -> None:
    async with house(tmp_path) as at, aiohttp.ClientSession() as session:
        key = await at.keys.create()
        for origin, is_secure in ((at.base_url.removesuffix("/v1"), False), ("https://proxied.example", True)):
            headers = {"origin": origin, "sec-fetch-site": "same-origin"}
            async with session.post(f"{at.base_url}/session", json={"key": key}, headers=headers) as answer:
                name, *flags = answer.headers["set-cookie"].split("; ")
            assert name.startswith(f"{COOKIE}=")
            assert key not in name
            plain = ["Path=/", f"Max-Age={SESSION_SECONDS}", "HttpOnly", "SameSite=Strict"]
            assert flags == [*plain, "Secure"] if is_secure else flags == plain
            assert answer.headers["cache-control"] == "no-store"


@pytest.mark.parametrize("origin", ["", FOREIGN, "null", "http://[", "http://127.0.0.1:1", "http://localhost"])
async def test_a_page_of_another_origin_changes_nothing(tmp_path: Path, origin: str) -> None:
    async with house(tmp_path) as at, browsing(at) as browser:
        await browser.sign_in(await at.keys.create())
        for method, path in (("POST", "/responses"), ("DELETE", "/responses/resp_x"), ("DELETE", "/session")):
            status, told = await browser.ask(method, path, {"input": "hi"}, origin=origin)
            assert (status, told["error"]["code"]) == (403, "foreign_origin"), method
        assert (await browser.ask("GET", "/runs"))[1]["data"] == []
        assert (await browser.ask("GET", "/runs", origin=""))[0] == 200, "to look is harmless, and browsers send no origin then"
        proxied = {"origin": origin, "sec-fetch-site": "same-origin"}
        assert (await browser.ask("POST", "/responses", {"input": "hi"}, **proxied))[0] == 200, "the browser vouches for it"


async def test_nobody_is_signed_in_by_a_page_of_another_origin(tmp_path: Path) -> None:
    async with house(tmp_path) as at, browsing(at) as browser:
        status, told = await browser.ask("POST", "/session", {"key": await at.keys.create()}, origin=FOREIGN)
        assert (status, told["error"]["code"]) == (403, "foreign_origin")


async def test_a_socket_with_a_cookie_needs_a_page_of_this_server(tmp_path: Path) -> None:
    async with house(tmp_path) as at, browsing(at) as browser:
        await browser.sign_in(await at.keys.create())
        for headers in ({}, {"origin": FOREIGN}):
            with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
                await browser._session.ws_connect(f"{at.base_url}/responses", headers=headers)
            assert refused.value.status == 403
        async with browser._session.ws_connect(f"{at.base_url}/responses", headers={"origin": browser.origin}) as socket:
            assert not socket.closed


async def test_signing_out_ends_the_session(tmp_path: Path) -> None:
    async with house(tmp_path) as at, browsing(at) as browser:
        await browser.sign_in(await at.keys.create())
        stolen = browser._session.cookie_jar.filter_cookies(URL(browser.url))[COOKIE].value
        status, told = await browser.ask("DELETE", "/session")
        assert (status, told["signed_in"]) == (200, False)
        assert (await browser.ask("GET", "/runs"))[0] == 401
        status, body, _ = await at.get("/runs", cookie=f"{COOKIE}={stolen}")
        assert (status, body["error"]["code"]) == (401, "session_ended")


async def test_a_session_ends_with_its_key(tmp_path: Path) -> None:
    async with house(tmp_path) as at, browsing(at) as browser:
        await browser.sign_in(await at.keys.create())
        assert (await browser.ask("GET", "/runs"))[0] == 200
        [key] = await at.keys.list()
        await at.keys.revoke(key.id)
        assert (await browser.ask("GET", "/runs"))[0] == 401
        assert (await browser.ask("GET", "/session"))[1]["signed_in"] is False
        status, told = await browser.sign_in("ms_no_key")
        assert (status, told["error"]["code"]) == (401, "invalid_api_key")


@pytest.mark.parametrize(
    "key", ["a secret of the operator", f"ms_{'0' * 12}_{'1' * 64}"], ids=["any", "one that looks made here"]
)
async def test_the_configured_key_signs_in_too(tmp_path: Path, key: str) -> None:
    async with house(tmp_path, configured=key) as at, browsing(at) as browser:
        _, told = await browser.sign_in(key)
        assert (told["signed_in"], told["is_operator"]) == (True, True)
        assert (await browser.ask("GET", "/runs"))[0] == 200
    async with house(tmp_path, configured="another one") as at:
        cookie = browser._session.cookie_jar.filter_cookies(URL(browser.url))
        assert (await at.get("/runs", cookie=f"{COOKIE}={cookie[COOKIE].value}"))[0] == 401


async def test_a_session_has_a_time_limit_and_no_longer_life_than_its_key() -> None:
    now, store = Now(), MemoryStore()
    keys = Keys(store, clock=lambda: now.at, ticks=lambda: now.at)
    long, short = await keys.create(), await keys.create(seconds=60)
    tokens = [await keys.open_session(key) for key in (long, short)]
    now.at += 61
    assert (await keys.find_session_caller(tokens[0])).may("admin")
    await _refused(keys, tokens[1], "expired_api_key")
    now.at += SESSION_SECONDS
    await _refused(keys, tokens[0], "session_ended")
    await keys.open_session(long)
    assert len(await store.documents("session")) == 1, "those that are over are cleared away"


async def _refused(keys: Keys, token: str, code: str) -> None:
    with pytest.raises(Fault) as refused:
        await keys.find_session_caller(token)
    assert refused.value.code == code
