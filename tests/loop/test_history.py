"""How the input of a run joins on to what came before."""

import pytest
from tests.loop.world import Made, Said, Story, Turn, calls, fails, order, says, told

from mainspring.core.chain import Chain
from mainspring.core.errors import InvalidRequest
from mainspring.core.events import CallJudged, ToolStarted
from mainspring.core.history import (
    Entry,
    History,
    approval_id,
    call_behind,
    history_of,
    opening,
    pair_outputs,
    replace_lost_history,
)
from mainspring.core.items import (
    ApprovalRequest,
    ApprovalResponse,
    FunctionCall,
    FunctionCallOutput,
    Item,
    Message,
    Reasoning,
    ServerTool,
    Unknown,
    assistant,
    user,
)  # fmt: skip
from mainspring.core.memory_quota import measure_items
from mainspring.core.run import history_after


def call(number: int, **changes: str) -> FunctionCall:
    return FunctionCall(f"call_{number}", "look", "{}", id=f"fc_{number}", **changes)  # type: ignore[arg-type]


def output(number: int, text: str = "ok") -> FunctionCallOutput:
    return FunctionCallOutput(f"call_{number}", text)


def waiting(*numbers: int) -> History:
    return History(Chain([Entry(call(number), "model", 1) for number in numbers]), tuple([call(number) for number in numbers]))


