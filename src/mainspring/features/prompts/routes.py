"""`/v1/prompts`: prompts with their versions. Agents are listed among them, and are changed in their files."""

from collections.abc import Callable, Sequence
from typing import Annotated, Final

from msgspec import UNSET, Meta, Struct, UnsetType
from msgspec.structs import asdict
from starlette.requests import Request
from starlette.responses import Response as HttpResponse

from mainspring.core.errors import InvalidRequest
from mainspring.features.prompts.prompts import PREFIX, Prompt, PromptContent, PromptPage, StoredPrompts, Text
from mainspring.http.auth import INVOKE, get_caller, get_tenant
from mainspring.http.bodies import Metadata, Name
from mainspring.http.endpoints import Endpoint, Parameter
from mainspring.http.faults import json_response
from mainspring.http.ignored import read_known
from mainspring.http.queries import CURSOR, Deleted, Page, make_page, read_cursor

_ALL: Final = "/v1/prompts"
_PATH: Final = f"{_ALL}/{{prompt_id}}"

Temperature = Annotated[float, Meta(ge=0, le=2)]


class CreatePrompt(Struct):
    """The body of `POST /v1/prompts`. `instructions` or a `prompt`, the first message, are needed; `{{ name }}` stands for a
    variable. `variables` may name these, and are checked then."""

    instructions: Text | None = None
    prompt: Text | None = None
    variables: tuple[Name, ...] | None = None
    model: Name | None = None
    temperature: Temperature | None = None
    description: Name | None = None
    metadata: Metadata | None = None


class UpdatePrompt(Struct):
    """The body of `POST /v1/prompts/{prompt_id}`: a new version, in which what is not there stays as it is. `version` is the
    one that it changes; it is refused if that is not the newest any more."""

    instructions: Text | UnsetType | None = UNSET
    prompt: Text | UnsetType | None = UNSET
    variables: tuple[Name, ...] | None = None
    model: Name | UnsetType | None = UNSET
    temperature: Temperature | UnsetType | None = UNSET
    description: Name | UnsetType | None = UNSET
    metadata: Metadata | UnsetType | None = UNSET
    version: Name | None = None
    set_as_default: bool = True


class ChooseVersion(Struct):
    """The body of `POST /v1/prompts/{prompt_id}/set-default-version`."""

    version: Name


class PromptObject(Struct, frozen=True):
    """A version of a prompt. `agent` says that it is an agent, defined in a file."""

    id: str
    created_at: int
    version: str
    is_default: bool
    instructions: str
    prompt: str
    variables: Sequence[str]
    model: str | None
    temperature: float | None
    description: str
    metadata: dict[str, str]
    agent: bool = False
    object: str = "prompt"


