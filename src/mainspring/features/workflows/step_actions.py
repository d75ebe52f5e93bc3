"""What steps do to the world: each command, request and invocation of an agent is a run of the engine.

The id of that run follows from the workflow run, the step and the attempt. A step that is resumed finds the run that it started
before and follows it, so the same work is never started twice.

A command or a request needs no model to choose the call: `StepProvider` stands in for one and makes it. So the same policies
judge the call, the same executors perform it, the same log records it, and after a crash the same rules resume it.
"""

import shlex
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import suppress
from hashlib import sha256
from typing import Any, Final

from anyio import move_on_after, sleep
from msgspec.structs import replace

from mainspring.core.errors import NotFound, Refused
from mainspring.core.events import ArgumentsDelta, ItemDone, ItemStarted, ModelEvent, Reason, TextDelta, ToolEnded, TurnEnded
from mainspring.core.ids import derive_id
from mainspring.core.items import (
    FunctionCall,
    FunctionCallOutput,
    Json,
    Part,
    ToolDefinition,
    Usage,
    assistant,
    text_of,
    to_json,
    user,
)
from mainspring.core.json_values import parse_json
from mainspring.core.model_request import ModelRequest
from mainspring.core.spec import STEP_MODEL, Limits, RunSpec, StepCall
from mainspring.engine.approvals import continuing_id, list_questions
from mainspring.engine.engine import Engine
from mainspring.engine.handle import Handle
from mainspring.features.agents.agent_result import ToolLoopConfig, read_result
from mainspring.features.agents.agent_runtime import AgentRuntime, make_failure
from mainspring.features.prompts.prompts import PREFIX as PROMPT_PREFIX
from mainspring.features.workflows.agent_steps import AgentSteps
from mainspring.features.workflows.dry_run import find_unknown_agent
from mainspring.features.workflows.expressions import resolve_values
from mainspring.features.workflows.step_work import StepError, StepWork
from mainspring.features.workflows.workflow_definition import (
    ExecuteCode,
    GroupChat,
    Handoff,
    HttpRequest,
    InvokeAgent,
    Route,
    RunCommand,
)
from mainspring.providers.wrapper import ProviderWrapper

MOST_CHARS: Final = 500_000
COMMAND_SECONDS: Final = 60.0
LONGEST_COMMAND: Final = 600.0
SAFE: Final = ("GET", "HEAD")
LOOK_SECONDS: Final = 0.5


