"""The tool `code_interpreter`: Python that keeps its variables and files from call to call, and shows the images it makes."""

from base64 import b64encode
from collections.abc import Iterable
from contextlib import suppress

from mainspring.core.errors import CallerError, SandboxError
from mainspring.core.items import InputImage, InputText, Json, Part
from mainspring.tools.builtin.containers import Container, Containers, container_of, named
from mainspring.tools.builtin.shell_tool import WAIT_SECONDS, effects_in, is_stopped
from mainspring.tools.contract import ToolContext, ToolResult
from mainspring.tools.images import image_kind
from mainspring.tools.sandbox.sandbox_port import Entry, Lease, Result

SECONDS = 60.0
MOST_IMAGES = 4
MOST_IMAGE_BYTES = 2 << 20

LOST = "[a new interpreter was started: the variables of earlier calls are gone, the files are still there]"

_IMAGE_NAMES = (".png", ".jpg", ".jpeg", ".gif")


class CodeInterpreter:
    """Runs cells. What one raises is for the model to read; an error is only what could not be run or was stopped."""

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

    def __init__(self, containers: Containers, *, seconds: float = SECONDS) -> None:
        self._containers = containers
        self._seconds = seconds
        self.effects = effects_in(containers)
        self.timeout = seconds + WAIT_SECONDS

    async def execute(self, params: Json, context: ToolContext) -> ToolResult:
        try:
            async with self._containers.use(context.tenant, container_of(context)) as container:
                news = "\n".join([part for part in (LOST if container.is_state_lost else "", container.news()) if part])
                result = await container.run_cell(str(params["code"]), self._seconds)
                return await _answer(container, news, result)
        except (CallerError, SandboxError) as error:
            return ToolResult.fail(error.message)


async def _answer(container: Container, news: str, result: Result) -> ToolResult:
    images = await _images(container.lease, result.files)
    others = [entry for entry in result.files if entry.path not in images]
    told = [news, result.text, f"[files written: {named(others)}]" if others else ""]
    text = "\n".join([part for part in told if part]) or "[no output]"
    output: str | tuple[Part, ...] = (InputText(text), *images.values()) if images else text
    return ToolResult(not is_stopped(result.exit), output, text if is_stopped(result.exit) else "")


async def _images(lease: Lease, files: Iterable[Entry]) -> dict[str, InputImage]:
    """Those of the files that can be shown, by path."""
    found: dict[str, InputImage] = {}
    for entry in files:
        if entry.path.lower().endswith(_IMAGE_NAMES) and entry.size <= MOST_IMAGE_BYTES and len(found) < MOST_IMAGES:
            # The code may still run in the background: what was listed may be gone by now, or have grown.
            with suppress(CallerError):
                data = await lease.get(entry.path)
                kind = image_kind(data)
                if kind is not None and len(data) <= MOST_IMAGE_BYTES:
                    found[entry.path] = InputImage(f"data:{kind};base64,{b64encode(data).decode()}")
    return found
