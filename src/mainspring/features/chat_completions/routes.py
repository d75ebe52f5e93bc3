"""The Chat Completions API: a door to the same runs that `/v1/responses` starts, and another view of those that are stored.

The metadata of a completion can be changed, and the log of its run cannot: what it was changed to is kept beside the run.
"""

from collections.abc import Mapping
from typing import Final

from msgspec import Struct
from msgspec.structs import replace
from starlette.requests import Request
from starlette.responses import Response as HttpResponse

from mainspring.core.errors import InvalidRequest, NotFound
from mainspring.core.ids import derive_id
from mainspring.core.items import decode, encode
from mainspring.engine.engine import Engine
from mainspring.features.agents.agent_runtime import AgentRuntime
from mainspring.features.chat_completions.chat_wire import (
    ChatCompletion,
    ChatDialect,
    ChatWire,
    render_completion,
    render_failure,
)
from mainspring.features.chat_completions.request import CreateChatCompletion, parse_chat
from mainspring.features.chat_completions.stored_messages import list_stored_messages
from mainspring.features.responses.door import Door
from mainspring.http.auth import get_tenant
from mainspring.http.bodies import Metadata, read_json_body
from mainspring.http.endpoints import MODEL_ERRORS, Endpoint, Parameter
from mainspring.http.faults import json_response
from mainspring.http.ignored import IgnoredFields
from mainspring.http.queries import CURSOR, Cursor, Deleted, Page, PageBuilder, cut_page, read_cursor
from mainspring.http.run_replies import choose_dialect, make_stream
from mainspring.http.streams import Wires
from mainspring.http.wire import Dialect
from mainspring.ports import RUN_METADATA, Document, Filter, StoredRun

_PATH = "/v1/chat/completions"
_ONE = f"{_PATH}/{{completion_id}}"
_OLDEST_FIRST = tuple(
    [Parameter("order", {"enum": ["asc", "desc"], "default": "asc"}) if each.name == "order" else each for each in CURSOR]
)
MOST_SEARCHED: Final = 2_000
"""How many runs are looked at for those with some metadata."""
_METADATA: Final = "metadata["


class UpdateChatCompletion(Struct):
    """The body of `POST /v1/chat/completions/{completion_id}`."""

    metadata: Metadata | None


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
            Endpoint(
                "GET", _PATH, self.list, "responses", Page,
                query=(*_OLDEST_FIRST, Parameter("model"), Parameter("metadata[KEY]")),
            ),
            Endpoint("GET", _ONE, self.retrieve, "responses", ChatCompletion),
            Endpoint("POST", _ONE, self.update, "responses", ChatCompletion, UpdateChatCompletion),
            Endpoint("DELETE", _ONE, self.delete, "responses", Deleted),
            Endpoint("GET", f"{_ONE}/messages", self.list_messages, "responses", Page, query=_OLDEST_FIRST),
        )  # fmt: skip

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
        return json_response(await self._render(run, request))

    async def update(self, request: Request) -> HttpResponse:
        """Replaces the metadata of a stored chat completion."""
        run, ignored = await self._find(request), IgnoredFields()
        body = ignored.parse(await read_json_body(request), UpdateChatCompletion)
        await self._engine.store.put([Document(RUN_METADATA, run.id, encode(body.metadata or {}), run.tenant)])
        return json_response(await self._render(run, request), headers=ignored.make_headers())

    async def list(self, request: Request) -> HttpResponse:
        """Lists stored runs that came to an answer as chat completions, oldest first."""
        cursor, wanted = _read_cursor(request), _read_wanted(request)
        only = Filter(
            tenant=get_tenant(request),
            status=("completed", "incomplete", "requires_action"),
            model=request.query_params.get("model"),
        )
        after, listed, count, looked = cursor.after and derive_id("resp", cursor.after), PageBuilder(), 0, 0
        while True:
            found = await self._engine.store.list(limit=cursor.limit, after=after, newest_first=cursor.newest_first, only=only)
            for run in found.runs:
                told, after, looked = await self._render(run, request), run.id, looked + 1
                if wanted.items() <= told.metadata.items():
                    listed.add(told.id, told)
                    count += 1
                if count == cursor.limit or listed.is_full:
                    return json_response(listed.build(has_more=found.has_more or run is not found.runs[-1]))
            if not found.has_more or looked >= MOST_SEARCHED:
                break
        page = listed.build(has_more=found.has_more)
        if found.has_more:
            page = replace(page, last_id=told.id)  # there may be more behind those that were looked at
        return json_response(page)

    async def delete(self, request: Request) -> HttpResponse:
        """Deletes a stored run."""
        run = await self._find(request)
        await self._engine.forget(run.id)
        return json_response(Deleted(derive_id("chatcmpl", run.id), "chat.completion.deleted"))

    async def list_messages(self, request: Request) -> HttpResponse:
        """Lists the messages of a stored request, oldest first."""
        run, cursor = await self._find(request), _read_cursor(request)
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

    async def _render(self, run: StoredRun, request: Request) -> ChatCompletion:
        """A run that has ended, with what its metadata was changed to."""
        assert run.response is not None
        told = render_completion(run.response, ChatDialect(extensions=self._shows_more(request)))
        changed = await self._engine.store.get(RUN_METADATA, run.id, tenant=run.tenant)
        return told if changed is None else replace(told, metadata=decode(changed.body, dict[str, str]))

    def _shows_more(self, request: Request) -> bool:
        return choose_dialect(request, self._dialect).extensions


def _read_cursor(request: Request) -> Cursor:
    """As for other lists, but the oldest come first."""
    cursor = read_cursor(request)
    return cursor if "order" in request.query_params else replace(cursor, newest_first=False)


def _read_wanted(request: Request) -> Mapping[str, str]:
    """The metadata that is wanted: `metadata[KEY]=VALUE`. Raises `InvalidRequest`."""
    if "metadata" in request.query_params:
        raise InvalidRequest("write metadata[KEY]=VALUE", param="metadata", code="invalid_value")
    return {
        name[len(_METADATA) : -1]: value
        for name, value in request.query_params.items()
        if name.startswith(_METADATA) and name.endswith("]")
    }
