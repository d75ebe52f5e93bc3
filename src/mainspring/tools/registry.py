"""The registry: every tool of the engine, its metadata, and the one way to execute it.

A tool is code; a `ToolEntry` is its metadata. Entries come with the code (`register`), from installed packages
(`discover`) and from the operator's YAML files (`load_definitions`), in any order. What the operator says goes before what the
code says, field by field. So the schema in force is the entry's, else the tool's own, else none.
"""

import inspect
from collections.abc import Iterable, Iterator, Mapping
from logging import getLogger
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
from msgspec import Struct
from msgspec.structs import replace

from mainspring import ports
from mainspring.core.errors import DelegateToClient, InvalidRequest, NotFound
from mainspring.core.items import Effect, InputText, Json, OutputText, Part, ToolDefinition, ToolKind
from mainspring.late_module import LateModule
from mainspring.ports import CallContext, ToolCall
from mainspring.tools.contract import EXECUTE, Output, Tool, ToolContext, ToolResult, has_tool_scope
from mainspring.tools.declarations import read_texts
from mainspring.tools.entries import Status, ToolEntry, ToolEntryFolders, describe_entry, merge_entries, read_entry
from mainspring.tools.functions import NAME, Function, FunctionTool, check_definition
from mainspring.tools.schema import Validator
from mainspring.tools.scope import AllowedBeginning, CommandScope, judge_command
from mainspring.tools.shell_reader import read_line

# Takes a while, and most engines look for none.
if TYPE_CHECKING:
    from importlib import metadata
else:
    metadata = LateModule("importlib.metadata")

log = getLogger(__name__)

GROUP = "mainspring.tools"


class Discovery(Struct, frozen=True):
    """What installed packages offered: the names of the tools registered, and what was wrong with the others."""

    found: tuple[str, ...]
    problems: tuple[str, ...]


