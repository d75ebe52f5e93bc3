"""Calls: judged, run, answered once each, in call order; handed to the client, or held until a person agrees."""

import pytest
from tests.loop.world import Failed, Made, Story, Turn, calls, order, says, told

from mainspring.core.actions import CallModel, Execute, Finish, Judge
from mainspring.core.chain import Chain
from mainspring.core.decide import next_action
from mainspring.core.events import CallJudged, Reason, ToolEnded, ToolProgress, ToolStarted, TurnStarted
from mainspring.core.history import Entry, History
from mainspring.core.items import (
    ApprovalRequest,
    ApprovalResponse,
    FunctionCall,
    FunctionCallOutput,
    InputText,
    Json,
    ServerTool,
    ToolDefinition,
    Unknown,
    user,
)
from mainspring.core.run import Call


@pytest.mark.requirement("A3", "A4", "A6", "A20", "A29", "A36")
def test_call_is_judged_run_and_fed_back() -> None:
    story = Story(order())
    story.play(calls(Made("look", '{"at":"sky"}')), says("blue"))
    assert story.actions == [
        CallModel(),
        Judge(("call_1",)),
        Execute(("call_1",)),
        CallModel(),
        Finish("completed", Reason.FINAL_ANSWER),
    ]
    assert told(story.requests[1].items) == ["user: go", 'call_1: look {"at":"sky"}', "call_1 -> ok"]


@pytest.mark.requirement("C65", "C79")
@pytest.mark.parametrize(
    "text",
    [
        'Action: look\nAction Input: {"at": "sky"}',
        '<tool_call><name>look</name><arguments>{"at": "sky"}</arguments></tool_call>',
        '<|tool_call|>{"name": "look", "arguments": {"at": "sky"}}<|/tool_call|>',
    ],
)
def test_text_that_looks_like_a_call_is_text(text: str) -> None:
    story = Story(order())
    story.play(says(text))
    assert story.actions == [CallModel(), Finish("completed", Reason.FINAL_ANSWER)]


@pytest.mark.requirement("A12")
def test_all_calls_of_a_turn_are_run_at_once() -> None:
    story = Story(order())
    story.play(calls("look", "save", "ping"), says("done"))
    assert story.actions[1:3] == [Judge(("call_1", "call_2", "call_3")), Execute(("call_1", "call_2", "call_3"))]


def test_concurrency_bounds_the_calls_that_run_at_once() -> None:
    story = Story(order(concurrency=2))
    story.play(calls("look", "save", "ping"), says("done"))
    assert [action for action in story.actions if isinstance(action, Execute)] == [
        Execute(("call_1", "call_2")),
        Execute(("call_3",)),
    ]


AGENTS = tuple([ToolDefinition(name, kind="builtin") for name in ("agent_ann", "agent_bob", "look", "save")])


@pytest.mark.parametrize(
    ("limits", "executed"),
    [
        ({"concurrency": 1, "agent_concurrency": 5}, [(1,), (2, 3, 4), (5,), (6,)]),
        ({"concurrency": 1, "agent_concurrency": 2}, [(1,), (2, 3), (4,), (5,), (6,)]),
        ({"concurrency": 8, "agent_concurrency": 1}, [(1,), (2,), (3,), (4,), (5, 6)]),
        ({"concurrency": None, "agent_concurrency": 5}, [(1,), (2, 3, 4), (5, 6)]),
        ({"concurrency": 4, "agent_concurrency": None}, [(1, 2, 3, 4), (5, 6)]),
        ({"agent_concurrency": 5, "parallel_tool_calls": False}, [(1,), (2,), (3,), (4,), (5,), (6,)]),
    ],
)
def test_agents_that_are_called_next_to_each_other_work_at_once_and_tools_by_concurrency(
    limits: Json, executed: list[tuple[int, ...]]
) -> None:
    story = Story(order(tools=AGENTS, **limits))
    story.play(calls("save", "agent_ann", "agent_bob", "agent_ann", "look", "save"), says("done"))
    made = [action.call_ids for action in story.actions if isinstance(action, Execute)]
    assert made == [tuple([f"call_{number}" for number in group]) for group in executed]


