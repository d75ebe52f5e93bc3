"""Calls at work: each is a run of the engine or of a workflow, begun as every other door begins one.

Theory of operation. A `Work` is what a call has started, or what a task stands for: they are the same, so a task has the id of
its run and is found again by every process on the store. A run that asks a person ends, and another continues it; the work goes
on with that one, under the id of the first. Nothing is kept here that the store has not.
"""

import re
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, Literal
from urllib.parse import quote

from anyio import move_on_after, sleep
from msgspec import Struct

from mainspring.core.errors import NotFound, Superseded
from mainspring.core.events import Reason, ToolEnded, ToolStarted, TurnEnded
from mainspring.core.items import (
    FunctionCallOutput,
    InputFile,
    InputImage,
    InputText,
    Json,
    OutputText,
    Part,
    decode,
    encode,
    text_of,
    to_json,
    user,
)
from mainspring.core.spec import STEP_MODEL, Limits, RunSpec, StepCall
from mainspring.engine.approvals import GIVEN, ApprovalAnswer, continuing_id, list_questions
from mainspring.engine.handle import Handle
from mainspring.features.agents.agent_result import ToolLoopConfig, explain_lack, has_answered, read_result
from mainspring.features.approvals.pending import Approval, cancel_with_questions
from mainspring.features.mcp_server.approval_forms import list_waiting
from mainspring.features.mcp_server.offer import OfferedTool
from mainspring.features.mcp_server.peer import Peer
from mainspring.features.mcp_server.services import McpServices
from mainspring.features.workflows.workflow_definition import list_steps
from mainspring.features.workflows.workflow_run import StepCompleted, StepFailed, StepSkipped, StepStarted
from mainspring.features.workflows.workflows import WorkflowHandle
from mainspring.http.idempotency import IdempotentRuns
from mainspring.http.wire import hide_addresses

LOOK_SECONDS: Final = 0.25
MOST_CHARS: Final = 500_000
RUN_KEY: Final = "mainspring/run_id"
_DATA_URL = re.compile(r"data:([\w.+-]+/[\w.+-]+);base64,")
_CANCELLED = "the client has cancelled the call"

Status = Literal["working", "input_required", "completed", "cancelled"]
Tell = Callable[[str, float | None], Awaitable[None]]
"""Is told what has happened, and how much there is to do in all, if that is known."""


class Stand(Struct, frozen=True):
    """Where a work stands. `waiting` are the approvals that it needs to go on, `result` is there once it is completed."""

    status: Status
    waiting: tuple[Approval, ...] = ()
    result: Json | None = None


class RunWork:
    """A run of an agent, or of one tool."""

    def __init__(self, services: McpServices, handle: Handle, id: str = "") -> None:
        self._services, self._handle = services, handle
        self.id = id or handle.id
        self._created_at = handle.log[0].at

    @property
    def created_at(self) -> float:
        return self._created_at

    @property
    def updated_at(self) -> float:
        return self._handle.run.clock

    @property
    def state(self) -> str:
        """By what it is found again when its question is answered: each run that asks is continued by another one."""
        return self._handle.id

    async def advance(self, tell: Tell | None) -> None:
        """Waits until it has ended, or something has changed about what it waits for."""
        if self._is_paused:
            await sleep(LOOK_SECONDS)
            await self._go_on()
            return
        while not self._handle.run.has_ended:
            try:
                await (self._handle.wait() if tell is None else self._report(tell))
            except Superseded:  # another process drives it now
                self._handle = await self._services.engine.follow(self._handle.id)
            if not self._handle.run.has_ended:
                await sleep(LOOK_SECONDS)
                self._handle = await self._services.engine.follow(self._handle.id)
        await self._go_on()

    async def _report(self, tell: Tell) -> None:
        run = self._handle.run
        async for batch in self._handle.batches(run.seq - 1):
            for record in batch:
                match record.event:
                    case TurnEnded():
                        await tell("the model has answered", None)
                    case ToolStarted(call_id):
                        name = next((call.item.name for call in self._handle.run.calls if call.item.call_id == call_id), "")
                        await tell(f"calls `{name}`" if name else "calls a tool", None)
                    case _:
                        pass

    @property
    def _is_paused(self) -> bool:
        return self._handle.run.reason is Reason.APPROVAL_NEEDED

    async def _go_on(self) -> None:
        """Goes on with the run that continues this one, if there is one."""
        while self._is_paused:
            try:
                self._handle = await self._services.engine.follow(continuing_id(self._handle.id))
            except NotFound:
                return

    async def read(self) -> Stand:
        await self._go_on()
        run = self._handle.run
        if not run.has_ended:
            return Stand("working")
        if self._is_paused:
            return await self._read_pause()
        if run.status == "cancelled":
            return Stand("cancelled")
        return Stand("completed", result=_render_agent(self._handle) if run.spec.agent else _render_tool(self._handle))

    async def _read_pause(self) -> Stand:
        run, services = self._handle.run, self._services
        ids, tenant = [question.id for question in list_questions(run)], run.spec.tenant
        if waiting := await list_waiting(services.approvals, ids, tenant):
            return Stand("input_required", tuple(waiting))
        answers = [await services.engine.store.get(GIVEN, id, tenant=tenant) for id in ids]
        given = [decode(answer.body, ApprovalAnswer) for answer in answers if answer is not None]
        if len(given) < len(ids):
            return Stand("completed", result=render_error("nobody has approved the call in time", run.spec.id))
        return Stand("working" if all(answer.run for answer in given) else "cancelled")

    def leave(self) -> None:
        """The client has left, which cancels the call."""
        self._handle.request_cancel()

    async def cancel(self) -> None:
        """Ends it, and withdraws what it asks."""
        await cancel_with_questions(self._services.engine, self._handle.id, _CANCELLED)


