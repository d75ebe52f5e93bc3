"""Work in processes of its own takes turns: a few at a time, fewer of one tenant, each with bounds of its own."""

import anyio
from tests.kit.waiting import PATIENCE

from mainspring.tools.builtin.readable import answer
from mainspring.tools.builtin.subprocess_work import run_in_subprocess
from mainspring.tools.work_turns import MOST_AT_ONCE, MOST_OF_TENANT, Turns, take_turn

MODULE = "mainspring.tools.builtin.readable"


class Crowd:
    """Those who have their turn, and the most there were at once."""

    def __init__(self) -> None:
        self.at_work: list[str] = []
        self.most = self.most_of_one = self.done = 0
        self.may_end = anyio.Event()

    async def work(self, tenant: str) -> None:
        async with take_turn(tenant):
            self.at_work.append(tenant)
            self.most = max(self.most, len(self.at_work))
            self.most_of_one = max(self.most_of_one, self.at_work.count(tenant))
            await self.may_end.wait()
            self.at_work.remove(tenant)
        self.done += 1


async def test_five_hundred_at_once_take_turns_and_keep_nobody_else_waiting() -> None:
    crowd = Crowd()
    with anyio.fail_after(PATIENCE):
        async with anyio.create_task_group() as group:
            for _ in range(500):
                group.start_soon(crowd.work, "busy")
            await anyio.wait_all_tasks_blocked()
            assert crowd.at_work == ["busy"] * MOST_OF_TENANT
            for number in range(10):
                group.start_soon(crowd.work, f"other {number}")
            await anyio.wait_all_tasks_blocked()
            assert crowd.at_work[MOST_OF_TENANT:] == [f"other {number}" for number in range(MOST_AT_ONCE - MOST_OF_TENANT)]
            crowd.may_end.set()
    assert (crowd.most, crowd.most_of_one, crowd.done) == (MOST_AT_ONCE, MOST_OF_TENANT, 510)


async def test_tenants_take_turns_and_who_gives_up_is_passed_over() -> None:
    turns, served, may_go, given_up = Turns(1), list[str](), anyio.Event(), anyio.CancelScope()

    async def work(name: str, scope: anyio.CancelScope) -> None:
        with scope:
            async with turns.take(name.split()[0]):
                served.append(name)
                await may_go.wait()

    with anyio.fail_after(PATIENCE):
        async with anyio.create_task_group() as group:
            for name, scope in [*[(f"busy {number}", anyio.CancelScope()) for number in range(4)], ("gone 0", given_up)]:
                group.start_soon(work, name, scope)
            group.start_soon(work, "other 0", anyio.CancelScope())
            await anyio.wait_all_tasks_blocked()
            given_up.cancel()
            may_go.set()
    assert served == ["busy 0", "busy 1", "other 0", "busy 2", "busy 3"]


async def test_a_turn_that_comes_to_somebody_who_gives_up_goes_to_the_next() -> None:
    turns, served, scope = Turns(1), list[str](), anyio.CancelScope()

    async def give_up() -> None:
        with scope:
            async with turns.take("first"):
                await anyio.sleep_forever()

    async def work() -> None:
        async with turns.take("second"):
            served.append("second")

    with anyio.fail_after(PATIENCE):
        async with anyio.create_task_group() as group:
            async with turns.take("holder"):
                group.start_soon(give_up)
                await anyio.wait_all_tasks_blocked()
                group.start_soon(work)
                await anyio.wait_all_tasks_blocked()
            scope.cancel()  # its turn has come, and it does not know yet
    assert served == ["second"]


async def test_a_question_is_made_when_its_turn_comes() -> None:
    made = []

    def ask(number: int) -> dict[str, str]:
        made.append(number)
        return {"html": f"<p>{number}</p>", "base": ""}

    with anyio.fail_after(PATIENCE):
        async with take_turn("t"), take_turn("t"), anyio.create_task_group() as group:
            waiting = anyio.CancelScope()

            async def wait() -> None:
                with waiting:
                    await run_in_subprocess(MODULE, lambda: ask(1), PATIENCE, "t")

            group.start_soon(wait)
            await anyio.wait_all_tasks_blocked()
            assert made == []
            waiting.cancel()
        assert await run_in_subprocess(MODULE, lambda: ask(2), PATIENCE, "t") == answer("<p>2</p>", "")
    assert made == [2]
