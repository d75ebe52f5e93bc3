"""JSON-RPC 2.0 as MCP has it: one message in, one message out. Pure."""

from typing import Any, Final

from msgspec import Struct

from mainspring.core.items import Json, encode
from mainspring.core.json_values import parse_json

PARSE_ERROR: Final = -32700
INVALID_REQUEST: Final = -32600
METHOD_NOT_FOUND: Final = -32601
INVALID_PARAMS: Final = -32602
INTERNAL_ERROR: Final = -32603
RESOURCE_NOT_FOUND: Final = -32002
HEADER_MISMATCH: Final = -32020
MISSING_CAPABILITY: Final = -32021
UNSUPPORTED_VERSION: Final = -32022

LONGEST_METHOD: Final = 200
LONGEST_ID: Final = 200
_HOW = 'send one JSON-RPC 2.0 message, such as {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {}}'

RequestId = str | int


class ClientRequest(Struct, frozen=True):
    """A request, which is owed an answer."""

    id: RequestId
    method: str
    params: Json


class Notice(Struct, frozen=True):
    """A notification."""

    method: str
    params: Json


class ClientReply(Struct, frozen=True):
    """What a client answers to a request of ours; None if that is an error."""

    id: RequestId
    result: Json | None


class RpcError(Exception):
    """An answer that is an error. `data` is for programs."""

    def __init__(self, code: int, message: str, data: Json | None = None) -> None:
        super().__init__(message)
        self.code, self.message, self.data = code, message, data

    def render(self, id: RequestId | None) -> Json:
        told: Json = {"code": self.code, "message": self.message}
        if self.data is not None:
            told["data"] = self.data
        return {"jsonrpc": "2.0", "id": id, "error": told}


def parse_message(body: bytes) -> ClientRequest | Notice | ClientReply:
    """The message. Raises `RpcError` that says in one sentence what to send instead."""
    try:
        found = parse_json(body)
    except ValueError:
        raise RpcError(PARSE_ERROR, f"the body is not valid JSON; {_HOW}") from None
    match found:
        case {"jsonrpc": "2.0", "method": str(method)} if 0 < len(method) <= LONGEST_METHOD:
            params = found.get("params", {})
            if not isinstance(params, dict):
                raise RpcError(INVALID_REQUEST, f"`params` must be an object; {_HOW}")
            if "id" not in found:
                return Notice(method, params)
            return ClientRequest(_check_id(found["id"]), method, params)
        case {"jsonrpc": "2.0", "id": id, "result": dict(result)}:
            return ClientReply(_check_id(id), result)
        case {"jsonrpc": "2.0", "id": id, "error": dict()}:
            return ClientReply(_check_id(id), None)
        case list():
            raise RpcError(INVALID_REQUEST, f"messages come one by one, not in a batch; {_HOW}")
        case _:
            raise RpcError(INVALID_REQUEST, f"the body is no JSON-RPC message; {_HOW}")


def _check_id(id: Any) -> RequestId:
    if isinstance(id, bool) or not isinstance(id, str | int):
        raise RpcError(INVALID_REQUEST, f"`id` must be a string or a whole number; {_HOW}")
    if len(id) > LONGEST_ID if isinstance(id, str) else abs(id) >= 2**63:
        raise RpcError(INVALID_REQUEST, f"`id` must have at most {LONGEST_ID} characters, or 64 bits; {_HOW}")
    return id


def render_result(id: RequestId, result: Json) -> Json:
    return {"jsonrpc": "2.0", "id": id, "result": result}


def render_notice(method: str, params: Json) -> Json:
    return {"jsonrpc": "2.0", "method": method, "params": params}


def write_frame(message: Json) -> bytes:
    """The message as a server-sent event."""
    return b"event: message\ndata: %b\n\n" % encode(message)
