"""A body of any shape costs little: one that would take long is refused before it is parsed, and large texts are none of those.

The processor's time stands for how long others wait, since a busy machine must not fail this.
"""

import json
import os
from collections.abc import Callable, Iterator
from http.client import HTTPConnection
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from tests.kit.waiting import PATIENCE
from tests.server.process import Served, serving
from websockets.sync.client import connect

MB = 1024 * 1024
TICKS = os.sysconf("SC_CLK_TCK")
# Each of these took between 1.4 and 47 seconds, on a machine on which the small ones take a millisecond.
MOST_SECONDS = 1.2

Body = Callable[[], bytes]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving(tmp_path_factory.mktemp("large"), [{"when": "", "say": "Hello there."}]) as served:
        post(served, "/v1/responses", b'{"input": "hello"}')  # imports what the first request imports
        yield served


def post(served: Served, path: str, body: bytes) -> tuple[int, dict[str, str]]:
    line = HTTPConnection(urlsplit(served.url).netloc, timeout=PATIENCE)
    line.request("POST", path, body, {"content-type": "application/json"})
    answer = line.getresponse()
    told = json.loads(answer.read())
    line.close()
    return answer.status, told.get("error") or {}


def cpu_seconds(served: Served) -> float:
    user, system = Path(f"/proc/{served.process.pid}/stat").read_text().rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / TICKS


def peak_bytes(served: Served, *, reset: bool = False) -> int:
    if reset:
        Path(f"/proc/{served.process.pid}/clear_refs").write_text("5")
    return int(Path(f"/proc/{served.process.pid}/status").read_text().partition("VmHWM:")[2].split()[0]) * 1024


