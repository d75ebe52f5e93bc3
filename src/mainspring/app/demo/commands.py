"""`mainspring demo`: an agent at work, with a script for a model and real tools."""

import sys
from collections.abc import AsyncGenerator
from contextlib import aclosing
from importlib.resources import as_file, files
from typing import Annotated

import typer
from anyio import sleep

from mainspring.app.demo.tools import calculate, list_notes, read_note
from mainspring.app.engine import Engine
from mainspring.cli.follow import choose_view, follow
from mainspring.cli.options import EventsAsJson
from mainspring.core.events import ModelEvent
from mainspring.core.model_request import ModelRequest
from mainspring.providers.scripted import Scripted

PROMPT = "Ada, Bruno and Chiara went to Lisbon and share all costs equally. What did it cost, and who owes whom?"
INSTRUCTIONS = "You settle shared costs. The notes say who paid what. Never do sums in your head."
NEXT = """
The model was a script, the tools were real. Your turn:

  mainspring run --help                     your own prompt, model and tools
  mainspring demo --json                    the same run, as the events it is made of

  from mainspring import Engine, tool       the same from Python
"""


async def demo(
    json: EventsAsJson = False, fast: Annotated[bool, typer.Option("--fast", help="Do not pause for reading.")] = False
) -> int:
    """Shows an agent at work: a scripted model with real tools, no key, no network."""
    is_live = sys.stdout.isatty() and not json and not fast
    with as_file(files("mainspring.app.demo") / "script.json") as script:
        turns = Scripted.from_file(script).turns
    model = Unhurried(*turns, chunk=2, pause=0.02) if is_live else Scripted(*turns, chunk=8)
    tools = (list_notes, read_note, calculate)
    async with Engine(model, tools=tools, instructions=INSTRUCTIONS, preset="iterative") as engine:
        code = await follow(await engine.ask(PROMPT, concurrency=len(tools)), choose_view(json), None)
    if code == 0 and not json:
        print(NEXT)
    return code


class Unhurried(Scripted):
    """A script that takes a moment before it speaks."""

    async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
        await sleep(0.8)
        async with aclosing(super().stream(request)) as events:
            async for event in events:
                yield event
