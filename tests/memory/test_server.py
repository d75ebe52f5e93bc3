"""The memory behind a server: real processes that run, crash and stop, and the doors to what they remember."""

import sqlite3
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing, suppress
from pathlib import Path
from typing import Any

import aiohttp
import anyio
import pytest
from tests.agents.world import written
from tests.kit.waiting import PATIENCE
from tests.memory.world import a_memory, seen
from tests.server.hosting import hosted
from tests.server.process import Script, serving

from mainspring.app.engine import Engine
from mainspring.app.server import server
from mainspring.core.events import RunResumed, ToolEnded, TurnEnded
from mainspring.core.items import Json, text_of
from mainspring.features.memory.memory import Memory
from mainspring.features.memory.observation import Observation
from mainspring.http.auth import Keys
from mainspring.providers.scripted import Scripted, call, say
from mainspring.storage.sqlite_runs import SqliteStore

TOOLS = '''
from mainspring import tool


@tool
def look(city: str) -> str:
    """Looks at the sky."""
    return f"It is sunny in {city}."
'''
SETTINGS = "[memory]\nenabled = true\n"
TRIP: Script = [
    {
        "when": "trip",
        "say": "Let me see.",
        "calls": [{"name": "look", "arguments": {"city": city}} for city in ("Paris", "Rome")],
    },
    {"when": "trip", "calls": [{"name": "look", "arguments": {"city": "Oslo"}}]},
    {"when": "trip", "say": "Sunny everywhere; take a hat and good shoes.", "pause": 0.002},
]


@pytest.fixture
async def http() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as session:
        yield session


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "sky.py").write_text(TOOLS)
    (tmp_path / "mainspring.toml").write_text(SETTINGS)
    return tmp_path


async def remembered(folder: Path) -> list[Observation]:
    """All that the server has written, oldest first, once it has stopped."""
    async with a_memory(folder / "served.db") as memory:
        found = await memory.search("", tenant="", top_k=100)
        return [await memory.get(each.citation, tenant="") for each in found][::-1]


async def logged(folder: Path) -> Counter[tuple[str, str]]:
    """What there is to observe, read off the stored logs."""
    expected: Counter[tuple[str, str]] = Counter()
    async with SqliteStore(folder / "served.db") as store:
        for run in (await store.list(limit=100)).runs:
            for record in await store.events(run.id):
                match record.event:
                    case TurnEnded(error=None):
                        expected[run.id, "llm_response"] += 1
                    case ToolEnded(_, output):
                        expected[run.id, text_of(output)] += 1
    return expected


def counted(found: list[Observation]) -> Counter[tuple[str, str]]:
    kinds = [each.content if each.event_type == "tool_call" else each.event_type for each in found]
    return Counter(zip([each.metadata["run"] for each in found], kinds, strict=True))


@pytest.mark.slow
@pytest.mark.requirement("C35", "C60", "C-T17")
async def test_a_server_remembers_exactly_the_turns_and_calls_of_its_runs(folder: Path, http: aiohttp.ClientSession) -> None:
    with serving(folder, TRIP, "--tool", "sky") as served:
        async with http.post(
            f"{served.url}/responses", json={"model": "m", "input": "trip", "metadata": {"tags": "travel"}}
        ) as answer:
            told = await answer.json()
        assert told["status"] == "completed", told
        assert served.stop() == 0
    found = await remembered(folder)
    assert [(each.event_type, each.content) for each in found if each.event_type == "llm_response"] == [
        ("llm_response", "Let me see."),
        ("llm_response", "calls look"),
        ("llm_response", "Sunny everywhere; take a hat and good shoes."),
    ]
    assert Counter([each.content for each in found if each.event_type == "tool_call"]) == Counter(
        [f"It is sunny in {city}." for city in ("Paris", "Rome", "Oslo")]
    )
    assert {each.metadata["run"] for each in found} == {told["id"]}
    assert {each.tags for each in found} == {("travel",)}
    assert counted(found) == await logged(folder)


