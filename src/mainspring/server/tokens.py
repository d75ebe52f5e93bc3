"""`POST /v1/responses/input_tokens`: how many tokens a request would have.

The answer is exact if the provider can count, and else the estimate of `loop.tokens`. Nothing is run and nothing is stored.
"""

from msgspec import Struct
from starlette.requests import Request
from starlette.responses import Response as HttpResponse

from mainspring.app import Engine
from mainspring.loop.tokens import estimate
from mainspring.ports import TokenCounter
from mainspring.server.faults import json_response
from mainspring.server.orders import ordered
from mainspring.server.requests import parse
from mainspring.server.responses import body_of


class InputTokens(Struct, frozen=True):
    input_tokens: int
    object: str = "response.input_tokens"


class Tokens:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def count(self, request: Request) -> HttpResponse:
        engine = self._engine
        body = parse(await body_of(request))
        asked = await engine.preview(await ordered(engine, request, body))
        provider = engine.provider
        if isinstance(provider, TokenCounter):
            counted = await provider.count_tokens(asked)
        else:
            counted = estimate(asked.items, asked.instructions, asked.tools)
        return json_response(InputTokens(counted))