class WorkflowWork:
    """A run of a workflow."""

    def __init__(self, services: McpServices, handle: WorkflowHandle) -> None:
        self._services, self._handle = services, handle
        self.id = self.state = handle.id
        self._seen = -1

    @property
    def created_at(self) -> float:
        return self._handle.run.order.created_at

    @property
    def updated_at(self) -> float:
        return self._handle.run.clock

    async def advance(self, tell: Tell | None) -> None:
        run = self._handle.run
        known = _list_approvals(self._handle)
        while not self._handle.run.has_ended and (not (now := _list_approvals(self._handle)) or now == known):
            batch = None
            with move_on_after(LOOK_SECONDS if known else None):
                batch = await self._handle.more(self._seen)
            for record in batch or ():
                self._seen = record.seq
                if tell is not None and isinstance(record.event, StepStarted | StepCompleted | StepFailed | StepSkipped):
                    what = type(record.event).__name__.removeprefix("Step").lower()
                    await tell(f"step `{record.event.step}` {what}", float(2 * len(list_steps(run.order.definition.steps))))
            if batch is None:
                return

    async def read(self) -> Stand:
        run = self._handle.run
        if run.status == "cancelled":
            return Stand("cancelled")
        if run.has_ended:
            return Stand("completed", result=_render_workflow(self._handle))
        waiting = await list_waiting(self._services.approvals, _list_approvals(self._handle), run.order.tenant)
        return Stand("input_required" if waiting else "working", tuple(waiting))

    def leave(self) -> None:
        self._handle.request_cancel()

    async def cancel(self) -> None:
        await self._services.workflows.cancel(self.id, tenant=self._handle.run.order.tenant)


def _list_approvals(handle: WorkflowHandle) -> tuple[str, ...]:
    return tuple([id for step in handle.run.steps.values() for id in step.approvals])


Work = RunWork | WorkflowWork


class WorkStarter:
    """Starts calls, and finds what they have become."""

    def __init__(self, services: McpServices) -> None:
        self._services, self._runs = services, IdempotentRuns(services.engine)

    async def start(self, tool: OfferedTool, arguments: Json, peer: Peer, *, background: bool) -> Work:
        """Raises what the engine does. What is in the background is durable when this returns."""
        services, caller = self._services, peer.caller
        match tool.kind:
            case "workflow":
                return WorkflowWork(
                    services,
                    await services.workflows.start(
                        tool.target,
                        arguments,
                        tenant=caller.tenant,
                        caller=caller.as_run_caller(),
                        key=peer.key,
                        traceparent=peer.traceparent,
                    ),
                )
            case "agent":
                order = await services.agents.make_order(
                    tool.target,
                    arguments,
                    ToolLoopConfig(),
                    tenant=caller.tenant,
                    caller=caller.as_run_caller(),
                    background=background,
                    traceparent=peer.traceparent,
                )
            case _:
                order = self._order_tool(tool, arguments, peer, background=background)
        body = encode([tool.name, arguments])
        return RunWork(services, await self._runs.start(order, peer.key, body))

    def _order_tool(self, tool: OfferedTool, arguments: Json, peer: Peer, *, background: bool) -> RunSpec:
        """An order for one call, which no model chooses, but which is judged, performed and recorded as every other."""
        engine = self._services.engine
        definition = next(each for each in engine.definitions if each.name == tool.target)
        return RunSpec(
            id=engine.new_id("resp"),
            model=STEP_MODEL,
            input=(user(f"An MCP client calls `{tool.name}`.", id=engine.new_id("msg")),),
            tools=(definition,),
            limits=Limits(max_turns=2, max_tool_calls=1, tool_output_chars=MOST_CHARS),
            dictated=StepCall(tool.target, arguments),
            background=background,
            tenant=peer.caller.tenant,
            caller=peer.caller.as_run_caller(),
            traceparent=peer.traceparent,
        )

    async def find(self, id: str, peer: Peer) -> Work:
        """A work by its id. Raises `NotFound`, also for one of another tenant, or that this key is not for."""
        services, caller = self._services, peer.caller
        if id.startswith("wfr_"):
            if not caller.may("workflows:run"):
                raise NotFound(f"there is no task `{id[:80]}`")
            return WorkflowWork(services, await services.workflows.attach(id, tenant=caller.tenant))
        handle = await services.engine.follow(id)
        spec = handle.run.spec
        if spec.tenant != caller.tenant or not caller.may("agents:invoke" if spec.agent else "responses"):
            raise NotFound(f"there is no task `{id[:80]}`")
        return RunWork(services, handle, id)


