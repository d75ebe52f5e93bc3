"""`/v1/runs`: every run in a line, what becomes of runs as it happens, and the log of each."""

import time
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from typing import Final, get_args

from anyio import sleep
from msgspec import Raw, Struct
from msgspec.structs import asdict
from starlette.requests import Request
from starlette.responses import Response as HttpResponse

from mainspring.core.delegation import child_id, is_delegation
from mainspring.core.end_reasons import describe_end
from mainspring.core.events import RunEnded, Status
from mainspring.core.items import Usage, encode
from mainspring.core.spec import Price
from mainspring.engine.engine import Engine
from mainspring.engine.handle import Handle
from mainspring.features.runs.change_feed import ChangeFeed
from mainspring.features.runs.run_events import EventPage, merge_deltas, render_event, select_events
from mainspring.http.auth import authorize_again, get_caller
from mainspring.http.client_connection import BodyWriter
from mainspring.http.endpoints import COUNT, FLAG, Endpoint, KeyScope, Parameter
from mainspring.http.faults import Fault, json_response
from mainspring.http.queries import FLAGS, Page, make_page, read_choice, read_cursor, read_number
from mainspring.http.streams import EventStream, write_batches
from mainspring.http.tenants import TENANT, choose_tenant, find_run
from mainspring.http.wire import hide_addresses
from mainspring.ports import PAGE_BYTES, Filter, RunSummary

_PATH: Final = "/v1/runs"
_CHANGES: Final = f"{_PATH}/changes"
_ONE: Final = f"{_PATH}/{{run_id}}"
_STATUSES: Final[dict[str, tuple[Status, ...]]] = {status: (status,) for status in get_args(Status) if status != "queued"}
_LIMIT: Final = Parameter("limit", {"type": "integer", "minimum": 1, "maximum": 100, "default": 20})
_FILTERS: Final = (
    _LIMIT,
    Parameter("after"),
    Parameter("status", {"enum": list(_STATUSES)}),
    Parameter("model"),
    Parameter("agent"),
    TENANT,
    Parameter("q"),
    Parameter("created_after", COUNT),
    Parameter("created_before", COUNT),
    Parameter("waiting", FLAG),
)
MOST_EVENTS: Final = 10_000
SLOWEST_PACE: Final = 10_000
_EVENTS: Final = (
    Parameter("after", COUNT),
    Parameter("limit", {"type": "integer", "minimum": 1, "maximum": MOST_EVENTS, "default": 1000}),
    Parameter("deltas", {"type": "boolean", "default": False}),
    Parameter("stream", {"type": "boolean", "default": False}),
    Parameter("pace", {"type": "integer", "minimum": 1, "maximum": SLOWEST_PACE}),
)
_SINCE: Final = (TENANT, Parameter("since"))
_ALSO: Final[tuple[KeyScope, ...]] = ("traces",)
CHECK_SECONDS: Final = 5.0
MOST_CHILDREN: Final = 200


class RunLine(Struct, frozen=True):
    """A run as a list shows it. `waiting` says that it has stopped for a person who has not answered yet."""

    id: str
    status: str
    reason: str | None
    model: str
    agent: str
    tenant: str
    created_at: float
    ended_at: float | None
    prompt: str
    tokens: int
    error: str | None
    waiting: bool
    parent: str | None
    object: str = "run"


class RunDetails(RunLine, frozen=True, kw_only=True):
    """A run, and those around it: `within` is the run that has delegated it, `children` are those that it has delegated,
    `continued_by` those that go on with it. `why` says in a sentence why it ended. `events` counts its log. `cost` is
    what its own tokens cost, null if the price of its model is not known."""

    within: str | None
    children: tuple[RunLine, ...]
    continued_by: tuple[RunLine, ...]
    conversation: str | None
    background: bool
    usage: Usage
    turns: int
    calls: int
    events: int
    why: str | None
    cost: float | None


