"""The policies that every engine has, whatever is configured: run limits, known and allowed tools, arguments, caller scopes,
tool status, approval, and who performs the call; and the check of an answer's format."""

from collections.abc import Callable, Sequence

import msgspec
from msgspec import UNSET

from mainspring.core.errors import InvalidRequest, NotFound
from mainspring.core.items import Json, ServerTool, ToolDefinition, parse_arguments
from mainspring.core.rules import excess
from mainspring.core.run import Call, Run
from mainspring.engine.policy_order import PolicySlots
from mainspring.ports import Allow, Ask, Client, Deny, QuickPolicy, ToolExecutor, Verdict
from mainspring.tools.contract import EXECUTE, has_tool_scope
from mainspring.tools.declarations import find_served_tool, list_other_names
from mainspring.tools.schema import Validators

Validate = Callable[[ToolDefinition, Json], Sequence[str]]


def fill_standard_slots(executors: Sequence[ToolExecutor]) -> PolicySlots:
    """Returns the policies that need no configuration, for an engine whose tools these executors perform."""
    return {
        "limits": (WithinLimits(),),
        "known tool": (KnownTool(),),
        "allowed_tools": (AllowedTools(),),
        "arguments": (ValidArguments(Validators().errors),),
        "caller scope": (CallerScopes(),),
        "approval": (ApprovalPolicy(),),
        "client": (HandOff(executors),),
    }


class WithinLimits(QuickPolicy):
    """Denies calls beyond `max_tool_calls_per_turn`, `max_tool_calls` and `max_repeats`; the last two end the run."""

    name = "limits"

    async def judge(self, call: Call, run: Run) -> Verdict:
        over = excess(run, call)
        return Allow() if over is None else Deny(over.message, over.stop)


class KnownTool(QuickPolicy):
    """Denies calls to tools that the run does not have, naming those it has."""

    name = "known_tool"

    async def judge(self, call: Call, run: Run) -> Verdict:
        if run.spec.tool(call.item.name) is not None:
            return Allow()
        names = ", ".join([tool.name for tool in run.spec.tools if isinstance(tool, ToolDefinition)])
        return Deny(f"There is no tool `{call.item.name}`. Available: {names or 'none'}.")


class AllowedTools(QuickPolicy):
    """Denies calls outside `tool_choice`: the model sees every tool, but may call only the allowed ones."""

    name = "allowed_tools"

    async def judge(self, call: Call, run: Run) -> Verdict:
        choice = run.spec.tool_choice
        if choice.mode == "none":
            return Deny("Tools are switched off for this request.")
        if choice.allowed is None or call.item.name in choice.allowed:
            return Allow()
        return Deny(f"The tool `{call.item.name}` is not allowed here. Allowed: {', '.join(choice.allowed)}.")


class ValidArguments(QuickPolicy):
    """Denies server-run calls whose arguments are not JSON or do not fit the schema, listing every error.

    A call of the client's own function goes back to the model, once in a run that `checks_calls` and if no other call waits for
    the client. Then it passes as it is: the client knows its functions better than we do.
    """

    name = "valid_arguments"

    def __init__(self, validate: Validate) -> None:
        self._validate = validate

    async def judge(self, call: Call, run: Run) -> Verdict:
        tool = run.spec.tool(call.item.name)
        if tool is None or (tool.kind == "function" and not self._may_return(tool, call, run)):
            return Allow()
        try:
            arguments = parse_arguments(call.item.arguments)
        except ValueError as error:
            return Deny(f"Invalid call of `{tool.name}`: {error}.", is_returned=tool.kind == "function")
        try:
            problems = self._validate(tool, arguments)
        except InvalidRequest:
            if tool.kind != "function":
                raise
            return Allow()  # of a schema that is none, nobody knows what fits
        if not problems:
            return Allow()
        return Deny(f"Invalid arguments for `{tool.name}`: {'; '.join(problems)}.", is_returned=tool.kind == "function")

    def _may_return(self, tool: ToolDefinition, call: Call, run: Run) -> bool:
        if not run.spec.checks_calls or run.returned or tool.form is not UNSET or not isinstance(tool.parameters, dict):
            return False
        others = [run.spec.tool(each.item.name) for each in run.open_calls if each.item.call_id != call.item.call_id]
        return all(other is None or other.kind != "function" for other in others)


