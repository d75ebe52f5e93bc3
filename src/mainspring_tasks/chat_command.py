"""`mainspring chat`: one's tasks in plain language, in the terminal."""

import re
import sys
from collections.abc import Coroutine
from pathlib import Path
from typing import Annotated

import typer
from msgspec import Struct

from mainspring.cli.ask import read_line
from mainspring.cli.console import TextFlow
from mainspring.cli.context import EngineOptions, build_engine, load_settings
from mainspring.cli.options import AsJson, BackendKey, BaseUrl, Model
from mainspring.cli.output import clean, measure_room, say, write_text
from mainspring.core.errors import CallerError
from mainspring.core.items import to_json
from mainspring.definitions.parsed_file import hint
from mainspring.parts import Host
from mainspring.storage.location import parse_location
from mainspring.storage.sqlite import make_folder
from mainspring_tasks.conversations import Chats, MessageResult
from mainspring_tasks.decision_settings import TaskTables, check_constitution, open_task_agent, with_options
from mainspring_tasks.server.identity import check_user_name
from mainspring_tasks.speech import ReplyListener
from mainspring_tasks.task_commands import data_folder

QUIT = ("/quit", "/exit")
COMMANDS = ("/help", "/undo", *QUIT)
HINT = "Tell me about your tasks: add, list, change, complete, delete, undo.\n/help says more, /quit or Ctrl-D ends."
HELP = """Say in your own words, in any language, what you want:
  add        "remind me to call the dentist tomorrow"
  list       "what is left to do?"
  complete   "I got the milk", "the second one is done"
  change     "make it oat milk"
  delete     "we don't need bread any more" (asks you first; answer yes or no)
  undo       "undo", or in other words: takes back the last change you made here
/help shows this, /undo undoes, /quit or Ctrl-D ends."""


class ChatOptions(Struct, frozen=True):
    """The user, the conversation to continue (None starts one), and a single message (None reads many from the terminal)."""

    user: str
    conversation: str | None = None
    message: str | None = None


def chat(
    message: Annotated[str | None, typer.Argument(metavar="MESSAGE", help="One message. Default: as many as you type.")] = None,
    model: Model = None,
    base_url: BaseUrl = None,
    backend_key: BackendKey = None,
    user: Annotated[str, typer.Option(metavar="NAME", help="Whose tasks they are.")] = "local",
    conversation: Annotated[str | None, typer.Option(metavar="ID", help="Go on with this one. Default: a new one.")] = None,
    folder: Annotated[Path | None, typer.Option(metavar="FOLDER", help="Where all is stored. Default: your data folder.")] = None,
    tasks: Annotated[
        str | None,
        typer.Option(metavar="FILE|URL", help="The tasks: a file, postgresql://..., or a task server. Default: in that folder."),
    ] = None,
    tasks_secret_file: Annotated[Path | None, typer.Option(metavar="FILE", help="Secret of that task server.")] = None,
    constitution: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Instructions for the model. Default: our own.")
    ] = None,
    json: AsJson = False,
) -> Coroutine[object, object, int]:
    """
    Talks about your tasks in plain language, and does what you say: add, list, change, complete, delete. Deleting asks first,
    and "undo" takes the last change back. /help says more.

    Tasks, conversations and the log of decisions are stored in your data folder. The model should be able:
    a vendor's, or one that `mainspring models pull` fetches. The small one that comes along is refused:

        mainspring chat
        mainspring chat "What is left to do?" --model local/qwen3-4b
        mainspring chat --conversation conv_... --model anthropic/claude-sonnet-5-5

    The exit code is 1 if an outage left the last message without an answer.
    """
    given = {"tasks": tasks, "tasks_secret_file": tasks_secret_file, "constitution": constitution, "model": model}
    options = {name: str(value) for name, value in given.items() if value is not None}
    settings = with_options(load_settings(TaskTables).decisions, options)
    check_constitution(settings)
    check_user_name(user)
    home = folder or data_folder()
    make_folder(home)
    engine = build_engine(
        EngineOptions(
            kind="bare",
            model=model or settings.model,
            base_url=base_url,
            backend_key=backend_key,
            database=parse_location(home / "chat.db"),
        )
    )

    async def live() -> int:
        async with engine.lifespan, open_task_agent(settings, engine.find(Host), model_seconds=300.0) as found:
            if message is None and sys.stdin.isatty():  # before a person has typed anything
                await found.agent.check_model()
            return await _talk(ChatOptions(user, conversation, message), found.chats, json)

    return live()


