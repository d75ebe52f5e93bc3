"""The driver: performs what the loop asks for, until the run has ended."""

from asyncio import CancelledError, sleep
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import aclosing, suppress
from logging import getLogger
from typing import assert_never

from msgspec import UNSET
from msgspec.structs import replace

from mainspring.core.actions import CallModel, Compact, Execute, Finish, Judge, Nudge, Reuse, Withhold
from mainspring.core.compaction import Summary, compaction_item
from mainspring.core.context_window import summary_request
from mainspring.core.decide import closing, next_action
from mainspring.core.drafts import Draft, partial
from mainspring.core.errors import (
    BadOutput,
    Malformed,
    MemoryLimit,
    ProviderError,
    StoreError,
    Superseded,
    TooManyItems,
    Unavailable,
)
from mainspring.core.events import (
    DELTAS,
    Annotated,
    Compacted,
    Delta,
    ErrorInfo,
    ItemDone,
    ItemStarted,
    ModelEvent,
    Nudged,
    TextDelta,
    ToolEnded,
    ToolWithheld,
    TurnEnded,
    TurnStarted,
)  # fmt: skip
from mainspring.core.ids import random_id
from mainspring.core.items import FunctionCall, Message, ToolDefinition, Usage, flaw
from mainspring.core.memory_quota import measure_items
from mainspring.core.model_request import MOST_ITEMS, ModelRequest, request_for
from mainspring.core.model_stream import TakeEvent
from mainspring.core.plain_items import is_plain
from mainspring.core.redact import redact_text
from mainspring.core.tokens import estimate, is_plausible, tokens_of
from mainspring.engine.gate import Gate
from mainspring.engine.guard import GRACE, Runner, TimedOut, describe_error, finish_within, is_cancelled
from mainspring.engine.journal import Journal
from mainspring.engine.seal import Seal
from mainspring.engine.stop_sequences import StopSequences
from mainspring.engine.toolbox import Toolbox
from mainspring.engine.turn_meter import DELTA_BYTES, ITEM_BYTES, TurnMeter
from mainspring.ports import Provider

log = getLogger(__name__)

RETRY_SECONDS = 0.01
FEW_CALLS = 16

_MODEL_EVENTS = frozenset({ItemStarted, Annotated, ItemDone, TurnEnded}) | DELTAS


async def drive(journal: Journal, provider: Provider, gate: Gate, toolbox: Toolbox, seal: Seal, run: Runner) -> None:
    """Performs actions until the run has ended and all of it is durable. The provider is asked by `run`. Raises only what the
    store raises."""
    while not (now := journal.run).has_ended:
        if is_cancelled():
            # A run whose model and tools never wait must still notice it, and one that has swallowed it, too.
            await sleep(0)
            raise CancelledError
        match next_action(now):
            case CallModel():
                if now.failure is not None:
                    # The last turn failed and is asked again: not at once, and less eagerly each time.
                    await sleep(min(RETRY_SECONDS * 2**now.errors_in_row, 10.0))
                await _turn(journal, provider, run)
            case Judge(call_ids):
                for number, call_id in enumerate(call_ids, 1):
                    journal.record(await gate.judge(journal.run.call(call_id), journal.run))
                    if number % FEW_CALLS == 0:
                        await sleep(0)  # judging hundreds may take longer than others should wait
            case Execute(call_ids):
                await toolbox.perform(journal, [journal.run.call(call_id).item for call_id in call_ids])
            case Finish() as finish:
                for event in closing(now, gate.check_answer(finish, now)):
                    journal.record(event)
            case Nudge(kind, text, reason):
                journal.record(Nudged(kind, text, reason))
            case Reuse(call_id, output, is_error):
                journal.record(ToolEnded(call_id, output, is_error, recorded="reused"))
            case Withhold(name, reason):
                journal.record(ToolWithheld(name, reason))
            case Compact(keeps):
                await _compact(journal, provider, seal, run, keeps)
            case unknown:
                assert_never(unknown)
    await journal.flush()


async def _turn(journal: Journal, provider: Provider, run: Runner) -> None:
    """One turn of the model. However it fails, it ends in one `TurnEnded`."""
    _count_outputs(journal)
    request = request_for(journal.run)
    journal.record(TurnStarted())
    listening = _Listening(provider, journal.record, lambda: journal.run.drafts, journal)
    failure = await _ask(request, listening, run, journal.run.spec.limits.turn_seconds)
    if failure is not None and journal.run.in_turn:
        journal.record(TurnEnded("error", _find_usage(failure), _tell(failure), failure.adaptations or UNSET))


def _count_outputs(journal: Journal) -> None:
    """Counts what tools have returned since the last turn. Raises `MemoryLimit`."""
    run = journal.run
    last = [entry.item for entry in run.transcript[max(run.counted, run.inherited) :] if entry.origin == "tool"]
    if last:
        journal.hold.add(measure_items(last))


