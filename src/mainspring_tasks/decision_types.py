"""What a decision is made from and made of, and what is said to a model on the way. Each type refuses what breaks its rules.

Everything is frozen. A `ValueError` names the type, the field and the rule; read from JSON, it comes as
`msgspec.ValidationError`, which is one. Points in time know their zone.
"""

from collections.abc import Collection, Iterable
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final, Literal

from msgspec import Struct, field

from mainspring.core.ids import random_id
from mainspring.core.items import Json, ToolDefinition
from mainspring.tools.schema import Validators
from mainspring_tasks.server.task_definitions import TOOLS

ALLOWED_TOOLS: Final = frozenset(TOOLS)
MAX_TOOL_ITERATIONS: Final = 5
MAX_RESPONSE_TOKENS: Final = 1024
DEFAULT_TEMPERATURE: Final = 0.0
MAX_MESSAGE_LENGTH: Final = 4000
MAX_HISTORY_MESSAGES: Final = 20
PENDING_LIFETIME: Final = timedelta(minutes=5)

Role = Literal["user", "assistant", "function"]
FinishReason = Literal["stop", "tool_calls", "max_tokens", "error"]


class BrokenRule(ValueError):
    """A field that breaks its rule. `name` is the type and the field, as in `Message.role`."""

    def __init__(self, name: str, rule: str) -> None:
        super().__init__(f"{name} {rule}")
        self.field = name.partition(".")[2]


class IntentType(StrEnum):
    """What the user wants."""

    CREATE_TASK = "CREATE_TASK"
    LIST_TASKS = "LIST_TASKS"
    COMPLETE_TASK = "COMPLETE_TASK"
    UPDATE_TASK = "UPDATE_TASK"
    DELETE_TASK = "DELETE_TASK"
    GENERAL_CHAT = "GENERAL_CHAT"
    AMBIGUOUS = "AMBIGUOUS"
    MULTI_INTENT = "MULTI_INTENT"
    CONFIRM_YES = "CONFIRM_YES"
    CONFIRM_NO = "CONFIRM_NO"


class DecisionType(StrEnum):
    """What the agent decided to do."""

    INVOKE_TOOL = "INVOKE_TOOL"
    RESPOND_ONLY = "RESPOND_ONLY"
    ASK_CLARIFICATION = "ASK_CLARIFICATION"
    REQUEST_CONFIRMATION = "REQUEST_CONFIRMATION"
    EXECUTE_PENDING = "EXECUTE_PENDING"
    CANCEL_PENDING = "CANCEL_PENDING"


class Outcome(StrEnum):
    """How a decision came out. Listed by precedence: where several apply, the first one counts."""

    OUT_OF_SCOPE = "REFUSAL:OUT_OF_SCOPE"
    MISSING_PERMISSION = "REFUSAL:MISSING_PERMISSION"
    RATE_LIMITED = "REFUSAL:RATE_LIMITED"
    UNCLEAR_INTENT = "AMBIGUITY:UNCLEAR_INTENT"
    MULTIPLE_MATCHES = "AMBIGUITY:MULTIPLE_MATCHES"
    MISSING_CONTEXT = "AMBIGUITY:MISSING_CONTEXT"
    USER_INPUT = "ERROR:USER_INPUT"
    INTENT_CLASSIFICATION = "ERROR:INTENT_CLASSIFICATION"
    RESPONSE_GENERATION = "ERROR:RESPONSE_GENERATION"
    TOOL_INVOCATION = "ERROR:TOOL_INVOCATION"
    CLARIFICATION_ANSWERED = "SUCCESS:CLARIFICATION_ANSWERED"
    TASK_COMPLETED = "SUCCESS:TASK_COMPLETED"
    RESPONSE_GIVEN = "SUCCESS:RESPONSE_GIVEN"


class FunctionCall(Struct, frozen=True):
    """A call that the model wants made. It has an id, since one tool may be called twice."""

    name: str
    arguments: Json
    id: str = field(default_factory=lambda: random_id("call"))

    def __post_init__(self) -> None:
        _require_choice("FunctionCall.name", self.name, ALLOWED_TOOLS)
        if problems := _validators.errors(ToolDefinition(self.name, parameters=TOOLS[self.name].parameters), self.arguments):
            raise ValueError(f"FunctionCall.arguments do not fit `{self.name}`: {'; '.join(problems)}")
        _require_text("FunctionCall.id", self.id)


class FunctionResponse(Struct, frozen=True):
    """The result of a call: the serialised `ToolResult`. `id` is that of the call, if it has one."""

    name: str
    response: Json
    id: str = ""

    def __post_init__(self) -> None:
        _require_choice("FunctionResponse.name", self.name, ALLOWED_TOOLS)


