"""What a turn costs does not grow with the conversation: counted in lines of Python that run, not in time."""

import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import msgspec
import pytest

import mainspring
from mainspring import Engine, tool
from mainspring.core.items import Json
from mainspring.providers.chat.provider import Chat
from mainspring.providers.http_client import HttpReply
from mainspring.providers.json_text import encode_body

# The journal and the stores run by timers, so what they do in one turn differs from time to time.
COUNTED = tuple(
    [str(Path(mainspring.__path__[0], part)) for part in ("core", "providers", "engine/engine.py", "engine/handle.py")]
)
SHORT, LONG = 50, 200


class Answer:
    """An answer that has arrived already."""

    def __init__(self, message: Json, finish: str) -> None:
        self.headers = {"Content-Type": "text/event-stream"}
        chunk = {"choices": [{"index": 0, "delta": message, "finish_reason": finish}], "usage": {"prompt_tokens": 9}}
        self._rest = b"data: %b\n\ndata: [DONE]\n\n" % msgspec.json.encode(chunk)

    async def read(self) -> bytes:
        rest, self._rest = self._rest, b""
        return rest

    def close(self) -> None:
        pass


class Backend(Chat):
    """The Chat adapter with a backend in its place. What it is sent decides: it makes a call until it has `outputs` of them, then
    speaks. It counts the lines that run between the request with `turns` turns of the model in it and the next one."""

    def __init__(self, outputs: int, turns: int) -> None:
        super().__init__("http://localhost/v1")
        self._outputs, self._turns = outputs, turns
        self.lines = 0

    async def _post(self, path: str, body: Json, query: object = None) -> HttpReply:
        messages = msgspec.json.decode(encode_body(body))["messages"]
        made = [message["role"] for message in messages].count("tool")
        said = [message["role"] for message in messages].count("assistant")
        if said == self._turns + 1:
            sys.settrace(None)
        answer = Answer({"role": "assistant", "content": "yes"}, "stop")
        if made < self._outputs:
            call = {"index": 0, "id": f"call_{made}", "function": {"name": "note", "arguments": f'{{"number": {made}}}'}}
            answer = Answer({"role": "assistant", "tool_calls": [call]}, "tool_calls")
        if said == self._turns:
            sys.settrace(self._trace)
        return HttpReply(answer, path, 1.0)  # type: ignore[arg-type]

    def _trace(self, frame: FrameType, event: str, _: Any) -> Callable[..., Any] | None:
        if event == "line":
            self.lines += 1
        return self._trace if frame.f_code.co_filename.startswith(COUNTED) else None


@tool
async def note(number: int) -> int:
    """Notes a number."""
    return number


async def count_in_run(turns: int) -> int:
    backend = Backend(outputs=turns + 2, turns=turns)
    async with Engine(backend, tools=[note]) as engine:
        run = await engine.run("go", max_turns=turns + 3)
    assert (run.status, run.turns, run.text) == ("completed", turns + 3, "yes")
    return backend.lines


async def count_in_chain(turns: int) -> int:
    backend = Backend(outputs=0, turns=turns)
    previous: str | None = None
    async with Engine(backend) as engine:
        for _ in range(turns + 2):
            previous = (await engine.run("and?", previous=previous)).spec.id
    return backend.lines


@pytest.mark.parametrize("count", [count_in_run, count_in_chain])
async def test_a_late_turn_takes_the_work_of_an_early_one(count: Callable[[int], Any]) -> None:
    tracer = sys.gettrace()
    try:
        # The fewest of three: what the engine does by the clock may come at any moment.
        early, late = [min([await count(turns) for _ in range(3)]) for turns in (SHORT, LONG)]
    finally:
        sys.settrace(tracer)
    assert early > 200
    assert late < early + (LONG - SHORT) / 4, "it looks at what it has seen before"
