"""Router, retries, breaker, limits and deadlines before a real backend, over real connections."""

import asyncio
from collections.abc import Sequence
from contextlib import aclosing, suppress

import anyio
import pytest
from msgspec.structs import replace
from tests.kit.waiting import PATIENCE
from tests.providers.backend import ASKED, DONE, QUESTION, Backend, chunk, sse
from tests.providers.stand import Reader, said, settle

from mainspring import Engine
from mainspring.core.errors import RateLimited, StoreError, Unavailable
from mainspring.core.events import ItemDone, ItemStarted, ModelEvent, Recorded, TextDelta, TurnEnded
from mainspring.core.model_request import ModelRequest
from mainspring.core.model_stream import ModelStream
from mainspring.ports import Note, Provider, Snapshot
from mainspring.providers.breaker import Breaker
from mainspring.providers.chat.provider import Chat
from mainspring.providers.compose import BackendOptions, compose
from mainspring.providers.deadlines import Deadlines
from mainspring.providers.rate_limits import RateLimiter
from mainspring.providers.retry import Retrying
from mainspring.providers.router import Router
from mainspring.storage.memory_runs import MemoryStore

STOP = chunk(finish="stop")
NOON = sse(chunk({"content": "noon"}), STOP) + DONE
ALL = BackendOptions(attempts=3, failures=5, first_seconds=60.0, idle_seconds=60.0, concurrency=8, per_minute=100)


async def answered(provider: Provider, model: str = "clockwork") -> str:
    with anyio.fail_after(PATIENCE):
        return await said(provider, replace(QUESTION, model=model))


async def test_busy_backend_is_asked_again_when_it_says(backend: Backend) -> None:
    backend.replies(b"slow down", status=429, headers={"Retry-After": "0"})
    backend.replies(b"loading", status=503, headers={"Retry-After": "0"})
    backend.replies(NOON)
    chat = Chat(backend.url)
    assert await answered(Retrying(chat, random=lambda: 0.0)) == "noon"
    await chat.close()


@pytest.mark.parametrize(("status", "kind"), [(429, RateLimited), (503, Unavailable)])
async def test_backend_that_is_busy_for_long_is_not_asked_again(
    backend: Backend, status: int, kind: type[RateLimited | Unavailable]
) -> None:
    backend.replies(b"slow down", status=status, headers={"Retry-After": "3600"})
    chat = Chat(backend.url)
    with pytest.raises(kind, match="slow down"):
        await answered(Retrying(chat))
    await chat.close()
    assert len(backend.received) == 1


async def test_answer_that_breaks_off_is_not_asked_for_again(backend: Backend) -> None:
    backend.replies(sse(chunk({"content": "no"})), ending="abort")
    backend.release.set()
    chat = Chat(backend.url)
    with pytest.raises(Unavailable, match="broke within its answer"):
        await answered(Retrying(chat))
    await chat.close()
    assert len(backend.received) == 1


async def test_next_model_of_the_chain_answers_for_one_that_is_down(backend: Backend) -> None:
    backend.replies(b"out of memory", status=500, expect={**ASKED, "model": "large/v2"})
    backend.replies(NOON, expect={**ASKED, "model": "small"})
    chat, gone = Chat(backend.url), Chat("http://127.0.0.1:9")
    router = Router({"gone": gone, "here": chat}, aliases={"best": ["gone/m", "here/large/v2", "here/small"]})
    assert await answered(router, "best") == "noon"
    await router.close()


async def test_open_breaker_leaves_the_backend_alone(backend: Backend) -> None:
    for _ in range(2):
        backend.replies(b"overloaded", status=529)
    chat = Chat(backend.url)
    breaker = Breaker(chat, failures=2)
    for _ in range(2):
        with pytest.raises(Unavailable, match="HTTP 529: overloaded"):
            await answered(breaker)
    with pytest.raises(Unavailable, match="failed 2 times in a row"):
        await answered(breaker)
    await chat.close()
    assert len(backend.received) == 2


async def test_breaker_closes_when_the_backend_answers_again(backend: Backend) -> None:
    backend.replies(b"overloaded", status=503)
    for _ in range(2):
        backend.replies(NOON)
    chat = Chat(backend.url)
    breaker = Breaker(chat, failures=1, cool=0.0)
    with pytest.raises(Unavailable):
        await answered(breaker)
    assert [await answered(breaker) for _ in range(2)] == ["noon", "noon"]
    await chat.close()


class Noting(Chat):
    """Writes down when its streams begin and end."""

    notes: tuple[str, ...] = ()

    async def stream(self, request: ModelRequest) -> ModelStream:
        self.notes += (f"{request.model} begins",)
        async with aclosing(super().stream(request)) as events:
            async for event in events:
                yield event
        self.notes += (f"{request.model} ends",)


async def test_place_of_a_cancelled_call_goes_to_the_next_in_line(backend: Backend) -> None:
    backend.replies(sse(chunk({"content": "It is"})), ending="silence", expect={**ASKED, "model": "m"})
    for model in ("x", "y"):
        backend.replies(NOON, expect={**ASKED, "model": model})
    chat = Noting(backend.url)
    limited = RateLimiter(chat, concurrency=1)
    first = Reader(limited, model="m")
    with anyio.fail_after(PATIENCE):
        await first.begun.wait()
        async with anyio.create_task_group() as tasks:
            for model in ("x", "y"):
                tasks.start_soon(answered, limited, model)
                await settle()
            assert chat.notes == ("m begins",)
            await first.cancel()
        await backend.gone.wait()
    await chat.close()
    assert chat.notes == ("m begins", "x begins", "x ends", "y begins", "y ends")


