"""The demo as a run of a server: the same script and the same tools, on the server's own engine, for whoever watches."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from functools import cache
from importlib.resources import as_file, files
from typing import Final

from anyio import sleep

from mainspring.core.errors import Refused
from mainspring.core.events import ModelEvent
from mainspring.core.ids import NewId
from mainspring.core.items import ToolDefinition, user
from mainspring.core.model_request import ModelRequest
from mainspring.core.spec import RunSpec, spec_for
from mainspring.features.console.demo.tools import calculate, list_notes, read_note
from mainspring.providers.script import Turn
from mainspring.providers.scripted import Scripted
from mainspring.providers.wrapper import ProviderWrapper
from mainspring.tools.registry import Registry

PROMPT: Final = "Ada, Bruno and Chiara went to Lisbon and share all costs equally. What did it cost, and who owes whom?"
INSTRUCTIONS: Final = "You settle shared costs. The notes say who paid what. Never do sums in your head."
DEMO_MODEL: Final = "mainspring/demo"
TOOLS: Final = (list_notes, read_note, calculate)


class Unhurried(Scripted):
    """A script that takes a moment before it speaks."""

    async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
        await sleep(0.8)
        async with aclosing(super().stream(request)) as events:
            async for event in events:
                yield event


@cache
def read_turns() -> tuple[Turn, ...]:
    with as_file(files("mainspring.features.console.demo") / "script.json") as script:
        return Scripted.from_file(script).turns


class DemoTools(Registry):
    """Performs the calls of the demo, and of no tool that only has the same name."""

    def __init__(self) -> None:
        super().__init__(TOOLS)

    def can_execute(self, tool: ToolDefinition) -> bool:
        return tool in self.definitions


class DemoProvider(ProviderWrapper):
    """Plays the script for the runs of the demo, and passes all other requests on to the provider behind it."""

    def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
        if request.model != DEMO_MODEL:
            return self._provider.stream(request)
        if not any(isinstance(tool, ToolDefinition) and tool.name == "list_notes" for tool in request.tools):
            raise Refused(f"the model `{DEMO_MODEL}` only plays the demo; start it with POST /v1/demo, or name another model")
        # A fresh script begins with the turn it is asked for, so a run that another process takes up goes on.
        return Unhurried(*read_turns(), chunk=2, pause=0.02).stream(request)


def make_demo_order(new_id: NewId) -> RunSpec:
    return spec_for(
        "iterative",
        id=new_id("resp"),
        model=DEMO_MODEL,
        input=(user(PROMPT, id=new_id("msg")),),
        instructions=INSTRUCTIONS,
        tools=DemoTools().definitions,
        concurrency=len(TOOLS),
        background=True,
        metadata={"demo": "true"},
    )
