"""Tokens and money with a backend that keeps its own count: whatever fails, hangs or is stopped, it stays within the limit."""

from collections.abc import AsyncGenerator, Sequence

import anyio
from anyio import fail_after
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.kit.waiting import PATIENCE

from mainspring import Engine, tool
from mainspring.core.errors import InvalidRequest, Unavailable
from mainspring.core.events import ItemDone, ItemStarted, ModelEvent, TextDelta, TurnEnded
from mainspring.core.items import FunctionCall, Json, Message, OutputText, Usage
from mainspring.core.model_request import ModelRequest
from mainspring.core.spec import Price
from mainspring.core.tokens import estimate
from mainspring.engine.handle import Handle
from mainspring.features.budgets.budget import LEVELS, AutonomyBudget
from mainspring.features.budgets.plan import Plan
from mainspring.ports import ModelInfo
from mainspring.storage.memory_runs import MemoryStore

PRICE = Price(input=2, output=10)
WORD, CALL = "four", 8

Turns = list[tuple[str, int]]


@tool(effects=("read",))
def look(n: int = 0) -> str:
    return "seen " * (n % 40)


class Metered:
    """A model that says words, one token each, keeps to its bound, and counts what it was told and has said.

    Each turn is how it ends and how many words it would say: it answers, calls a tool, fails half way, or hangs.
    """

    name = "metered"

    def __init__(self, turns: Turns) -> None:
        self.turns, self.used, self.hangs = list(turns), Usage(), anyio.Event()
        self._number = 0

    async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
        kind, wanted = self.turns.pop(0) if self.turns else ("says", 1)
        told, bound = estimate(request.items, request.instructions, request.tools), request.max_output_tokens
        assert bound is not None, "every turn has a bound"
        assert bound >= 1, "a turn without room is not begun"
        self.used += Usage(told)
        self._number += 1
        message = Message("assistant", (), id=f"msg_{self._number}", status="in_progress")
        yield ItemStarted(message)
        said = min(wanted, bound)
        for _ in range(said):
            self.used += Usage(0, 1)
            yield TextDelta(message.id, WORD)
        if kind == "fails":
            raise Unavailable("it broke")
        if kind == "hangs":
            self.hangs.set()
            await anyio.sleep_forever()
        yield ItemDone(replace(message, content=(OutputText(WORD * said),), status="completed"))
        calls = kind == "calls" and said + CALL <= bound
        if calls:
            self.used += Usage(0, CALL)
            call = FunctionCall(f"call_{self._number}", "look", f'{{"n":{self._number}}}', id=f"fc_{self._number}")
            yield ItemStarted(replace(call, arguments="", status="in_progress"))
            yield ItemDone(call)
        yield TurnEnded("length" if said < wanted else "stop", Usage(told, said + CALL * calls))

    async def models(self) -> Sequence[ModelInfo]:
        return []

    async def close(self) -> None:
        pass


TURNS = st.lists(st.tuples(st.sampled_from(["calls", "calls", "fails", "hangs", "says"]), st.integers(0, 300)), max_size=8)
LIMITS: Json = {"max_turns": None, "max_errors_in_row": None, "retry_model_errors": True}


def limited(tokens: int, cost: float | None) -> AutonomyBudget:
    return replace(
        LEVELS[3], budget_id="b1", prices={"*": PRICE}, limits=replace(LEVELS[3].limits, max_tokens=tokens, max_cost=cost)
    )


async def driven(backend: Metered, plan: Plan, store: MemoryStore) -> str:
    """Has a run end, by as many engines as it takes: one that hangs is stopped, and another one takes the run up."""
    run_id = None
    while True:
        async with Engine(backend, tools=[look], store=store, budget=plan) as engine:
            try:
                handle = await engine.ask("Go on.", **LIMITS) if run_id is None else await engine.resume(run_id)
            except InvalidRequest as error:
                return error.code
            run_id, backend.hangs = handle.id, anyio.Event()
            with fail_after(PATIENCE):
                async with anyio.create_task_group() as group:
                    group.start_soon(_ended, handle, group.cancel_scope)
                    await backend.hangs.wait()
                    group.cancel_scope.cancel()
            if not handle.is_live:
                return str(handle.run.reason)


async def _ended(handle: Handle, waiting: anyio.CancelScope) -> None:
    await handle.wait()
    waiting.cancel()


def within(backend: Metered, tokens: int, cost: float | None) -> bool:
    return backend.used.total_tokens <= tokens and (cost is None or PRICE.of(backend.used) <= cost + 1e-9)


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(TURNS, st.integers(1, 3000), st.none() | st.floats(0.0005, 0.02))
async def test_a_run_never_uses_more_than_its_limit(turns: Turns, tokens: int, cost: float | None) -> None:
    backend = Metered(turns)
    await driven(backend, Plan(limited(tokens, cost)), MemoryStore())
    assert within(backend, tokens, cost)


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(TURNS, min_size=2, max_size=4), st.integers(500, 6000), st.none() | st.floats(0.001, 0.04))
async def test_runs_that_share_an_account_never_use_more_than_it_has(
    scripts: list[Turns], tokens: int, cost: float | None
) -> None:
    """All at once, each stopped and taken up on its own, on one store."""
    store, plan = MemoryStore(), Plan(limited(tokens, cost), "tenant", share=0.5)
    backends = [Metered(turns) for turns in scripts]
    async with anyio.create_task_group() as group:
        for backend in backends:
            group.start_soon(driven, backend, plan, store)
    used = Usage()
    for backend in backends:
        used += backend.used
    assert used.total_tokens <= tokens
    assert cost is None or PRICE.of(used) <= cost + 1e-9