class StepActions:
    """Performs steps. `definitions` lists the tools of the engine, including those that models are not offered."""

    def __init__(self, engine: Engine, agents: AgentRuntime, definitions: Callable[[], Sequence[ToolDefinition]]) -> None:
        self._engine, self._agents, self._definitions = engine, agents, definitions
        self._talks = AgentSteps(agents, self._run)

    def list_agents(self) -> tuple[str, ...]:
        return tuple(self._agents.registry.definitions)

    async def invoke_agent(self, step: InvokeAgent, work: StepWork) -> Json:
        """The agent's output; it works with tools if there are any. Raises `RunFailed` if it gave no answer."""
        agent, model, inputs = await resolve_values((step.agent, step.model, step.inputs), work.names, work.order.tenant)
        if not agent.startswith(PROMPT_PREFIX) and (why := find_unknown_agent(agent, self.list_agents())) is not None:
            raise StepError(why, may_repeat=False)
        order = work.order

        async def make_spec() -> RunSpec:
            return await self._agents.make_order(
                agent,
                inputs,
                ToolLoopConfig(),
                id=work.run_id,
                tenant=order.tenant,
                caller=order.caller,
                model=model,
                background=True,
                metadata=work.metadata,
                traceparent=order.traceparent,
            )

        run = (await self._run(work, make_spec)).run
        result = read_result(run)
        if result.termination_reason != "completed" or run.status != "completed":
            raise make_failure(run)
        return result.output

    async def run_command(self, step: RunCommand, work: StepWork) -> Json:
        """Runs the command. Raises `StepError` unless it ends with exit code 0."""
        given = await resolve_values({"inputs": step.inputs, "working_dir": step.working_dir}, work.names, work.order.tenant)
        variables = [f"{name}={shlex.quote(_variable(name, value))}\n" for name, value in given["inputs"].items()]
        arguments: Json = {
            "command": "".join(variables) + step.command,
            "timeout_ms": int(min(step.timeout or COMMAND_SECONDS, LONGEST_COMMAND) * 1000),
            "working_dir": given["working_dir"],
        }
        ended = await self._perform("shell", arguments, work, repeatable=step.repeatable)
        data = ended.data or {}
        text = text_of(ended.output).removeprefix(data.get("before", ""))
        if data.get("exit_code") != 0:
            raise StepError(f"the command failed: {text[-2_000:]}")
        return {"exit_code": 0, "text": text.removesuffix(data["after"]).removesuffix("\n")}

    async def execute_code(self, step: ExecuteCode, work: StepWork) -> Json:
        """Runs Python code. Raises `StepError` if it raises."""
        inputs = await resolve_values(step.inputs, work.names, work.order.tenant)
        given = f"import json as _json\nglobals().update(_json.loads({to_json(inputs)!r}))\n" if inputs else ""
        ended = await self._perform("code_interpreter", {"code": given + step.code}, work, repeatable=step.repeatable)
        text = text_of(ended.output)
        if (ended.data or {}).get("exit_code") != 0:
            raise StepError(f"the code failed: {text[-2_000:]}")
        try:
            value = parse_json(text.strip().rpartition("\n")[2])
        except ValueError:
            value = None
        return {"text": text, "value": value}

    async def choose_agent(self, step: Route, work: StepWork) -> Json:
        return await self._talks.route(step, work)

    async def hand_off(self, step: Handoff, work: StepWork) -> Json:
        return await self._talks.hand_off(step, work)

    async def chat(self, step: GroupChat, work: StepWork) -> Json:
        return await self._talks.chat(step, work)

    async def send_request(self, step: HttpRequest, work: StepWork) -> Json:
        """Sends the request. Raises `StepError` for no answer, and for a status of 400 and above."""
        given = await resolve_values({"headers": step.headers, "url": step.url, "body": step.body}, work.names, work.order.tenant)
        headers = {name: _text(value) for name, value in given["headers"].items()}
        if step.method not in SAFE and not any(name.lower() == "idempotency-key" for name in headers):
            headers["Idempotency-Key"] = sha256(f"{work.order.id} {work.key}".encode()).hexdigest()[:32]
        arguments: Json = {
            "operation": step.method,
            "url": given["url"],
            "headers": headers,
            **({} if step.body is None else {"body": given["body"]}),
        }
        repeatable = step.repeatable or step.method in SAFE
        ended = await self._perform("http_request", arguments, work, repeatable=repeatable)
        data, body = ended.data or {"status": 0, "headers": {}}, _body(ended.output)
        if data["status"] >= 400:
            raise StepError(f"{step.method} {arguments['url']} answered {data['status']}: {str(body)[:500]}")
        return {**data, "body": body}

    async def _perform(self, name: str, arguments: Json, work: StepWork, *, repeatable: bool) -> ToolEnded:
        tool = next((tool for tool in self._definitions() if tool.name == name), None)
        if tool is None:
            raise StepError(f"the step needs the tool `{name}`, which is not offered here; start with --builtin {name}")
        spec = _make_spec(replace(tool, repeatable=repeatable), arguments, work)

        async def make_spec() -> RunSpec:
            return spec

        return _find_end(await self._run(work, make_spec))

    async def _run(self, work: StepWork, make_spec: Callable[[], Awaitable[RunSpec]]) -> Handle:
        """Waits for the run of a step: starts it if it does not exist, else follows it, and resumes it if no process drives it.

        A run that asks a person ends, and another one continues it; that one is waited for, as long as the answer may take.
        Raises `NotFound` if the run that asks is deleted.
        """
        engine = self._engine
        try:
            handle = await _follow(engine, await engine.attach(work.run_id))
        except NotFound:
            handle = await engine.start(await make_spec())
            await handle.wait()
        while (run := handle.run).reason is Reason.APPROVAL_NEEDED:
            await work.waiting(tuple([question.id for question in list_questions(run)]))
            with move_on_after(run.spec.limits.approval_seconds) as limit:
                handle = await _find_continuation(engine, run.spec.id)
            if limit.cancelled_caught:
                break
            await work.waiting(())
            handle = await _follow(engine, handle)
        return handle


