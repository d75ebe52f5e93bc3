"""Tool calls of steps: each a run of the engine, see `dictation`."""

import shlex
from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from mainspring.core.errors import PeerError
from mainspring.core.events import ToolEnded
from mainspring.core.items import FunctionCallOutput, Json, Part, ToolDefinition, text_of, user
from mainspring.core.spec import STEP_MODEL, Limits, RunSpec, StepCall
from mainspring.engine.engine import Engine, Handle
from mainspring.features.workflows.attend import Waiting, follow_run
from mainspring.features.workflows.expressions import resolve_values
from mainspring.features.workflows.workflow_definition import HttpRequest, RunCommand
from mainspring.features.workflows.workflow_run import WorkflowOrder

MOST_CHARS: Final = 500_000
COMMAND_SECONDS: Final = 60.0
LONGEST_COMMAND: Final = 600.0
SAFE: Final = ("GET", "HEAD")


class StepError(PeerError):
    """A step could not do its work. `may_repeat` says that another attempt can do no harm that was not ordered."""

    code = "step_failed"

    def __init__(self, message: str, *, may_repeat: bool = True) -> None:
        super().__init__(message)
        self.may_repeat = may_repeat


class StepWork(Struct, frozen=True):
    """What a step is about to do: for which order, as which run of the engine, with what names for its expressions. `waiting` is
    told whenever it waits for a person."""

    order: WorkflowOrder
    key: str
    run_id: str
    names: Json
    waiting: Waiting


class StepCalls:
    """Performs calls. `definitions` are the tools that the engine has, those that no model is told of among them."""

    def __init__(self, engine: Engine, definitions: Callable[[], Sequence[ToolDefinition]]) -> None:
        self._engine = engine
        self._definitions = definitions

    async def command(self, step: RunCommand, work: StepWork) -> Json:
        """Runs the command. Raises `StepError` unless it ends with exit code 0."""
        given = await resolve_values({"inputs": step.inputs, "working_dir": step.working_dir}, work.names)
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

    async def request(self, step: HttpRequest, work: StepWork, idempotency_key: str) -> Json:
        """Sends the request. Raises `StepError` for no answer, and for a status of 400 and above."""
        given = await resolve_values({"headers": step.headers, "url": step.url, "body": step.body}, work.names)
        headers = {name: _text(value) for name, value in given["headers"].items()}
        if step.method not in SAFE and not any(name.lower() == "idempotency-key" for name in headers):
            headers = {**headers, "Idempotency-Key": idempotency_key}
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
        spec = self._spec(replace(tool, repeatable=repeatable), arguments, work)

        async def start() -> Handle:
            return await self._engine.start(spec)

        return _find_end(await follow_run(self._engine, work.run_id, start, work.waiting))

    def _spec(self, tool: ToolDefinition, arguments: Json, work: StepWork) -> RunSpec:
        order = work.order
        return RunSpec(
            id=work.run_id,
            model=STEP_MODEL,
            input=(user(f"Step `{work.key}` of workflow `{order.workflow}`, run `{order.id}`."),),
            tools=(tool,),
            limits=Limits(max_turns=2, max_tool_calls=1, tool_output_chars=MOST_CHARS),
            dictated=StepCall(tool.name, arguments),
            background=True,
            metadata={"workflow": order.workflow, "workflow_run": order.id, "step": work.key[:500]},
            tenant=order.tenant,
            caller=order.caller,
            # One container for all steps of a run.
            scope=order.id,
            traceparent=order.traceparent,
        )


def _find_end(handle: Handle) -> ToolEnded:
    """How the call of a step ended. Raises `StepError` for one that was refused, failed, or was not made."""
    run = handle.run
    if run.status == "requires_action":
        raise StepError("nobody has approved this call in time, or its client has to perform it", may_repeat=False)
    ended = next((record.event for record in handle.log if isinstance(record.event, ToolEnded)), None)
    if ended is not None and ended.outcome == "interrupted":
        raise StepError(
            "it was begun, and then the process ended: its outcome is unknown. Look what it did before it is done again; a step "
            "that may be done twice says `repeatable: true`",
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
    """The body of an answer, the last part of what the tool gives; JSON is decoded."""
    body = output if isinstance(output, str) else text_of(output[-1:])
    try:
        return msgspec.json.decode(body)
    except msgspec.DecodeError:
        return body


def _variable(name: str, value: object) -> str:
    """Raises `StepError` for what no variable can hold."""
    if "\0" in (text := _text(value)):
        raise StepError(f"the input `{name}` has a NUL character, which no variable of the shell can hold", may_repeat=False)
    return text


def _text(value: object) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()
