"""Requests of other APIs, turned into orders and started as those of `POST /v1/responses` are.

A door reads its own body into a `CreateResponse` and the few options that only it has. Everything behind that is shared: agents,
limits, keys, tenants, governance, storage. What goes wrong there is told by the names that the door's own fields have.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager

from msgspec import Struct
from msgspec.structs import replace
from starlette.requests import Request

from mainspring.core.errors import MainspringError
from mainspring.core.items import Json
from mainspring.core.spec import RunSpec
from mainspring.engine.engine import Engine
from mainspring.engine.handle import Handle
from mainspring.features.agents.agent_runtime import AgentRuntime
from mainspring.features.responses.order import check_client_calls, read_order
from mainspring.features.responses.sent_request import SentRequest
from mainspring.http.faults import Fault
from mainspring.http.idempotency import IdempotentRuns, read_key
from mainspring.http.run_replies import find_failure, wait_for_end
from mainspring.http.support import check_needs, list_option_needs
from mainspring.providers.wrapper import find_features

_ITEM = re.compile(r"input\[(\d+)\]")


class FieldNames:
    """What a door calls the fields that a `CreateResponse` has: pairs of a pattern and what stands for it. `places` says where
    each item of the input is in the request."""

    def __init__(self, *names: tuple[str, str]) -> None:
        self._names = [(re.compile(pattern), own) for pattern, own in names]
        self.places: list[str] = []

    def rename(self, path: str) -> str:
        if (found := _ITEM.match(path)) and int(found[1]) < len(self.places):
            return self.places[int(found[1])] + path[found.end() :]
        for pattern, own in self._names:
            if pattern.match(path):
                return pattern.sub(own, path, count=1)
        return path

    @contextmanager
    def apply(self) -> Iterator[None]:
        """Has what is refused within named as the door names it."""
        try:
            yield
        except (MainspringError, Fault) as error:
            error.param = None if error.param is None else self.rename(error.param)
            raise


class DoorRequest(Struct, frozen=True):
    """A request as it is understood: as one for a response, and what a response cannot be asked for, as fields of `Sampling`."""

    sent: SentRequest
    names: FieldNames
    sampling: Json = {}


class Door:
    """Starts runs for the requests of another API."""

    def __init__(self, engine: Engine, agents: AgentRuntime) -> None:
        self._engine, self._agents = engine, agents
        self._runs = IdempotentRuns(engine)

    async def read_order(self, request: Request, asked: DoorRequest) -> RunSpec:
        """The order that a request stands for. Raises as `read_order` does."""
        with asked.names.apply():
            # These APIs tell of calls at the end.
            spec = check_client_calls(await read_order(self._engine, self._agents, request, asked.sent))
            if needs := [*list_option_needs(asked.sampling)]:
                check_needs(needs, find_features(self._engine.provider, spec.model))
            return replace(spec, sampling=replace(spec.sampling, **asked.sampling)) if asked.sampling else spec

    async def start(self, request: Request, raw: bytes, asked: DoorRequest) -> Handle:
        """The run for a request, or the one that its idempotency key stands for."""
        spec = await self.read_order(request, asked)
        with asked.names.apply():
            return await self._runs.start(spec, read_key(request), raw)

    async def wait(self, request: Request, handle: Handle, names: FieldNames) -> None:
        """Waits for the end of a run. Raises `Fault` if it has failed, whatever it has said: these APIs have no failed answer."""
        await wait_for_end(handle, request)
        if (failure := find_failure(handle.run)) is not None:
            with names.apply():
                raise failure
