"""The driver: performs what the loop asks for, until the run has ended."""

from contextlib import aclosing
from logging import getLogger
from typing import assert_never, get_args

from anyio import fail_after
from anyio.lowlevel import checkpoint_if_cancelled

from mainspring.engine.gate import Gate
from mainspring.engine.journal import Journal
from mainspring.engine.toolbox import Toolbox
from mainspring.errors import BadOutput, Malformed, ProviderError, StoreError, Superseded, Unavailable
from mainspring.events import Annotated, Delta, ErrorInfo, ItemDone, ItemStarted, Nudged, TurnEnded, TurnStarted
from mainspring.loop.actions import CallModel, Execute, Finish, Judge, Nudge
from mainspring.loop.decide import closing, next_action
from mainspring.loop.request import ModelRequest, request_for
from mainspring.ports import Provider

log = getLogger(__name__)

_MODEL_EVENTS = frozenset({ItemStarted, Annotated, ItemDone, TurnEnded, *get_args(Delta)})


async def drive(journal: Journal, provider: Provider, gate: Gate, toolbox: Toolbox) -> None:
    """Performs actions until the run has ended and all of it is durable. Raises only what the store raises."""
    while not journal.run.has_ended:
        # A run whose model and tools never wait must still notice that it was cancelled.
        await checkpoint_if_cancelled()
        match next_action(journal.run):
            case CallModel():
                await _turn(journal, provider)
            case Judge(call_ids):
                for call_id in call_ids:
                    journal.record(await gate.judge(journal.run.call(call_id), journal.run))
            case Execute(call_ids):
                await toolbox.perform(journal, [journal.run.call(call_id).item for call_id in call_ids])
            case Nudge(kind, text, reason):
                journal.record(Nudged(kind, text, reason))
            case Finish() as finish:
                for event in closing(journal.run, finish):
                    journal.record(event)
            case unknown:
                assert_never(unknown)
    await journal.flush()


async def _turn(journal: Journal, provider: Provider) -> None:
    """One turn of the model. However it fails, it ends in one `TurnEnded`."""
    request = request_for(journal.run)
    journal.record(TurnStarted())
    try:
        with fail_after(journal.run.spec.limits.turn_seconds):
            await _listen(journal, provider, request)
    except (StoreError, Superseded):
        raise
    except ProviderError as error:
        failure = error
    except TimeoutError:
        failure = Unavailable(f"the model did not finish its turn in {journal.run.spec.limits.turn_seconds:g} s")
    except Malformed as error:
        failure = BadOutput(f"provider `{provider.name}` broke the protocol: {error.message}")
    except Exception as error:
        log.exception("provider %s failed in run %s", provider.name, request.run_id)
        failure = ProviderError(f"provider `{provider.name}` failed: {type(error).__name__}: {error}")
    else:
        return
    if journal.run.in_turn:
        journal.record(TurnEnded("error", error=ErrorInfo.of(failure)))


async def _listen(journal: Journal, provider: Provider, request: ModelRequest) -> None:
    """Records what the provider says up to the end of the turn, then lets it put its connection away."""
    record = journal.record
    has_ended = False
    async with aclosing(provider.stream(request)) as events:
        async for event in events:
            if has_ended:
                return
            if type(event) not in _MODEL_EVENTS:
                raise BadOutput(f"provider `{provider.name}` sent {type(event).__name__}, which is not a model event")
            record(event)
            has_ended = type(event) is TurnEnded
    if not has_ended:
        raise BadOutput(f"provider `{provider.name}` ended its stream without ending the turn")