async def _find_continuation(engine: Engine, run_id: str) -> Handle:
    """The run that continues with a person's answer, once there is one. Raises `NotFound` if the paused run is deleted."""
    while True:
        with suppress(NotFound):
            return await engine.attach(continuing_id(run_id))
        await engine.store.load(run_id)
        await sleep(LOOK_SECONDS)


async def _follow(engine: Engine, handle: Handle) -> Handle:
    while not handle.is_live and not handle.run.has_ended:
        if not await engine.is_driven(handle.id):
            handle = await engine.resume(handle.id)
            break
        await sleep(LOOK_SECONDS)
        handle = await engine.attach(handle.id)
    if not handle.run.has_ended:
        await handle.wait()
    return handle


def _make_spec(tool: ToolDefinition, arguments: Json, work: StepWork) -> RunSpec:
    order = work.order
    return RunSpec(
        id=work.run_id,
        model=STEP_MODEL,
        input=(user(f"Step `{work.key}` of workflow `{order.workflow}`, run `{order.id}`."),),
        tools=(tool,),
        limits=Limits(max_turns=2, max_tool_calls=1, tool_output_chars=MOST_CHARS),
        dictated=StepCall(tool.name, arguments),
        background=True,
        metadata=work.metadata,
        tenant=order.tenant,
        caller=order.caller,
        # One container for all steps of a run.
        scope=order.id,
        traceparent=order.traceparent,
    )


def _find_end(handle: Handle) -> ToolEnded:
    """The end of a step's call. Raises `StepError` if it was refused, failed, or was not made."""
    run = handle.run
    if run.status == "requires_action":
        raise StepError("nobody has approved this call in time, or its client has to perform it", may_repeat=False)
    ended = next((record.event for record in handle.log if isinstance(record.event, ToolEnded)), None)
    if ended is not None and ended.outcome == "interrupted":
        raise StepError(
            "the process ended while the call was in progress: its outcome is unknown. Check what it did before running it "
            "again; a step that may run twice sets `repeatable: true`",
            may_repeat=False,
        )
    if ended is not None and not ended.is_error:
        return ended
    found = next((item for item in run.output if isinstance(item, FunctionCallOutput)), None)
    if found is None:
        why = run.error.message if run.error is not None else run.status
        raise StepError(f"the call was not made: {why}")
    raise StepError(text_of(found.output))


def _body(output: str | tuple[Part, ...]) -> Any:
    """The body of a response, which is the last part of the tool's output; JSON is decoded."""
    body = output if isinstance(output, str) else text_of(output[-1:])
    try:
        return parse_json(body)
    except ValueError:
        return body


def _variable(name: str, value: object) -> str:
    """The value as text. Raises `StepError` for a NUL character."""
    if "\0" in (text := _text(value)):
        raise StepError(f"the input `{name}` has a NUL character, which no variable of the shell can hold", may_repeat=False)
    return text


def _text(value: object) -> str:
    return value if isinstance(value, str) else to_json(value)


class StepProvider(ProviderWrapper):
    """Makes the calls of steps, and passes all other requests on to the provider behind it."""

    def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
        if request.step_call is not None:
            return _make_call(request, request.step_call)
        if request.model == STEP_MODEL:
            raise Refused(f"the model `{STEP_MODEL}` is for the steps of workflows; name another one")
        return self._provider.stream(request)


async def _make_call(request: ModelRequest, step: StepCall) -> AsyncGenerator[ModelEvent, None]:
    if any(isinstance(item, FunctionCallOutput) for item in request.items):
        said = assistant("Done.", id=derive_id("msg", request.run_id))
        yield ItemStarted(replace(said, content=(), status="in_progress"))
        yield TextDelta(said.id, said.text)
        yield ItemDone(said)
        yield TurnEnded(usage=Usage())
        return
    call = FunctionCall(derive_id("call", request.run_id), step.name, to_json(step.arguments), id=derive_id("fc", request.run_id))
    yield ItemStarted(replace(call, arguments="", status="in_progress"))
    yield ArgumentsDelta(call.id, call.arguments)
    yield ItemDone(call)
    yield TurnEnded(usage=Usage())