def test_a_tool_of_another_kind_is_no_agent_whatever_its_name() -> None:
    tools = (ToolDefinition("agent_ann", kind="mcp"), ToolDefinition("agent_bob", kind="builtin"))
    spec = order(tools=tools, concurrency=1, agent_concurrency=5, tool_seconds=2.0)
    story = Story(spec)
    story.play(calls("agent_ann", "agent_bob", "agent_ann"), says("done"))
    assert [len(action.call_ids) for action in story.actions if isinstance(action, Execute)] == [1, 1, 1]
    assert [spec.tool_seconds(tool) for tool in tools] == [2.0, None]


@pytest.mark.requirement("C-T9", "C78")
def test_calls_are_run_one_by_one_without_parallel_tool_calls() -> None:
    story = Story(order(parallel_tool_calls=False, concurrency=8))
    story.play(calls("look", "save"), says("done"))
    assert story.actions[2:4] == [Execute(("call_1",)), Execute(("call_2",))]


@pytest.mark.parametrize("completion", [tuple, lambda ids: ids[::-1], lambda ids: (ids[1], ids[2], ids[0])])
def test_outputs_are_in_call_order_whatever_the_completion_order(completion: object) -> None:
    story = Story(order(), completion=completion, tools={"look": "a", "save": "b", "ping": "c"})  # type: ignore[arg-type]
    run = story.play(calls("look", "save", "ping"), says("done"))
    assert told(story.requests[1].items)[4:] == ["call_1 -> a", "call_2 -> b", "call_3 -> c"]
    assert told(run.output)[3:6] == ["call_1 -> a", "call_2 -> b", "call_3 -> c"]


@pytest.mark.requirement("A12")
def test_denied_and_executed_calls_are_answered_in_call_order() -> None:
    story = Story(order(concurrency=1), gate={"save": "deny"})
    run = story.play(calls("save", "look", "save", "look"), says("done"))
    assert told(run.output)[4:8] == ["call_1 !> no save", "call_2 -> ok", "call_3 !> no save", "call_4 -> ok"]
    assert story.executed == ["call_2", "call_4"]


@pytest.mark.requirement("C-T8")
def test_denied_call_is_answered_and_the_model_goes_on() -> None:
    story = Story(order(), gate={"look": "deny"})
    story.play(calls("look"), says("then not"))
    assert story.end == ("completed", Reason.FINAL_ANSWER)
    assert told(story.requests[1].items)[-1] == "call_1 !> no look"


def test_a_denied_call_that_goes_back_to_the_model_is_not_shown_to_the_client() -> None:
    back = CallJudged("", "deny", "known", "there is no such tool", is_returned=True)
    story = Story(order(), gate={"gone": back, "lost": back, "save": "deny"})
    run = story.play(calls("gone", "look", text="Let me see."), calls("lost", "save"), says("done"))
    assert told(run.output) == [
        "assistant: Let me see.", "call_2: look {}", "call_2 -> ok", "call_4: save {}", "call_4 !> no save", "assistant: done",
    ]  # fmt: skip
    assert told(story.requests[2].items)[2:] == [
        "call_1: gone {}", "call_2: look {}", "call_1 !> there is no such tool", "call_2 -> ok",
        "call_3: lost {}", "call_4: save {}", "call_3 !> there is no such tool", "call_4 !> no save",
    ]  # fmt: skip


@pytest.mark.requirement("A5")
def test_output_of_a_tool_may_have_parts() -> None:
    story = Story(order(), tools={"look": (InputText("a"), InputText("b"))})
    run = story.play(calls("look"), says("done"))
    assert run.output[1] == FunctionCallOutput("call_1", (InputText("a"), InputText("b")), id="fco_1")


def test_output_takes_its_id_from_the_item_of_its_call() -> None:
    story = Story(order())
    run = story.play(Turn((FunctionCall("call_x", "look", "{}", id="fc_y"),)))
    assert run.output[1] == FunctionCallOutput("call_x", "ok", id="fco_y")


