"""Router, retries, breaker, limits and deadlines before a real backend, over real connections."""

from collections.abc import AsyncGenerator
from contextlib import aclosing

import anyio
import pytest
from msgspec.structs import replace
from tests.kit.waiting import PATIENCE
from tests.providers.backend import ASKED, DONE, QUESTION, Backend, chunk, sse
from tests.providers.stand import Reader, said, settle

from mainspring import Engine
from mainspring.core.errors import RateLimited, Unavailable
from mainspring.core.events import ModelEvent, TextDelta
from mainspring.core.model_request import ModelRequest
from mainspring.ports import Provider
from mainspring.providers.breaker import Breaker
from mainspring.providers.chat.provider import Chat
from mainspring.providers.compose import BackendOptions, compose
from mainspring.providers.deadlines import Deadlines
from mainspring.providers.rate_limits import RateLimiter
from mainspring.providers.retry import Retrying
from mainspring.providers.router import Router

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

    async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
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