class Registry:
    """Holds tools and executes their calls; `context` says what they may touch."""

    kind: ToolKind = "builtin"

    def __init__(self, tools: Iterable[Tool | Function] = (), *, context: ToolContext | None = None) -> None:
        self._context = context or ToolContext()
        self._given: dict[str, ToolEntry] = {}
        self._defined: Mapping[str, ToolEntry] = {}
        self._folders: ToolEntryFolders | None = None
        self._tools: dict[str, _Known] = {}
        for tool in tools:
            self.register(tool)

    def register(self, tool: Tool | Function, entry: ToolEntry | None = None) -> None:
        """Adds a tool, or a function as one. Raises `TypeError` or `ValueError` for what cannot be a tool."""
        made = _as_tool(tool)
        if not NAME.fullmatch(made.name):
            raise ValueError(f"a tool cannot be called `{made.name}`; name it with up to 64 letters, digits, `_` and `-`")
        if made.name in self._given:
            raise ValueError(f"two tools are called `{made.name}`; give one of them another name")
        if entry is not None and entry.name != made.name:
            raise ValueError(f"the entry of tool `{made.name}` is for `{entry.name}`; give both one name")
        given = merge_entries(entry, read_entry(made))
        self._tools[made.name] = _Known(made, given, self._defined.get(made.name))
        self._given[made.name] = given

    def get(self, name: str) -> Tool | None:
        known = self._known.get(name)
        return None if known is None else known.tool

    @property
    def entries(self) -> tuple[ToolEntry, ...]:
        """Every entry, also those that are only defined and have no code."""
        return tuple([known.entry for known in self._known.values()])

    @property
    def definitions(self) -> tuple[ToolDefinition, ...]:
        """What a model may be offered: every tool with code that is not blocked."""
        return tuple(
            [known.definition for known in self._known.values() if known.tool is not None and known.entry.status != "blocked"]
        )

    def status(self, name: str) -> Status:
        """Raises `NotFound`."""
        return self._find(name).entry.status

    def reason(self, name: str) -> str:
        """Why the tool has its status, empty if no reason is given. Raises `NotFound`."""
        return self._find(name).entry.reason or ""

    def describe(self, name: str) -> Json:
        """The tool in OpenAI's function form; made once. Raises `NotFound`."""
        return self._find(name).description

    def can_execute(self, tool: ToolDefinition) -> bool:
        return tool.kind == self.kind and self.get(tool.name) is not None

    async def execute(self, call: ToolCall, context: CallContext) -> ports.ToolResult:
        """Like `validated_execute`, but exceptions of the tool propagate, and the caller enforces its timeout."""
        told = replace(
            self._context,
            progress=context.progress,
            run_id=context.run_id,
            tenant=context.tenant,
            scope=context.scope,
            call_id=call.id,
        )
        result = await self._perform(call.name, call.parsed, told)
        output = result.output if result.success else result.output or result.error
        return ports.ToolResult(call.id, output, not result.success, data=result.data)

    async def validated_execute(self, name: str, params: Json, context: ToolContext) -> ToolResult:
        """The result of a call. Never raises: a tool that is missing, blocked, late or broken, and arguments that do not match
        its schema, become failed results."""
        known = self._known.get(name)
        seconds = known.entry.timeout if known is not None else None
        try:
            with anyio.move_on_after(seconds):
                return await self._perform(name, params, context)
        except DelegateToClient:
            return ToolResult.fail(f"The tool `{name}` wants the client to perform this call; there is none here.")
        except Exception as error:
            log.debug("tool %s failed", name, exc_info=True)
            return ToolResult.fail(f"The tool `{name}` failed: {type(error).__name__}: {error}")
        return ToolResult.fail(f"The tool `{name}` was stopped: it took longer than {seconds:g} s.")

    def discover(self, group: str = GROUP) -> Discovery:
        """Registers what installed packages offer under this entry point group: tools, their classes, or functions.

        One that cannot be used is logged and reported; the others are registered.
        """
        found: list[str] = []
        problems: list[str] = []
        for point in sorted(metadata.entry_points(group=group), key=lambda point: point.name):
            try:
                found.append(self._register_entry_point(point))
            # Loading runs foreign code, which may raise anything.
            except Exception as error:
                problems.append(f"entry point `{point.name}` ({point.value}) is no tool: {type(error).__name__}: {error}")
                log.warning("%s", problems[-1])
        return Discovery(tuple(found), tuple(problems))

    def load_definitions(self, folder: Path) -> tuple[str, ...]:
        """Loads the entries of the folder's YAML files, all of them or none, and returns their names. Files that change are
        reloaded; a broken version does not replace the one before.

        Raises `InvalidRequest` with every error, each with its file and line.
        """
        before = () if self._folders is None else self._folders.folders
        if not folder.is_dir():
            raise InvalidRequest(f"there is no folder `{folder}` with tool definitions")
        if folder.resolve() in before:
            raise InvalidRequest(f"{folder}: these tool definitions are there already; load each folder once")
        folders = ToolEntryFolders((*before, folder), lambda entry: self._combine(entry.name, entry))
        if folders.problems:
            raise InvalidRequest("the tool definitions are not right: " + "; ".join(folders.problems))
        self._folders = folders
        return tuple([name for name in folders.definitions if name not in self._defined])

    @property
    def _known(self) -> "dict[str, _Known]":
        """Every tool and entry, with the definitions as their files are now."""
        if self._folders is not None and (defined := self._folders.definitions) is not self._defined:
            for name in {**self._defined, **defined}:
                if name in defined or name in self._given:
                    self._tools[name] = self._combine(name, defined.get(name))
                else:
                    del self._tools[name]
            self._defined = defined
        return self._tools

    def _combine(self, name: str, defined: ToolEntry | None) -> "_Known":
        """Raises `ValueError` if the definition cannot be one of the tool."""
        known = self._tools.get(name)
        return _Known(None if known is None else known.tool, self._given.get(name), defined)

    def _register_entry_point(self, point: "metadata.EntryPoint") -> str:
        loaded = point.load()
        tool = _as_tool(loaded() if inspect.isclass(loaded) else loaded)
        package, version = (point.dist.name, point.dist.version) if point.dist is not None else (None, None)
        self.register(tool, ToolEntry(name=tool.name, source=package, version=version))
        return tool.name

    def _find(self, name: str) -> "_Known":
        if (known := self._known.get(name)) is None:
            raise NotFound(self._explain_missing(name))
        return known

    def _explain_missing(self, name: str) -> str:
        names = ", ".join([f"`{known.name}`" for known in self.definitions])
        return f"There is no tool `{name}`. Available: {names or 'none'}."

    async def _perform(self, name: str, params: Json, context: ToolContext) -> ToolResult:
        known = self._known.get(name)
        if known is None or known.tool is None:
            defined = f" It is defined in {known.entry.source}, but no code is registered for it." if known is not None else ""
            return ToolResult.fail(self._explain_missing(name) + defined)
        if known.entry.status == "blocked":
            why = f": {known.entry.reason}" if known.entry.reason else ""
            return ToolResult.fail(f"The tool `{name}` is not performed: its registry entry has the status `blocked`{why}.")
        if problems := known.errors(params):
            return ToolResult.fail(f"Invalid arguments for `{name}`: {'; '.join(problems)}.")
        if (refusal := await _find_refusal(known.definition, params, context)) is not None:
            return ToolResult.fail(f"The tool `{name}` is not performed: {refusal}.")
        result: object = await known.tool.execute(params, context)
        if not isinstance(result, ToolResult):
            return ToolResult.fail(f"The tool `{name}` returned {type(result).__name__} instead of a result.")
        return replace(result, output=_limit_output(result.output, known.entry.result_limit))


