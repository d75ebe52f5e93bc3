"""How often a model decides rightly: the messages of the scripted week, put to a real one. A report, not a gate.

    python -m bench.decisions [--messages N] [--model NAME] [--seconds S]

Each message finds the tasks that the person had by then and the words before it, whatever the model made of those; so one mistake
is counted once. Right is the kind of decision, and the last tool that was called. What needs no model (a yes, a no) is left out,
and so is what was an outage in the week. N messages are taken evenly from the week; each may take a small model half a minute.
"""

import argparse
import asyncio
import sys
import tempfile
import time
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from bench.processes import parse_options
from msgspec import Struct
from tests.decisions.week import WEEK, Line

from mainspring import Engine
from mainspring.features.models.model_choice import resolve_provider
from mainspring.providers.scripted import Turn
from mainspring.storage.memory_runs import MemoryStore
from mainspring_tasks.decision_engine import LLMAgentEngine, RecordedDecision
from mainspring_tasks.decision_log import DecisionLogs
from mainspring_tasks.decision_types import DecisionContext, DecisionType, Message, Outcome
from mainspring_tasks.task_tools import LocalTasks

HISTORY = 4
MODELLESS = (DecisionType.EXECUTE_PENDING, DecisionType.CANCEL_PENDING)
FAILED = (Outcome.RATE_LIMITED, Outcome.RESPONSE_GENERATION)
CHANGES = ("add_task", "update_task", "complete_task")


class Case(Struct, frozen=True):
    """A message with what came before it: the tasks, newest first, and the words."""

    line: Line
    tasks: tuple[str, ...]
    said: tuple[str, ...]


def cases() -> list[Case]:
    found, tasks, said = [], list[str](), list[str]()
    for line in WEEK:
        if line.kind not in MODELLESS and line.outcome not in FAILED:
            found.append(Case(line, tuple(tasks), tuple(said[-HISTORY:])))
        line.effect(tasks)
        said += [line.message, _reply(line)]
    return found


def _reply(line: Line) -> str:
    """What the script has the model say, where it is known beforehand."""
    last = line.cues[-1] if line.cues else None
    return "Done." if line.kind is DecisionType.INVOKE_TOOL else "Which one?" if isinstance(last, Turn) else "All right."


def used_tool(made: RecordedDecision) -> str:
    if made.decision.pending_action is not None:
        return "delete_task"
    used = [call.tool_name for call in made.decision.tool_calls]
    return next((name for name in reversed(used) if name in CHANGES), used[-1] if used else "none")


class Score(Struct, frozen=True):
    """How one message was decided. `is_lost` says that a task is gone, which nobody may be without having said yes."""

    line: Line
    made: RecordedDecision
    is_lost: bool

    @property
    def is_kind(self) -> bool:
        return self.made.decision.decision_type is self.line.kind

    @property
    def is_right(self) -> bool:
        return self.is_kind and used_tool(self.made) == self.line.tool


async def measure(model: str, count: int, seconds: float) -> None:
    every = cases()
    chosen = every[:: max(len(every) // count, 1)][:count]
    began = time.perf_counter()
    scores = await scored(model, chosen, seconds)
    took = (time.perf_counter() - began) / len(scores)
    kinds, right = sum(score.is_kind for score in scores), sum(score.is_right for score in scores)
    print(f"\n{model}: {kinds / len(scores):.0%} of {len(scores)} decisions are of the right kind, ", end="")
    print(f"{right / len(scores):.0%} with the right tool; {took:.1f} s each;", end=" ")
    print(f"{sum(score.is_lost for score in scores)} tasks were deleted unasked")
    wrong = Counter([f"{score.line.kind} taken for {score.made.decision.decision_type}" for score in scores if not score.is_kind])
    for what, often in wrong.most_common(5):
        print(f"  {often} x {what}")


async def scored(model: str, chosen: list[Case], seconds: float) -> list[Score]:
    provider, store, scores = resolve_provider(model), MemoryStore(), []
    await store.open()
    with tempfile.TemporaryDirectory() as folder:
        tasks, logs = LocalTasks(f"{folder}/tasks.db"), DecisionLogs(Path(folder, "decisions.db"))
        async with (
            Engine(provider, store=store) as engine,
            LLMAgentEngine(engine.host, tasks, logs, model=model, model_seconds=seconds) as agent,
        ):
            for number, case in enumerate(chosen):
                made = await _decided(agent, tasks, case, f"user_{number}")
                left = (await tasks.call(f"user_{number}", "list_tasks", {})).structured
                is_lost = isinstance(left, dict) and len(left["data"]) < len(case.tasks)
                scores.append(score := Score(case.line, made, is_lost))
                mark = "ok   " if score.is_right else "kind " if score.is_kind else "WRONG"
                print(f"{mark} {case.line.message[:50]:50}  {made.decision.decision_type:20} {used_tool(made)}", flush=True)
        await tasks.close()
        await logs.close()
    await provider.close()
    return scores


async def _decided(agent: LLMAgentEngine, tasks: LocalTasks, case: Case, user: str) -> RecordedDecision:
    for task in reversed(case.tasks):
        added = await tasks.call(user, "add_task", {"description": task.removeprefix("x ")})
        if task.startswith("x ") and isinstance(added.structured, dict):
            await tasks.call(user, "complete_task", {"task_id": added.structured["data"]["id"]})
    now = datetime.now(UTC)
    history = [Message("assistant" if place % 2 else "user", text, now) for place, text in enumerate(case.said)]
    return await agent.decide(DecisionContext(user, case.line.message, user, tuple(history)))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=12, help="how many of the week's messages (default 12)")
    parser.add_argument("--model", default="local", help="the model, as for `mainspring run` (default: local)")
    parser.add_argument("--seconds", type=float, default=60.0, help="how long a turn may take (default 60)")
    given = parse_options(parser)
    asyncio.run(measure(given.model, given.messages, given.seconds))