class RunRoutes:
    """Every endpoint under `/v1/runs`."""

    def __init__(self, engine: Engine, find_price: Callable[[str], Price | None] = lambda model: None) -> None:
        self._engine, self._feed, self._find_price = engine, ChangeFeed(engine.store), find_price

    def endpoints(self) -> tuple[Endpoint, ...]:
        return (
            Endpoint("GET", _PATH, self.list, "responses", Page, query=_FILTERS, also=_ALSO, schemas=(RunLine,)),
            Endpoint("GET", _CHANGES, self.follow_changes, "responses", RunLine, query=_SINCE, streams=True, also=_ALSO),
            Endpoint("GET", _ONE, self.retrieve, "responses", RunDetails, also=_ALSO),
            Endpoint("GET", f"{_ONE}/events", self.list_events, "responses", EventPage, query=_EVENTS, streams=True, also=_ALSO),
            Endpoint("POST", f"{_ONE}/cancel", self.cancel, "responses", RunDetails),
        )

    async def list(self, request: Request) -> HttpResponse:
        """Lists runs in lines, newest first."""
        cursor, tenant = read_cursor(request), choose_tenant(request)
        since, before = read_number(request, "created_after"), read_number(request, "created_before")
        only = Filter(
            tenant=tenant,
            status=read_choice(request, "status", _STATUSES) or (),
            model=request.query_params.get("model"),
            agent=request.query_params.get("agent"),
            text=request.query_params.get("q") or None,
            since=since,
            before=before,
            waits_at=time.time() if read_choice(request, "waiting", FLAGS) else None,
        )
        page = await self._engine.store.summarize(limit=cursor.limit, after=cursor.after, only=only)
        told = [_tell(run) for run in page.runs]
        return json_response(make_page(told, [run.id for run in told], has_more=page.has_more))

    async def follow_changes(self, request: Request) -> HttpResponse:
        """Streams the line of each run that begins, stops for somebody or ends, from now on or from `since` on.

        The first event, `ready`, has a cursor, and says whether nothing was missed since the one that was sent.
        """
        tenant, cursor = choose_tenant(request), request.query_params.get("since", "")

        async def write(writer: BodyWriter) -> None:
            with self._feed.join():
                place = await self._feed.find_place(cursor, tenant)
                ready = {"cursor": self._feed.make_cursor(tenant) if place is None else cursor, "is_complete": place is not None}
                writer.write_chunk(b"event: ready\ndata: %b\n\n" % encode(ready))
                await self._push_changes(request, writer, tenant, self._feed.last if place is None else place)

        return EventStream(write, {}, lambda: None, end=b"")

    async def _push_changes(self, request: Request, writer: BodyWriter, tenant: str | None, number: int) -> None:
        """Ends if the client was too slow: with its cursor it comes again, and learns that it has missed something."""
        checked = time.monotonic()
        while (changes := await self._feed.read(number)) is not None:
            if time.monotonic() - checked > CHECK_SECONDS:
                checked = time.monotonic()
                try:
                    await authorize_again(request)
                except Fault:
                    return
            for change in changes:
                number = change.number
                if tenant in (None, change.run.tenant):
                    cursor = self._feed.make_cursor(tenant, change).encode()
                    writer.write_chunk(b"id: %b\nevent: run\ndata: %b\n\n" % (cursor, encode(_tell(change.run))))
            if writer.is_full:
                await writer.drain()

    async def retrieve(self, request: Request) -> HttpResponse:
        """Retrieves a run with those around it, and why it ended."""
        return json_response(await self._describe(await find_run(request, self._engine)))

    async def cancel(self, request: Request) -> HttpResponse:
        """Cancels a run, also one whose client waits for it. One that has ended stays as it is."""
        handle = await find_run(request, self._engine)
        if not handle.run.has_ended:
            await self._engine.cancel(handle.id)
        return json_response(await self._describe(await find_run(request, self._engine)))

    async def list_events(self, request: Request) -> HttpResponse:
        """Lists the events of a run by number, or streams them as they come. Deltas of finished items are left out of a list.

        With a `pace`, a stream tells what is new every so many milliseconds, and deltas that go on with each other as one. That
        costs the server a fraction, and somebody who reads along misses nothing.
        """
        after = read_number(request, "after")
        limit = read_number(request, "limit", most=MOST_EVENTS) or 1000
        with_deltas = bool(read_choice(request, "deltas", FLAGS))
        pace = (read_number(request, "pace", most=SLOWEST_PACE) or 0) / 1000
        may_read, is_stream = get_caller(request).may("responses"), read_choice(request, "stream", FLAGS)
        handle, place = await find_run(request, self._engine), -1 if after is None else after
        if is_stream:
            if not handle.is_live and not handle.run.has_ended:
                handle = await self._engine.follow(handle.id)
            return EventStream(write_batches(_render_frames(handle, place, may_read, pace)), {}, lambda: None, end=b"")
        shown = handle.log[: handle.journal.shown]
        data: list[Raw] = []
        size, last = 0, place
        for record in select_events(shown, place, with_deltas=with_deltas):
            if len(data) == limit or size > PAGE_BYTES:
                return json_response(EventPage(data, last, has_more=True))
            data.append(Raw(render_event(record, may_read=may_read)))
            size, last = size + len(data[-1]), record.seq
        return json_response(EventPage(data, max(last, len(shown) - 1), has_more=False))

    async def _describe(self, handle: Handle) -> RunDetails:
        run, store = handle.run, self._engine.store
        spec = run.spec
        delegated = [child_id(spec.id, call.call_id) for call in run.allowed if is_delegation(call.name)][:MOST_CHILDREN]
        own = await store.summarize(limit=MOST_CHILDREN, newest_first=False, only=Filter(ids=(spec.id, *delegated)))
        later = await store.summarize(limit=MOST_CHILDREN, newest_first=False, only=Filter(tenant=spec.tenant, parent=spec.id))
        lines = {line.id: _tell(line) for line in own.runs}
        line = lines.pop(spec.id) if spec.id in lines else _tell_unstored(handle)
        return RunDetails(
            **asdict(line),
            within=spec.within or None,
            children=tuple(lines.values()),
            continued_by=tuple([_tell(line) for line in later.runs]),
            conversation=None if spec.conversation is None else spec.conversation.id,
            background=spec.background,
            usage=run.usage,
            turns=run.turns,
            calls=len(run.allowed),
            events=len(handle.log),
            why=None if (why := describe_end(run)) is None else hide_addresses(why),
            cost=None if (price := self._find_price(spec.model)) is None else price.of(run.usage),
        )


