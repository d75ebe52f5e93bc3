"""What a client is offered, by its key: agents and workflows, chosen tools, memory and files."""

import re
from base64 import b64encode
from collections.abc import Iterator
from contextlib import suppress
from mimetypes import guess_type
from typing import TYPE_CHECKING, Final, Literal

import msgspec
from msgspec import Struct

from mainspring.core.delegation import TOOL_PREFIX
from mainspring.core.errors import InvalidInputs, NotFound
from mainspring.core.items import Json, ToolDefinition
from mainspring.definitions.parameters import build_inputs_schema
from mainspring.features.agents.agent_inputs import build_input_schema, complete_inputs, parse_inputs, render_message
from mainspring.features.files.stored_file import StoredFile
from mainspring.features.mcp_server.client_messages import INVALID_PARAMS, RESOURCE_NOT_FOUND, RpcError
from mainspring.features.mcp_server.peer import Peer
from mainspring.features.mcp_server.services import McpServices
from mainspring.features.memory.no_memory import NoMemory
from mainspring.http.auth import INVOKE, ApiCaller
from mainspring.late_module import LateModule
from mainspring.tools.work_turns import Turns

if TYPE_CHECKING:
    from mainspring.features.agents.agent_definition import AgentDefinition
    from mainspring.features.memory import memory as memory_module
else:
    memory_module = LateModule("mainspring.features.memory.memory")

WORKFLOW_PREFIX: Final = "workflow_"
SEARCH: Final = "search_memory"
FILES: Final = "mainspring://files/"
PAGE: Final = 100
MOST_RESOURCE_BYTES: Final = 8 * 1024 * 1024
# What no text has, and JSON writes with six characters each.
_CONTROLS: Final = re.compile(rb"[\x00-\x08\x0b\x0e-\x1f]")

Kind = Literal["agent", "workflow", "tool", "memory"]
_READS = {"readOnlyHint": True, "openWorldHint": False}
_SEARCH_SCHEMA: Json = {
    "type": "object",
    "properties": {
        "query": {"type": "string", "description": "What to look for, in words. Without it, the newest are returned."},
        "top_k": {"type": "integer", "minimum": 1, "maximum": 50, "default": 5},
    },
    "additionalProperties": False,
}


class OfferedTool(Struct, frozen=True):
    """A tool of the list. `target` is what it is called here; `is_long` says that its calls can be tasks."""

    kind: Kind
    name: str
    target: str
    description: str
    schema: Json
    hints: Json = {}

    @property
    def is_long(self) -> bool:
        return self.kind in ("agent", "workflow")

    def render(self, peer: Peer) -> Json:
        told: Json = {"name": self.name, "title": self.target, "description": self.description, "inputSchema": self.schema}
        if self.hints:
            told["annotations"] = self.hints
        if self.is_long and peer.revision == "2025-11-25":
            told["execution"] = {"taskSupport": "optional"}
        return told


