"""`/v1/audit`: what was decided and done, by whom, and whether the record of it is whole; and the same of one call."""

from collections.abc import AsyncIterator, Callable
from typing import Final, get_args

from msgspec import Struct
from msgspec.structs import asdict, replace
from starlette.requests import Request
from starlette.responses import Response as HttpResponse

from mainspring.core.errors import InvalidRequest, NotFound
from mainspring.core.items import FunctionCall
from mainspring.engine.audit import AuditEntry, Auditor, What, entry_of
from mainspring.engine.engine import Engine
from mainspring.features.audit.description import describe
from mainspring.http.endpoints import COUNT, Endpoint, Parameter
from mainspring.http.faults import json_response
from mainspring.http.queries import Page, PageBuilder, read_choice, read_number
from mainspring.http.tenants import TENANT, choose_tenant, find_run, require_operator
from mainspring.ports import Link
from mainspring.storage.audit_chain import verify

BATCH: Final = 500
MOST_READ: Final = 20_000
"""How many records are looked at for one page."""
_EQUAL: Final = ("run", "tool", "subject", "outcome", "policy")
_FILTERS: Final = (
    Parameter("limit", {"type": "integer", "minimum": 1, "maximum": 100, "default": 20}),
    Parameter("after", COUNT),
    TENANT,
    Parameter("call"),
    Parameter("what", {"enum": list(get_args(What))}),
    *[Parameter(name) for name in _EQUAL],
    Parameter("since", COUNT),
    Parameter("before", COUNT),
)


class AuditRecord(Struct, frozen=True):
    """A record, what it says in words, and the hash by which it vouches for those before it."""

    id: str
    said: str
    entry: AuditEntry
    hash: str
    chain: str
    object: str = "audit.record"


class Verification(Struct, frozen=True):
    """`flaw` is the first break, if there is one. `heads` are worth keeping elsewhere: sent again, they must still be there."""

    is_whole: bool
    records: int
    flaw: str | None
    heads: tuple[str, ...]
    object: str = "audit.verification"


class ExplainedEntry(Struct, frozen=True):
    at: float
    seq: int
    said: str
    entry: AuditEntry


class CallExplanation(Struct, frozen=True):
    """What became of a call: which rule decided and why, who approved it, and how it ended."""

    run: str
    call: str
    tool: str
    digest: str
    entries: tuple[ExplainedEntry, ...]
    object: str = "call.explanation"


class AuditRoutes:
    """Every endpoint under `/v1/audit`, and the explanation of a call."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def endpoints(self) -> tuple[Endpoint, ...]:
        explain = "/v1/runs/{run_id}/explain/{call_id}"
        return (
            Endpoint("GET", "/v1/audit", self.list, "admin", Page, query=_FILTERS, schemas=(AuditRecord,)),
            Endpoint("GET", "/v1/audit/verify", self.verify, "admin", Verification, query=(Parameter("head"),)),
            Endpoint("GET", explain, self.explain, "responses", CallExplanation, also=("traces",)),
        )

    async def list(self, request: Request) -> HttpResponse:
        """Lists the records of the audit, newest first. A page may have few that fit, and more behind it."""
        limit, after = read_number(request, "limit", most=100) or 20, read_number(request, "after")
        fits = _read_filter(request)
        page, read, last = PageBuilder(), 0, after
        async for link in self._read(after, request.query_params.get("call")):
            if limit == 0 or page.is_full or read == MOST_READ:
                return json_response(replace(page.build(has_more=True), last_id=str(last)))
            read, last = read + 1, link.number
            entry, number = entry_of(link.note), str(link.number)
            if fits(entry):
                limit -= 1
                page.add(number, AuditRecord(number, describe(entry), entry, link.hash.hex(), link.chain))
        return json_response(page.build(has_more=False))

    async def _read(self, after: int | None, call: str | None) -> AsyncIterator[Link]:
        store = self._engine.store
        while links := await store.audit(after=after, limit=BATCH, newest_first=True, call=call):
            for link in links:
                yield link
            after = links[-1].number

    async def verify(self, request: Request) -> HttpResponse:
        """Verifies the hash chains of the audit, and that the heads that are sent are still in it."""
        require_operator(request)
        try:
            heads = [bytes.fromhex(text) for text in request.query_params.getlist("head")]
        except ValueError:
            raise InvalidRequest("a head has 64 hexadecimal digits, as this has told it before", param="head") from None
        seen = await verify(self._engine.store, *heads)
        told = tuple([head.hex() for head in seen.heads])
        return json_response(Verification(seen.flaw is None, seen.length, seen.flaw, told))

    async def explain(self, request: Request) -> HttpResponse:
        """Explains a call of a run: which rule decided and why, who approved it, and what came of it."""
        handle, call_id = await find_run(request, self._engine), str(request.path_params["call_id"])
        run = handle.run
        calls = [entry.item for entry in run.transcript if isinstance(entry.item, FunctionCall)]
        entries = [entry for entry in Auditor(run.spec, calls).entries(handle.log) if entry.call == call_id]
        if not entries:
            message = f"run `{run.spec.id}` has no call `{call_id[:80]}` that was judged; its events name its calls"
            raise NotFound(message, param="call_id")
        told = tuple([ExplainedEntry(entry.at, entry.seq, describe(entry), entry) for entry in entries])
        return json_response(CallExplanation(run.spec.id, call_id, entries[0].tool, entries[0].digest, told))


def _read_filter(request: Request) -> Callable[[AuditEntry], bool]:
    tenant, query = choose_tenant(request), request.query_params
    since, before = read_number(request, "since"), read_number(request, "before")
    wanted = {name: query[name] for name in _EQUAL if name in query}
    if (what := read_choice(request, "what", {word: word for word in get_args(What)})) is not None:
        wanted["what"] = what
    if tenant is not None:
        wanted["tenant"] = tenant

    def fits(entry: AuditEntry) -> bool:
        if (since is not None and entry.at < since) or (before is not None and entry.at >= before):
            return False
        fields = asdict(entry) if wanted else {}
        return all(fields[name] == value for name, value in wanted.items())

    return fits
