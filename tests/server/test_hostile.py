"""Whatever a client sends, it gets a clean refusal or an answer, and the server goes on."""

import json
import socket
from collections.abc import Iterator, Mapping
from contextlib import closing
from http.client import HTTPConnection
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec import Struct
from tests.server.linter import Json
from tests.server.process import Served, serving
from websockets.sync.client import connect

pytestmark = pytest.mark.slow

MB = 1024 * 1024
ROUTES = (
    "/v1/responses",
    "/v1/responses/compact",
    "/v1/responses/input_tokens",
    "/v1/conversations",
    "/v1/conversations/CONVERSATION",
    "/v1/conversations/CONVERSATION/items",
)
CREATING = ROUTES[:3]


class Answer(Struct):
    status: int
    body: bytes
    headers: Mapping[str, str]

    @property
    def error(self) -> Json:
        """The error, which must be one that clients of the OpenAI API understand."""
        assert 400 <= self.status < 500, f"{self.status} {self.body[:500]!r}"
        assert self.headers["content-type"] == "application/json"
        error: Json = json.loads(self.body)["error"]
        assert set(error) == {"message", "type", "param", "code"}
        assert 0 < len(error["message"]) < 3000
        assert error["type"] == "invalid_request_error"
        assert isinstance(error["code"], str)
        return error


class Door:
    """The server, a response and a conversation that it keeps."""

    def __init__(self, served: Served) -> None:
        self.served = served
        self.address = urlsplit(served.url).netloc
        self.conversation = str(json.loads(self.send("/v1/conversations", {}).body)["id"])
        self.response = str(json.loads(self.send("/v1/responses", {"input": "hello"}).body)["id"])

    def send(self, path: str, body: object = None, *, method: str = "POST", kind: str | None = "application/json") -> Answer:
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        path = path.replace("CONVERSATION", getattr(self, "conversation", "")).replace("RESPONSE", getattr(self, "response", ""))
        with closing(HTTPConnection(self.address, timeout=60)) as line:
            return answered(line, method, path, None if method == "GET" else raw, {} if kind is None else {"content-type": kind})

    def get(self, path: str) -> Answer:
        return self.send(path, method="GET", kind=None)

    def settled(self, path: str, body: object) -> Answer:
        """An answer to a body that may be accepted; if it is not, the refusal is clean."""
        answer = self.send(path, body)
        assert answer.status == 200 or answer.error
        return answer

    def raw(self, *pieces: bytes) -> "socket.socket":
        host, port = self.address.split(":")
        line = socket.create_connection((host, int(port)), timeout=30)
        for piece in pieces:
            line.sendall(piece)
        return line


def answered(line: HTTPConnection, method: str, path: str, body: bytes | None, headers: dict[str, str]) -> Answer:
    line.request(method, path, body, headers)
    answer = line.getresponse()
    return Answer(answer.status, answer.read(), {name.lower(): value for name, value in answer.getheaders()})


@pytest.fixture(scope="module")
def door(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Door]:
    folder: Path = tmp_path_factory.mktemp("hostile")
    with serving(folder, [{"when": "", "say": "Hello there."}]) as served:
        door = Door(served)
        yield door
        assert json.loads(door.get("/healthz").body)["status"] == "ok"
        assert door.get("/v1/responses/RESPONSE").status == 200
        served.stop()
        assert served.process.stdout is not None
        log = served.process.stdout.read()
    assert "Traceback" not in log, log[-5000:]


