"""Whatever a model does and a person says, a decision is made, it is on record, and nothing is deleted but by a yes."""

import json
import tempfile
from collections.abc import AsyncGenerator, Sequence
from pathlib import Path
from uuid import UUID

import anyio
import msgspec
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.decisions.world import answer

from mainspring import Engine
from mainspring.core.errors import RateLimited
from mainspring.core.events import ModelEvent
from mainspring.core.ids import random_id
from mainspring.core.items import FunctionCallOutput, Json, text_of
from mainspring.core.model_request import ModelRequest
from mainspring.ports import ModelInfo
from mainspring.providers.scripted import Call, Scripted, Turn, call, calls, fail, refuse, say
from mainspring.storage.memory_runs import MemoryStore
from mainspring.tools.mcp.exchange import ToolAnswer
from mainspring_tasks.decision_engine import LLMAgentEngine
from mainspring_tasks.decision_log import DecisionLogs
from mainspring_tasks.decision_types import AgentDecision, DecisionContext, DecisionType, Outcome
from mainspring_tasks.server.perform import perform
from mainspring_tasks.server.sqlite_tasks import SqliteTasks

NAMES = ("Buy milk", "Buy bread", "Call mom")
TOOLS = ("add_task", "list_tasks", "update_task", "complete_task", "delete_task", "shell")
MESSAGES = (
    "delete buy milk",
    "delete the second one",
    "complete call mom",
    "delete it",
    "yes",
    "no",
    "hello",
    "add tea",
    "delete all",
)
INTENTS, KINDS = st.sampled_from(["GENERAL_CHAT", "DELETE_TASK", "X"]), st.sampled_from(["respond", "clarify", "refuse", "?"])
FORMED = st.builds(lambda intent, kind: answer("Well.", intent, kind, possible=["LIST_TASKS"]).say, INTENTS, KINDS)
WORDS = st.one_of(st.text(max_size=20), FORMED)
TURNS = st.one_of(
    st.builds(lambda text: ("say", text), WORDS),
    st.builds(
        lambda names: ("calls", names), st.lists(st.tuples(st.sampled_from(TOOLS), st.integers(0, 3)), min_size=1, max_size=3)
    ),
    st.sampled_from([("fail", ""), ("limit", ""), ("cut", "Hal"), ("refuse", "no"), ("list", "")]),
)
TALK = st.lists(st.tuples(st.sampled_from(MESSAGES), st.lists(TURNS, max_size=4)), min_size=1, max_size=5)


class Wild:
    """A model that does what it is told to, with whichever ids it has seen."""

    name = "wild"

    def __init__(self) -> None:
        self.turns: list[tuple[str, object]] = []

    def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
        kind, what = self.turns.pop(0) if self.turns else ("say", "Done.")
        return Scripted(_turn(kind, what, request), repeat=True, new_id=random_id, chunk=0).stream(request)

    async def models(self) -> Sequence[ModelInfo]:
        return ()

    async def close(self) -> None:
        pass


def _turn(kind: str, what: object, request: ModelRequest) -> Turn | Call:
    match kind, what:
        case "say", str(text):
            return say(text)
        case "calls", list(made):
            return calls(*[Call(name, _arguments(name, place, request)) for name, place in made])
        case "fail", _:
            return fail("provider_unavailable")
        case "limit", _:
            return fail(RateLimited("slow down"))
        case "cut", str(text):
            return say(text, finish="length")
        case "refuse", str(text):
            return refuse(text)
        case _:
            return call("list_tasks")


def _arguments(name: str, place: int, request: ModelRequest) -> Json:
    outputs = [text_of(item.output) for item in request.items if isinstance(item, FunctionCallOutput)]
    ids = [task["id"] for output in outputs if '"data":[' in output for task in json.loads(output)["data"]]
    id = {"task_id": ids[place % len(ids)] if ids else str(UUID(int=place))}
    match name:
        case "add_task":
            return {"description": "Tea"}
        case "update_task":
            return {**id, "description": "Tea"}
        case "list_tasks" | "shell":
            return {}
        case _:
            return id


class Direct:
    """The task tools without the protocol between, for speed; the rest of these tests has it."""

    def __init__(self, store: SqliteTasks) -> None:
        self._store = store

    async def call(self, user: str, name: str, arguments: Json) -> ToolAnswer:
        reply = await perform(self._store, user, name, arguments)
        text = msgspec.json.encode(reply).decode()
        return ToolAnswer(({"type": "text", "text": text},), msgspec.json.decode(text), not reply.success)

    async def close(self) -> None:
        pass


async def talk(lines: list[tuple[str, list[tuple[str, object]]]]) -> None:
    model, store = Wild(), MemoryStore()
    with tempfile.TemporaryDirectory() as folder:
        kept, logs = SqliteTasks(Path(folder, "tasks.db")), DecisionLogs(Path(folder, "decisions.db"))
        await kept.open()
        await store.open()
        for name in NAMES:
            await perform(kept, "ada", "add_task", {"description": name})
        async with Engine(model, store=store) as engine, LLMAgentEngine(engine.host, Direct(kept), logs) as agent:
            for message, turns in lines:
                model.turns = list(turns)
                before = {task.id for task in await kept.list("ada")}
                waiting = await agent.waiting("ada", "c")
                pending = None if waiting is None else waiting.action
                made = await agent.decide(DecisionContext("ada", message, "c", (), pending))
                gone = before - {task.id for task in await kept.list("ada")}
                _check(made.decision, message, {str(id) for id in gone}, None if pending is None else pending.task_id)
        rows = await logs.query_decisions()
        assert len(rows) == len(lines)
        assert all(row.outcome_category is not None and Outcome(row.outcome_category) for row in rows)
        await logs.close()
        await kept.close()


def _check(decision: AgentDecision, message: str, gone: set[str], pending: str | None) -> None:
    assert decision.response_text
    assert msgspec.json.decode(msgspec.json.encode(decision), type=AgentDecision) == decision
    if gone:
        assert (message, gone) == ("yes", {pending})
        assert decision.decision_type is DecisionType.EXECUTE_PENDING
    if decision.decision_type is DecisionType.EXECUTE_PENDING:
        assert gone == {pending}


DELETED = [("delete buy milk", [("list", ""), ("calls", [("delete_task", 2)])]), ("yes", [("calls", [("delete_task", 0)])])]


@example(DELETED)
@given(TALK)
@settings(max_examples=60)
def test_a_decision_is_always_made_and_nothing_is_deleted_but_by_a_yes(lines: list[tuple[str, list[tuple[str, object]]]]) -> None:
    anyio.run(talk, lines)
