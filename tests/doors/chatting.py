"""A server in the test's own process, with a clock of its own, and OpenAI's client for it, which believes nothing untyped."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from msgspec import Struct
from openai import AsyncOpenAI
from tests.server.hosting import hosted

from mainspring import Engine, tool
from mainspring.app.server import server
from mainspring.core.run import Call, Run
from mainspring.http.auth import Keys
from mainspring.ports import Allow, Ask, Deny, Provider, Verdict

WEATHER: Any = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "How it is there.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}


@tool
async def clock() -> str:
    """Tells the time."""
    return "half past nine"


@tool(effects=("destructive",))
async def wipe() -> str:
    """Must not run unasked."""
    raise AssertionError("nobody has approved it")


class Opinions:
    """Asks before anything is wiped, and denies a client's call for Atlantis."""

    name = "opinions"

    async def judge(self, call: Call, run: Run) -> Verdict:
        if call.item.name == "wipe":
            return Ask("May I?")
        return Deny("there is no such city") if "Atlantis" in call.item.arguments else Allow()


class Place(Struct, frozen=True):
    engine: Engine
    url: str
    client: AsyncOpenAI


@asynccontextmanager
async def opened(
    model: Provider, *, keys: Keys | None = None, api_key: str = "unused", agents: Sequence[Path] = ()
) -> AsyncIterator[Place]:
    engine = Engine(
        model, tools=[clock, wipe], policies=[Opinions()], agents=agents, default_model="scripted", owns_provider=True
    )
    async with hosted(server(engine, keys=keys)) as url:
        options: Any = {"base_url": url, "api_key": api_key, "max_retries": 0, "timeout": 30, "_strict_response_validation": True}
        async with AsyncOpenAI(**options) as client:
            yield Place(engine, url, client)