@pytest.mark.parametrize("path", ROUTES)
@pytest.mark.parametrize(
    "body",
    [
        b"{", b"}", b"\x00", b"\xff\xfe", b"\x89PNG\r\n\x1a\n", b"null", b"[]", b"7", b'"x"', b"{}{}", b"{'a': 1}", b"NaN",
        b"\xef\xbb\xbf{}", b'{"items": Infinity, "input": Infinity}', b"[" * 100_000, b'{"input":' * 100_000,
        b'{"input": "\\ud800", "metadata": {"a": "\\ud800"}}', b'{"input": "\xed\xa0\x80", "metadata": {"a": "\xed\xa0\x80"}}',
        b'{"input": "\xff", "metadata": {"a": "\xff"}}', b'{"input": 1e400, "metadata": 1e400}',
        b'{"input": "x", "metadata": {"a": ' + b"9" * 5000 + b"}}", b'{"input": "a\nb", "metadata": "a\nb"}',
    ],
    ids=lambda body: repr(body[:24]) if isinstance(body, bytes) else None,
)  # fmt: skip
def test_a_body_that_cannot_be_read_is_refused(door: Door, path: str, body: bytes) -> None:
    error = door.send(path, body).error
    assert error["code"] in ("invalid_json", "invalid_type", "missing_required_parameter", "too_many_values")
    assert error["param"]


def test_an_empty_body_is_an_empty_object_or_refused(door: Door) -> None:
    for path in ROUTES:
        assert door.settled(path, b"").status == (200 if path == "/v1/conversations" else 400)


@pytest.mark.parametrize("depth", [50, 200, 400, 600, 800, 900, 960, 990, 1000, 1010, 5000])
def test_nesting_is_either_kept_or_refused(door: Door, depth: int) -> None:
    nested = b"[" * depth + b"]" * depth
    item = b'{"type": "odd", "content": %s}' % nested
    for body in (
        b'{"input": "hello", "text": {"format": null, "odd": %s}}' % nested,
        b'{"input": "hello", "reasoning": {"odd": %s}}' % nested,
        b'{"input": "hello", "tools": [{"type": "function", "name": "f", "parameters": {"odd": %s}}]}' % nested,
        b'{"input": "hello", "tools": [{"type": "odd", "odd": %s}]}' % nested,
        b'{"input": "hello", "unknown": %s}' % nested,
        b'{"input": [{"role": "user", "content": [{"type": "odd", "odd": %s}]}]}' % nested,
        b'{"input": [%s, {"role": "user", "content": "hello"}]}' % item,
    ):
        answer = door.settled("/v1/responses", body)
        if answer.status == 200:
            made = json.loads(answer.body)
            again = door.get(f"/v1/responses/{made['id']}")
            assert (again.status, json.loads(again.body)) == (200, made)
            assert door.get(f"/v1/responses/{made['id']}/input_items").status == 200
            assert door.get(f"/v1/responses/{made['id']}?stream=true").status == 200
            assert door.send("/v1/responses", {"input": "and?", "previous_response_id": made["id"]}).status == 200
        for path in CREATING[1:]:
            door.settled(path, body.replace(b'"input"', b'"model": "m", "input"'))
    if door.settled("/v1/conversations/CONVERSATION/items", b'{"items": [%s]}' % item).status == 200:
        assert door.get("/v1/conversations/CONVERSATION/items?limit=100").status == 200
    door.settled("/v1/conversations", b'{"items": [%s]}' % item)


