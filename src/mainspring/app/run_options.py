"""What a run may be told beside its prompt, by those who call the engine in Python."""

from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from typing import Literal, TypedDict

from mainspring.core.errors import InvalidRequest
from mainspring.core.items import Json, Tool
from mainspring.core.spec import Caller, Charter, Completion, Conversation, Limits, Sampling, ToolChoice, Window


class RunOptions(TypedDict, total=False):
    """What a run may be told beside its prompt: fields of `RunSpec`, and of its limits, completion, sampling and window."""

    id: str
    model: str
    instructions: str | None
    tools: Sequence[Tool]
    tool_choice: ToolChoice
    parallel_tool_calls: bool
    store: bool
    background: bool
    metadata: dict[str, str]
    tenant: str
    caller: Caller
    traceparent: str
    agent: str
    conversation: Conversation | None
    budget: Json | None
    charters: tuple[Charter, ...]
    temperature: float | None
    top_p: float | None
    text: Json | None
    reasoning: Json | None
    max_turn_tokens: int | None
    top_logprobs: int | None
    presence_penalty: float | None
    frequency_penalty: float | None
    max_output_tokens: int | None
    max_turns: int | None
    max_tool_calls: int | None
    max_tool_calls_per_turn: int | None
    max_tokens: int | None
    max_seconds: float | None
    max_errors_in_row: int | None
    max_repeats: int | None
    max_cycle: int | None
    turn_seconds: float | None
    turn_bytes: int | None
    tool_seconds: float | None
    tool_output_chars: int | None
    concurrency: int | None
    approval_seconds: float | None
    confirm: str | None
    close: str | None
    retry_model_errors: bool
    max_retries: int | None
    max_messages: int | None
    max_chars: int | None
    compact_threshold: int | None
    context_tokens: int | None
    truncation: Literal["auto", "disabled"]
    limits: Limits
    completion: Completion
    sampling: Sampling
    window: Window


def check_options(options: Iterable[str]) -> None:
    """Raises `InvalidRequest` for an option that no run has."""
    known = {*RunOptions.__annotations__, "previous"}
    for name in options:
        if name not in known:
            close = get_close_matches(name, known, 1)
            hint = f"did you mean `{close[0]}`?" if close else f"known: {', '.join(sorted(known))}"
            raise InvalidRequest(f"a run has no option `{name}`; {hint}", param=name)
