"""Compaction items: how they are written and read, and what the model sees in their place."""

from base64 import b64encode

import pytest
from tests.loop.world import Story, calls, fails, order, says, told, used

from mainspring.core.actions import CallModel, Finish
from mainspring.core.compaction import Summary, apply_compaction, compaction_item, is_compaction, payload_of, summary_of
from mainspring.core.decide import next_action
from mainspring.core.errors import Malformed
from mainspring.core.events import Compacted, ErrorInfo, Reason, TurnStarted
from mainspring.core.history import Entry
from mainspring.core.items import FunctionCall, FunctionCallOutput, Item, Message, Unknown, assistant, user

RULE, ORDER = Message("system", user("rule").content), Message("developer", user("order").content)
CALL, OUTPUT = FunctionCall("call_1", "look", "{}"), FunctionCallOutput("call_1", "ok")


def summary(keeps: int | None = None, text: str = "So far.") -> Item:
    return compaction_item("cmp_1", f"{payload_of(Summary(text, keeps))}.seal")


def content(text: object) -> Item:
    return Unknown({"type": "compaction", "id": "cmp_1", "encrypted_content": text})


def payload(data: bytes) -> str:
    return f"ms1.{b64encode(data).decode()}"


def seen(*items: Item) -> list[str]:
    return [line.replace("Summary of the earlier conversation:\n\n", "") for line in told(apply_compaction(items))]


def test_a_compaction_item_is_told_by_its_type() -> None:
    assert is_compaction(Unknown({"type": "compaction"}))
    assert not is_compaction(Unknown({"type": "compactions"}))
    assert not is_compaction(Unknown({"id": "compaction"}))
    assert not is_compaction(user("compaction"))


def test_a_compaction_item_is_spelled_as_the_wire_does() -> None:
    expected = {"type": "compaction", "id": "cmp_1", "encrypted_content": "abc"}
    assert compaction_item("cmp_1", "abc") == Unknown(expected)


def test_the_payload_is_the_version_and_the_summary_as_json_in_base64() -> None:
    assert payload_of(Summary("Hi.")) == payload(b'{"text":"Hi."}')
    assert payload_of(Summary("Hi.", 0)) == payload(b'{"text":"Hi.","keeps":0}')


@pytest.mark.parametrize("wanted", [Summary(""), Summary("Grüße.", 0), Summary("So far.", 3)])
def test_a_summary_reads_back_whoever_sealed_it(wanted: Summary) -> None:
    assert summary_of(compaction_item("cmp_1", f"{payload_of(wanted)}.")) == wanted
    assert summary_of(compaction_item("cmp_1", f"{payload_of(wanted)}.seal")) == wanted


GOOD = payload_of(Summary("Hi."))


@pytest.mark.parametrize(
    "made",
    [
        None, 7, ["ms1", "x", "y"], "", "gAAAAAB", GOOD, f"{GOOD}.seal.more", f"ms2{GOOD[3:]}.seal", f"XX{GOOD}.seal",
        "ms1.***.seal", "ms1.e30=.seal", payload(b"not json") + ".seal", payload(b'{"text":"\xff"}') + ".seal",
        payload(b'{"text":7}') + ".seal",
    ],
)  # fmt: skip
def test_content_of_another_make_says_nothing_and_is_shown_as_it_is(made: object) -> None:
    assert summary_of(content(made)) is None
    assert apply_compaction([user("a"), content(made)]) == (user("a"), content(made))


def test_an_item_of_another_type_says_nothing() -> None:
    assert summary_of(user("a")) is None
    assert summary_of(Unknown({"type": "reasoning", "encrypted_content": f"{GOOD}.seal"})) is None
    assert summary_of(Unknown({"type": "compaction"})) is None


def test_items_without_a_summary_are_shown_as_they_are() -> None:
    items = [user("a"), CALL, OUTPUT, RULE]
    assert apply_compaction(items) == tuple(items)
    assert apply_compaction([OUTPUT]) == (OUTPUT,), "nothing is put in order here"