def test_output_of_a_call_without_an_item_id_takes_it_from_the_call_id() -> None:
    call, said = FunctionCall("call_x", "look", "{}"), ApprovalResponse("mcpr_call_x", approve=True)
    story = Story(order(input=(said,)), History(Chain([Entry(user("go"), "input"), Entry(call, "model", 1)]), (call,)))
    run = story.play()
    assert run.output[1:] == (FunctionCallOutput("call_x", "ok", id="fco_x"),)


def test_error_output_is_marked_and_others_are_not() -> None:
    story = Story(order(), tools={"look": Failed("bad")})
    run = story.play(calls("look", "save"), says("done"))
    assert run.output[2:4] == (
        FunctionCallOutput("call_1", "bad", id="fco_1", is_error=True),
        FunctionCallOutput("call_2", "ok", id="fco_2"),
    )


@pytest.mark.requirement("S19")
def test_tools_used_are_unique_and_in_the_order_of_first_use() -> None:
    story = Story(order(), gate={"ping": "deny"})
    run = story.play(calls("save", "look", "ping"), calls("look", "save"), says("done"))
    assert run.tools_used == ("save", "look")


def test_progress_of_a_tool_changes_nothing() -> None:
    story = Story(order())
    story.apply(TurnStarted())
    story.speak(calls("look"))
    before = story.apply(CallJudged("call_1", "allow", "kind"), ToolStarted("call_1"))
    assert story.apply(ToolProgress("call_1", "half way")).calls == before.calls


@pytest.mark.requirement("A2", "A15", "A25", "A29", "A30", "A35", "A37")
def test_call_for_the_client_pauses_the_run() -> None:
    story = Story(order())
    run = story.play(calls("choose", text="your turn"))
    assert story.end == ("requires_action", Reason.CLIENT_ACTION)
    assert told(run.output) == ["assistant: your turn", "call_1: choose {}"]
    assert [call.item.call_id for call in run.open_calls] == ["call_1"]


@pytest.mark.requirement("A15")
def test_new_run_takes_the_output_of_the_client_up() -> None:
    story = Story(order())
    story.play(calls("choose"))
    later = story.then(FunctionCallOutput("call_1", "red"))
    later.play(says("red it is"))
    assert told(later.requests[0].items) == ["user: go", "call_1: choose {}", "call_1 -> red"]
    assert later.end == ("completed", Reason.FINAL_ANSWER)
    assert told(later.run.output) == ["assistant: red it is"]


@pytest.mark.requirement("A38", "S3")
def test_server_calls_of_a_mixed_turn_are_run_before_the_run_pauses() -> None:
    story = Story(order())
    run = story.play(calls("look", "choose", "save"))
    assert story.end == ("requires_action", Reason.CLIENT_ACTION)
    assert story.executed == ["call_1", "call_3"]
    assert told(run.output)[3:] == ["call_1 -> ok", "call_3 -> ok"]
    assert [call.item.call_id for call in run.calls] == ["call_2"]


def test_mixed_turn_goes_on_once_the_client_has_answered() -> None:
    story = Story(order())
    story.play(calls("look", "choose"))
    later = story.then(FunctionCallOutput("call_2", "red"))
    later.play(says("done"))
    assert told(later.requests[0].items)[3:] == ["call_1 -> ok", "call_2 -> red"]


@pytest.mark.requirement("S3", "A24")
def test_executor_may_hand_its_call_to_the_client_at_run_time() -> None:
    story = Story(order())
    story.apply(TurnStarted())
    story.speak(calls("look"))
    story.apply(CallJudged("call_1", "allow", "kind"), ToolStarted("call_1"))
    run = story.apply(CallJudged("call_1", "client", "executor"))
    assert run.call("call_1") == Call(run.calls[0].item, 0, verdict="client", policy="executor")
    story.play()
    assert story.end == ("requires_action", Reason.CLIENT_ACTION)


def test_call_to_an_unknown_tool_is_answered_and_the_model_goes_on() -> None:
    story = Story(order())
    run = story.play(calls("levitate"), says("I cannot"))
    assert told(run.output)[1] == "call_1 !> there is no tool levitate"


