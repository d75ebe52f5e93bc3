"""The task tools as a decision run has them: a real MCP server behind them, in this process or at a URL, asked as the run's user.

Theory of operation. A run's `scope` is the person whose tasks it is about; that, and nothing a model writes, says whose tasks are
touched. A list of tasks is numbered for the model, and comes with what the person's words may refer to in it.
"""

from collections import OrderedDict
from typing import TYPE_CHECKING, Final

import msgspec
from anyio import Lock, to_thread
from msgspec import Struct
from msgspec.structs import replace

from mainspring.core.items import Json, ServerTool, ToolDefinition, ToolKind, to_json
from mainspring.late_module import LateModule
from mainspring.ports import CallContext, ToolCall, ToolResult
from mainspring.tools.mcp.exchange import ToolAnswer
from mainspring.tools.mcp.result_content import render_answer
from mainspring.tools.mcp.server_connection import McpConnection
from mainspring.tools.mcp.server_specs import ServerSpec
from mainspring_tasks.decision_settings import LABEL
from mainspring_tasks.ports import TaskServer, TaskStore
from mainspring_tasks.server.identity import fix_user, issue_token
from mainspring_tasks.server.task_definitions import CALLABLE, RESTORE, make_definitions
from mainspring_tasks.server.task_store import choose_task_store
from mainspring_tasks.task_references import ListedTask, Seen, find_counted, find_other, name_task

if TYPE_CHECKING:
    from mcp import Client

    from mainspring_tasks.server import mcp_server
else:
    mcp_server = LateModule("mainspring_tasks.server.mcp_server")

SECONDS: Final = 30.0
MOST_CONNECTIONS: Final = 64
MOST_TOLD: Final = 100
CHANGED: Final = "CHANGED"

# `asks` is for an engine without our rules, which may take up a run of ours after a crash: it does nothing that nobody agrees to.
TOOLS: Final[tuple[ToolDefinition, ...]] = tuple(
    [replace(tool, server=ServerTool(LABEL, tool.name), asks=True, timeout=SECONDS) for tool in make_definitions()]
)


class LocalTasks:
    """The task server in this process, on a database of its own, which is opened by the first call if not before."""

    def __init__(self, database: str) -> None:
        self._database = database
        self._store: TaskStore | None = None
        self._opening = Lock()

    async def open(self) -> None:
        """Raises `MainspringError` if there can be no tasks there."""
        await self._open_store()

    async def call(self, user: str, name: str, arguments: Json) -> ToolAnswer:
        store = await self._open_store()
        async with await to_thread.run_sync(_session, store, user) as client:
            result = await client.call_tool(name, arguments)
        content = [block.model_dump(by_alias=True, mode="json", exclude_none=True) for block in result.content]
        return ToolAnswer(tuple(content), result.structured_content, bool(result.is_error))

    async def close(self) -> None:
        store, self._store = self._store, None
        if store is not None:
            await store.close()

    async def _open_store(self) -> TaskStore:
        async with self._opening:
            if self._store is None:
                store = choose_task_store(self._database)
                await store.open()
                self._store = store
            return self._store


def _session(store: TaskStore, user: str) -> "Client":
    # The SDK takes a second to import, and a thread keeps everybody else going meanwhile.
    from mcp import Client

    return Client(mcp_server.build_task_server(store, fix_user(user)))


class RemoteTasks:
    """A task server at a URL, asked with a token for each user that the common secret signs. A few connections stay open."""

    def __init__(self, url: str, secret: str) -> None:
        self._url, self._secret = url, secret
        self._connections: OrderedDict[str, McpConnection] = OrderedDict()
        self._released: set[McpConnection] = set()

    async def call(self, user: str, name: str, arguments: Json) -> ToolAnswer:
        repeatable = CALLABLE[name].is_idempotent
        return await self._connection(user).call(name, arguments, seconds=SECONDS, repeatable=repeatable)

    async def close(self) -> None:
        connections = [*self._connections.values(), *self._released]
        self._connections.clear()
        for connection in connections:
            await connection.close()

    def _connection(self, user: str) -> McpConnection:
        if user not in self._connections:
            headers = {"Authorization": f"Bearer {issue_token(self._secret, user)}"}
            self._connections[user] = McpConnection(ServerSpec(LABEL, url=self._url, headers=headers, trusted=True))
        self._connections.move_to_end(user)
        self._released = {connection for connection in self._released if not connection.is_over}
        while len(self._connections) > MOST_CONNECTIONS:
            _, oldest = self._connections.popitem(last=False)
            oldest.release()
            self._released.add(oldest)
        return self._connections[user]


class Change(Struct, frozen=True):
    """What a call has done to a task: the task before and after it, None where there was none."""

    before: ListedTask | None
    after: ListedTask | None

    @property
    def task(self) -> ListedTask:
        task = self.before or self.after
        assert task is not None, "a change has a task"
        return task


