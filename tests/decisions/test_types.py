"""The types of the decision runtime: what they hold, and every rule that refuses the rest."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainspring.core.items import Json
from mainspring.core.spec import PRESETS
from mainspring_tasks.answer_format import SCHEMA
from mainspring_tasks.decision_types import (
    ALLOWED_TOOLS,
    DEFAULT_TEMPERATURE,
    MAX_HISTORY_MESSAGES,
    MAX_MESSAGE_LENGTH,
    MAX_RESPONSE_TOKENS,
    MAX_TOOL_ITERATIONS,
    PENDING_LIFETIME,
    AgentDecision,
    DecisionContext,
    DecisionType,
    FunctionCall,
    FunctionResponse,
    IntentType,
    LLMMessage,
    LLMRequest,
    LLMResponse,
    Message,
    PendingAction,
    TokenUsage,
    ToolCall,
    ToolDeclaration,
    ToolResult,
    UserIntent,
)
from mainspring_tasks.task_tools import TOOLS

NOW = datetime(2026, 3, 2, 9, tzinfo=UTC)
ID = "0b7e8f5c-3d1a-4c55-9a51-6f2f0a3c9d10"
PENDING = PendingAction(ID, "Buy milk", NOW, NOW + PENDING_LIFETIME)
CALL = FunctionCall("add_task", {"description": "Buy milk"})
RESPONSE = FunctionResponse("add_task", {"success": True})

Make = Callable[[], object]


@pytest.mark.requirement("B14", "B15", "B16", "B17", "B18", "B19")
def test_limits_are_those_of_the_preset_that_decisions_run_with() -> None:
    assert {"add_task", "list_tasks", "update_task", "complete_task", "delete_task"} == ALLOWED_TOOLS
    assert tuple(tool.name for tool in TOOLS if tool.name in ALLOWED_TOOLS) == tuple(tool.name for tool in TOOLS)
    preset = PRESETS["decision"]
    assert (MAX_TOOL_ITERATIONS, MAX_RESPONSE_TOKENS, DEFAULT_TEMPERATURE) == (5, 1024, 0.0)
    assert (MAX_MESSAGE_LENGTH, MAX_HISTORY_MESSAGES) == (4000, 20)
    assert (preset.limits.max_turns, preset.sampling.max_turn_tokens, preset.sampling.temperature) == (5, 1024, 0.0)
    assert (preset.window.max_chars, preset.window.max_messages) == (4000, 20)


@pytest.mark.requirement("B2", "B3", "S9")
@pytest.mark.parametrize(
    ("make", "rule"),
    [
        (lambda: LLMMessage("system", "x"), "LLMMessage.role must be one of assistant, function, user, not `system`"),  # type: ignore[arg-type]
        (lambda: LLMMessage("user"), "LLMMessage.content is required for the role `user`"),
        (lambda: LLMMessage("user", ""), "LLMMessage.content is required for the role `user`"),
        (lambda: LLMMessage("assistant"), "LLMMessage.content is required for the role `assistant` without a function_call"),
        (lambda: LLMMessage("assistant", ""), "without a function_call"),
        (lambda: LLMMessage("user", "x", function_call=CALL), "LLMMessage.function_call is only for the role `assistant`"),
        (lambda: LLMMessage("function", "x", CALL, RESPONSE), "LLMMessage.function_call is only for the role `assistant`"),
        (lambda: LLMMessage("assistant", "x", function_response=RESPONSE), "LLMMessage.function_response is only for the role"),
        (lambda: LLMMessage("function", "x"), "LLMMessage.function_response is required for the role `function`"),
    ],
)
def test_message_that_breaks_a_rule_is_refused_by_name(make: Make, rule: str) -> None:
    with pytest.raises(ValueError) as refused:  # noqa: PT011 (the message is compared below)
        make()
    assert rule in str(refused.value)


@pytest.mark.requirement("B2", "B3")
def test_messages_of_each_role_are_taken() -> None:
    assert LLMMessage("user", "Hi").content == "Hi"
    assert LLMMessage("assistant", function_call=CALL).function_call is CALL
    assert LLMMessage("assistant", "Adding it.", CALL).content == "Adding it."
    assert LLMMessage("function", function_response=RESPONSE).function_response is RESPONSE


@pytest.mark.requirement("B4", "B5", "B14")
@pytest.mark.parametrize(
    ("name", "arguments", "rule"),
    [
        ("drop_table", {}, "FunctionCall.name must be one of add_task, complete_task, delete_task, list_tasks, update_task"),
        ("add_task", {}, "FunctionCall.arguments do not fit `add_task`"),
        ("add_task", {"title": "x"}, "'title' was unexpected"),
        ("add_task", {"description": ""}, "FunctionCall.arguments do not fit `add_task`"),
        ("add_task", {"description": "x" * 1001}, "FunctionCall.arguments do not fit `add_task`"),
        ("update_task", {"task_id": ID}, '"description" is a required property'),
        ("complete_task", {"task_id": 7}, "FunctionCall.arguments do not fit `complete_task`"),
        ("delete_task", {}, '"task_id" is a required property'),
        ("list_tasks", {"status": "late"}, "FunctionCall.arguments do not fit `list_tasks`"),
    ],
)
def test_call_of_another_tool_or_with_other_arguments_is_refused(name: str, arguments: Json, rule: str) -> None:
    with pytest.raises(ValueError) as refused:  # noqa: PT011
        FunctionCall(name, arguments)
    assert rule in str(refused.value)


@pytest.mark.requirement("S10")
def test_two_calls_of_one_tool_can_be_told_apart() -> None:
    first, second = FunctionCall("list_tasks", {}), FunctionCall("list_tasks", {})
    assert first.id != second.id
    assert FunctionCall("list_tasks", {}, "call_7").id == "call_7"


@pytest.mark.requirement("B6")
def test_function_response_names_a_tool_and_holds_its_result() -> None:
    result = ToolResult(True, {"id": ID}, duration_ms=1.5)
    response = FunctionResponse("complete_task", msgspec.to_builtins(result))
    assert msgspec.convert(response.response, ToolResult) == result
    with pytest.raises(ValueError, match=r"FunctionResponse\.name must be one of"):
        FunctionResponse("shell", {})


@pytest.mark.requirement("B7")
def test_request_is_cold_and_short_unless_told_otherwise() -> None:
    request = LLMRequest((LLMMessage("user", "Hi"),), ())
    assert (request.temperature, request.max_tokens) == (0.0, 1024)
    with pytest.raises(ValueError, match=r"LLMRequest\.messages must not be empty"):
        LLMRequest((), ())
    with pytest.raises(ValueError, match=r"LLMRequest\.max_tokens must be at least 1"):
        LLMRequest((LLMMessage("user", "Hi"),), (), max_tokens=0)


@pytest.mark.requirement("B8")
def test_response_holds_what_its_finish_reason_says() -> None:
    usage = TokenUsage(3, 4, 7)
    assert LLMResponse("stop", "Hi", usage=usage).usage == usage
    assert LLMResponse("tool_calls", None, (CALL,)).function_calls == (CALL,)
    assert LLMResponse("max_tokens", "Hel").content == "Hel"
    assert LLMResponse("error").content is None


@pytest.mark.requirement("B8")
@pytest.mark.parametrize(
    ("make", "rule"),
    [
        (lambda: LLMResponse("length", "Hi"), "finish_reason must be one of error, max_tokens, stop, tool_calls"),  # type: ignore[arg-type]
        (lambda: LLMResponse("stop"), "content is required when finish_reason is `stop`"),
        (lambda: LLMResponse("tool_calls", "Hi", ()), "function_calls is required when finish_reason is `tool_calls`"),
    ],
)
def test_response_without_what_its_finish_reason_promises_is_refused(make: Make, rule: str) -> None:
    with pytest.raises(ValueError, match=rf"LLMResponse\.{rule}"):
        make()


@pytest.mark.requirement("B9")
def test_declaration_needs_all_three() -> None:
    for tool in TOOLS:
        assert ToolDeclaration(tool.name, tool.description, tool.parameters or {}).name == tool.name
    with pytest.raises(msgspec.ValidationError, match="missing required field `parameters`"):
        msgspec.convert({"name": "x", "description": "y"}, ToolDeclaration)
    with pytest.raises(ValueError, match=r"ToolDeclaration\.name must not be empty"):
        ToolDeclaration(" ", "y", {})
    with pytest.raises(ValueError, match=r"ToolDeclaration\.description must not be empty"):
        ToolDeclaration("x", "", {})


@pytest.mark.requirement("B10")
@given(st.integers(0, 10**9), st.integers(0, 10**9), st.integers(-5, 5))
def test_total_is_the_sum_and_nothing_else(prompt: int, completion: int, off: int) -> None:
    total = prompt + completion + off
    if off:
        with pytest.raises(ValueError, match=r"TokenUsage\.total_tokens must be the sum"):
            TokenUsage(prompt, completion, total)
    else:
        assert TokenUsage(prompt, completion, total).total_tokens == total


@pytest.mark.requirement("B10")
def test_no_tokens_are_less_than_none() -> None:
    with pytest.raises(ValueError, match=r"TokenUsage\.completion_tokens must not be negative"):
        TokenUsage(1, -1, 0)


@pytest.mark.requirement("B1", "B11", "B18")
@pytest.mark.parametrize(
    ("make", "rule"),
    [
        (lambda: DecisionContext("", "Hi", "c"), "DecisionContext.user_id must not be empty"),
        (lambda: DecisionContext("ada", "", "c"), "DecisionContext.message must not be empty"),
        (lambda: DecisionContext("ada", "x" * 4001, "c"), "DecisionContext.message must have at most 4000 characters, not 4001"),
        (lambda: DecisionContext("ada", "Hi", " "), "DecisionContext.conversation_id must not be empty"),
        (lambda: Message("system", "x", NOW), "Message.role must be one of assistant, user"),  # type: ignore[arg-type]
        (lambda: Message("user", "", NOW), "Message.content must not be empty"),
        (lambda: Message("user", "x", NOW.replace(tzinfo=None)), "Message.timestamp must say its time zone"),
        (lambda: PendingAction(ID, "x", NOW, NOW, "DROP"), "PendingAction.action_type must be one of DELETE_TASK"),  # type: ignore[arg-type]
        (lambda: PendingAction("", "x", NOW, NOW + PENDING_LIFETIME), "PendingAction.task_id must not be empty"),
        (lambda: PendingAction(ID, "x", NOW, NOW), "PendingAction.expires_at must be after created_at"),
        (lambda: UserIntent(IntentType.AMBIGUOUS), "must name possible_intents when the intent is AMBIGUOUS"),
        (lambda: UserIntent(IntentType.AMBIGUOUS, 0.5, {"possible_intents": []}), "must name possible_intents"),
        (lambda: UserIntent(IntentType.LIST_TASKS, 1.1), "UserIntent.confidence must be between 0 and 1, not 1.1"),
        (lambda: UserIntent(IntentType.CREATE_TASK, 1, {}), "must have `description` when the intent is CREATE_TASK"),
        (lambda: UserIntent(IntentType.COMPLETE_TASK, 1, {}), "must have `task_reference` when the intent is COMPLETE_TASK"),
        (lambda: UserIntent(IntentType.DELETE_TASK, 1, {}), "must have `task_reference` when the intent is DELETE_TASK"),
        (
            lambda: UserIntent(IntentType.UPDATE_TASK, 1, {"task_reference": "milk"}),
            "must have `new_description` when the intent is UPDATE_TASK",
        ),
        (lambda: UserIntent("BUY_MILK"), "UserIntent.intent_type must be one of"),  # type: ignore[arg-type]
        (lambda: ToolCall("shell", {"user_id": "ada"}), "ToolCall.tool_name must be one of"),
        (lambda: ToolCall("add_task", {"description": "x"}), "ToolCall.parameters must have `user_id` for add_task"),
        (lambda: ToolCall("add_task", {"user_id": "ada"}), "ToolCall.parameters must have `description` for add_task"),
        (lambda: ToolCall("delete_task", {"user_id": "ada"}), "ToolCall.parameters must have `task_id` for delete_task"),
        (lambda: ToolCall("list_tasks", {"user_id": "ada"}, 0), "ToolCall.sequence must be at least 1, not 0"),
        (
            lambda: ToolResult(True, error="x"),
            "ToolResult.error and error_code are required if success is false, and not allowed otherwise",
        ),
        (lambda: ToolResult(False), "ToolResult.error and error_code are required if success is false"),
    ],
)
def test_what_breaks_a_rule_is_refused_by_type_and_field(make: Make, rule: str) -> None:
    with pytest.raises(ValueError) as refused:  # noqa: PT011
        make()
    assert rule in str(refused.value)


def test_the_ten_intents_and_six_decisions_are_all_there_are() -> None:
    assert {intent.value for intent in IntentType} == {
        "CREATE_TASK", "LIST_TASKS", "COMPLETE_TASK", "UPDATE_TASK", "DELETE_TASK", "GENERAL_CHAT", "AMBIGUOUS", "MULTI_INTENT",
        "CONFIRM_YES", "CONFIRM_NO",
    }  # fmt: skip
    assert {kind.value for kind in DecisionType} == {
        "INVOKE_TOOL", "RESPOND_ONLY", "ASK_CLARIFICATION", "REQUEST_CONFIRMATION", "EXECUTE_PENDING", "CANCEL_PENDING",
    }  # fmt: skip
    # A model says what it takes an answer for, in any language; what comes of it is ours to say.
    assert set(SCHEMA["properties"]["intent"]["enum"]) == {intent.value for intent in IntentType}


CALLS = st.lists(st.just(ToolCall("list_tasks", {"user_id": "ada"})), max_size=2).map(tuple)


@given(st.sampled_from(DecisionType), CALLS, st.booleans(), st.sampled_from([None, "", "Which one?"]))
def test_decision_is_taken_exactly_if_it_is_of_a_piece(
    kind: DecisionType, calls: tuple[ToolCall, ...], waits: bool, question: str | None
) -> None:
    callless = kind in ("RESPOND_ONLY", "ASK_CLARIFICATION", "REQUEST_CONFIRMATION", "CANCEL_PENDING")
    is_sound = (
        not (kind == "INVOKE_TOOL" and not calls)
        and not (callless and calls)
        and waits is (kind == "REQUEST_CONFIRMATION")
        and not (kind == "ASK_CLARIFICATION" and not question)
    )
    pending = PENDING if waits else None
    if not is_sound:
        with pytest.raises(ValueError, match=r"^AgentDecision\."):
            AgentDecision(kind, calls, "Hi", question, pending)
        return
    decision = AgentDecision(kind, calls, "Hi", question, pending)
    assert msgspec.json.decode(msgspec.json.encode(decision), type=AgentDecision) == decision


@pytest.mark.requirement("B1")
def test_types_are_frozen_and_read_back_as_they_were_written() -> None:
    context = DecisionContext("ada", "Hi", "c", (Message("user", "Hello", NOW),), PENDING)
    assert msgspec.json.decode(msgspec.json.encode(context), type=DecisionContext) == context
    with pytest.raises(AttributeError):
        context.user_id = "bob"  # type: ignore[misc]
    with pytest.raises(msgspec.ValidationError, match=r"PendingAction\.expires_at must be after created_at"):
        msgspec.convert(
            {"task_id": ID, "task_description": "x", "created_at": NOW, "expires_at": NOW - timedelta(1)}, PendingAction
        )
