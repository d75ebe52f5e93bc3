"""Signing in to MCP servers by a browser: a link for each user, the page behind it, and where people come back to.

A link is for one user of one tenant, and good for nothing once they have signed in. The page says for whom it is, and begins when
a person says so on the page itself: nobody can be sent through a sign-in by another page. It leaves a cookie; whoever comes back
must have it, so a sign-in ends in the browser in which it began. All sign-ins of a browser have one, so that several can be under
way in it.
"""

import re
from collections.abc import Sequence
from html import escape
from secrets import token_urlsafe
from typing import Final

from msgspec import Struct
from starlette.requests import Request
from starlette.responses import RedirectResponse
from starlette.responses import Response as HttpResponse

from mainspring.core.errors import InvalidRequest, MainspringError, NotFound
from mainspring.features.mcp.open_sign_ins import WaitingRuns
from mainspring.http.auth import get_caller
from mainspring.http.bodies import Name, parse_body, read_json_body
from mainspring.http.endpoints import PUBLIC, Endpoint
from mainspring.http.faults import Fault, json_response
from mainspring.http.origins import is_loopback, require_same_origin
from mainspring.tools.mcp.oauth_client import publish_client
from mainspring.tools.mcp.server_specs import ServerSpec
from mainspring.tools.mcp.sign_in import ATTEMPT_SECONDS, Account, SignIns
from mainspring.tools.mcp.sign_in_policy import SIGN_IN_PATH

CALLBACK: Final = "/sign-in/callback"
CLIENT: Final = "/sign-in/client.json"
COOKIE: Final = "mainspring_sign_in"
COOKIE_BYTES: Final = 24
_PAGE: Final = "/v1/mcp_servers/{label}/sign_in"
_SHIELDS: Final = {
    "content-security-policy": "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-store",
}


class AskSignIn(Struct, forbid_unknown_fields=True):
    """The body of `POST /v1/mcp_servers/{label}/sign_in`. `user` is the `user` of requests; without it, it is the key's own."""

    user: Name | None = None


class SignInState(Struct, frozen=True):
    """Whether a user has signed in to a server. `url` is where they can."""

    server_label: str
    user: str
    is_signed_in: bool
    url: str | None = None
    object: str = "mcp_sign_in"


