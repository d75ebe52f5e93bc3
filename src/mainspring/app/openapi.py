"""The OpenAPI document of the server, made from its route table and the structs that its handlers read and write."""

import inspect
from collections.abc import Sequence
from http import HTTPStatus
from typing import get_args

import msgspec
from msgspec import UNSET, Struct
from msgspec.structs import fields
from starlette.routing import BaseRoute, Route

import mainspring
from mainspring.core.events import Status
from mainspring.core.items import ITEMS, PARTS, Item, Json, Part, Role, Tool
from mainspring.core.response import Response
from mainspring.engine.approvals import State
from mainspring.features.agents.agent_definition import AgentDefinition
from mainspring.features.agents.routes import (
    Agents,
    InvokeAgent,
    InvokeAgentIteratively,
    InvokedAgent,
    InvokedAgentIteratively,
)
from mainspring.features.approvals.pending import Approval
from mainspring.features.approvals.routes import AnswerApproval
from mainspring.features.budgets.statement import Statement
from mainspring.features.containers.routes import ContainerFile, ContainerObject, CreateContainer, CreateFile
from mainspring.features.conversations.routes import Conversation, CreateConversation, CreateItems, UpdateConversation
from mainspring.features.memory.observation import Observation
from mainspring.features.memory.recall import LEVELS, MOST_RESULTS, TOP_K
from mainspring.features.memory.routes import Forgotten, Recollection
from mainspring.features.responses.compact import Compaction
from mainspring.features.responses.input_tokens import InputTokens
from mainspring.features.responses.request import CreateResponse
from mainspring.features.traces.trace_record import TraceRecord
from mainspring.features.workflows.routes import ListOfWorkflows, RunWorkflow, WorkflowEvent
from mainspring.features.workflows.view import ShownRun, ShownWorkflow
from mainspring.http.queries import Deleted, Page
from mainspring.tools.sandbox.sandbox_port import SandboxHealth
from mainspring_tasks.routes import Decide, Decision, Reply, Say


class Model(Struct, frozen=True):
    id: str
    created: int
    owned_by: str
    object: str = "model"


class Models(Struct, frozen=True):
    data: Sequence[Model]
    object: str = "list"


class Health(Struct, frozen=True):
    """How the server is: `degraded` if its tools need a sandbox and none is in order. The sandbox is there with such tools, and
    says which one holds and how firmly."""

    status: str
    sandbox: SandboxHealth | None = None


class Error(Struct, frozen=True):
    """What is wrong, and what to do. `param` names the field at fault, if it is one."""

    message: str
    type: str
    param: str | None
    code: str


class Failure(Struct, frozen=True):
    error: Error


class _Told(Struct, frozen=True):
    """What the route table does not say of an operation. `errors` are those that follow from nothing else; `waits` is what is
    answered (202) as long as the answer has to wait."""

    answer: type[Struct] | None
    body: type[Struct] | None = None
    query: tuple[str, ...] = ()
    headers: tuple[str, ...] = ()
    errors: tuple[int, ...] = ()
    streams: bool = False
    is_file: bool = False
    takes_file: bool = False
    waits: type[Struct] | None = None


