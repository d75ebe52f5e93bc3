"""Who speaks to us, in which revision of the protocol, and what they can do.

Theory of operation. Up to 2025-11-25 a client says who it is once, in `initialize`, and goes on in a session. From 2026-07-28 on
every request says so itself, in `_meta` and, over HTTP, in headers that must say the same. Both end in a `Peer`, and what answers
requests asks nothing else.
"""

import re
from base64 import b64decode
from binascii import Error as Base64Error
from collections.abc import Mapping
from typing import Final

from msgspec import Struct

from mainspring.core.items import Json
from mainspring.features.mcp_server.client_messages import (
    HEADER_MISMATCH,
    INVALID_PARAMS,
    UNSUPPORTED_VERSION,
    ClientRequest,
    RpcError,
)
from mainspring.http.auth import ApiCaller

STATELESS: Final = "2026-07-28"
WITH_SESSIONS: Final = ("2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05")
REVISIONS: Final = (STATELESS, *WITH_SESSIONS)
TASKS: Final = "io.modelcontextprotocol/tasks"

META: Final = "io.modelcontextprotocol/"
VERSION_KEY: Final = f"{META}protocolVersion"
CAPABILITIES_KEY: Final = f"{META}clientCapabilities"
SERVER_KEY: Final = f"{META}serverInfo"
SUBSCRIPTION_KEY: Final = f"{META}subscriptionId"

VERSION_HEADER: Final = "mcp-protocol-version"
METHOD_HEADER: Final = "mcp-method"
NAME_HEADER: Final = "mcp-name"
NAMED: Final = {
    "tools/call": "name", "prompts/get": "name", "resources/read": "uri",
    "tasks/get": "taskId", "tasks/update": "taskId", "tasks/cancel": "taskId",
}  # fmt: skip
"""Which parameter of a method the header `Mcp-Name` repeats."""
_ENCODED = re.compile(r"=\?base64\?(.*)\?=")


class Peer(Struct, frozen=True, kw_only=True):
    """A client. `session` is empty for one that has none. `key` is the idempotency key of its request."""

    caller: ApiCaller
    revision: str
    capabilities: Json = {}
    session: str = ""
    traceparent: str = ""
    key: str | None = None

    @property
    def is_stateless(self) -> bool:
        return self.revision == STATELESS

    @property
    def takes_forms(self) -> bool:
        """Whether it shows forms to a person. One that names no mode of elicitation shows forms."""
        modes = self.capabilities.get("elicitation")
        return isinstance(modes, dict) and (not modes or "form" in modes)

    @property
    def takes_links(self) -> bool:
        """Whether it has a person open links."""
        modes = self.capabilities.get("elicitation")
        return isinstance(modes, dict) and "url" in modes

    @property
    def takes_tasks(self) -> bool:
        """Whether a call may be answered with a task."""
        extensions = self.capabilities.get("extensions")
        return self.is_stateless and isinstance(extensions, dict) and TASKS in extensions


def is_stateless_call(call: ClientRequest, headers: Mapping[str, str]) -> bool:
    """Whether the request says itself who sends it, or should."""
    meta = call.params.get("_meta")
    return headers.get(VERSION_HEADER) == STATELESS or (isinstance(meta, dict) and VERSION_KEY in meta)


def read_stateless(call: ClientRequest, caller: ApiCaller, headers: Mapping[str, str] | None) -> Peer:
    """The client that a request names. `headers` are those of HTTP. Raises `RpcError`."""
    meta = call.params.get("_meta")
    if not isinstance(meta, dict) or VERSION_KEY not in meta or not isinstance(meta.get(CAPABILITIES_KEY), dict):
        raise RpcError(INVALID_PARAMS, f"params._meta must have `{VERSION_KEY}`, and `{CAPABILITIES_KEY}` as an object")
    revision = meta[VERSION_KEY]
    if headers is not None:
        _check_headers(call, revision, headers)
    if revision != STATELESS:
        raise RpcError(
            UNSUPPORTED_VERSION,
            f"requests without a session are answered in revision {STATELESS}, not in {str(revision)[:40]}",
            {"supported": list(REVISIONS), "requested": str(revision)[:40]},
        )
    return Peer(
        caller=caller,
        revision=STATELESS,
        capabilities=meta[CAPABILITIES_KEY],
        traceparent="" if headers is None else headers.get("traceparent", ""),
    )


def _check_headers(call: ClientRequest, revision: object, headers: Mapping[str, str]) -> None:
    said = {VERSION_HEADER: revision, METHOD_HEADER: call.method}
    if (field := NAMED.get(call.method)) is not None and field in call.params:
        said[NAME_HEADER] = call.params[field]
    for name, value in said.items():
        if _decode(headers.get(name)) != value:
            raise RpcError(HEADER_MISMATCH, f"the header `{name}` must say what the body says: `{str(value)[:200]}`")


def _decode(value: str | None) -> str | None:
    """The value of a header, which may be base64 for what headers cannot say."""
    if value is None or (found := _ENCODED.fullmatch(value.strip())) is None:
        return None if value is None else value.strip()
    try:
        return b64decode(found[1], validate=True).decode()
    except (Base64Error, UnicodeDecodeError):
        return None
