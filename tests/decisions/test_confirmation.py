"""Deleting asks first: yes, no, something else, too late, and everything that a client could make up."""

from datetime import timedelta
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.decisions.world import World, answer, on, world

from mainspring.core.history import ASKED
from mainspring.engine.engine import Engine
from mainspring.features.approvals.pending import Approvals
from mainspring.providers.scripted import Scripted, call, fail
from mainspring_tasks import words
from mainspring_tasks.confirmation import NO, YES, parse_confirmation
from mainspring_tasks.decision_engine import RecordedDecision, derive_owner
from mainspring_tasks.decision_types import DecisionContext, Outcome, PendingAction

LIST = call("list_tasks")
OWN = derive_owner("", "ada")


async def asked(w: World, task: str = "Buy milk", conversation: str = "conv_1") -> PendingAction:
    made = await w.say(f"delete {task}", LIST, on("delete_task", task), conversation=conversation)
    assert made.decision.decision_type == "REQUEST_CONFIRMATION"
    assert made.decision.pending_action is not None
    return made.decision.pending_action


def told(made: RecordedDecision) -> tuple[str, str | None]:
    return made.decision.decision_type.value, made.decision.response_text


@pytest.mark.parametrize("word", sorted(YES))
def test_every_word_for_yes_is_one(word: str) -> None:
    assert [parse_confirmation(said) for said in (word, word.upper(), f" {word}! ", f"{word}, please.", f"{word} delete it")] == [
        "yes"
    ] * 5


@pytest.mark.parametrize("word", sorted(NO))
def test_every_word_for_no_is_one(word: str) -> None:
    assert [parse_confirmation(said) for said in (word, word.title(), f"{word}.", f"{word}, thanks")] == ["no"] * 4


@pytest.mark.parametrize(
    "message",
    [
        "yes and delete bread too",
        "yes no",
        "no wait, yes",
        "yesterday",
        "not sure",
        "ok what is left?",
        "please",
        "",
        "delete it",
        "maybe",
        "yes but not that one",
        "sure?",
        "yes?",
        "ok?",
        "yes\uff1f",
        "yes, delete the bread one",
        "delete the milk one",
        "milk",
    ],
)
def test_anything_else_is_neither(message: str) -> None:
    assert parse_confirmation(message, "Buy milk") is None


@pytest.mark.parametrize(
    "message", ["Yes, I am sure", "Yes, delete the milk one", "go ahead and delete it", "of course", "sure, remove buy milk"]
)
def test_a_yes_may_name_the_task(message: str) -> None:
    assert parse_confirmation(message, "Buy milk") == "yes"


@pytest.mark.parametrize("message", ["No, keep it", "not now", "no, don't delete the milk one", "please leave it"])
def test_so_may_a_no(message: str) -> None:
    assert parse_confirmation(message, "Buy milk") == "no"


