"""The five tools as data: what a model is told of them, what they take and answer, what they do to the world.

`make_definitions` returns them as the engine knows tools, for whoever offers them without asking a server. Nothing here needs
the SDK.
"""

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Final, Literal
from uuid import UUID

from msgspec import Struct

from mainspring.core.items import Effect, Json, ToolDefinition
from mainspring_tasks.server.task import LONGEST_DESCRIPTION, TaskRefusal

MOST_PROBLEMS = 8

Which = Literal["pending", "completed", "all"]

_DESCRIPTION: Final[Json] = {
    "type": "string",
    "minLength": 1,
    "maxLength": LONGEST_DESCRIPTION,
    "description": f"What is to be done, in 1 to {LONGEST_DESCRIPTION} characters.",
}
_TASK_ID: Final[Json] = {
    "type": "string",
    "format": "uuid",
    "description": "The `id` of the task, as list_tasks and add_task give it.",
}
_STATUS: Final[Json] = {
    "type": "string",
    "enum": ["pending", "completed", "all"],
    "default": "all",
    "description": "Which tasks to list.",
}
_AT: Final[Json] = {"type": "string", "format": "date-time"}
_MAYBE_AT: Final[Json] = {"anyOf": [_AT, {"type": "null"}]}
_TASK: Final[Json] = {
    "type": "object",
    "properties": {
        "id": {"type": "string", "format": "uuid"},
        "description": {"type": "string"},
        "status": {"type": "string", "enum": ["pending", "completed"]},
        "created_at": _AT,
        "completed_at": _MAYBE_AT,
    },
    "required": ["id", "description", "status", "created_at", "completed_at"],
    "additionalProperties": False,
}


class TaskTool(Struct, frozen=True):
    """One of the five. `parameters` and `answer` are JSON Schemas; the rest says what a call does to the world."""

    name: str
    title: str
    description: str
    parameters: Json
    answer: Json
    is_read_only: bool = False
    is_destructive: bool = False
    is_idempotent: bool = True


class TaskArguments(Struct, frozen=True):
    """What a call says, held against its tool: the fields that the tool does not take have no meaning."""

    description: str = ""
    task_id: UUID = UUID(int=0)
    status: Which = "all"
    created_at: datetime = datetime.min.replace(tzinfo=UTC)
    completed_at: datetime | None = None


def _takes(required: Mapping[str, Json], optional: Mapping[str, Json] | None = None) -> Json:
    properties = {**required, **(optional or {})}
    return {"type": "object", "properties": properties, "required": list(required), "additionalProperties": False}


def _answers(data: Json) -> Json:
    codes = ["VALIDATION_ERROR", "NOT_FOUND", "ACCESS_DENIED", "DATABASE_ERROR"]
    properties = {
        "success": {"type": "boolean"},
        "data": data if data == {"type": "null"} else {"anyOf": [data, {"type": "null"}]},
        "error": {"anyOf": [{"type": "string"}, {"type": "null"}]},
        "error_code": {"anyOf": [{"type": "string", "enum": codes}, {"type": "null"}]},
    }
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


# An update or a completion changes nothing that another call could not change back, so only deleting is called destructive.
TOOLS: Final[Mapping[str, TaskTool]] = {
    tool.name: tool
    for tool in (
        TaskTool(
            "add_task",
            "Add a task",
            "Adds a task to the user's list and returns it. It is pending at first.",
            _takes({"description": _DESCRIPTION}),
            _answers(_TASK),
            is_idempotent=False,
        ),
        TaskTool(
            "list_tasks",
            "List tasks",
            "Lists the user's tasks, newest first: all of them, or those of one status. An empty list means that there are none.",
            _takes({}, {"status": _STATUS}),
            _answers({"type": "array", "items": _TASK}),
            is_read_only=True,
        ),
        TaskTool(
            "update_task",
            "Reword a task",
            "Replaces the description of one of the user's tasks and returns the task. Its status stays.",
            _takes({"task_id": _TASK_ID, "description": _DESCRIPTION}),
            _answers(_TASK),
        ),
        TaskTool(
            "complete_task",
            "Complete a task",
            "Marks one of the user's tasks as completed and returns it. For a task that was completed before, nothing changes.",
            _takes({"task_id": _TASK_ID}),
            _answers(_TASK),
        ),
        TaskTool(
            "delete_task",
            "Delete a task",
            "Deletes one of the user's tasks for good; it cannot be brought back. A task that does not exist counts as deleted.",
            _takes({"task_id": _TASK_ID}),
            _answers({"type": "null"}),
            is_destructive=True,
        ),
    )
}


