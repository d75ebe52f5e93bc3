"""`/` for browsers, the files of its page, and the demo that it offers.

The page is one HTML file; what it shows has an address behind a `#`, so that all it refers to is relative, and a proxy may offer
it under any prefix. The files are built from `console/` by `scripts/build_console`, and read when a browser asks for them.
"""

from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Final

from anyio.to_thread import run_sync
from msgspec import Struct
from starlette.requests import Request
from starlette.responses import Response as HttpResponse

from mainspring.engine.engine import Engine
from mainspring.features.console.demo.demo_run import DemoTools, make_demo_order
from mainspring.http.auth import get_caller, sign_order
from mainspring.http.endpoints import PUBLIC, Endpoint
from mainspring.http.faults import Fault, json_response
from mainspring.tools.contract import EXECUTE, has_tool_scope

FILES: Final = files("mainspring.features.console") / "files"
BUILD_COMMAND: Final = "scripts/build_console"
KINDS: Final = {".js": "text/javascript; charset=utf-8", ".css": "text/css; charset=utf-8", ".svg": "image/svg+xml"}
LONGEST_NAME: Final = 200
POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
)
SHIELDS: Final = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
}
NOT_BUILT: Final = (
    "<!doctype html><html lang=en><meta charset=utf-8><title>Mainspring</title>"
    f"<p>The console is not built: run <code>{BUILD_COMMAND}</code> in the folder of Mainspring's sources, then reload this page."
)


class ServerGreeting(Struct, frozen=True):
    """What `/` says to programs."""

    name: str = "mainspring"
    api: str = "v1"


class StartedDemo(Struct, frozen=True):
    """`id` is the run that plays the demo."""

    id: str


class ConsoleRoutes:
    """`folder` has the files of the page."""

    def __init__(self, engine: Engine, folder: Traversable = FILES) -> None:
        self._engine, self._folder = engine, folder

    def endpoints(self) -> tuple[Endpoint, ...]:
        return (
            Endpoint("GET", "/", self.show_page, PUBLIC, in_schema=False),
            Endpoint("GET", "/console/files/{name}", self.send_file, PUBLIC, in_schema=False),
            Endpoint("POST", "/v1/demo", self.start_demo, "responses", StartedDemo),
        )

    async def show_page(self, request: Request) -> HttpResponse:
        """Shows the console to browsers, and says to others what this is."""
        if "text/html" not in request.headers.get("accept", ""):
            return json_response(ServerGreeting())
        page = await run_sync(_read_file, self._folder / "index.html")
        headers = {**SHIELDS, "cache-control": "no-cache"}
        return HttpResponse(NOT_BUILT if page is None else page, 200, headers, media_type="text/html")

    async def send_file(self, request: Request) -> HttpResponse:
        """Sends a file of the console. Its name says what is in it, so it never changes."""
        name = str(request.path_params["name"])
        kind = KINDS.get(name[name.rfind(".") :]) if len(name) <= LONGEST_NAME else None
        content = None if kind is None else await run_sync(_read_file, self._folder / name)
        if content is None:
            raise Fault(404, "not_found", "the console has no such file; reload its page")
        headers = {**SHIELDS, "cache-control": "public, max-age=31536000, immutable"}
        return HttpResponse(content, 200, headers, media_type=kind)

    async def start_demo(self, request: Request) -> HttpResponse:
        """Starts the demo, a scripted model with real tools, as a run of this server."""
        scopes = get_caller(request).tools
        if scopes is not None and not all(has_tool_scope(scopes, tool.name) for tool in DemoTools().definitions):
            told = f"this API key may not use the tools of the demo; a key with the scope `{EXECUTE}` is needed here"
            raise Fault(403, "insufficient_scope", told)
        handle = await self._engine.start(sign_order(request, make_demo_order(self._engine.new_id)))
        return json_response(StartedDemo(handle.id))


def _read_file(file: Traversable) -> bytes | None:
    return file.read_bytes() if file.is_file() else None
