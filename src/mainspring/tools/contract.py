"""The interface of a tool: a name, a description and `execute`, with its context and its result.

A tool declares more in optional class attributes. `effects` is what it does to the world, `repeatable` promises that calls are
idempotent, `polls` that they are made again and again until something has changed, `timeout` is in seconds, `result_limit` in
characters.

A tool with several operations takes an argument `operation` and declares the effects of each in `operation_effects`, so that
reading a file is not judged like writing one. `purposes` names the parameters that are shell commands, paths and URLs, which have
policies of their own.
"""

from collections.abc import Callable, Collection
from pathlib import Path
from typing import Final, Protocol, Self, runtime_checkable

from msgspec import Struct

from mainspring.core.items import Json, Part

EXECUTE: Final = "tools:execute"
"""The scope for all tools; with `:NAME`, for one."""

Output = str | tuple[Part, ...]


def has_tool_scope(scopes: Collection[str], *names: str) -> bool:
    """Whether one of the scopes is for all tools, or for a tool by one of its names."""
    return not {"*", EXECUTE, *[f"{EXECUTE}:{name}" for name in names]}.isdisjoint(scopes)


def _ignore_progress(text: str) -> None:
    pass


class ToolContext(Struct, frozen=True):
    """What a call may touch, and for whom.

    A list that is None restricts nothing; an empty one permits nothing. The registry holds every tool to the scopes and the
    commands: a command is a program, or a program and its first words, and everything that a line runs must be listed. Paths and
    domains permit what lies below them; tools that open files and connections hold to those. Without a `working_dir` no file is
    touched. `progress` shows a line of text while the tool works. `tenant`, `scope` and `call_id` are as in
    `ports.CallContext`.
    """

    user_scopes: tuple[str, ...] | None = None
    command_allowlist: tuple[str, ...] | None = None
    path_allowlist: tuple[str, ...] | None = None
    domain_allowlist: tuple[str, ...] | None = None
    working_dir: Path | None = None
    progress: Callable[[str], None] = _ignore_progress
    run_id: str = ""
    tenant: str = ""
    scope: str = ""
    call_id: str = ""


class ToolResult(Struct, frozen=True):
    """Success with an output, or failure with an error that the model reads. `data` is the result as data, beside the text."""

    success: bool
    output: Output = ""
    error: str = ""
    data: Json | None = None

    @classmethod
    def ok(cls, output: Output = "") -> Self:
        return cls(True, output)

    @classmethod
    def fail(cls, error: str) -> Self:
        return cls(False, error=error)


@runtime_checkable
class Tool(Protocol):
    """Executes calls. Whatever `execute` raises becomes a failed result. It is cancelled on timeout."""

    @property
    def name(self) -> str: ...

    @property
    def description(self) -> str: ...

    async def execute(self, params: Json, context: ToolContext) -> ToolResult: ...


@runtime_checkable
class SchemaAwareTool(Tool, Protocol):
    """A tool that declares its parameters as a JSON Schema. `execute` is only called with arguments that match it."""

    @property
    def parameters_schema(self) -> Json: ...
