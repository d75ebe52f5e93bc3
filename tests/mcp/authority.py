"""A small authorization server and the MCP server that it guards, on one port, with a record of all that arrived.

Whoever comes to `/authorize` is taken to be `person`, and agrees to everything. What is assigned to the attributes makes it
misbehave.
"""

import json
from base64 import b64decode, urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from secrets import token_hex
from threading import Event, Lock, Thread
from time import sleep
from typing import Any
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit

from msgspec import Struct

TOOLS = [
    {"name": name, "description": about, "inputSchema": {"type": "object", "properties": {}}}
    for name, about in (("whoami", "Says who asks."), ("write", "Writes."))
]


class Seen(Struct, frozen=True):
    """A request: where it came, with which credentials, and the fields of its form."""

    path: str
    credentials: str
    form: dict[str, str]


class Granted(Struct):
    subject: str
    scope: str
    resource: str
    client: str
    challenge: str = ""
    key: str = ""


class Authority:
    def __init__(self) -> None:
        self.url = ""
        self.person = "alice"
        self.seen: list[Seen] = []
        self.codes: dict[str, Granted] = {}
        self.tokens: dict[str, Granted] = {}
        self.refreshers: dict[str, Granted] = {}
        self.resource_metadata: dict[str, Any] = {}
        self.issuer_metadata: dict[str, Any] = {}
        self.redirect_metadata = ""
        # With `wants_proof` the server takes only tokens that are bound to a key; without `binds` they are not, after all.
        self.wants_proof, self.binds, self.proofs = False, True, set[str]()
        self.has_resource_metadata = self.has_issuer_metadata = True
        self.drips = ""
        self.is_insatiable = False
        self.iss: str | None = None
        self.expires_in = 3600
        self.lock = Lock()
        self.may_refresh = Event()
        self.may_refresh.set()

    def count(self, path: str) -> int:
        return len([seen for seen in self.seen if seen.path == path])

    def count_grants(self, kind: str) -> int:
        return len([seen for seen in self.seen if seen.path == "/token" and seen.form.get("grant_type") == kind])

    def expire_tokens(self) -> None:
        self.tokens.clear()

    def answer(self, handler: "_Handler", body: bytes) -> None:
        parts = urlsplit(handler.path)
        is_form = "form" in handler.headers.get("content-type", "")
        form = dict(parse_qsl(body.decode() if is_form else parts.query))
        self.seen.append(Seen(parts.path, handler.headers.get("authorization", ""), form))
        match parts.path:
            case self.drips:
                handler.drip()
            case "/mcp":
                self._serve(handler, body)
            case "/.well-known/oauth-protected-resource/mcp" if self.has_resource_metadata:
                if self.redirect_metadata:
                    handler.reply(302, headers={"location": self.redirect_metadata})
                    return
                told = {"resource": f"{self.url}/mcp", "authorization_servers": [self.url], "scopes_supported": ["read"]}
                handler.reply(200, {**told, **self.resource_metadata})
            case "/.well-known/oauth-authorization-server" if self.has_issuer_metadata:
                handler.reply(200, {**self._describe(), **self.issuer_metadata})
            case "/register":
                told = json.loads(body)
                handler.reply(201, {**told, "client_id": f"client-{token_hex(4)}", "client_secret": "secret-of-client"})
            case "/authorize":
                self._authorize(handler, form)
            case "/token":
                self._grant(handler, form)
            case "/exchange":
                self._exchange(handler, form)
            case "/revoke":
                for kept in (self.tokens, self.refreshers):
                    kept.pop(form["token"], None)
                handler.reply(200, {})
            case _:
                handler.reply(404, {})

    def _describe(self) -> dict[str, Any]:
        return {
            "issuer": self.url,
            "authorization_endpoint": f"{self.url}/authorize",
            "token_endpoint": f"{self.url}/token",
            "registration_endpoint": f"{self.url}/register",
            "revocation_endpoint": f"{self.url}/revoke",
            "code_challenge_methods_supported": ["S256"],
            "authorization_response_iss_parameter_supported": True,
            "dpop_signing_alg_values_supported": ["ES256"],
        }

    def _authorize(self, handler: "_Handler", asked: dict[str, str]) -> None:
        code = token_hex(8)
        scope, resource = asked.get("scope", ""), asked["resource"]
        self.codes[code] = Granted(self.person, scope, resource, asked["client_id"], asked["code_challenge"])
        back = {"code": code, "state": asked["state"], "iss": self.url if self.iss is None else self.iss}
        handler.reply(302, headers={"location": f"{asked['redirect_uri']}?{urlencode(back)}"})

    def _exchange(self, handler: "_Handler", form: dict[str, str]) -> None:
        """As a company's identity provider, which knows whom it has given a token."""
        kind = "urn:ietf:params:oauth:token-type:"
        if form["subject_token_type"] != f"{kind}id_token" or read_claims(form["subject_token"])["aud"] != form["client_id"]:
            handler.reply(400, {"error": "invalid_grant"})
            return
        name = read_claims(form["subject_token"])["sub"]
        given = make_assertion(sub=f"{name} of the company", aud=form["audience"], resource=form["resource"])
        handler.reply(200, {"access_token": given, "issued_token_type": form["requested_token_type"], "token_type": "N_A"})

    def _grant(self, handler: "_Handler", form: dict[str, str]) -> None:
        sent = handler.headers.get("authorization", "")
        client = unquote(b64decode(sent.removeprefix("Basic ")).decode().partition(":")[0]) if sent else form.get("client_id", "")
        granted: Granted | None
        with self.lock:  # a refresh token is good once
            if form["grant_type"] == "client_credentials":
                granted, is_right = Granted(self.person, form.get("scope", ""), form["resource"], client), True
            elif form["grant_type"] == "urn:ietf:params:oauth:grant-type:jwt-bearer":
                granted, is_right = Granted(read_claims(form["assertion"])["sub"], "", form["resource"], client), True
            elif form["grant_type"] == "authorization_code":
                granted = self.codes.pop(form["code"], None)
                proof = urlsafe_b64encode(sha256(form["code_verifier"].encode()).digest()).rstrip(b"=").decode()
                is_right = granted is not None and granted.challenge == proof
            else:
                granted = self.refreshers.pop(form["refresh_token"], None)
                is_right = granted is not None
                self.may_refresh.wait(60)
        key = self._check_proof(handler, "/token")
        if granted is not None and granted.key not in ("", key):
            granted = None
        if granted is None or not is_right or (granted.client, granted.resource) != (client, form["resource"]):
            handler.reply(400, {"error": "invalid_grant"})
            return
        granted.key = key if self.binds else ""
        access, refresh = f"access-{token_hex(8)}", f"refresh-{token_hex(8)}"
        self.tokens[access], self.refreshers[refresh] = granted, granted
        told = {"access_token": access, "refresh_token": refresh, "expires_in": self.expires_in}
        told["token_type"] = "DPoP" if granted.key else "Bearer"
        handler.reply(200, {**told, "scope": granted.scope})

    def _check_proof(self, handler: "_Handler", path: str, token: str = "") -> str:
        """The key of the proof that a request has, if it has one and is the first with it."""
        proof = handler.headers.get("dpop", "")
        if not proof or proof in self.proofs:
            return ""
        self.proofs.add(proof)
        claims, head = read_claims(proof), read_claims(f".{proof}")
        ath = urlsafe_b64encode(sha256(token.encode()).digest()).rstrip(b"=").decode() if token else None
        is_right = (claims["htm"], claims["htu"], claims.get("ath")) == (handler.command, self.url + path, ath)
        return str(head["jwk"]["x"]) if is_right else ""

    def _serve(self, handler: "_Handler", body: bytes) -> None:
        kind, _, token = handler.headers.get("authorization", "").partition(" ")
        scheme = "DPoP" if self.wants_proof else "Bearer"
        granted = self.tokens.get(token) if kind == scheme else None
        if granted is not None and granted.key and granted.key != self._check_proof(handler, "/mcp", token):
            granted = None
        where = f'resource_metadata="{self.url}/.well-known/oauth-protected-resource/mcp"' if self.has_resource_metadata else ""
        if granted is None:
            handler.reply(401, {}, {"www-authenticate": f"{scheme} {where}".strip()})
            return
        message = json.loads(body or b"{}")
        if message.get("params", {}).get("name") == "write" and (self.is_insatiable or "write" not in granted.scope.split()):
            challenge = f'Bearer error="insufficient_scope", scope="write", {where}'
            handler.reply(403, {}, {"www-authenticate": challenge})
            return
        match message.get("method"):
            case "initialize":
                about = {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}}
                result: dict[str, Any] = {**about, "serverInfo": {"name": "guarded", "version": "1"}}
            case "tools/list":
                result = {"tools": TOOLS}
            case "tools/call":
                result = {"content": [{"type": "text", "text": f"{message['params']['name']}: {granted.subject}"}]}
            case _ if "id" in message:
                error = {"code": -32601, "message": "Method not found"}
                handler.reply(200, {"jsonrpc": "2.0", "id": message["id"], "error": error})
                return
            case _:
                handler.reply(202 if handler.command == "POST" else 405)
                return
        handler.reply(200, {"jsonrpc": "2.0", "id": message["id"], "result": result})