def test_call_that_needs_approval_pauses_the_run_with_a_request() -> None:
    story = Story(order(), gate={"save": "ask"})
    run = story.play(calls(Made("save", '{"a":1}')))
    assert story.end == ("requires_action", Reason.APPROVAL_NEEDED)
    assert run.output[1] == ApprovalRequest("mcpr_1", "save", '{"a":1}', call_id="call_1")
    assert story.executed == []


def test_approval_comes_before_client_action_as_the_reason() -> None:
    story = Story(order(), gate={"save": "ask"})
    story.play(calls("choose", "save"))
    assert story.end == ("requires_action", Reason.APPROVAL_NEEDED)


def test_call_that_a_person_approved_is_judged_again_and_run() -> None:
    story = Story(order(), gate={"save": "ask"})
    story.play(calls("save"))
    later = story.then(ApprovalResponse("mcpr_1", approve=True))
    assert next_action(later.run) == Judge(("call_1",))
    later.play(says("saved"))
    assert later.verdicts == [("call_1", "allow", "approval")]
    assert told(later.requests[0].items) == ["user: go", "call_1: save {}", "call_1 -> ok"]
    assert told(later.run.output) == ["call_1: save {}", "call_1 -> ok", "assistant: saved"]
    assert later.run.output[0] == FunctionCall("call_1", "save", "{}", id="fc_1", approval="mcpr_1")
    assert told([entry.item for entry in later.run.own_entries]) == ["mcpr_1: yes", "call_1 -> ok", "assistant: saved"]


def test_call_that_a_person_refused_is_judged_again_and_answered() -> None:
    story = Story(order(), gate={"save": "ask"})
    story.play(calls("save"))
    later = story.then(ApprovalResponse("mcpr_1", approve=False, reason="not today"))
    later.play(says("as you wish"))
    assert later.executed == []
    assert told(later.run.output) == ["call_1: save {}", "call_1 !> not today", "assistant: as you wish"]


def test_policies_may_deny_a_call_in_spite_of_an_approval() -> None:
    story = Story(order(), gate={"save": "ask"})
    story.play(calls("save"))
    later = story.then(ApprovalResponse("mcpr_1", approve=True))
    later.apply(CallJudged("call_1", "deny", "rate", "too often"))
    later.play(says("later then"))
    assert told(later.run.output) == ["call_1: save {}", "call_1 !> too often", "assistant: later then"]


def test_some_calls_may_be_approved_and_others_refused() -> None:
    story = Story(order(), gate={"save": "ask"})
    story.play(calls("save", "look", "save"))
    later = story.then(ApprovalResponse("mcpr_1", approve=False), ApprovalResponse("mcpr_3", approve=True))
    later.play(says("done"))
    assert later.executed == ["call_3"]


def test_freed_calls_are_counted_from_the_start() -> None:
    story = Story(order(), gate={"save": "ask"})
    story.play(calls("look", "save", "save"))
    later = story.then(ApprovalResponse("mcpr_2", approve=True), ApprovalResponse("mcpr_3", approve=True))
    assert [(call.item.call_id, call.position) for call in later.run.calls] == [("call_2", 0), ("call_3", 1)]


def test_approval_and_client_output_may_be_given_together() -> None:
    story = Story(order(), gate={"save": "ask"})
    story.play(calls("choose", "save"))
    later = story.then(ApprovalResponse("mcpr_2", approve=True), FunctionCallOutput("call_1", "red"))
    later.play(says("done"))
    assert told(later.requests[0].items)[3:] == ["call_1 -> red", "call_2 -> ok"]


def test_approvals_are_never_shown_to_the_model() -> None:
    story = Story(order(), gate={"save": "ask"})
    story.play(calls("save"))
    later = story.then(ApprovalResponse("mcpr_1", approve=True))
    later.play(says("done"))
    third = later.then(user("thanks"))
    third.play(says("welcome"))
    assert told(third.requests[0].items) == [
        "user: go",
        "call_1: save {}",
        "call_1 -> ok",
        "assistant: done",
        "user: thanks",
    ]


