"""An engine that offers an agent, a workflow and tools, and a client that speaks the wire of both eras by hand."""

import json
from collections.abc import AsyncGenerator, AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import anyio
from tests.agents.world import written as write_agent
from tests.kit.waiting import PATIENCE
from tests.workflows.world import written as write_workflows

from mainspring import Engine, tool
from mainspring.core.items import InputFile, InputImage, InputText, Part
from mainspring.core.run import Call, Run
from mainspring.features.mcp_server.peer import STATELESS, TASKS
from mainspring.features.mcp_server.settings import OfferSettings
from mainspring.ports import Allow, Ask, Verdict
from mainspring.providers.script import Turn
from mainspring.providers.scripted import Scripted

Json = dict[str, Any]

WITH_SESSIONS = "2025-11-25"
FORMS: Json = {"elicitation": {}}
FORMS_AND_TASKS: Json = {**FORMS, "extensions": {TASKS: {}}}
PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAQAAAC1HAwCAAAAC0lEQVR42mNk+A8AAQUBAScY42YAAAAASUVORK5CYII="
ALL = OfferSettings(tools=("add", "wipe", "hang"), files=True, memory=True)
SHOUT = """
name: shout
inputs: {text: {type: string, required: true}}
steps:
  - {id: loud, action: transform, value: "{{ inputs.text | upper }}"}
outputs: {text: "{{ steps.loud.output }}"}
"""


class Hung:
    """A tool that never ends, and says when it has begun and that it was stopped."""

    def __init__(self) -> None:
        self.begun, self.stopped = anyio.Event(), anyio.Event()


class AsksFirst:
    name = "asks_first"

    async def judge(self, call: Call, run: Run) -> Verdict:
        return Ask("Wiping cannot be undone.") if call.item.name == "wipe" else Allow()


def make_engine(folder: Path, *turns: Turn, hung: Hung | None = None, **options: Any) -> Engine:
    """The engine. What its agent `helper` says is by script."""
    wiped = folder / "wiped"

    @tool(effects=("read",))
    def add(a: int, b: int) -> int:
        """Adds two numbers."""
        return a + b

    @tool(effects=("destructive",))
    def wipe(disk: str) -> str:
        """Must not run twice."""
        with wiped.open("a") as tally:
            tally.write(f"{disk}\n")
        return f"wiped {disk}"

    @tool(effects=("read",))
    def draw() -> list[Part]:
        """Shows something of each kind."""
        image = InputImage(f"data:image/png;base64,{PNG}")
        sound = InputFile("song.wav", "data:audio/wav;base64,UklGRg==")
        return [InputText("Look:"), image, sound, InputFile("a plan.pdf", "data:application/pdf;base64,JVBERg==")]

    @tool(effects=("read",))
    async def hang() -> str:
        """Never ends."""
        assert hung is not None
        hung.begun.set()
        try:
            await anyio.sleep_forever()
        finally:
            hung.stopped.set()
        raise AssertionError("it does not end")

    write_agent(
        folder / "agents",
        "helper",
        description="Helps.",
        inputs={"job": {"required": True}},
        prompts={"user": "Do this: {{ job }}", "confirmation": ""},
    )
    script = Scripted(*turns, chunk=0, repeat=len(turns) == 1)
    return Engine(
        script,
        tools=[add, wipe, draw, hang],
        policies=[AsksFirst()],
        agents=[folder / "agents"],
        workflows=[write_workflows(folder / "flows", SHOUT)],
        **options,
    )


def list_wiped(folder: Path) -> list[str]:
    file = folder / "wiped"
    return file.read_text().split() if file.exists() else []


class Wire:
    """A client that writes messages by hand. `url` is that of `/mcp`."""

    def __init__(self, http: aiohttp.ClientSession, url: str, key: str = "") -> None:
        self.http, self.url = http, url.removesuffix("/v1").removesuffix("/mcp") + "/mcp"
        self.headers = {"accept": "application/json, text/event-stream", "content-type": "application/json"}
        if key:
            self.headers["authorization"] = f"Bearer {key}"
        self._last = 0

    def _number(self) -> int:
        self._last += 1
        return self._last

    async def ask(
        self, method: str, params: Json | None = None, capabilities: Json | None = None, headers: dict[str, str] | None = None
    ) -> Json:
        """The answer to a request without a session."""
        return [message async for message in self.stream(method, params, capabilities, headers)][-1]

    async def stream(
        self, method: str, params: Json | None = None, capabilities: Json | None = None, headers: dict[str, str] | None = None
    ) -> AsyncIterator[Json]:
        """Every message that a request without a session is answered with."""
        params = params or {}
        meta = {
            "io.modelcontextprotocol/protocolVersion": STATELESS,
            "io.modelcontextprotocol/clientCapabilities": capabilities or {},
            **params.get("_meta", {}),
        }
        named = params.get("name") or params.get("uri") or params.get("taskId")
        repeated = {"mcp-protocol-version": STATELESS, "mcp-method": method, **({"mcp-name": named} if named else {})}
        body = {"jsonrpc": "2.0", "id": self._number(), "method": method, "params": {**params, "_meta": meta}}
        async for message in self.post(body, {**repeated, **(headers or {})}):
            yield message

    async def post(self, body: object, headers: dict[str, str] | None = None) -> AsyncGenerator[Json]:
        sent = body if isinstance(body, bytes) else json.dumps(body).encode()
        timeout = aiohttp.ClientTimeout(PATIENCE)
        async with self.http.post(self.url, data=sent, headers=self.headers | (headers or {}), timeout=timeout) as answer:
            self.status, self.answered = answer.status, answer.headers
            if answer.content_type == "text/event-stream":
                async for line in answer.content:
                    if line.startswith(b"data: "):
                        yield json.loads(line.removeprefix(b"data: "))
            elif answer.content_type == "application/json":
                yield await answer.json()

    async def send(self, body: object, headers: dict[str, str] | None = None) -> Json | None:
        """The last message that the body is answered with, None if there is none."""
        found = [message async for message in self.post(body, headers)]
        return found[-1] if found else None

    async def open(self, capabilities: Json | None = None, revision: str = WITH_SESSIONS) -> "Talk":
        """A session."""
        info = {"name": "test", "version": "1"}
        params = {"protocolVersion": revision, "capabilities": capabilities or {}, "clientInfo": info}
        told = await self.send({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params})
        assert told is not None
        talk = Talk(self, told["result"], self.answered["mcp-session-id"])
        await talk.send({"jsonrpc": "2.0", "method": "notifications/initialized"})
        return talk


class Talk:
    """A session of a client. `hello` is what the server said of itself."""

    def __init__(self, wire: Wire, hello: Json, session: str) -> None:
        self.wire, self.hello = wire, hello
        self.headers = {"mcp-session-id": session, "mcp-protocol-version": hello["protocolVersion"]}

    async def send(self, body: object) -> Json | None:
        return await self.wire.send(body, self.headers)

    def stream(self, method: str, params: Json | None = None, id: int | None = None) -> AsyncGenerator[Json]:
        number = self.wire._number() if id is None else id
        return self.wire.post({"jsonrpc": "2.0", "id": number, "method": method, "params": params or {}}, self.headers)

    async def ask(self, method: str, params: Json | None = None) -> Json:
        return [message async for message in self.stream(method, params)][-1]


def text_of(result: Json) -> str:
    return "".join([part["text"] for part in result["content"]])
