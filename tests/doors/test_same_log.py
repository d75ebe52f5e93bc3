"""One loop behind every door: the same script through each of them leaves the same log, ids and times aside."""

import json
import re
from collections.abc import AsyncGenerator, Sequence
from random import Random
from typing import Any

import aiohttp
from msgspec.structs import replace
from tests.server.hosting import hosted

from mainspring import Engine, tool
from mainspring.app.server import server
from mainspring.core.events import ModelEvent
from mainspring.core.items import Json, ToolDefinition, encode, user
from mainspring.core.model_request import ModelRequest
from mainspring.ports import ModelInfo
from mainspring.providers.scripted import Scripted, Turn, call, refuse, say, turn

WEATHER = ToolDefinition("weather", "How it is there.", {"type": "object", "properties": {"city": {"type": "string"}}})
PROMPT = "Begin."
ID = re.compile(r"\b(resp|msg|fc|fco|rs|call)_[0-9a-f]{24}\b")


class Player:
    """A model that plays the turns it was given, for each run from the first."""

    name = "player"

    def __init__(self) -> None:
        self.turns: Sequence[Turn] = ()

    def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
        number = request.turn - 1
        return Scripted(self.turns[number] if number < len(self.turns) else say("The end."), repeat=True, chunk=3).stream(request)

    async def models(self) -> Sequence[ModelInfo]:
        return [ModelInfo("player")]

    async def close(self) -> None:
        pass


@tool
async def clock() -> str:
    """Tells the time."""
    return "half past nine"


@tool
async def broken() -> str:
    """Never works."""
    raise RuntimeError("boom")


def invent(seed: int) -> list[Turn]:
    """A script: thoughts, words, calls of the server's tools, and perhaps at the end one of the client's, or a refusal."""
    dice = Random(seed)
    turns = []
    for _ in range(dice.randint(0, 3)):
        made = [call(dice.choice(["clock", "broken", "missing"])) for _ in range(dice.randint(1, 3))]
        turns.append(turn(think=dice.choice([None, "Let me see."]), say=dice.choice([None, "I look."]), calls=made))
    city = call("weather", city=dice.choice(["Oslo", "Rome"]))
    last = [
        say("All is well."),
        turn(say="And outside?", calls=[city]),
        turn(calls=[city, call("clock")]),
        refuse("No."),
        say("x", finish="length"),
    ]
    return [*turns, dice.choice(last)]


class Doors:
    """Each way in: starts the run that the script is played in."""

    def __init__(self, engine: Engine, url: str, session: aiohttp.ClientSession) -> None:
        self._engine, self._url, self._session = engine, url, session

    async def responses(self) -> None:
        await self._post("responses", input=[{"role": "user", "content": PROMPT}], tools=[self._flat()], max_output_tokens=500)

    async def responses_streamed(self) -> None:
        body = {"input": [{"role": "user", "content": PROMPT}], "tools": [self._flat()], "max_output_tokens": 500}
        await self._post("responses", **body, stream=True)

    async def websocket(self) -> None:
        async with self._session.ws_connect(f"{self._url}/responses") as socket:
            body = {"input": [{"role": "user", "content": PROMPT}], "tools": [self._flat()], "max_output_tokens": 500}
            await socket.send_json({"type": "response.create", "model": "player", **body})
            while (await socket.receive_json())["type"] not in ("response.completed", "response.incomplete", "response.failed"):
                pass

    async def chat_completions(self, **more: Any) -> None:
        declared = {"type": "function", "function": {key: value for key, value in self._flat().items() if key != "type"}}
        messages = [{"role": "user", "content": PROMPT}]
        await self._post("chat/completions", messages=messages, tools=[declared], max_completion_tokens=500, **more)

    async def chat_completions_streamed(self) -> None:
        await self.chat_completions(stream=True)

    async def messages(self, **more: Any) -> None:
        declared = {"name": "weather", "description": WEATHER.description, "input_schema": WEATHER.parameters}
        await self._post("messages", messages=[{"role": "user", "content": PROMPT}], tools=[declared], max_tokens=500, **more)

    async def messages_streamed(self) -> None:
        await self.messages(stream=True)

    async def in_process(self) -> None:
        spec = self._engine.order([user(PROMPT, id="msg_" + "0" * 24)], tools=[WEATHER], max_output_tokens=500)
        *own, asked = spec.tools
        await (await self._engine.start(replace(spec, tools=(asked, *own)))).wait()  # those of a request come first

    async def _post(self, path: str, **body: Any) -> None:
        async with self._session.post(f"{self._url}/{path}", json={"model": "player", **body}) as answer:
            assert answer.status == 200, await answer.text()
            await answer.read()

    def _flat(self) -> Json:
        return {"type": "function", "name": "weather", "description": WEATHER.description, "parameters": WEATHER.parameters}


DOORS = [name for name in vars(Doors) if not name.startswith("_")]


async def read_log(engine: Engine, run_id: str) -> list[Json]:
    """The log of a run, with ids in the order in which they appear. What a request looked like is not part of what happens, nor
    is whether its client sees calls as they come."""
    events = [json.loads(encode(record.event)) for record in await engine.store.events(run_id)]
    events[0]["spec"].pop("echo")
    events[0]["spec"].pop("checks_calls")
    names: dict[str, str] = {}
    text = ID.sub(lambda found: names.setdefault(found[0], f"{found[1]}_{len(names)}"), json.dumps(events))
    read: list[Json] = json.loads(re.sub(r'"(seconds|at)": [\d.e-]+', r'"\1": 0', text))
    return read


async def test_every_door_leaves_the_same_log() -> None:
    player = Player()
    engine = Engine(player, tools=[clock, broken])
    async with hosted(server(engine)) as url, aiohttp.ClientSession() as session:
        doors = Doors(engine, url, session)
        seen: set[str] = set()
        for seed in range(8):
            player.turns = invent(seed)
            first: list[Json] = []
            for door in DOORS:
                await getattr(doors, door)()
                (made,) = {run.id for run in (await engine.store.list(limit=100)).runs} - seen
                seen.add(made)
                log = await read_log(engine, made)
                first = first or log
                for event, other in zip(first, log, strict=True):
                    assert event == other, (seed, door)