class PromptRoutes:
    """Every endpoint under `/v1/prompts`. `list_agents` are the agents as prompts, by name."""

    def __init__(self, prompts: StoredPrompts, list_agents: Callable[[], Sequence[PromptObject]]) -> None:
        self._prompts, self._list_agents = prompts, list_agents

    def endpoints(self) -> tuple[Endpoint, ...]:
        version = (Parameter("version"),)
        return (
            Endpoint("POST", _ALL, self.create, "responses", PromptObject, CreatePrompt),
            Endpoint("GET", _ALL, self.list_prompts, "responses", Page, query=CURSOR),
            Endpoint("GET", _PATH, self.retrieve, "responses", PromptObject, query=version),
            Endpoint("POST", _PATH, self.update, "responses", PromptObject, UpdatePrompt),
            Endpoint("DELETE", _PATH, self.delete, "responses", Deleted),
            Endpoint("GET", f"{_PATH}/versions", self.list_versions, "responses", Page, query=CURSOR),
            Endpoint("POST", f"{_PATH}/set-default-version", self.choose_version, "responses", PromptObject, ChooseVersion),
        )

    async def create(self, request: Request) -> HttpResponse:
        """Creates a prompt, in its first version."""
        body, headers = await read_known(request, CreatePrompt)
        given = {name: value for name, value in asdict(body).items() if name != "variables" and value is not None}
        content = PromptContent(**given)
        made = await self._prompts.create(get_tenant(request), content, body.variables)
        return json_response(render_prompt(made), headers=headers)

    async def list_prompts(self, request: Request) -> HttpResponse:
        """Lists the prompts, each in the version that is used, then the agents."""
        cursor, agents = read_cursor(request), self._find_agents(request)
        names = [agent.id for agent in agents]
        if cursor.after in names:
            kept, agents = PromptPage((), has_more=False), agents[names.index(cursor.after) + 1 :]
        else:
            tenant = get_tenant(request)
            kept = await self._prompts.list(tenant, cursor.after, cursor.limit, newest_first=cursor.newest_first)
        found = [render_prompt(prompt) for prompt in kept.prompts]
        shown = found if kept.has_more else [*found, *agents]
        page, has_more = shown[: cursor.limit], kept.has_more or len(shown) > cursor.limit
        return json_response(make_page(page, [prompt.id for prompt in page], has_more=has_more))

    async def retrieve(self, request: Request) -> HttpResponse:
        """Retrieves a prompt: the version that is used, or that of the query."""
        id, version = _id(request), request.query_params.get("version")
        for agent in self._find_agents(request):
            if agent.id == id and version in (None, agent.version):
                return json_response(agent)
        return json_response(render_prompt(await self._prompts.get(get_tenant(request), id, version)))

    async def update(self, request: Request) -> HttpResponse:
        """Adds a version to a prompt."""
        body, headers = await read_known(request, UpdatePrompt)
        tenant, id = get_tenant(request), self._check_own(request)
        left = ("variables", "version", "set_as_default")
        given = {name: value for name, value in asdict(body).items() if name not in left and value is not UNSET}
        usual = asdict(PromptContent())
        changes = {name: usual[name] if value is None else value for name, value in given.items()}
        made = await self._prompts.add_version(
            tenant, id, changes, based_on=body.version, is_default=body.set_as_default, variables=body.variables
        )
        return json_response(render_prompt(made), headers=headers)

    async def delete(self, request: Request) -> HttpResponse:
        """Deletes a prompt with all its versions."""
        id = self._check_own(request)
        await self._prompts.remove(get_tenant(request), id)
        return json_response(Deleted(id, "prompt.deleted"))

    async def list_versions(self, request: Request) -> HttpResponse:
        """Lists the versions of a prompt, newest first."""
        cursor, id = read_cursor(request), _id(request)
        if agents := [agent for agent in self._find_agents(request) if agent.id == id]:
            return json_response(make_page(agents, [agent.version for agent in agents], has_more=False))
        page = await self._prompts.list_versions(
            get_tenant(request), id, cursor.after, cursor.limit, newest_first=cursor.newest_first
        )
        ids = [str(prompt.number) for prompt in page.prompts]
        return json_response(make_page([render_prompt(prompt) for prompt in page.prompts], ids, has_more=page.has_more))

    async def choose_version(self, request: Request) -> HttpResponse:
        """Says which version of a prompt is used where none is named."""
        body, headers = await read_known(request, ChooseVersion)
        chosen = await self._prompts.choose(get_tenant(request), self._check_own(request), body.version)
        return json_response(render_prompt(chosen), headers=headers)

    def _find_agents(self, request: Request) -> Sequence[PromptObject]:
        return self._list_agents() if get_caller(request).may(INVOKE) else ()

    def _check_own(self, request: Request) -> str:
        """The id of the path. Raises `InvalidRequest` if an agent has it."""
        if not (id := _id(request)).startswith(PREFIX) and id in [agent.id for agent in self._find_agents(request)]:
            raise InvalidRequest(f"`{id[:80]}` is an agent; change it in its file, or make a prompt", param="prompt_id")
        return id


def render_prompt(prompt: Prompt) -> PromptObject:
    content = prompt.content
    return PromptObject(
        prompt.id, int(prompt.created_at), str(prompt.number), prompt.is_default, content.instructions, content.prompt,
        content.variables, content.model, content.temperature, content.description, content.metadata,
    )  # fmt: skip


def _id(request: Request) -> str:
    return str(request.path_params["prompt_id"])