@pytest.mark.parametrize(
    ("chunks", "limits", "message"),
    [
        ([b": still thinking\n\n"], {"first": 0.2}, "said nothing for 0.2 s"),
        ([sse(chunk({"content": "It is"}))], {"idle": 0.2}, "fell silent for 0.2 s within its answer"),
    ],
)
async def test_connection_to_a_model_that_is_given_up_is_closed(
    backend: Backend, chunks: list[bytes], limits: dict[str, float], message: str
) -> None:
    backend.replies(*chunks, ending="silence")
    chat = Chat(backend.url)
    with pytest.raises(Unavailable, match=message):
        await answered(Deadlines(chat, **limits))
    with anyio.fail_after(PATIENCE):
        await backend.gone.wait()
    await chat.close()


async def test_cancel_goes_through_everything_and_closes_the_connection(backend: Backend) -> None:
    backend.replies(sse(chunk({"content": "It is"})), ending="silence", expect={**ASKED, "model": "m"})
    router = Router({"p": compose(Chat(backend.url), ALL)})
    reader = Reader(router, model="p/m")
    with anyio.fail_after(PATIENCE):
        await reader.begun.wait()
        await reader.cancel()
        await backend.gone.wait()
    await router.close()


async def test_cancelled_run_closes_its_connection_through_everything(backend: Backend) -> None:
    backend.replies(sse(chunk({"content": "It is"})), ending="silence")
    provider = Router({"p": compose(Chat(backend.url), ALL)}, aliases={"router": "p/clockwork"})
    async with Engine(provider) as engine:
        with anyio.fail_after(PATIENCE):
            handle = await engine.ask("What time is it?")
            async for record in handle.events():
                if isinstance(record.event, TextDelta):
                    await handle.cancel()
            await backend.gone.wait()
        assert handle.run.status == "cancelled"
    await provider.close()


PASSING = BackendOptions(attempts=3, failures=1, concurrency=8, per_minute=100)
WORDS = [f"{number} " for number in range(40)]


async def test_words_are_taken_where_they_arrive_and_not_handed_through_the_wrappers(backend: Backend) -> None:
    backend.replies(*[sse(chunk({"content": word})) for word in WORDS], sse(STOP) + DONE, expect={**ASKED, "model": "m"})
    router = Router({"p": compose(Chat(backend.url), PASSING)})
    yielded, taken = list[ModelEvent](), list[ModelEvent]()

    def take(event: ModelEvent) -> bool:
        if not isinstance(event, TextDelta):
            return False
        taken.append(event)
        return True

    with anyio.fail_after(PATIENCE):
        async with aclosing(router.stream(replace(QUESTION, model="p/m"))) as events:
            yielded.append(await anext(events))
            with suppress(StopAsyncIteration):
                while True:
                    yielded.append(await events.asend(take))
    await router.close()
    assert [type(event) for event in yielded] == [ItemStarted, ItemDone, TurnEnded]
    assert "".join([event.delta for event in taken if isinstance(event, TextDelta)]) == "".join(WORDS)


async def test_answer_that_breaks_off_while_it_is_pushed_is_not_asked_for_again_and_opens_the_breaker(backend: Backend) -> None:
    backend.replies(*[sse(chunk({"content": word})) for word in WORDS], ending="abort")
    provider = compose(Chat(backend.url), PASSING)
    async with Engine(provider) as engine:
        with anyio.fail_after(PATIENCE):
            handle = await engine.ask("What time is it?", model="clockwork", max_retries=0)
            async for record in handle.events():
                if isinstance(record.event, TextDelta) and record.event.delta == WORDS[-1]:
                    backend.release.set()
            run = await handle.wait()
    assert run.status == "failed"
    assert "broke within its answer" in (run.error.message if run.error else "")
    with pytest.raises(Unavailable, match="failed 1 times in a row"):
        await answered(provider)
    assert len(backend.received) == 1
    await provider.close()


class MuteStore(MemoryStore):
    """Takes everything but words."""

    is_durable = True

    def append(
        self, run_id: str, records: Sequence[Recorded], snapshot: Snapshot | None = None, notes: Sequence[Note] = ()
    ) -> "asyncio.Future[None]":
        if any(isinstance(record.event, TextDelta) for record in records):
            raise StoreError("the disk is full")
        return super().append(run_id, records, snapshot, notes)


async def test_run_whose_store_fails_while_it_is_pushed_to_fails_and_leaves_its_backend(backend: Backend) -> None:
    backend.replies(*[sse(chunk({"content": word})) for word in WORDS], ending="silence")
    async with Engine(Chat(backend.url), owns_provider=True, store=MuteStore()) as engine:
        with anyio.fail_after(PATIENCE):
            run = await (await engine.ask("What time is it?", model="clockwork")).wait()
            await backend.gone.wait()
    assert (run.status, run.error and run.error.code) == ("failed", "store_error")