def nested(size: int) -> bytes:
    return b"[" * 50 + b",".join([b"[[[]]]"] * (size // 7)) + b"]" * 50


def words(size: int) -> bytes:
    return b",".join([b'"v%07d"' % number for number in range(size // 11)])


def pairs(size: int) -> bytes:
    return b",".join([b'"k%07d": 1' % number for number in range(size // 14)])


HOSTILE: dict[str, tuple[str, Body]] = {
    "unknown tool": ("/v1/responses", lambda: b'{"input": "x", "tools": [{"type": "odd", "x": ' + nested(30 * MB) + b"}]}"),
    "parameters": (
        "/v1/responses",
        lambda: b'{"input": "x", "tools": [{"type": "function", "name": "f", "parameters": {"x": ' + nested(30 * MB) + b"}}]}",
    ),
    "enum": (
        "/v1/responses",
        lambda: (
            b'{"input": "x", "text": {"format": {"type": "json_schema", "name": "f", "schema": {"enum": [%s]}}}}' % words(21 * MB)
        ),
    ),
    "unknown field": ("/v1/responses", lambda: b'{"input": "x", "odd": ' + nested(30 * MB) + b"}"),
    "metadata": ("/v1/responses", lambda: b'{"input": "x", "metadata": {%s}}' % pairs(28 * MB)),
    "fields": ("/v1/responses", lambda: b'{"input": "x", %s}' % pairs(28 * MB)),
    "parts": (
        "/v1/conversations",
        lambda: b'{"items": [{"role": "user", "content": [%s]}]}' % b",".join([b'{"type": "input_text", "text": ""}'] * 800_000),
    ),
    "strings with signs": ("/v1/responses", lambda: b'{"input": "x", "odd": [%s]}' % b",".join([rb'"\"[{,\\"'] * 2_000_000)),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_body_of_a_million_values_is_refused_before_it_is_parsed(served: Served, name: str) -> None:
    path, make = HOSTILE[name]
    body = make()
    before, used = peak_bytes(served, reset=True), cpu_seconds(served)
    status, error = post(served, path, body)
    assert (status, error["code"], error["param"]) == (413, "too_many_values", "body")
    assert cpu_seconds(served) - used < MOST_SECONDS
    assert peak_bytes(served) - before < 5 * len(body)


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (lambda: json.dumps({"input": [{"role": "user", "content": "x" * 31_000}] * 1000}).encode(), "string_above_max_length"),
        (lambda: json.dumps({"input": "\\" * 15 * MB}).encode(), "string_above_max_length"),
        (lambda: b'{"input": "' + b"\\" * 30 * MB, "invalid_json"),
        (lambda: b'{"input": "' + b'\\"' * 15 * MB, "invalid_json"),
    ],
    ids=["items", "text", "slashes", "quotes"],
)
def test_too_much_text_is_refused(served: Served, body: Body, code: str) -> None:
    sent = body()
    before, used = peak_bytes(served, reset=True), cpu_seconds(served)
    status, error = post(served, "/v1/responses", sent)
    assert (status, error["code"]) == (400, code)
    assert cpu_seconds(served) - used < MOST_SECONDS
    assert peak_bytes(served) - before < 5 * len(sent)


def test_large_texts_of_any_signs_and_images_are_taken(served: Served) -> None:
    for text in ('[{,"' * MB, "\\" * 4 * MB, "x" * 9 * MB, "1,2,3\n" * MB):
        assert post(served, "/v1/responses", json.dumps({"input": text, "store": False}).encode())[0] == 200
    image = {"type": "input_image", "image_url": "data:image/png;base64," + "A" * 20 * MB}
    sent = json.dumps({"input": [{"role": "user", "content": [image]}], "store": False}).encode()
    assert post(served, "/v1/responses", sent)[0] == 200


def test_text_is_counted_in_characters_and_pairs_as_values_in_every_script(served: Served) -> None:
    chinese = json.dumps({"input": [{"role": "user", "content": "字" * 4 * MB}], "store": False}, ensure_ascii=False).encode()
    assert len(chinese) > 12 * MB
    assert post(served, "/v1/responses", chinese)[0] == 200
    shot = {"type": "input_image", "image_url": "data:image/png;base64," + "A" * 12 * MB}
    call = {"type": "function_call", "call_id": "c", "name": "look", "arguments": "{}"}
    seen = {"type": "function_call_output", "call_id": "c", "output": [shot]}
    assert (
        post(
            served,
            "/v1/responses",
            json.dumps({"input": [call, seen, {"role": "user", "content": "So?"}], "store": False}).encode(),
        )[0]
        == 200
    )
    pairs = b'{"input": "x", "store": false, "odd": {%s}}' % b",".join([b'"k%05d": "v"' % number for number in range(40_000)])
    assert post(served, "/v1/responses", pairs)[0] == 200


def test_a_frame_of_a_million_values_is_refused_too(served: Served) -> None:
    with connect(served.url.replace("http", "ws") + "/responses", max_size=None) as socket:
        socket.send('{"type": "response.create", "input": "x", "odd": ' + nested(20 * MB).decode() + "}")
        assert json.loads(socket.recv(timeout=PATIENCE))["error"]["code"] == "too_many_values"


@pytest.mark.parametrize("count", [12, 1000])
def test_references_may_stand_for_as_much_as_could_be_sent(served: Served, count: int) -> None:
    """A thousand short references to one long item took eleven seconds, and every write after it failed."""
    item = {"id": f"msg_long{count}", "role": "user", "content": "x" * MB}
    assert post(served, "/v1/responses", json.dumps({"input": [item]}).encode())[0] == 200
    references = [{"type": "item_reference", "id": item["id"]}] * count
    before, used = peak_bytes(served, reset=True), cpu_seconds(served)
    status, error = post(served, "/v1/responses", json.dumps({"input": references}).encode())
    assert (status, error["code"], error["param"]) == (400, "string_above_max_length", "input")
    assert post(served, "/v1/responses", json.dumps({"input": references[:8]}).encode())[0] == 200
    assert cpu_seconds(served) - used < 2 * MOST_SECONDS
    assert peak_bytes(served) - before < 100 * MB


def test_an_answer_is_held_against_a_schema_of_relative_references(tmp_path: Path) -> None:
    words = {"word": {"type": "string"}}
    place = {"$ref": "root.json#/$defs/word"}
    schema = {"$id": "http://x/root.json", "properties": {"w": place}, "$defs": words, "required": ["w"]}
    form = {"type": "json_schema", "name": "f", "schema": schema}
    sent = json.dumps({"input": "x", "text": {"format": form}}).encode()
    with serving(tmp_path, [{"when": "", "say": '{"w": "a word"}'}]) as served:
        assert post(served, "/v1/responses", sent) == (200, {})
    with serving(tmp_path, [{"when": "", "say": '{"w": 7}'}]) as served:
        _, error = post(served, "/v1/responses", sent)
        assert error["reason"] == "provider_invalid_output"


@pytest.mark.parametrize(
    "patterns",
    [
        [rf"(?=\w{{100}})\w{{100}}{number}" for number in range(300)],
        [r"\w{50}+" * 9_000],
        [r"(?:(?:a{1,99}){1,99}){1,99}"],
    ],
    ids=["looking ahead", "long", "nested"],
)
def test_patterns_that_take_long_to_compile_are_refused(tmp_path: Path, patterns: list[str]) -> None:
    properties = {f"p{number}": {"type": "string", "pattern": pattern} for number, pattern in enumerate(patterns)}
    form = {"type": "json_schema", "name": "f", "schema": {"type": "object", "properties": properties}}
    with serving(tmp_path, [{"when": "", "say": "{}"}]) as served:
        used = cpu_seconds(served)
        status, error = post(served, "/v1/responses", json.dumps({"input": "x", "text": {"format": form}}).encode())
        assert error, status
        assert cpu_seconds(served) - used < 2 * MOST_SECONDS


def test_an_answer_is_not_held_against_a_slow_pattern_for_minutes(tmp_path: Path) -> None:
    words = {"type": "array", "items": {"type": "string", "pattern": r"(?=x*)^(?:(?:a|a)+)+(?<!b)$"}}
    form = {"type": "json_schema", "name": "f", "schema": {"type": "object", "properties": {"words": words}}}
    sent = json.dumps({"input": "x", "text": {"format": form}}).encode()
    with serving(tmp_path, [{"when": "", "say": json.dumps({"words": ["a" * 60 + "!"] * 3_000})}], chunk=10_000) as served:
        used = cpu_seconds(served)
        status, error = post(served, "/v1/responses", sent)
        assert "steps" in error["message"], (status, error)
        assert cpu_seconds(served) - used < 2 * MOST_SECONDS


def test_an_answer_is_not_held_against_a_schema_for_years(tmp_path: Path) -> None:
    twice = {f"d{n}": {"allOf": [{"$ref": f"#/$defs/d{n + 1}"}] * 2} for n in range(40)}
    schema = {"$ref": "#/$defs/d0", "$defs": {**twice, "d40": {"type": "object"}}}
    form = {"type": "json_schema", "name": "f", "schema": schema}
    with serving(tmp_path, [{"when": "", "say": "{}"}]) as served:
        used = cpu_seconds(served)
        status, error = post(served, "/v1/responses", json.dumps({"input": "x", "text": {"format": form}}).encode())
        assert "steps" in error["message"], (status, error)
        assert cpu_seconds(served) - used < 2 * MOST_SECONDS
