"""Hooks for schemathesis: what fits the schema is made to mean something, so that it gets past the first refusal.

Words at random name no response and no conversation, an order may be empty, and the shortest keys come again and again. In the
stateful phase the ids are schemathesis' own business.
"""

from typing import Any

import schemathesis
from schemathesis import Case, GenerationMode, HookContext, Response

_PREFIXES = {"response_id": "resp_", "previous_response_id": "resp_", "conversation_id": "conv_", "conversation": "conv_"}
_seen: dict[str, str] = {}


@schemathesis.hook
def before_call(context: HookContext, case: Case[Any], kwargs: dict[str, object]) -> None:
    if case.meta is None or case.meta.generation.mode is not GenerationMode.POSITIVE or case.meta.phase.name.value == "stateful":
        return
    if len(str(case.headers.get("Idempotency-Key", ""))) < 8:
        case.headers.pop("Idempotency-Key", None)
    case.path_parameters = {name: _real(name, value) for name, value in case.path_parameters.items()}
    if case.path.startswith("/v1/agents/"):
        case.path_parameters = {"name": "bee"}
    if case.path.startswith("/v1/responses") and isinstance(case.body, dict):
        body = {name: value for name, value in case.body.items() if name not in _PREFIXES}
        case.body = {**body, "model": body.get("model") or "scripted", "input": body.get("input") or "Say something."}


@schemathesis.hook
def after_call(context: HookContext, case: Case[Any], response: Response) -> None:
    """Remembers what was made last and can be found again."""
    if response.status_code == 200 and response.headers.get("content-type") == ["application/json"]:
        told = response.json()
        if told.get("object") in ("response", "conversation") and told.get("store") is not False and "deleted" not in told:
            _seen[told["id"].partition("_")[0] + "_"] = told["id"]


def _real(name: str, value: object) -> object:
    return _seen.get(_PREFIXES.get(name, ""), value)
