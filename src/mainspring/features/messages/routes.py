"""The Messages API: a door to the same runs that `/v1/responses` starts."""

import re
from typing import Final

from starlette.requests import Request
from starlette.responses import Response as HttpResponse

from mainspring.core.errors import InvalidRequest, NotFound
from mainspring.core.items import Json
from mainspring.core.spec import RunSpec
from mainspring.engine.engine import Engine
from mainspring.features.agents.agent_runtime import AgentRuntime
from mainspring.features.messages.messages_wire import (
    PING,
    AssistantMessage,
    CountedTokens,
    MessagesDialect,
    MessagesWire,
    render_failure,
    render_message,
)
from mainspring.features.messages.request import CreateMessage, SentMessage, parse_message
from mainspring.features.responses.door import Door
from mainspring.features.responses.request import CreateResponse
from mainspring.http.auth import get_tenant
from mainspring.http.bodies import read_json_body
from mainspring.http.endpoints import MODEL_ERRORS, Endpoint
from mainspring.http.faults import json_response, wrap_for_messages
from mainspring.http.run_replies import choose_dialect, make_stream
from mainspring.http.streams import Wires
from mainspring.http.wire import Dialect
from mainspring.providers.wrapper import count_tokens

VERSION: Final = "2023-06-01"
"""The oldest version that has these events; those since then differ in nothing that is told here."""
_PATH: Final = "/v1/messages"
_DATE: Final = re.compile(r"\d{4}-\d{2}-\d{2}", re.ASCII)


class MessageRoutes:
    """Every endpoint under `/v1/messages`."""

    def __init__(self, engine: Engine, agents: AgentRuntime, dialect: Dialect) -> None:
        self._engine, self._dialect = engine, dialect
        self._door = Door(engine, agents)
        self._wires = Wires(MessagesWire)

    def endpoints(self) -> tuple[Endpoint, ...]:
        errors = (404, 409, *MODEL_ERRORS)
        return (
            Endpoint(
                "POST", _PATH, self.create, "responses", AssistantMessage, CreateMessage,
                takes_key=True, errors=errors, streams=True, render_fault=wrap_for_messages,
            ),
            Endpoint(
                "POST", f"{_PATH}/count_tokens", self.count_tokens, "responses", CountedTokens, CreateMessage,
                errors=errors, render_fault=wrap_for_messages,
            ),
        )  # fmt: skip

    async def create(self, request: Request) -> HttpResponse:
        """Creates a message."""
        raw = await read_json_body(request)
        sent = _parse(request, raw)
        if sent.body.max_tokens is None:
            told = "max_tokens is missing; say how long the answer may be"
            raise InvalidRequest(told, param="max_tokens", code="missing_required_parameter")
        await self._inherit(request, sent.asked.sent.body)
        handle = await self._door.start(request, raw, sent.asked)
        headers = sent.asked.sent.ignored.make_headers()
        dialect = MessagesDialect(choose_dialect(request, self._dialect).extensions)
        if sent.body.stream:
            write = self._wires.find_writer(handle, dialect)
            return make_stream(handle, request, write, headers, end=b"", ping=PING, render_break=render_failure)
        await self._door.wait(request, handle, sent.asked.names)
        return json_response(render_message(handle.response, dialect), headers=headers)

    async def count_tokens(self, request: Request) -> HttpResponse:
        """Counts the input tokens of a request; estimates them if the provider cannot count. Runs and stores nothing."""
        sent = _parse(request, await read_json_body(request))
        await self._inherit(request, sent.asked.sent.body)
        asked = await self._engine.preview(await self._door.read_order(request, sent.asked))
        counted = CountedTokens(await count_tokens(self._engine.provider, asked))
        return json_response(counted, headers=sent.asked.sent.ignored.make_headers())

    async def _inherit(self, request: Request, body: CreateResponse) -> None:
        """Whoever goes on with a thread sends neither system nor tools again: they are those that the run before was sent.
        Raises `InvalidRequest` if there were credentials among those."""
        if body.previous_response_id is None:
            return
        try:
            spec = (await self._engine.attach(body.previous_response_id)).run.spec
        except NotFound:
            return  # which is told when the run starts
        if spec.tenant != get_tenant(request):
            return
        if body.instructions is None:
            # An agent's own, and the list of skills, are added anew.
            body.instructions = spec.echo.get("instructions", spec.instructions)
        if body.tools is None and (labels := spec.echo.get("secret_servers")):
            told = f"credentials of MCP servers are not kept ({', '.join(labels)}): send `tools` again, with `authorization`"
            raise InvalidRequest(told, param="tools")
        if body.tools is None:
            body.tools = tuple([_restore_tool(tool, spec) for tool in spec.echo.get("tools", ())])


def _restore_tool(tool: Json, spec: RunSpec) -> Json:
    """A tool as its client had declared it; the echo of a request says more."""
    if tool["type"] != "function":
        return tool
    known = spec.tool(str(tool["name"]))
    return {**tool, "description": tool.get("description") or "", "strict": known and known.strict}


def _parse(request: Request, raw: bytes) -> SentMessage:
    version = request.headers.get("anthropic-version", VERSION)
    if _DATE.fullmatch(version) is None or version < VERSION:
        told = f"anthropic-version must be {VERSION} or a later date, not `{version[:40]}`"
        raise InvalidRequest(told, param="anthropic-version", code="unsupported_value")
    sent = parse_message(raw)
    if "anthropic-beta" in request.headers:
        sent.asked.sent.ignored.add("anthropic-beta")
    return sent
