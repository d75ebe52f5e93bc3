"""The Responses API: requests become runs, runs become answers."""

from collections.abc import Mapping, Sequence
from typing import TypeVar, get_args

from anyio import create_task_group
from msgspec import Struct
from msgspec.structs import replace
from starlette.requests import ClientDisconnect, HTTPConnection, Request
from starlette.responses import Response as HttpResponse

from mainspring.app.engine import Engine
from mainspring.core.drafts import item_id
from mainspring.core.errors import InvalidRequest, MainspringError, NotFound
from mainspring.core.events import Status
from mainspring.core.items import Item
from mainspring.core.response import Response
from mainspring.core.run import Run
from mainspring.engine.engine import Handle
from mainspring.features.responses.order import ordered
from mainspring.features.responses.request import parse
from mainspring.http.auth import caller_of
from mainspring.http.client_tools import spelled
from mainspring.http.faults import Fault, json_response
from mainspring.http.idempotency import Idempotency
from mainspring.http.streams import EventStream, Wires, frames
from mainspring.http.wire import Dialect, shown, without_addresses
from mainspring.ports import Filter

IDEMPOTENCY_KEY = "idempotency-key"
MOST_BODY_BYTES = 32 * 1024 * 1024


class Page(Struct, frozen=True):
    data: Sequence[object]
    first_id: str | None
    last_id: str | None
    has_more: bool
    object: str = "list"


class Deleted(Struct, frozen=True):
    id: str
    object: str = "response"
    deleted: bool = True


class Responses:
    """Every endpoint under `/v1/responses`."""

    def __init__(self, engine: Engine, dialect: Dialect) -> None:
        self._engine = engine
        self._dialect = dialect
        self._wires = Wires()
        self._idempotency = Idempotency(engine)

    async def create(self, request: Request) -> HttpResponse:
        raw = await body_of(request)
        body = parse(raw)
        spec = await ordered(self._engine, request, body)
        is_followed = body.stream is True or not spec.background
        handle = await self._idempotency.start(spec, request.headers.get(IDEMPOTENCY_KEY), raw, is_followed=is_followed)
        if body.stream:
            return self._stream(handle, request, -1, is_owner=not spec.background)
        if not spec.background:
            await ended(handle, request)
            raise_failure(handle.run)
        return json_response(shown(handle.response, self._told(request)))

    async def retrieve(self, request: Request) -> HttpResponse:
        handle = await self._find(request)
        if one_of(request, "stream", _FLAGS):
            after = number_of(request, "starting_after")
            return self._stream(handle, request, -1 if after is None else after, is_owner=False)
        return json_response(shown(handle.response, self._told(request)))

    async def delete(self, request: Request) -> HttpResponse:
        handle = await self._find(request)
        if not handle.run.has_ended:
            await self._engine.cancel(handle.id)
        await self._engine.forget(handle.id)
        return json_response(Deleted(handle.id))

    async def cancel(self, request: Request) -> HttpResponse:
        handle = await self._find(request)
        # An agent's run is told by its id while it works, so whoever sees it going wrong can stop it.
        if not handle.run.spec.background and not handle.run.spec.agent:
            raise InvalidRequest("Only responses created with background=true can be cancelled.", param="response_id")
        if handle.run.has_ended and handle.run.status != "cancelled":
            raise InvalidRequest(f"Cannot cancel a {handle.run.status} response.", param="response_id")
        await self._engine.cancel(handle.id)
        return json_response(shown((await self._find(request)).response, self._told(request)))

    async def list(self, request: Request) -> HttpResponse:
        limit, newest_first, after = page_of(request)
        only = _filter(request, self._told(request))
        page = await self._engine.store.list(limit=limit, after=after, newest_first=newest_first, only=only)
        told: list[Response] = []
        for run in page.runs:
            answer = run.response if run.response is not None else (await self._engine.attach(run.id)).response
            told.append(shown(answer, self._told(request)))
        return json_response(_page(told, [answer.id for answer in told], page.has_more))

    async def input_items(self, request: Request) -> HttpResponse:
        limit, newest_first, after = page_of(request)
        handle = await self._find(request)
        items = [spelled(item) for item in handle.run.spec.input]
        return json_response(paged(items[::-1] if newest_first else items, limit, after))

    async def _find(self, request: Request) -> Handle:
        run_id = str(request.path_params["response_id"])
        missing = NotFound(f"Response with id '{run_id}' not found.", param="response_id")
        try:
            handle = await self._engine.attach(run_id)
        except NotFound:
            raise missing from None
        if handle.run.spec.tenant != caller_of(request).tenant:
            raise missing
        return handle

    def _stream(self, handle: Handle, request: Request, after: int, *, is_owner: bool) -> HttpResponse:
        wire = self._wires.of(handle, self._told(request))

        def left() -> None:
            if is_owner and not _goes_on(request):
                handle.request_cancel()

        return EventStream(frames(handle, wire, after), {}, left)

    def _told(self, request: Request) -> Dialect:
        return told_to(request, self._dialect)


def told_to(client: HTTPConnection, dialect: Dialect) -> Dialect:
    """The server's dialect, as this client's headers change it."""
    headers = client.headers
    if "openresponses-version" in headers:
        dialect = replace(dialect, reasoning="reasoning", server_calls="function_call")
    if (status := headers.get("mainspring-status")) is not None:
        dialect = replace(dialect, requires_action=status == "requires_action")
    if (extensions := headers.get("mainspring-extensions")) is not None:
        dialect = replace(dialect, extensions=extensions == "on")
    if (announced := headers.get("mainspring-error-event")) is not None:
        dialect = replace(dialect, error_event=announced != "off")
    return dialect


