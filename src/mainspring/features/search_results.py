"""What hosted searches have in common: results that fit an output, and annotations for what the model cites of them."""

from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from contextlib import aclosing
from typing import Final, TypeVar

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from mainspring.core.events import ItemDone, ModelEvent
from mainspring.core.items import CallForm, FunctionCallOutput, Item, Json, Message, OutputText, Part, ToolDefinition
from mainspring.core.model_request import ModelRequest
from mainspring.ports import CallContext, Provider
from mainspring.providers.wrapper import ProviderWrapper

# What a result takes beside its text, and all of them where the run has no limit.
OVERHEAD_CHARS: Final = 300
MOST_CHARS: Final = 60_000

Output = str | Sequence[Part]
ListNotes = Callable[[str], Sequence[Json]]
"""The annotations of a text."""


class CitedText(Struct, frozen=True):
    """A result as the model reads it. `cite` is the mark that the model puts behind what it takes from the text."""

    cite: str = ""
    text: str = ""


T = TypeVar("T", bound=CitedText)


async def find_room(context: CallContext) -> int:
    """How many characters an output may have: one that is cut off could not be read."""
    assert context.runs is not None, "calls are performed by an engine"
    limit = (await context.runs.attach(context.run_id)).run.spec.limits.tool_output_chars
    return MOST_CHARS if limit is None else limit


def fit_results(results: Iterable[T], room: int) -> tuple[T, ...]:
    """The first results that there is room for; the very first is shortened if need be."""
    fitting: list[T] = []
    room -= OVERHEAD_CHARS
    for result in results:
        size = len(msgspec.json.encode(result).decode()) + 1
        if size > room and not fitting:
            result = replace(result, text=result.text[: max(room - OVERHEAD_CHARS, 0) // 2])
        elif size > room:
            break
        room -= size
        fitting.append(result)
    return tuple(fitting)


class CitationProvider(ProviderWrapper):
    """Annotates what the model says with what it cites. `read_outputs` is given the outputs of the tools of this form, and
    returns what finds the annotations of a text, None if there are none. Runs without such a tool pass by."""

    def __init__(self, provider: Provider, form: CallForm, read_outputs: Callable[[Sequence[Output]], ListNotes | None]) -> None:
        super().__init__(provider)
        self._form, self._read_outputs = form, read_outputs

    def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
        if any(isinstance(tool, ToolDefinition) and tool.form == self._form for tool in request.tools):
            return self._annotate(request)
        return self._provider.stream(request)

    async def _annotate(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
        outputs = [item.output for item in request.items if isinstance(item, FunctionCallOutput) and item.form == self._form]
        list_notes = self._read_outputs(outputs)
        async with aclosing(self._provider.stream(request)) as events:
            async for event in events:
                if type(event) is ItemDone and list_notes is not None:
                    yield ItemDone(annotate(event.item, list_notes))
                else:
                    yield event


def annotate(item: Item, list_notes: ListNotes) -> Item:
    """A message with its annotations."""
    if not isinstance(item, Message):
        return item
    content = tuple([_annotate_part(part, list_notes) if isinstance(part, OutputText) else part for part in item.content])
    return replace(item, content=content)


def _annotate_part(part: OutputText, list_notes: ListNotes) -> OutputText:
    notes = list_notes(part.text)
    return replace(part, annotations=(*part.annotations, *notes)) if notes else part
