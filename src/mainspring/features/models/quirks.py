"""Habits of backends: how each shows in what was exchanged, and in what was learned, by whatever format.

`find_quirks` reads exchanges that were recorded while a backend was asked, and names what it finds. A backend that keeps to the
standard has none. Most of them need no care of anybody's: the adapter understands them; the doctor tells them all the same.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Final, NamedTuple

from mainspring.core.items import Json
from mainspring.features.models.native_exchanges import LONG, read_exchange
from mainspring.features.models.odd_answers import ODD_ANSWERS
from mainspring.features.models.seen_exchange import SeenExchange, decode, find_function
from mainspring.ports import KnownProfile, ProfileValue
from mainspring.providers.called_names import find_tool_name
from mainspring.providers.cassette import Exchange
from mainspring.providers.chat.refusals import REFUSALS
from mainspring.providers.json_answer import mend_answer
from mainspring.providers.json_text import may_be_wrapped
from mainspring.providers.leak_reader import LeakReader
from mainspring.providers.leaked_calls import parse_calls
from mainspring.providers.profiles import AS_NAMED, OF_TOOLS
from mainspring.providers.thinking import TagSplitter, find_header, find_unopened, mark_channels

Change = tuple[str, ProfileValue]
"""A field of a profile and what it became."""


class Quirk(NamedTuple):
    """One habit, as people are told of it, and what the adapter makes of it."""

    name: str
    does: str
    remedy: str


def find_quirks(exchanges: Iterable[Exchange], profiles: Iterable[KnownProfile] = ()) -> list[Quirk]:
    """The habits that show, or that requests were changed for or answers judged by before, in the order of the table."""
    asked = [seen for exchange in exchanges if (seen := read_exchange(exchange)) is not None]
    answers = [seen for seen in asked if seen.is_told]
    found = {
        name for seen in answers for name, shows in {**_IN_ONE, **seen.habits}.items() if seen.can_have(name) and shows(seen)
    }
    found |= {name for name, shows in _IN_ALL.items() if shows([seen for seen in answers if seen.can_have(name)])}
    found |= {_REFUSED[change] for change in _list_refused(asked)}
    found |= {"calls not read" for seen in asked if "failed_generation" in seen.raw}
    found |= _list_learned(profiles)
    return [quirk for quirk in QUIRKS if quirk.name in found]


def _list_learned(profiles: Iterable[KnownProfile]) -> set[str]:
    facts = [(name.partition(OF_TOOLS)[0], fact) for each in profiles for name, fact in each.facts.items()]
    learned = [(field, fact.value) for field, fact in facts if fact.source == "learned"]
    return {name for field, value in learned if (name := _LEARNED.get(field) or _REFUSED.get((field, value)))}


def _list_refused(asked: Sequence[SeenExchange]) -> list[Change]:
    """What refused requests were changed by, each known by the words of the refusal and by the request that followed it."""
    refused: list[Change] = []
    for before, after in pairwise([seen for seen in asked if seen.is_chat]):
        if before.status < 300:
            continue
        changes = [(rule.field, rule.value) for rule in REFUSALS if rule.words.search(before.raw)]
        known = (change for change in changes if change not in refused)
        refused += [change for change in known if _is_other(change[0], before.sent, after.sent)][:1]
    return refused


def _is_other(field: str, before: Json, after: Json) -> bool:
    """Whether requests differ where the adapter changes what it writes for this field."""
    if field == "stream_tools" and "tools" not in before:
        return False
    place = _PLACES.get(field, field)
    return bool(before.get(place) != after.get(place))


def _find_object(text: str) -> object:
    """The object between the first brace and the last."""
    return decode(text[text.find("{") : text.rfind("}") + 1])


def _repeats_index(seen: SeenExchange) -> bool:
    ids: dict[object, set[object]] = {}
    for piece in seen.pieces:
        if piece.get("index") is not None and piece.get("id"):
            ids.setdefault(piece["index"], set()).add(piece["id"])
    return any(len(each) > 1 for each in ids.values())


def _repeats_arguments(seen: SeenExchange) -> bool:
    for call, whole in zip(seen.calls, seen.arguments, strict=True):
        told = [piece for each in call if isinstance(piece := find_function(each).get("arguments"), str) and piece]
        said = list(accumulate(told))
        if any(len(before) > 2 and piece.startswith(before) for before, piece in zip(said, told[1:], strict=False)):
            return True
        half = len(whole) // 2
        if half > 2 and whole[:half] == whole[half:] and isinstance(decode(whole[:half]), dict):
            return True
    return False


def _repeats_name(seen: SeenExchange) -> bool:
    return any(len([piece for piece in call if find_function(piece).get("name")]) > 1 for call in seen.calls)


def _has_mixed_arguments(seen: SeenExchange) -> bool:
    is_mixed = any(decode(told) is None and "{" in told for told in seen.arguments) and "length" not in seen.finishes
    return is_mixed and not _repeats_arguments(seen)


def _has_other_name(seen: SeenExchange, mark: str) -> bool:
    names = [str(find_function(piece).get("name") or "") for piece in seen.pieces]
    return any(mark in name and name not in seen.tools and seen.names_tool(name) for name in names)


def _has_other_form(seen: SeenExchange) -> bool:
    """A name means a tool, but is not written as that one, or as a call of it."""
    names = [name for name, _ in seen.made if name not in seen.tools]
    within = [name or told for name, told in seen.made if "(" in name or not name]
    if any(parse_calls(written, seen.definitions, is_all=True) for written in within):
        return True
    return any(find_tool_name(name, seen.tools) != name and ("(" in name or not seen.names_tool(name)) for name in names)


def _is_wrapped(seen: SeenExchange) -> bool:
    for called, told in seen.made:
        name = find_tool_name(called, seen.tools)
        if told.lstrip().startswith("[{") or may_be_wrapped(told, name, seen.list_properties(name)):
            return True
    return False


def _makes_again(seen: SeenExchange) -> bool:
    """A call comes again under the same index or the same id, whole or in pieces."""
    calls = [(call[0], name, told) for call, (name, told) in zip(seen.calls, seen.made, strict=True)]
    whole = [(piece, str(find_function(piece).get("name")), str(find_function(piece).get("arguments"))) for piece in seen.pieces]
    for made in (calls, whole):
        told = [(piece.get("index"), name, repr(value)) for piece, name, text in made if isinstance(value := decode(text), dict)]
        named = [(piece["id"], name, text) for piece, name, text in made if piece.get("id") and isinstance(decode(text), dict)]
        if len(set(told)) < len(told) or len(set(named)) < len(named):
            return True
    return False


def _leaves_stops(seen: SeenExchange) -> bool:
    reader = LeakReader(())
    said = reader.feed(seen.text)
    return len(said + reader.end(said).words) < len(seen.text)


def _leaks(seen: SeenExchange, pattern: str) -> bool:
    return not seen.calls and seen.names_tool(seen.text) and re.search(pattern, seen.text, re.DOTALL) is not None


def _makes_up_turns(seen: SeenExchange) -> bool:
    if seen.calls or not _LABEL.search(seen.text):
        return False
    reader = LeakReader(seen.definitions.values())
    found = reader.end(reader.feed(seen.text))
    return found.is_made_up or (bool(found.calls) and _LABEL.search(found.written) is not None)


def _is_vendor_word(seen: SeenExchange) -> bool:
    return any(reason and reason not in _REASONS for reason in seen.finishes)


def _lacks_finish(seen: SeenExchange) -> bool:
    return bool(seen.is_stream and seen.deltas and not any(seen.finishes) and seen.has_end and not seen.has_failed)


def _has_odd_chunk(seen: SeenExchange) -> bool:
    first = seen.chunks[0] if seen.is_stream and seen.chunks else {"choices": [None]}
    return not first.get("choices") and not first.get("usage") and "error" not in first


def _is_empty(seen: SeenExchange) -> bool:
    is_over = {"stop", "tool_calls"} & set(seen.finishes)
    return bool(is_over) and not (seen.text or seen.thoughts or seen.pieces or seen.has_failed)


def _lacks_room(seen: SeenExchange) -> bool:
    """It stopped for its length although it was told of a larger one."""
    limit = seen.sent.get("max_tokens") or seen.sent.get("max_completion_tokens") or 0
    written = max([_count(chunk, "completion_tokens") for chunk in seen.chunks], default=0)
    return "length" in seen.finishes and 0 < written < 0.5 * limit


def _count(chunk: Json, field: str) -> int:
    usage = chunk.get("usage")
    told = usage.get(field) if isinstance(usage, dict) else None
    return told if isinstance(told, int) else 0


def _repeats_id(seen: Sequence[SeenExchange]) -> bool:
    """The same id in two turns of one conversation, of which the later has the earlier in its history."""
    for answer in seen:
        known = {call.get("id") for message in answer.sent.get("messages", ()) for call in message.get("tool_calls") or ()}
        if any(piece.get("id") and piece["id"] in known for piece in answer.pieces):
            return True
    return False


def _loses_calls(seen: Sequence[SeenExchange]) -> bool:
    whole = [answer for answer in seen if answer.sent.get("stream") is False]
    return any(answer.calls for answer in whole)


def _lacks_usage(seen: Sequence[SeenExchange]) -> bool:
    asked = [answer for answer in seen if answer.sent.get("stream_options") or answer.sent.get("stream") is False]
    return bool(asked) and not any(
        _count(told, "prompt_tokens") for answer in asked for told in (*answer.chunks, *answer.choices)
    )


def _cuts_prompts(seen: Sequence[SeenExchange]) -> bool:
    """The longest prompt was counted as what fills a usual context, and its first line was not read."""
    for answer in seen:
        prompt = str(answer.sent.get("messages", ""))
        read = max([_count(chunk, "prompt_tokens") for chunk in answer.chunks], default=0)
        fills = any(0.97 * size <= read <= size for size in (2_048, 4_096, 8_192, 16_384, 32_768))
        if fills and len(prompt) > LONG and read < len(prompt) / 5:
            return True
    return False


def _ignores_format(seen: SeenExchange) -> bool:
    """It was held to a schema, and said words, or JSON that does not fit its patterns."""
    schema = (seen.sent.get("response_format") or {}).get("json_schema", {}).get("schema", {})
    told = decode(seen.text)
    if not isinstance(told, dict):
        return bool(schema and seen.text.strip() and not seen.calls and "length" not in seen.finishes)
    patterns = [(name, part["pattern"]) for name, part in schema.get("properties", {}).items() if "pattern" in part]
    return any(isinstance(told.get(name), str) and not re.search(pattern, told[name]) for name, pattern in patterns)


def _list_texts(seen: SeenExchange) -> list[str]:
    """The arguments of the calls whose arguments are text."""
    told = zip(seen.calls, seen.arguments, strict=True)
    return [
        text.strip() for call, text in told if not any(isinstance(find_function(piece).get("arguments"), dict) for piece in call)
    ]


def _split_thoughts(text: str) -> list[tuple[bool, str]]:
    """What is told as reasoning, and what as words. Channels have a name of their own."""
    splitter = TagSplitter(is_asked=lambda tag: False)
    told = [*splitter.feed(text), *splitter.end()]
    return [] if splitter.has_channels or find_unopened(text) else [each for each in told if each[1]]


def _is_call(seen: SeenExchange, text: str) -> bool:
    return seen.names_tool(text) and isinstance(_find_object(text), dict)


_REASONS: Final = ("stop", "length", "tool_calls", "function_call", "content_filter")
QUIRKS: Final = (
    Quirk("calls without index", "Parallel calls have no `index`.", "They are told apart by id, else by place."),
    Quirk("one index for all", "Every parallel call has the same `index`.", "Another id is another call."),
    Quirk("calls without id", "Calls have no `id`.", "One is made."),
    Quirk("empty ids", 'Later pieces of a call have `id: ""`.', "An empty id is none."),
    Quirk("ids again", "Calls of different turns have one id.", "Outputs are paired by place."),
    Quirk("arguments as object", "Arguments are an object in place of text.", "It is written as JSON."),
    Quirk("arguments in a string", "Arguments are JSON within JSON.", "They are unwrapped."),
    Quirk("arguments repeated", "Arguments repeat what was said of them before.", "They are read once."),
    Quirk("name repeated", "The tool's name comes with every piece.", "It is read once."),
    Quirk("no arguments", "A call without arguments has none, `null` or an empty list.", "It has `{}`."),
    Quirk(
        "arguments among words",
        "Words or tags are around the arguments, they have slips, or are Python's.",
        "The object is read.",
    ),
    Quirk("arguments within", "The arguments are within a list or another object.", "They are taken out if the tool knows them."),
    Quirk("empty arguments first", "`{}` comes before the arguments.", "The object behind it is read."),
    Quirk("quote tokens", "Values are within tokens for quotes.", "The tokens are left out."),
    Quirk(
        "values as text",
        "Values are text, in a list of one, beside their type as in a schema, or null although there is a default.",
        "They get the types of the schema.",
    ),
    Quirk(
        "ids per piece",
        "Pieces of a call have ids or indexes of their own.",
        "What goes on with half an object is the same call.",
    ),
    Quirk("calls out of place", "Calls are no list, or parts of the content.", "They are read."),
    Quirk("empty calls", "Calls without a name and without arguments come beside others.", "They are left out."),
    Quirk("half calls", "A call ends half, and nobody says so.", "The turn fails, or the model is told."),
    Quirk("calls again", "A call comes again under another id, or written otherwise.", "It is made once."),
    Quirk("function_call", "The old `function_call` stands for `tool_calls`, or a call has no `function`.", "It is read."),
    Quirk("tokens in names", "Control tokens are part of a tool's name.", "They are cut off if one tool remains."),
    Quirk("prefix of names", "A tool's name has a prefix.", "It is left out if one tool remains."),
    Quirk("other form of names", "A tool's name is in other case or has other signs.", "One tool that it fits is meant."),
    Quirk("call as tagged text", "Calls are text in `<tool_call>` or tags like it.", "They are found and made."),
    Quirk("call as XML text", "Calls are text: XML with parameters.", "They are found and made."),
    Quirk("call as fenced text", "Calls are text: JSON, or Python, in a block of code.", "They are found and made."),
    Quirk("call as JSON text", "Calls are text: JSON.", "They are found and made."),
    Quirk(
        "call with labels",
        "Calls are text with labels, as `Action:` or `NAME\\n{...}`.",
        "They are made if they are all and fit.",
    ),
    Quirk("call in control tokens", "Calls or channels are text with control tokens.", "They are told apart, found and made."),
    Quirk(
        "calls not read",
        "A call is refused that the server could not read, with what its model wrote.",
        "The call is found there.",
    ),
    Quirk("calls given up", "An answer ends because its call is none.", "The turn fails, and is asked once more."),
    Quirk("unknown tools", "Tools are called that there are not.", "The model is told."),
    Quirk("tools of its own", "The server calls tools of its own.", "They are left to it."),
    Quirk("call in thoughts", "Calls stand in the reasoning.", "They are made if the turn has no other answer."),
    Quirk(
        "call beside its text", "A call comes as text, too, or leaves its tags there.", "It is made once, and they are left out."
    ),
    Quirk("text repeated", "Pieces have all the text before them once more.", "It is read once."),
    Quirk("content as object", "The content is one part in place of text.", "It is read."),
    Quirk("empty answer", "An answer has neither words nor calls.", "The turn fails, and is asked once more."),
    Quirk("blank answer", "An answer is nothing but blanks.", "The turn fails, and is asked once more."),
    Quirk("stop tokens", "Tokens that end a turn are in the text.", "They are left out, and what is made up behind them."),
    Quirk(
        "JSON with slips",
        "Structured output has slips (commas, Python's words, comments, no end) or words around it.",
        "It is mended where that takes no guess, and checked.",
    ),
    Quirk(
        "turns made up",
        "Behind an answer or a call the text goes on with turns of others (`User:`, `Tool:`).",
        "They are left out.",
    ),
    Quirk("turn headers", "The text begins with the header of a turn.", "It is left out."),
    Quirk("calls lost in streams", "Calls get lost when they are streamed.", "It is asked without streaming."),
    Quirk("thinking tags", "Reasoning comes as text in tags.", "It is read as reasoning."),
    Quirk("thinking never opened", "Only the end of the reasoning is marked.", "What stands before it is reasoning."),
    Quirk("reasoning", "`reasoning` stands for `reasoning_content`.", "Both are read."),
    Quirk("reasoning returned", "Reasoning must come back with calls.", "It is sent."),
    Quirk(
        "signed calls",
        "Calls or their reasoning carry signatures that must come back.",
        "They are kept, and sent to this backend alone.",
    ),
    Quirk("answer in thoughts", "Structured output lands in the reasoning.", "It is taken from there."),
    Quirk("stop with calls", "The reason of the end is `stop` or `end_turn` although there are calls.", "The calls count."),
    Quirk("empty finish", "Pieces have a reason of the end that is empty, or says nothing.", "It is none."),
    Quirk("no finish", "There is no reason of the end (`finish_reason`).", "The last event (`[DONE]`) is the end of an answer."),
    Quirk("finish twice", "The reason of the end comes more than once.", "The first counts."),
    Quirk(
        "vendor's finish", "The reason of the end is a word of another format.", "It is translated, or the turn is not complete."
    ),
    Quirk(
        "no end", "Streams have no last event.", "The reason of the end, or `[DONE]`, is enough; without either the turn fails."
    ),
    Quirk("filtered", "A filter stops what harms nobody.", "The turn is not complete, and says so."),
    Quirk("given up", "It ends for a reason that says nothing.", "The turn fails."),
    Quirk("paused turns", "Turns pause half-way.", "They go on."),
    Quirk("no [DONE]", "Streams have no `[DONE]`.", "The `finish_reason` is enough."),
    Quirk("comments", "Streams have comment lines.", "They are skipped."),
    Quirk("empty data", "Streams have empty `data:` lines, or `null`.", "They are skipped."),
    Quirk("odd lines", "Lines of a stream end in CR, or name the field twice.", "They are read."),
    Quirk("half characters", "Characters come in two halves.", "They are put together."),
    Quirk("empty errors", "Pieces have an error without words, whose code is 0.", "It is none."),
    Quirk("no choices first", "The first piece has no choices.", "It is skipped."),
    Quirk("choice without delta", "A choice has no delta, but `text`, a `message` or nothing.", "It is read or skipped."),
    Quirk("whole answer", "Answers come whole although a stream was asked for.", "They are read."),
    Quirk("error in stream", "An error comes within an answer of status 200.", "The turn fails with its words."),
    Quirk("prompt cut", "A long prompt is cut without a word.", "The turn fails; give it a larger context (`num_ctx`)."),
    Quirk("no room", "It stops for its length with output left to say.", "Give it a larger context (`num_ctx`)."),
    Quirk("no usage", "Tokens are not counted.", "They are estimated."),
    Quirk("usage often", "Every piece counts tokens.", "The last count is taken."),
    Quirk("usage within choices", "Tokens are counted within a choice.", "They are read there."),
    Quirk("events without empty lines", "Events follow one another without an empty line.", "They are told apart."),
    Quirk("usage in the middle", "Tokens are counted in some events, not in the last.", "The last count is taken."),
    Quirk("cache not counted", "Of a long prompt only what was not cached is counted.", "It is not taken for a cut."),
    Quirk("calls at the end", "Calls are in the line that says `done`.", "They are read."),
    Quirk("objects on one line", "Objects follow one another on a line.", "They are told apart."),
    Quirk("no last line break", "The last line has no break.", "It is read."),
    Quirk("array for a stream", "Streams are one JSON array.", "Its objects are read as they come."),
    Quirk("other candidates", "There are several candidates.", "The first is read."),
    Quirk("empty block reason", "The reason for blocking a prompt is empty.", "It is none."),
    Quirk("empty pieces", "Empty texts come between others.", "They are left out."),
    Quirk("fields left out", "Events lack fields that the format has.", "They are taken as empty."),
    Quirk("arguments at the start", "Arguments are whole where their call begins.", "They are read there."),
    Quirk("events without names", "Events have no `event:` line.", "Their `type` is enough."),
    Quirk("events out of order", "Items end before they begin.", "They are put together."),
    Quirk("parts without bounds", "Blocks or items lack their beginning or end, or have it twice.", "They are put together."),
    Quirk("pieces out of place", "Pieces are in blocks of another kind.", "They are read as what the block is."),
    Quirk("ids change", "An item has another id in each event.", "The first is kept."),
    Quirk("unknown events", "Events are of unknown kinds.", "They are skipped."),
    Quirk("unknown items", "Items are of unknown kinds.", "They are kept as they are."),
    Quirk("unsigned thoughts", "Thoughts have no signature.", "They come back without."),
    Quirk("no stream_options", "`stream_options` is refused.", "It is left out."),
    Quirk("no streams with tools", "Streams are refused where there are tools.", "It is asked without streaming."),
    Quirk("no streams", "Streams are refused.", "Answers come in one piece."),
    Quirk("no parallel_tool_calls", "`parallel_tool_calls` is refused.", "It is left out."),
    Quirk("no names on outputs", "Names on outputs of tools are refused.", "They are left out."),
    Quirk("no forced call", "`tool_choice` is refused.", "The model is asked for a call in words."),
    Quirk("no null content", "Content that is `null` is refused.", "It is empty text."),
    Quirk("no blank content", "Content that is empty is refused.", "It is left out, or says that there are calls."),
    Quirk("outputs in parts", "Outputs of tools must be lists of parts.", "They are."),
    Quirk("arguments opened", "Arguments of earlier calls must be objects.", "They are."),
    Quirk("ids by pattern", "Call ids must fit a pattern.", "They are derived."),
    Quirk("ids of calls wanted", "Ids of calls must come back by Ollama's format, too.", "They are sent."),
    Quirk("no ids of items", "Ids or phases of items are refused, or lead to what is not there.", "They are left out."),
    Quirk("no store", "`store` is refused.", "It is left out."),
    Quirk("no encrypted reasoning", "Encrypted reasoning is refused.", "It is not asked for."),
    Quirk("no cache marks", "Marks of what is to be cached are refused.", "They are left out."),
    Quirk("ids to the letter", "Call ids have a form of the model's own.", "They come back as they were."),
    Quirk("no max_tokens", "`max_tokens` is refused.", "It is `max_completion_tokens`."),
    Quirk("small outputs", "A large bound on the output is refused.", "It is lowered to what is taken."),
    Quirk("no temperature", "`temperature` or `top_p` is refused.", "It is left out."),
    Quirk("no penalties", "Penalties are refused.", "They are left out."),
    Quirk("no effort", "`reasoning_effort` is refused.", "It is left out."),
    Quirk("three efforts", "`reasoning_effort` is low, medium or high, and nothing else.", "It is the nearest of them."),
    Quirk("no format with tools", "A format is refused beside tools.", "It is asked for in words, and checked."),
    Quirk(
        "bounds beyond the context",
        "A bound on the output is refused that does not fit the context beside the prompt.",
        "It is left out; the context is known from then on.",
    ),
    Quirk("formats named", "A format is refused where no message speaks of JSON.", "It is told in words besides."),
    Quirk("no json_object", "`json_object` is refused.", "It is a schema of any object."),
    Quirk("no format", "`response_format` is refused.", "It is asked for in words, and checked."),
    Quirk("format ignored", "A schema is dropped without a word.", "Every answer is checked here."),
    Quirk("schema words", "Words of JSON Schema are refused.", "They are left out, and checked here."),
    Quirk("no parts", "Content in parts is refused.", "Texts are joined."),
    Quirk("no blank descriptions", "Tools without a description are refused.", "Their names describe them."),
    Quirk("odd descriptions", "The text of a tool's description crashes it.", "Descriptions are shortened."),
    Quirk("large schemas", "Schemas of tools are refused that are large together.", "They are told in words, and checked here."),
    Quirk("no strict", "`strict` is refused.", "It is left out."),
    Quirk("one system message", "Only one system message is taken, and in front.", "They are merged."),
    Quirk("roles alternate", "Roles must alternate, or there is none for the system.", "Messages are merged."),
    Quirk("no outputs", "There is no role for outputs of tools.", "Calls and outputs are told in words."),
    Quirk("one call at a time", "A turn of the history may not have two calls.", "Each has a turn, with its output behind it."),
    Quirk("no question after outputs", "The user may not speak after an output.", "The model speaks between them."),
    Quirk("tools with history", "A history of calls is refused without tools.", "They are declared, and forbidden."),
    Quirk("no tools", "The model or its server knows no tools, and says so.", "They are told in words, and its calls are read."),
)
_PLACES: Final[Mapping[str, str]] = {
    **dict.fromkeys(
        (
            "output_names",
            "blank",
            "ids",
            "calls_together",
            "user_after_output",
            "system",
            "output_role",
            "recall",
            "format_told",
            "content",
            "output_content",
            "arguments",
        ),
        "messages",
    ),
    **dict.fromkeys(("calls_without_tools", "schemas", "strict", "descriptions"), "tools"),
    **dict.fromkeys(("json_object",), "response_format"),
    "efforts": "reasoning_effort",
    "limit": "max_tokens",
    "most_output": "max_tokens",
    "stream_tools": "stream",
    "window": "max_tokens",
}
"""Where in a request a field of the profile shows, if not under its own name."""
# Of these, what shows tells more than what was changed.
_LEARNED: Final[Mapping[str, str]] = {
    "format_told": "format ignored",
    "most_output": "small outputs",
    "stream_tools": "no streams with tools",
    "window": "prompt cut",
}
_REFUSED: Final[Mapping[Change, str]] = {
    ("thinking", "begun"): "thinking never opened",
    ("store", False): "no store",
    ("encrypted_reasoning", False): "no encrypted reasoning",
    ("call_ids", True): "ids of calls wanted",
    ("item_fields", "needed"): "no ids of items",
    ("cache_marks", False): "no cache marks",
    ("stream_options", False): "no stream_options",
    ("stream_tools", False): "no streams with tools",
    ("stream", False): "no streams",
    ("window", AS_NAMED): "bounds beyond the context",
    ("format_told", True): "formats named",
    ("parallel_tool_calls", False): "no parallel_tool_calls",
    ("tools", False): "no tools",
    ("reasoning_effort", False): "no effort",
    ("efforts", "three"): "three efforts",
    ("presence_penalty", False): "no penalties",
    ("frequency_penalty", False): "no penalties",
    ("limit", "max_completion_tokens"): "no max_tokens",
    ("most_output", AS_NAMED): "small outputs",
    ("content", "text"): "no parts",
    ("descriptions", "filled"): "no blank descriptions",
    ("output_names", False): "no names on outputs",
    ("blank", "empty"): "no null content",
    ("blank", "omitted"): "no blank content",
    ("blank", "told"): "no blank content",
    ("output_content", "parts"): "outputs in parts",
    ("arguments", "object"): "arguments opened",
    ("ids", "nine"): "ids by pattern",
    ("calls_together", False): "one call at a time",
    ("user_after_output", False): "no question after outputs",
    ("system", "first"): "one system message",
    ("system", "user"): "roles alternate",
    ("output_role", "user"): "no outputs",
    ("recall", "reasoning_content"): "reasoning returned",
    ("calls_without_tools", False): "tools with history",
    ("schemas", "common"): "schema words",
    ("schemas", "bare"): "schema words",
    ("schemas", "told"): "large schemas",
    ("descriptions", "short"): "odd descriptions",
    ("strict", False): "no strict",
    ("tool_choice", "auto"): "no forced call",
    ("response_format", "without_tools"): "no format with tools",
    ("json_object", False): "no json_object",
    ("response_format", "none"): "no format",
    ("temperature", False): "no temperature",
    ("top_p", False): "no temperature",
}
_HARMONY: Final = (
    "(?<!`)<\\|(?:(?:channel|message|start|call|python_tag)\\||tool_call)|\\[TOOL_CALLS\\](?=.*[\\]}>]\\s*\\Z)|<\uff5ctool"
)
_LABEL: Final = re.compile(r"\n\s*(?:User|Human|Tool|Observation|Assistant)\b[\w ]*:")
_IN_ONE: Final[Mapping[str, Callable[[SeenExchange], object]]] = {
    **ODD_ANSWERS,
    "calls without index": lambda seen: seen.is_stream and any(piece.get("index") is None for piece in seen.pieces),
    "one index for all": _repeats_index,
    "calls without id": lambda seen: any(not any(piece.get("id") for piece in call) for call in seen.calls),
    "empty ids": lambda seen: any(piece.get("id") == "" for piece in seen.pieces),
    "arguments as object": lambda seen: any(
        isinstance(find_function(each).get("arguments"), dict | list) for each in seen.pieces
    ),
    "arguments in a string": lambda seen: any(
        isinstance(inner := decode(told), str) and isinstance(decode(inner), dict) for told in seen.arguments
    ),
    "arguments repeated": _repeats_arguments,
    "name repeated": _repeats_name,
    "no arguments": lambda seen: any(told.strip() in ("", "null", "None", "[]", '""') for told in _list_texts(seen)),
    "arguments among words": _has_mixed_arguments,
    "arguments within": _is_wrapped,
    "empty arguments first": lambda seen: any(re.match(r"\s*\{\s*\}\s*\{", told) for told in seen.arguments),
    "quote tokens": lambda seen: any(re.search(r'<\|\\?"\|>', told) for told in seen.arguments),
    "calls again": _makes_again,
    "other form of names": _has_other_form,
    "function_call": lambda seen: (
        any(delta.get("function_call") for delta in seen.deltas) or any("name" in piece for piece in seen.pieces)
    ),
    "tokens in names": lambda seen: _has_other_name(seen, "<"),
    "prefix of names": lambda seen: not _has_other_name(seen, "<") and any(_has_other_name(seen, mark) for mark in ":./"),
    "call as tagged text": lambda seen: _leaks(seen, r"<(?:[\w-]+:)?tool_call>|<tools?>|\[TOOL_REQUEST") and seen.has_leaked_call,
    "call as XML text": lambda seen: _leaks(seen, r"<function=|<invoke|<parameter") and seen.has_leaked_call,
    "call as fenced text": lambda seen: _leaks(seen, r"\A\s*```(?:[\w.:-]*\s*[\[{]|tool_code\s).*```\s*\Z"),
    "call as JSON text": lambda seen: _leaks(seen, r"\A\s*[\[{].*[\]}]\s*\Z"),
    "call in control tokens": lambda seen: re.search(_HARMONY, seen.text, re.DOTALL) or mark_channels(seen.text),
    "call in thoughts": lambda seen: not seen.calls and not seen.text and _is_call(seen, seen.thoughts),
    "call beside its text": lambda seen: seen.calls and re.search(r"(?i)</?(?:tool_call|function)", seen.text),
    "stop tokens": _leaves_stops,
    "JSON with slips": lambda seen: (
        "response_format" in seen.sent and decode(seen.text) is None and mend_answer(seen.text) is not None
    ),
    "turns made up": _makes_up_turns,
    "turn headers": lambda seen: find_header(seen.text.lstrip()),
    "thinking tags": lambda seen: any(is_thought for is_thought, _ in _split_thoughts(seen.text)),
    "thinking never opened": lambda seen: find_unopened(seen.text),
    "reasoning": lambda seen: any(isinstance(delta.get("reasoning"), str) for delta in seen.deltas),
    "signed calls": lambda seen: (
        any("extra_content" in piece for piece in seen.pieces) or "reasoning.encrypted" in str(seen.deltas)
    ),
    "answer in thoughts": lambda seen: (
        "response_format" in seen.sent and not seen.text.strip() and not seen.calls and isinstance(decode(seen.thoughts), dict)
    ),
    "stop with calls": lambda seen: seen.pieces and "stop" in seen.finishes,
    "empty finish": lambda seen: "" in seen.finishes,
    "no finish": _lacks_finish,
    "finish twice": lambda seen: seen.is_stream and len([reason for reason in seen.finishes if reason]) > 1,
    "vendor's finish": _is_vendor_word,
    "no [DONE]": lambda seen: seen.is_stream and seen.finishes and "data: [DONE]" not in seen.raw.replace("data:[", "data: ["),
    "comments": lambda seen: any(line.startswith(":") for line in seen.lines),
    "empty data": lambda seen: any(line.rstrip() in ("data:", "data: null") for line in seen.lines),
    "no choices first": _has_odd_chunk,
    "choice without delta": lambda seen: seen.is_stream and any("delta" not in choice for choice in seen.choices),
    "whole answer": lambda seen: not seen.is_stream and seen.choices and seen.sent.get("stream"),
    "error in stream": lambda seen: seen.has_failed,
    "no room": _lacks_room,
    "usage often": lambda seen: len([chunk for chunk in seen.chunks if chunk.get("usage")]) > 2,
    "usage within choices": lambda seen: any(choice.get("usage") for choice in seen.choices),
    "events without empty lines": lambda seen: any(
        before.startswith("data: {") and after.startswith("data:") for before, after in pairwise(seen.lines)
    ),
    "no end": lambda seen: seen.is_stream and not seen.has_end and not seen.has_failed,
    "filtered": lambda seen: "content_filter" in seen.finishes,
    "empty answer": _is_empty,
    "unknown tools": lambda seen: any(
        name and find_tool_name(name, seen.tools) not in seen.tools for name, _ in seen.made if "(" not in name
    ),
    "ids to the letter": lambda seen: any(re.search(r"[.:]", str(piece.get("id") or "")) for piece in seen.pieces),
    "format ignored": _ignores_format,
}
_IN_ALL: Final[Mapping[str, Callable[[Sequence[SeenExchange]], bool]]] = {
    "ids again": _repeats_id,
    "calls lost in streams": _loses_calls,
    "no usage": _lacks_usage,
    "prompt cut": _cuts_prompts,
}
