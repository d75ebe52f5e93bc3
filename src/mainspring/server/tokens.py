"""`POST /v1/responses/input_tokens`: how many tokens a request would have.

The answer is exact if the provider can count, and else the estimate of `loop.tokens`. Nothing is run and nothing is stored.
"""

from msgspec import Struct
from msgspec.structs import replace
from starlette.requests import Request
from starlette.responses import Response as HttpResponse

from mainspring.app import Engine
from mainspring.loop.tokens import estimate
from mainspring.ports import TokenCounter
from mainspring.server.faults import json_response
from mainspring.server.keys import caller_of
from mainspring.server.references import resolve
from mainspring.server.requests import order, parse
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
        await resolve(body, engine.store, caller_of(request).tenant)
        spec = order(
            body,
            new_id=engine.new_id,
            default_model=engine.model,
            server_tools=engine.definitions,
            context_tokens=engine.context_tokens,
        )
        asked = await engine.preview(replace(spec, tenant=caller_of(request).tenant))
        provider = engine.provider
        if isinstance(provider, TokenCounter):
            counted = await provider.count_tokens(asked)
        else:
            counted = estimate(asked.items, asked.instructions, asked.tools)
        return json_response(InputTokens(counted))
