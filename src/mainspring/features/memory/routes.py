"""`/v1/memory`: what runs have said and done, found again, and forgotten."""

from collections.abc import Sequence

from msgspec import Struct
from starlette.requests import Request
from starlette.responses import Response as HttpResponse

from mainspring.core.errors import InvalidRequest
from mainspring.features.memory.memory import Memory
from mainspring.features.memory.no_memory import NoMemory
from mainspring.features.memory.observation import Observation
from mainspring.features.memory.recall import LEVELS, MOST_RESULTS, TOP_K, Recalled
from mainspring.http.auth import get_tenant
from mainspring.http.endpoints import Endpoint, Parameter
from mainspring.http.faults import Fault, json_response
from mainspring.http.queries import read_choice, read_number


class Recollection(Struct, frozen=True):
    """What was found, best first; `tokens` is about how many all of it has."""

    data: Sequence[Recalled]
    tokens: int
    object: str = "list"


class Forgotten(Struct, frozen=True):
    session: str
    count: int
    object: str = "memory.session"
    deleted: bool = True


_SESSION = (Parameter("session"),)
_SEARCH = (
    Parameter("q"),
    Parameter("level", {"enum": list(LEVELS), "default": "index"}),
    Parameter("top_k", {"type": "integer", "minimum": 1, "maximum": MOST_RESULTS, "default": TOP_K}),
    Parameter("agent"),
    *_SESSION,
)


class MemoryRoutes:
    """Every endpoint under `/v1/memory`. Each sees the caller's tenant, and no other."""

    def __init__(self, memory: Memory | NoMemory) -> None:
        self._memory = memory

    def endpoints(self) -> tuple[Endpoint, ...]:
        return (
            Endpoint("GET", "/v1/memory/search", self.search, "memory", Recollection, query=_SEARCH, errors=(404,)),
            Endpoint("DELETE", "/v1/memory/observations", self.forget, "memory", Forgotten, query=_SESSION, errors=(404,)),
            Endpoint("GET", "/v1/memory/observations/{observation_id}", self.retrieve, "memory", Observation),
        )

    async def search(self, request: Request) -> HttpResponse:
        """Searches observations by words and meaning; without `q`, lists the newest."""
        memory, given = self._require_memory(), request.query_params
        found = await memory.search(
            given.get("q", ""),
            tenant=get_tenant(request),
            level=read_choice(request, "level", {level: level for level in LEVELS}) or "index",
            top_k=read_number(request, "top_k", most=MOST_RESULTS) or TOP_K,
            agent=given.get("agent"),
            session=given.get("session"),
        )
        return json_response(Recollection(found, sum([each.tokens for each in found])))

    async def retrieve(self, request: Request) -> HttpResponse:
        """Retrieves an observation."""
        found = await self._require_memory().get(str(request.path_params["observation_id"]), tenant=get_tenant(request))
        return json_response(found)

    async def forget(self, request: Request) -> HttpResponse:
        """Deletes the observations of a session."""
        memory, session = self._require_memory(), request.query_params.get("session")
        if not session:
            raise InvalidRequest("session must be named: the one whose observations are to be deleted", param="session")
        return json_response(Forgotten(session, await memory.forget(tenant=get_tenant(request), session=session)))

    def _require_memory(self) -> Memory:
        if not isinstance(self._memory, Memory):
            message = "this server remembers nothing; its operator can set `enabled = true` under `[memory]` in mainspring.toml"
            raise Fault(404, "memory_off", message)
        return self._memory
