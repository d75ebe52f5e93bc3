"""`mainspring chat`: one's tasks in plain language, in the terminal."""

import asyncio
import sys
from contextlib import suppress
from pathlib import Path
from threading import Thread

from msgspec import Struct

from mainspring.cli.follow import launch
from mainspring.cli.plain import clean, say
from mainspring.cli.run import Setup
from mainspring.decisions.chat import Chats, Sent
from mainspring.decisions.settings import DecisionSettings, opened
from mainspring.errors import CallerError
from mainspring.items import encode

QUIT = ("/quit", "/exit")
HINT = "Tell me about your tasks: add, list, change, complete, delete. /quit or Ctrl-D ends."


class Talk(Struct, frozen=True):
    """Who talks, and where: going on with a conversation or beginning one, with one message or as many as come."""

    user: str
    conversation: str | None = None
    message: str | None = None


def chat(talk: Talk, setup: Setup, settings: DecisionSettings, folder: Path, *, as_json: bool) -> int:
    """Talks until there is nothing more to say, and returns the exit code."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    engine = setup.engine(folder / "chat.db")

    async def live() -> int:
        async with engine, opened(settings, engine.provider, engine.store, folder, model=engine.model) as found:
            return await _talk(talk, found.chats, as_json)

    return launch(live())


async def _talk(talk: Talk, chats: Chats, as_json: bool) -> int:
    is_terminal = sys.stdin.isatty() and sys.stdout.isatty() and not as_json
    conversation = talk.conversation
    if is_terminal and talk.message is None:
        await _greet(chats, conversation)
    while (message := talk.message if talk.message is not None else await _line("> " if is_terminal else "")) is not None:
        if message.strip() in QUIT:
            break
        if message.strip():
            sent = await _said(message, conversation, talk, chats, as_json)
            conversation = conversation if sent is None else sent.conversation_id
        if talk.message is not None:
            break
    if conversation is not None and is_terminal:
        say(f"go on with: mainspring chat --conversation {conversation}")
    return 0


async def _greet(chats: Chats, conversation: str | None) -> None:
    print(HINT)
    for spoken in await chats.messages(conversation) if conversation is not None else ():
        print(f"{'> ' if spoken.role == 'user' else ''}{clean(spoken.content)}")


async def _said(message: str, conversation: str | None, talk: Talk, chats: Chats, as_json: bool) -> Sent | None:
    """What came of a message, on the screen. One that cannot be taken is told, and the talk goes on if there is more to come."""
    pieces: list[str] = []

    def heard(piece: str) -> None:
        pieces.append(piece)
        print(clean(piece), end="", flush=True)

    try:
        sent = await chats.send(talk.user, message, conversation, heard=None if as_json else heard)
    except CallerError as error:
        if talk.message is not None or error.param != "content":
            raise
        say(error.message)
        return None
    if as_json:
        print(encode({"conversation_id": sent.conversation_id, "decision": sent.made.decision}).decode(), flush=True)
        return sent
    told = "".join(pieces)
    if told.strip() != sent.message.content:
        # What was said on the way was not the last word, or not fit to be shown.
        print(("\n" if told else "") + clean(sent.message.content), end="")
    print(flush=True)
    return sent


async def _line(prompt: str) -> str | None:
    """The next line that is typed, None at the end. A thread of its own waits for it, which nobody waits for at the end."""
    loop = asyncio.get_running_loop()
    line: asyncio.Future[str | None] = loop.create_future()

    def tell(text: str | None) -> None:
        if not line.done():
            line.set_result(text)

    def read() -> None:
        text = _read(prompt)
        with suppress(RuntimeError):  # the loop may be gone by now
            loop.call_soon_threadsafe(tell, text)

    Thread(target=read, daemon=True).start()
    return await line


def _read(prompt: str) -> str | None:
    if not prompt:
        return text.rstrip("\n") if (text := sys.stdin.readline()) else None
    with suppress(ImportError):
        import readline  # noqa: F401 (gives `input` its keys)
    try:
        return input(prompt)
    except EOFError:
        print()
        return None
