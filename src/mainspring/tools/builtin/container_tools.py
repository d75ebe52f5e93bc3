"""The tools that work in the container of a conversation: `shell` runs command lines, `code_interpreter` runs Python cells.

How a program ended is for the model to read; a call fails only if the program could not be run, or was stopped.
"""

import asyncio
import re
from base64 import b64encode
from codecs import getincrementaldecoder
from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import aclosing, suppress
from pathlib import PurePosixPath
from shlex import quote
from types import TracebackType
from typing import Annotated, Self

import msgspec
from msgspec import Meta, Struct

from mainspring.core.errors import CallerError, InvalidRequest, OurError
from mainspring.core.items import Effect, InputImage, InputText, Json, Part, Purpose
from mainspring.core.sandbox import OutputChunk, ProgramExit, ProgramResult, Stream, WorkspaceFile
from mainspring.ports import SandboxLease
from mainspring.tools.builtin.containers import Container, Containers, describe_files, find_container_id
from mainspring.tools.contract import ToolContext, ToolResult
from mainspring.tools.images import detect_image_type
from mainspring.tools.sandbox.lease import gather_output
from mainspring.tools.schema import describe_arguments

DEFAULT_MS, LONGEST_MS = 60_000, 600_000
# A call may have to wait for its container, or for one to be made.
WAIT_SECONDS = 60.0
CELL_SECONDS = 60.0
MOST_IMAGES = 4
MOST_IMAGE_BYTES = 2 << 20
# Each piece of progress is an event that is stored, and a program may print a hundred thousand lines in a second.
FLUSH_SECONDS = 0.1
LONGEST_LINE = 2_000

LOST = "[a new interpreter was started: the variables of earlier calls are gone, the files are still there]"

_LACKING = re.compile(r"^ModuleNotFoundError: No module named '([\w.]+)'\s*(?:\[exit code \d+\]\s*)?\Z", re.MULTILINE)
_IMAGE_NAMES = (".png", ".jpg", ".jpeg", ".gif")


class ShellArguments(Struct, frozen=True, forbid_unknown_fields=True):
    command: Annotated[str, Meta(min_length=1, description="The command line, as for bash: pipes, redirections, several lines.")]
    timeout_ms: Annotated[
        int, Meta(ge=1, le=LONGEST_MS, description="Milliseconds after which the command is stopped, with all it started.")
    ] = DEFAULT_MS
    working_dir: Annotated[str, Meta(description="Folder to run in, relative to the workspace, which is `.` itself.")] = "."


class Shell:
    """Runs commands, and shows their output as progress."""

    name = "shell"
    description = (
        "Runs a command line with bash in a sandbox and returns its output and exit code. Files in the workspace stay for later "
        "calls; variables, the current folder and background processes do not. Of a long output only the beginning and the end "
        "are shown; write it to a file to look at the rest."
    )
    parameters_schema = describe_arguments(ShellArguments)
    purposes: dict[str, Purpose] = {"command": "command"}  # noqa: RUF012 (read only)
    repeatable = False
    timeout = LONGEST_MS / 1000 + WAIT_SECONDS

    def __init__(self, containers: Containers) -> None:
        self._containers = containers
        self.effects = _list_effects(containers)

    async def execute(self, params: Json, context: ToolContext) -> ToolResult:
        try:
            asked = msgspec.convert(params, ShellArguments, strict=False)
            line = _build_line(asked)
            async with self._containers.use(context.tenant, find_container_id(context)) as container:
                news = container.take_news()
                with ProgressLines(context.progress) as lines:
                    output = container.lease.run(line, language="shell", timeout=asked.timeout_ms / 1000)
                    result = await gather_output(_show(output, lines))
        except (CallerError, OurError) as error:
            return ToolResult.fail(error.message)
        except msgspec.ValidationError as error:
            return ToolResult.fail(str(error))
        ending = "[exit code 0]" if result.exit == ProgramExit(0) else ""
        text = _join(news, result.text, ending)
        data: Json = {"exit_code": result.exit.code, "before": f"{news}\n" if news else "", "after": ending}
        return ToolResult(not result.exit.is_stopped, text, text if result.exit.is_stopped else "", data)


class CodeInterpreter:
    """Runs cells. Variables and files stay from call to call; images that a cell writes are shown."""

    name = "code_interpreter"
    description = (
        "Runs Python code in a sandbox and returns what it prints and the value of its last expression. Variables and files stay "
        "for later calls. Images that it writes to files (PNG, JPEG, GIF) are shown; other files are named."
    )
    parameters_schema: Json = {  # noqa: RUF012 (read only)
        "type": "object",
        "properties": {"code": {"type": "string", "description": "Python code, of any number of lines."}},
        "required": ["code"],
        "additionalProperties": False,
    }
    repeatable = False

    def __init__(self, containers: Containers, *, seconds: float = CELL_SECONDS) -> None:
        self._containers = containers
        self._seconds = seconds
        self.effects = _list_effects(containers)
        self.timeout = seconds + WAIT_SECONDS

    async def execute(self, params: Json, context: ToolContext) -> ToolResult:
        try:
            async with self._containers.use(context.tenant, find_container_id(context)) as container:
                news = _join(LOST if container.is_state_lost else "", container.take_news())
                result = await container.run_cell(str(params["code"]), self._seconds)
                return await _render_cell(container, news, result)
        except (CallerError, OurError) as error:
            return ToolResult.fail(error.message)


