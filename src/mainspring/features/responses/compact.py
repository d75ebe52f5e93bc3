"""`POST /v1/responses/compact`: a conversation made short, to begin a new one with.

The model is asked once for a summary. What comes back is every message of the user, and one compaction item with the summary in
it; see `core.compaction` for its form. Sent back as input, with new items behind it, it continues the conversation.
"""

from contextlib import suppress

from anyio import CancelScope
from msgspec import Struct
from msgspec.structs import replace
from starlette.requests import Request
from starlette.responses import Response as HttpResponse

from mainspring.core.compaction import SUMMARIZE, Summary, compaction_item
from mainspring.core.errors import InvalidRequest, NotFound, StoreError
from mainspring.core.ids import NewId
from mainspring.core.items import Item, Json, Message, user
from mainspring.core.run import Run
from mainspring.core.spec import RunSpec, pick_least
from mainspring.engine.engine import Engine
from mainspring.features.responses.order import resolve_input
from mainspring.features.responses.request import CreateResponse, make_order
from mainspring.features.responses.sent_request import COMPACT_FIELDS, parse_request
from mainspring.http.auth import get_tenant, sign_order
from mainspring.http.bodies import read_json_body
from mainspring.http.faults import Fault, json_response
from mainspring.http.run_replies import raise_failure, wait_for_end
from mainspring.http.support import check_needs, list_item_needs
from mainspring.providers.wrapper import find_features


class Compaction(Struct, frozen=True):
    id: str
    created_at: int
    output: tuple[Item, ...]
    usage: Json | None
    object: str = "response.compaction"


async def compact(engine: Engine, request: Request) -> HttpResponse:
    """The conversation of a request, made short. Raises `InvalidRequest`, and `Fault` if the model gives no summary."""
    sent = parse_request(await read_json_body(request), COMPACT_FIELDS)
    body = sent.body
    if isinstance(body.input, tuple) and (needs := [*list_item_needs(body.input, "input")]):
        check_needs(needs, find_features(engine.provider, body.model or engine.model))
    await resolve_input(body, engine.store, get_tenant(request))
    handle = await engine.start(sign_order(request, _make_summary_order(body, engine)))
    try:
        await wait_for_end(handle, request)
    finally:
        if handle.run.spec.store:
            with CancelScope(shield=True), suppress(NotFound, StoreError):
                await engine.forget(handle.id)
    run = handle.run
    content = await engine.seal.close(Summary(_read_summary(run)))
    item = compaction_item(engine.new_id("cmp"), content)
    output = (*_copy_user_messages(run, engine.new_id), item)
    made = Compaction(run.spec.id, int(run.started_at), output, handle.response.usage)
    return json_response(made, headers=sent.ignored.make_headers())


def _make_summary_order(body: CreateResponse, engine: Engine) -> RunSpec:
    """The order for the one turn in which the model sums up. Raises `InvalidRequest`."""
    if not body.model:
        raise InvalidRequest("model is missing; name the model that is to sum up", param="model")
    if not body.input and body.previous_response_id is None:
        raise InvalidRequest("there is nothing to compact; send input or previous_response_id", param="input")
    plain = CreateResponse(
        model=body.model,
        input=body.input,
        instructions=body.instructions,
        previous_response_id=body.previous_response_id,
        store=not engine.drives,  # whoever drives it finds it in the database, for as long as it takes
        # Of a conversation that is too long even to be summed up, the oldest part is lost either way.
        truncation="auto",
    )
    spec = make_order(
        plain,
        new_id=engine.new_id,
        default_model=body.model,
        context_tokens=engine.context_tokens,
        limits=engine.defaults.limits,
    )
    # One turn to sum up, and one more if the first was too long.
    limits = replace(spec.limits, max_turns=pick_least(spec.limits.max_turns, 2))
    return replace(spec, input=(*spec.input, user(SUMMARIZE)), limits=limits, goal="answer")


def _read_summary(run: Run) -> str:
    """What the model said. Raises `Fault` if it did not get that far."""
    raise_failure(run)
    if run.status != "completed" or not run.text.strip():
        raise Fault(502, "model_error", f"the model gave no summary; its turn ended {run.status}")
    return run.text


def _copy_user_messages(run: Run, new_id: NewId) -> list[Item]:
    """All that the user said before the request for a summary, under new ids: the result is the start of another chain."""
    told = [entry.item for entry in run.transcript[: run.base - 1] if not entry.hidden and entry.origin != "engine"]
    return [replace(item, id=new_id("msg")) for item in told if isinstance(item, Message) and item.role == "user"]