@pytest.mark.slow
async def test_a_server_killed_at_any_point_remembers_everything_once(folder: Path, http: aiohttp.ClientSession) -> None:
    for events in (8, 20, 35, 50, 60):
        with serving(folder, TRIP, "--tool", "sky") as served:
            body = {"model": "m", "input": "trip", "background": True, "stream": True}
            async with http.post(f"{served.url}/responses", json=body) as stream:
                read = b""
                with anyio.fail_after(PATIENCE):
                    while read.count(b"\n\n") < events and (piece := await stream.content.readany()):
                        read += piece
                served.kill()
    with serving(folder, TRIP, "--tool", "sky") as served:
        with anyio.fail_after(60):
            while (await listed(http, served.url, "in_progress"))["data"]:
                pass
        assert len((await listed(http, served.url, "completed"))["data"]) == 5
        assert served.stop() == 0
    async with SqliteStore(folder / "served.db") as store:
        logs = [await store.events(run.id) for run in (await store.list(limit=100)).runs]
    assert sum(isinstance(record.event, RunResumed) for log in logs for record in log) >= 3, "the kills did hit runs under way"
    found = await remembered(folder)
    assert counted(found) == await logged(folder)
    assert len(found) >= 30


@pytest.mark.slow
async def test_what_ended_just_before_a_crash_is_remembered_at_the_next_start(folder: Path, http: aiohttp.ClientSession) -> None:
    with serving(folder, TRIP, "--tool", "sky") as served:
        async with http.post(f"{served.url}/responses", json={"model": "m", "input": "trip"}) as answer:
            await answer.read()
            served.kill()
    with serving(folder, TRIP, "--tool", "sky") as served:
        assert served.stop() == 0
    found = await remembered(folder)
    assert len(found) == 6
    assert counted(found) == await logged(folder)


async def listed(http: aiohttp.ClientSession, url: str, status: str) -> Json:
    async with http.get(f"{url}/responses?status={status}") as answer:
        told: Json = await answer.json()
        return told


class Doors:
    """A running server, and a memory with something in it for two tenants."""

    def __init__(self, engine: Engine, url: str, http: aiohttp.ClientSession) -> None:
        self.engine, self._url, self._http = engine, url, http

    async def key(self, tenant: str, *scopes: str) -> str:
        return await Keys(self.engine.store).create(tenant=tenant, scopes=scopes or ("*",))

    async def ask(self, key: str, path: str, method: str = "GET", **query: str) -> tuple[int, Json]:
        headers = {"authorization": f"Bearer {key}"} if key else {}
        async with self._http.request(method, f"{self._url}/memory/{path}", params=query, headers=headers) as answer:
            return answer.status, await answer.json()


@asynccontextmanager
async def doors(http: aiohttp.ClientSession, **options: Any) -> AsyncIterator[Doors]:
    engine = Engine(Scripted(), **options)
    async with hosted(server(engine)) as url:
        if isinstance(engine.memory, Memory):
            for tenant in ("a", "b"):
                for number in range(3):
                    id = f"obs_{tenant}{number}"
                    await engine.memory.record(seen(f"{tenant} bread {number}", id=id, tenant=tenant, session_id=f"s{number}"))
        yield Doors(engine, url, http)


@pytest.mark.requirement("C4", "D80")
async def test_the_doors_show_a_tenant_its_own_memory_and_no_other(http: aiohttp.ClientSession) -> None:
    async with doors(http, memory=True) as door:
        a, b = await door.key("a"), await door.key("b", "memory")
        status, found = await door.ask(a, "search", q="bread", level="index", top_k="5")
        assert status == 200
        assert {each["citations"][0] for each in found["data"]} == {"obs_a0", "obs_a1", "obs_a2"}
        assert found["object"] == "list"
        assert found["tokens"] == sum(each["tokens"] for each in found["data"])
        assert (await door.ask(a, "search", q="bread", session="s1", agent="scout"))[1]["data"][0][
            "text"
        ] == "scout/llm_response a bread 1"
        status, whole = await door.ask(b, "observations/obs_b0")
        assert (status, whole["content"], whole["session_id"]) == (200, "b bread 0", "s0")
        status, fault = await door.ask(b, "observations/obs_a0")
        assert (status, fault["error"]["code"]) == (404, "not_found")
        assert (await door.ask(b, "observations", "DELETE", session="s0"))[1]["count"] == 1
        assert (await door.ask(b, "observations/obs_b0"))[0] == 404
        assert (await door.ask(a, "observations/obs_a0"))[0] == 200


