"""The tool `shell`: a command line in the container of the conversation, shown while it runs."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from pathlib import PurePosixPath
from shlex import quote
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from mainspring.core.errors import CallerError, InvalidRequest, SandboxError
from mainspring.core.items import Effect, Json, Purpose
from mainspring.tools.builtin.containers import Container, Containers, container_of
from mainspring.tools.builtin.progress_lines import Lines
from mainspring.tools.contract import ToolContext, ToolResult
from mainspring.tools.sandbox.lease import gather
from mainspring.tools.sandbox.sandbox_port import Chunk, Exit, Result
from mainspring.tools.schema import REF, inlined

DEFAULT_MS, LONGEST_MS = 60_000, 600_000
# A call may have to wait for its container, or for one to be made.
WAIT_SECONDS = 60.0


class Arguments(Struct, frozen=True, forbid_unknown_fields=True):
    command: Annotated[str, Meta(min_length=1, description="The command line, as for bash: pipes, redirections, several lines.")]
    timeout_ms: Annotated[
        int, Meta(ge=1, le=LONGEST_MS, description="Milliseconds after which the command is stopped, with all it started.")
    ] = DEFAULT_MS
    working_dir: Annotated[str, Meta(description="Folder to run in, relative to the workspace, which is `.` itself.")] = "."


class Shell:
    """Runs commands. How one ended is for the model to read; an error is only what could not be run or was stopped."""

    name = "shell"
    description = (
        "Runs a command line with bash in a sandbox and returns its output and exit code. Files in the workspace stay for later "
        "calls; variables, the current folder and background processes do not. Of a long output only the beginning and the end "
        "are shown; write it to a file to look at the rest."
    )
    purposes: dict[str, Purpose] = {"command": "command"}  # noqa: RUF012 (read only)
    repeatable = False
    timeout = LONGEST_MS / 1000 + WAIT_SECONDS

    def __init__(self, containers: Containers) -> None:
        self._containers = containers
        self.effects = effects_in(containers)

    @property
    def parameters_schema(self) -> Json:
        (root,), components = msgspec.json.schema_components([Arguments], ref_template=REF + "{name}")
        return inlined(root, components)

    async def execute(self, params: Json, context: ToolContext) -> ToolResult:
        try:
            asked = msgspec.convert(params, Arguments, strict=False)
            line = _line(asked)
            async with self._containers.use(context.tenant, container_of(context)) as container:
                news = container.news()
                return answer(news, await _run(container, line, asked.timeout_ms / 1000, context))
        except (CallerError, SandboxError) as error:
            return ToolResult.fail(error.message)
        except msgspec.ValidationError as error:
            return ToolResult.fail(str(error))


def effects_in(containers: Containers) -> tuple[Effect, ...]:
    """What code in a container can do to the world."""
    return ("read", "write", "execute", "network") if containers.spec.network else ("read", "write", "execute")


def is_stopped(exit: Exit) -> bool:
    """Whether the program was not left to its own end."""
    return exit.reason not in ("exited", "signal")


def answer(news: str, result: Result) -> ToolResult:
    ending = "[exit code 0]" if result.exit == Exit(0) else ""
    text = "\n".join([part for part in (news, result.text, ending) if part])
    data: Json = {"exit_code": result.exit.code, "before": f"{news}\n" if news else "", "after": ending}
    return ToolResult(not is_stopped(result.exit), text, text if is_stopped(result.exit) else "", data)


def _line(asked: Arguments) -> str:
    if "\0" in asked.command + asked.working_dir:
        raise InvalidRequest("a command line cannot hold the character NUL; write it as an escape, such as printf '\\0'")
    folder = PurePosixPath(asked.working_dir)
    if folder.is_absolute() or ".." in folder.parts:
        raise InvalidRequest(f"`{asked.working_dir:.200}` is no folder of the workspace; give one relative to it, without `..`")
    # On a line of its own: the command may end in a here-document.
    return asked.command if not folder.parts else f"cd -- {quote(str(folder))} || exit\n{asked.command}"


async def _run(container: Container, line: str, seconds: float, context: ToolContext) -> Result:
    with Lines(context.progress) as lines:
        return await gather(_shown(container.lease.run(line, language="shell", timeout=seconds), lines))


async def _shown(output: AsyncGenerator[Chunk | Exit, None], lines: Lines) -> AsyncGenerator[Chunk | Exit, None]:
    async with aclosing(output):
        async for part in output:
            if isinstance(part, Chunk):
                lines.add(part)
            yield part
