"""Streams are written to when their events become durable, each at the pace of its client and at its own risk."""

import asyncio
from collections.abc import AsyncGenerator
from pathlib import Path

import anyio
import pytest
from tests.kit.waiting import PATIENCE, until

from mainspring import Engine
from mainspring.core.events import ModelEvent
from mainspring.core.model_request import ModelRequest
from mainspring.http.streams import RunPusher, Wires
from mainspring.http.wire import Dialect, Wire
from mainspring.providers.script import say
from mainspring.providers.scripted import Scripted
from mainspring.storage.sqlite_runs import SqliteStore

WORDS = "".join([f"word {number} " for number in range(80)])


class Slow(Scripted):
    """Says a piece at a time, so that there are many batches."""

    async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
        async for event in super().stream(request):
            yield event
            await asyncio.sleep(0.001)


class Client:
    """What a client is sent. It is full after each piece if it is slow, and breaks at the piece of that number."""

    def __init__(self, *, is_slow: bool = False, breaks_at: int | None = None) -> None:
        self.pieces: list[bytes] = []
        self._is_slow, self._breaks_at = is_slow, breaks_at
        self.is_full = False
        self.drains = 0

    def write_chunk(self, data: bytes) -> None:
        assert not self.is_full, "written to a client that has not read"
        if len(self.pieces) == self._breaks_at:
            raise OSError("broken")
        self.pieces.append(data)
        self.is_full = self._is_slow

    async def drain(self) -> None:
        self.drains += 1
        await asyncio.sleep(0.003)
        self.is_full = False


@pytest.mark.parametrize("is_stored", [True, False])
async def test_each_client_gets_all_of_it_at_its_own_pace_and_one_that_breaks_fails_alone(
    tmp_path: Path, is_stored: bool
) -> None:
    wires, dialect = Wires(Wire), Dialect()
    quick, slow, broken = Client(), Client(is_slow=True), Client(breaks_at=5)
    async with SqliteStore(tmp_path / "runs.db") as store, Engine(Slow(say(WORDS), chunk=5), store=store) as engine:
        handle = await engine.ask("Go.", store=is_stored)
        with anyio.fail_after(PATIENCE):
            ends = await asyncio.gather(
                *[RunPusher(handle, wires.find(handle, dialect)).write(client) for client in (quick, slow, broken)],
                return_exceptions=True,
            )
        whole = Wire(dialect)
        handle.retell(whole)
        assert handle.run.status == "completed"
    assert [type(end) for end in ends] == [type(None), type(None), OSError]
    told = b"".join(whole.frames)
    assert b"".join(quick.pieces) == b"".join(slow.pieces) == told
    assert told.startswith(b"".join(broken.pieces))
    assert len(quick.pieces) > 6
    assert slow.drains >= len(slow.pieces) - 1


class Quiet(Scripted):
    """Begins when it is told to."""

    def __init__(self) -> None:
        super().__init__(say(WORDS), chunk=5)
        self.begin = asyncio.Event()

    async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
        await self.begin.wait()
        async for event in super().stream(request):
            yield event


async def test_a_stream_on_which_nothing_is_said_keeps_nothing_and_who_comes_later_gets_all(tmp_path: Path) -> None:
    wires, dialect, model = Wires(Wire), Dialect(), Quiet()
    first, later = Client(), Client()
    async with SqliteStore(tmp_path / "runs.db") as store, Engine(model, store=store) as engine:
        handle = await engine.ask("Go.")
        with anyio.fail_after(PATIENCE):
            wire = wires.find(handle, dialect)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(RunPusher(handle, wire).write, first)
                await until(lambda: b"response.in_progress" in b"".join(first.pieces))
                assert wire.frames == []
                tasks.start_soon(RunPusher(handle, wires.find(handle, dialect)).write, later)
                await until(lambda: bool(later.pieces))
                model.begin.set()
    assert b"".join(first.pieces) == b"".join(later.pieces)
    assert b"response.completed" in first.pieces[-1]
