"""An end whose answer is lost: readers are told what the store has, or that it is not known, and never something else."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from tests.kit.engine import make_engine, make_order
from tests.kit.link import Link, linked
from tests.kit.postgres import Postgres
from tests.kit.waiting import PATIENCE, until

from mainspring.core.errors import Interrupted, Superseded
from mainspring.core.run import Run
from mainspring.engine import presence as presence_module
from mainspring.engine.engine import Engine
from mainspring.providers.scripted import Scripted, say
from mainspring.storage.choose_store import open_store
from mainspring.storage.location import Location, parse_location
from mainspring.storage.postgres import postgres_server as server_module
from mainspring.storage.postgres import writer as writer_module

pytestmark = pytest.mark.slow


@pytest.fixture
async def doubtful(postgres: Postgres, emptied: Location, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[Engine, Link]]:
    """An engine behind a link that loses the answer to the end of a run, and then refuses all connections."""
    monkeypatch.setattr(writer_module, "PATIENCE_SECONDS", 0.3)
    # Not the folder of the test: a socket has a short path.
    with TemporaryDirectory(prefix="ln") as folder:
        async with linked(postgres.socket, Path(folder)) as link:
            through = parse_location(emptied.given.replace(str(postgres.socket.parent), folder))
            async with open_store(through) as store, make_engine(Scripted(say("It is done.")), store) as engine:
                yield engine, link


async def end_in_doubt(engine: Engine, link: Link) -> "asyncio.Task[Run]":
    """Runs an order whose end is stored, but not known to be."""
    swallowed = link.swallow_answer_of(lambda data: b"run_ended" in data)
    handle = await engine.start(make_order(background=True))
    reading = asyncio.create_task(handle.wait())
    await swallowed.wait()
    link.is_refusing = True
    link.cut()
    return reading


async def test_an_end_in_doubt_is_read_back_before_it_is_told(
    doubtful: tuple[Engine, Link], caplog: pytest.LogCaptureFixture
) -> None:
    engine, link = doubtful
    async with asyncio.timeout(PATIENCE):
        reading = await end_in_doubt(engine, link)
        await until(lambda: "could not be recorded" in caplog.text)
        link.is_refusing = False
        assert (await reading).status == "completed"
    assert (await engine.store.load("resp_1")).status == "completed"


async def test_an_end_in_doubt_that_cannot_be_read_back_is_not_told(
    doubtful: tuple[Engine, Link], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, link = doubtful
    monkeypatch.setattr(server_module, "PATIENCE_SECONDS", 0.3)
    async with asyncio.timeout(PATIENCE):
        reading = await end_in_doubt(engine, link)
        with pytest.raises(Interrupted):
            await reading
        link.is_refusing = False
        monkeypatch.setattr(server_module, "PATIENCE_SECONDS", PATIENCE)
        await engine.resume_all()
    assert (await engine.attach("resp_1")).run.status == "completed"


async def test_a_run_that_another_may_have_taken_up_is_not_told_to_have_failed(
    postgres: Postgres, emptied: Location, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(presence_module, "LEASE_SECONDS", 1.0)
    monkeypatch.setattr(presence_module, "BEAT_SECONDS", 0.2)
    for module in (server_module, writer_module):
        monkeypatch.setattr(module, "PATIENCE_SECONDS", 2.0)
    with TemporaryDirectory(prefix="ln") as folder:
        async with linked(postgres.socket, Path(folder)) as link, asyncio.timeout(PATIENCE):
            through = parse_location(emptied.given.replace(str(postgres.socket.parent), folder))
            slow = Scripted(say("It takes its time. " * 100, pause=0.05))
            async with open_store(through) as store, make_engine(slow, store) as engine, open_store(emptied) as beside:
                handle = await engine.start(make_order(background=True))
                reading = asyncio.create_task(handle.wait())
                link.is_refusing = True
                link.cut()
                async with make_engine(Scripted(say("It is done.")), beside) as other:
                    while not (taken := await other.resume_all()):  # noqa: ASYNC110
                        await asyncio.sleep(0.05)
                    assert (await taken[0].wait()).status == "completed"
                with pytest.raises((Interrupted, Superseded)):
                    await reading
                link.is_refusing = False
                assert (await engine.attach("resp_1")).run.status == "completed"