class LLMMessage(Struct, frozen=True):
    role: Role
    content: str | None = None
    function_call: FunctionCall | None = None
    function_response: FunctionResponse | None = None

    def __post_init__(self) -> None:
        _require_choice("LLMMessage.role", self.role, ("user", "assistant", "function"))
        if self.function_call is not None and self.role != "assistant":
            raise ValueError(f"LLMMessage.function_call is only for the role `assistant`, not `{self.role}`")
        if self.function_response is not None and self.role != "function":
            raise ValueError(f"LLMMessage.function_response is only for the role `function`, not `{self.role}`")
        if self.role == "function":
            if self.function_response is None:
                raise ValueError("LLMMessage.function_response is required for the role `function`")
        elif not self.content and self.function_call is None:
            rule = "for the role `user`" if self.role == "user" else "for the role `assistant` without a function_call"
            raise ValueError(f"LLMMessage.content is required {rule}")


class ToolDeclaration(Struct, frozen=True):
    name: str
    description: str
    parameters: Json

    def __post_init__(self) -> None:
        _require_text("ToolDeclaration.name", self.name)
        _require_text("ToolDeclaration.description", self.description)


class LLMRequest(Struct, frozen=True):
    messages: tuple[LLMMessage, ...]
    tools: tuple[ToolDeclaration, ...]
    temperature: float = DEFAULT_TEMPERATURE
    max_tokens: int = MAX_RESPONSE_TOKENS

    def __post_init__(self) -> None:
        if not self.messages:
            raise ValueError("LLMRequest.messages must not be empty")
        if self.max_tokens < 1:
            raise ValueError(f"LLMRequest.max_tokens must be at least 1, not {self.max_tokens}")


class TokenUsage(Struct, frozen=True):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int

    def __post_init__(self) -> None:
        for name in ("prompt_tokens", "completion_tokens"):
            if getattr(self, name) < 0:
                raise ValueError(f"TokenUsage.{name} must not be negative, but is {getattr(self, name)}")
        if self.total_tokens != self.prompt_tokens + self.completion_tokens:
            raise ValueError(
                f"TokenUsage.total_tokens must be the sum, {self.prompt_tokens + self.completion_tokens}, not {self.total_tokens}"
            )


class LLMResponse(Struct, frozen=True):
    finish_reason: FinishReason
    content: str | None = None
    function_calls: tuple[FunctionCall, ...] | None = None
    usage: TokenUsage | None = None

    def __post_init__(self) -> None:
        _require_choice("LLMResponse.finish_reason", self.finish_reason, ("stop", "tool_calls", "max_tokens", "error"))
        if self.finish_reason == "tool_calls" and not self.function_calls:
            raise ValueError("LLMResponse.function_calls is required when finish_reason is `tool_calls`")
        if self.finish_reason == "stop" and self.content is None:
            raise ValueError("LLMResponse.content is required when finish_reason is `stop`")


class Message(Struct, frozen=True):
    """An earlier message of the conversation."""

    role: Literal["user", "assistant"]
    content: str
    timestamp: datetime

    def __post_init__(self) -> None:
        _require_choice("Message.role", self.role, ("user", "assistant"))
        _require_text("Message.content", self.content)
        _require_zone("Message.timestamp", self.timestamp)


class PendingAction(Struct, frozen=True):
    """A deletion that waits for confirmation."""

    task_id: str
    task_description: str
    created_at: datetime
    expires_at: datetime
    action_type: Literal["DELETE_TASK"] = "DELETE_TASK"

    def __post_init__(self) -> None:
        _require_choice("PendingAction.action_type", self.action_type, ("DELETE_TASK",))
        _require_text("PendingAction.task_id", self.task_id)
        _require_zone("PendingAction.created_at", self.created_at)
        _require_zone("PendingAction.expires_at", self.expires_at)
        if self.expires_at <= self.created_at:
            raise ValueError("PendingAction.expires_at must be after created_at")


class DecisionContext(Struct, frozen=True):
    """The input of a decision."""

    user_id: str
    message: str
    conversation_id: str
    message_history: tuple[Message, ...] = ()
    pending_confirmation: PendingAction | None = None

    def __post_init__(self) -> None:
        _require_text("DecisionContext.user_id", self.user_id)
        _require_text("DecisionContext.message", self.message)
        if len(self.message) > MAX_MESSAGE_LENGTH:
            rule = f"must have at most {MAX_MESSAGE_LENGTH} characters, not {len(self.message)}"
            raise BrokenRule("DecisionContext.message", rule)
        _require_text("DecisionContext.conversation_id", self.conversation_id)