def _render_agent(handle: Handle) -> Json:
    run = handle.run
    if not has_answered(run):
        return render_error(explain_lack(run), run.spec.id)
    result = read_result(run)
    told: Json = {"content": [_text(result.raw_response)], "isError": False, "_meta": {RUN_KEY: run.spec.id}}
    # Without declared outputs it would say the same text once more.
    declares = bool(run.spec.charters and run.spec.charters[-1].outputs)
    return {**told, "structuredContent": result.output} if declares else told


def _render_tool(handle: Handle) -> Json:
    run = handle.run
    ended = next((record.event for record in handle.log if isinstance(record.event, ToolEnded)), None)
    if ended is None:
        found = next((item for item in run.output if isinstance(item, FunctionCallOutput)), None)
        why = run.error.message if run.error is not None else f"the call was not made: {run.status}"
        return render_error(why if found is None else text_of(found.output), run.spec.id)
    return {"content": _render_output(ended), "isError": ended.is_error, "_meta": {RUN_KEY: run.spec.id}}


def _render_output(ended: ToolEnded) -> list[Json]:
    """What a tool has put out, as blocks of the protocol: texts, images, sound, and files as embedded resources."""
    if ended.is_error or isinstance(ended.output, str):
        return [_text(hide_addresses(text_of(ended.output)) if ended.is_error else text_of(ended.output))]
    return [_render_part(part) for part in ended.output]


def _render_part(part: Part) -> Json:
    match part:
        case InputText(text) | OutputText(text):
            return _text(text)
        case InputImage(image_url=str(url)) if (found := _DATA_URL.match(url)) is not None:
            return {"type": "image", "data": url[found.end() :], "mimeType": found[1]}
        case InputFile(file_data=str(url)) if (found := _DATA_URL.match(url)) is not None:
            data, mime = url[found.end() :], found[1]
            if mime.startswith("audio/"):
                return {"type": "audio", "data": data, "mimeType": mime}
            uri = f"attachment:{quote(part.filename or 'file')}"
            return {"type": "resource", "resource": {"uri": uri, "mimeType": mime, "blob": data}}
        case _:
            return _text(to_json(part))


def _render_workflow(handle: WorkflowHandle) -> Json:
    run = handle.run
    if run.status != "success":
        why = run.error or f"the workflow ended as `{run.status}`, with the outputs {to_json(run.outputs)}"
        return render_error(why, run.id)
    told: Json = {"content": [_text(to_json(run.outputs))], "isError": False, "_meta": {RUN_KEY: run.id}}
    return {**told, "structuredContent": run.outputs} if run.outputs else told


def render_error(message: str, run_id: str = "") -> Json:
    """The result of a call that failed, for the model that made it."""
    told: Json = {"content": [_text(hide_addresses(message))], "isError": True}
    return {**told, "_meta": {RUN_KEY: run_id}} if run_id else told


def render_wait(waiting: Sequence[Approval], work: Work) -> Json:
    """The result of a call that waits for a person whom the client cannot ask."""
    return {"content": [_text(f"{describe_wait(waiting)} Run: {work.id}")], "isError": True, "_meta": {RUN_KEY: work.id}}


def describe_wait(waiting: Sequence[Approval]) -> str:
    """Who is waited for, and where they answer."""
    told = "; ".join([f"`{each.id}` about `{each.tool}`" for each in waiting])
    return f"A person has to answer first: {told}. Answer with `mainspring approvals` or at /v1/approvals."


def _text(text: str) -> Json:
    return {"type": "text", "text": text}