class SignInRoutes:
    def __init__(self, servers: Sequence[ServerSpec], sign_ins: SignIns, waiting: WaitingRuns) -> None:
        self._servers = {spec.label: spec for spec in servers if spec.is_personal}
        self._sign_ins, self._waiting = sign_ins, waiting

    def endpoints(self) -> tuple[Endpoint, ...]:
        link = f"{SIGN_IN_PATH}/{{link}}"
        return (
            Endpoint("POST", _PAGE, self.ask, "responses", SignInState, AskSignIn),
            Endpoint("DELETE", _PAGE, self.sign_out, "responses", SignInState, AskSignIn),
            Endpoint("GET", link, self.show_page, PUBLIC, in_schema=False),
            Endpoint("POST", link, self.begin, PUBLIC, in_schema=False),
            Endpoint("GET", CALLBACK, self.finish, PUBLIC, in_schema=False),
            Endpoint("GET", CLIENT, self.show_client, PUBLIC, in_schema=False),
        )

    async def ask(self, request: Request) -> HttpResponse:
        """Says whether a user has signed in to an MCP server, and gives the link by which they can."""
        spec, account = await self._read(request)
        if await self._sign_ins.is_signed_in(spec, account):
            return json_response(SignInState(spec.label, account.user, is_signed_in=True))
        url = f"{self._find_base(request)}{SIGN_IN_PATH}/{await self._sign_ins.make_link(account)}"
        return json_response(SignInState(spec.label, account.user, is_signed_in=False, url=url))

    async def sign_out(self, request: Request) -> HttpResponse:
        """Signs a user out of an MCP server: their tokens are revoked and forgotten."""
        spec, account = await self._read(request)
        await self._sign_ins.sign_out(spec, account)
        return json_response(SignInState(spec.label, account.user, is_signed_in=False))

    async def show_page(self, request: Request) -> HttpResponse:
        """Shows the page of a link, on which a sign-in begins."""
        spec, account = await self._follow(request)
        if not await self._is_needed(spec, account):
            await self._waiting.continue_runs(account)
            return _render(200, f"You are signed in to {spec.label}", "You can close this page.")
        who = f" for the user <b>{escape(account.user)}</b>" if account.user else ""
        where = f" of <b>{escape(account.tenant)}</b>" if account.tenant else ""
        told = (
            f"Mainspring is about to use <b>{escape(spec.label)}</b> ({escape(spec.host)}){who}{where} with your account there. "
            "Go on only if you have asked for that yourself."
        )
        return _render(200, f"Sign in to {spec.label}", told, "<form method=post><button>Continue</button></form>")

    async def begin(self, request: Request) -> HttpResponse:
        """Sends the browser to where the user signs in."""
        require_same_origin(request)
        spec, account = await self._follow(request)
        if not await self._is_needed(spec, account):
            return _render(200, f"You are signed in to {spec.label}", "You can close this page.")
        base, browser = self._find_base(request), _read_cookie(request) or token_urlsafe(COOKIE_BYTES)
        try:
            to = await self._sign_ins.begin(spec, account, f"{base}{CALLBACK}", browser=browser)
        except MainspringError as error:
            return _render(502, f"Nobody can sign in to {spec.label} now", escape(error.message))
        answer = RedirectResponse(to, 303, _SHIELDS)
        is_safe = base.startswith("https://")
        answer.set_cookie(COOKIE, browser, int(ATTEMPT_SECONDS), path="/sign-in", secure=is_safe, httponly=True, samesite="lax")
        return answer

    async def finish(self, request: Request) -> HttpResponse:
        """Takes the code that the user comes back with, and continues the runs that wait for it."""
        try:
            account = await self._sign_ins.finish(dict(request.query_params), browser=request.cookies.get(COOKIE, ""))
        except MainspringError as error:
            return _render(400, "You are not signed in", escape(error.message))
        await self._waiting.continue_runs(account)
        return _render(200, f"You are signed in to {account.label}", "You can close this page.")

    async def show_client(self, request: Request) -> HttpResponse:
        """Shows authorization servers who we are."""
        base = self._sign_ins.public_url
        if not base.startswith("https://"):
            raise Fault(
                404, "not_found", "this server has no `public_url` that is https, so it is no client by metadata document"
            )
        return json_response(publish_client(f"{base}{CLIENT}", f"{base}{CALLBACK}"))

    async def _is_needed(self, spec: ServerSpec, account: Account) -> bool:
        found = await self._sign_ins.read(spec, account)
        return found is None or bool(found[0].wanted) or not await self._sign_ins.is_signed_in(spec, account)

    async def _read(self, request: Request) -> tuple[ServerSpec, Account]:
        caller, body = get_caller(request), parse_body(await read_json_body(request), AskSignIn)
        spec = self._find_server(str(request.path_params["label"]))
        return spec, self._sign_ins.find_account(spec, caller.tenant, body.user or caller.subject)

    async def _follow(self, request: Request) -> tuple[ServerSpec, Account]:
        account = await self._sign_ins.follow_link(str(request.path_params["link"]))
        return self._find_server(account.label), account

    def _find_server(self, label: str) -> ServerSpec:
        if (spec := self._servers.get(label)) is None:
            known = ", ".join([f"`{each}`" for each in self._servers]) or "none"
            raise NotFound(f"there is no MCP server `{label[:64]}` that users sign in to; known: {known}", param="label")
        return spec

    def _find_base(self, request: Request) -> str:
        """Where this server is for the browser. A name that a request brings is believed only if it is of this machine."""
        if self._sign_ins.public_url:
            return self._sign_ins.public_url
        if not is_loopback(request.url.hostname or ""):
            raise InvalidRequest(
                "set `public_url`, where browsers reach this server, so that users can sign in", param="public_url"
            )
        return f"{request.url.scheme}://{request.url.netloc}"


def _read_cookie(request: Request) -> str:
    """The cookie of the browser, if it has one that we have made."""
    found = request.cookies.get(COOKIE, "")
    return found if re.fullmatch(r"[A-Za-z0-9_-]{32}", found) else ""


def _render(status: int, title: str, told: str, more: str = "") -> HttpResponse:
    page = (
        "<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content='width=device-width'>"
        f"<title>{escape(title)}</title><body style='font:16px/1.5 system-ui;max-width:32em;margin:4em auto;padding:0 1em'>"
        f"<h1 style='font-size:1.4em'>{escape(title)}</h1><p>{told}</p>{more}"
    )
    return HttpResponse(page, status, _SHIELDS, media_type="text/html")
