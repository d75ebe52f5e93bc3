"""API keys: who gets in, as whom, for what, and that nothing of a key is ever told again."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import openai
import pytest
from msgspec.structs import replace
from openai import AsyncOpenAI
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send
from tests.kit.processes import Ended, run
from tests.server.hosting import hosted

from mainspring.app.engine import Engine
from mainspring.app.server import server
from mainspring.core.errors import NotFound
from mainspring.core.items import Json
from mainspring.features.system import health_routes
from mainspring.http.auth import MEMORY, ApiCaller, AuthMiddleware, Key, Keys
from mainspring.http.endpoints import PUBLIC, Endpoint, KeyScope, Public, ScopeTable
from mainspring.http.faults import Fault
from mainspring.http.origins import REMEMBERED, is_loopback
from mainspring.ports import Document
from mainspring.providers.scripted import Scripted, say
from mainspring.storage.memory_runs import MemoryStore
from mainspring.storage.sqlite_runs import SqliteStore
from mainspring.tools.mcp.executor import McpTools
from mainspring.tools.mcp.server_specs import ServerSpec


class House:
    """A guarded server on a file, and whoever comes to its door."""

    def __init__(self, engine: Engine, keys: Keys, base_url: str) -> None:
        self.engine, self.keys, self.base_url = engine, keys, base_url

    def client(self, key: str) -> AsyncOpenAI:
        return AsyncOpenAI(base_url=self.base_url, api_key=key, max_retries=0)

    async def get(self, path: str, **headers: str) -> tuple[int, Json, dict[str, str]]:
        async with aiohttp.ClientSession() as session, session.get(self.base_url + path, headers=headers) as answer:
            body: Json = json.loads(await answer.text())
            return answer.status, body, {name.lower(): value for name, value in answer.headers.items()}


@asynccontextmanager
async def house(
    folder: Path, *, is_local: bool = True, configured: str | None = None, servers: Sequence[ServerSpec] = ()
) -> AsyncIterator[House]:
    engine = Engine(Scripted(say("Hello.", when="hi")), database=folder / "runs.db", mcp=McpTools(servers))
    keys = Keys(engine.store, configured=configured)
    async with hosted(server(engine, keys=keys, is_local=is_local)) as base_url:
        yield House(engine, keys, base_url)


class Now:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.at = 1_000_000.0

    def __call__(self) -> float:
        return self.at


class Counting(MemoryStore):
    """Counts how often it is asked for a document."""

    questions = 0

    async def get(self, kind: str, id: str, *, tenant: str = "", parent: str = "") -> Document | None:
        self.questions += 1
        return await super().get(kind, id, tenant=tenant, parent=parent)


async def refused(keys: Keys, authorization: str) -> Fault:
    with pytest.raises(Fault) as caught:
        await keys.caller(authorization)
    assert caught.value.status == 401
    assert "Authorization: Bearer" in caught.value.message
    return caught.value


async def test_a_key_says_who_its_bearer_is() -> None:
    keys = Keys(MemoryStore())
    key = await keys.create(name="ci", tenant="acme", scopes=["responses", "models"])
    bearer = ApiCaller("acme", ("responses", "models"), f"key:{key.split('_')[1]}")
    assert await keys.caller(f"Bearer {key}") == await keys.caller(f"bearer  {key} ") == bearer


@pytest.mark.parametrize("authorization", ["", "Bearer", "Bearer ", "Basic YTpi", "ms_1_2"])
async def test_without_a_key_nobody_is_let_in(authorization: str) -> None:
    assert (await refused(Keys(MemoryStore()), authorization)).code == "missing_api_key"


async def test_a_key_that_is_not_quite_right_is_wrong() -> None:
    keys = Keys(MemoryStore(), configured="a good key")
    key = await keys.create()
    other = "0" if key[-1] != "0" else "1"
    for wrong in (key[:-1] + other, key + "0", key[:-1], key.upper(), "ms_" + "0" * 12 + key[15:], "a good ke", "\udcff", "ms__"):
        assert (await refused(keys, f"Bearer {wrong}")).code == "invalid_api_key"


async def test_a_revoked_key_is_useless_at_once() -> None:
    keys = Keys(MemoryStore())
    key = await keys.create()
    await keys.caller(f"Bearer {key}")
    [kept] = await keys.list()
    assert (await keys.revoke(kept.id)).revoked_at == (await keys.revoke(kept.id)).revoked_at
    assert (await refused(keys, f"Bearer {key}")).code == "invalid_api_key"
    assert await keys.are_needed()
    with pytest.raises(NotFound, match="`nobody`"):
        await keys.revoke("nobody")


async def test_a_key_that_another_process_revokes_is_useless_seconds_later(tmp_path: Path) -> None:
    now = Now()
    async with SqliteStore(tmp_path / "runs.db") as ours, SqliteStore(tmp_path / "runs.db") as theirs:
        keys = Keys(ours, ticks=now)
        key = await keys.create()
        await keys.caller(f"Bearer {key}")
        await Keys(theirs).revoke((await keys.list())[0].id)
        now.at += MEMORY
        assert (await refused(keys, f"Bearer {key}")).code == "invalid_api_key"


async def test_a_key_that_another_process_makes_closes_the_door_seconds_later(tmp_path: Path) -> None:
    now = Now()
    async with SqliteStore(tmp_path / "runs.db") as ours, SqliteStore(tmp_path / "runs.db") as theirs:
        keys = Keys(ours, ticks=now)
        assert not await keys.are_needed()
        await Keys(theirs).create()
        now.at += MEMORY
        assert await keys.are_needed()


async def test_a_key_expires_even_while_it_is_remembered() -> None:
    now = Now()
    keys = Keys(MemoryStore(), clock=now)
    key = await keys.create(seconds=3)
    await keys.caller(f"Bearer {key}")
    now.at += 3
    assert (await refused(keys, f"Bearer {key}")).code == "expired_api_key"


async def test_a_key_in_use_is_looked_up_now_and_then_and_not_each_time() -> None:
    now, store = Now(), Counting()
    keys = Keys(store, ticks=now)
    key = await keys.create()
    for _ in range(100):
        await keys.caller(f"Bearer {key}")
    assert store.questions == 1
    now.at += MEMORY
    await keys.caller(f"Bearer {key}")
    assert store.questions == 2


async def test_so_many_keys_are_remembered_and_no_more() -> None:
    keys = Keys(MemoryStore())
    for _ in range(REMEMBERED + 10):
        await keys.caller(f"Bearer {await keys.create()}")
    assert len(keys._seen) == REMEMBERED


async def test_the_file_and_the_words_about_a_key_hold_nothing_of_its_secret(tmp_path: Path) -> None:
    async with SqliteStore(tmp_path / "runs.db") as store:
        keys = Keys(store, configured="a configured key")
        key = await keys.create(name="ci")
        secret = key.rpartition("_")[2]
        [kept] = await keys.list()
        fault = await refused(keys, f"Bearer {key[:-1]}")
        told = f"{keys!r} {vars(keys)!r} {kept!r} {kept} {[kept]} {replace(kept, name='x')!r} {fault!r} {fault.message}"
    told += contents(tmp_path)
    assert secret not in told
    assert secret[:-1] not in told
    assert "a configured key" not in told
    assert kept.digest.hex() not in told


def contents(folder: Path) -> str:
    """All files of the folder."""
    return "".join([path.read_bytes().decode(errors="replace") for path in folder.iterdir()])


@pytest.mark.parametrize(
    ("host", "is_safe"),
    [
        *[(host, True) for host in ("127.0.0.1", "127.9.9.9", "::1", "[::1]", "localhost")],
        *[(host, False) for host in ("0.0.0.0", "::", "10.0.0.1", "example.org", "")],
    ],
)
def test_only_loopback_addresses_are_local(host: str, is_safe: bool) -> None:
    assert is_loopback(host) is is_safe


async def answer(request: Request) -> Response:
    return Response()


TABLE = ScopeTable(
    [
        Endpoint("GET", "/healthz", answer, PUBLIC),
        Endpoint("POST", "/v1/things", answer, "responses"),
        Endpoint("GET", "/v1/things/all", answer, "traces"),
        Endpoint("GET", "/v1/things/{id}", answer, "models"),
        Endpoint("DELETE", "/v1/things/{id}", answer, "admin"),
    ]
)


@pytest.mark.parametrize(
    ("method", "path", "scope"),
    [
        ("GET", "/healthz", PUBLIC),
        ("PUT", "/healthz", PUBLIC),
        ("GET", "/healthz/x", "admin"),
        ("POST", "/v1/things", "responses"),
        ("GET", "/v1/things/all", "traces"),
        ("HEAD", "/v1/things/1", "models"),
        ("DELETE", "/v1/things/1", "admin"),
        ("DELETE", "/v1/things/all", "admin"),
        ("POST", "/v1/things/1", "models"),
        ("GET", "/v1/things/1/2", "responses"),
        ("GET", "/v1/things/", "responses"),
        ("GET", "/v1/", "admin"),
        ("GET", "/", "admin"),
    ],
)
def test_a_request_needs_the_scope_of_its_endpoint_or_of_its_neighbours(method: str, path: str, scope: KeyScope | Public) -> None:
    assert TABLE.find(method, path).scope == scope


async def test_a_local_server_needs_no_key_until_there_is_one(tmp_path: Path) -> None:
    async with house(tmp_path) as at:
        assert (await at.get("/models"))[0] == 200
        key = await at.keys.create()
        status, body, headers = await at.get("/models")
        assert (status, body["error"]["type"], body["error"]["code"]) == (401, "invalid_request_error", "missing_api_key")
        assert "mainspring keys create" in body["error"]["message"]
        assert headers["www-authenticate"] == "Bearer"
        assert (await at.get("/models", Authorization=f"Bearer {key}"))[0] == 200


async def test_a_server_on_the_network_always_needs_one(tmp_path: Path) -> None:
    async with house(tmp_path, is_local=False) as at:
        assert (await at.get("/models"))[0] == 401


async def test_a_configured_key_is_needed_and_will_do(tmp_path: Path) -> None:
    async with house(tmp_path, configured="s3cret") as at:
        assert (await at.get("/models"))[0] == 401
        assert (await at.get("/models", Authorization="Bearer s3cret"))[0] == 200


async def test_health_is_everybodys_business(tmp_path: Path) -> None:
    async with house(tmp_path, is_local=False) as at:
        at.base_url = at.base_url.removesuffix("/v1")
        assert [(await at.get(path))[0] for path in ("/healthz", "/readyz")] == [200, 200]


async def test_what_the_server_is_made_of_is_told_to_those_who_look_after_it(tmp_path: Path) -> None:
    async with house(tmp_path, servers=[ServerSpec("inner", url="http://127.0.0.1:9/mcp", trusted=True)]) as at:
        at.base_url = at.base_url.removesuffix("/v1")
        assert set((await at.get("/readyz"))[1]["mcp"]) == {"inner"}, "without keys everybody is the operator"
        watcher, client = await at.keys.create(scopes=["metrics"]), await at.keys.create(scopes=["responses"])
        tenant = await at.keys.create(tenant="acme")
        for key, seen in ((watcher, {"inner"}), (client, set()), (tenant, set()), ("ms_odd", set())):
            status, told, _ = await at.get("/readyz", Authorization=f"Bearer {key}")
            assert (status, set(told.get("mcp", {}))) == (200, seen)
        assert (await at.get("/readyz"))[1].get("mcp", {}) == {}


async def test_a_server_is_alive_though_its_store_does_not_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health_routes, "READY_SECONDS", 0.1)
    async with house(tmp_path) as at:
        at.base_url = at.base_url.removesuffix("/v1")
        key = await at.keys.create(scopes=["metrics"])

        async def hang(*args: object, **options: object) -> None:
            await asyncio.Event().wait()

        for name in ("get", "documents", "put"):
            monkeypatch.setattr(at.engine.store, name, hang)
        for headers in ({}, {"Authorization": f"Bearer {key}"}):
            assert [(await at.get(path, **headers))[0] for path in ("/healthz", "/readyz")] == [200, 503]


async def test_behind_a_prefix_the_door_is_closed_too() -> None:
    told: list[Message] = []

    async def door(scope: Scope, receive: Receive, send: Send) -> None:
        raise AssertionError("somebody got in")

    async def receive() -> Message:
        return {"type": "http.request"}

    async def send(message: Message) -> None:
        told.append(message)

    guard = AuthMiddleware(door, Keys(MemoryStore()), TABLE, is_local=False)
    for path, prefix in (("/api/v1/models", "/api"), ("/v1/models", ""), ("/v1/models", "/api"), ("/healthz/x", ""), ("/", "")):
        await guard({"type": "http", "path": path, "root_path": prefix, "headers": []}, receive, send)
    assert [message["status"] for message in told if message["type"] == "http.response.start"] == [401] * 5


async def test_a_key_is_good_for_its_scopes_only(tmp_path: Path) -> None:
    async with house(tmp_path) as at, at.client(await at.keys.create(scopes=["conversations"])) as client:
        assert (await client.conversations.create()).id
        with pytest.raises(openai.PermissionDeniedError, match="the scope `responses` is needed") as caught:
            await client.responses.create(input="hi", model="scripted")
        assert caught.value.code == "insufficient_scope"


async def test_the_official_client_sees_an_authentication_error(tmp_path: Path) -> None:
    async with house(tmp_path, is_local=False) as at, at.client("ms_wrong") as client:
        with pytest.raises(openai.AuthenticationError) as caught:
            await client.models.list()
        assert caught.value.code == "invalid_api_key"
        assert "ms_wrong" not in str(caught.value)


async def test_a_socket_without_a_key_is_refused_at_its_handshake(tmp_path: Path) -> None:
    async with house(tmp_path, is_local=False) as at, aiohttp.ClientSession() as session:
        with pytest.raises(aiohttp.WSServerHandshakeError) as caught:
            await session.ws_connect(f"{at.base_url}/responses")
        assert caught.value.status == 401


LOOPBACK = ("127.0.0.1", "127.8.8.8:80", "localhost", "LocalHost:8080", "[::1]", "[::1]:8080")
FOREIGN = ("evil.example", "evil.example:80", "127.0.0.1.evil.example", "localhost.evil.example", "0.0.0.0", "[::]", "[", "x:y")


@pytest.mark.parametrize(("hosts", "status"), [(LOOPBACK, 200), (FOREIGN, 403)], ids=["ours", "others"])
async def test_without_keys_only_those_are_answered_who_call_this_machine_by_its_own_name(
    tmp_path: Path, hosts: Sequence[str], status: int
) -> None:
    async with house(tmp_path) as at:
        assert [(await at.get("/models", Host=host))[0] for host in hosts] == [status] * len(hosts)


async def test_a_refused_name_is_told_what_to_do_and_a_key_is_enough(tmp_path: Path) -> None:
    async with house(tmp_path) as at:
        _, body, _ = await at.get("/models", Host="evil.example")
        assert body["error"]["code"] == "foreign_host"
        for words in ("`evil.example`", "127.0.0.1", "mainspring keys create"):
            assert words in body["error"]["message"]
        key = await at.keys.create()
        assert (await at.get("/models", Host="evil.example", Authorization=f"Bearer {key}"))[0] == 200


async def shaken(at: House, **headers: str) -> int:
    """The status that a handshake for a socket is answered with."""
    async with aiohttp.ClientSession(headers=headers) as session:
        try:
            async with session.ws_connect(f"{at.base_url}/responses"):
                return 101
        except aiohttp.WSServerHandshakeError as refused:
            return refused.status


async def test_without_keys_no_web_page_from_elsewhere_opens_a_socket(tmp_path: Path) -> None:
    ours = ("http://localhost:3000", "http://127.0.0.1", "https://[::1]:5173")
    others = ("https://evil.example", "http://localhost.evil.example", "null", "http://[", "localhost")
    async with house(tmp_path) as at:
        assert await shaken(at) == 101, "only browsers send an origin"
        assert [await shaken(at, Origin=origin) for origin in ours] == [101] * len(ours)
        assert [await shaken(at, Origin=origin) for origin in others] == [403] * len(others)
        assert await shaken(at, Host="evil.example") == 403
        key = await at.keys.create()
        assert await shaken(at, Origin="https://evil.example", Host="evil.example", Authorization=f"Bearer {key}") == 101


async def test_without_keys_no_web_page_from_elsewhere_has_an_effect(tmp_path: Path) -> None:
    async with house(tmp_path) as at, aiohttp.ClientSession(at.base_url.removesuffix("v1")) as session:
        for origin, status in (("https://evil.example", 403), ("null", 403), ("http://localhost:3000", 404), ("", 404)):
            headers = {"origin": origin} if origin else {}
            async with session.post("/v1/runs/resp_none/cancel", headers=headers) as answer:
                assert answer.status == status, origin
            async with session.post("/v1/responses", json={"input": "hi"}, headers=headers) as answer:
                assert answer.status == 200, "a browser asks before it sends JSON for such a page"


async def test_tenants_do_not_see_each_other(tmp_path: Path) -> None:
    async with (
        house(tmp_path) as at,
        at.client(await at.keys.create(tenant="acme")) as ours,
        at.client(await at.keys.create(tenant="other")) as theirs,
    ):
        response = await ours.responses.create(input="hi", model="scripted", background=True)
        talk = await ours.conversations.create(items=[{"role": "user", "content": "Hi."}])
        [item] = (await ours.conversations.items.list(talk.id)).data
        of_responses: list[Ask] = [
            lambda id: theirs.responses.retrieve(id),
            lambda id: theirs.responses.cancel(id),
            lambda id: theirs.responses.delete(id),
            lambda id: theirs.responses.input_items.list(id),
        ]
        for ask in of_responses:
            assert await told(ask, response.id) == await told(ask, "resp_unknown")
        of_conversations: list[Ask] = [
            lambda id: theirs.conversations.retrieve(id),
            lambda id: theirs.conversations.update(id, metadata={"a": "b"}),
            lambda id: theirs.conversations.delete(id),
            lambda id: theirs.conversations.items.list(id),
            lambda id: theirs.conversations.items.create(id, items=[{"role": "user", "content": "Hi."}]),
            lambda id: theirs.conversations.items.retrieve(str(item.id), conversation_id=id),
            lambda id: theirs.conversations.items.delete(str(item.id), conversation_id=id),
            lambda id: theirs.responses.create(input="hi", model="scripted", conversation=id),
        ]
        for ask in of_conversations:
            assert await told(ask, talk.id) == await told(ask, "conv_unknown")
        with pytest.raises(openai.BadRequestError) as caught:
            await theirs.responses.create(input="hi", model="scripted", previous_response_id=response.id)
        assert caught.value.code == "previous_response_not_found"
        lists = [await client.get("/responses", cast_to=object) for client in (ours, theirs)]
        assert [len(found["data"]) for found in lists] == [1, 0]  # type: ignore[index]
        assert (await ours.responses.retrieve(response.id)).id == response.id
        assert await ours.conversations.retrieve(talk.id) == talk


Ask = Callable[[str], Awaitable[object]]


async def told(ask: Ask, id: str) -> str:
    """What somebody is told who asks for something that is not theirs, but for its id."""
    with pytest.raises(openai.NotFoundError) as caught:
        await ask(id)
    return str(caught.value).replace(id, "ID")


def keys_command(folder: Path, *arguments: str) -> Ended:
    command = [sys.executable, "-m", "mainspring", "keys", *arguments, "--database", "runs.db"]
    return run(command, cwd=folder)


async def stored(folder: Path) -> Sequence[Key]:
    async with SqliteStore(folder / "runs.db") as store:
        return await Keys(store).list()


async def test_the_command_makes_lists_and_revokes_keys(tmp_path: Path) -> None:
    options = ["--name", "ci", "--tenant", "acme", "--scope", "responses", "--scope", "models", "--expires", "30d"]
    made = keys_command(tmp_path, "create", *options)
    assert made.returncode == 0, made.stderr
    key = made.stdout.strip()
    [kept] = await stored(tmp_path)
    assert (kept.name, kept.tenant, kept.scopes) == ("ci", "acme", ("responses", "models"))
    for scope in ("tools", "tools:execute:", "tools:execute:a b", "Responses"):
        refused = keys_command(tmp_path, "create", "--scope", scope)
        assert (refused.returncode, f"there is no scope `{scope}`" in refused.stderr) == (2, True)
    assert kept.expires_at == kept.created_at + 30 * 86400
    async with SqliteStore(tmp_path / "runs.db") as store:
        assert (await Keys(store).caller(f"Bearer {key}")).tenant == "acme"
    shown = keys_command(tmp_path, "list")
    assert kept.id in shown.stdout
    assert "responses,models" in shown.stdout
    lines = keys_command(tmp_path, "list", "--json").stdout
    assert json.loads(lines)["tenant"] == "acme"
    for told in (shown.stdout, lines):
        assert key not in told
        assert kept.digest.hex() not in told
    assert keys_command(tmp_path, "revoke", kept.id).returncode == 0
    assert (await stored(tmp_path))[0].revoked_at is not None
    assert "revoked" in keys_command(tmp_path, "list").stdout


@pytest.mark.parametrize("arguments", [["create", "--expires", "soon"], ["create", "--scope", "all"], ["list"], ["revoke", "k"]])
async def test_the_command_refuses_what_it_cannot_do(tmp_path: Path, arguments: list[str]) -> None:
    assert keys_command(tmp_path, *arguments).returncode != 0
    assert contents(tmp_path) == ""