_CURSOR = ("limit", "order", "after")
_FILTERS = ("status", "model", "background", "previous_response_id", "conversation", "created_after", "created_before")
_OF_MODELS = (429, 502, 503)
_TOLD: dict[tuple[str, str], _Told] = {
    ("/v1/responses", "POST"): _Told(
        Response, CreateResponse, headers=("Idempotency-Key",), errors=(404, 409, *_OF_MODELS), streams=True
    ),
    ("/v1/responses", "GET"): _Told(Page, query=(*_CURSOR, *_FILTERS)),
    ("/v1/responses/compact", "POST"): _Told(Compaction, CreateResponse, errors=(404, 409, *_OF_MODELS)),
    ("/v1/responses/input_tokens", "POST"): _Told(InputTokens, CreateResponse, errors=(404, *_OF_MODELS)),
    ("/v1/responses/{response_id}", "GET"): _Told(Response, query=("stream", "starting_after"), streams=True),
    ("/v1/responses/{response_id}", "DELETE"): _Told(Deleted),
    ("/v1/responses/{response_id}/cancel", "POST"): _Told(Response, errors=(400,)),
    ("/v1/responses/{response_id}/input_items", "GET"): _Told(Page, query=_CURSOR),
    ("/v1/conversations", "POST"): _Told(Conversation, CreateConversation),
    ("/v1/conversations/{conversation_id}", "GET"): _Told(Conversation),
    ("/v1/conversations/{conversation_id}", "POST"): _Told(Conversation, UpdateConversation),
    ("/v1/conversations/{conversation_id}", "DELETE"): _Told(Deleted),
    ("/v1/conversations/{conversation_id}/items", "GET"): _Told(Page, query=_CURSOR),
    ("/v1/conversations/{conversation_id}/items", "POST"): _Told(Page, CreateItems),
    ("/v1/conversations/{conversation_id}/items/{item_id}", "DELETE"): _Told(Conversation),
    ("/v1/agents", "GET"): _Told(Agents, errors=(503,)),
    ("/v1/agents/{name}", "GET"): _Told(AgentDefinition, errors=(503,)),
    ("/v1/agents/{name}/invoke", "POST"): _Told(InvokedAgent, InvokeAgent, errors=(422, *_OF_MODELS)),
    ("/v1/agents/{name}/invoke-iterative", "POST"): _Told(
        InvokedAgentIteratively, InvokeAgentIteratively, errors=(422, *_OF_MODELS)
    ),
    ("/v1/agents/{name}/invoke-iterative/stream", "POST"): _Told(
        InvokedAgentIteratively, InvokeAgentIteratively, errors=(422, *_OF_MODELS), streams=True
    ),
    ("/v1/approvals", "GET"): _Told(Page, query=(*_CURSOR, "state")),
    ("/v1/approvals/{approval_id}", "GET"): _Told(Approval),
    ("/v1/approvals/{approval_id}", "POST"): _Told(Response, AnswerApproval, errors=(409, 410, *_OF_MODELS), waits=Approval),
    ("/v1/chat", "POST"): _Told(Reply, Say, headers=("Idempotency-Key",), errors=(404, 409, 503)),
    ("/v1/decisions", "POST"): _Told(Decision, Decide, headers=("Idempotency-Key",), errors=(409, 503)),
    ("/v1/budgets", "GET"): _Told(Page),
    ("/v1/budgets/{budget_id}", "GET"): _Told(Statement),
    ("/v1/workflows", "GET"): _Told(ListOfWorkflows),
    ("/v1/workflows/{name}", "GET"): _Told(ShownWorkflow),
    ("/v1/workflows/{name}/runs", "POST"): _Told(ShownRun, RunWorkflow, headers=("Idempotency-Key",), errors=(409, 422, 503)),
    ("/v1/workflows/{name}/runs", "GET"): _Told(Page, query=_CURSOR),
    ("/v1/workflows/{name}/runs/{run_id}", "GET"): _Told(ShownRun),
    ("/v1/workflows/{name}/runs/{run_id}/cancel", "POST"): _Told(ShownRun),
    ("/v1/workflows/{name}/runs/{run_id}/events", "GET"): _Told(WorkflowEvent, query=("starting_after",), streams=True),
    ("/v1/traces", "GET"): _Told(Page, query=_CURSOR),
    ("/v1/traces/{run_id}", "GET"): _Told(TraceRecord),
    ("/v1/memory/search", "GET"): _Told(Recollection, query=("q", "level", "top_k", "agent", "session"), errors=(404,)),
    ("/v1/memory/observations", "DELETE"): _Told(Forgotten, query=("session",), errors=(404,)),
    ("/v1/memory/observations/{observation_id}", "GET"): _Told(Observation),
    ("/v1/containers", "POST"): _Told(ContainerObject, CreateContainer, errors=(404, 429)),
    ("/v1/containers", "GET"): _Told(Page, query=(*_CURSOR, "name"), errors=(404,)),
    ("/v1/containers/{container_id}", "GET"): _Told(ContainerObject),
    ("/v1/containers/{container_id}", "DELETE"): _Told(Deleted),
    ("/v1/containers/{container_id}/files", "POST"): _Told(ContainerFile, CreateFile, takes_file=True),
    ("/v1/containers/{container_id}/files", "GET"): _Told(Page, query=_CURSOR),
    ("/v1/containers/{container_id}/files/{file_id}", "GET"): _Told(ContainerFile),
    ("/v1/containers/{container_id}/files/{file_id}", "DELETE"): _Told(Deleted),
    ("/v1/containers/{container_id}/files/{file_id}/content", "GET"): _Told(None, is_file=True),
    ("/v1/models", "GET"): _Told(Models, errors=_OF_MODELS),
    ("/health", "GET"): _Told(Health),
    ("/healthz", "GET"): _Told(Health),
    ("/readyz", "GET"): _Told(Health),
}
_COUNT: Json = {"type": "integer", "minimum": 0, "maximum": 10**15 - 1}
_NAME: Json = {"type": "string"}
_FILE: Json = {"type": "string", "format": "binary"}
_PARAMETERS: dict[str, Json] = {
    "limit": {"type": "integer", "minimum": 1, "maximum": 100, "default": 20},
    "order": {"enum": ["asc", "desc"], "default": "desc"},
    "after": _NAME,
    "status": {"enum": [status for status in get_args(Status) if status != "queued"]},
    "state": {"enum": list(get_args(State))},
    "model": _NAME,
    "name": _NAME,
    "background": {"type": "boolean"},
    "previous_response_id": _NAME,
    "conversation": _NAME,
    "created_after": _COUNT,
    "created_before": _COUNT,
    "stream": {"type": "boolean", "default": False},
    "starting_after": _COUNT,
    "q": _NAME,
    "level": {"enum": list(LEVELS), "default": "index"},
    "top_k": {"type": "integer", "minimum": 1, "maximum": MOST_RESULTS, "default": TOP_K},
    "agent": _NAME,
    "session": _NAME,
    "Idempotency-Key": {"type": "string", "minLength": 1, "maxLength": 255},
}
_EVENT: Json = {
    "description": "Each event; `data` is JSON, but for the last, which is `[DONE]`.",
    "type": "object",
    "properties": {"event": {"type": "string"}, "data": {"type": "string"}},
    "required": ["data"],
}
_REFERENCE = "#/components/schemas/{name}"