def _find_usage(failure: ProviderError | None) -> Usage | None:
    """What a turn that failed has used, unless that is nonsense."""
    used = None if failure is None else failure.usage
    return used if used is not None and is_plausible(used) else None


async def _compact(journal: Journal, provider: Provider, seal: Seal, run: Runner, keeps: int) -> None:
    """Has the model sum up what came before. However it fails, it ends in one `Compacted`."""
    said: list[str] = []
    ends: list[TurnEnded] = []

    def hear(event: ModelEvent) -> None:
        if isinstance(event, ItemDone) and isinstance(event.item, Message):
            said.append(event.item.text)
        elif isinstance(event, TurnEnded):
            ends.append(event)

    listening = _Listening(provider, hear, lambda: (), journal)
    failure = await _ask(summary_request(journal.run), listening, run, journal.run.spec.limits.turn_seconds)
    usage = ends[0].usage if ends else _find_usage(failure)
    if failure is None and not (text := "".join(said).strip()):
        failure = BadOutput(f"provider `{provider.name}` gave no summary")
    if failure is not None:
        journal.record(Compacted(error=_tell(failure), usage=usage))
        return
    content = await seal.close(Summary(text, keeps, keeps_user=journal.run.spec.goal == "compaction"))
    journal.record(Compacted(compaction_item(random_id("cmp"), content), usage))


async def _ask(request: ModelRequest, listening: "_Listening", run: Runner, seconds: float | None) -> ProviderError | None:
    """Asks the provider and has everything heard that it says. Returns what went wrong, if something did."""
    provider = listening.provider
    try:
        await run(listening.listen(request), seconds)
    except (StoreError, Superseded, MemoryLimit):
        raise
    except ProviderError as error:
        return error
    except TimedOut:
        return Unavailable(f"the model did not finish its turn in {seconds:g} s")
    except Malformed as error:
        return BadOutput(f"provider `{provider.name}` broke the protocol: {error.message}")
    except Exception as error:
        log.exception("provider %s failed in run %s", provider.name, request.run_id)
        return ProviderError(f"provider `{provider.name}` failed: {describe_error(error)}")
    finally:
        listening.is_over = True
    return None