def _list_effects(containers: Containers) -> tuple[Effect, ...]:
    """What code in a container can do to the world."""
    return ("read", "write", "execute", "network") if containers.spec.network else ("read", "write", "execute")


def _join(*texts: str) -> str:
    return "\n".join([text for text in texts if text])


def _build_line(asked: ShellArguments) -> str:
    if "\0" in asked.command + asked.working_dir:
        raise InvalidRequest("a command line cannot hold the character NUL; write it as an escape, such as printf '\\0'")
    folder = PurePosixPath(asked.working_dir)
    if folder.is_absolute() or ".." in folder.parts:
        raise InvalidRequest(f"`{asked.working_dir:.200}` is no folder of the workspace; give one relative to it, without `..`")
    # On a line of its own: the command may end in a here-document.
    return asked.command if not folder.parts else f"cd -- {quote(str(folder))} || exit\n{asked.command}"


async def _show(
    output: AsyncGenerator[OutputChunk | ProgramExit, None], lines: "ProgressLines"
) -> AsyncGenerator[OutputChunk | ProgramExit, None]:
    async with aclosing(output):
        async for part in output:
            if isinstance(part, OutputChunk):
                lines.add(part)
            yield part


async def _render_cell(container: Container, news: str, result: ProgramResult) -> ToolResult:
    images = await _read_images(container.lease, result.files)
    others = [entry for entry in result.files if entry.path not in images]
    written = f"[files written: {describe_files(others)}]" if others else ""
    text = _join(news, result.text, _explain_lack(result), written) or "[no output]"
    output: str | tuple[Part, ...] = (InputText(text), *images.values()) if images else text
    data: Json = {"exit_code": result.exit.code}
    return ToolResult(not result.exit.is_stopped, output, text if result.exit.is_stopped else "", data)


def _explain_lack(result: ProgramResult) -> str:
    """What to do about a package that the sandbox does not have; the operator can, the code cannot."""
    lacks = _LACKING.search(result.text) if result.exit.code else None
    advice = "`sandbox_packages` in the settings gives it packages."
    return "" if lacks is None else f"The sandbox has no package `{lacks[1]}`; {advice}"


async def _read_images(lease: SandboxLease, files: Iterable[WorkspaceFile]) -> dict[str, InputImage]:
    """Those of the files that can be shown, by path."""
    found: dict[str, InputImage] = {}
    for entry in files:
        if entry.path.lower().endswith(_IMAGE_NAMES) and entry.size <= MOST_IMAGE_BYTES and len(found) < MOST_IMAGES:
            # The code may still run in the background: what was listed may be gone by now, or have grown.
            with suppress(CallerError):
                data = await lease.get(entry.path)
                kind = detect_image_type(data)
                if kind is not None and len(data) <= MOST_IMAGE_BYTES:
                    found[entry.path] = InputImage(f"data:{kind};base64,{b64encode(data).decode()}")
    return found


class ProgressLines:
    """Passes output on to `show` in whole lines, batched; the rest follows when the `with` block is left.

    Lines are not cut, so that a secret in one can be recognised and redacted.
    """

    def __init__(self, show: Callable[[str], None]) -> None:
        self._show = show
        self._streams: dict[Stream, _LineBuffer] = {"stdout": _LineBuffer(), "stderr": _LineBuffer()}
        self._whole = ""
        self._timer: asyncio.TimerHandle | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._whole += "".join([stream.end() for stream in self._streams.values()])
        self._flush()

    def add(self, chunk: OutputChunk) -> None:
        self._whole += self._streams[chunk.stream].take_lines(chunk.data)
        if self._whole and self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(FLUSH_SECONDS, self._flush)

    def _flush(self) -> None:
        self._timer = None
        if self._whole:
            self._show(self._whole.rstrip("\n"))
        self._whole = ""


class _LineBuffer:
    """Splits one stream into lines. A progress bar ends its lines with a carriage return."""

    def __init__(self) -> None:
        self._decoder = getincrementaldecoder("utf-8")(errors="replace")
        self._rest = ""

    def take_lines(self, data: bytes) -> str:
        """All complete lines so far. A line without end is passed on in pieces of more than `LONGEST_LINE` characters."""
        text = self._rest + self._decoder.decode(data)
        end = max(text.rfind("\n"), text.rfind("\r")) + 1
        if len(text) - end > LONGEST_LINE:
            end = len(text)
        self._rest = text[end:]
        return text[:end]

    def end(self) -> str:
        return self._rest + self._decoder.decode(b"", final=True)