def document(routes: Sequence[BaseRoute]) -> Json:
    """The document for these routes."""
    answers: set[type[Struct]] = {told.answer for told in _TOLD.values() if told.answer is not None} | {Failure, Error, Model}
    bodies = {told.body for told in _TOLD.values() if told.body is not None}
    kinds = sorted([*answers, *bodies, *ITEMS.values(), *PARTS.values()], key=lambda kind: kind.__name__)
    _, components = msgspec.json.schema_components(kinds, schema_hook=_schema, ref_template=_REFERENCE)
    components |= {"Item": _ITEM, "Part": _PART, "Tool": _UNKNOWN}
    for kind in answers:  # whatever has a value is written, also where a reader could do without
        components[kind.__name__]["required"] = [field.name for field in fields(kind) if field.default is not UNSET]
    paths: dict[str, Json] = {}
    for route in routes:
        if isinstance(route, Route) and route.include_in_schema:
            for method in sorted((route.methods or set()) - {"HEAD"}):
                paths.setdefault(route.path, {})[method.lower()] = _operation(route, method)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Mainspring", "version": mainspring.__version__},
        "paths": paths,
        "components": {"schemas": components, "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}}},
        "security": [{}, {"key": []}],
    }


def _operation(route: Route, method: str) -> Json:
    told = _TOLD.get((route.path, method), _Told(None))
    names = [part[1:-1] for part in route.path.split("/") if part.startswith("{")]
    content: Json = {"application/json": {"schema": {"type": "object"} if told.answer is None else _reference(told.answer)}}
    if told.is_file:
        content = {"application/octet-stream": {"schema": _FILE}}
    if told.streams:
        content["text/event-stream"] = {"schema": _EVENT}
    responses: Json = {"200": {"description": "The answer.", "content": content}}
    if told.waits is not None:
        waits = {"application/json": {"schema": _reference(told.waits)}}
        responses["202"] = {"description": "Something else has to happen first.", "content": waits}
    for status in sorted(_errors(route.path, told)):
        failure = {"application/json": {"schema": _reference(Failure)}}
        responses[str(status)] = {"description": HTTPStatus(status).phrase, "content": failure}
    operation: Json = {
        "operationId": f"{method.lower()}{route.path.replace('/', '_').replace('{', '').replace('}', '')}",
        "summary": (inspect.getdoc(route.endpoint) or route.name).split("\n")[0],
        "responses": responses,
        "parameters": [
            *[{"name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}} for name in names],
            *[{"name": name, "in": "query", "schema": _PARAMETERS[name]} for name in told.query],
            *[{"name": name, "in": "header", "schema": _PARAMETERS[name]} for name in told.headers],
        ],
    }
    if told.body is not None:
        operation["requestBody"] = {"required": True, "content": {"application/json": {"schema": _reference(told.body)}}}
        if told.takes_file:
            form = {"type": "object", "properties": {"file": _FILE}, "required": ["file"]}
            operation["requestBody"]["content"]["multipart/form-data"] = {"schema": form}
    return operation


def _errors(path: str, told: _Told) -> set[int]:
    found = {500, *told.errors}
    if path.startswith("/v1/") or path == "/openapi.json":
        found |= {401, 403}
    if "{" in path or "after" in told.query:
        found.add(404)
    if told.query or told.headers:
        found.add(400)
    if told.body is not None:
        found |= {400, 413, 415}
    return found


def _reference(kind: type) -> Json:
    return {"$ref": _REFERENCE.format(name=kind.__name__)}


def _schema(kind: type) -> Json:
    if kind in (Item, Part, Tool):
        return _reference(kind)
    if kind is object:
        return {"description": "Anything."}
    raise NotImplementedError(f"no schema for {kind}")


# Items, parts and tools are open: whatever has a `type` is one. A message may do without, and its content may be a plain string.
_UNKNOWN: Json = {"type": "object", "properties": {"type": {"type": "string"}}, "required": ["type"]}
_CONTENT: Json = {"anyOf": [{"type": "string"}, {"type": "array", "items": _reference(Part)}]}
_MESSAGE: Json = {
    "type": "object",
    "properties": {"role": {"enum": list(get_args(Role))}, "content": _CONTENT},
    "required": ["role"],
}
_ITEM: Json = {"anyOf": [*map(_reference, ITEMS.values()), _MESSAGE, _UNKNOWN]}
_PART: Json = {"anyOf": [*map(_reference, PARTS.values()), _UNKNOWN]}