async def ended(handle: Handle, request: Request) -> None:
    """Waits for the end; a client that leaves first cancels the run, unless it asked for the contrary."""
    failure: MainspringError | None = None

    async def leave() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass
        handle.request_cancel()

    async with create_task_group() as group:
        if not _goes_on(request):
            group.start_soon(leave)
        try:
            await handle.wait()
        except MainspringError as error:
            failure = error
        group.cancel_scope.cancel()
    if failure is not None:
        raise failure


def _goes_on(request: Request) -> bool:
    """Whether the client means its response to go on without it. One that has given it a key may be back for it."""
    return request.headers.get("mainspring-on-disconnect") == "continue" or IDEMPOTENCY_KEY in request.headers


def raise_failure(run: Run) -> None:
    """A run that failed before it said anything is an error of the request, as SDKs expect it; it can be read all the same."""
    if run.status == "failed" and not run.output and run.error is not None:
        code = run.error.code
        status = _HTTP_STATUSES.get(code, 502 if code.startswith("provider_") else 500)
        param = None if status == 500 else "input" if status == 400 else "model"
        raise Fault(status, code, without_addresses(run.error.message), param=param, retry_after=run.error.retry_after)


_HTTP_STATUSES = {"rate_limit_exceeded": 429, "invalid_prompt": 400, "context_length_exceeded": 400, "budget_exceeded": 400}


def page_of(request: Request) -> tuple[int, bool, str | None]:
    """`limit`, whether the newest come first, and `after`, as list endpoints take them."""
    limit = number_of(request, "limit")
    if limit is not None and not 1 <= limit <= 100:
        raise _invalid("limit", "between 1 and 100", str(limit))
    newest_first = one_of(request, "order", {"desc": True, "asc": False})
    return 20 if limit is None else limit, newest_first is not False, request.query_params.get("after")


def _filter(request: Request, dialect: Dialect) -> Filter:
    """Which responses a list shows. Status and time are meant as the responses tell them."""
    after, before = number_of(request, "created_after"), number_of(request, "created_before")
    statuses = _STATUSES if dialect.requires_action else {**_STATUSES, "completed": ("completed", "requires_action")}
    return Filter(
        tenant=caller_of(request).tenant,
        status=one_of(request, "status", statuses) or (),
        model=request.query_params.get("model"),
        background=one_of(request, "background", _FLAGS),
        parent=request.query_params.get("previous_response_id"),
        conversation=request.query_params.get("conversation"),
        # Responses tell whole seconds, runs are kept by fractions of them.
        since=None if after is None else after + 1,
        before=before,
    )


# The store knows no `queued`: such a run is in progress there.
_STATUSES: dict[str, tuple[Status, ...]] = {status: (status,) for status in get_args(Status) if status != "queued"}
_FLAGS = {"true": True, "false": False, "1": True, "0": False}


def paged(items: Sequence[Item], limit: int, after: str | None) -> Page:
    """A page of items that are all at hand."""
    ids = [item_id(item) for item in items]
    start = 0
    if after is not None:
        if after not in ids:
            raise NotFound(f"No item with id '{after}'.", param="after")
        start = ids.index(after) + 1
    return _page(items[start : start + limit], ids[start : start + limit], start + limit < len(items))


def _page(data: Sequence[object], ids: Sequence[str], has_more: bool) -> Page:
    return Page(data, ids[0] if ids else None, ids[-1] if ids else None, has_more)


def number_of(request: Request, name: str) -> int | None:
    """A whole number of the query, None if it is not there. Raises `InvalidRequest` for what is none."""
    text = request.query_params.get(name)
    if text is not None and not (text.isascii() and text.isdigit() and len(text) <= 15):
        raise _invalid(name, "a whole number from 0 on", text)
    return None if text is None else int(text)


T = TypeVar("T")


def one_of(request: Request, name: str, meanings: Mapping[str, T]) -> T | None:
    text = request.query_params.get(name)
    if text is not None and text.lower() not in meanings:
        raise _invalid(name, "one of " + ", ".join([f"`{word}`" for word in meanings]), text)
    return None if text is None else meanings[text.lower()]


def _invalid(name: str, wanted: str, text: str) -> InvalidRequest:
    return InvalidRequest(f"{name} must be {wanted}, not `{text[:40]}`", param=name, code="invalid_value")


async def body_of(request: Request) -> bytes:
    """The JSON body. Raises for another content type, and for a body beyond the limit before all of it is read."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        message = f"send the body as application/json, not as `{kind[:80] or 'nothing'}`"
        raise Fault(415, "unsupported_media_type", message, param="content-type")
    return await bytes_of(request)


async def bytes_of(request: Request) -> bytes:
    """The body, whatever it is. Raises for one beyond the limit before all of it is read."""
    if int(request.headers.get("content-length", 0)) > MOST_BODY_BYTES:
        raise _too_large()
    pieces: list[bytes] = []
    size = 0
    try:
        async for piece in request.stream():
            size += len(piece)
            if size > MOST_BODY_BYTES:
                raise _too_large()
            pieces.append(piece)
    except ClientDisconnect:  # nobody is left to read this, but it is no failure of ours
        raise Fault(400, "incomplete_body", "the connection ended before the body did", param="body") from None
    return b"".join(pieces)


def _too_large() -> Fault:
    return Fault(413, "request_too_large", f"the body has more than {MOST_BODY_BYTES} bytes; send less", param="body")
