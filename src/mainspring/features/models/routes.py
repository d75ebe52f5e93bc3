"""`/v1/models`: the models of the backends, and the agents, which requests name as models."""

from collections.abc import Callable, Iterable, Sequence, Set
from datetime import UTC, datetime
from logging import getLogger

from msgspec import Struct
from msgspec.structs import asdict
from starlette.requests import Request
from starlette.responses import Response as HttpResponse

from mainspring.core.errors import ModelNotFound, ProviderError
from mainspring.http.auth import get_tenant
from mainspring.http.endpoints import MODEL_ERRORS, Endpoint
from mainspring.http.faults import Fault, json_response
from mainspring.http.queries import is_of_messages
from mainspring.ports import ModelInfo, ProfileFact, ProfileValue, Provider
from mainspring.providers.wrapper import explain_profiles, forget_profiles

log = getLogger(__name__)


class Model(Struct, frozen=True):
    id: str
    created: int
    owned_by: str
    object: str = "model"


class ShownProfile(Struct, frozen=True):
    """How a model is asked and its answers are read. `values` are the fields of its profile; `facts` say of those that are not
    neutral who says so (`shipped`, `learned`, `operator`), why, since when and until when, in seconds since 1970."""

    provider: str
    model: str
    server: str
    values: dict[str, ProfileValue | None]
    facts: dict[str, ProfileFact]


class ModelDetails(Model, frozen=True, kw_only=True):
    """A model with the profiles in force, ours beside the fields of the standard: several if the name stands for several."""

    profiles: Sequence[ShownProfile] = ()


class ModelList(Struct, frozen=True):
    data: Sequence[Model]
    object: str = "list"


class MessagesModel(Struct, frozen=True):
    """A model as clients of the Messages API know it."""

    id: str
    display_name: str
    created_at: str
    type: str = "model"
    lifecycle: str = "active"


class MessagesModelList(Struct, frozen=True):
    data: Sequence[MessagesModel]
    first_id: str | None
    last_id: str | None
    has_more: bool = False


class ForgottenProfile(Struct, frozen=True):
    """`forgotten` is the number of fields that had been learned."""

    id: str
    forgotten: int
    object: str = "model.profile.deleted"


class ModelRoutes:
    """`agent_models` gives the names under which agents can be asked for as models."""

    def __init__(self, provider: Provider, agent_models: Callable[[], Iterable[str]]) -> None:
        self._provider, self._agent_models = provider, agent_models

    def endpoints(self) -> tuple[Endpoint, ...]:
        one, errors = "/v1/models/{model:path}", (404, *MODEL_ERRORS)
        return (
            Endpoint(
                "GET", "/v1/models", self.list, "models", ModelList, schemas=(Model, MessagesModelList), errors=MODEL_ERRORS
            ),
            Endpoint("DELETE", f"{one}/profile", self.forget, "admin", ForgottenProfile, errors=errors),
            Endpoint("GET", one, self.show, "models", ModelDetails, schemas=(ShownProfile, ProfileFact), errors=errors),
        )

    async def list(self, request: Request) -> HttpResponse:
        """Lists the models and the agents that requests can name as models; with `anthropic-version`, as that API does."""
        found = [Model(model.id, model.created, model.owned_by) for model in await self._provider.models()]
        found += [Model(name, 0, "mainspring") for name in self._agent_models()]
        if not is_of_messages(request):
            return json_response(ModelList(found))
        told = [_name_for_messages(model) for model in found]
        first, last = (told[0].id, told[-1].id) if told else (None, None)
        return json_response(MessagesModelList(told, first, last))

    async def show(self, request: Request) -> HttpResponse:
        """Returns a model, and how it is asked and its answers are read, with the reason for each field that is not neutral."""
        name = str(request.path_params["model"])
        is_agent = name in self._agent_models()
        if is_of_messages(request):
            found = ModelInfo(name) if is_agent else await self._find(name, set())
            return json_response(_name_for_messages(Model(found.id, found.created, found.owned_by)))
        if is_agent:
            return json_response(ModelDetails(name, 0, "mainspring"))
        known = [asdict(profile) for profile in await explain_profiles(self._provider, name)]
        profiles = [ShownProfile(**{field: each[field] for field in ShownProfile.__struct_fields__}) for each in known]
        info = await self._find(name, {each.provider for each in profiles})
        return json_response(ModelDetails(info.id, info.created, info.owned_by, profiles=profiles))

    async def forget(self, request: Request) -> HttpResponse:
        """Forgets what was learned of a model, so that it is tried anew."""
        if get_tenant(request):
            message = "what was learned of a model is there for all tenants; a key of the default tenant is needed here"
            raise Fault(403, "insufficient_scope", message)
        name = str(request.path_params["model"])
        return json_response(ForgottenProfile(name, await forget_profiles(self._provider, name)))

    async def _find(self, name: str, providers: Set[str]) -> ModelInfo:
        """The model as its backend lists it. Raises `ModelNotFound` if it is not in the list; there need not be one."""
        try:
            listed = await self._provider.models()
        except ProviderError as error:
            log.info("model %s cannot be looked up: %s", name, error.message)
            return ModelInfo(name)
        found = next((model for model in listed if model.id == name), None)
        if (
            found is None
            and providers
            and not any(model.id.startswith(f"{each}/") or not each for each in providers for model in listed)
        ):
            return ModelInfo(name)  # its backend has no list
        if found is None:
            raise ModelNotFound(f"The model `{name}` does not exist; GET /v1/models lists those that do.")
        return found


def _name_for_messages(model: Model) -> MessagesModel:
    return MessagesModel(model.id, model.id, datetime.fromtimestamp(model.created, UTC).isoformat().replace("+00:00", "Z"))
