"""The shapes that the Open Responses standard (release 2026-04-24) prescribes: what must be there, and of which type.

More fields than these are allowed. A field with a default may be left out, but is never null unless it says so.
"""

from typing import Any, Literal

from msgspec import UNSET, Struct, UnsetType

State = Literal["in_progress", "completed", "incomplete"]
Choice = Literal["none", "auto", "required"]


class UrlCitation(Struct, tag_field="type", tag="url_citation"):
    url: str
    start_index: int
    end_index: int
    title: str


class InputText(Struct, tag_field="type", tag="input_text"):
    text: str


class InputImage(Struct, tag_field="type", tag="input_image"):
    image_url: str | None
    detail: Literal["low", "high", "auto"]


class InputFile(Struct, tag_field="type", tag="input_file"):
    filename: str | UnsetType = UNSET
    file_url: str | UnsetType = UNSET


class OutputText(Struct, tag_field="type", tag="output_text"):
    text: str
    annotations: list[UrlCitation]
    logprobs: list[dict[str, Any]] | UnsetType = UNSET


class Refusal(Struct, tag_field="type", tag="refusal"):
    refusal: str


class SummaryText(Struct, tag_field="type", tag="summary_text"):
    text: str


class ReasoningText(Struct, tag_field="type", tag="reasoning_text"):
    text: str


Part = InputText | InputImage | InputFile | OutputText | Refusal | SummaryText | ReasoningText


class Message(Struct, tag_field="type", tag="message"):
    id: str
    status: State
    role: Literal["user", "assistant", "system", "developer"]
    content: list[Part]
    phase: Literal["commentary", "final_answer"] | UnsetType = UNSET


class FunctionCall(Struct, tag_field="type", tag="function_call"):
    id: str
    call_id: str
    name: str
    arguments: str
    status: State


class FunctionCallOutput(Struct, tag_field="type", tag="function_call_output"):
    id: str
    call_id: str
    output: str | list[InputText | InputImage | InputFile]
    status: State


class Reasoning(Struct, tag_field="type", tag="reasoning"):
    id: str
    summary: list[Part]
    content: list[Part] | UnsetType = UNSET
    encrypted_content: str | UnsetType = UNSET


class Compaction(Struct, tag_field="type", tag="compaction"):
    id: str
    encrypted_content: str
    created_by: str | UnsetType = UNSET


Item = Message | FunctionCall | FunctionCallOutput | Reasoning | Compaction


class InputDetails(Struct):
    cached_tokens: int


class OutputDetails(Struct):
    reasoning_tokens: int


class Usage(Struct):
    input_tokens: int
    output_tokens: int
    total_tokens: int
    input_tokens_details: InputDetails
    output_tokens_details: OutputDetails


class FunctionTool(Struct, tag_field="type", tag="function"):
    name: str
    description: str | None
    parameters: dict[str, Any] | None
    strict: bool | None


class OneTool(Struct, tag_field="type", tag="function"):
    name: str | UnsetType = UNSET


class AllowedTools(Struct, tag_field="type", tag="allowed_tools"):
    tools: list[OneTool]
    mode: Choice


class Format(Struct):
    type: Literal["text", "json_object", "json_schema"]


class Text(Struct):
    format: Format
    verbosity: Literal["low", "medium", "high"] | UnsetType = UNSET


class Effort(Struct):
    effort: Literal["none", "low", "medium", "high", "xhigh"] | None
    summary: Literal["concise", "detailed", "auto"] | None


class Incomplete(Struct):
    reason: str


class Error(Struct):
    code: str
    message: str


class Response(Struct):
    id: str
    object: Literal["response"]
    created_at: int
    completed_at: int | None
    status: str
    incomplete_details: Incomplete | None
    model: str
    previous_response_id: str | None
    instructions: str | None
    output: list[Item]
    error: Error | None
    tools: list[FunctionTool]
    tool_choice: Choice | OneTool | AllowedTools
    truncation: Literal["auto", "disabled"]
    parallel_tool_calls: bool
    text: Text
    top_p: float
    presence_penalty: float
    frequency_penalty: float
    top_logprobs: int
    temperature: float
    reasoning: Effort | None
    usage: Usage | None
    max_output_tokens: int | None
    max_tool_calls: int | None
    store: bool
    background: bool
    service_tier: str
    metadata: dict[str, str]
    safety_identifier: str | None
    prompt_cache_key: str | None


class CompactedResponse(Struct):
    id: str
    object: Literal["response.compaction"]
    output: list[Item]
    created_at: int
    usage: Usage


class Told(Struct, tag_field="type"):
    sequence_number: int


class OfResponse(Told):
    response: Response


class Created(OfResponse, tag="response.created"): ...


class Queued(OfResponse, tag="response.queued"): ...


class InProgress(OfResponse, tag="response.in_progress"): ...


class Completed(OfResponse, tag="response.completed"): ...


class Failed(OfResponse, tag="response.failed"): ...


class Ended(OfResponse, tag="response.incomplete"): ...


class OfItem(Told):
    output_index: int
    item: Item


class ItemAdded(OfItem, tag="response.output_item.added"): ...


class ItemDone(OfItem, tag="response.output_item.done"): ...


class OfPart(Told):
    item_id: str
    output_index: int
    content_index: int


class PartAdded(OfPart, tag="response.content_part.added"):
    part: Part


class PartDone(OfPart, tag="response.content_part.done"):
    part: Part


class TextDelta(OfPart, tag="response.output_text.delta"):
    delta: str
    logprobs: list[dict[str, Any]] | UnsetType = UNSET


class TextDone(OfPart, tag="response.output_text.done"):
    text: str
    logprobs: list[dict[str, Any]] | UnsetType = UNSET


class ArgumentsDelta(Told, tag="response.function_call_arguments.delta"):
    item_id: str
    output_index: int
    delta: str


class ArgumentsDone(Told, tag="response.function_call_arguments.done"):
    item_id: str
    output_index: int
    arguments: str


class ErrorPayload(Struct):
    type: str
    code: str | None
    message: str
    param: str | None


class ErrorTold(Told, tag="error"):
    error: ErrorPayload


Event = (
    Created | Queued | InProgress | Completed | Failed | Ended | ItemAdded | ItemDone | PartAdded | PartDone
    | TextDelta | TextDone | ArgumentsDelta | ArgumentsDone | ErrorTold
)  # fmt: skip


class SocketError(Struct):
    code: str
    message: str
    type: str


class SocketErrorTold(Struct, tag_field="type", tag="error"):
    """What a WebSocket answers to a turn that could not begin."""

    status: int
    error: SocketError
