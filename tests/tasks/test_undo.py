"""Undo: the last change of a conversation is taken back, once, by whoever made it, also after the process is gone."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.decisions.world import Actor, World, answer, on, world

from mainspring import Engine
from mainspring.core.errors import StoreError
from mainspring.core.items import Json
from mainspring.ports import Document
from mainspring.providers.scripted import call, calls
from mainspring.storage.memory_runs import MemoryStore
from mainspring.tools.mcp.exchange import ToolAnswer
from mainspring_tasks import words
from mainspring_tasks.confirmation import THREAD
from mainspring_tasks.decision_engine import LLMAgentEngine, RecordedDecision
from mainspring_tasks.decision_log import DecisionLogs
from mainspring_tasks.decision_types import DecisionContext, Outcome
from mainspring_tasks.task_tools import LocalTasks

LIST = call("list_tasks")
UNDO = answer("Gern.", "UPDATE_TASK", "undo")


async def complete(w: World, task: str) -> None:
    await w.say(f"{task} is done", LIST, on("complete_task", task), answer("Done.", "COMPLETE_TASK"))


@pytest.mark.parametrize("message", ["undo", "Undo that!", "mach das rückgängig", "元に戻して"])
async def test_each_kind_of_change_is_taken_back_exactly(message: str, tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        await w.add("Buy milk", "Call mom")
        before = await w.listed()
        cues = () if "ndo" in message else (UNDO,)
        await complete(w, "Buy milk")
        made = await w.say(message, *cues)
        assert (made.decision.decision_type, made.report.outcome) == ("INVOKE_TOOL", Outcome.TASK_COMPLETED)
        assert made.decision.response_text == 'I\'ve undone that: "Buy milk" is open again.'
        assert await w.listed() == before
        await w.say("make it oat milk", LIST, on("update_task", "Buy milk", description="Oat milk"), answer("Ok.", "UPDATE_TASK"))
        made = await w.say(message, *cues)
        assert made.decision.response_text == 'I\'ve undone that: "Oat milk" says "Buy milk" again.'
        assert await w.listed() == before
        await w.say("add tea", call("add_task", description="Tea"), answer("Added.", "CREATE_TASK"))
        made = await w.say(message, *cues)
        assert [each.tool_name for each in made.decision.tool_calls] == ["delete_task"]
        assert await w.listed() == before
        await w.say("delete call mom", LIST, on("delete_task", "Call mom"))
        await w.say("yes", answer("Gone.", "DELETE_TASK"))
        assert await w.names() == ["Buy milk"]
        await w.say(message, *cues)
        assert await w.listed() == before


async def test_it_is_done_once_and_only_for_whoever_made_the_change(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        await w.add("Buy milk")
        await complete(w, "Buy milk")
        for context, tenant in (
            (DecisionContext("ada", "undo", "conv_2"), ""),
            (DecisionContext("bob", "undo", "conv_1"), ""),
            (DecisionContext("ada", "undo", "conv_1"), "acme"),
        ):
            made = await w.agent.decide(context, tenant=tenant)
            assert (made.decision.response_text, made.report.outcome) == (words.NOTHING_TO_UNDO, Outcome.MISSING_CONTEXT)
        assert await w.names() == ["x Buy milk"]
        await w.say("thanks", answer("You're welcome."))
        assert (await w.say("undo")).decision.decision_type == "INVOKE_TOOL"
        await w.tasks.call("ada", "complete_task", {"task_id": (await w.listed())[0]["id"]})
        again = await w.say("undo")
        assert (again.decision.decision_type, again.decision.response_text) == ("RESPOND_ONLY", words.NOTHING_TO_UNDO)
        assert await w.names() == ["x Buy milk"]


async def test_all_that_a_message_changed_is_taken_back_together(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        await w.add("Buy milk", "Call mom")

        def both(request: object) -> object:
            return calls(on("complete_task", "Buy milk")(request), on("complete_task", "Call mom")(request))  # type: ignore[arg-type]

        await w.say("milk and mom are done", LIST, both, answer("Both done.", "COMPLETE_TASK"))  # type: ignore[arg-type]
        assert await w.names() == ["x Call mom", "x Buy milk"]
        made = await w.say("undo")
        assert await w.names() == ["Call mom", "Buy milk"]
        trace = await w.logs.get_decision_trace(made.id)
        assert [(tool.tool_name, tool.success) for tool in trace.tools] == [("update_task", True)] * 2


async def test_what_has_changed_since_is_left_alone(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        await w.add("Buy milk")
        await complete(w, "Buy milk")
        await w.tasks.call("ada", "update_task", {"task_id": (await w.listed())[0]["id"], "description": "Buy rum"})
        made = await w.say("undo")
        assert made.decision.response_text == words.NOT_UNDONE.format(task="Buy milk", why="it has changed since")
        assert made.report.outcome is Outcome.TOOL_INVOCATION
        assert await w.names() == ["x Buy rum"]


DOWN: Json = {"success": False, "data": None, "error": "the tasks cannot be reached", "error_code": "DATABASE_ERROR"}
UNREAD = [ToolAnswer((), DOWN, is_error=True), ToolAnswer((), DOWN), ToolAnswer((), None)]


class Away(LocalTasks):
    """A task server whose list fails while `failure` is set: by an error that it raises, or by what it answers."""

    failure: Exception | ToolAnswer | None = None

    async def call(self, user: str, name: str, arguments: Json) -> ToolAnswer:
        if isinstance(self.failure, Exception):
            raise self.failure
        if self.failure is not None and name == "list_tasks":
            return self.failure
        return await super().call(user, name, arguments)


@pytest.mark.parametrize(
    ("failure", "why"), [(OSError("no route to host"), "no route to host"), *[(each, "could not be read") for each in UNREAD]]
)
async def test_what_could_not_be_undone_can_be_tried_again(failure: Exception | ToolAnswer, why: str, tmp_path: Path) -> None:
    tasks = Away(str(tmp_path / "tasks.db"))
    async with world(tmp_path, tasks=tasks) as w:
        await w.add("Buy milk")
        await complete(w, "Buy milk")
        tasks.failure = failure
        made = await w.say("undo")
        assert made.report.outcome is Outcome.TOOL_INVOCATION
        assert why in (made.decision.response_text or "")
        tasks.failure = None
        assert await w.names() == ["x Buy milk"]
        assert (await w.say("undo")).report.outcome is Outcome.TASK_COMPLETED
        assert await w.names() == ["Buy milk"]
        assert (await w.say("undo")).decision.response_text == words.NOTHING_TO_UNDO


@pytest.mark.parametrize("failure", UNREAD)
async def test_nothing_is_deleted_while_the_list_cannot_be_read(failure: ToolAnswer, tmp_path: Path) -> None:
    tasks = Away(str(tmp_path / "tasks.db"))
    async with world(tmp_path, tasks=tasks) as w:
        await w.add("Buy milk")
        await w.say("delete milk", LIST, on("delete_task", "Buy milk"))
        await w.tasks.call("ada", "update_task", {"task_id": (await w.listed())[0]["id"], "description": "Milk the cow"})
        tasks.failure = failure
        made = await w.say("yes", answer("Gone.", "DELETE_TASK"))
        assert made.report.outcome is Outcome.TOOL_INVOCATION
        assert "could not be read" in (made.decision.response_text or "")
        assert [call.result.error_code for call in made.report.calls if call.was_performed] == ["DATABASE_ERROR"]
        tasks.failure = None
        assert await w.names() == ["Milk the cow"]
        asked = await w.say("delete the cow", LIST, on("delete_task", "Milk the cow"))
        assert asked.decision.decision_type == "REQUEST_CONFIRMATION"


async def test_while_a_deletion_waits_undo_means_no(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        await w.add("Buy milk", "Call mom")
        await complete(w, "Call mom")
        await w.say("delete milk", LIST, on("delete_task", "Buy milk"))
        made = await w.say("undo")
        assert made.decision.response_text == words.KEPT.format(task="Buy milk")
        assert await w.names() == ["x Call mom", "Buy milk"]


async def test_a_task_that_was_done_before_stays_done(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        await w.add("Buy milk")
        await w.tasks.call("ada", "complete_task", {"task_id": (await w.listed())[0]["id"]})
        await complete(w, "Buy milk")
        assert (await w.say("undo")).decision.response_text == words.NOTHING_TO_UNDO
        assert await w.names() == ["x Buy milk"]


class Forgetful(MemoryStore):
    """A store that fails to write threads, as often as `failures` says."""

    failures = 0

    async def put(self, documents: Sequence[Document], *, if_absent: bool = False) -> bool:
        if self.failures and any(document.kind == THREAD for document in documents):
            self.failures -= 1
            raise StoreError("the disk is full")
        return await super().put(documents, if_absent=if_absent)


async def add(w: World, task: str) -> RecordedDecision:
    return await w.say(f"Add {task}", call("add_task", description=task), answer("Added.", "CREATE_TASK"))


async def test_an_undo_finds_the_last_change_though_its_thread_could_not_be_written_at_first(tmp_path: Path) -> None:
    store = Forgetful()
    async with world(tmp_path, store=store) as w:
        await add(w, "Eggs")
        store.failures = 1
        await add(w, "Milk")
        assert (store.failures, await w.names()) == (0, ["Milk", "Eggs"])
        await w.say("undo")
        assert await w.names() == ["Eggs"]


@pytest.mark.parametrize(("is_overtaken", "left"), [(False, ["Eggs"]), (True, ["Milk", "Eggs"])])
async def test_the_next_process_writes_a_thread_that_is_behind_and_no_other(
    is_overtaken: bool, left: list[str], tmp_path: Path
) -> None:
    store = Forgetful()
    async with world(tmp_path, store=store) as w:
        await add(w, "Eggs")
        store.failures = 2
        assert (await add(w, "Milk")).decision.response_text == words.BROKEN
        assert (await w.logs.query_decisions())[0].outcome_category is None
        if is_overtaken:
            await add(w, "Tea")
        async with Engine(Actor(), store=store) as engine, LLMAgentEngine(engine.host, w.tasks, w.logs, clock=w.clock) as agent:
            await agent.decide(DecisionContext("ada", "undo", "conv_1"))
        assert await w.names() == left
        assert all(row.outcome_category for row in await w.logs.query_decisions())


async def test_a_question_that_nobody_was_told_takes_no_yes(tmp_path: Path) -> None:
    store = Forgetful()
    async with world(tmp_path, store=store) as w:
        await w.add("Milk")
        store.failures = 2
        assert (await w.say("delete milk", LIST, on("delete_task", "Milk"))).decision.response_text == words.BROKEN
        async with Engine(Actor(), store=store) as engine, LLMAgentEngine(engine.host, w.tasks, w.logs, clock=w.clock) as agent:
            assert await agent.waiting("ada", "conv_1") is None


@asynccontextmanager
async def process(folder: Path, tasks: LocalTasks, actor: Actor) -> AsyncIterator[LLMAgentEngine]:
    """One life of an agent on files, as a server has them."""
    logs = DecisionLogs(folder / "decisions.db")
    try:
        async with Engine(actor, database=folder / "runs.db") as engine, LLMAgentEngine(engine.host, tasks, logs) as agent:
            yield agent
    finally:
        await tasks.close()
        await logs.close()


class Dying(LocalTasks):
    """The process ends when a task has been put back, before anybody hears of it."""

    async def call(self, user: str, name: str, arguments: Json) -> ToolAnswer:
        answer = await super().call(user, name, arguments)
        if name == "restore_task":
            raise KeyboardInterrupt
        return answer


async def test_another_process_takes_it_back_and_a_third_does_not_do_it_again(tmp_path: Path) -> None:
    path = str(tmp_path / "tasks.db")
    first = Actor(LIST, on("complete_task", "Buy milk"), answer("Done.", "COMPLETE_TASK"))
    tasks = LocalTasks(path)
    async with process(tmp_path, tasks, first) as agent:
        await tasks.call("ada", "add_task", {"description": "Buy milk"})
        await agent.decide(DecisionContext("ada", "milk is done", "c"))
    async with process(tmp_path, Dying(path), Actor()) as agent:
        await agent.process_message(DecisionContext("ada", "undo", "c"))
    tasks = LocalTasks(path)
    async with process(tmp_path, tasks, Actor()) as agent:
        found = (await tasks.call("ada", "list_tasks", {})).structured
        assert isinstance(found, dict)
        assert found["data"][0]["status"] == "pending"
        await tasks.call("ada", "complete_task", {"task_id": found["data"][0]["id"]})
        await agent.decide(DecisionContext("ada", "undo", "c"))
        found = (await tasks.call("ada", "list_tasks", {})).structured
        assert isinstance(found, dict)
        assert found["data"][0]["status"] == "completed"
