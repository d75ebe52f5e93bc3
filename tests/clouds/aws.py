"""Amazon as its clients see it: signatures checked by code that shares nothing with ours, and event streams written byte by byte.

The events are written by hand in the shapes that Amazon publishes for ConverseStream; no recording of a real one was at hand.
"""

import binascii
import hashlib
import hmac
import re
from urllib.parse import unquote

import msgspec
from tests.clouds.stand import Asked, Reply

from mainspring.core.items import Json

MIME = "application/vnd.amazon.eventstream"
_FORM = re.compile(
    r"AWS4-HMAC-SHA256 Credential=(?P<id>[^/]+)/(?P<date>\d{8})/(?P<region>[^/]+)/(?P<service>[^/]+)/aws4_request, "
    r"SignedHeaders=(?P<names>[a-z0-9;-]+), Signature=(?P<signature>[0-9a-f]{64})"
)


def check_signature(asked: Asked, id: str, secret: str, token: str | None = None, region: str = "us-east-1") -> None:
    """Asserts that the request is signed as Amazon demands, over what came."""
    found = _FORM.fullmatch(asked.headers["authorization"])
    assert found is not None, asked.headers["authorization"]
    assert (found["id"], found["region"], found["service"]) == (id, region, "bedrock")
    names = found["names"].split(";")
    assert {"host", "x-amz-date"} <= set(names)
    assert asked.headers.get("x-amz-security-token") == token
    assert token is None or "x-amz-security-token" in names
    path = _encode(asked.path, "/")
    query = "&".join(
        sorted("=".join(_encode(unquote(side)) for side in pair.split("=", 1)) for pair in asked.query.split("&") if pair)
    )
    headers = "".join([f"{name}:{asked.headers[name].strip()}\n" for name in names])
    payload = hashlib.sha256(asked.body).hexdigest()
    request = f"{asked.method}\n{path}\n{query}\n{headers}\n{found['names']}\n{payload}"
    moment = asked.headers["x-amz-date"]
    assert moment.startswith(found["date"])
    scope = f"{found['date']}/{region}/bedrock/aws4_request"
    text = f"AWS4-HMAC-SHA256\n{moment}\n{scope}\n{hashlib.sha256(request.encode()).hexdigest()}"
    key = f"AWS4{secret}".encode()
    for step in (found["date"], region, "bedrock", "aws4_request"):
        key = hmac.digest(key, step.encode(), "sha256")
    assert hmac.digest(key, text.encode(), "sha256").hex() == found["signature"], "the signature does not fit the request"


def _encode(text: str, also: str = "") -> str:
    kept = f"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_.~{also}".encode()
    return "".join([chr(byte) if byte in kept else f"%{byte:02X}" for byte in text.encode()])


def frame(headers: dict[str, str], payload: bytes) -> bytes:
    """A message of an event stream."""
    head = b"".join(
        [
            bytes([len(name)]) + name.encode() + b"\x07" + len(value).to_bytes(2, "big") + value.encode()
            for name, value in headers.items()
        ]
    )
    size = 16 + len(head) + len(payload)
    prelude = size.to_bytes(4, "big") + len(head).to_bytes(4, "big")
    prelude += binascii.crc32(prelude).to_bytes(4, "big")
    body = prelude + head + payload
    return body + binascii.crc32(body).to_bytes(4, "big")


def event(kind: str, payload: Json) -> bytes:
    padded = msgspec.json.encode({**payload, "p": "abcdefghijkl"})
    return frame({":event-type": kind, ":content-type": "application/json", ":message-type": "event"}, padded)


def exception(kind: str, words: str) -> bytes:
    headers = {":exception-type": kind, ":content-type": "application/json", ":message-type": "exception"}
    return frame(headers, msgspec.json.encode({"message": words}))


def delta(index: int, block: Json) -> bytes:
    return event("contentBlockDelta", {"contentBlockIndex": index, "delta": block})


START = event("messageStart", {"role": "assistant"})


def end(reason: str = "end_turn", **usage: int) -> bytes:
    counts = {"inputTokens": 20, "outputTokens": 5, "totalTokens": 25, **usage}
    return event("messageStop", {"stopReason": reason}) + event("metadata", {"usage": counts, "metrics": {"latencyMs": 9}})


def say(*words: str, reason: str = "end_turn", **usage: int) -> bytes:
    said = [delta(0, {"text": word}) for word in words]
    return START + b"".join(said) + event("contentBlockStop", {"contentBlockIndex": 0}) + end(reason, **usage)


def call(*calls: tuple[str, str], index: int = 0) -> bytes:
    """Calls of `get_time` by id and arguments, these in two pieces."""
    told = b""
    for number, (id, arguments) in enumerate(calls, index):
        start = {"contentBlockIndex": number, "start": {"toolUse": {"toolUseId": id, "name": "get_time"}}}
        told += event("contentBlockStart", start)
        told += b"".join([delta(number, {"toolUse": {"input": piece}}) for piece in (arguments[:5], arguments[5:])])
        told += event("contentBlockStop", {"contentBlockIndex": number})
    return told + end("tool_use")


def stream(*pieces: bytes) -> Reply:
    return Reply(pieces, MIME)


def fail(kind: str, words: str, status: int) -> Reply:
    headers = {"x-amzn-ErrorType": f"{kind}:http://internal.amazon.com/coral/com.amazon.bedrock/"}
    return Reply([msgspec.json.encode({"message": words})], "application/json", status, headers)


def find_model(asked: Asked) -> str:
    """The model of the path, which must be written in one segment."""
    found = re.fullmatch(r"/model/([^/]+)/converse(-stream)?", asked.path)
    assert found is not None, asked.path
    return unquote(found[1])
