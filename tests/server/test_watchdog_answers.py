"""While a backend answers with whatever it likes, nobody else notices: the response fails or is answered, and that is all."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from tests.server.test_watchdog import MB, Attacked, start_server

pytestmark = pytest.mark.slow

Json = dict[str, Any]
TOOL: Json = {
    "type": "function",
    "name": "look",
    "parameters": {"type": "object", "properties": {"place": {"type": "string"}, "count": {"type": "integer"}}},
}


def write(message: Json, *, name: str = "delta", finish: str | None = "stop") -> bytes:
    return json.dumps({"choices": [{"index": 0, name: message, "finish_reason": finish}]}).encode()


def call(arguments: object) -> Json:
    return {"tool_calls": [{"index": 0, "id": "a", "function": {"name": "look", "arguments": arguments}}]}


def call_often(count: int) -> Json:
    return {"tool_calls": [call("{}")["tool_calls"][0] | {"index": number, "id": f"c{number}"} for number in range(count)]}


def event(data: bytes) -> bytes:
    return b"data: " + data + b"\n\n"


def say(text: str, size: int = 0) -> bytes:
    """The text in pieces, as a model writes it, or in one."""
    pieces = [text[start : start + size] for start in range(0, len(text), size)] if size else [text]
    return b"".join([event(write({"content": piece}, finish=None)) for piece in pieces]) + event(write({}))


def nest(depth: int) -> bytes:
    return b"[" * depth + b"]" * depth


class Answer(NamedTuple):
    """What the backend sends, and what becomes of it: a word of the error, or of the answer."""

    make: Callable[[], bytes]
    told: str
    is_whole: bool = False


MOST = 8 * MB
# By what the backend is asked.
ANSWERS: dict[str, Answer] = {
    "whole text": Answer(lambda: write({"content": "word " * (3 * MB // 2)}, name="message"), "completed", is_whole=True),
    "whole and too long": Answer(lambda: write({"content": "x" * MOST}, name="message"), "more than 8388608", is_whole=True),
    "whole values": Answer(lambda: b'{"choices": [], "x": [' + b"[]," * 2 * MB + b"[]]}", "more than 262144", is_whole=True),
    "whole keys": Answer(
        lambda: json.dumps({f"k{number}": number for number in range(250_000)}).encode(), "without a word", is_whole=True
    ),
    "whole depth": Answer(lambda: b'{"choices": [], "x": ' + nest(3 * MB) + b"}", "more than 262144", is_whole=True),
    "less depth": Answer(lambda: b'{"choices": [], "x": ' + nest(200_000) + b"}", "recursion", is_whole=True),
    "whole calls": Answer(lambda: write(call_often(20_000), name="message"), "provider_too_many_items", is_whole=True),
    "large chunk": Answer(lambda: say("word " * (3 * MB // 2)), "completed"),
    "chunk that is too long": Answer(lambda: say("x" * MOST), "more than 8388608"),
    "large thought": Answer(lambda: event(write({"reasoning_content": "word " * (3 * MB // 2)})), "without a word"),
    "chunk of values": Answer(lambda: event(b'{"choices": [], "x": [' + b"[]," * 2 * MB + b"[]]}"), "more than 262144"),
    "no JSON": Answer(lambda: event(b'{"choices": [NaN' + b",NaN" * 200_000 + b"]}"), "is no Chat Completions chunk"),
    "blanks": Answer(lambda: say("\n" * 3 * MB + "So."), "completed"),
    "large arguments": Answer(lambda: event(write(call('{"place": "' + "x" * 7 * MB + '"}'))), "completed"),
    "arguments of values": Answer(lambda: event(write(call('{"place": [' + "[]," * 2 * MB + "[]]}"))), "completed"),
}
SMALLER: dict[str, Answer] = {
    "arguments of commas": Answer(lambda: event(write(call('{"place": "' + ",]" * 32_000 + '"}'))), "completed"),
    "arguments of quotes": Answer(lambda: event(write(call('{"place": "' + '\\"' * 32_000 + "True"))), "are no JSON"),
    "arguments of tokens": Answer(lambda: event(write(call('{"place": "' + '\\"<|\\"|>' * 8_000 + '"}'))), "completed"),
    "arguments of names": Answer(lambda: event(write(call("{" + '"place":"x",' * 30_000 + '"count":1}'))), "completed"),
    "arguments of digits": Answer(lambda: event(write(call('{"count": ' + "9" * 100_000 + "}"))), "completed"),
    "arguments in depth": Answer(lambda: event(write(call('{"place": ' + "[" * 60_000 + "]" * 60_000 + "}"))), "are no JSON"),
    "half characters": Answer(lambda: event(write(call('{"place": "' + "\\ud800" * 60_000 + '"}'))), "are no JSON"),
    "signs in one piece": Answer(lambda: say("</" * 3 * MB), "completed"),
    "fewer signs": Answer(lambda: say("</" * (MB // 2)), "completed"),
    "channels": Answer(lambda: say("<|channel|>analysis<|message|>" * 30_000), "without a word"),
    "nested thoughts": Answer(lambda: say("<think>" * 100_000, 1000), "without a word"),
    "thoughts in one piece": Answer(lambda: say("<think>" * (MB // 8)), "without a word"),
    "thoughts with attributes": Answer(lambda: say("<reflection x=" * 100_000, 1000), "completed"),
    "thoughts that end": Answer(lambda: say("<reflection>" + "</reflection>" * 100_000, 1000), "completed"),
    "calls that are opened": Answer(lambda: say("<tool>" * 80_000, 1000), "completed"),
    "calls in calls": Answer(lambda: say("<function=look><parameter=place>" * 8_000, 1000), "completed"),
    "elements without end": Answer(lambda: say("<tool_call>" + "<look>" * 40_000, 1000), "completed"),
    "brackets": Answer(lambda: say("<tool_call>" + "[look(" * 40_000, 1000), "completed"),
    "keys of calls": Answer(lambda: say('{"name": "look", "arguments": ' * 8_000, 1000), "ends half"),
}


def prompt(request: Json) -> str:
    return str(request["messages"][-1]["content"])


class Hostile(BaseHTTPRequestHandler):
    """A Chat Completions backend."""

    made: dict[str, bytes] = {}  # noqa: RUF012

    def do_POST(self) -> None:
        asked = prompt(json.loads(self.rfile.read(int(self.headers["content-length"]))))
        is_whole = asked in ANSWERS and ANSWERS[asked].is_whole
        with suppress(OSError):
            self.send_response(200)
            self.send_header("content-type", "application/json" if is_whole else "text/event-stream")
            self.end_headers()
            self.wfile.write(self.made.get(asked) or say("Hello there."))

    def log_message(self, format: str, *args: object) -> None:
        pass


@contextmanager
def hostile_backend() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Hostile) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/v1"
        server.shutdown()


@pytest.fixture(scope="module")
def attacked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Attacked]:
    folder: Path = tmp_path_factory.mktemp("attacked")
    with hostile_backend() as url:
        backend = f'kind = "chat"\nbase_url = "{url}"\nattempts = 1\nfailures = 1000\n'
        (folder / "mainspring.toml").write_text(f"[providers.hostile]\n{backend}")
        with start_server(folder, [], "--model", "hostile/m") as attacked:
            yield attacked


def ask(attacked: Attacked, name: str) -> str:
    """What has become of the answer: its error, or else its status."""
    _, told = attacked.attacker.ask("POST", "/v1/responses", json.dumps({"input": name, "tools": [TOOL]}).encode())
    answer = json.loads(told)
    return str(answer["error"] or answer["status"])


@pytest.mark.parametrize("name", ANSWERS)
def test_an_answer_is_nobody_elses_trouble(attacked: Attacked, name: str) -> None:
    Hostile.made[name] = ANSWERS[name].make()
    with attacked.expect_calm():
        assert ANSWERS[name].told in ask(attacked, name)
    del Hostile.made[name]


def test_odd_words_and_arguments_are_nobody_elses_trouble(attacked: Attacked) -> None:
    Hostile.made |= {name: answer.make() for name, answer in SMALLER.items()}
    with attacked.expect_calm():
        told = {name: ask(attacked, name) for name in SMALLER}
    assert {name: told[name] for name, answer in SMALLER.items() if answer.told not in told[name]} == {}
