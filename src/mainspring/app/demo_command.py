"""`mainspring demo`: an agent at work, with a script for a model and real tools."""

import sys
from typing import Annotated

import typer

from mainspring.app.engine import Engine
from mainspring.cli.options import EventsAsJson
from mainspring.cli.output import name_program
from mainspring.cli.show_run import choose_view, follow
from mainspring.features.console.demo.demo_run import INSTRUCTIONS, PROMPT, TOOLS, Unhurried, read_turns
from mainspring.providers.scripted import Scripted

NEXT = """
The model was a script, the tools were real. Your turn:

  mainspring run "Why is the sky blue?"
      a model of yours, or a small one that is fetched without a key
  mainspring init first
      an agent, a tool and a test of your own; it says how to go on
  mainspring serve
      the Responses API, and a console in the browser
"""


async def demo(
    json: EventsAsJson = False, fast: Annotated[bool, typer.Option("--fast", help="Do not pause for reading.")] = False
) -> int:
    """Shows an agent at work: a scripted model with real tools, no key, no network."""
    is_live = sys.stdout.isatty() and not json and not fast
    turns = read_turns()
    model = Unhurried(*turns, chunk=2, pause=0.02) if is_live else Scripted(*turns, chunk=8)
    async with Engine(model, tools=TOOLS, instructions=INSTRUCTIONS, preset="iterative") as engine:
        code = await follow(await engine.ask(PROMPT, concurrency=len(TOOLS)), choose_view(json), None)
    if code == 0 and not json:
        print(name_program(NEXT))
    return code
