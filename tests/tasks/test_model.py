"""Whatever two users do, in whatever order, the databases agree with a list in memory."""

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import UUID, uuid4

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test
from tests.kit.postgres import Postgres

from mainspring_tasks.ports import TaskStore
from mainspring_tasks.server.perform import perform
from mainspring_tasks.server.task import Task, TaskReply, make_task
from mainspring_tasks.server.task_store import choose_task_store

USERS = st.sampled_from(["alice", "bob"])
TEXTS = st.text(min_size=1, max_size=20)
START = datetime(2030, 1, 1, tzinfo=UTC)


class Tasks(RuleBasedStateMachine):
    """`kept` is what the tasks should be: their owner and themselves, oldest first."""

    database: Callable[[], str]
    ids = Bundle("ids")

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.store: TaskStore = choose_task_store(type(self).database())
        self.runner.run(self.store.open())
        self.kept: dict[UUID, tuple[str, Task]] = {}
        self.minutes = 0

    def teardown(self) -> None:
        self.runner.run(self.store.close())
        self.runner.close()

    def ask(self, user: str, name: str, **arguments: object) -> TaskReply:
        self.minutes += 1
        at = START + timedelta(minutes=self.minutes)
        return self.runner.run(perform(self.store, user, name, arguments, clock=lambda: at))

    @property
    def now(self) -> datetime:
        return START + timedelta(minutes=self.minutes)

    @initialize(target=ids)
    def a_task_that_was_never_added(self) -> UUID:
        return uuid4()

    @rule(target=ids, user=USERS, text=TEXTS)
    def add(self, user: str, text: str) -> UUID:
        answer = self.ask(user, "add_task", description=text)
        if not text.strip() or "\0" in text:
            assert answer.error_code == "VALIDATION_ERROR"
            return uuid4()
        assert isinstance(answer.data, Task)
        assert answer.data == make_task(answer.data.id, text, self.now)
        self.kept[answer.data.id] = user, answer.data
        return answer.data.id

    @rule(id=ids, user=USERS, text=TEXTS.filter(lambda text: bool(text.strip()) and "\0" not in text))
    def update(self, id: UUID, user: str, text: str) -> None:
        answer = self.ask(user, "update_task", task_id=str(id), description=text)
        if self.is_open(answer, id, user):
            before = self.kept[id][1]
            assert answer.data == make_task(id, text, before.created_at, before.completed_at)
            self.kept[id] = user, answer.data

    @rule(id=ids, user=USERS)
    def complete(self, id: UUID, user: str) -> None:
        answer = self.ask(user, "complete_task", task_id=str(id))
        if self.is_open(answer, id, user):
            before = self.kept[id][1]
            assert answer.data == make_task(id, before.description, before.created_at, before.completed_at or self.now)
            self.kept[id] = user, answer.data

    @rule(id=ids, user=USERS)
    def delete(self, id: UUID, user: str) -> None:
        answer = self.ask(user, "delete_task", task_id=str(id))
        if id not in self.kept:
            assert answer == TaskReply(True)
        elif self.is_open(answer, id, user):
            assert answer.data is None
            del self.kept[id]

    @rule()
    def restart(self) -> None:
        self.runner.run(self.store.close())
        self.store = choose_task_store(type(self).database())
        self.runner.run(self.store.open())

    @invariant()
    def everybody_sees_their_own(self) -> None:
        for user in ("alice", "bob"):
            own = [kept for owner, kept in reversed(self.kept.values()) if owner == user]
            assert self.ask(user, "list_tasks") == TaskReply(True, tuple(own))
            pending = tuple([kept for kept in own if kept.completed_at is None])
            assert self.ask(user, "list_tasks", status="pending") == TaskReply(True, pending)
            completed = tuple([kept for kept in own if kept.status == "completed"])
            assert self.ask(user, "list_tasks", status="completed") == TaskReply(True, completed)

    def is_open(self, answer: TaskReply, id: UUID, user: str) -> bool:
        """Whether the task is there and this user's; else the refusal must say so."""
        if id not in self.kept:
            assert answer.error_code == "NOT_FOUND"
        elif self.kept[id][0] != user:
            assert answer.error_code == "ACCESS_DENIED"
        else:
            assert answer.success
            return True
        return False


def test_a_file_agrees_with_the_model(tmp_path: Path) -> None:
    numbers = iter(range(1_000_000))

    class InFile(Tasks):
        def __init__(self) -> None:
            path = str(tmp_path / f"{next(numbers)}.db")
            type(self).database = staticmethod(lambda: path)
            super().__init__()

    run_state_machine_as_test(InFile, settings=settings(max_examples=25, stateful_step_count=25))


@pytest.mark.slow
def test_postgresql_agrees_with_the_model(postgres: Postgres) -> None:
    url = postgres.database()

    class InPostgres(Tasks):
        database = staticmethod(lambda: url)

        def __init__(self) -> None:
            super().__init__()
            for user in ("alice", "bob"):
                listed = self.ask(user, "list_tasks").data
                assert isinstance(listed, tuple)
                for kept in listed:
                    self.ask(user, "delete_task", task_id=str(kept.id))

    run_state_machine_as_test(InPostgres, settings=settings(max_examples=20, stateful_step_count=20))
