"""The log of a run as JSON: every event with its number and its time, as a key may see it."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby

from msgspec import Raw, Struct
from msgspec.structs import replace

from mainspring.core.drafts import item_id
from mainspring.core.events import (
    ArgumentsDelta,
    Compacted,
    Delta,
    ErrorInfo,
    Event,
    ItemDone,
    ItemStarted,
    Recorded,
    RunEnded,
    RunResumed,
    RunStarted,
    TurnEnded,
    continues,
)
from mainspring.core.items import Effect, FunctionCall, Item, Json, ToolDefinition, encode
from mainspring.core.redact import redact_arguments
from mainspring.core.spec import Limits, RunSpec
from mainspring.http.wire import hide_addresses


class EventPage(Struct, frozen=True):
    """Events in a row. `last_seq` is where to read on, also if events were left out at the end."""

    data: Sequence[Raw]
    last_seq: int
    has_more: bool
    object: str = "list"


class ToolOfRun(Struct, frozen=True):
    name: str
    kind: str
    description: str
    parameters: Json | None
    effects: tuple[Effect, ...]


class RunOrder(Struct, frozen=True):
    """What a run was ordered to do, without what only the engine needs, credentials among that."""

    id: str
    model: str
    agent: str
    tenant: str
    input: tuple[Item, ...]
    instructions: str | None
    tools: tuple[ToolOfRun, ...]
    parent: str | None
    within: str
    conversation: str | None
    background: bool
    metadata: dict[str, str]
    limits: Limits
    flags: tuple[str, ...]


class RunBegan(Struct, frozen=True, tag_field="type", tag="run_started"):
    spec: RunOrder


def render_event(record: Recorded, *, may_read: bool) -> bytes:
    """The event as JSON. Who may not read responses sees no secrets in the arguments of calls, as in traces."""
    body = encode(_present(record.event, may_read=may_read))
    return b'{"seq":%d,"at":%s,%b' % (record.seq, encode(record.at), body[1:])


def select_events(log: Iterable[Recorded], after: int, *, with_deltas: bool) -> Iterator[Recorded]:
    """The events behind number `after`. Deltas of an item that is whole in the log can be left out."""
    log = list(log)
    whole = set() if with_deltas else {item_id(record.event.item) for record in log if isinstance(record.event, ItemDone)}
    for record in log:
        if record.seq > after and not (isinstance(record.event, Delta) and record.event.item_id in whole):
            yield record


def merge_deltas(records: Sequence[Recorded]) -> Iterator[Recorded]:
    """The same events, but that deltas which go on with each other are one, with the number and the time of the last."""
    for _, group in groupby(_number_pieces(records), key=lambda numbered: numbered[0]):
        pieces = [record for _, record in group]
        first = pieces[0].event
        if len(pieces) == 1 or not isinstance(first, Delta):
            yield from pieces
            continue
        whole = "".join([piece.event.delta for piece in pieces if isinstance(piece.event, Delta)])
        yield replace(pieces[-1], event=replace(first, delta=whole))


def _number_pieces(records: Sequence[Recorded]) -> Iterator[tuple[int, Recorded]]:
    """Every event with a number that those have in common which go on with each other."""
    number, before = 0, None
    for record in records:
        if before is None or not continues(before.event, record.event):
            number += 1
        before = record
        yield number, record


def _present(event: Event, *, may_read: bool) -> object:
    match event:
        case RunStarted(spec):
            return _tell_order(spec, may_read)
        case RunResumed():
            return replace(event, driver="")
        case ItemStarted(item) | ItemDone(item):
            return replace(event, item=_present_item(item, may_read))
        case ArgumentsDelta() if not may_read:
            return replace(event, delta="")
        case TurnEnded(error=ErrorInfo() as error) | RunEnded(error=ErrorInfo() as error) | Compacted(error=ErrorInfo() as error):
            return replace(event, error=replace(error, message=hide_addresses(error.message)))
        case _:
            return event


def _present_item(item: Item, may_read: bool) -> Item:
    if isinstance(item, FunctionCall) and not may_read:
        return replace(item, arguments=redact_arguments(item.arguments))
    return item


def _tell_order(spec: RunSpec, may_read: bool) -> RunBegan:
    tools = [tool for tool in spec.tools if isinstance(tool, ToolDefinition)]
    return RunBegan(
        RunOrder(
            id=spec.id,
            model=spec.model,
            agent=spec.agent,
            tenant=spec.tenant,
            input=tuple([_present_item(item, may_read) for item in spec.input]),
            instructions=spec.instructions,
            tools=tuple([ToolOfRun(tool.name, tool.kind, tool.description, tool.parameters, tool.effects) for tool in tools]),
            parent=spec.parent,
            within=spec.within,
            conversation=None if spec.conversation is None else spec.conversation.id,
            background=spec.background,
            metadata=spec.metadata,
            limits=spec.limits,
            flags=spec.flags,
        )
    )