class UserIntent(Struct, frozen=True):
    """What the user wants, as the model understood it. `extracted_params` is None or complete."""

    intent_type: IntentType
    confidence: float | None = None
    extracted_params: Json | None = None

    def __post_init__(self) -> None:
        _require_choice("UserIntent.intent_type", self.intent_type, IntentType)
        if self.confidence is not None and not 0 <= self.confidence <= 1:
            raise ValueError(f"UserIntent.confidence must be between 0 and 1, not {self.confidence}")
        if self.intent_type == IntentType.AMBIGUOUS and not (self.extracted_params or {}).get("possible_intents"):
            raise ValueError("UserIntent.extracted_params must name possible_intents when the intent is AMBIGUOUS")
        if self.extracted_params is not None:
            for name in _PARAMS.get(self.intent_type, ()):
                if not self.extracted_params.get(name):
                    raise ValueError(f"UserIntent.extracted_params must have `{name}` when the intent is {self.intent_type}")


class ToolCall(Struct, frozen=True):
    """A call as the decision names it, with the user, whom the model neither sees nor chooses."""

    tool_name: str
    parameters: Json
    sequence: int = 1

    def __post_init__(self) -> None:
        _require_choice("ToolCall.tool_name", self.tool_name, ALLOWED_TOOLS)
        required = ("user_id", *TOOLS[self.tool_name].parameters["required"])
        for name in required:
            if not self.parameters.get(name):
                raise ValueError(f"ToolCall.parameters must have `{name}` for {self.tool_name}")
        if self.sequence < 1:
            raise ValueError(f"ToolCall.sequence must be at least 1, not {self.sequence}")


class ToolResult(Struct, frozen=True):
    """The result of a tool, and how long it took. It has an error if and only if it failed."""

    success: bool
    data: object = None
    error: str | None = None
    error_code: str | None = None
    duration_ms: float = 0.0

    def __post_init__(self) -> None:
        if self.success is not (self.error is None and self.error_code is None):
            raise ValueError("ToolResult.error and error_code are required if success is false, and not allowed otherwise")


class AgentDecision(Struct, frozen=True):
    """What the agent decided, with the calls it has made."""

    decision_type: DecisionType
    tool_calls: tuple[ToolCall, ...] = ()
    response_text: str | None = None
    clarification_question: str | None = None
    pending_action: PendingAction | None = None

    def __post_init__(self) -> None:
        kind = self.decision_type
        _require_choice("AgentDecision.decision_type", kind, DecisionType)
        if kind == DecisionType.INVOKE_TOOL and not self.tool_calls:
            raise ValueError("AgentDecision.tool_calls needs at least one call when the decision is INVOKE_TOOL")
        if kind in _CALLLESS and self.tool_calls:
            raise ValueError(f"AgentDecision.tool_calls must be empty when the decision is {kind}")
        if (self.pending_action is not None) is not (kind == DecisionType.REQUEST_CONFIRMATION):
            raise ValueError(
                "AgentDecision.pending_action is required if the decision is REQUEST_CONFIRMATION, and not allowed otherwise"
            )
        if kind == DecisionType.ASK_CLARIFICATION and not self.clarification_question:
            raise ValueError("AgentDecision.clarification_question is required when the decision is ASK_CLARIFICATION")


_PARAMS: Final[dict[str, tuple[str, ...]]] = {
    IntentType.CREATE_TASK: ("description",),
    IntentType.COMPLETE_TASK: ("task_reference",),
    IntentType.DELETE_TASK: ("task_reference",),
    IntentType.UPDATE_TASK: ("task_reference", "new_description"),
}
_CALLLESS: Final = frozenset(
    {DecisionType.RESPOND_ONLY, DecisionType.ASK_CLARIFICATION, DecisionType.REQUEST_CONFIRMATION, DecisionType.CANCEL_PENDING}
)
_validators = Validators()


def choose_outcome(found: Collection[Outcome]) -> Outcome:
    """The first in precedence; `RESPONSE_GIVEN` if there is none."""
    return next((outcome for outcome in Outcome if outcome in found), Outcome.RESPONSE_GIVEN)


def parse_outcome(text: str) -> Outcome:
    """The outcome of this exact name. Raises `ValueError` that lists all of them."""
    try:
        return Outcome(text)
    except ValueError:
        raise ValueError(f"outcome_category must be one of {', '.join(Outcome)}, not `{text:.80}`") from None


def _require_text(name: str, value: str) -> None:
    if not value.strip():
        raise BrokenRule(name, "must not be empty")


def _require_choice(name: str, value: str, known: Iterable[str]) -> None:
    if value not in (choices := sorted(known)):
        raise BrokenRule(name, f"must be one of {', '.join(choices)}, not `{value:.80}`")


def _require_zone(name: str, value: datetime) -> None:
    if value.tzinfo is None:
        raise BrokenRule(name, "must say its time zone")