def test_a_summary_is_shown_as_a_message_of_the_user() -> None:
    assert apply_compaction([summary()]) == (user("Summary of the earlier conversation:\n\nSo far."),)


def test_a_summary_that_replaces_nothing_leaves_all_in_place() -> None:
    assert seen(user("a"), summary(), OUTPUT, user("b")) == ["user: a", "user: So far.", "call_1 -> ok", "user: b"]


def test_what_a_summary_does_not_keep_is_gone() -> None:
    talk = [user("a"), assistant("b"), assistant("c"), user("d")]
    assert seen(*talk, summary(1), assistant("e"), user("f")) == ["user: So far.", "user: d", "assistant: e", "user: f"]
    assert seen(*talk, summary(2)) == ["user: So far.", "assistant: c", "user: d"]


@pytest.mark.parametrize("keeps", [2, 3, 99])
def test_a_summary_may_keep_everything(keeps: int) -> None:
    assert seen(assistant("a"), assistant("b"), summary(keeps)) == ["user: So far.", "assistant: a", "assistant: b"]


def test_rules_are_never_gone_and_stand_before_the_summary() -> None:
    talk = [assistant("a"), RULE, assistant("b"), ORDER, CALL, OUTPUT, RULE, assistant("c")]
    assert seen(*talk, summary(2), assistant("d")) == [
        "system: rule", "developer: order", "user: So far.", "system: rule", "assistant: c", "assistant: d",
    ]  # fmt: skip


def test_a_summary_may_leave_all_that_the_user_said() -> None:
    kept = compaction_item("cmp_1", f"{payload_of(Summary('So far.', 0, keeps_user=True))}.seal")
    assert seen(user("a"), assistant("b"), user("c"), kept) == ["user: a", "user: c", "user: So far."]


def test_the_last_thing_the_user_said_stays_behind_the_summary() -> None:
    talk = [user("a"), user("b"), user("c"), assistant("d"), CALL, OUTPUT]
    assert seen(*talk, summary(2), user("e")) == ["user: So far.", "user: c", "call_1: look {}", "call_1 -> ok", "user: e"]
    assert seen(*talk, summary(0)) == ["user: So far.", "user: c"]


def test_what_the_user_said_earlier_is_gone_if_something_is_kept() -> None:
    assert seen(user("a"), assistant("b"), user("c"), assistant("d"), summary(2)) == ["user: So far.", "user: c", "assistant: d"]


def test_a_user_who_said_nothing_is_not_made_to() -> None:
    assert seen(assistant("a"), CALL, OUTPUT, summary(0)) == ["user: So far."]


def test_an_output_whose_call_is_gone_goes_too() -> None:
    assert seen(user("a"), CALL, OUTPUT, assistant("b"), summary(2)) == ["user: So far.", "user: a", "assistant: b"]


def test_the_last_summary_that_replaces_something_counts() -> None:
    first, second = summary(0, "first"), summary(1, "second")
    assert seen(user("a"), first, assistant("b"), assistant("c"), second) == ["user: second", "user: a", "assistant: c"]
    assert seen(user("a"), assistant("b"), first, summary(None, "noted"), user("c")) == [
        "user: first", "user: a", "user: noted", "user: c",
    ]  # fmt: skip


def test_a_summary_at_the_very_beginning_counts() -> None:
    assert seen(summary(0), OUTPUT, user("a")) == ["user: So far.", "user: a"]


def test_content_of_another_make_does_not_hide_a_summary_before_it() -> None:
    assert told(apply_compaction([assistant("a"), summary(0), content("?")]))[1:] == told([content("?")])


def test_a_run_goes_on_behind_its_summary() -> None:
    story = Story(order())
    story.play(calls("look", usage=used(1, 2)))
    run = story.apply(Compacted(summary(0), used(10, 20)))
    assert run.transcript[-1] == Entry(summary(0), "tool", 1)
    assert (run.status, run.failure, run.usage, run.turns, run.unanswered) == ("in_progress", None, used(11, 22), 1, True)
    story.play(says("done"))
    assert told(story.requests[-1].items) == ["user: Summary of the earlier conversation:\n\nSo far.", "user: go"]
    assert story.run.output[-2:] == (summary(0), assistant("done", id="msg_1"))