def rejected(history: History, given: tuple[Item, ...], message: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        opening(history, given)
    assert caught.value.message.startswith(message)
    assert caught.value.param == "input"


def test_plain_input_is_taken_as_it_is() -> None:
    given = (user("a"), assistant("b"), Unknown({"type": "x"}), user("c"))
    assert opening(History(), given).items == given


def test_output_without_a_call_is_rejected() -> None:
    rejected(History(), (user("a"), output(1)), "No tool call found for function call output with call_id call_1.")


def test_call_without_an_output_is_rejected() -> None:
    rejected(History(), (call(1), user("a")), "No tool output found for function call call_1.")


def test_waiting_call_of_the_history_must_be_answered() -> None:
    rejected(waiting(1), (user("never mind"),), "No tool output found for function call call_1.")


def test_every_waiting_call_must_be_answered() -> None:
    rejected(waiting(1, 2), (output(1),), "No tool output found for function call call_2.")


def test_second_output_for_a_call_is_rejected() -> None:
    with pytest.raises(InvalidRequest, match="call_1"):
        opening(waiting(1), (output(1, "red"), output(1, "blue")))


def test_output_for_a_call_that_was_answered_long_ago_is_rejected() -> None:
    story = Story(order())
    story.play(calls("look"), says("done"))
    with pytest.raises(InvalidRequest, match=r"^No tool call found for function call output with call_id call_1\.$"):
        story.then(output(1))


def test_outputs_for_waiting_calls_are_put_in_call_order() -> None:
    assert opening(waiting(1, 2, 3), (output(3), output(1), output(2))).items == (output(1), output(2), output(3))


def test_outputs_come_before_a_message_that_was_sent_with_them() -> None:
    assert told(opening(waiting(1), (user("and then?"), output(1))).items) == ["call_1 -> ok", "user: and then?"]
    assert told(opening(waiting(1), (output(1), user("and then?"))).items) == ["call_1 -> ok", "user: and then?"]


def test_history_kept_by_the_client_is_taken_in_call_output_pairs() -> None:
    given = (user("a"), call(1), call(2), output(1), output(2), assistant("b"), call(3), output(3), user("c"))
    assert opening(History(), given).items == given


def test_outputs_of_the_clients_history_are_put_in_call_order() -> None:
    given = (user("a"), call(1), call(2), output(2), output(1), user("b"))
    assert told(opening(History(), given).items)[3:] == ["call_1 -> ok", "call_2 -> ok", "user: b"]


def test_user_message_between_a_call_and_its_output_is_moved_behind_it() -> None:
    given = (call(1), user("are you done?"), output(1))
    assert told(opening(History(), given).items) == ["call_1: look {}", "call_1 -> ok", "user: are you done?"]


@pytest.mark.parametrize("between", [assistant("hm"), Reasoning("rs_1"), ApprovalRequest("mcpr_1", "look", "{}")])
def test_what_the_model_said_between_a_call_and_its_output_stays_there(between: Item) -> None:
    given = (call(1), between, output(1), user("next"))
    assert opening(History(), given).items == given


@pytest.mark.parametrize("between", [user("hm"), Message("system"), Unknown({"type": "x"})])
def test_all_else_between_a_call_and_its_output_is_moved_behind_it(between: Item) -> None:
    assert opening(History(), (call(1), between, output(1))).items == (call(1), output(1), between)


def test_output_before_its_call_belongs_to_no_call() -> None:
    with pytest.raises(InvalidRequest, match="No tool call found"):
        opening(History(), (output(1), call(1)))


def test_call_id_used_again_is_answered_by_the_output_behind_it() -> None:
    first, second = output(1), FunctionCallOutput("call_1", "second", id="fco_9")
    assert pair_outputs((call(1), first, user("on"), call(1), second)).items == (call(1), first, user("on"), call(1), second)
    assert pair_outputs((first, call(1), second)).items == (call(1), second), "what a window cut off takes its output along"


def test_call_that_comes_with_the_input_waits_for_its_approval_like_one_that_came_before() -> None:
    made = FunctionCall("call_x", "look", "{}", id="fc_x")
    assert opening(History(), (made, ApprovalResponse("mcpr_x", approve=True))).waiting == (made,)
    assert opening(History(waiting=(made,)), (ApprovalResponse("mcpr_x", approve=True),)).waiting == (made,)


def test_answer_that_was_acted_on_is_history() -> None:
    given = (call(1), ApprovalResponse("mcpr_1", approve=True), output(1), user("and now?"))
    found = opening(History(), given)
    assert (found.waiting, found.approvals) == ((), ())


def test_answer_to_a_call_that_was_cut_off_is_not_taken_for_history() -> None:
    given = (call(1, status="incomplete"), ApprovalResponse("mcpr_1", approve=True))
    rejected(History(), given, "No approval request mcpr_1 is waiting here.")


def test_lost_history_holds_the_calls_that_the_input_answers() -> None:
    given = (FunctionCallOutput("call_x", "ok"), ApprovalResponse("mcpr_y", approve=False))
    found = opening(replace_lost_history(given), given)
    assert [call.id for call in found.waiting] == ["fc_y"]
    assert found.items[0] == given[0]


def test_lost_history_names_each_call_so_that_its_ids_come_out_the_same() -> None:
    given = (user("a"), call(1), output(1), FunctionCallOutput("call_x", "ok"), ApprovalResponse("mcpr_mcpr_y", approve=True))
    assert replace_lost_history(given) == History(
        waiting=(FunctionCall("call_x", "unknown", id="fc_x"), FunctionCall("mcpr_mcpr_y", "unknown", id="fc_mcpr_y"))
    )


def test_half_call_needs_no_output_and_the_model_never_sees_it() -> None:
    story = Story(order(input=(user("a"), call(1, status="incomplete"), user("b"))))
    story.play(says("c"))
    assert told(story.requests[0].items) == ["user: a", "user: b"]


def test_own_output_of_a_truncated_answer_can_be_sent_back_as_it_is() -> None:
    story = Story(order())
    run = story.play(Turn((Made("look"), Made("save", "{", is_half=True)), finish="length"))
    again = Story(order(input=(user("go"), *run.output, user("go on"))))
    again.play(says("done"))
    assert told(again.requests[0].items) == [
        "user: go",
        "call_1: look {}",
        "call_1 !> Not executed: the model's answer was cut off at the output limit.",
        "user: go on",
    ]


def test_approval_frees_the_call_it_is_about() -> None:
    said = ApprovalResponse("mcpr_1", approve=True)
    found = opening(waiting(1), (said,))
    assert (found.waiting, found.approvals, found.items) == ((call(1),), (said,), (said,))


def test_refusal_of_a_person_frees_the_call_too() -> None:
    assert opening(waiting(1), (ApprovalResponse("mcpr_1", approve=False),)).waiting == (call(1),)


def test_unknown_approval_is_rejected() -> None:
    rejected(History(), (ApprovalResponse("mcpr_9", approve=True),), "No approval request mcpr_9 is waiting here.")


def test_refusal_of_an_unknown_approval_says_what_to_send() -> None:
    with pytest.raises(InvalidRequest) as caught:
        opening(History(), (ApprovalResponse("mcpr_9", approve=True),))
    assert caught.value.code == "approval_not_found"
    assert caught.value.message.endswith(
        "Send the mcp_approval_request as it was told, together with its answer, or continue the response that asked with "
        "`previous_response_id`."
    )


def test_approval_request_alone_says_which_call_it_is_about() -> None:
    server = ServerTool("files", "read")
    call = call_behind("mcpr_1", "look", '{"at":"home"}', server)
    assert call == FunctionCall("call_1", "look", '{"at":"home"}', id="fc_1", server=server)
    assert approval_id(call) == "mcpr_1"


def test_each_question_about_a_call_has_an_id_of_its_own() -> None:
    story = Story(order(), gate={"save": "ask"})
    story.play(calls("save"))
    asked = ["mcpr_1"]
    for _ in range(2):
        story = story.then(ApprovalResponse(asked[-1], approve=True))
        story.apply(CallJudged("call_1", "allow", "approval"), ToolStarted("call_1"), CallJudged("call_1", "ask", "tool"))
        story.play()
        asked += [item.id for item in story.run.output if isinstance(item, ApprovalRequest)]
    assert asked == ["mcpr_1", "mcpr_1_next", "mcpr_1_next_next"]


def test_approval_of_a_call_that_is_answered_is_rejected() -> None:
    given = (output(1), ApprovalResponse("mcpr_1", approve=True))
    rejected(waiting(1), given, "No approval request mcpr_1 is waiting here.")


def test_approval_does_not_answer_another_call() -> None:
    given = (ApprovalResponse("mcpr_1", approve=True),)
    rejected(waiting(1, 2), given, "No tool output found for function call call_2.")


def test_approval_given_twice_is_rejected() -> None:
    given = (ApprovalResponse("mcpr_1", approve=True), ApprovalResponse("mcpr_1", approve=False))
    rejected(waiting(1), given, "An approval request is answered twice; send one mcp_approval_response each.")


def test_message_sent_with_an_approval_comes_behind_the_output_for_the_model() -> None:
    story = Story(order(), gate={"save": "ask"})
    story.play(calls("save"))
    later = story.then(ApprovalResponse("mcpr_1", approve=True), user("and hurry"))
    later.play(says("done"))
    assert told(later.requests[0].items) == ["user: go", "call_1: save {}", "call_1 -> ok", "user: and hurry"]


def test_outputs_of_a_mixed_turn_are_in_call_order_for_the_model() -> None:
    story = Story(order())
    story.play(calls("choose", "look"))
    later = story.then(FunctionCallOutput("call_1", "red"))
    later.play(says("done"))
    assert told(later.requests[0].items)[3:] == ["call_1 -> red", "call_2 -> ok"]


def test_call_ids_may_come_again_once_they_are_answered() -> None:
    story = Story(order(input=(call(1), output(1, "a"), user("again"), call(1), output(1, "b"), user("c"))))
    story.play(says("done"))
    assert told(story.requests[0].items) == [
        "call_1: look {}",
        "call_1 -> a",
        "user: again",
        "call_1: look {}",
        "call_1 -> b",
        "user: c",
    ]


def stories() -> list[Story]:
    text, paused, asked = Story(order()), Story(order()), Story(order(), gate={"save": "ask"})
    failed, cut = Story(order(retry_model_errors=True)), Story(order())
    text.play(calls("look"), says("done"))
    paused.play(calls("choose", "look", "choose"))
    asked.play(calls("look", "save"))
    failed.play(fails(Said("x"), Made("look"), retryable=True), calls("choose"))
    cut.play(Turn((Made("look"), Made("save", "{", is_half=True)), finish="length"))
    return [text, paused, asked, failed, cut]


@pytest.mark.parametrize("number", range(5))
def test_stored_entries_and_the_run_itself_make_the_same_history(number: int) -> None:
    run = stories()[number].run
    stored, live = history_of(list(run.own_entries)), history_after(run)
    assert stored.waiting == live.waiting
    assert list(stored.entries) == [entry for entry in live.entries if not entry.hidden]


def test_history_of_stored_entries_knows_who_still_waits() -> None:
    entries = [
        Entry(call(1), "model", 1),
        Entry(call(2), "model", 1),
        Entry(output(1), "tool", 1),
        Entry(call(3, status="incomplete"), "model", 1),
    ]
    assert history_of(entries) == History(Chain(entries), (call(2),))


def test_history_of_stored_entries_is_as_large_as_they_were() -> None:
    assert history_of([Entry(user("a"), "input")], 12).size == 12


def test_stray_output_in_stored_entries_is_no_error() -> None:
    entries = [Entry(output(1), "tool", 1), Entry(call(2), "model", 1)]
    assert history_of(entries).waiting == (call(2),)


def test_run_counts_what_it_inherits_and_where_its_answer_begins() -> None:
    story = Story(order())
    story.play(says("done"))
    run = story.then(user("a"), user("b")).run
    assert (run.inherited, run.base) == (2, 4)
    assert run.own_entries == (Entry(user("a"), "input"), Entry(user("b"), "input"))


def test_entries_say_who_brought_them_and_when() -> None:
    story = Story(order(confirm="sure?"))
    run = story.play(calls("look"), says("done"), says("yes"))
    assert [(entry.origin, entry.turn, entry.hidden) for entry in run.transcript] == [
        ("input", 0, False),
        ("model", 1, False),
        ("tool", 1, False),
        ("model", 2, False),
        ("engine", 2, False),
        ("model", 3, False),
    ]


def test_entries_of_a_lost_turn_are_hidden_with_the_answers_to_its_calls() -> None:
    story = Story(order(retry_model_errors=True))
    run = story.play(calls("look"), fails(Said("x"), Made("look"), retryable=True))
    assert [(entry.origin, entry.turn, entry.hidden) for entry in run.transcript[3:]] == [
        ("model", 2, True),
        ("model", 2, True),
        ("tool", 2, True),
    ]


def test_entries_of_a_paused_turn_are_that_turns() -> None:
    story = Story(order(), gate={"save": "ask"})
    run = story.play(calls("look"), calls("save", "look"))
    assert [(type(entry.item), entry.origin, entry.turn) for entry in run.transcript[3:]] == [
        (FunctionCall, "model", 2),
        (FunctionCall, "model", 2),
        (ApprovalRequest, "tool", 2),
        (FunctionCallOutput, "tool", 2),
    ]


def test_entries_of_an_approved_call_are_the_new_runs() -> None:
    story = Story(order(), gate={"save": "ask"})
    story.play(calls("save"))
    later = story.then(ApprovalResponse("mcpr_1", approve=True))
    later.play(says("done"))
    assert [(entry.origin, entry.turn) for entry in later.run.own_entries] == [("input", 0), ("tool", 0), ("model", 1)]


def test_history_has_the_size_of_all_that_is_in_it() -> None:
    first = Story(order())
    first.play(calls("look"), says("done"))
    history = history_after(first.run)
    assert history.size == measure_items([entry.item for entry in history.entries])
    second = Story(order(id="run_2", input=(user("more"),)), history)
    second.play(says("done again"))
    longer = history_after(second.run, history)
    assert longer.size == measure_items([entry.item for entry in longer.entries]) > history.size


def test_two_runs_may_continue_the_same_one() -> None:
    story = Story(order())
    story.play(says("done"))
    left, right = story.then(user("left")), story.then(user("right"))
    left.play(says("l"))
    right.play(says("r"))
    assert told(left.requests[0].items) == ["user: go", "assistant: done", "user: left"]
    assert told(right.requests[0].items) == ["user: go", "assistant: done", "user: right"]
    assert told(entry.item for entry in story.run.transcript) == ["user: go", "assistant: done"]
