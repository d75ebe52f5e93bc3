"""Answers MCP requests, whatever they come by: one table of methods for each era of the protocol, over the same works.

What is quick is answered at once. What runs is a `Pending`: the transport finishes it with a way to tell the client things, if it
has one. In the stateless protocol a question goes out as a result, and the client sends the call again with the answer; in
sessions it goes out as a request, and the answer comes back as a message, maybe to another process. Either way it is the record
of approvals that is answered, and the run that goes on is found through the store.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from logging import getLogger
from typing import Final, NoReturn

from anyio import sleep
from msgspec import Struct

from mainspring.core.errors import CallerError, MainspringError, NotFound
from mainspring.core.items import Json
from mainspring.features.approvals.pending import Approval
from mainspring.features.mcp_server.approval_forms import (
    ELICIT,
    can_ask,
    render_form,
    render_requests,
    take_answer,
    take_answers,
)
from mainspring.features.mcp_server.client_messages import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    METHOD_NOT_FOUND,
    MISSING_CAPABILITY,
    ClientReply,
    ClientRequest,
    RequestId,
    RpcError,
    render_notice,
)
from mainspring.features.mcp_server.offer import Offer
from mainspring.features.mcp_server.peer import REVISIONS, SERVER_KEY, SUBSCRIPTION_KEY, TASKS, WITH_SESSIONS, Peer
from mainspring.features.mcp_server.services import McpServices
from mainspring.features.mcp_server.work import Stand, Status, Work, WorkStarter, describe_wait, render_error, render_wait
from mainspring.http.auth import ApiCaller
from mainspring.http.wire import hide_addresses
from mainspring.ports import Document

log = getLogger(__name__)

FRESH_MS: Final = 5_000
POLL_MS: Final = 1_000
WATCH_SECONDS: Final = 0.5
MOST_WATCHED: Final = 100
FORM: Final = "mcp_form"
_SHOWN: Final = b"shown"
_LEFT: Final = b"left"
ENDED: Final = ("completed", "cancelled")
_NEW: Final[tuple[Status, int]] = ("working", -1)

Send = Callable[[Json], Awaitable[None]]
"""Sends a message to the client, before the answer."""


class Pending:
    """A request that takes its time."""

    def __init__(self, finish: Callable[[Send | None], Awaitable[Json]], work: Work | None = None) -> None:
        self.finish, self.work = finish, work

    def leave(self) -> None:
        """The client has left."""
        if self.work is not None:
            self.work.leave()


Answer = Json | Pending
Method = Callable[[ClientRequest, Peer], Awaitable[Answer]]


class McpDoor:
    def __init__(self, services: McpServices) -> None:
        self._services = services
        self.offer, self._starter = Offer(services), WorkStarter(services)
        shared: Mapping[str, Method] = {
            "tools/list": self._list_tools,
            "tools/call": self._call_tool,
            "prompts/list": self._list_prompts,
            "prompts/get": self._get_prompt,
            "resources/list": self._list_resources,
            "resources/templates/list": self._list_templates,
            "resources/read": self._read_resource,
            "tasks/get": self._get_task,
            "tasks/cancel": self._cancel_task,
        }
        self._stateless: Mapping[str, Method] = {
            **shared,
            "server/discover": self._discover,
            "tasks/update": self._update_task,
            "subscriptions/listen": self._listen,
        }
        self._in_session: Mapping[str, Method] = {**shared, "ping": self._ping, "tasks/result": self._await_task}

    async def begin(self, call: ClientRequest, peer: Peer) -> Answer:
        """The answer, or what will have it. Raises `RpcError`."""
        method = (self._stateless if peer.is_stateless else self._in_session).get(call.method)
        if method is None or not self._serves(call.method):
            raise RpcError(METHOD_NOT_FOUND, f"there is no method `{call.method}` in revision {peer.revision} of this server")
        try:
            return _seal(await method(call, peer), peer)
        except MainspringError as error:
            raise render_failure(error) from error

    async def finish(self, pending: Pending, peer: Peer, send: Send | None) -> Json:
        """The result, once there is one. Raises `RpcError`."""
        try:
            return _seal_result(await pending.finish(send), peer)
        except MainspringError as error:
            raise render_failure(error) from error

    def _serves(self, method: str) -> bool:
        """What is not offered has no methods either, so that what is declared is what there is."""
        if method.startswith("prompts/"):
            return self.offer.has_prompts
        return self.offer.has_files or not method.startswith("resources/")

    # What the server is

    @property
    def _capabilities(self) -> Json:
        told: Json = {"tools": {"listChanged": True}}
        if self.offer.has_prompts:
            told["prompts"] = {"listChanged": True}
        if self.offer.has_files:
            told["resources"] = {}
        return told

    @property
    def info(self) -> Json:
        return {"name": "mainspring", "title": "Mainspring", "version": self._services.version}

    def initialize(self, call: ClientRequest, caller: ApiCaller) -> tuple[Peer, Json]:
        """The client that `initialize` introduces, and the answer to it. Raises `RpcError`."""
        wanted, capabilities = call.params.get("protocolVersion"), call.params.get("capabilities")
        if not isinstance(wanted, str) or not isinstance(capabilities, dict):
            raise RpcError(INVALID_PARAMS, "`initialize` needs `protocolVersion`, `capabilities` and `clientInfo`")
        revision = wanted if wanted in WITH_SESSIONS else WITH_SESSIONS[0]
        return Peer(caller=caller, revision=revision, capabilities=capabilities), self._introduce(revision)

    def _introduce(self, revision: str) -> Json:
        capabilities = self._capabilities
        if revision == "2025-11-25":
            capabilities["tasks"] = {"cancel": {}, "requests": {"tools": {"call": {}}}}
        return {"protocolVersion": revision, "capabilities": capabilities, "serverInfo": self.info}

    async def _discover(self, call: ClientRequest, peer: Peer) -> Json:
        return {
            "supportedVersions": list(REVISIONS),
            "capabilities": {**self._capabilities, "extensions": {TASKS: {}}},
            "_meta": {SERVER_KEY: self.info},
            "ttlMs": FRESH_MS,
            "cacheScope": "private",
        }

    async def _ping(self, call: ClientRequest, peer: Peer) -> Json:
        return {}

    # Lists

    async def _list_tools(self, call: ClientRequest, peer: Peer) -> Json:
        return _list({"tools": [tool.render(peer) for tool in self.offer.list_tools(peer.caller).values()]}, peer)

    async def _list_prompts(self, call: ClientRequest, peer: Peer) -> Json:
        return _list({"prompts": self.offer.list_prompts(peer.caller)}, peer)

    async def _get_prompt(self, call: ClientRequest, peer: Peer) -> Json:
        return self.offer.get_prompt(call.params.get("name"), call.params.get("arguments"), peer.caller)

    async def _list_resources(self, call: ClientRequest, peer: Peer) -> Json:
        return _list(await self.offer.list_resources(call.params.get("cursor"), peer.caller), peer)

    async def _list_templates(self, call: ClientRequest, peer: Peer) -> Json:
        return _list({"resourceTemplates": []}, peer)

    async def _read_resource(self, call: ClientRequest, peer: Peer) -> Json:
        uri = call.params.get("uri")
        return _list(await self.offer.read_resource(uri, peer.caller, is_stateless=peer.is_stateless), peer)

    # Calls

    async def _call_tool(self, call: ClientRequest, peer: Peer) -> Answer:
        params = call.params
        tool, arguments = self.offer.find_tool(params.get("name"), peer.caller), params.get("arguments") or {}
        if not isinstance(arguments, dict):
            raise RpcError(INVALID_PARAMS, "`arguments` must be an object")
        if peer.is_stateless and (state := params.get("requestState")) is not None:
            return await self._answer_call(state, params.get("inputResponses"), call, peer)
        wants_task = isinstance(params.get("task"), dict) and peer.revision == "2025-11-25"
        if wants_task and not tool.is_long:
            raise RpcError(METHOD_NOT_FOUND, f"`{tool.name}` cannot be called as a task; leave `task` out")
        is_task = tool.is_long and (peer.takes_tasks or wants_task)
        try:
            if tool.kind == "memory":
                return await self.offer.search_memory(arguments, peer.caller)
            work = await self._starter.start(tool, arguments, peer, background=is_task)
        except CallerError as error:  # for the model to correct
            return render_error(error.message)
        if not is_task:
            return self._follow(work, call, peer)
        task = _render_task(work, Stand("working"), peer)
        return {"resultType": "task", **task} if peer.is_stateless else {"task": task}

    async def _answer_call(self, state: object, responses: object, call: ClientRequest, peer: Peer) -> Answer:
        """A call that is sent again with what a person has answered."""
        work = await self._find_work(state, peer, "requestState")
        stand = await work.read()
        if stand.waiting and await take_answers(self._services.approvals, stand.waiting, responses, peer):
            return render_wait(stand.waiting, work)
        return self._follow(work, call, peer)

    def _follow(self, work: Work, call: ClientRequest, peer: Peer) -> Pending:
        async def finish(send: Send | None) -> Json:
            progress = _Progress(call, send)
            asked: set[str] = set()
            while True:
                await work.advance(progress.tell if progress.is_wanted else None)
                match await work.read():
                    case Stand("completed", result=dict() as result):
                        await self._forget_forms(asked, peer)
                        return result
                    case Stand("cancelled"):
                        await self._forget_forms(asked, peer)
                        return render_error("the run was cancelled before it had an answer", work.id)
                    case Stand("input_required", waiting):
                        shown = [each for each in waiting if can_ask(each, peer)]
                        if not shown or (send is None and not peer.is_stateless):
                            return render_wait(waiting, work)
                        if peer.is_stateless:
                            requests = render_requests(shown, peer.revision)
                            return {"resultType": "input_required", "inputRequests": requests, "requestState": work.state}
                        assert send is not None
                        for approval in shown:
                            if approval.id not in asked:
                                asked.add(approval.id)
                                await self._show_form(approval, peer, send)
                            elif await self._was_dismissed(approval.id, peer):
                                return render_wait(waiting, work)
                    case _:
                        pass

        return Pending(finish, work)

    async def _show_form(self, approval: Approval, peer: Peer, send: Send) -> None:
        # What was said of an earlier form says nothing of this one.
        await self._note_form(approval.id, peer, _SHOWN)
        form = render_form(approval, peer.revision)
        await send({"jsonrpc": "2.0", "id": approval.id, "method": ELICIT, "params": form})

    async def take_reply(self, reply: ClientReply, peer: Peer) -> None:
        """An answer to a form that went out in a session, maybe from another process. What answers nothing is ignored, and so is
        what answers a form that this session was not shown: it is the business of who made that call."""
        approvals, id = self._services.approvals, str(reply.id)
        if await self._read_form(id, peer) is None:
            return
        try:
            approval = await approvals.get(id, tenant=peer.caller.tenant)
        except NotFound:
            return
        try:
            outcome = "left" if reply.result is None else await take_answer(approvals, approval, reply.result, peer)
        except RpcError as error:
            log.warning("an answer to approval %s does not count: %s", approval.id, error.message)
            outcome = "left"
        if outcome == "left":
            await self._note_form(id, peer, _LEFT)
        else:
            await self._forget_forms([id], peer)

    async def _was_dismissed(self, id: str, peer: Peer) -> bool:
        """Whether the form of this session was dismissed, once."""
        if await self._read_form(id, peer) != _LEFT:
            return False
        await self._forget_forms([id], peer)
        return True

    async def _note_form(self, id: str, peer: Peer, stand: bytes) -> None:
        await self._services.engine.store.put([Document(FORM, _name_form(id, peer), stand, peer.caller.tenant)])

    async def _read_form(self, id: str, peer: Peer) -> bytes | None:
        found = await self._services.engine.store.get(FORM, _name_form(id, peer), tenant=peer.caller.tenant)
        return None if found is None else found.body

    async def _forget_forms(self, ids: Iterable[str], peer: Peer) -> None:
        for id in ids:
            await self._services.engine.store.remove(FORM, _name_form(id, peer), tenant=peer.caller.tenant)

    # Tasks

    async def _get_task(self, call: ClientRequest, peer: Peer) -> Json:
        work = await self._find_task(call, peer)
        return _render_task(work, await work.read(), peer, in_full=True)

    async def _update_task(self, call: ClientRequest, peer: Peer) -> Json:
        work = await self._find_task(call, peer)
        await take_answers(self._services.approvals, (await work.read()).waiting, call.params.get("inputResponses"), peer)
        return {}

    async def _cancel_task(self, call: ClientRequest, peer: Peer) -> Json:
        work = await self._find_task(call, peer)
        if not peer.is_stateless and (status := (await work.read()).status) in ENDED:
            raise RpcError(INVALID_PARAMS, f"the task `{work.id}` has ended as `{status}`, and cannot be cancelled any more")
        await work.cancel()
        if peer.is_stateless:
            return {}
        work = await self._find_task(call, peer)
        return _render_task(work, await work.read(), peer)

    async def _await_task(self, call: ClientRequest, peer: Peer) -> Answer:
        work = await self._find_task(call, peer)
        pending = self._follow(work, call, peer)

        async def finish(send: Send | None) -> Json:
            result = await pending.finish(send)
            related = {"io.modelcontextprotocol/related-task": {"taskId": work.id}}
            return {**result, "_meta": {**result.get("_meta", {}), **related}}

        return Pending(finish)  # who stops waiting does not stop the task

    async def cancel_work(self, id: str, peer: Peer) -> None:
        """Cancels what a request has started in another process, unless that is gone."""
        with suppress(NotFound):
            await (await self._starter.find(id, peer)).cancel()

    async def _find_task(self, call: ClientRequest, peer: Peer) -> Work:
        if peer.is_stateless and not peer.takes_tasks:
            told = f"`{call.method}` needs the extension `{TASKS}` in the capabilities of the request"
            raise RpcError(MISSING_CAPABILITY, told, {"requiredCapabilities": {"extensions": {TASKS: {}}}})
        return await self._find_work(call.params.get("taskId"), peer, "taskId")

    async def _find_work(self, id: object, peer: Peer, field: str) -> Work:
        try:
            return await self._starter.find(id if isinstance(id, str) else "", peer)
        except NotFound:
            raise RpcError(INVALID_PARAMS, f"`{field}` names no run of this client's: `{str(id)[:80]}`") from None

    # Notices

    async def _listen(self, call: ClientRequest, peer: Peer) -> Answer:
        wanted = call.params.get("notifications")
        if not isinstance(wanted, dict):
            raise RpcError(INVALID_PARAMS, "`notifications` must be an object that says which ones")
        asked = wanted.get("taskIds", [])
        if not isinstance(asked, list):
            raise RpcError(INVALID_PARAMS, "`notifications.taskIds` must be a list of the ids of tasks")
        tasks = [id for id in asked if isinstance(id, str)][:MOST_WATCHED] if peer.takes_tasks else []
        agreed: Json = {name: True for name in self._list_notices() if wanted.get(name) is True}
        # Looked at before the client is told that it is: what changes from then on is told.
        watched = Watched(tuple(agreed), tuple(tasks), self.offer.mark(), {"_meta": {SUBSCRIPTION_KEY: call.id}})
        if tasks:
            agreed["taskIds"] = tasks

        async def finish(send: Send | None) -> Json:
            if send is None:
                raise RpcError(INVALID_PARAMS, "notices come as a stream; accept `text/event-stream`")
            await send(render_notice("notifications/subscriptions/acknowledged", {**watched.about, "notifications": agreed}))
            await self.watch(peer, watched, send)

        return Pending(finish)

    def _list_notices(self) -> dict[str, str]:
        """The notices about lists, by what asks for them."""
        return {
            "toolsListChanged": "notifications/tools/list_changed",
            **({"promptsListChanged": "notifications/prompts/list_changed"} if self.offer.has_prompts else {}),
        }

    async def watch_lists(self, peer: Peer, send: Send) -> None:
        """Tells a client of a session when lists have changed, until it is cancelled."""
        await self.watch(peer, Watched(tuple(self._list_notices()), (), self.offer.mark()), send)

    async def watch(self, peer: Peer, watched: "Watched", send: Send) -> NoReturn:
        """Tells of lists and tasks that have changed since they were looked at, until it is cancelled."""
        notices, mark, about = self._list_notices(), watched.mark, watched.about
        known: dict[str, tuple[Status, int]] = {}
        while True:
            for id in watched.tasks:
                if known.get(id, _NEW)[0] in ENDED:  # it changes no more, and need not be read again
                    continue
                if (told := await self._read_change(id, peer, known)) is not None:
                    await send(render_notice("notifications/tasks", {**told, **about}))
            await sleep(WATCH_SECONDS)
            before, mark = mark, self.offer.mark()
            if any(now is not then for now, then in zip(mark, before, strict=True)):
                for name in watched.lists:
                    await send(render_notice(notices[name], dict(about)))

    async def _read_change(self, id: str, peer: Peer, known: dict[str, tuple[Status, int]]) -> Json | None:
        """The task, if it stands otherwise than when it was last told."""
        try:
            work = await self._starter.find(id, peer)
        except NotFound:
            return None
        stand = await work.read()
        state = (stand.status, len(stand.waiting))
        if known.get(id) == state:
            return None
        known[id] = state
        return _render_task(work, stand, peer, in_full=True)


class Watched(Struct, frozen=True):
    """What a client wants to be told of: lists by what asks for them, and tasks. `mark` is how the lists were, `about` is in
    every notice."""

    lists: tuple[str, ...]
    tasks: tuple[str, ...]
    mark: tuple[object, ...]
    about: Json = {}


class _Progress:
    """Tells how far a call is, if its request has asked for that."""

    def __init__(self, call: ClientRequest, send: Send | None) -> None:
        meta = call.params.get("_meta")
        token = meta.get("progressToken") if isinstance(meta, dict) else None
        self._token: RequestId | None = token if isinstance(token, str | int) else None
        self._send, self._count = send, 0

    @property
    def is_wanted(self) -> bool:
        return self._token is not None and self._send is not None

    async def tell(self, message: str, total: float | None) -> None:
        assert self._send is not None
        self._count += 1
        told: Json = {"progressToken": self._token, "progress": self._count, "message": message}
        if total is not None and total >= self._count:
            told["total"] = total
        await self._send(render_notice("notifications/progress", told))


def _name_form(approval: str, peer: Peer) -> str:
    """A form of one session: another client's of the same tenant is neither answered nor dismissed with it."""
    return f"{peer.session} {approval}"


