"""A person at the terminal: what they type, and their answers to calls that wait for them."""

import asyncio
import sys
from contextlib import suppress
from threading import Thread

from msgspec import UnsetType

from mainspring.cli.console import format_call
from mainspring.cli.context import Assembly, PersonsAnswer, WaitingCall
from mainspring.cli.explain_end import explain_end
from mainspring.cli.output import fit_message, say, spell_out
from mainspring.cli.show_run import choose_view, follow
from mainspring.core.elicitation import fill_defaults, list_choices, list_flaws, parse_field
from mainspring.core.events import Reason
from mainspring.core.items import Json
from mainspring.engine.handle import Handle
from mainspring.storage.location import Location

ANSWERS = "Answer it? [y]es, [N]o: "
OPENED = "Open it, and say when that is done. Done? [y]es, [N]o: "
CHOICES = "Do it? [y]es, [N]o, [a]lways in this run: "


async def follow_with_answers(assembly: Assembly, handle: Handle, database: Location | None, *, as_json: bool) -> int:
    """Draws a run to its end, as `follow` does. At a terminal, asks about each call that waits for a person, and goes on.

    A run that goes on is another one, with an id of its own.
    """
    is_asking = sys.stdin.isatty() and sys.stderr.isatty() and not as_json
    always: set[tuple[str, str]] = set()
    while True:
        code = await follow(handle, choose_view(as_json), database, explains_questions=not is_asking)
        if not is_asking or handle.run.reason is not Reason.APPROVAL_NEEDED:
            return code
        waiting = await assembly.list_waiting(handle.run)
        answers = {call.id: await _ask(call, always) for call in waiting}
        going_on: Handle | None = None
        if None not in answers.values():
            for call in waiting:
                if (said := answers[call.id]) is not None:
                    going_on = await assembly.answer(call, said) or going_on
        if going_on is None:  # nobody has said, or a call waits for its client, too
            say(explain_end(handle.run, database) or "")
            return code
        handle = going_on


async def _ask(call: WaitingCall, always: set[tuple[str, str]]) -> PersonsAnswer | None:
    """Whether this call may be made; None if nobody says. `always` are the tools and rules that were agreed to for good."""
    if not isinstance(call.elicitation, UnsetType):
        return await _ask_for_server(call, call.elicitation)
    if (call.tool, call.policy) in always:
        return PersonsAnswer(True)
    _tell(f"\n? {format_call(call.tool, call.arguments, 2000)}\n  {call.question} (rule `{call.policy}`)")
    while (said := await read_line(CHOICES)) is not None:
        match said.strip().lower():
            case "y" | "yes":
                return PersonsAnswer(True)
            case "a" | "always":
                always.add((call.tool, call.policy))
                return PersonsAnswer(True)
            case "" | "n" | "no":
                return PersonsAnswer(False)
    return None


async def _ask_for_server(call: WaitingCall, asked: Json) -> PersonsAnswer | None:
    """What a person answers to the MCP server of a call that is under way. They can decline before they fill in anything."""
    _tell(f"\n? {call.question}" + (f"\n  {asked['url']}" if "url" in asked else ""))
    said = await read_line(OPENED if "url" in asked else ANSWERS)
    if said is None or said.strip().lower() not in ("y", "yes"):
        return None if said is None else PersonsAnswer(False)
    schema = asked.get("requested_schema")
    if not isinstance(schema, dict):
        return PersonsAnswer(True)
    content = fill_defaults(schema)
    for name, field in schema["properties"].items():
        value = await _ask_field(name, field, schema)
        if value is None:
            return None
        content |= value
    return PersonsAnswer(True, content)


async def _ask_field(name: str, field: Json, schema: Json) -> Json | None:
    """The field as it is filled in, until it is valid; empty if it is left as it was, None if nobody says."""
    told = [str(field.get("title") or name), *([str(field["description"])] if field.get("description") else [])]
    if (choices := list_choices(field)) is not None:
        told.append(" or ".join(choices))
    default = f" [{field['default']}]" if "default" in field else ""
    is_free = "default" in field or name not in schema["required"]
    while (said := await read_line(spell_out(f"  {', '.join(told)}{default}: "))) is not None:
        if not said.strip() and is_free:
            return {}
        found = {name: parse_field(field, said)}
        flaws = list_flaws({"properties": {name: field}}, found)
        if not flaws:
            return found
        _tell(f"  {flaws[0]}")
    return None


def _tell(text: str) -> None:
    """Writes what a person is to judge, all of it visible."""
    print(fit_message(spell_out(text), sys.stderr, 2), file=sys.stderr)


async def read_line(prompt: str) -> str | None:
    """The next line that is typed, None at the end. It is read on a daemon thread, which does not delay the exit."""
    loop = asyncio.get_running_loop()
    line: asyncio.Future[str | None] = loop.create_future()

    def tell(text: str | None) -> None:
        if not line.done():
            line.set_result(text)

    def read() -> None:
        text = _input(prompt)
        with suppress(RuntimeError):  # the loop may be gone by now
            loop.call_soon_threadsafe(tell, text)

    Thread(target=read, daemon=True).start()
    return await line


def _input(prompt: str) -> str | None:
    if not prompt:
        return text.rstrip("\n") if (text := sys.stdin.readline()) else None
    with suppress(ImportError):
        import readline  # noqa: F401 (gives `input` its keys)
    try:
        return input(prompt)
    except EOFError:
        print()
        return None
