"""curl: what really goes over the wire, to the byte."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest
from tests.clients.process import Served
from tests.clients.upstream import Model, hangs, says
from tests.server.linter import events_of, linted

pytestmark = pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")

SECONDS = 60
JSON = ("-H", "content-type: application/json")


def curl(*arguments: str, given: str = "") -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(["curl", "-sS", *arguments], input=given.encode(), capture_output=True, timeout=SECONDS, check=True)


def test_a_stream_is_named_numbered_and_ended_as_the_standard_says(url: str, model: Model) -> None:
    model.hears("Hello", says("Hi there."))
    body = json.dumps({"model": model.name, "input": "Hello", "stream": True})
    head, _, stream = curl("-i", *JSON, "-d", body, f"{url}/responses").stdout.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 OK")
    assert b"content-type: text/event-stream" in head
    assert stream.startswith(b'event: response.created\ndata: {"type":"response.created",')
    assert stream.endswith(b"\n\ndata: [DONE]\n\n")
    assert b"\nid:" not in stream
    assert linted(events_of(stream))["status"] == "completed"


def test_no_piece_of_a_stream_ends_within_an_event(mainspring: Served, model: Model) -> None:
    model.hears("Hello", says("Good morning to you, and to everybody else."))
    body = json.dumps({"model": model.name, "input": "Hello", "stream": True})
    pieces = chunks(curl("--raw", *JSON, "-d", body, f"{mainspring.url}/responses").stdout)
    assert pieces
    assert all(piece.endswith(b"\n\n") for piece in pieces)


def test_words_arrive_while_the_model_is_still_talking(mainspring: Served, model: Model) -> None:
    model.hears("Hello", hangs("Well,", " hello."))
    body = json.dumps({"model": model.name, "input": "Hello", "stream": True})
    command = ["curl", "-sSN", "--max-time", str(SECONDS), *JSON, "-d", body, f"{mainspring.url}/responses"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        read = b""
        while b'"delta":"Well,"' not in read:
            line = process.stdout.readline()
            assert line, f"the stream ended: {read!r}"
            read += line
        model.release()
        read += process.stdout.read()
    assert linted(events_of(read))["output"][0]["content"][0]["text"] == "Well, hello."


def test_an_answer_is_plain_json(url: str, model: Model) -> None:
    model.hears("Hello", says("Hi."))
    body = json.dumps({"model": model.name, "input": "Hello"})
    head, _, answer = curl("-i", *JSON, "-d", body, f"{url}/responses").stdout.partition(b"\r\n\r\n")
    assert b"content-type: application/json" in head
    assert b"x-request-id: " in head
    assert json.loads(answer)["output"][0]["content"][0]["text"] == "Hi."


def test_a_large_body_is_taken(url: str, model: Model, tmp_path: Path) -> None:
    model.hears("Hello", says("That was long."))
    body = tmp_path / "body.json"
    body.write_text(json.dumps({"model": model.name, "input": "Hello " * 500_000}))
    answer = json.loads(curl(*JSON, "--data-binary", f"@{body}", f"{url}/responses").stdout)
    assert answer["status"] == "completed"


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        (("-d", "{}"), 415, "application/json"),
        ((*JSON, "-d", "{"), 400, "not valid JSON"),
        ((*JSON, "-d", "[]"), 400, "object"),
        (("-X", "PUT"), 405, "PUT"),
    ],
)
def test_what_cannot_be_understood_is_refused_in_words(url: str, arguments: tuple[str, ...], status: int, words: str) -> None:
    told = curl("-w", "\n%{http_code}", *arguments, f"{url}/responses").stdout.decode()
    answer, _, code = told.rpartition("\n")
    assert int(code) == status
    assert words in json.loads(answer)["error"]["message"]


def chunks(raw: bytes) -> list[bytes]:
    """The pieces of a chunked body."""
    pieces = []
    while raw:
        size, _, rest = raw.partition(b"\r\n")
        length = int(size, 16)
        if length:
            pieces.append(rest[:length])
        raw = rest[length + 2 :]
    return pieces
