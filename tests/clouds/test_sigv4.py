"""Signature Version 4 against the test suite that Amazon has published, and event streams that are damaged."""

import random
from datetime import UTC, datetime
from zlib import crc32

import pytest
from tests.clouds.aws import event, exception, frame

from mainspring.core.errors import BadOutput
from mainspring.providers.bedrock.event_stream import EventStreamSplitter
from mainspring.providers.bedrock.sigv4 import AwsKeys, sign_request

SECRET = "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY"
KEYS = AwsKeys("AKIDEXAMPLE", SECRET)
TOKEN = (
    "AQoDYXdzEPT//////////wEXAMPLEtc764bNrC9SAPBSM22wDOk4x4HIZ8j4FZTwdQWLWsKWHGBuFqwAeMicRXmxfpSPfIeoIYRqTflfKD8YUuwthAx7mSEI/"
    "qkPpKPi/kMcGdQrmGdeehM4IC1NtBmUpp2wUE8phUZampKsburEDy0KPkyQDYwT7WZ0wq5VSXDvp75YU9HFvlRd8Tx6q6fE8YQcHNVXAkiY9q6d+xo0rKwT38xVqr7"
    "ZD0u0iPPkUL64lIZbqBAz+scqKmlzm8FDrypNC9Yjc8fPOLn9FX9KSYvKTr4rvx3iSIlTJabIQwj2ICCR/oLxBA=="
)
AT = datetime(2015, 8, 30, 12, 36, tzinfo=UTC)
HOST = "https://example.amazonaws.com"


@pytest.mark.parametrize(
    ("method", "path", "headers", "body", "signature"),
    [
        ("GET", "/", {}, b"", "5fa00fa31553b73ebf1942676e86291e8372ff2a2260956d9b8aae1d763fbf31"),
        ("POST", "/", {}, b"", "5da7c1a2acd57cee7505fc6676e4e544621c30862966e37dddb68e92efbe5d6b"),
        ("GET", "/?Param2=value2&Param1=value1", {}, b"", "b97d918cfa904a5beff61c982a1b6f458b799221646efd99d3219ec94cdf2500"),
        (
            "GET",
            "/-._~0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz",
            {},
            b"",
            "07ef7494c76fa4850883e2b006601f940f8a34d404d0cfa977f52a65bbf5f24f",
        ),
        (
            "GET",
            "/",
            {"My-Header1": "value2,value2,value1"},
            b"",
            "c9d5ea9f3f72853aea855b47ea873832890dbdd183b4468f858259531a5138ea",
        ),
        (
            "POST",
            "/",
            {"Content-Type": "application/x-www-form-urlencoded"},
            b"Param1=value1",
            "ff11897932ad3f4e8b18135d722051e5ac45fc38421b1da7b9d196a0fe09473a",
        ),
    ],
)
def test_signatures_are_those_of_the_published_suite(
    method: str, path: str, headers: dict[str, str], body: bytes, signature: str
) -> None:
    signed = sign_request(KEYS, method, HOST + path, body, region="us-east-1", service="service", at=AT, headers=headers)
    names = ";".join(sorted({"host", "x-amz-date", *[name.lower() for name in headers]}))
    credential = "AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/20150830/us-east-1/service/aws4_request"
    assert signed["Authorization"] == f"{credential}, SignedHeaders={names}, Signature={signature}"


def test_a_session_token_is_signed() -> None:
    keys = AwsKeys("AKIDEXAMPLE", SECRET, TOKEN)
    signed = sign_request(keys, "POST", f"{HOST}/", b"", region="us-east-1", service="service", at=AT)
    assert signed["x-amz-security-token"] == TOKEN
    assert "Signature=85d96828115b5dc0cfc3bd16ad9e210dd772bbebba041836c64533a82be05ead" in signed["Authorization"]


WHOLE = event("messageStart", {"role": "assistant"}) + event("messageStop", {"stopReason": "end_turn"})


def read(data: bytes, size: int = 0) -> list[tuple[bytes, bytes]]:
    splitter = EventStreamSplitter()
    pieces = [data[at : at + size] for at in range(0, len(data), size)] if size else [data]
    return [found for piece in pieces for found in splitter.feed(piece)] + list(splitter.end())


@pytest.mark.parametrize("size", [0, 1, 3, 16, 50])
def test_a_stream_is_the_same_however_it_is_cut(size: int) -> None:
    assert [data for _, data in read(WHOLE, size)] == [
        b'{"messageStart":{"role":"assistant","p":"abcdefghijkl"}}',
        b'{"messageStop":{"stopReason":"end_turn","p":"abcdefghijkl"}}',
    ]
    assert len(read(WHOLE[:-1], size)) == 1


def test_an_exception_is_an_error_with_its_kind() -> None:
    assert read(exception("throttlingException", "slow down")) == [
        (b"error", b'{"error":{"type":"throttlingException","message":"slow down"}}')
    ]
    told = frame({":message-type": "error", ":error-code": "InternalError", ":error-message": "oh"}, b"")
    assert read(told) == [(b"error", b'{"error":{"type":"InternalError","message":"oh"}}')]


@pytest.mark.parametrize("place", range(len(event("messageStart", {"role": "assistant"}))))
def test_no_damage_goes_unnoticed(place: int) -> None:
    message = bytearray(event("messageStart", {"role": "assistant"}))
    message[place] ^= 0x40
    with pytest.raises(BadOutput):
        read(bytes(message))


def test_what_claims_to_be_endless_is_refused_at_once() -> None:
    splitter = EventStreamSplitter(limit=1000)
    with pytest.raises(BadOutput, match="bytes"):
        list(splitter.feed(frame({":message-type": "event"}, b"x" * 2000)[:12]))


def test_headers_of_every_kind_are_read_or_refused() -> None:
    dice = random.Random(7)
    for _ in range(500):
        noise = bytes(dice.randrange(256) for _ in range(dice.randrange(1, 40)))
        prelude = (16 + len(noise)).to_bytes(4, "big") + len(noise).to_bytes(4, "big")
        body = prelude + crc32(prelude).to_bytes(4, "big") + noise
        try:
            assert read(body + crc32(body).to_bytes(4, "big"))[0][0] in (b"error", b"")
        except BadOutput:
            continue
