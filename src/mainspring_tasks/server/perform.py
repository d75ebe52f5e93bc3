"""What the five tools do: one call of one user, in, and a reply, out. It knows neither the protocol nor the database."""

from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime
from typing import Final
from uuid import UUID, uuid4

from msgspec import Struct

from mainspring.core.errors import StoreError
from mainspring.core.items import Json
from mainspring_tasks.ports import TaskStore
from mainspring_tasks.server.task import LONGEST_USER, Task, TaskRefusal, TaskReply, make_task, utc_now
from mainspring_tasks.server.task_definitions import CALLABLE, TaskArguments, TaskTool, check_arguments

Clock = Callable[[], datetime]
Data = Task | tuple[Task, ...] | None


async def perform(store: TaskStore, user: str, name: str, arguments: Json, *, clock: Clock = utc_now) -> TaskReply:
    """The reply to a call of a tool of ours; `KeyError` for another. Whatever goes wrong with it is a reply as well."""
    tool = CALLABLE[name]
    try:
        _check_user(user)
        work = _Work(store, user, check_arguments(tool, arguments), clock)
        return TaskReply(True, await _ACTIONS[name](work))
    except TaskRefusal as refusal:
        return refusal.reply
    except StoreError:
        return TaskRefusal("DATABASE_ERROR", f"the tasks cannot be reached right now; {_advice(tool)}").reply


class _Work(Struct, frozen=True):
    store: TaskStore
    user: str
    arguments: TaskArguments
    clock: Clock


async def _add(work: _Work) -> Data:
    added = make_task(uuid4(), work.arguments.description, work.clock())
    await work.store.add(work.user, added)
    return added


async def _list(work: _Work) -> Data:
    status = work.arguments.status
    return tuple(await work.store.list(work.user, None if status == "all" else status))


async def _update(work: _Work) -> Data:
    changed = await work.store.reword(work.user, work.arguments.task_id, work.arguments.description)
    return changed or await _missing(work)


async def _complete(work: _Work) -> Data:
    return await work.store.complete(work.user, work.arguments.task_id, work.clock()) or await _missing(work)


async def _delete(work: _Work) -> Data:
    if not await work.store.delete(work.user, work.arguments.task_id) and await work.store.exists(work.arguments.task_id):
        raise _foreign(work.arguments.task_id)
    return None


async def _restore(work: _Work) -> Data:
    given = work.arguments
    task = make_task(given.task_id, given.description, given.created_at, given.completed_at)
    return await work.store.restore(work.user, task) or await _missing(work)


_ACTIONS: Final[Mapping[str, Callable[[_Work], Awaitable[Data]]]] = {
    "add_task": _add,
    "list_tasks": _list,
    "update_task": _update,
    "complete_task": _complete,
    "delete_task": _delete,
    "restore_task": _restore,
}


async def _missing(work: _Work) -> Data:
    id = work.arguments.task_id
    if await work.store.exists(id):
        raise _foreign(id)
    raise TaskRefusal("NOT_FOUND", f"there is no task `{id}`; list_tasks shows the tasks that there are")


def _foreign(id: UUID) -> TaskRefusal:
    return TaskRefusal("ACCESS_DENIED", f"task `{id}` is not the user's own; list_tasks shows those that are")


def _check_user(user: str) -> None:
    if not user.strip() or not user.isprintable() or len(user) > LONGEST_USER:
        told = f"the connection does not say whose tasks these are, in 1 to {LONGEST_USER} printable characters"
        raise TaskRefusal("VALIDATION_ERROR", f"{told}; no argument can: tell the user to connect again as themselves")


def _advice(tool: TaskTool) -> str:
    if tool.is_idempotent:
        return "try again later"
    return "whether the task was added is not known: look with list_tasks, later, before you try again"