class _Known:
    """A tool with its entry in force. Raises `ValueError` if the entry cannot be one of a tool."""

    def __init__(self, tool: Tool | None, given: ToolEntry | None, defined: ToolEntry | None) -> None:
        self.tool = tool
        self.entry = merge_entries(defined, given)
        self.description = describe_entry(self.entry)
        # Effects that the operator names are those of every operation.
        is_overruled = defined is not None and defined.effects is not None
        operations: Mapping[str, tuple[Effect, ...]] = {} if is_overruled else getattr(tool, "operation_effects", {})
        self.definition = check_definition(
            ToolDefinition(
                name=self.entry.name,
                description=self.description["description"],
                parameters=self.entry.schema,
                kind="builtin",
                repeatable=bool(self.entry.repeatable),
                polls=bool(self.entry.polls),
                effects=self.entry.effects or (),
                timeout=self.entry.timeout,
                operations=dict(operations),
                purposes=dict(getattr(tool, "purposes", {})),
            )
        )
        self._validator: Validator | None = None

    def errors(self, params: Json) -> list[str]:
        if self.entry.schema is None:
            return []
        # Compiled at the first call: the library takes longer to import than most commands need to start.
        self._validator = self._validator or Validator(self.definition)
        return self._validator.errors(params)


async def _find_refusal(tool: ToolDefinition, params: Json, context: ToolContext) -> str | None:
    """Why the context does not permit this call, by its scopes and its commands; None if it does."""
    if context.user_scopes is not None and not has_tool_scope(context.user_scopes, tool.name):
        return f"the context has neither the scope `{EXECUTE}` nor `{EXECUTE}:{tool.name}`"
    if context.command_allowlist is None:
        return None
    scope = CommandScope(tuple([AllowedBeginning(tuple(entry.split())) for entry in context.command_allowlist if entry.strip()]))
    listed = ", ".join([f"`{entry}`" for entry in context.command_allowlist]) or "none"
    if "execute" in tool.effects and "command" not in tool.purposes.values():
        return f"it runs programs without naming them, and only some are allowed: {listed}"
    for text in read_texts(tool, params, "command"):
        line = await read_line(text)
        found = [objection.why for words in line.commands if (objection := judge_command(words, scope)) is not None]
        for why in (*line.uncertainties, *found):
            return f"{why}; allowed: {listed}"
    return None


def _as_tool(tool: object) -> Tool:
    if inspect.isclass(tool):
        raise TypeError(f"`{tool.__name__}` is a class; register an instance of it: {tool.__name__}()")
    if isinstance(tool, Tool):
        return tool
    if callable(tool):
        return FunctionTool(tool)
    raise TypeError(f"{type(tool).__name__} is neither a tool nor a function; a tool has name, description and execute")


def _limit_output(output: Output, most: int | None) -> Output:
    if most is None:
        return output
    return _cut(output, most) if isinstance(output, str) else tuple(_limit_parts(output, most))


def _limit_parts(parts: Iterable[Part], most: int) -> Iterator[Part]:
    for part in parts:
        yield replace(part, text=_cut(part.text, most)) if isinstance(part, InputText | OutputText) else part


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[:most]}\n[... {len(text) - most} characters left out ...]"
