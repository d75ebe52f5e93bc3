"""The table `[decisions]` of the settings, and the agent that it describes, which is imported and opened when it is used."""

from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from importlib.resources import files
from logging import getLogger
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from msgspec import Meta, Struct
from msgspec.structs import replace

from mainspring.core.errors import InvalidRequest, StoreError
from mainspring.late_module import LateModule
from mainspring.parts import Host
from mainspring.storage.location import Location, parse_location

if TYPE_CHECKING:
    from mainspring_tasks import conversations, decision_engine, decision_log, ports, task_tools
    from mainspring_tasks.server import identity
else:
    conversations = LateModule("mainspring_tasks.conversations")
    decision_engine = LateModule("mainspring_tasks.decision_engine")
    decision_log = LateModule("mainspring_tasks.decision_log")
    task_tools = LateModule("mainspring_tasks.task_tools")
    identity = LateModule("mainspring_tasks.server.identity")

log = getLogger(__name__)

DAY = 86_400.0
MODEL_SECONDS = 30.0
MOST_CONSTITUTION_CHARS = 50_000
LABEL = "mainspring-tasks"
"""What runs of the agent know the task server by."""


class DecisionSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The task agent behind /v1/chat. Files are beside the database unless they are named. See docs/decisions.md."""

    model: str | None = None
    """The model that decides; by default the server's."""
    constitution: str | None = None
    """A Markdown file with the instructions for the model; by default our own."""
    tasks: str | None = None
    """Where the tasks are: a file, a postgresql:// URL, or the http(s):// URL of a task server (`mainspring tasks serve`)."""
    tasks_secret_file: str | None = None
    """The secret that a task server at a URL shares with us, by which we speak for each user."""
    log: str | None = None
    """The file of the decision log, or a postgresql:// URL. Default: beside the runs, or in their database on a server."""
    keep_days: Annotated[float, Meta(gt=0)] = 30.0
    """How long the log keeps a decision. Baselines stay."""
    history: Annotated[int, Meta(ge=0)] = 20
    """How many messages of a conversation the model sees."""
    max_turns: Annotated[int, Meta(gt=0)] = 5
    """How many turns the model has for a decision."""
    model_seconds: Annotated[float, Meta(gt=0)] | None = None
    """How long the model may take for a turn. Default: 30, and 300 in `mainspring chat`, whose user can stop waiting."""
    confirm_seconds: Annotated[float, Meta(gt=0)] = 300.0
    """How long a deletion waits for its yes."""

    def __post_init__(self) -> None:
        if self.is_remote and self.tasks_secret_file is None:
            raise ValueError("tasks at a URL need tasks_secret_file, with the secret that the task server has")

    @property
    def is_remote(self) -> bool:
        return (self.tasks or "").startswith(("http://", "https://"))


class TaskTables(Struct, frozen=True):
    """The settings that the commands of the task agent read."""

    decisions: DecisionSettings = DecisionSettings()


def with_options(settings: DecisionSettings, options: Mapping[str, str]) -> DecisionSettings:
    """The settings with the options of a command line. Raises `InvalidRequest` for options that exclude each other."""
    try:
        return replace(settings, **options)
    except ValueError as error:
        raise InvalidRequest(str(error)) from None


def load_constitution(path: Path | None = None) -> str:
    """The instructions of the model, by default those that Mainspring ships. Raises `InvalidRequest` if they cannot be used."""
    if path is None:
        return files("mainspring_tasks").joinpath("constitution.md").read_text("utf-8")
    try:
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"the constitution cannot be read from {path}: {error}", param="constitution") from None
    if not text.strip() or len(text) > MOST_CONSTITUTION_CHARS:
        told = f"{path} has {len(text.strip())} characters; a constitution has 1 to {MOST_CONSTITUTION_CHARS}"
        raise InvalidRequest(f"{told}, see the one in mainspring_tasks/constitution.md", param="constitution")
    return text


def check_constitution(settings: DecisionSettings) -> None:
    """Raises `InvalidRequest` if the constitution cannot be read."""
    if settings.constitution is not None:
        load_constitution(Path(settings.constitution))


def _find_place(named: str | None, database: Location | None, folder: Path, usual: str) -> Location:
    """Where something is kept: where the settings say, else in the database of a server, else in a file beside the runs."""
    if named is not None:
        return parse_location(named)
    if database is not None and database.file is None:
        return database
    return parse_location(folder / usual)


def find_log(settings: DecisionSettings, database: Location | None, folder: Path) -> Location:
    return _find_place(settings.log, database, folder, "decisions.db")


def find_tasks(settings: DecisionSettings, database: Location | None, folder: Path) -> Location:
    """Raises `InvalidRequest` if they are at a URL of another server."""
    return _find_place(settings.tasks, database, folder, "tasks.db")


async def check_log(settings: DecisionSettings, host: Host) -> None:
    """Raises `StoreError` if the log that the settings name is there and cannot be used; for one that only has the usual name, it
    is logged. None is made before the first chat."""
    place = find_log(settings, host.database, host.folder)
    if place.file is not None and place.file.exists():
        logs = decision_log.DecisionLogs(place)
        try:
            await logs.open()
        except StoreError as error:
            if settings.log is not None:
                raise
            log.warning("chats will not work: %s", error)
        await logs.close()


class OpenTaskAgent(Struct, frozen=True):
    """An open agent, and its chats."""

    agent: "decision_engine.LLMAgentEngine"
    chats: "conversations.Chats"


@asynccontextmanager
async def open_task_agent(
    settings: DecisionSettings, host: Host, *, model_seconds: float = MODEL_SECONDS
) -> AsyncIterator[OpenTaskAgent]:
    """Opens the agent that the settings describe, in an engine that is open."""
    async with AsyncExitStack() as stack:
        logs = decision_log.DecisionLogs(
            find_log(settings, host.database, host.folder), retention_seconds=settings.keep_days * DAY
        )
        stack.push_async_callback(logs.close)
        await logs.open()
        tasks = _tasks(settings, host)
        stack.push_async_callback(tasks.close)
        if isinstance(tasks, task_tools.LocalTasks):
            await tasks.open()
        agent = decision_engine.LLMAgentEngine(
            host,
            tasks,
            logs,
            model=settings.model or "",
            constitution=load_constitution(None if settings.constitution is None else Path(settings.constitution)),
            max_iterations=settings.max_turns,
            history=settings.history,
            model_seconds=model_seconds if settings.model_seconds is None else settings.model_seconds,
            confirm_seconds=settings.confirm_seconds,
        )
        await stack.enter_async_context(agent)
        yield OpenTaskAgent(agent, conversations.Chats(agent, host.engine.store, history=settings.history))


def _tasks(settings: DecisionSettings, host: Host) -> "ports.TaskServer":
    if settings.is_remote and settings.tasks is not None and settings.tasks_secret_file is not None:
        return task_tools.RemoteTasks(settings.tasks, identity.read_secret(Path(settings.tasks_secret_file)))
    return task_tools.LocalTasks(find_tasks(settings, host.database, host.folder).given)
