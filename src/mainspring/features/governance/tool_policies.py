"""Is this a tool of the run, is it allowed, are its arguments right, and who performs it?"""

from collections.abc import Callable, Sequence

from mainspring.core.items import ToolDefinition, parsed_arguments
from mainspring.core.run import Call, Run
from mainspring.ports import Allow, Ask, Client, Deny, ToolExecutor, Verdict

Validate = Callable[[ToolDefinition, dict[str, object]], Sequence[str]]


class KnownTool:
    """Denies calls to tools that the run does not have, naming those it has."""

    name = "known_tool"
    never_waits = True

    async def judge(self, call: Call, run: Run) -> Verdict:
        if run.spec.tool(call.item.name) is not None:
            return Allow()
        names = ", ".join([tool.name for tool in run.spec.tools if isinstance(tool, ToolDefinition)])
        return Deny(f"There is no tool `{call.item.name}`. Available: {names or 'none'}.")


class AllowedTools:
    """Denies calls outside `tool_choice`: the model sees every tool, but may call only the allowed ones."""

    name = "allowed_tools"
    never_waits = True

    async def judge(self, call: Call, run: Run) -> Verdict:
        choice = run.spec.tool_choice
        if choice.mode == "none":
            return Deny("Tools are switched off for this request.")
        if choice.allowed is None or call.item.name in choice.allowed:
            return Allow()
        return Deny(f"The tool `{call.item.name}` is not allowed here. Allowed: {', '.join(choice.allowed)}.")


class ValidArguments:
    """Denies server-run calls whose arguments are not JSON or do not fit the schema, listing every error.

    A client's own calls pass: the client knows its functions better than we do.
    """

    name = "valid_arguments"
    never_waits = True

    def __init__(self, validate: Validate) -> None:
        self._validate = validate

    async def judge(self, call: Call, run: Run) -> Verdict:
        tool = run.spec.tool(call.item.name)
        if tool is None or tool.kind == "function":
            return Allow()
        try:
            arguments = parsed_arguments(call.item.arguments)
        except ValueError as error:
            return Deny(f"Invalid call of `{tool.name}`: {error}.")
        problems = self._validate(tool, arguments)
        return Deny(f"Invalid arguments for `{tool.name}`: {'; '.join(problems)}.") if problems else Allow()


class Approved:
    """Asks a person about every call of a tool that was declared to need it."""

    name = "approval"
    never_waits = True

    async def judge(self, call: Call, run: Run) -> Verdict:
        tool = run.spec.tool(call.item.name)
        if tool is None or not tool.asks:
            return Allow()
        return Ask(f"`{tool.name}` is to be called, and needs a person's approval.")


class HandOff:
    """Hands the client's tools to the client, and denies a server tool that nobody here can perform."""

    name = "hand_off"
    never_waits = True

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