class CallerScopes(QuickPolicy):
    """Denies calls that run here unless the caller has the scope `tools:execute`, or `tools:execute:NAME` for this tool. For one
    of the operator's MCP servers, NAME is what the model calls it, or `server__tool`."""

    name = "caller_scopes"

    async def judge(self, call: Call, run: Run) -> Verdict:
        scopes, tool = run.spec.caller.scopes, find_served_tool(call, run)
        # A search looks only at what the request itself has declared.
        if scopes is None or tool is None or tool.form == "server_tool_search":
            return Allow()
        # A stranger's server may call itself and its tools anything.
        is_own = isinstance(tool.server, ServerTool) and not tool.server.at
        names = (tool.name, *(list_other_names(tool)[1:] if is_own else ()))
        if has_tool_scope(scopes, *names):
            return Allow()
        return Deny(f"The caller has neither the scope `{EXECUTE}` nor `{EXECUTE}:{tool.name}`; go on without `{tool.name}`.")


class ToolStatus(QuickPolicy):
    """Denies tools that the registry has blocked, by whichever of their names, and takes note of deprecated ones.

    `status` and `reason` are the registry's; `status` raises `NotFound` for what it does not keep."""

    name = "tool_status"

    def __init__(self, status: Callable[[str], str], reason: Callable[[str], str] = lambda name: "") -> None:
        self._status, self._reason = status, reason

    def find_status(self, name: str) -> str | None:
        try:
            return self._status(name)
        except NotFound:
            return None

    async def judge(self, call: Call, run: Run) -> Verdict:
        if (tool := find_served_tool(call, run)) is None:
            return Allow()
        note = Allow()
        for name in dict.fromkeys((tool.name, *list_other_names(tool))):
            if (status := self.find_status(name)) is None:
                continue
            why = f" ({reason})" if (reason := self._reason(name)) else ""
            if status not in ("active", "deprecated"):
                return Deny(f"The registry has the tool `{name}` as {status}{why}: it is not to be used. Use another one.")
            if status == "deprecated":
                note = Allow(f"The tool `{name}` is deprecated{why}; look for another one.")
        return note


class ApprovalPolicy(QuickPolicy):
    """Asks a person about every call of a tool that was declared to need it."""

    name = "approval"

    async def judge(self, call: Call, run: Run) -> Verdict:
        tool = run.spec.tool(call.item.name)
        if tool is None or not tool.asks:
            return Allow()
        return Ask(f"`{tool.name}` is to be called, and needs a person's approval.")


class HandOff(QuickPolicy):
    """Hands the client's tools to the client, and denies a server tool that nobody here can perform."""

    name = "hand_off"

    def __init__(self, executors: Sequence[ToolExecutor]) -> None:
        self._executors = executors

    async def judge(self, call: Call, run: Run) -> Verdict:
        tool = run.spec.tool(call.item.name)
        if tool is None:
            return Deny(f"There is no tool `{call.item.name}`.")
        if tool.kind == "function":
            return Client()
        if any(executor.can_execute(tool) for executor in self._executors):
            return Allow()
        return Deny(f"The tool `{tool.name}` cannot be performed on this server at the moment.")


class AnswerFormatCheck:
    """Finds fault with an answer that is not in the form that `text.format` asks for: JSON, and fitting its schema.

    Backends are told of the form, but few can be held to it. `strict: false` asks for the effort alone, and gets it.
    """

    name = "text_format"

    def __init__(self, validate: Validate) -> None:
        self._validate = validate

    def flaw(self, run: Run) -> str | None:
        match (run.spec.sampling.text or {}).get("format"):
            case {"type": "json_object"}:
                schema: Json = {"type": "object"}
            case {"type": "json_schema", "schema": dict(schema), **rest} if rest.get("strict") is not False:
                pass
            case _:
                return None
        try:
            answer = msgspec.json.decode(run.text)
        except (msgspec.DecodeError, RecursionError) as error:
            why = "some servers drop a schema without a word; the model is told of it in words next time"
            return f"the answer is not the JSON that `text.format` asks for: {error}; {why}"
        problems = self._validate(ToolDefinition("text.format", parameters=schema), answer)
        return f"the answer does not fit the schema of `text.format`: {'; '.join(problems)}" if problems else None