class Offer:
    """What is offered under the settings. A key is shown what its scopes are for."""

    def __init__(self, services: McpServices) -> None:
        self._services, self._settings = services, services.settings
        self._reading = Turns(1)  # each content is several times as large in memory

    @property
    def has_files(self) -> bool:
        return self._settings.files

    @property
    def has_prompts(self) -> bool:
        return self._settings.agents is not False and bool(self._services.agents.registry.folders)

    def mark(self) -> tuple[object, ...]:
        """Another value whenever the lists may be others."""
        services = self._services
        return (services.agents.registry.definitions, services.workflows.folders.definitions)

    def list_tools(self, caller: ApiCaller) -> dict[str, OfferedTool]:
        """By name; the first of a name counts."""
        found: dict[str, OfferedTool] = {}
        for tool in self._find_tools(caller):
            found.setdefault(tool.name, tool)
        return found

    def find_tool(self, name: object, caller: ApiCaller) -> OfferedTool:
        """Raises `RpcError`."""
        known = self.list_tools(caller)
        if not isinstance(name, str) or name not in known:
            names = ", ".join([f"`{each}`" for each in [*known][:50]]) or "none"
            raise RpcError(INVALID_PARAMS, f"there is no tool `{str(name)[:80]}` for this client; known: {names}")
        return known[name]

    def _find_tools(self, caller: ApiCaller) -> Iterator[OfferedTool]:
        services, chosen = self._services, self._settings
        if caller.may(INVOKE):
            for agent in self._list_agents():
                name = f"{TOOL_PREFIX}{agent.name}"
                yield OfferedTool("agent", name, agent.name, _describe(agent), build_input_schema(agent))
        if caller.may("workflows:run"):
            for name, workflow in services.workflows.folders.definitions.items():
                if _is_chosen(name, chosen.workflows):
                    told = workflow.description or f"The workflow `{name}`."
                    schema = build_inputs_schema(workflow.inputs)
                    yield OfferedTool("workflow", f"{WORKFLOW_PREFIX}{name}", name, told, schema)
        if caller.may("responses"):
            for tool in services.engine.definitions:
                if tool.name in chosen.tools:
                    yield OfferedTool("tool", tool.name, tool.name, tool.description, _complete(tool), _render_hints(tool))
        if chosen.memory and caller.may("memory") and not isinstance(services.memory, NoMemory):
            told = "Finds what earlier runs have said and done, by words and meaning, best first."
            yield OfferedTool("memory", SEARCH, SEARCH, told, _SEARCH_SCHEMA, _READS)

    def _list_agents(self) -> "list[AgentDefinition]":
        known = self._services.agents.registry.definitions
        return [agent for name, agent in known.items() if _is_chosen(name, self._settings.agents)]

    def list_prompts(self, caller: ApiCaller) -> list[Json]:
        """The agents whose definition has a user prompt."""
        return [
            {
                "name": agent.name,
                "description": _describe(agent),
                "arguments": [
                    {"name": name, "description": each.description, "required": each.required}
                    for name, each in agent.inputs.items()
                ],
            }
            for agent in (self._list_agents() if caller.may(INVOKE) else ())
            if agent.prompts.user
        ]

    def get_prompt(self, name: object, arguments: object, caller: ApiCaller) -> Json:
        """The message that the agent would be sent. Raises `RpcError`."""
        known = {agent.name: agent for agent in (self._list_agents() if caller.may(INVOKE) else ()) if agent.prompts.user}
        if not isinstance(name, str) or (agent := known.get(name)) is None:
            names = ", ".join([f"`{each}`" for each in known]) or "none"
            raise RpcError(INVALID_PARAMS, f"there is no prompt `{str(name)[:80]}`; known: {names}")
        given = arguments or {}
        if not isinstance(given, dict):
            raise RpcError(INVALID_PARAMS, "`arguments` must be an object of texts")
        try:
            text = render_message(agent, complete_inputs(agent, parse_inputs(agent, given)))
        except InvalidInputs as error:
            raise RpcError(INVALID_PARAMS, error.message) from None
        return {"description": _describe(agent), "messages": [{"role": "user", "content": {"type": "text", "text": text}}]}

    async def list_resources(self, cursor: object, caller: ApiCaller) -> Json:
        """A page of the tenant's files. Raises `RpcError` for a cursor that is none."""
        if not self._sees_files(caller):
            return {"resources": []}
        if cursor is not None and not isinstance(cursor, str):
            raise RpcError(INVALID_PARAMS, "`cursor` must be the `nextCursor` of the page before")
        try:
            found, has_more = await self._services.files.list(caller.tenant, limit=PAGE, after=cursor, newest_first=True)
        except NotFound:
            raise RpcError(INVALID_PARAMS, "there is no page behind this `cursor`; start again without one") from None
        told: Json = {"resources": [_render_file(file) for file in found]}
        return {**told, "nextCursor": found[-1].id} if has_more else told

    async def read_resource(self, uri: object, caller: ApiCaller, *, is_stateless: bool) -> Json:
        """The content of a file. Raises `RpcError`."""
        try:
            if not isinstance(uri, str) or not uri.startswith(FILES) or not self._sees_files(caller):
                raise NotFound("it is none of the list")
            file = await self._services.files.get(caller.tenant, uri.removeprefix(FILES))
        except NotFound:
            told = f"there is no resource `{str(uri)[:200]}`; resources/list shows those that there are"
            raise RpcError(INVALID_PARAMS if is_stateless else RESOURCE_NOT_FOUND, told, {"uri": str(uri)[:200]}) from None
        if file.size > MOST_RESOURCE_BYTES:
            told = f"the file has {file.size} bytes, and {MOST_RESOURCE_BYTES} can be read here; use /v1/files/{file.id}/content"
            raise RpcError(INVALID_PARAMS, told)
        async with self._reading.take(caller.tenant):
            content = b"".join([piece async for piece in self._services.files.read(file)])
            return {"contents": [{"uri": uri, "mimeType": _guess_type(file), **_render_content(content)}]}

    def _sees_files(self, caller: ApiCaller) -> bool:
        return self._settings.files and caller.may("responses")

    async def search_memory(self, arguments: Json, caller: ApiCaller) -> Json:
        """What is remembered of the tenant's runs. Raises `InvalidInputs`."""
        query, top_k = arguments.get("query", ""), arguments.get("top_k", 5)
        unknown = [name for name in arguments if name not in ("query", "top_k")]
        if unknown or not isinstance(query, str) or isinstance(top_k, bool) or not isinstance(top_k, int):
            raise InvalidInputs("the tool takes `query`, a text, and `top_k`, a whole number, and nothing else")
        memory = self._services.memory
        assert isinstance(memory, memory_module.Memory)  # else it is not offered
        found = await memory.search(query, tenant=caller.tenant, top_k=top_k)
        data = msgspec.to_builtins(found)
        text = "\n".join([f"- {each.text} [{each.citation}]" for each in found]) or "Nothing was found."
        return {"content": [{"type": "text", "text": text}], "structuredContent": {"data": data}, "isError": False}


def _describe(agent: "AgentDefinition") -> str:
    return agent.description or f"The agent `{agent.name}`."


def _is_chosen(name: str, chosen: bool | tuple[str, ...]) -> bool:
    return chosen if isinstance(chosen, bool) else name in chosen


def _complete(tool: ToolDefinition) -> Json:
    """The schema of its parameters, which has to be that of an object."""
    return {"properties": {}, **(tool.parameters or {}), "type": "object"}


def _render_hints(tool: ToolDefinition) -> Json:
    return {"idempotentHint": tool.repeatable}


def _render_file(file: StoredFile) -> Json:
    return {"uri": f"{FILES}{file.id}", "name": file.filename, "mimeType": _guess_type(file), "size": file.size}


def _render_content(content: bytes) -> Json:
    if _CONTROLS.search(content) is None:
        with suppress(UnicodeDecodeError):
            return {"text": content.decode()}
    return {"blob": b64encode(content).decode()}


def _guess_type(file: StoredFile) -> str:
    return guess_type(file.filename)[0] or "application/octet-stream"
