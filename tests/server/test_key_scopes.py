"""What a key may have tools do: the same over HTTP, streams and WebSockets, in the background, resumed and continued."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import anyio
import pytest
from tests.kit.waiting import PATIENCE
from tests.server.hosting import hosted

from mainspring.app.engine import Engine
from mainspring.app.server import server
from mainspring.core.events import CallJudged
from mainspring.core.items import Json, ToolDefinition
from mainspring.core.spec import Caller
from mainspring.http.auth import Keys
from mainspring.providers.scripted import Scripted, call, calls, say
from mainspring.storage.sqlite_runs import SqliteStore
from mainspring.tools.functions import tool

BOTH = ["look:allow", "save:allow"]
ONE = ["look:allow", "save:deny"]
NONE = ["look:deny", "save:deny"]


@tool(effects=("read",))
def look() -> str:
    return "seen"


@tool(effects=("write",))
def save() -> str:
    return "saved"


class House:
    def __init__(self, engine: Engine, url: str, session: aiohttp.ClientSession) -> None:
        self.engine, self.url, self.session = engine, url, session

    async def key(self, *scopes: str) -> dict[str, str]:
        key = await Keys(self.engine.store).create(scopes=scopes or ("*",))
        return {"authorization": f"Bearer {key}"}

    async def verdicts(self, response_id: str) -> list[str]:
        """How the calls of a run were judged, once it has ended."""
        handle = await self.engine.attach(response_id)
        with anyio.fail_after(PATIENCE):
            await handle.wait()
        judged = [record.event async for record in handle.events() if isinstance(record.event, CallJudged)]
        names = {item.call_id: item.name for item in handle.run.output if hasattr(item, "call_id") and hasattr(item, "name")}
        assert all(event.policy == "caller_scopes" for event in judged if event.verdict == "deny")
        return [f"{names[event.call_id]}:{event.verdict}" for event in judged]

    async def created(self, form: str, headers: dict[str, str], **body: object) -> str:
        """The id of a response that was made in this form."""
        body = {"input": "Go.", **body}
        if form == "socket":
            async with self.session.ws_connect(f"{self.url}/responses", headers=headers) as socket:
                await socket.send_json({"type": "response.create", **body})
                while (event := await socket.receive_json())["type"] not in ("response.completed", "error"):
                    pass
                assert event["type"] == "response.completed", event
                return str(event["response"]["id"])
        changes: Json = {"stream": {"stream": True}, "background": {"background": True}}.get(form, {})
        async with self.session.post(f"{self.url}/responses", json={**body, **changes}, headers=headers) as answer:
            told = await answer.text()
            assert answer.status == 200, told
            first = told if form != "stream" else told.split("data: ")[1].split("\n")[0]
            found: Json = json.loads(first)
            return str(found["response"]["id"] if form == "stream" else found["id"])


@asynccontextmanager
async def house(folder: Path) -> AsyncIterator[House]:
    script = Scripted(calls(call("look"), call("save")), say("Done."), repeat=True)
    engine = Engine(script, tools=[look, save], database=folder / "runs.db")
    async with hosted(server(engine)) as url, aiohttp.ClientSession() as session:
        yield House(engine, url, session)


SCOPES = [
    pytest.param((), BOTH, id="no list"),
    pytest.param(("*",), BOTH, id="everything"),
    pytest.param(("responses", "tools:execute"), BOTH, id="every tool"),
    pytest.param(("responses", "tools:execute:look"), ONE, id="one tool"),
    pytest.param(("responses", "tools:execute:LOOK", "tools:execute:looks"), NONE, id="other names"),
    pytest.param(("responses",), NONE, id="no tool"),
]


@pytest.mark.parametrize("form", ["wait", "stream", "background", "socket"])
@pytest.mark.parametrize(("scopes", "wanted"), SCOPES)
async def test_a_key_has_the_tools_of_its_scopes_in_every_form(
    tmp_path: Path, form: str, scopes: tuple[str, ...], wanted: list[str]
) -> None:
    async with house(tmp_path) as at:
        made = await at.created(form, await at.key(*scopes))
        assert await at.verdicts(made) == wanted


async def test_a_search_for_the_tools_of_the_request_takes_no_scope(tmp_path: Path) -> None:
    script = Scripted(calls(call("tool_search", query="look")), say("Done."))
    tools = [{"type": "function", "name": "look", "defer_loading": True}, {"type": "tool_search"}]
    engine = Engine(script, database=tmp_path / "runs.db")
    async with hosted(server(engine)) as url, aiohttp.ClientSession() as session:
        at = House(engine, url, session)
        made = await at.created("wait", await at.key("responses"), tools=tools)
        assert await at.verdicts(made) == ["tool_search:allow"]


async def test_who_continues_a_response_has_the_tools_of_their_own_key(tmp_path: Path) -> None:
    async with house(tmp_path) as at:
        wide, narrow = await at.key(), await at.key("responses", "tools:execute:look")
        first = await at.created("wait", wide)
        second = await at.created("wait", narrow, previous_response_id=first)
        third = await at.created("wait", wide, previous_response_id=second)
        assert [await at.verdicts(id) for id in (first, second, third)] == [BOTH, ONE, BOTH]


async def test_a_resumed_run_has_the_scopes_it_was_ordered_with(tmp_path: Path) -> None:
    """The engine that began it stops before any call is judged; the next one knows no key."""
    async with SqliteStore(tmp_path / "runs.db") as store:
        stopped = Scripted(say("never"), pause=60.0)
        async with Engine(stopped, tools=[look, save], store=store) as engine:
            caller = Caller("key:1", ("tools:execute:look",))
            made = (await engine.ask("Go.", background=True, caller=caller)).id
        script = Scripted(calls(call("look"), call("save")), say("Done."))
        async with Engine(script, tools=[look, save], store=store) as engine:
            handle = await engine.resume(made)
            await handle.wait()
            judged = [record.event.verdict async for record in handle.events() if isinstance(record.event, CallJudged)]
    assert judged == ["allow", "deny"]


async def test_a_clients_own_tools_need_no_scope(tmp_path: Path) -> None:
    async with house(tmp_path) as at:
        client = {"type": "function", "name": "save", "parameters": {"type": "object", "properties": {}}}
        made = await at.created("wait", await at.key("responses", "tools:execute:look"), tools=[client])
        handle = await at.engine.attach(made)
    assert isinstance(tool := handle.run.spec.tool("save"), ToolDefinition)
    assert tool.kind == "function", "the client's takes the place of the server's, and is performed there"
    assert (handle.run.status, [call.item.name for call in handle.run.open_calls]) == ("requires_action", ["save"])
