"""`/v1/models`: the models of the backends, and the agents, which requests name as models."""

from collections.abc import Callable, Iterable, Sequence

from msgspec import Struct
from starlette.requests import Request
from starlette.responses import Response as HttpResponse

from mainspring.http.endpoints import MODEL_ERRORS, Endpoint
from mainspring.http.faults import json_response
from mainspring.ports import Provider


class Model(Struct, frozen=True):
    id: str
    created: int
    owned_by: str
    object: str = "model"


class ModelList(Struct, frozen=True):
    data: Sequence[Model]
    object: str = "list"


class ModelRoutes:
    """`agent_models` gives the names under which agents can be asked for as models."""

    def __init__(self, provider: Provider, agent_models: Callable[[], Iterable[str]]) -> None:
        self._provider, self._agent_models = provider, agent_models

    def endpoints(self) -> tuple[Endpoint, ...]:
        return (Endpoint("GET", "/v1/models", self.list, "models", ModelList, schemas=(Model,), errors=MODEL_ERRORS),)

    async def list(self, request: Request) -> HttpResponse:
        """Lists the models and the agents that requests can name as models."""
        found = [Model(model.id, model.created, model.owned_by) for model in await self._provider.models()]
        agents = [Model(name, 0, "mainspring") for name in self._agent_models()]
        return json_response(ModelList([*found, *agents]))