def make_assertion(**claims: object) -> str:
    """What a platform says of a workload. Its signature is none: the platform's key is not ours to check."""
    head, body = [urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=").decode() for part in ({"alg": "none"}, claims)]
    return f"{head}.{body}."


def read_claims(assertion: str) -> dict[str, Any]:
    body = assertion.split(".")[1]
    claims: dict[str, Any] = json.loads(urlsafe_b64decode(body + "=" * (-len(body) % 4)))
    return claims


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    authority: Authority

    def reply(self, status: int, body: object = None, headers: dict[str, str] | None = None) -> None:
        data = b"" if body is None else json.dumps(body).encode()
        self.send_response(status)
        for name, value in {"content-type": "application/json", "content-length": str(len(data)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)

    def drip(self) -> None:
        """Never stops answering."""
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.end_headers()
        self.close_connection = True
        with suppress(OSError):
            while True:
                self.wfile.write(b" ")
                sleep(0.02)

    def do_GET(self) -> None:
        self.authority.answer(self, self.rfile.read(int(self.headers.get("content-length") or 0)))

    do_POST = do_DELETE = do_GET

    def log_message(self, format: str, *args: object) -> None:
        pass


@contextmanager
def granting() -> Iterator[Authority]:
    """An authority that runs in a thread."""
    authority = Authority()
    handler = type("Handler", (_Handler,), {"authority": authority})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        server.daemon_threads = True
        authority.url = f"http://127.0.0.1:{server.server_address[1]}"
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        thread.start()
        try:
            yield authority
        finally:
            server.shutdown()
            thread.join()