async def _render_frames(handle: Handle, after: int, may_read: bool, pace: float) -> AsyncIterator[list[bytes]]:
    async with aclosing(handle.batches(after)) as batches:  # type: ignore[type-var]
        async for batch in batches:
            told = list(merge_deltas(batch)) if pace else batch
            yield [b"id: %d\ndata: %b\n\n" % (record.seq, render_event(record, may_read=may_read)) for record in told]
            if pace and not isinstance(batch[-1].event, RunEnded):
                await sleep(pace)


def _tell(run: RunSummary) -> RunLine:
    return RunLine(
        run.id,
        run.status,
        run.reason or None,
        run.model,
        run.agent,
        run.tenant,
        run.created_at,
        run.ended_at,
        run.prompt,
        run.input_tokens + run.output_tokens,
        hide_addresses(run.error) or None,
        (run.waits_until or 0.0) > time.time(),
        run.parent,
    )


def _tell_unstored(handle: Handle) -> RunLine:
    """The line of a run that is not in the store: it was ordered so, and is under way."""
    run = handle.run
    spec, reason = run.spec, None if run.reason is None else run.reason.value
    ended_at = run.clock if run.has_ended else None
    known = (spec.model, spec.agent, spec.tenant, run.started_at, ended_at, "", run.usage.total_tokens)
    return RunLine(spec.id, run.status, reason, *known, None, False, spec.parent)
