"""Calls that a client sends back with its outputs: again though the history holds them, or as they were announced."""

import pytest
from tests.loop.world import told

from mainspring.core.errors import InvalidRequest
from mainspring.core.history import History, opening
from mainspring.core.items import ApprovalResponse, FunctionCall, FunctionCallOutput, Item, user

OUTPUT = FunctionCallOutput("call_1", "ok")


def call(arguments: str = "{}", name: str = "look", **changes: str) -> FunctionCall:
    return FunctionCall("call_1", name, arguments, **{"id": "fc_1", **changes})  # type: ignore[arg-type]


def join(made: FunctionCall, *given: Item) -> tuple[Item, ...]:
    """What becomes of this input behind a history that waits for a call."""
    return opening(History(waiting=(made,)), given).items


def rejected(made: FunctionCall, sent: FunctionCall) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        join(made, user("a"), sent, OUTPUT)
    return caught.value


def test_a_call_that_is_sent_again_with_its_output_counts_once() -> None:
    assert join(call(), call(), OUTPUT, user("a")) == (OUTPUT, user("a"))


def test_a_call_behind_the_output_is_another_one_with_the_same_id() -> None:
    other = call('{"at":"home"}', "save")
    assert join(call(), OUTPUT, user("a"), other, OUTPUT) == (OUTPUT, user("a"), other, OUTPUT)


@pytest.mark.parametrize(
    ("made", "sent"),
    [
        ('{"at":"home"}', ""),
        ('{"at":"home"', '{"at":"home"'),
        ('{"at":"home","n":1}', '{"n": 1, "at": "home"}'),
        ('{"n":1}', '{"n":1.0}'),
        ('{"on":[true,null,{"n":1}]}', '{"on": [true, null, {"n": 1}]}'),
    ],
    ids=["as announced", "broken", "in another order", "another number", "nested"],
)
def test_a_repeated_call_may_be_written_in_another_way(made: str, sent: str) -> None:
    assert join(call(made), call(sent), OUTPUT) == (OUTPUT,)


@pytest.mark.parametrize(
    ("made", "sent"),
    [
        ('{"n":1}', '{"n":2}'),
        ('{"n":1}', '{"m":1}'),
        ('{"n":1,"m":1}', '{"n":1}'),
        ('{"n":1}', '{"n":true}'),
        ('{"n":{}}', '{"n":1}'),
        ('{"n":1}', '{"n":[]}'),
        ('{"n":[1,2]}', '{"n":[1]}'),
        ('{"n":[1,2]}', '{"n":[1,3]}'),
        ('{"n":{"m":1}}', '{"n":{"m":2}}'),
        ('{"n":1}', '{"n":'),
        ('{"n":', '{"n":1}'),
    ],
)
def test_a_repeated_call_with_other_arguments_is_rejected(made: str, sent: str) -> None:
    assert rejected(call(made), call(sent)).param == "input[1]"


@pytest.mark.parametrize("arguments", ["", "{}", '{"n":1}'])
def test_a_repeated_call_of_another_tool_is_rejected(arguments: str) -> None:
    assert rejected(call(name="save"), call(arguments)).param == "input[1]"


def test_the_refusal_of_a_repeated_call_names_it_and_says_what_to_send() -> None:
    assert rejected(call(), call(name="save")).message == (
        "The function call call_1 is not the one that the previous response made: that calls `look` with other arguments or "
        "another name. Leave the call out, and send its output alone."
    )


def test_a_call_that_is_sent_back_as_announced_has_been_made_if_its_output_is_there() -> None:
    announced = call(status="in_progress")
    assert opening(History(), (announced, OUTPUT, user("a"))).items == (call(), OUTPUT, user("a"))
    assert opening(History(), (announced, user("a"))).items == (announced, user("a"))


def test_an_output_for_an_earlier_call_does_not_complete_one_that_was_announced() -> None:
    other = FunctionCall("call_2", "save", status="in_progress")
    assert join(call(), OUTPUT, other) == (OUTPUT, other)


def test_of_two_calls_with_one_id_the_second_may_still_be_approved() -> None:
    given = (call(), call(id="fc_2"), OUTPUT, ApprovalResponse("mcpr_2", approve=True))
    found = opening(History(), given)
    assert (found.waiting, told(found.approvals)) == ((call(id="fc_2"),), ["mcpr_2: yes"])
