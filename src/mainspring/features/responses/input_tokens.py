"""`POST /v1/responses/input_tokens`: how many tokens a request would have.

The answer is exact if the provider can count, and else the estimate of `loop.tokens`. Nothing is run and nothing is stored.
"""

from msgspec import Struct
from starlette.requests import Request
from starlette.responses import Response as HttpResponse

from mainspring.app.engine import Engine
from mainspring.core.tokens import estimate
from mainspring.features.responses.order import ordered
from mainspring.features.responses.request import parse
from mainspring.http.bodies import read_json_body
from mainspring.http.faults import json_response
from mainspring.ports import TokenCounter


class InputTokens(Struct, frozen=True):
    input_tokens: int
    object: str = "response.input_tokens"


class Tokens:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def count(self, request: Request) -> HttpResponse:
        engine = self._engine
        body = parse(await read_json_body(request))
        asked = await engine.core.preview(await ordered(engine, request, body))
        provider = engine.core.provider
        if isinstance(provider, TokenCounter):
            counted = await provider.count_tokens(asked)
        else:
            counted = estimate(asked.items, asked.instructions, asked.tools)
        return json_response(InputTokens(counted))
