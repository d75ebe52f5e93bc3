"""The Chat Completions API: a door to the same runs that `/v1/responses` starts, and another view of those that are stored."""

from msgspec.structs import replace
from starlette.requests import Request
from starlette.responses import Response as HttpResponse

from mainspring.core.errors import NotFound
from mainspring.core.ids import derive_id
from mainspring.engine.engine import Engine
from mainspring.features.agents.agent_runtime import AgentRuntime
from mainspring.features.chat_completions.request import CreateChatCompletion, parse_chat
from mainspring.features.chat_completions.stored_messages import list_stored_messages
from mainspring.features.chat_completions.wire import ChatCompletion, ChatDialect, ChatWire, render_completion, render_failure
from mainspring.features.responses.door import Door
from mainspring.http.auth import get_tenant
from mainspring.http.bodies import read_json_body
from mainspring.http.endpoints import MODEL_ERRORS, Endpoint, Parameter
from mainspring.http.faults import json_response
from mainspring.http.queries import CURSOR, Deleted, Page, cut_page, make_page, read_cursor
from mainspring.http.run_replies import choose_dialect, make_stream
from mainspring.http.streams import Wires
from mainspring.http.wire import Dialect
from mainspring.ports import Filter, StoredRun

_PATH = "/v1/chat/completions"
_ONE = f"{_PATH}/{{completion_id}}"
_OLDEST_FIRST = tuple(
    [Parameter("order", {"enum": ["asc", "desc"], "default": "asc"}) if each.name == "order" else each for each in CURSOR]
)


class ChatCompletionRoutes:
    """Every endpoint under `/v1/chat/completions`."""

    def __init__(self, engine: Engine, agents: AgentRuntime, dialect: Dialect) -> None:
        self._engine, self._dialect = engine, dialect
        self._door = Door(engine, agents)
        self._wires = Wires(ChatWire)

    def endpoints(self) -> tuple[Endpoint, ...]:
        return (
            Endpoint(
                "POST",
                _PATH,
                self.create,
                "responses",
                ChatCompletion,
                CreateChatCompletion,
                takes_key=True,
                errors=(404, 409, *MODEL_ERRORS),
                streams=True,
            ),
            Endpoint("GET", _PATH, self.list, "responses", Page, query=(*CURSOR, Parameter("model"))),
            Endpoint("GET", _ONE, self.retrieve, "responses", ChatCompletion),
            Endpoint("DELETE", _ONE, self.delete, "responses", Deleted),
            Endpoint("GET", f"{_ONE}/messages", self.list_messages, "responses", Page, query=_OLDEST_FIRST),
        )

    async def create(self, request: Request) -> HttpResponse:
        """Creates a chat completion."""
        raw = await read_json_body(request)
        sent = parse_chat(raw)
        handle = await self._door.start(request, raw, sent.asked)
        headers = sent.asked.sent.ignored.make_headers()
        wants_usage = (sent.body.stream_options or {}).get("include_usage") is True
        dialect = ChatDialect(wants_usage, self._shows_more(request))
        if sent.body.stream:
            write = self._wires.find_writer(handle, dialect)
            return make_stream(handle, request, write, headers, render_break=render_failure)
        await self._door.wait(request, handle, sent.asked.names)
        return json_response(render_completion(handle.response, dialect), headers=headers)

    async def retrieve(self, request: Request) -> HttpResponse:
        """Retrieves a stored run as a chat completion."""
        run = await self._find(request)
        assert run.response is not None
        return json_response(render_completion(run.response, ChatDialect(extensions=self._shows_more(request))))

    async def list(self, request: Request) -> HttpResponse:
        """Lists stored runs that came to an answer as chat completions, newest first."""
        cursor = read_cursor(request)
        page = await self._engine.store.list(
            limit=cursor.limit,
            after=None if cursor.after is None else derive_id("resp", cursor.after),
            newest_first=cursor.newest_first,
            only=Filter(
                tenant=get_tenant(request),
                status=("completed", "incomplete", "requires_action"),
                model=request.query_params.get("model"),
            ),
        )
        dialect = ChatDialect(extensions=self._shows_more(request))
        told = [render_completion(run.response, dialect) for run in page.runs if run.response is not None]
        return json_response(make_page(told, [each.id for each in told], has_more=page.has_more))

    async def delete(self, request: Request) -> HttpResponse:
        """Deletes a stored run."""
        run = await self._find(request)
        await self._engine.forget(run.id)
        return json_response(Deleted(derive_id("chatcmpl", run.id), "chat.completion.deleted"))

    async def list_messages(self, request: Request) -> HttpResponse:
        """Lists the messages of a stored request, oldest first."""
        run, cursor = await self._find(request), read_cursor(request)
        if "order" not in request.query_params:
            cursor = replace(cursor, newest_first=False)
        given = (await self._engine.attach(run.id)).run.spec.input
        messages = list_stored_messages(derive_id("chatcmpl", run.id), given)
        return json_response(cut_page(messages, [each.id for each in messages], cursor))

    async def _find(self, request: Request) -> StoredRun:
        """The run as it is stored; one that is under way, or came to no answer, is no completion."""
        given = str(request.path_params["completion_id"])
        missing = NotFound(f"Chat completion with id '{given}' not found.", param="completion_id")
        try:
            run = await self._engine.store.load(derive_id("resp", given))
        except NotFound:
            raise missing from None
        if run.response is None or run.tenant != get_tenant(request) or run.status in ("failed", "cancelled"):
            raise missing
        return run

    def _shows_more(self, request: Request) -> bool:
        return choose_dialect(request, self._dialect).extensions