class _Listening:
    """Listens to a provider for one turn. Once it is over, a provider that will not stop is not heard any more."""

    __slots__ = ("_counted", "_failure", "_hear", "_items", "_journal", "_meter", "_said", "is_over", "provider")

    def __init__(
        self,
        provider: Provider,
        hear: Callable[[ModelEvent], None],
        said: Callable[[], Sequence[Draft]],
        journal: Journal,
    ) -> None:
        self.is_over = False
        self.provider = provider
        self._hear = hear
        self._said = said
        self._journal = journal
        self._counted = self._items = 0
        self._meter: TurnMeter
        self._failure: Exception | None = None

    async def listen(self, request: ModelRequest) -> None:
        self._meter = TurnMeter(request.max_output_tokens, request.max_bytes)
        special = {tool.name: tool for tool in request.all_tools if isinstance(tool, ToolDefinition) and _is_special(tool)}
        stream, stops = self.provider.stream(request), StopSequences(request.stop) if request.stop else None
        async with aclosing(stream if stops is None else stops.watch(stream)) as events:
            take: TakeEvent | None = None
            with suppress(StopAsyncIteration):
                while True:
                    event = await events.asend(take)
                    if self.is_over:
                        return
                    if not self._hear_delta(event) and not await self._hear_other(event, request, special):
                        if type(event) is TurnEnded:
                            with suppress(TimedOut):
                                # Let it put its connection away; whatever else it has to say is not part of the turn.
                                await finish_within(GRACE, _read_on(events))
                        return
                    take = self._hear_delta
        if stops is not None and stops.found is not None and not self.is_over:
            self._stop(stops.found, request)
            return
        raise BadOutput(f"provider `{self.provider.name}` ended its stream without ending the turn")

    def _hear_delta(self, event: ModelEvent) -> bool:
        """The token path: hears a delta of which only the text need be looked at. Returns False if it is another event, if there
        is more to do, and if hearing it failed."""
        kind = type(event)
        if kind not in DELTAS or type(event.delta) is not str or (kind is TextDelta and event.logprobs):  # type: ignore[union-attr]
            return False
        if self.is_over or self._failure is not None or not self._meter.take_delta(len(event.delta)):  # type: ignore[union-attr]
            return False
        try:
            self._hear(event)
        except Exception as error:  # It is raised where the turn is waited for.
            self._failure = error
        return self._failure is None

    async def _hear_other(self, event: ModelEvent, request: ModelRequest, special: dict[str, ToolDefinition]) -> bool:
        """Checks and hears any event. Returns whether more may follow. Raises what hearing the last one has."""
        if self._failure is not None:
            raise self._failure
        kind, meter = type(event), self._meter
        has_item = kind is ItemStarted or kind is ItemDone
        why = None if has_item and is_plain(event.item) else _find_flaw(event, kind)  # type: ignore[union-attr]
        if why is not None:
            raise BadOutput(f"provider `{self.provider.name}` sent a wrong {kind.__name__}: {why}")
        if special:
            event = _mark_call(event, special)
        if type(event) is TurnEnded:
            event = self._check_usage(event, request)
            if event.stop_sequence and event.stop_sequence not in request.stop:
                event = replace(event, stop_sequence=UNSET)
        elif kind is ItemStarted:
            self._count_item()
        is_delta = kind in DELTAS
        chars = len(event.delta) if is_delta else 0  # type: ignore[union-attr]
        if not meter.take(chars, DELTA_BYTES if is_delta else 0 if kind is TurnEnded else ITEM_BYTES):
            self._cut(event, meter.excess, request)
            self._count(meter)
            return False
        self._hear(event)
        if meter.is_due():
            self._count(meter)
            await self._journal.catch_up()
        if kind is TurnEnded:
            self._count(meter)
        return kind is not TurnEnded

    def _count_item(self) -> None:
        """Raises `TooManyItems`: what a turn has is looked through at each of its events."""
        self._items += 1
        if self._items > MOST_ITEMS:
            told = f"provider `{self.provider.name}` made more than {MOST_ITEMS} calls and other items in one turn"
            raise TooManyItems(f"{told}; none of the calls is run. Try again, or with another model")

    def _count(self, meter: TurnMeter) -> None:
        """Counts what has been said since the last time. Raises `MemoryLimit`."""
        self._journal.hold.add(meter.size - self._counted)
        self._counted = meter.size

    def _check_usage(self, event: TurnEnded, request: ModelRequest) -> TurnEnded:
        """A turn that nobody counted, or that was counted as nonsense, has its usage estimated."""
        if event.usage is None and event.error is not None:
            return event
        if event.usage is not None and is_plausible(event.usage):
            return event
        if event.usage is not None:
            log.warning(
                "run %s: %s counts tokens as nobody can use them, so they are estimated", request.run_id, self.provider.name
            )
        return replace(event, usage=_estimate_usage(request, self._said()))

    def _cut(self, event: ModelEvent, excess: int, request: ModelRequest) -> None:
        """Ends a turn that says too much: with as much of its last piece as fits, and what is unfinished left so."""
        log.warning("run %s: the answer of %s was cut off, it exceeds the limits of a turn", request.run_id, self.provider.name)
        if isinstance(event, Delta) and excess < len(event.delta):
            self._hear(replace(event, delta=event.delta[: len(event.delta) - excess]))
        for draft in self._said():
            if not draft.is_done:
                self._hear(ItemDone(partial(draft)))
        self._hear(TurnEnded("length", _estimate_usage(request, self._said())))

    def _stop(self, found: str, request: ModelRequest) -> None:
        """Ends a turn before the text that it is to end before. A call that is half made then is none."""
        left = [partial(draft) for draft in self._said() if not draft.is_done]
        for item in left:
            self._hear(ItemDone(replace(item, status="completed") if isinstance(item, Message) else item))
        is_half = any(isinstance(item, FunctionCall) for item in left)
        self._hear(TurnEnded("length" if is_half else "stop", _estimate_usage(request, self._said()), stop_sequence=found))


async def _read_on(events: AsyncIterator[ModelEvent]) -> None:
    await anext(events, None)


def _find_flaw(event: ModelEvent, kind: type) -> str | None:
    return flaw(event, kind) if kind in _MODEL_EVENTS else "that is not a model event"


def _tell(failure: ProviderError) -> ErrorInfo:
    """The failure as it is kept and shown: other people's words may quote a key."""
    told = ErrorInfo.of(failure)
    return replace(told, message=redact_text(told.message))


def _estimate_usage(request: ModelRequest, said: Sequence[Draft]) -> Usage:
    """What a turn has used that nobody counted: limits and budgets must not take it for nothing."""
    given = estimate(request.items, request.instructions, request.tools)
    return Usage(given, tokens_of([draft.item for draft in said]), is_estimated=True)


def _is_special(tool: ToolDefinition) -> bool:
    return tool.form is not UNSET or tool.server is not UNSET or tool.inner is not UNSET


def _mark_call(event: ModelEvent, special: dict[str, ToolDefinition]) -> ModelEvent:
    """The event with its call marked as what the client knows it as, and as whose it is."""
    if isinstance(event, ItemStarted | ItemDone) and isinstance(event.item, FunctionCall) and event.item.name in special:
        tool = special[event.item.name]
        marks = {"form": tool.form, "server": tool.server, "namespace": tool.namespace, "inner": tool.inner}
        return replace(event, item=replace(event.item, **marks))
    return event
