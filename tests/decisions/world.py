"""A person, a model that plays a part and checks its cues, a real task server, and the agent between them."""

import json
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import TracebackType
from typing import Self

from mainspring import Engine
from mainspring.core.events import ModelEvent
from mainspring.core.ids import random_id
from mainspring.core.items import FunctionCallOutput, Json, text_of
from mainspring.core.items import Message as MessageItem
from mainspring.core.model_request import ModelRequest
from mainspring.ports import ModelInfo, Provider, Store
from mainspring.providers.scripted import Call, Scripted, Turn, say
from mainspring.storage.memory_runs import MemoryStore
from mainspring_tasks.decision_engine import LLMAgentEngine, RecordedDecision
from mainspring_tasks.decision_log import DecisionLogs
from mainspring_tasks.decision_types import DecisionContext, Message
from mainspring_tasks.ports import TaskServer
from mainspring_tasks.task_tools import LocalTasks

Cue = Turn | Call | Callable[[ModelRequest], Turn | Call]


class Actor:
    """A model that plays its cues in order. A cue may be made of what it is asked, and fail if that is not right."""

    name = "actor"

    def __init__(self, *cues: Cue) -> None:
        self.cues = list(cues)
        self.requests: list[ModelRequest] = []
        self.complaint: AssertionError | None = None

    def then(self, *cues: Cue) -> None:
        self.cues += cues

    async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
        self.requests.append(request)
        try:
            assert self.cues, f"nobody told the actor what to say to {heard(request)!r}"
            cue = self.cues.pop(0)
            turn = cue(request) if callable(cue) else cue
        except AssertionError as error:
            self.complaint = self.complaint or error
            raise
        async for event in Scripted(turn, repeat=True, new_id=random_id, chunk=7).stream(request):
            yield event

    async def models(self) -> Sequence[ModelInfo]:
        return (ModelInfo(self.name),)

    async def close(self) -> None:
        pass

    def assert_done(self) -> None:
        if self.complaint is not None:
            raise self.complaint
        assert not self.cues, f"{len(self.cues)} cues were never asked for"


class Clock:
    """Goes on only when it is told to, but for a moment at each look."""

    def __init__(self) -> None:
        self.now = datetime(2026, 3, 2, 9, tzinfo=UTC).timestamp()

    def __call__(self) -> float:
        self.now += 0.001
        return self.now

    def pass_(self, **time: float) -> None:
        self.now += timedelta(**time).total_seconds()


class World:
    """Everything around one agent. `say` is what a client that keeps the conversation does."""

    def __init__(
        self, agent: LLMAgentEngine, actor: Actor, tasks: TaskServer, logs: DecisionLogs, clock: Clock, store: Store
    ) -> None:
        self.agent, self.actor, self.tasks, self.logs, self.clock, self.store = agent, actor, tasks, logs, clock, store
        self.history: list[Message] = []
        self.user = "ada"

    async def say(self, message: str, *cues: Cue, conversation: str = "conv_1") -> RecordedDecision:
        """A message, and what the model does about it; all of its cues must have been played."""
        self.actor.then(*cues)
        waiting = await self.agent.waiting(self.user, conversation)
        pending = None if waiting is None else waiting.action
        made = await self.agent.decide(DecisionContext(self.user, message, conversation, tuple(self.history), pending))
        self.actor.assert_done()
        at = datetime.fromtimestamp(self.clock(), UTC)
        self.history += [Message("user", message, at), Message("assistant", made.decision.response_text or "-", at)]
        return made

    async def listed(self, user: str | None = None) -> list[Json]:
        """The tasks of a user, as the real server has them, newest first."""
        answer = await self.tasks.call(user or self.user, "list_tasks", {})
        assert isinstance(answer.structured, dict)
        return list(answer.structured["data"])

    async def names(self, user: str | None = None) -> list[str]:
        return [("x " if task["status"] == "completed" else "") + task["description"] for task in await self.listed(user)]

    async def add(self, *descriptions: str, user: str | None = None) -> None:
        for description in descriptions:
            assert not (await self.tasks.call(user or self.user, "add_task", {"description": description})).is_error

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        pass


@asynccontextmanager
async def world(
    folder: Path,
    *cues: Cue,
    tasks: TaskServer | None = None,
    provider: Provider | None = None,
    store: Store | None = None,
    **options: object,
) -> AsyncIterator[World]:
    actor, clock, store = Actor(*cues), Clock(), store or MemoryStore()
    logs = DecisionLogs(folder / "decisions.db", clock=clock)
    server = tasks or LocalTasks(str(folder / "tasks.db"))
    await store.open()
    try:
        async with (
            Engine(provider or actor, store=store) as engine,
            LLMAgentEngine(engine.host, server, logs, clock=clock, **options) as agent,  # type: ignore[arg-type]
        ):
            yield World(agent, actor, server, logs, clock, store)
    finally:
        await server.close()
        await logs.close()
        await store.close()


def answer(
    reply: str,
    intent: str = "GENERAL_CHAT",
    decision: str = "respond",
    why: str = "none",
    *,
    possible: Sequence[str] = (),
    sure: float = 0.9,
) -> Turn:
    """What a model ends with that keeps to the form."""
    body = {
        "intent": intent,
        "possible_intents": list(possible),
        "confidence": sure,
        "decision": decision,
        "why": why,
        "reply": reply,
    }
    return say(json.dumps(body))


def heard(request: ModelRequest) -> str:
    """The last thing that the user said."""
    return [item.text for item in request.items if isinstance(item, MessageItem) and item.role == "user"][-1]


def last_output(request: ModelRequest) -> Json:
    """What the last tool said to the model."""
    output = request.items[-1]
    assert isinstance(output, FunctionCallOutput), f"no tool has just answered: {output!r}"
    found: Json = json.loads(text_of(output.output))
    return found


def told(request: ModelRequest) -> str:
    output = request.items[-1]
    assert isinstance(output, FunctionCallOutput), f"no tool has just answered: {output!r}"
    return text_of(output.output)


def id_of(request: ModelRequest, description: str) -> str:
    """The id of a task in the list that the model was just given."""
    listed = last_output(request)
    assert listed["success"] is True, listed
    found = [task["id"] for task in listed["data"] if task["description"] == description]
    assert len(found) == 1, f"{description!r} is not once in {listed['data']}"
    return str(found[0])


def on(name: str, task: str, /, **arguments: object) -> Callable[[ModelRequest], Call]:
    """A call about the task of that description, whose id the model has to find in the list."""
    return lambda request: Call(name, {"task_id": id_of(request, task), **arguments})