def test_run_knows_what_was_said_about_a_call() -> None:
    story = Story(order(), gate={"save": "ask"})
    story.play(calls("save", "save"))
    no, yes = ApprovalResponse("mcpr_1", approve=False), ApprovalResponse("mcpr_2", approve=True)
    run = story.then(no, yes).run
    assert [run.approval(call.item) for call in run.calls] == [no, yes]
    assert run.approval(FunctionCall("call_3", "save", "{}", id="fc_3")) is None
    assert story.run.approval(story.run.calls[0].item) is None


def test_freed_call_that_fails_counts_as_an_error() -> None:
    story = Story(order(max_errors_in_row=1), gate={"save": "ask"}, tools={"save": Failed("disk full")})
    story.play(calls("save"))
    later = story.then(ApprovalResponse("mcpr_1", approve=True))
    later.play()
    assert later.end == ("failed", Reason.ERRORS_IN_ROW)


def test_stop_waits_for_the_other_freed_calls() -> None:
    story = Story(order(), gate={"save": "ask", "look": "ask"})
    story.play(calls("save", "look"))
    later = story.then(ApprovalResponse("mcpr_1", approve=True), ApprovalResponse("mcpr_2", approve=True))
    later.apply(CallJudged("call_1", "deny", "budget", "too dear", Reason.BUDGET))
    later.play()
    assert later.end == ("incomplete", Reason.BUDGET)
    assert told(later.run.output) == ["call_1: save {}", "call_2: look {}", "call_1 !> too dear", "call_2 -> ok"]


def test_answer_to_a_call_that_was_never_started_is_taken() -> None:
    story = Story(order())
    story.apply(TurnStarted())
    story.speak(Turn((Made("look"),)))
    run = story.apply(ToolEnded("call_1", "somebody else did it"))
    assert (run.calls, next_action(run)) == ((), CallModel())


def test_a_person_is_asked_about_the_tool_of_a_server_by_the_server_s_own_name_for_it() -> None:
    call = FunctionCall("call_1", "look", "{}", id="fc_1", server=ServerTool("garden", "look around"))
    run = Story(order(), gate={"look": "ask"}).play(Turn((call,)))
    assert run.output[1] == ApprovalRequest("mcpr_1", "look around", "{}", "garden", "call_1")


def listed(label: str) -> Unknown:
    return Unknown({"type": "mcp_list_tools", "id": f"mcpl_{label}", "server_label": label, "tools": []})


def test_what_servers_have_opens_the_answer_and_is_not_told_to_the_model() -> None:
    story = Story(order(listed=(listed("garden"), listed("house"))))
    run = story.play(says("done"))
    assert run.output[:2] == (listed("garden"), listed("house"))
    assert told(story.requests[0].items) == ["user: go"]
    assert [entry.origin for entry in run.transcript] == ["input", "tool", "tool", "model"]


def test_a_list_that_is_in_the_conversation_already_is_not_repeated() -> None:
    story = Story(order(listed=(listed("garden"),)))
    story.play(says("done"))
    later = story.then(user("again"), listed=(listed("garden"), listed("house")))
    later.play(says("done"))
    assert later.run.output[0] == listed("house")
    assert len(later.run.output) == 2


def test_a_list_that_the_client_sends_along_is_not_repeated() -> None:
    story = Story(
        order(
            input=(user("go"), listed("garden"), Unknown({"type": "other", "server_label": "house"})),
            listed=(listed("garden"), listed("house")),
        )
    )
    run = story.play(says("done"))
    assert run.output[0] == listed("house")
    assert len(story.requests[0].items) == 2


def test_calls_that_were_allowed_are_kept_in_the_order_of_their_verdicts() -> None:
    story = Story(order(), gate={"save": "deny"})
    run = story.play(calls("look", "save", "ping"), calls("choose", "look"))
    assert [call.call_id for call in run.allowed] == ["call_1", "call_3", "call_5"]
    assert len(run.allowed) == run.calls_allowed
    assert len(Story(order()).run.allowed) == 0
