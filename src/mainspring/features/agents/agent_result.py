"""The result of an agent's run in the terms of the iterative runtime. Pure views of the run."""

import re
from collections.abc import Sequence
from typing import Final

import msgspec
from msgspec import Struct
from msgspec.structs import asdict

from mainspring.core.events import Reason
from mainspring.core.items import FunctionCall, FunctionCallOutput, Json, Message, Refusal, text_of
from mainspring.core.model_request import request_for
from mainspring.core.reasons import Termination, termination
from mainspring.core.run import Run
from mainspring.core.spec import CONFIRM

RESULT: Final = "result"

_FENCE = re.compile(r"[ \t]*(`{3,}|~{3,})[^`]*")
# A block whose fences do not stand on lines of their own, as models write them too.
_BLOCK = re.compile(r"```(?:[A-Za-z0-9_+-]+(?=\s))?(.*?)```", re.DOTALL)


LIMIT_NAMES: Final = {
    "max_turns": "max_iterations",
    "max_tool_calls_per_turn": "max_tool_calls_per_iteration",
    "max_errors_in_row": "error_threshold",
    "tool_seconds": "tool_call_timeout_seconds",
}
"""What fields of `Limits` are called here."""


class ToolLoopConfig(Struct, frozen=True):
    """How an agent works until it is done. What is None is as its definition says, else as the server's settings do, else 20
    iterations, 5 calls in each, 3 errors in a row, 60 seconds, one call at a time. A `loop_detection_threshold` of 0 lets it
    repeat itself. With `enable_double_confirmation` a first text answer is asked about, in the words of `confirmation_prompt`;
    with `confirm_after_work` so is one that follows more work."""

    max_iterations: int | None = None
    max_tool_calls_per_iteration: int | None = None
    enable_double_confirmation: bool = True
    error_threshold: int | None = None
    tool_call_timeout_seconds: float | None = None
    loop_detection_threshold: int = 3
    concurrency: int | None = None
    confirmation_prompt: str | None = None
    confirm_after_work: bool = False

    def choose_question(self, own: str) -> str | None:
        """The question that follows a first text answer: as it is asked for, else the definition's own, else the usual one."""
        return (self.confirmation_prompt or own or CONFIRM) if self.enable_double_confirmation else None

    @property
    def limits(self) -> Json:
        """What is asked for, as fields of `Limits`."""
        given = asdict(self)
        asked = {name: given[told] for name, told in LIMIT_NAMES.items()} | {"concurrency": self.concurrency}
        return {name: value for name, value in asked.items() if value is not None}

    @property
    def max_repeats(self) -> int | None:
        return self.loop_detection_threshold or None


class ToolLoopState(Struct, frozen=True):
    """The state of a run. `render_messages` are those of the next request; `termination_reason` is empty until the run ends."""

    iterations: int
    total_tokens: int
    tool_calls_made: int
    tools_used: tuple[str, ...]
    messages: tuple[Json, ...]
    consecutive_errors: int
    termination_reason: Termination | str = ""


class AgentResult(Struct, frozen=True):
    """An answer in one turn. `run_id` is the run that gave it."""

    output: Json
    raw_response: str
    tokens_used: int
    model: str
    run_id: str = ""


class ToolLoopResult(Struct, frozen=True):
    """The result of a run, whatever ended it. `run_id` is that run; `error` says in words why it ended in `error`."""

    output: Json
    raw_response: str
    tokens_used: int
    model: str
    iterations: int
    tool_calls_made: int
    tools_used: tuple[str, ...]
    termination_reason: Termination
    run_id: str = ""
    error: str | None = None

    @property
    def agent_result(self) -> AgentResult:
        """The result without the counts of the loop."""
        return AgentResult(self.output, self.raw_response, self.tokens_used, self.model, self.run_id)


def read_result(run: Run) -> ToolLoopResult:
    """The result of an ended run. Counts the calls that were allowed, and includes the tokens of agents that it called."""
    said, ended = read_last_words(run), find_termination(run)
    return ToolLoopResult(
        output=parse_output(said, list_output_names(run)),
        raw_response=said,
        tokens_used=(run.usage + run.delegated.usage).total_tokens,
        model=run.spec.model,
        iterations=run.turns,
        tool_calls_made=run.calls_allowed,
        tools_used=run.tools_used,
        termination_reason=ended,
        run_id=run.spec.id,
        error=explain_lack(run) if ended == "error" else None,
    )


