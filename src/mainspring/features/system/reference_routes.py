"""`/docs`: the API reference over our own OpenAPI document, on which every route can be tried."""

from importlib.resources import files
from typing import Final

from anyio.to_thread import run_sync
from starlette.requests import Request
from starlette.responses import Response as HttpResponse

from mainspring.http.endpoints import PUBLIC, Endpoint
from mainspring.http.faults import Fault

FILES: Final = files("mainspring.features.system") / "reference"
KINDS: Final = {"reference.js": "text/javascript; charset=utf-8", "reference.css": "text/css; charset=utf-8"}
SHIELDS: Final = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-cache",
}


class ReferenceRoutes:
    """The page and its two files, which are read when somebody asks for them."""

    def endpoints(self) -> tuple[Endpoint, ...]:
        return (
            Endpoint("GET", "/docs", self.show_page, PUBLIC, in_schema=False),
            Endpoint("GET", "/docs/files/{name}", self.send_file, PUBLIC, in_schema=False),
        )

    async def show_page(self, request: Request) -> HttpResponse:
        """Shows the API reference."""
        page = await run_sync((FILES / "reference.html").read_bytes)
        return HttpResponse(page, 200, SHIELDS, media_type="text/html")

    async def send_file(self, request: Request) -> HttpResponse:
        """Sends a file of the API reference."""
        name = str(request.path_params["name"])
        if name not in KINDS:
            raise Fault(404, "not_found", "the API reference has no such file")
        return HttpResponse(await run_sync((FILES / name).read_bytes), 200, SHIELDS, media_type=KINDS[name])
