"""The messages of a stored request: the items that its run was given, as a chat has them.

What an assistant thought, said and called in a row is one message. A chat has no words for what servers' tools did: that is in
the input items of the response.
"""

from collections.abc import Iterator, Sequence

from msgspec import UNSET, Struct, UnsetType

from mainspring.core.items import (
    FunctionCall,
    FunctionCallOutput,
    InputImage,
    InputText,
    Item,
    Json,
    Message,
    OutputText,
    Part,
    Reasoning,
    Refusal,
)
from mainspring.features.chat_completions.chat_wire import render_call
from mainspring.http.plain_answers import list_thoughts


class StoredMessage(Struct, kw_only=True):
    """`content_parts` are the texts and images of a message that is more than one text."""

    id: str
    role: str
    content: str | None = None
    content_parts: tuple[Json, ...] | None = None
    name: None = None
    refusal: str | None = None
    reasoning_content: str | UnsetType = UNSET
    tool_calls: tuple[Json, ...] | UnsetType = UNSET
    tool_call_id: str | UnsetType = UNSET


def list_stored_messages(completion: str, items: Sequence[Item]) -> list[StoredMessage]:
    """Each has an id that follows from that of the completion and its place."""
    messages = list[StoredMessage]()
    for item in items:
        match item:
            case Message(role="assistant") | Reasoning() | FunctionCall():
                if not messages or not _continues(messages[-1], item):
                    messages.append(StoredMessage(id="", role="assistant"))
                _add_said(messages[-1], item)
            case Message():
                messages.append(StoredMessage(id="", role=item.role, **_render_content(item.content)))
            case FunctionCallOutput(output=str(output)):
                messages.append(StoredMessage(id="", role="tool", tool_call_id=item.call_id, content=output))
            case FunctionCallOutput(output=tuple(parts)):
                messages.append(StoredMessage(id="", role="tool", tool_call_id=item.call_id, **_render_content(parts)))
            case _:
                pass
    for place, message in enumerate(messages):
        message.id = f"{completion}-{place}"
    return messages


def _continues(last: StoredMessage, item: Item) -> bool:
    """Whether an assistant's item is of the last message: thoughts come before words, and words before calls."""
    if last.role != "assistant" or isinstance(item, FunctionCall):
        return last.role == "assistant"
    has_spoken = last.content is not None or last.refusal is not None or last.tool_calls is not UNSET
    return not has_spoken and (isinstance(item, Message) or last.reasoning_content is UNSET)


def _add_said(message: StoredMessage, item: Item) -> None:
    match item:
        case Reasoning():
            message.reasoning_content = "\n\n".join([text for _, text in list_thoughts(item)]) or UNSET
        case FunctionCall():
            message.tool_calls = (*(message.tool_calls or ()), render_call(item))
        case Message():
            message.content = "".join([part.text for part in item.content if isinstance(part, OutputText | InputText)]) or None
            message.refusal = "".join([part.refusal for part in item.content if isinstance(part, Refusal)]) or None


def _render_content(parts: Sequence[Part]) -> Json:
    text = "".join([part.text for part in parts if isinstance(part, InputText)])
    is_plain = len(parts) == 1 and isinstance(parts[0], InputText)
    return {"content": text or None, "content_parts": None if is_plain else tuple(_list_parts(parts))}


def _list_parts(parts: Sequence[Part]) -> Iterator[Json]:
    for part in parts:
        match part:
            case InputText(text):
                yield {"type": "text", "text": text}
            case InputImage(image_url=str(url)):
                yield {"type": "image_url", "image_url": {"url": url, "detail": part.detail}}
            case _:
                pass
