"""The Responses API: requests become runs, runs become answers."""

from contextlib import suppress
from typing import Final, get_args

from msgspec import Struct
from starlette.requests import Request
from starlette.responses import Response as HttpResponse

from mainspring.core.drafts import item_id
from mainspring.core.errors import InvalidRequest, NotFound, OurError
from mainspring.core.events import Status
from mainspring.core.response import Response
from mainspring.core.tokens import estimate
from mainspring.engine.engine import Engine
from mainspring.engine.handle import Handle
from mainspring.features.agents.agent_runtime import AgentRuntime
from mainspring.features.responses.compact import Compaction, compact
from mainspring.features.responses.order import check_client_calls, read_order
from mainspring.features.responses.request import CreateResponse
from mainspring.features.responses.sent_request import RESULTS, WEB_RESULTS, parse_request
from mainspring.features.responses.websocket import ResponseSockets
from mainspring.http.auth import get_tenant
from mainspring.http.bodies import read_json_body
from mainspring.http.client_tools import render_client_item
from mainspring.http.endpoints import COUNT, FLAG, MODEL_ERRORS, WEBSOCKET, Endpoint, Parameter
from mainspring.http.faults import json_response
from mainspring.http.hosted_calls import FILE_SEARCH, WEB_SEARCH, show_results
from mainspring.http.idempotency import IdempotentRuns, read_key
from mainspring.http.queries import CURSOR, FLAGS, Deleted, Page, cut_page, make_page, read_choice, read_cursor, read_number
from mainspring.http.run_replies import choose_dialect, make_stream, raise_failure, wait_for_end
from mainspring.http.streams import Wires
from mainspring.http.wire import Dialect, Wire, render_response
from mainspring.ports import Filter, TokenCounter

# The store knows no `queued`: such a run is in progress there.
_STATUSES: dict[str, tuple[Status, ...]] = {status: (status,) for status in get_args(Status) if status != "queued"}
_FILTERS = (
    Parameter("status", {"enum": list(_STATUSES)}),
    Parameter("model"),
    Parameter("background", FLAG),
    Parameter("previous_response_id"),
    Parameter("conversation"),
    Parameter("created_after", COUNT),
    Parameter("created_before", COUNT),
)
_PATH = "/v1/responses"
_COUNT = f"{_PATH}/input_tokens"
_ONE = f"{_PATH}/{{response_id}}"
_ERRORS = (404, 409, *MODEL_ERRORS)
_RESULTS: Final = {RESULTS: FILE_SEARCH, WEB_RESULTS: WEB_SEARCH}
_SHOWN = (
    Parameter("stream", {"type": "boolean", "default": False}),
    Parameter("starting_after", COUNT),
    Parameter("include", {"type": "array", "items": {"type": "string"}}),
)


class InputTokens(Struct, frozen=True):
    input_tokens: int
    object: str = "response.input_tokens"


