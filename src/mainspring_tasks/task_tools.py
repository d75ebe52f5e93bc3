"""The task tools as a decision run has them: a real MCP server behind them, in this process or at a URL, asked as the run's user.

Theory of operation. A run's `scope` is the person whose tasks it is about; that, and nothing a model writes, says whose tasks are
touched. A list of tasks is numbered for the model, and comes with what the person's words refer to in it.
"""

from collections import OrderedDict
from typing import TYPE_CHECKING, Final, Protocol

import msgspec
from anyio import Lock, to_thread
from msgspec import Struct
from msgspec.structs import replace

from mainspring.core.items import Json, ServerTool, ToolDefinition, ToolKind, to_json
from mainspring.ports import CallContext, ToolCall, ToolResult
from mainspring.tools.mcp.connection import Connection
from mainspring.tools.mcp.content import render_answer
from mainspring.tools.mcp.exchange import ToolAnswer
from mainspring.tools.mcp.server_specs import ServerSpec
from mainspring_tasks.decision_settings import LABEL
from mainspring_tasks.server.identity import fix_user, issue_token
from mainspring_tasks.server.task_definitions import make_definitions
from mainspring_tasks.server.task_store import TaskStore, choose_task_store
from mainspring_tasks.task_references import ListedTask, Match, Seen, find_named_tasks

if TYPE_CHECKING:
    from mcp import Client

SECONDS: Final = 30.0
MOST_CONNECTIONS: Final = 64
MOST_TOLD: Final = 100

# `asks` is for an engine without our rules, which may take up a run of ours after a crash: it does nothing that nobody agrees to.
TOOLS: Final[tuple[ToolDefinition, ...]] = tuple(
    [replace(tool, server=ServerTool(LABEL, tool.name), asks=True, timeout=SECONDS) for tool in make_definitions()]
)


class TaskServer(Protocol):
    """An MCP server with the five tools. `call` may raise anything: that becomes one error output."""

    async def call(self, user: str, name: str, arguments: Json) -> ToolAnswer: ...

    async def close(self) -> None: ...


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

    from mainspring_tasks.server.mcp_server import build_task_server

    return Client(build_task_server(store, fix_user(user)))


class RemoteTasks:
    """A task server at a URL, asked with a token for each user that the common secret signs. A few connections stay open."""

    def __init__(self, url: str, secret: str) -> None:
        self._url, self._secret = url, secret
        self._connections: OrderedDict[str, Connection] = OrderedDict()
        self._released: set[Connection] = set()

    async def call(self, user: str, name: str, arguments: Json) -> ToolAnswer:
        repeatable = next(tool.repeatable for tool in TOOLS if tool.name == name)
        return await self._connection(user).call(name, arguments, seconds=SECONDS, repeatable=repeatable)

    async def close(self) -> None:
        connections = [*self._connections.values(), *self._released]
        self._connections.clear()
        for connection in connections:
            await connection.close()

    def _connection(self, user: str) -> Connection:
        if user not in self._connections:
            headers = {"Authorization": f"Bearer {issue_token(self._secret, user)}"}
            self._connections[user] = Connection(ServerSpec(LABEL, url=self._url, headers=headers, trusted=True))
        self._connections.move_to_end(user)
        self._released = {connection for connection in self._released if not connection.is_over}
        while len(self._connections) > MOST_CONNECTIONS:
            _, oldest = self._connections.popitem(last=False)
            oldest.release()
            self._released.add(oldest)
        return self._connections[user]


class UserTurn(Struct, frozen=True):
    """What the person of a run has said, has before their eyes, and has agreed to see deleted: the task as it was called."""

    message: str
    seen: Seen = Seen()
    agreed: str | None = None


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
        said = self._said.get(context.run_id)
        if call.name == "delete_task" and (other := await self._other_than_agreed(call, context.scope, said)) is not None:
            return ToolResult(call.id, to_json(_make_changed_reply(other)), is_error=True)
        answer = await self._server.call(context.scope, call.name, call.parsed)
        if call.name != "list_tasks" or answer.is_error or not isinstance(answer.structured, dict):
            return ToolResult(call.id, render_answer(answer), answer.is_error)
        # Holding words against a long list takes a while, and others are waiting too.
        told = await to_thread.run_sync(_number_tasks, answer.structured, said)
        return ToolResult(call.id, to_json(told))

    async def _other_than_agreed(self, call: ToolCall, user: str, said: UserTurn | None) -> str | None:
        """What the task says now, if that is not what the person agreed to. One that is gone is no other."""
        answer = await self._server.call(user, "list_tasks", {})
        now = {task.id: task.description for task in parse_list(to_json(answer.structured))}
        found = now.get(str(call.parsed.get("task_id")))
        return None if found is None or (said is not None and found == said.agreed) else found


def parse_list(output: str) -> tuple[ListedTask, ...]:
    """The tasks of a list as a tool has answered it; none if it is no such list."""
    try:
        return msgspec.json.decode(output, type=_List).data
    except msgspec.DecodeError:
        return ()


def _make_changed_reply(description: str) -> Json:
    error = f'it says "{description}" now, which is not what you agreed to; ask me again if you want it deleted'
    return {"success": False, "data": None, "error": error, "error_code": "CHANGED"}


class _List(Struct, frozen=True):
    data: tuple[ListedTask, ...]


def _number_tasks(reply: Json, said: UserTurn | None) -> Json:
    """The reply with a number for each task. Of a long list the model reads the beginning, and what the person names."""
    tasks: list[Json] = [{"number": number, **task} for number, task in enumerate(reply.get("data") or (), 1)]
    known = [ListedTask(str(task["id"]), str(task["description"]), int(task["number"])) for task in tasks]
    matches = () if said is None else find_named_tasks(said.message, known, said.seen)
    wanted = {task.id for match in matches for task in match.tasks}
    told = [task for task in tasks if task["number"] <= MOST_TOLD or task["id"] in wanted]
    whole: Json = {**reply, "data": told, "named_by_the_user": [_describe_match(match) for match in matches]}
    return whole if len(told) == len(tasks) else {**whole, "tasks_not_shown": len(tasks) - len(told)}


def _describe_match(match: Match) -> Json:
    return {"how": match.how, "numbers": [task.number for task in match.tasks]}