any_json: st.SearchStrategy[object] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.just("\x00") | st.just(10**30),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
FIELDS = (
    "model", "input", "instructions", "previous_response_id", "conversation", "tools", "tool_choice", "parallel_tool_calls",
    "max_tool_calls", "max_output_tokens", "temperature", "top_p", "presence_penalty", "frequency_penalty", "top_logprobs",
    "text", "reasoning", "truncation", "context_management", "store", "background", "stream", "stream_options", "service_tier",
    "metadata", "safety_identifier", "prompt_cache_key", "user", "include", "items",
)  # fmt: skip
KINDS = (
    "message", "function_call", "function_call_output", "reasoning", "mcp_approval_request", "mcp_approval_response",
    "item_reference", "mcp_call", "compaction", "custom_tool_call", "custom_tool_call_output", "shell_call", "shell_call_output",
    "local_shell_call", "local_shell_call_output", "apply_patch_call", "apply_patch_call_output", "computer_call", "odd",
)  # fmt: skip
ITEM_FIELDS = (
    "role", "content", "id", "call_id", "name", "arguments", "output", "status", "summary", "encrypted_content", "input",
    "approval_request_id", "approve", "server_label", "error", "action", "operation", "environment",
)  # fmt: skip
odd_items = st.builds(
    lambda kind, rest: {**rest, "type": kind},
    st.sampled_from(KINDS),
    st.dictionaries(
        st.sampled_from(ITEM_FIELDS),
        any_json | st.sampled_from(["user", "assistant", "completed", "mainspring", "{}", "x"]),
        max_size=6,
    ),
)
odd_tools = st.builds(
    lambda kind, rest: {**rest, "type": kind},
    st.sampled_from(
        ["function", "custom", "mcp", "shell", "local_shell", "apply_patch", "web_search", "code_interpreter", "odd"]
    ),
    st.dictionaries(
        st.sampled_from(["name", "description", "parameters", "strict", "format", "server_label"]), any_json, max_size=4
    ),
)
bodies = st.dictionaries(st.sampled_from(FIELDS), any_json, max_size=4) | st.fixed_dictionaries(
    {},
    optional={
        "input": st.lists(odd_items, max_size=3) | st.text(max_size=8),
        "items": st.lists(odd_items, max_size=3),
        "tools": st.lists(odd_tools, max_size=3),
        "tool_choice": st.sampled_from(["auto", "none", "required"]) | odd_tools,
        "model": st.text(max_size=8),
        "text": any_json,
        "metadata": st.dictionaries(st.text(max_size=4), st.text(max_size=4), max_size=3),
        "stream": st.booleans(),
        "store": st.booleans(),
        "background": st.booleans(),
    },
)


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(path=st.sampled_from(ROUTES), body=bodies)
def test_wrong_types_anywhere_are_refused_or_taken_but_never_fail(door: Door, path: str, body: Json) -> None:
    door.settled(path, json.dumps(body, allow_nan=True).encode())


def test_of_duplicated_keys_the_last_counts_and_none_may_be_wrong(door: Door) -> None:
    made = json.loads(door.send("/v1/responses", b'{"input": "hello", "temperature": 0, "temperature": 1.5}').body)
    assert made["temperature"] == 1.5
    assert door.send("/v1/responses", b'{"input": "hello", "temperature": 9, "temperature": 1}').error["param"] == "temperature"


def test_null_characters_are_kept_where_text_is_free_and_name_nothing_elsewhere(door: Door) -> None:
    body = {"input": "a\0b", "model": "m\0", "metadata": {"k\0": "v\0"}, "instructions": "\0"}
    made = json.loads(door.settled("/v1/responses", body).body)
    assert json.loads(door.get(f"/v1/responses/{made['id']}").body) == made
    assert (made["model"], made["metadata"]) == ("m\0", {"k\0": "v\0"})
    assert [told["id"] for told in json.loads(door.get("/v1/responses?model=m%00").body)["data"]] == [made["id"]]
    assert (
        door.send("/v1/responses", {"input": "x", "previous_response_id": "resp\0"}).error["code"]
        == "previous_response_not_found"
    )
    assert door.send("/v1/responses", {"input": "x", "conversation": "conv\0"}).error["code"] == "not_found"
    assert door.send("/v1/responses", {"input": [{"type": "item_reference", "id": "\0"}]}).error["param"] == "input"
    for path in ("/v1/responses/%00", "/v1/conversations/%00", "/v1/conversations/CONVERSATION/items/%00"):
        assert door.get(path).error["code"] == "not_found"
    for path in ("/v1/responses?after=%00", "/v1/conversations/CONVERSATION/items?after=%00"):
        assert door.get(path).error["param"] == "after"