class ResponseRoutes:
    """Every endpoint under `/v1/responses`."""

    def __init__(self, engine: Engine, agents: AgentRuntime, dialect: Dialect) -> None:
        self._engine, self._agents = engine, agents
        self._dialect = dialect
        self._wires = Wires(Wire)
        self._runs = IdempotentRuns(engine)

    def endpoints(self) -> tuple[Endpoint, ...]:
        return (
            Endpoint(
                "POST", _PATH, self.create, "responses", Response, CreateResponse, takes_key=True, errors=_ERRORS, streams=True
            ),
            Endpoint("GET", _PATH, self.list, "responses", Page, query=(*CURSOR, *_FILTERS)),
            Endpoint(WEBSOCKET, _PATH, ResponseSockets(self._engine, self._agents, self._dialect).serve, "responses"),
            Endpoint("POST", f"{_PATH}/compact", self.compact, "responses", Compaction, CreateResponse, errors=_ERRORS),
            Endpoint("POST", _COUNT, self.count_tokens, "responses", InputTokens, CreateResponse, errors=(404, *MODEL_ERRORS)),
            Endpoint("GET", _ONE, self.retrieve, "responses", Response, query=_SHOWN, streams=True),
            Endpoint("DELETE", _ONE, self.delete, "responses", Deleted),
            Endpoint("POST", f"{_ONE}/cancel", self.cancel, "responses", Response, errors=(400,)),
            Endpoint("GET", f"{_ONE}/input_items", self.input_items, "responses", Page, query=CURSOR),
        )

    async def create(self, request: Request) -> HttpResponse:
        """Creates a response."""
        raw = await read_json_body(request)
        sent = parse_request(raw)
        body = sent.body
        spec = await read_order(self._engine, self._agents, request, sent)
        spec = spec if body.stream else check_client_calls(spec)
        headers = sent.ignored.make_headers()
        is_followed = body.stream is True or not spec.background
        if (key := read_key(request)) is None:
            raw = b""  # it may be large, and nobody compares it
        handle = await self._runs.start(spec, key, raw, is_followed=is_followed)
        if body.stream:
            return self._stream(handle, request, -1, is_owner=not spec.background, headers=headers)
        if not spec.background:
            await wait_for_end(handle, request)
            raise_failure(handle.run)
        return self._answer(request, handle, headers)

    async def retrieve(self, request: Request) -> HttpResponse:
        """Retrieves a response, finished or not, or streams its events."""
        handle = await self._find(request)
        if read_choice(request, "stream", FLAGS):
            after = read_number(request, "starting_after")
            if not handle.is_live and not handle.run.has_ended:
                handle = await self._engine.follow(handle.id)
            return self._stream(handle, request, -1 if after is None else after, is_owner=False)
        handle = await self._wait_until_stored(request, handle)
        wanted = {*request.query_params.getlist("include"), *request.query_params.getlist("include[]")}
        told = show_results(handle.response, [form for value, form in _RESULTS.items() if value in wanted])
        return json_response(render_response(told, self._dialect_of(request)))

    async def delete(self, request: Request) -> HttpResponse:
        """Deletes a response; one in progress is cancelled first."""
        handle = await self._find(request)
        if not handle.run.has_ended:
            await self._engine.cancel(handle.id)
        await self._engine.forget(handle.id)
        return json_response(Deleted(handle.id))

    async def cancel(self, request: Request) -> HttpResponse:
        """Cancels a background response."""
        handle = await self._wait_until_stored(request, await self._find(request))
        # Clients learn the id of an agent's run while it works, so they can cancel it too.
        if not handle.run.spec.background and not handle.run.spec.agent:
            raise InvalidRequest("Only responses created with background=true can be cancelled.", param="response_id")
        if handle.run.has_ended and handle.run.status != "cancelled":
            raise InvalidRequest(f"Cannot cancel a {handle.run.status} response.", param="response_id")
        await self._engine.cancel(handle.id)
        return self._answer(request, await self._find(request))

    async def list(self, request: Request) -> HttpResponse:
        """Lists stored responses, newest first."""
        cursor = read_cursor(request)
        only = _read_filter(request, self._dialect_of(request))
        page = await self._engine.store.list(limit=cursor.limit, after=cursor.after, newest_first=cursor.newest_first, only=only)
        told: list[Response] = []
        for run in page.runs:
            answer = run.response
            if answer is None:
                handle = await self._engine.attach(run.id)
                # It has failed because the store could not be written to, so it is not as the store has it.
                if handle.run.has_ended and only.status and handle.run.status not in only.status:
                    continue
                answer = handle.response
            told.append(render_response(answer, self._dialect_of(request)))
        return json_response(make_page(told, [answer.id for answer in told], has_more=page.has_more))

    async def input_items(self, request: Request) -> HttpResponse:
        """Lists the input items of a response."""
        cursor, handle = read_cursor(request), await self._find(request)
        items = [render_client_item(item) for item in handle.run.spec.input]
        return json_response(cut_page(items, [item_id(item) for item in items], cursor))

    async def compact(self, request: Request) -> HttpResponse:
        """Summarizes a conversation, to start a new one with."""
        return await compact(self._engine, request)

    async def count_tokens(self, request: Request) -> HttpResponse:
        """Counts the input tokens of a request; estimates them if the provider cannot count. Runs and stores nothing."""
        sent = parse_request(await read_json_body(request))
        asked = await self._engine.preview(await read_order(self._engine, self._agents, request, sent))
        headers = sent.ignored.make_headers()
        provider = self._engine.provider
        if isinstance(provider, TokenCounter):
            return json_response(InputTokens(await provider.count_tokens(asked)), headers=headers)
        return json_response(InputTokens(estimate(asked.items, asked.instructions, asked.tools)), headers=headers)

    async def _find(self, request: Request) -> Handle:
        run_id = str(request.path_params["response_id"])
        missing = NotFound(f"Response with id '{run_id}' not found.", param="response_id")
        try:
            handle = await self._engine.attach(run_id)
        except NotFound:
            raise missing from None
        if handle.run.spec.tenant != get_tenant(request):
            raise missing
        return handle

    async def _wait_until_stored(self, request: Request, handle: Handle) -> Handle:
        """The run; if it has ended here, once the store has its end. Before that, another process may yet give it another one."""
        if not (handle.is_live and handle.run.has_ended):
            return handle
        with suppress(OurError):
            await handle.wait()
        return await self._find(request)

    def _stream(
        self, handle: Handle, request: Request, after: int, *, is_owner: bool, headers: dict[str, str] | None = None
    ) -> HttpResponse:
        write = self._wires.find_writer(handle, self._dialect_of(request), after)
        return make_stream(handle, request, write, headers, is_owner=is_owner)

    def _answer(self, request: Request, handle: Handle, headers: dict[str, str] | None = None) -> HttpResponse:
        return json_response(render_response(handle.response, self._dialect_of(request)), headers=headers)

    def _dialect_of(self, request: Request) -> Dialect:
        return choose_dialect(request, self._dialect)


def _read_filter(request: Request, dialect: Dialect) -> Filter:
    """Which responses a list shows. Status and times are those that the responses show."""
    after, before = read_number(request, "created_after"), read_number(request, "created_before")
    statuses = _STATUSES if dialect.requires_action else {**_STATUSES, "completed": ("completed", "requires_action")}
    return Filter(
        tenant=get_tenant(request),
        status=read_choice(request, "status", statuses) or (),
        model=request.query_params.get("model"),
        background=read_choice(request, "background", FLAGS),
        parent=request.query_params.get("previous_response_id"),
        conversation=request.query_params.get("conversation"),
        # Responses show whole seconds, runs are stored with fractions.
        since=None if after is None else after + 1,
        before=before,
    )
