"""A person at the terminal: what they type, and their answers to calls that wait for them."""

import asyncio
import sys
from contextlib import suppress
from threading import Thread

from mainspring.cli.console import format_call
from mainspring.cli.context import Assembly, WaitingCall
from mainspring.cli.end_reasons import explain_end
from mainspring.cli.follow import choose_view, follow
from mainspring.cli.output import clean, say
from mainspring.core.events import Reason
from mainspring.engine.handle import Handle
from mainspring.storage.location import Location

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
                going_on = await assembly.answer(call, bool(answers[call.id])) or going_on
        if going_on is None:  # nobody has said, or a call waits for its client, too
            say(explain_end(handle.run, database) or "")
            return code
        handle = going_on


async def _ask(call: WaitingCall, always: set[tuple[str, str]]) -> bool | None:
    """Whether this call may be made; None if nobody says. `always` are the tools and rules that were agreed to for good."""
    if (call.tool, call.policy) in always:
        return True
    print(clean(f"\n? {format_call(call.tool, call.arguments, 2000)}"), file=sys.stderr)
    print(clean(f"  {call.question} (rule `{call.policy}`)"), file=sys.stderr)
    while (said := await read_line(CHOICES)) is not None:
        match said.strip().lower():
            case "y" | "yes":
                return True
            case "a" | "always":
                always.add((call.tool, call.policy))
                return True
            case "" | "n" | "no":
                return False
    return None


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