@pytest.mark.parametrize("message", ["sure?", "yes?", "ok?"])
async def test_a_question_deletes_nothing(message: str, tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        await w.add("Buy milk")
        await asked(w)
        made = await w.say(message, answer("Yes or no?", "AMBIGUOUS", "clarify", possible=["DELETE_TASK"]))
        assert made.decision.decision_type == "ASK_CLARIFICATION"
        assert await w.names() == ["Buy milk"]


async def test_what_was_deleted_is_ours_to_say(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        await w.add("Buy milk")
        await asked(w)
        made = await w.say("yes", answer("I kept it.", "DELETE_TASK"))
        assert told(made) == ("EXECUTE_PENDING", words.DELETED.format(task="Buy milk"))
        assert await w.names() == []


def test_an_apostrophe_may_be_curly() -> None:
    assert parse_confirmation("don\u2019t delete it") == "no"


@given(st.text(max_size=40))
def test_no_text_is_both_and_all_are_taken(message: str) -> None:
    assert parse_confirmation(message) in ("yes", "no", None)


@pytest.mark.requirement("D40")
async def test_the_question_is_an_approval_like_any_other(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        await w.add("Buy milk")
        pending = await asked(w)
        assert pending.expires_at - pending.created_at == timedelta(minutes=5)
        async with Engine(Scripted(), w.store) as engine:
            listed = (await Approvals(engine, {"mainspring-tasks"}, w.clock).list(tenant=OWN, state="pending")).approvals
        (approval,) = listed
        assert (approval.tool, approval.server_label, approval.policy) == (
            "delete_task",
            "mainspring-tasks",
            "confirmed_deletion",
        )
        assert approval.question == words.CONFIRM.format(task="Buy milk")
        await w.say("yes", answer("Gone.", "DELETE_TASK"))
        async with Engine(Scripted(), w.store) as engine:
            approval = await Approvals(engine, {"mainspring-tasks"}, w.clock).get(approval.id, tenant=OWN)
        assert approval.state == "approved"
        assert approval.continued_by is not None


async def test_no_keeps_the_task_and_asks_no_model(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        await w.add("Buy milk")
        await asked(w)
        count = len(w.actor.requests)
        made = await w.say("no, thanks")
        assert told(made) == ("CANCEL_PENDING", words.KEPT.format(task="Buy milk"))
        assert (len(w.actor.requests), made.report.outcome) == (count, Outcome.RESPONSE_GIVEN)
        assert await w.names() == ["Buy milk"]
        async with Engine(Scripted(), w.store) as engine:
            (approval,) = (await Approvals(engine, {"mainspring-tasks"}, w.clock).list(tenant=OWN)).approvals
        assert approval.state == "refused"


async def test_anything_else_cancels_and_is_taken_for_what_it_says(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        await w.add("Buy milk")
        pending = await asked(w)
        made = await w.say("add tea", call("add_task", description="Tea"), answer("Added.", "CREATE_TASK"))
        assert told(made) == ("INVOKE_TOOL", "Added.")
        late = await w.agent.decide(DecisionContext("ada", "yes", "conv_1", (), pending))
        assert told(late) == ("CANCEL_PENDING", words.NOTHING_PENDING)
        assert late.report.outcome is Outcome.MISSING_CONTEXT
        assert await w.names() == ["Tea", "Buy milk"]


@pytest.mark.parametrize("message", ["yes", "no"])
async def test_after_five_minutes_it_has_expired(message: str, tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        await w.add("Buy milk")
        await asked(w)
        w.clock.pass_(minutes=5)
        made = await w.say(message)
        assert told(made) == ("CANCEL_PENDING", words.EXPIRED.format(task="Buy milk"))
        assert made.report.outcome is Outcome.MISSING_CONTEXT
        assert await w.names() == ["Buy milk"]
        again = await w.say(message, answer("To what?", "AMBIGUOUS", "clarify", possible=["GENERAL_CHAT"]))
        assert again.decision.decision_type == "ASK_CLARIFICATION"


async def test_just_before_it_has_not(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        await w.add("Buy milk")
        await asked(w)
        w.clock.pass_(minutes=4, seconds=59)
        assert (await w.say("yes", answer("Gone.", "DELETE_TASK"))).decision.decision_type == "EXECUTE_PENDING"
        assert await w.names() == []


async def test_what_a_client_makes_up_deletes_nothing(tmp_path: Path) -> None:
    """Another task, another user, another conversation, none at all: only what is on record counts."""
    async with world(tmp_path) as w:
        await w.add("Buy milk", "Call mom")
        other = (await w.listed())[0]["id"]
        pending = await asked(w)
        made_up = [
            DecisionContext("ada", "yes", "conv_2", (), pending),
            DecisionContext("bob", "yes", "conv_1", (), pending),
            DecisionContext("ada", "yes", "conv_1", (), replace(pending, task_id=other)),
        ]
        for context in made_up:
            made = await w.agent.decide(context)
            assert told(made) == ("CANCEL_PENDING", words.NOTHING_PENDING)
        assert await w.names() == ["Call mom", "Buy milk"]
        # The last of them was said in the conversation itself: it was an answer to something else, and so ended the waiting.
        assert told(await w.agent.decide(DecisionContext("ada", "yes", "conv_1", (), pending))) == (
            "CANCEL_PENDING",
            words.NOTHING_PENDING,
        )


async def test_a_client_cannot_make_it_last_longer(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        await w.add("Buy milk")
        pending = await asked(w)
        w.clock.pass_(minutes=6)
        longer = replace(pending, expires_at=pending.expires_at + timedelta(days=1))
        made = await w.agent.decide(DecisionContext("ada", "yes", "conv_1", (), longer))
        assert told(made) == ("CANCEL_PENDING", words.EXPIRED.format(task="Buy milk"))
        assert await w.names() == ["Buy milk"]


async def test_a_new_question_takes_the_place_of_the_old_one(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        await w.add("Buy milk", "Call mom")
        first = await asked(w)
        await asked(w, "Call mom")
        made = await w.agent.decide(DecisionContext("ada", "yes", "conv_1", (), first))
        assert told(made) == ("CANCEL_PENDING", words.NOTHING_PENDING)
        await asked(w, "Call mom")
        await w.say("yes", answer("Gone.", "DELETE_TASK"))
        assert await w.names() == ["Buy milk"]
        assert len(await w.store.documents(ASKED, tenant=OWN)) == 3


async def test_a_yes_counts_once(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        await w.add("Buy milk", "Buy milk")
        pending = (await asked_by_number(w)).decision.pending_action
        assert pending is not None
        w.actor.then(answer("Gone.", "DELETE_TASK"))
        context = DecisionContext("ada", "yes", "conv_1", (), pending)
        assert (await w.agent.decide(context)).decision.decision_type == "EXECUTE_PENDING"
        assert told(await w.agent.decide(context)) == ("CANCEL_PENDING", words.NOTHING_PENDING)
        assert await w.names() == ["Buy milk"]


async def asked_by_number(w: World) -> RecordedDecision:
    first = (await w.listed())[0]["id"]
    return await w.say("delete number 1", LIST, call("delete_task", task_id=first))


async def test_a_yes_is_carried_out_though_the_model_is_down(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        await w.add("Buy milk")
        await asked(w)
        made = await w.say("yes", fail("provider_unavailable"))
        assert told(made) == ("EXECUTE_PENDING", words.DELETED.format(task="Buy milk"))
        assert made.report.outcome is Outcome.TASK_COMPLETED
        assert await w.names() == []


async def test_nothing_else_is_done_with_a_yes(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        await w.add("Buy milk", "Call mom")
        await asked(w)
        made = await w.say("yes", call("add_task", description="Sneaked in"))
        assert told(made) == ("EXECUTE_PENDING", words.DELETED.format(task="Buy milk"))
        assert made.report.outcome is Outcome.TASK_COMPLETED
        assert [made.tool_name for made in made.decision.tool_calls] == ["delete_task"]
        assert await w.names() == ["Call mom"]
        trace = await w.logs.get_decision_trace(made.id)
        assert [(tool.tool_name, tool.success, tool.error_code) for tool in trace.tools] == [
            ("delete_task", True, None),
            ("add_task", False, "INTENT_ERROR"),
        ]


async def test_a_task_that_is_gone_meanwhile_counts_as_deleted(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        await w.add("Buy milk")
        pending = await asked(w)
        await w.tasks.call("ada", "delete_task", {"task_id": pending.task_id})
        assert (await w.say("yes", answer("Gone.", "DELETE_TASK"))).decision.decision_type == "EXECUTE_PENDING"


async def test_a_task_that_says_something_else_meanwhile_is_kept(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        await w.add("Buy milk")
        pending = await asked(w)
        await w.tasks.call("ada", "update_task", {"task_id": pending.task_id, "description": "Sell the house"})
        made = await w.say("yes", answer('Deleted "Buy milk".', "DELETE_TASK"))
        assert made.decision.response_text is not None
        assert made.decision.response_text.startswith('I couldn\'t delete "Buy milk": it says "Sell the house" now')
        assert made.report.outcome is Outcome.TOOL_INVOCATION
        assert await w.names() == ["Sell the house"]


async def test_a_pending_action_survives_its_way_through_json(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        await w.add("Buy milk")
        pending = await asked(w)
        back = msgspec.json.decode(msgspec.json.encode(pending), type=PendingAction)
        w.actor.then(answer("Gone.", "DELETE_TASK"))
        assert (
            await w.agent.decide(DecisionContext("ada", "ok", "conv_1", (), back))
        ).decision.decision_type == "EXECUTE_PENDING"


async def test_two_conversations_wait_for_their_own(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        await w.add("Buy milk", "Call mom")
        await asked(w, "Buy milk", "conv_1")
        await asked(w, "Call mom", "conv_2")
        await w.say("yes", answer("Gone.", "DELETE_TASK"), conversation="conv_1")
        assert await w.names() == ["Call mom"]
        await w.say("no", conversation="conv_2")
        assert await w.names() == ["Call mom"]


async def test_tenants_do_not_share_a_question(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        await w.add("Buy milk")
        pending = await asked(w)
        made = await w.agent.decide(DecisionContext("ada", "yes", "conv_1", (), pending), tenant="acme")
        assert told(made) == ("CANCEL_PENDING", words.NOTHING_PENDING)
        assert await w.names() == ["Buy milk"]