def test_a_run_may_be_compacted_before_its_first_turn_and_at_no_known_cost() -> None:
    run = Story(order()).apply(Compacted(summary(0)))
    assert (run.status, run.usage, run.transcript[-1]) == ("in_progress", used(0, 0), Entry(summary(0), "tool", 0))


def test_a_compaction_that_failed_is_a_failure_of_the_model() -> None:
    story, error = Story(order()), ErrorInfo("provider_unavailable", "it broke")
    run = story.apply(Compacted(usage=used(1, 2), error=error))
    assert (run.status, run.failure, run.errors_in_row, run.usage, run.overflows) == ("in_progress", error, 1, used(1, 2), 0)
    assert len(run.transcript) == 1
    assert next_action(run) == Finish("failed", Reason.PROVIDER_ERROR, error)


def test_a_compaction_that_was_too_long_is_an_overflow_and_a_good_one_ends_the_failure() -> None:
    story, error = Story(order(truncation="auto")), ErrorInfo("context_length_exceeded", "too long")
    run = story.apply(Compacted(error=error), Compacted(error=error))
    assert (run.overflows, run.overflows_in_row, run.errors_in_row, run.usage) == (2, 2, 2, used(0, 0))
    run = story.apply(Compacted(summary(0)))
    assert (run.failure, run.errors_in_row) == (None, 2)
    assert next_action(run) == CallModel()


def rejected(story: Story, event: Compacted, message: str) -> None:
    with pytest.raises(Malformed) as caught:
        story.apply(event)
    assert caught.value.message == message


def test_a_compaction_must_say_what_became_of_it() -> None:
    rejected(Story(order()), Compacted(), "a compaction without an item must say what went wrong")


def test_nothing_is_compacted_within_a_turn_or_before_its_calls_are_answered() -> None:
    message = "a transcript cannot be compacted within a turn or before its calls are answered"
    story = Story(order())
    story.apply(TurnStarted())
    rejected(story, Compacted(summary(0)), message)
    story.speak(calls("look"))
    rejected(story, Compacted(summary(0)), message)
    rejected(story, Compacted(error=ErrorInfo("a", "b")), message)


TOO_LONG = fails(code="context_length_exceeded")


def test_a_request_that_was_too_long_is_asked_once_more_with_less() -> None:
    story = Story(order(truncation="auto"))
    run = story.play(TOO_LONG, TOO_LONG)
    assert (story.end, run.error) == (("failed", Reason.PROVIDER_ERROR), ErrorInfo("context_length_exceeded", "it broke"))
    assert (run.overflows, run.overflows_in_row) == (2, 2)


def test_a_request_that_was_too_long_fails_the_run_if_nothing_may_be_left_out() -> None:
    story = Story(order())
    story.play(TOO_LONG)
    assert story.end == ("failed", Reason.PROVIDER_ERROR)


def test_other_failures_are_not_asked_again_even_if_something_may_be_left_out() -> None:
    story = Story(order(truncation="auto"))
    run = story.play(fails())
    assert (story.end, run.overflows, run.overflows_in_row) == (("failed", Reason.PROVIDER_ERROR), 0, 0)


def test_another_failure_behind_an_overflow_is_not_asked_again() -> None:
    story = Story(order(truncation="auto"))
    run = story.play(TOO_LONG, fails())
    assert (story.end, run.overflows_in_row) == (("failed", Reason.PROVIDER_ERROR), 1)


def test_a_turn_that_went_well_allows_another_overflow() -> None:
    story = Story(order(truncation="auto"))
    run = story.play(TOO_LONG, calls("look"), TOO_LONG, says("done"))
    assert (story.end, run.overflows, run.overflows_in_row) == (("completed", Reason.FINAL_ANSWER), 2, 0)