async def test_the_doors_refuse_what_is_not_right(http: aiohttp.ClientSession) -> None:
    async with doors(http, memory=True) as door:
        responses, everything = await door.key("a", "responses"), await door.key("a")
        assert (await door.ask(responses, "search"))[0] == 403
        assert (await door.ask("", "search"))[0] == 401
        for query in ({"top_k": "0"}, {"top_k": "x"}, {"top_k": "101"}, {"level": "whole"}):
            status, fault = await door.ask(everything, "search", q="x", **query)
            assert (status, fault["error"]["param"]) == (400, next(iter(query)))
        status, fault = await door.ask(everything, "observations", "DELETE")
        assert (status, fault["error"]["param"]) == (400, "session")
        assert len((await door.ask(everything, "search"))[1]["data"]) == 3


async def test_a_server_without_a_memory_says_how_to_get_one(http: aiohttp.ClientSession) -> None:
    async with doors(http) as door:
        for path, method in (("search", "GET"), ("observations/obs_1", "GET"), ("observations", "DELETE")):
            status, fault = await door.ask("", path, method)
            assert (status, fault["error"]["code"]) == (404, "memory_off")
            assert "[memory]" in fault["error"]["message"]


async def test_the_runs_of_two_tenants_are_remembered_apart(http: aiohttp.ClientSession, tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    script = Scripted(say("the secret of a", when="I am a"), say("the secret of b", when="I am b"))
    engine = Engine(script, database=path, memory=True)
    async with hosted(server(engine)) as url:
        for tenant in ("a", "b"):
            key = await Keys(engine.store).create(tenant=tenant)
            body, headers = {"model": "m", "input": f"I am {tenant}"}, {"authorization": f"Bearer {key}"}
            async with http.post(f"{url}/responses", json=body, headers=headers) as answer:
                assert answer.status == 200, await answer.text()
    async with a_memory(path) as memory:
        for tenant, other in (("a", "b"), ("b", "a")):
            found = await memory.search(f"secret of {other}", tenant=tenant, level="full")
            assert [f"secret of {tenant}" in each.text for each in found] == [True]


async def _told(http: aiohttp.ClientSession, url: str, words: str) -> list[str]:
    async with http.get(f"{url}/memory/search", params={"q": words, "level": "full"}) as answer:
        return [each["text"] for each in (await answer.json())["data"]]


async def test_what_an_agent_has_others_do_is_private_and_forgotten_with_it(http: aiohttp.ClientSession, tmp_path: Path) -> None:
    written(tmp_path, "boss", dependencies=[{"agent": "helper"}])
    written(tmp_path, "helper")
    turns: list[Any] = [call("agent_helper", task="x"), say("marzipan"), say("Done: marzipan.")]
    engine = Engine(Scripted(*turns * 3), agents=[tmp_path], memory=True)
    async with hosted(server(engine)) as url:

        async def asked(metadata: Json) -> str:
            body = {"model": "agent:boss", "input": "Go.", "metadata": metadata}
            async with http.post(f"{url}/responses", json=body) as answer:
                assert answer.status == 200, await answer.text()
                return str((await answer.json())["id"])

        await asked({"tags": "secret", "session_id": "private"})
        assert await _told(http, url, "marzipan") == []
        await asked({"session_id": "trip"})
        assert len(await _told(http, url, "marzipan")) == 3
        async with http.delete(f"{url}/memory/observations", params={"session": "trip"}) as answer:
            assert (await answer.json())["count"] == 4
        # A response that is deleted takes the runs of its agents along, and what is remembered of all of them.
        deleted = await asked({"session_id": "shared"})
        await engine.memory.record(seen("marzipan of another", session_id="shared"))  # type: ignore[union-attr]
        async with http.delete(f"{url}/responses/{deleted}") as answer:
            assert answer.status == 200
        assert [text for text in await _told(http, url, "marzipan") if "another" not in text] == []
        assert len(await _told(http, url, "marzipan")) == 1
        async with http.get(f"{url}/responses") as answer:
            left = (await answer.json())["data"]
    assert [each["metadata"]["session_id"] for each in left] == ["trip", "trip", "private", "private"]


async def test_what_is_told_of_a_run_after_it_was_deleted_is_not_remembered() -> None:
    async with Engine(Scripted(say("marzipan")), memory=True) as engine:
        run = await engine.run("Go.")
        handle = await engine.attach(run.spec.id)
        await engine.forget(run.spec.id)
        assert isinstance(engine.memory, Memory)
        await engine.memory.run_resumed(handle.retell)
        assert await engine.memory.search("marzipan", tenant="") == []


def fill(path: Path, count: int) -> None:
    """A file that remembers much of one session."""
    with closing(sqlite3.connect(path)) as connection, connection:
        rows = [
            (f"obs_{n}", "", "long", "", "llm_response", 1.0, f"word{n} about the sea", "", "[]", "{}", "") for n in range(count)
        ]
        connection.executemany(
            "INSERT INTO observations (id, tenant, session, agent, kind, at, content, about, tags, metadata, owner) "
            "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            rows,
        )


@pytest.mark.slow
async def test_forgetting_much_holds_nobody_up(folder: Path, http: aiohttp.ClientSession) -> None:
    """Others are served while it goes on: whoever stores a response, and whoever searches."""
    with serving(folder, [{"when": "hi", "say": "Hello."}]) as served:
        async with http.post(f"{served.url}/responses", json={"model": "m", "input": "hi"}) as reply:
            assert reply.status == 200
        await anyio.to_thread.run_sync(fill, folder / "served.db", 100_000)
        forgotten: list[Json] = []

        async def forget() -> None:
            async with http.delete(f"{served.url}/memory/observations?session=long") as reply:
                forgotten.append(await reply.json())

        seen_meanwhile: list[int] = []
        with anyio.fail_after(PATIENCE):
            async with anyio.create_task_group() as group:
                group.start_soon(forget)
                while not forgotten:
                    async with http.post(f"{served.url}/responses", json={"model": "m", "input": "hi"}) as reply:
                        assert reply.status == 200
                    async with http.get(f"{served.url}/memory/search?session=long&top_k=1") as found:
                        seen_meanwhile += [len((await found.json())["data"])] if not forgotten else []
        assert forgotten[0]["count"] == 100_000
        assert len(seen_meanwhile) >= 5, "served while it was forgotten"
        async with http.get(f"{served.url}/memory/search?session=long&top_k=1") as found:
            assert (await found.json())["data"] == []


@pytest.mark.slow
async def test_what_was_to_be_forgotten_is_gone_after_a_crash_in_the_middle(folder: Path, http: aiohttp.ClientSession) -> None:
    with serving(folder, [{"when": "hi", "say": "Hello."}]) as served:
        async with http.post(f"{served.url}/responses", json={"model": "m", "input": "hi"}) as reply:
            assert reply.status == 200
        await anyio.to_thread.run_sync(fill, folder / "served.db", 20_000)

        async def forget() -> None:
            with suppress(aiohttp.ClientError):
                await http.delete(f"{served.url}/memory/observations?session=long")

        async with anyio.create_task_group() as group:
            group.start_soon(forget)
            with anyio.fail_after(PATIENCE):
                while (left := await anyio.to_thread.run_sync(count_left, folder / "served.db")) == 20_000:  # noqa: ASYNC110
                    await anyio.sleep(0.01)
            served.kill()
        assert left > 0, "it was killed in the middle"
    with serving(folder, [{"when": "hi", "say": "Hello."}]) as served, anyio.fail_after(PATIENCE):
        while await anyio.to_thread.run_sync(count_left, folder / "served.db"):  # noqa: ASYNC110
            await anyio.sleep(0.05)


def count_left(path: Path) -> int:
    with closing(sqlite3.connect(path)) as connection:
        (count,) = connection.execute("SELECT count(*) FROM observations WHERE session = 'long'").fetchone()
    return int(count)