class UserTurn(Struct, frozen=True):
    """What the person of a run has said, has before their eyes, and has agreed to see deleted: the task as it was called.

    `undoes` is the change that the run takes back; the call only says by which tool.
    """

    message: str
    seen: Seen = Seen()
    agreed: str | None = None
    undoes: Change | None = None


_NOBODY: Final = UserTurn("")


class TaskTools:
    """The executor of the task tools. `bind` says what the person of a run has said, so that a list can answer it."""

    kind: ToolKind = "mcp"

    def __init__(self, server: TaskServer) -> None:
        self._server = server
        self._said: dict[str, UserTurn] = {}

    def bind(self, run_id: str, said: UserTurn) -> None:
        self._said[run_id] = said

    def unbind(self, run_id: str) -> None:
        self._said.pop(run_id, None)

    def can_execute(self, tool: ToolDefinition) -> bool:
        return tool.kind == self.kind and tool.server == ServerTool(LABEL, tool.name)

    async def execute(self, call: ToolCall, context: CallContext) -> ToolResult:
        said = self._said.get(context.run_id, _NOBODY)
        if (refusal := await self._refuse(call, context.scope, said)) is not None:
            return ToolResult(call.id, to_json(refusal), is_error=True)
        name, arguments = call.name, call.parsed
        if said.undoes is not None and (before := said.undoes.before) is not None:
            name, arguments = RESTORE.name, _make_restore(before)
        answer = await self._server.call(context.scope, name, arguments)
        if name != "list_tasks" or answer.is_error or not isinstance(answer.structured, dict):
            return ToolResult(call.id, render_answer(answer), answer.is_error)
        # Holding words against a long list takes a while, and others are waiting too.
        told = await to_thread.run_sync(_number_tasks, answer.structured, said)
        return ToolResult(call.id, to_json(told))

    async def _refuse(self, call: ToolCall, user: str, said: UserTurn) -> Json | None:
        """Why a deletion or an undo is not carried out: the task is not as the person knows it, which cannot be told without the
        list, or they name another."""
        if call.name != "delete_task" and said.undoes is None:
            return None
        answer = await self._server.call(user, "list_tasks", {})
        if answer.is_error or (tasks := _decode_list(to_json(answer.structured))) is None:
            again = 'say "undo" again to retry' if said.undoes is not None else "ask me again if you want it deleted"
            return _make_refusal(f"your list could not be read; {again}", "DATABASE_ERROR")
        now = next((task for task in tasks if task.id == call.parsed.get("task_id")), None)
        if said.undoes is not None:
            return None if now == said.undoes.after else _make_refusal("it has changed since")
        if now is not None and now.description != said.agreed:
            again = "which is not what you agreed to; ask me again if you want it deleted"
            return _make_refusal(f'it says "{now.description}" now, {again}')
        if now is not None and (other := find_other(said.message, now, tasks)) is not None:
            return _make_refusal(f'your answer names "{other.description}"; ask me again if you want one of them deleted')
        return None


def parse_list(output: str) -> tuple[ListedTask, ...]:
    """The tasks of a list as a tool has answered it; none if it is no such list."""
    return _decode_list(output) or ()


def _decode_list(output: str) -> tuple[ListedTask, ...] | None:
    try:
        return msgspec.json.decode(output, type=_List).data
    except msgspec.DecodeError:
        return None


def _make_restore(task: ListedTask) -> Json:
    times = {"created_at": task.created_at, "completed_at": task.completed_at}
    return {"task_id": task.id, "description": task.description, **times}


def _make_refusal(error: str, code: str = CHANGED) -> Json:
    return {"success": False, "data": None, "error": error, "error_code": code}


class _List(Struct, frozen=True):
    data: tuple[ListedTask, ...]


def _number_tasks(reply: Json, said: UserTurn) -> Json:
    """The reply with a number for each task. Of a long list the model reads the beginning, and what the person may mean."""
    tasks: list[Json] = [{"number": number, **task} for number, task in enumerate(reply.get("data") or (), 1)]
    known = [ListedTask(str(task["id"]), str(task["description"]), int(task["number"])) for task in tasks]
    named = [task for task in known if name_task(said.message, task.description).places]
    named += [task for task in find_counted(said.message, known, said.seen) if task not in named]
    numbers = {task.id: task.number for task in known}
    hints: Json = {
        "named_by_the_user": [task.number for task in named],
        "shown_to_the_user": [numbers[id] for id in said.seen.shown if id in numbers],
        "changed_last": numbers.get(said.seen.recent or ""),
    }
    wanted = {task.number for task in named} | set(hints["shown_to_the_user"]) | {hints["changed_last"]}
    told = [task for task in tasks if task["number"] <= MOST_TOLD or task["number"] in wanted]
    whole: Json = {**reply, "data": told, **hints}
    return whole if len(told) == len(tasks) else {**whole, "tasks_not_shown": len(tasks) - len(told)}