def render_failure(error: MainspringError) -> RpcError:
    """An error of ours as one of the protocol."""
    code = INVALID_PARAMS if isinstance(error, CallerError) else INTERNAL_ERROR
    return RpcError(code, hide_addresses(error.message), {"code": error.code})


def _render_task(work: Work, stand: Stand, peer: Peer, *, in_full: bool = False) -> Json:
    """The task that a work is. `in_full` is with its result, or with what it asks, as the stateless protocol has it."""
    told: Json = {
        "taskId": work.id,
        "status": stand.status,
        "createdAt": _format_time(work.created_at),
        "lastUpdatedAt": _format_time(work.updated_at),
    }
    if not peer.is_stateless:
        if stand.result is not None and stand.result["isError"]:
            told["status"] = "failed"  # which in 2025-11-25 includes results that are errors
        return {**told, "ttl": None, "pollInterval": POLL_MS}
    told |= {"ttlMs": None, "pollIntervalMs": POLL_MS}
    if in_full and stand.result is not None:
        told["result"] = stand.result
    shown = [each for each in stand.waiting if can_ask(each, peer)]
    if stand.waiting and not shown:  # for this client there is nothing to do but wait
        told |= {"status": "working", "statusMessage": describe_wait(stand.waiting)}
    elif in_full and shown:
        told["inputRequests"] = render_requests(shown, peer.revision)
    return told


def _format_time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _list(result: Json, peer: Peer) -> Json:
    """With how long it is good for."""
    return {**result, "ttlMs": FRESH_MS, "cacheScope": "private"} if peer.is_stateless else result


def _seal(answer: Answer, peer: Peer) -> Answer:
    return answer if isinstance(answer, Pending) else _seal_result(answer, peer)


def _seal_result(result: Json, peer: Peer) -> Json:
    """A result as the stateless protocol has it says of which kind it is."""
    return {"resultType": "complete", **result} if peer.is_stateless else result