def read_last_words(run: Run) -> str:
    """The agent's last text, or its refusal."""
    if run.text:
        return run.text
    said = [entry.item for entry in run.transcript[run.base :] if entry.origin == "model" and not entry.hidden]
    messages = [item for item in said if isinstance(item, Message)]
    return "".join([part.refusal for item in messages[-1:] for part in item.content if isinstance(part, Refusal)])


def has_answered(run: Run) -> bool:
    """Whether there is an answer: a refusal or an empty text is none."""
    return run.reason is Reason.FINAL_ANSWER and bool(run.text.strip())


def find_termination(run: Run) -> Termination:
    """Why the run ended; `completed` only with an answer."""
    told = termination(run)
    return "error" if told == "completed" and not has_answered(run) else told


def explain_lack(run: Run) -> str:
    """Why there is no answer."""
    if run.error is not None:
        return run.error.message
    if run.reason is Reason.CONTENT_FILTER:
        return "a content filter stopped its answer"
    if run.reason is Reason.REFUSAL:
        return f"it refused: {read_last_words(run)}"
    return "it said nothing" if run.reason is Reason.FINAL_ANSWER else f"it ended by `{find_termination(run)}`"


def read_state(run: Run) -> ToolLoopState:
    return ToolLoopState(
        iterations=run.turns,
        total_tokens=(run.usage + run.delegated.usage).total_tokens,
        tool_calls_made=run.calls_allowed,
        tools_used=run.tools_used,
        messages=render_messages(run),
        consecutive_errors=run.errors_in_row,
        termination_reason=find_termination(run) if run.has_ended else "",
    )


def list_output_names(run: Run) -> tuple[str, ...]:
    return run.spec.charters[-1].outputs if run.spec.charters else ()


def render_messages(run: Run) -> tuple[Json, ...]:
    """The conversation as chat messages: system, user, assistant with its calls, tool, ..."""
    asked = request_for(run)
    told: list[Json] = [{"role": "system", "content": asked.instructions}] if asked.instructions else []
    names = {item.call_id: item.name for item in asked.items if isinstance(item, FunctionCall)}
    for item in asked.items:
        match item:
            case Message():
                told.append({"role": item.role, "content": item.text})
            case FunctionCall():
                _caller(told).setdefault("tool_calls", []).append(_call(item))
            case FunctionCallOutput():
                text = text_of(item.output)
                told.append({"role": "tool", "tool_call_id": item.call_id, "name": names[item.call_id], "content": text})
            case _:
                pass
    return tuple(told)


def _caller(told: list[Json]) -> Json:
    """The message that a call belongs to: the assistant's text before it in the same turn, or a new message."""
    if not told or told[-1]["role"] != "assistant":
        told.append({"role": "assistant", "content": None})
    return told[-1]


def _call(item: FunctionCall) -> Json:
    return {"id": item.call_id, "type": "function", "function": {"name": item.name, "arguments": item.arguments}}


def parse_output(text: str, outputs: Sequence[str] = ()) -> Json:
    """The fields of an answer. A JSON object is used as it is, also from a fenced block if it is the only one in the text; a JSON
    list goes under the first of `outputs`, or `result`, and so does other text, without a fence around all of it."""
    key = outputs[0] if outputs else RESULT
    bare = text.strip()
    blocks = _list_blocks(bare)
    inside = [value for block in blocks or _BLOCK.findall(bare) if isinstance(value := _json(block), dict | list)]
    for value in (_json(bare), *(inside if len(inside) == 1 else [])):
        match value:
            case dict() as fields:
                return fields
            case list() as values:
                return {key: values}
            case _:
                continue
    is_all = len(blocks) == 1 and bare.count("\n") == blocks[0].count("\n") + 2
    return {key: blocks[0] if is_all else text}


def _list_blocks(text: str) -> list[str]:
    """The contents of the fenced blocks of the text; none if the last has no end."""
    found: list[str] = []
    lines: list[str] = []
    fence = ""
    for line in text.split("\n"):
        if fence and line.strip() == fence:
            found.append("\n".join(lines))
            fence = ""
        elif fence:
            lines.append(line)
        elif (opening := _FENCE.fullmatch(line)) is not None:
            fence, lines = opening[1], []
    return [] if fence else found


def _json(text: str) -> object:
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
