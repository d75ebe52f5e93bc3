"""A slow model has a queue: a request beyond it is refused at once, with its length and when to come back."""

import anyio
import openai
from anyio.abc import TaskGroup
from tests.kit.waiting import PATIENCE
from tests.server.hosting import hosted

from mainspring.app.engine import Engine
from mainspring.app.server import server
from mainspring.providers.compose import BackendOptions, compose
from mainspring.providers.scripted import Scripted, stall


async def test_a_request_beyond_the_queue_is_told_how_long_it_is() -> None:
    limited = compose(Scripted(stall()), BackendOptions(concurrency=1, queue=2))
    refused: list[openai.RateLimitError] = []

    async def ask(client: openai.AsyncOpenAI, group: TaskGroup) -> None:
        try:
            await client.responses.create(model="scripted", input="Hello.")
        except openai.RateLimitError as error:
            refused.append(error)
            group.cancel_scope.cancel()

    async with (
        hosted(server(Engine(limited))) as url,
        openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as client,
    ):
        with anyio.fail_after(PATIENCE):
            async with anyio.create_task_group() as group:
                for _ in range(4):  # one is answered, two wait
                    group.start_soon(ask, client, group)
    [error] = refused
    assert error.code == "rate_limit_exceeded"
    assert "2 requests" in error.message
    assert int(error.response.headers["retry-after"]) > 0