async def _talk(talk: ChatOptions, chats: Chats, as_json: bool) -> int:
    is_terminal = sys.stdin.isatty() and sys.stdout.isatty() and not as_json
    conversation, code = talk.conversation, 0
    if is_terminal and talk.message is None:
        await _greet(chats, talk)
    while (message := talk.message if talk.message is not None else await read_line("> " if is_terminal else "")) is not None:
        if message.strip() in QUIT:
            break
        if message.strip() == "/help":
            print(HELP)
        elif _is_no_command(message):
            say(f"there is no `{message.strip()}`; {hint(message.strip(), COMMANDS)}")
        elif message.strip():
            sent = await _send(message, conversation, talk, chats, as_json)
            conversation = conversation if sent is None else sent.conversation_id
            code = 1 if sent is not None and sent.recorded.report.cause is not None else 0
        if talk.message is not None:
            break
    if conversation is not None and is_terminal:
        say(f"go on with: mainspring chat --conversation {conversation}")
    return code


def _is_no_command(message: str) -> bool:
    """Whether this is a slash and a word, as commands are, but none of ours. It is not for the model to guess."""
    return re.fullmatch(r"/[a-z]+", message.strip()) is not None and message.strip() not in COMMANDS


async def _greet(chats: Chats, talk: ChatOptions) -> None:
    print(HINT)
    for spoken in await chats.messages(talk.user, talk.conversation) if talk.conversation is not None else ():
        write_text(f"{'> ' if spoken.role == 'user' else ''}{spoken.content}")


async def _send(message: str, conversation: str | None, talk: ChatOptions, chats: Chats, as_json: bool) -> MessageResult | None:
    """Sends a message and shows the reply. A message that is refused is reported, and the chat goes on if it is interactive."""
    screen = ReplyScreen()
    try:
        sent = await chats.send(talk.user, message, conversation, listener=None if as_json else screen)
    except CallerError as error:
        if talk.message is not None or error.param != "content":
            raise
        say(error.message)
        return None
    if sent.recorded.report.cause is not None:
        say(sent.recorded.report.cause)
    if as_json:
        print(to_json({"conversation_id": sent.conversation_id, "decision": sent.recorded.decision}), flush=True)
        return sent
    screen.ends(sent.message.content)
    return sent


class ReplyScreen(ReplyListener):
    """Shows a reply while it is written if standard output is a terminal, broken between words; a pipe gets it whole."""

    def __init__(self) -> None:
        self._shown = ""
        self._flow = TextFlow("", measure_room(sys.stdout) if sys.stdout.isatty() else None)

    def progress(self, told: str) -> None:
        if sys.stderr.isatty():
            print(told, file=sys.stderr, flush=True)

    def says(self, text: str) -> None:
        if sys.stdout.isatty():
            print(self._flow.add(clean(text)), end="", flush=True)
            self._shown += clean(text)

    def ends(self, reply: str) -> None:
        """Prints the rest of the reply. One that turned out different from its beginning is printed again, whole."""
        whole = clean(reply)
        if not whole.startswith(self._shown):
            print(self._flow.end() or "\n", end="")
            self._shown = ""
        told = self._flow.add(whole[len(self._shown) :]) + self._flow.end()
        print(told.removesuffix("\n"), flush=True)