@pytest.mark.parametrize(
    ("body", "param", "code"),
    [
        (
            {"input": "x", "tools": [{"type": "function", "name": f"f{n}"} for n in range(10_000)]},
            "tools",
            "array_above_max_length",
        ),
        ({"input": [{"role": "user", "content": "x"}] * 10_000}, "input", "array_above_max_length"),
        ({"input": "x", "model": "m" * MB}, "model", "string_above_max_length"),
        ({"input": "x", "previous_response_id": "r" * MB}, "previous_response_id", "string_above_max_length"),
        ({"input": "x" * 11 * MB}, "input", "string_above_max_length"),
        ({"input": "x", "metadata": {"k" * MB: "v"}}, "metadata", "string_above_max_length"),
        ({"input": "x", "metadata": {str(n): "v" for n in range(17)}}, "metadata", "object_above_max_properties"),
        ({"input": "x", "tools": [{"type": "function", "name": "f" * MB}]}, "tools[0].name", "invalid_request_error"),
        ({"input": "x", "tool_choice": {"type": "function", "name": "f" * MB}}, "tool_choice", "invalid_request_error"),
        ({"input": [{"type": "item_reference", "id": "i" * MB}]}, "input", "invalid_request_error"),
        ({"input": "x", "max_output_tokens": 15}, "max_output_tokens", "integer_below_min_value"),
        ({"input": "x", "temperature": 2.5}, "temperature", "decimal_above_max_value"),
        ({"input": "x", "truncation": "perhaps"}, "truncation", "invalid_value"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_what_is_too_much_is_refused_by_name(door: Door, body: Json, param: str, code: str) -> None:
    for path in CREATING:
        if path != "/v1/responses/compact" or not {"tools", "tool_choice", "metadata"} & set(body):
            error = door.send(path, {"model": "m", **body}).error
            assert (error["param"], error["code"]) == (param, code)


def test_more_items_than_a_conversation_takes_are_refused(door: Door) -> None:
    items = [{"role": "user", "content": "x"}] * 10_000
    for path in ("/v1/conversations", "/v1/conversations/CONVERSATION/items"):
        assert door.send(path, {"items": items}).error["code"] == "array_above_max_length"


def _status(line: "socket.socket") -> bytes:
    """The head of the next answer."""
    seen = b""
    while b"\r\n\r\n" not in seen:
        more = line.recv(65536)
        assert more, f"the server hung up after {seen!r}"
        seen += more
    return seen


@pytest.mark.parametrize("path", [route for route in ROUTES if "CONVERSATION" not in route])
def test_a_body_that_is_announced_too_large_is_refused_before_it_is_sent(door: Door, path: str) -> None:
    head = f"POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {50 * MB}\r\n\r\n"
    with closing(door.raw(head.encode())) as line:
        assert _status(line).startswith(b"HTTP/1.1 413 ")


def test_after_a_body_too_large_the_connection_can_be_used_again(door: Door) -> None:
    with closing(HTTPConnection(door.address, timeout=60)) as line:
        answer = answered(line, "POST", "/v1/responses", b" " * (50 * MB), {"content-type": "application/json"})
        assert (answer.status, answer.error["code"], answer.error["param"]) == (413, "request_too_large", "body")
        assert answered(line, "GET", "/healthz", None, {}).status == 200


def test_a_body_in_chunks_is_refused_once_it_is_too_large(door: Door) -> None:
    head = (
        b"POST /v1/responses HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n"
    )
    chunk = b"100000\r\n" + b" " * MB + b"\r\n"
    with closing(door.raw(head, *[chunk] * 33)) as line:
        assert _status(line).startswith(b"HTTP/1.1 413 ")
        line.sendall(b"0\r\n\r\nGET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n")
        seen = b""
        while b'"ok"' not in seen:
            seen += line.recv(65536)


def test_a_body_that_never_comes_holds_up_nobody(door: Door) -> None:
    head = b"POST /v1/responses HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: 20\r\n\r\n{"
    with closing(door.raw(head)):
        assert door.send("/v1/responses", {"input": "hello"}).status == 200


@pytest.mark.parametrize(
    "lines",
    [
        b"\x00\x01\x02\r\n\r\n",
        b"GET\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"POST /v1/responses HTTP/1.1\r\nhost: localhost\r\ncontent-length: -1\r\n\r\n",
        b"POST /v1/responses HTTP/1.1\r\nhost: localhost\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\nxx",
        b"POST /v1/responses HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
        b"GET /v1/responses/\xff\xfe HTTP/1.1\r\nhost: localhost\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\nhost: localhost\r\nx-request-id: a\x00b\r\n\r\n",
    ],
)
def test_what_is_no_http_is_refused_or_cut_off(door: Door, lines: bytes) -> None:
    with closing(door.raw(lines)) as line:
        line.shutdown(socket.SHUT_WR)
        seen = b""
        while more := line.recv(65536):
            seen += more
    assert not seen or seen.startswith(b"HTTP/1.1 4")
    assert door.get("/healthz").status == 200


@pytest.mark.parametrize("kind", [None, "", "text/plain", "application/x-www-form-urlencoded", "multipart/form-data", "x" * 9000])
def test_another_content_type_is_refused(door: Door, kind: str | None) -> None:
    for path in ROUTES:
        answer = door.send(path, {"input": "hello"}, kind=kind)
        assert (answer.status, answer.error["code"]) == (415, "unsupported_media_type")


@pytest.mark.parametrize(
    ("path", "allowed"),
    [
        ("/v1/responses", "GET, HEAD, POST"),
        ("/v1/responses/compact", "POST"),
        ("/v1/responses/RESPONSE", "DELETE, GET, HEAD"),
        ("/v1/responses/RESPONSE/cancel", "POST"),
        ("/v1/conversations", "GET, HEAD, POST"),
        ("/v1/conversations/CONVERSATION", "DELETE, GET, HEAD, POST"),
        ("/v1/conversations/CONVERSATION/items", "GET, HEAD, POST"),
        ("/v1/models", "GET, HEAD"),
    ],
)
def test_a_wrong_method_is_told_the_right_ones(door: Door, path: str, allowed: str) -> None:
    for method in ("PUT", "PATCH", "OPTIONS"):
        answer = door.send(path, {}, method=method)
        assert (answer.status, answer.error["code"], answer.headers["allow"]) == (405, "method_not_allowed", allowed)


@pytest.mark.parametrize(
    "path",
    [
        "/v1", "/v1/", "/v2/responses", "/v1/responses/", "/v1//responses", "//v1/responses", "/v1/responses/a/b/c",
        "/v1/responses/..%2f..%2f..%2fetc%2fpasswd", "/v1/responses/%2e%2e/%2e%2e/etc/passwd", "/%2e%2e/%2e%2e/etc/passwd",
        "/v1/responses%00", "/v1/responses%2f", "/v1/%72esponses%2fx%2fy", "/v1/responses/%ff", "/v1/responses/%ed%a0%80",
        "/v1/responses/%", "/v1/responses/%zz", "/v1/responses/resp_nope%0d%0ax-evil:%201", "/v1/responses/" + "x" * 8000,
        "/v1/conversations/' OR 1=1 --".replace(" ", "%20"), "/v1/responses/RESPONSE%00", "/v1/responses/;RESPONSE",
    ],
)  # fmt: skip
def test_an_unknown_place_is_not_found(door: Door, path: str) -> None:
    answer = door.get(path)
    assert (answer.status, answer.error["code"]) == (404, "not_found")
    assert "x-evil" not in answer.headers


@pytest.mark.parametrize(
    ("query", "param"),
    [
        ("limit=0", "limit"), ("limit=101", "limit"), ("limit=-1", "limit"), ("limit=1e1", "limit"),
        ("limit=" + "9" * 5000, "limit"),
        ("limit=%D9%A3", "limit"), ("limit=", "limit"), ("limit=%00", "limit"), ("order=up", "order"), ("order=%00", "order"),
        ("status=queued", "status"), ("status=nice", "status"), ("background=maybe", "background"), ("after=nobody", "after"),
        ("created_after=yesterday", "created_after"), ("created_before=-1", "created_before"), ("after=" + "x" * 8000, "after"),
    ],
)  # fmt: skip
def test_a_query_that_makes_no_sense_is_refused_by_name(door: Door, query: str, param: str) -> None:
    assert door.get(f"/v1/responses?{query}").error["param"] == param


def test_odd_queries_find_nothing_and_unknown_parameters_are_ignored(door: Door) -> None:
    for query in (
        "model=%00",
        "model=%ff",
        "conversation=%ED%A0%80",
        "previous_response_id=%27%20OR%201=1",
        "created_after=" + "9" * 15,
    ):
        assert json.loads(door.get(f"/v1/responses?{query}").body)["data"] == []
    assert door.get("/v1/responses?unheard_of=1&%00=%00&a[b]=c&&&===").status == 200
    for query in ("starting_after=-2", "starting_after=x", "starting_after=" + "9" * 400):
        assert door.get(f"/v1/responses/RESPONSE?stream=true&{query}").error["param"] == "starting_after"
    assert door.get("/v1/responses/RESPONSE?stream=perhaps").error["param"] == "stream"
    assert door.get("/v1/responses/RESPONSE?stream=true&starting_after=999999").body == b"data: [DONE]\n\n"


@pytest.mark.parametrize(
    "frame",
    [
        "", "{", "null", "[]", "7", '"x"', "\0", "[" * 100_000, '{"type": "response.create"', '{"type": 7}', b"\xff\x00", b"",
        '{"type": "\\ud800"}', '{"type": "session.update"}', '{"type": "response.create"}',
        '{"type": "response.create", "input": 1e400}',
        '{"type": "response.create", "input": ' + "9" * 5000 + "}", '{"type": "response.create", "input": [[]]}',
        '{"type": "response.create", "input": "x", "model": "' + "m" * MB + '"}',
        '{"type": "response.create", "input": "x", "previous_response_id": {"a": []}}',
    ],
    ids=lambda frame: repr(frame[:24]),
)  # fmt: skip
def test_a_frame_that_makes_no_sense_gets_an_envelope_and_the_socket_lives(door: Door, frame: str | bytes) -> None:
    with connect(f"ws://{door.address}/v1/responses", open_timeout=30) as line:
        line.send(frame)
        told = json.loads(line.recv(30))
        assert (told["type"], told["status"]) in (("error", 400), ("error", 413))
        assert told["error"]["type"] == "invalid_request_error"
        assert told["error"]["code"]
        line.send('{"type": "response.create", "input": "hello"}')
        while (told := json.loads(line.recv(30)))["type"] != "response.completed":
            assert told["type"] != "error"


@pytest.mark.parametrize(
    "garbage",
    [b"\xff" * 64, b"\x81\x05hello", b"\x8f\x80\x00\x00\x00\x00", b"\x81\xff\xff\xff\xff\xff\xff\xff\xff\xff" + b"\0" * 64],
    ids=["ones", "not masked", "unknown opcode", "endless"],
)
def test_bytes_that_are_no_frame_end_their_own_connection_only(door: Door, garbage: bytes) -> None:
    head = b"GET /v1/responses HTTP/1.1\r\nhost: localhost\r\nconnection: upgrade\r\nupgrade: websocket\r\n"
    with closing(door.raw(head + b"sec-websocket-version: 13\r\nsec-websocket-key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n")) as line:
        assert _status(line).startswith(b"HTTP/1.1 101 ")
        line.sendall(garbage)
        line.shutdown(socket.SHUT_WR)
        while line.recv(65536):
            pass
    assert door.get("/healthz").status == 200