# How a host takes a change back. It is in no list of tools, so no model is offered it.
RESTORE: Final = TaskTool(
    "restore_task",
    "Restore a task",
    "Puts one of the user's tasks back as it was before a change or a deletion, and returns it.",
    _takes({"task_id": _TASK_ID, "description": _DESCRIPTION, "created_at": _AT, "completed_at": _MAYBE_AT}),
    _answers(_TASK),
)
CALLABLE: Final[Mapping[str, TaskTool]] = {**TOOLS, RESTORE.name: RESTORE}


def make_definitions() -> tuple[ToolDefinition, ...]:
    """The tools as our MCP client makes them of what the server lists."""
    return tuple(
        [
            ToolDefinition(
                tool.name,
                tool.description,
                tool.parameters,
                strict=False,
                kind="mcp",
                repeatable=tool.is_idempotent,
                effects=_effects(tool),
            )
            for tool in TOOLS.values()
        ]
    )


def check_arguments(tool: TaskTool, arguments: Json) -> TaskArguments:
    """The arguments of a call. Raises `TaskRefusal` with all that is wrong with them."""
    known = tool.parameters["properties"]
    takes = ", ".join([f"`{name}`" for name in known])
    problems = [
        f"{tool.name} takes no argument `{quote(name)}`, only {takes}{_hint(name, known)}"
        for name in arguments
        if name not in known
    ]
    problems += [f"{tool.name} needs the argument `{name}`" for name in tool.parameters["required"] if name not in arguments]
    read: dict[str, object] = {}
    for name in [name for name in known if name in arguments]:
        try:
            read[name] = _READERS[name](arguments[name])
        except ValueError as error:
            problems.append(f"`{name}` {error}")
    if problems:
        raise TaskRefusal("VALIDATION_ERROR", "; ".join(problems[:MOST_PROBLEMS]))
    return TaskArguments(**read)  # type: ignore[arg-type]


def _effects(tool: TaskTool) -> tuple[Effect, ...]:
    if tool.is_read_only:
        return ("read",)
    return ("write", "destructive") if tool.is_destructive else ("write",)


def _hint(name: str, known: Json) -> str:
    match name:
        case "user_id" | "user":
            return "; whose tasks they are is known from the connection"
        case "title" | "task" if "description" in known:
            return "; say what is to be done in `description`"
        case _:
            return ""


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(f"must be text, not {_kind(value)}")
    return value


def _description(value: object) -> str:
    text = _text(value)
    if not text.strip():
        raise ValueError("is empty; say what is to be done")
    if len(text) > LONGEST_DESCRIPTION:
        raise ValueError(f"has {len(text)} characters; shorten it to {LONGEST_DESCRIPTION}")
    # No database could keep these, or not every one could.
    if "\0" in text or any("\ud800" <= character <= "\udfff" for character in text):
        raise ValueError("holds a character that cannot be kept (NUL, or half of a surrogate pair); leave it out")
    return text


def _task_id(value: object) -> UUID:
    text = _text(value)
    try:
        id = UUID(text)
    except ValueError:
        id = None
    # The library takes other spellings as well, with braces or without hyphens, that nobody was ever given.
    if id is None or str(id) != text.lower():
        raise ValueError(f"must be the id of a task, a UUID as list_tasks gives it, not `{quote(text)}`")
    return id


def _status(value: object) -> Which:
    match value:
        case "pending" | "completed" | "all":
            return value
        case _:
            said = f"`{quote(value)}`" if isinstance(value, str) else _kind(value)
            raise ValueError(f"must be `pending`, `completed` or `all`, not {said}")


def _time(value: object) -> datetime:
    try:
        at = datetime.fromisoformat(_text(value))
    except ValueError:
        at = None
    if at is None or at.tzinfo is None:
        raise ValueError("must be a time with its zone, such as `2026-11-15T10:10:30Z`")
    return at


def _maybe_time(value: object) -> datetime | None:
    return None if value is None else _time(value)


_READERS: Final[Mapping[str, Callable[[object], object]]] = {
    "description": _description,
    "task_id": _task_id,
    "status": _status,
    "created_at": _time,
    "completed_at": _maybe_time,
}


def _kind(value: object) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "a boolean"
        case int() | float():
            return "a number"
        case list():
            return "a list"
        case _:
            return "an object"


def quote(text: str) -> str:
    """The beginning of a text as it can be told, whatever it is."""
    return ascii(text[:60])[1:-1]
