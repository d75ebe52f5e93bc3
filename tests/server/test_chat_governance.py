"""`/v1/chat` and `/v1/decisions` under the operator's rules, rate, level and budget, like every other door."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientSession
from msgspec import convert
from tests.decisions.world import Actor, answer, on
from tests.server.hosting import hosted
from tests.server.test_chat import LIST, Door

from mainspring.app.engine import Engine
from mainspring.app.server import server
from mainspring.core.items import Json
from mainspring.core.run import Call, Run
from mainspring.engine.audit import entry_of
from mainspring.features.budgets.plan import build_plan
from mainspring.features.budgets.settings import BudgetSettings
from mainspring.features.governance.governance_settings import build_policies
from mainspring.features.governance.settings import GovernanceSettings
from mainspring.parts import PartContents
from mainspring.ports import Deny, Verdict
from mainspring.providers.scripted import call
from mainspring.tools.addresses import AddressGuard
from mainspring.tools.registry import Registry
from mainspring_tasks import words
from mainspring_tasks.decision_settings import DecisionSettings
from mainspring_tasks.part import build

MILK = (call("add_task", description="milk"), answer("Added.", "CREATE_TASK"))


@asynccontextmanager
async def door(
    folder: Path, governance: Json | None = None, budget: Json | None = None, tools: Registry | None = None
) -> AsyncIterator[Door]:
    actor = Actor()
    engine = Engine(
        actor,
        parts=[build(DecisionSettings())],
        tools=tools or Registry(),
        database=folder / "runs.db",
        policies=build_policies(convert(governance or {}, GovernanceSettings), AddressGuard()),
        budget=build_plan(convert(budget or {}, BudgetSettings)),
        audit=True,
    )
    async with hosted(server(engine)) as url, ClientSession() as client:
        yield Door(url, actor, engine, client)


async def tasks(d: Door, key: str | None = None) -> list[str]:
    """What is on the list, as the agent reads it."""
    told: list[Any] = []

    def reads(request: Any) -> Any:
        told.append(request.items[-1].output)
        return answer("There.", "LIST_TASKS")

    await d.chat("list my tasks", LIST, reads, key=key)
    return [line for line in str(told[0]).splitlines() if "milk" in line]


@pytest.mark.parametrize(
    "governance",
    [
        {"rules": {"add_task": "deny"}},
        {"rules": {"*": "ask", "list_tasks": "allow"}},
        {"level": "read-only", "network_reads": True},
        {"level": "supervised"},
    ],
)
async def test_what_the_operator_forbids_or_wants_asked_is_not_done_and_the_person_is_told(
    tmp_path: Path, governance: Json
) -> None:
    async with door(tmp_path, governance) as d:
        key = await d.keys.create(tenant="acme", scopes=("decisions",))
        said = await d.chat("add milk", *MILK, key=key)
        assert said["decision"]["tool_calls"] == []
        assert said["message"]["content"] == 'I couldn\'t add "milk": it is not something I may do.'
        body = {"message": "add milk", "conversation_id": "c1"}
        d.actor.then(*MILK)
        assert (await d.post("/decisions", body, key=key))["tool_calls"] == []
        assert await tasks(d, key) == []


@pytest.mark.parametrize("name", ["add_task", "mainspring-tasks__add_task"])
async def test_a_tool_that_the_operator_has_blocked_is_not_used(tmp_path: Path, name: str) -> None:
    defined = tmp_path / "tools"
    defined.mkdir()
    (defined / "tasks.yaml").write_text(f"name: {name}\ndescription: Adds a task.\nstatus: blocked\n")
    registry = Registry()
    registry.load_definitions(defined)
    async with door(tmp_path, tools=registry) as d:
        key = await d.keys.create(tenant="acme", scopes=("decisions",))
        said = await d.chat("add milk", *MILK, key=key)
        assert said["decision"]["tool_calls"] == []
        assert {entry_of(link.note).policy for link in await d.engine.store.audit()} - {""} == {"tool_status"}
        assert await tasks(d, key) == []


async def test_a_key_for_decisions_alone_may_use_the_five_task_tools_and_say_yes_to_a_deletion(tmp_path: Path) -> None:
    async with door(tmp_path) as d:
        key = await d.keys.create(tenant="acme", scopes=("decisions",))
        said = await d.chat("add milk", *MILK, key=key)
        conversation = said["conversation_id"]
        asked = await d.chat("delete milk", LIST, on("delete_task", "milk"), conversation=conversation, key=key)
        assert asked["decision"]["decision_type"] == "REQUEST_CONFIRMATION"
        given = await d.chat("yes", answer("Gone.", "DELETE_TASK"), conversation=conversation, key=key)
        assert given["decision"]["decision_type"] == "EXECUTE_PENDING"
        assert given["message"]["content"] == words.DELETED.format(task="milk")
        subjects = {entry_of(link.note).subject for link in await d.engine.store.audit()}
    assert subjects == {f"key:{key.split('_')[1]}"}, "the audit names the key"


async def test_a_deletion_that_the_operator_has_come_to_deny_is_not_done_for_a_yes(tmp_path: Path) -> None:
    async with door(tmp_path) as d:
        conversation = (await d.chat("add milk", *MILK))["conversation_id"]
        await d.chat("delete milk", LIST, on("delete_task", "milk"), conversation=conversation)
    async with door(tmp_path, {"rules": {"delete_task": "deny"}}) as d:
        given = await d.chat("yes", answer("Gone.", "DELETE_TASK"), conversation=conversation)
        assert "not" in given["message"]["content"]
        assert len(await tasks(d)) == 1


async def test_the_rate_is_that_of_the_key_whatever_it_asks_for(tmp_path: Path) -> None:
    async with door(tmp_path, {"per_minute": 1}) as d:
        key = await d.keys.create(tenant="acme", scopes=("decisions",))
        assert len((await d.chat("add milk", *MILK, key=key))["decision"]["tool_calls"]) == 1
        assert (await d.chat("add more milk", *MILK, key=key))["decision"]["tool_calls"] == []


async def test_decisions_are_paid_from_the_account_of_the_tenant_and_settled(tmp_path: Path) -> None:
    plan = {"per": "tenant", "share": 1.0, "limits": {"max_iterations": 4}}
    async with door(tmp_path, budget=plan) as d:
        key = await d.keys.create(tenant="acme", scopes=("decisions",))
        for _ in range(2):
            assert len((await d.chat("add milk", *MILK, key=key))["decision"]["tool_calls"]) == 1
        refused = await d.chat("add milk", key=key)
        assert refused["message"]["content"] == words.NO_BUDGET
        account = await d.engine.admission.ledger.find_account("default", tenant="acme")
        assert (account.spent.calls, account.spent.iterations, account.held) == (2, 4, {})
        assert [found.budget.budget_id for found in await d.engine.admission.ledger.list_accounts(tenant="acme")] == ["default"]


async def test_policies_of_parts_judge_the_calls_of_the_task_agent_too(tmp_path: Path) -> None:
    class DenyAll:
        name = "deny_all"

        async def judge(self, call: Call, run: Run) -> Verdict:
            return Deny("Nothing is done today.")

    actor = Actor()
    part = PartContents(policies={"custom": (DenyAll(),)})
    engine = Engine(actor, database=tmp_path / "runs.db", parts=[part, build(DecisionSettings())])
    async with hosted(server(engine)) as url, ClientSession() as client:
        d = Door(url, actor, engine, client)
        said = await d.chat("add milk", *MILK)
    assert (said["decision"]["decision_type"], said["decision"]["tool_calls"]) == ("RESPOND_ONLY", [])
