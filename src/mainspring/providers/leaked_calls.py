"""Calls that a model writes into its text, where its server should have read them: how they look, and what they call.

`parse_calls` takes a text that is nothing but calls, in the forms that model families were trained on: JSON, XML, or a name and
its arguments between control tokens. Only tools that there are can be called; a text that says anything else is no call.
"""

import html
import json
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from re import Pattern
from typing import Final, NamedTuple

from mainspring.core.items import Json, ToolDefinition
from mainspring.core.lru_cache import LRUCache
from mainspring.providers.argument_types import fits, list_properties, type_value, type_values
from mainspring.providers.called_names import find_tool_name
from mainspring.providers.code_calls import CodeCall, find_code, may_be_script, read_code, read_lines, read_list, read_script
from mainspring.providers.control_tokens import STOPS, find_last_stops
from mainspring.providers.json_answer import mend_answer
from mainspring.providers.json_text import ARGUMENT_KEYS, STRING, json_text, parse_loosely, read_arguments
from mainspring.providers.labelled_calls import (
    BLOCK_LABELS,
    is_code,
    may_be_labelled,
    name_only_argument,
    open_block,
    read_block,
    read_labelled,
    skip_labels,
    split_thought,
)
from mainspring.providers.made_up_turns import MADE_UP

Tools = Mapping[str, ToolDefinition]


class LeakedCall(NamedTuple):
    name: str
    arguments: str


class _Found(NamedTuple):
    """Calls, and where the text goes on behind them."""

    calls: list[LeakedCall]
    end: int


def parse_calls(text: str, tools: Tools, *, is_all: bool = False) -> list[LeakedCall]:
    """The calls that a text consists of; none if it has anything else in it. An output that the model made up ends the text. If
    the text `is_all` of an answer, it may be a call with labels around it."""
    text = _cut_block(text.strip())
    bare = text[: find_last_stops(text)] if text.endswith((">", "]")) else text
    text = bare if bare.endswith("```") else text
    text = html.unescape(text) if is_all and text.startswith("&lt;") else text
    if not text.startswith(("```py", "Code:")) and (calls := parse_code(text, tools)):
        return calls
    if is_all and (calls := _make_calls(read_script(text, tools), tools)):
        return calls
    opened = _WITH_ASCII_BARS.sub("<\\1\uff5c\\2\uff5c", _open_fence(text))
    calls = []
    place = 0
    while True:
        glue = _GLUE.match(opened, place)
        place = place if glue is None else glue.end()
        if place == len(opened) or (calls and MADE_UP.match(opened, place)):
            return calls
        found = next((found for read in _READERS if (found := read(opened, place, tools)) is not None), None)
        if found is None:
            return _parse_bare(bare, tools) if is_all else []
        calls += found.calls
        place = found.end


def parse_code(text: str, tools: Tools) -> list[LeakedCall]:
    """The calls of an answer that is code. A block of Python's is one only behind a thought: anybody may write one."""
    code = find_code(text)
    return [] if code is None else _make_calls(read_code(code, tools), tools)


def _parse_bare(text: str, tools: Tools) -> list[LeakedCall]:
    """The calls of a text without tags, or of a block of code that may hold calls."""
    opened = open_block(text, tools) if text.startswith("`") else text
    if opened is None or opened.startswith("`"):
        return []
    if calls := _parse_labelled(opened, tools):
        return calls
    if opened is text:
        return _make_calls(read_lines(text, tools), tools)
    if calls := _parse_labelled(opened.partition("\n")[2], tools):
        return calls
    named = read_block(text, tools)
    return [] if named is None else [LeakedCall(named.name, json_text(named.arguments))]


def _parse_labelled(text: str, tools: Tools) -> list[LeakedCall]:
    read = read_labelled(text, tools)
    return parse_calls(read, tools) if isinstance(read, str) else [LeakedCall(name, json_text(given)) for name, given in read]


def read_message(text: str) -> str:
    """The words of a message that is written as on the wire; nothing if it is none."""
    with suppress(ValueError, RecursionError):
        match json.loads(text):
            case {"role": "assistant", "content": str(words), **rest} if not rest or rest == {"tool_calls": []}:
                return words
    return ""


def take_json(text: str) -> str:
    """The one object or list in a block of code or among words, its slips mended; the text if there is none, or more than one."""
    for opening in filter(None, (_JSON_BLOCK.search(text), _OPENING.search(text))):
        with suppress(ValueError, RecursionError):
            start = opening.end() - 1
            _, end = _strict_decoder.raw_decode(text, start)
            return text if _OPENING.search(text, end) else text[start:end]
    return mend_answer(text) or text


def is_cut_call(text: str, tools: Tools) -> bool:
    """Whether a text that begins as a call of a tool ends within it."""
    glue = _GLUE.match(text)
    body = text if glue is None else text[glue.end() :]
    is_open = is_cut_object(text) or ("<function=" in text and "</function>" not in text)
    # Words that follow the tag speak of it.
    return is_open and any(name in text[:_MOST_HEAD] for name in tools) and body.startswith(("{", "[", "<", "`", "call:", *tools))


def is_unread_call(text: str, tools: Tools) -> bool:
    """Whether a text in the tags of a call has the name of a tool and all that it needs, and could not be read. One that
    describes the tool is none."""
    for name, tool in tools.items():
        required = [str(each) for each in (tool.parameters or {}).get("required") or ()]
        is_described = "description" in text and "description" not in list_properties(tool)
        if name not in text or not required or is_described:
            continue
        if all(re.search(rf"\b{re.escape(each)}{_GIVEN}", text) for each in required):
            return True
    return False


def is_cut_object(text: str) -> bool:
    """Whether an object is opened that nothing closes."""
    bare = STRING.sub("", text)
    return bare.count("{") > bare.count("}")


def _cut_block(text: str) -> str:
    """A block of code without what the model has made up behind it."""
    block = _WHOLE_BLOCK.match(text)
    return block[0].rstrip() if block is not None and MADE_UP.match(text, block.end()) else text


def _open_fence(text: str) -> str:
    """What is in a block of code, if the text is one that may hold calls."""
    head, _, body = text.partition("\n")
    if not head.startswith("```") or not text.endswith("```"):
        return text
    return body.removesuffix("```") if head[3:].strip().lower() in _FENCES or body.lstrip().startswith("<") else text


def is_glue(text: str) -> bool:
    """Whether the text is nothing but what stands around calls."""
    return _GLUE.fullmatch(text) is not None


def may_be_python_call(text: str, tools: Tools) -> bool | None:
    """Whether a list that begins like this may be calls of Python's; None if it cannot be told yet."""
    if (called := _PYTHON_HEAD.match(text)) is not None:
        return find_tool_name(called[1], tools) in tools
    return None if len(text) < _MOST_HEAD and _HALF_PYTHON.fullmatch(text) else False


def may_be_call(text: str, tools: Tools) -> bool | None:
    """Whether an answer that begins like this may be nothing but calls; None if it cannot be told yet."""
    if len(text) > _FIRST_WORD:
        return _judge(text, tools)
    # There are few words that answers begin with.
    if (told := _words.get(key := (text, *tools))) is None:
        _words[key] = told = (_judge(text, tools),)
    return told[0]


def _judge(text: str, tools: Tools) -> bool | None:
    told = [judge(text, tools) for judge in (may_name_tool, _may_be_announced, _may_be_element, may_be_script, _may_be_pairs)]
    return True if True in told else None if None in told else False


_FIRST_WORD: Final = 16
# What was told of them, by themselves and the names of the tools.
_words: Final[LRUCache[tuple[str, ...], tuple[bool | None]]] = LRUCache(512)


def _may_be_announced(text: str, tools: Tools) -> bool | None:
    """A call with labels. JSON that these announce has the tool in it, if they have not."""
    may_be = may_be_labelled(text, tools)
    if may_be and is_code(split_thought(text)[1]):
        return True
    action = split_thought(text)[1] if may_be else text
    labels = skip_labels(action, tools) if may_be else None
    return may_be if labels is None or labels.name else may_name_tool(action[labels.place :], tools)


def _may_be_element(text: str, tools: Tools) -> bool | None:
    """A call in tags that are called as the tool, in a block of code, in a tag for code, or written for a page."""
    if (head := _ELEMENT_HEAD.match(text)) is None:
        return None if len(text) < _MOST_HEAD and _HALF_ELEMENT.fullmatch(text) else False
    name = head[1] or head[2]
    return name is None or find_tool_name(name, tools) in tools


def _may_be_pairs(text: str, tools: Tools) -> bool | None:
    """A name with keys and values in tags, whose own tag is lost."""
    if (head := _PAIRS_HEAD.match(text)) is not None:
        return find_tool_name(head[1], tools) in tools
    return None if any(len(text) < len(name) + _KEY_TAG and f"{name}\n<arg_key>".startswith(text) for name in tools) else False


def may_name_tool(text: str, tools: Tools) -> bool | None:
    """Whether JSON that begins like this may be a call of a tool; None if it cannot be told yet."""
    if len(text) < len(FUNCTOOLS) and FUNCTOOLS.startswith(text):
        return None
    if (quoted := _QUOTED_HEAD.match(text)) is not None:
        inner = text[quoted.end() : _MOST_HEAD].replace("\\", "").lstrip('"')
        return None if not inner else inner.startswith(("{", "[")) and may_name_tool(inner, tools)
    text = text.removeprefix(FUNCTOOLS[:-1])
    head = _HEAD.match(text)
    if (called := _PYTHON_HEAD.match(text)) is not None:
        return find_tool_name(called[1], tools) in tools
    if head is None:
        return None if len(text) < _MOST_HEAD and _HALF_HEAD.fullmatch(text) else False
    key, value = head[1] if head[1] in tools else head[1].lower(), head[2]
    if key in ("type", "role") and value is not None:
        return value in _TYPES if key == "type" else value == "assistant"
    if key in _NAME_KEYS and value is not None:
        return find_tool_name(value, tools) in tools
    if key not in _KEYS | _MESSAGE_KEYS or (value and key not in (*ARGUMENT_KEYS, *_BESIDE_KEYS)):
        return value is None and key in tools
    if (after := _AFTER_VALUE.match(text)) is not None:
        return (after[1] or after[2] or "").lower() in _KEYS | _MESSAGE_KEYS
    return True if len(text) >= _MOST_HEAD or _DEEP_VALUE.match(text) else None


def _read_quoted(text: str, place: int, tools: Tools) -> _Found | None:
    """Calls in JSON that is a text in JSON."""
    if not text.startswith('"', place):
        return None
    with suppress(ValueError, RecursionError):
        value, end = _decoder.raw_decode(text, place)
        calls = parse_calls(value, tools) if value.startswith(("{", "[", '"')) else []
        return _Found(calls, end) if calls else None
    return None


def _read_json(text: str, place: int, tools: Tools) -> _Found | None:
    if not text.startswith(("{", "["), place):
        return None
    try:
        value, end = _decoder.raw_decode(text, place)
    except (ValueError, RecursionError):
        literal = _LITERAL.match(text, place)
        if literal is None:
            return _read_json(f"{text}]", place, tools) if text[place] == "[" and text.endswith("}") else None
        written = literal[0].translate(_QUOTES)
        value, end = parse_loosely(_halve_braces(written)), literal.end()
    calls = _list_calls(value, tools, is_whole=place == 0)
    return None if not calls else _Found(calls, min(end, len(text)))


def _halve_braces(text: str) -> str:
    """The text of a template, where braces are written twice, as what it stands for."""
    if not text.startswith("{{"):
        return text
    return text.replace("{{", "{").replace("}}", "}") if "{{" in text[2:] else text[1:-1]


def _list_calls(value: object, tools: Tools, *, is_whole: bool) -> list[LeakedCall]:
    """The calls that a JSON value stands for; none unless all of it is calls."""
    if isinstance(value, dict) and value.keys() <= _MESSAGE_KEYS and not (value.get("content") or value.get("response")):
        value = next((value[key] for key in _LIST_KEYS if key in value), value)
    made = [_make_call(each, tools, is_whole=is_whole) for each in (value if isinstance(value, list) else [value])]
    calls = [call for call in made if call is not None]
    return calls if len(calls) == len(made) else []


def _make_call(value: object, tools: Tools, *, is_whole: bool) -> LeakedCall | None:
    if isinstance(value, str) and value.startswith("{"):
        with suppress(ValueError, RecursionError):
            value = json.loads(value)
    if isinstance(value, dict) and not value.keys() & _KEYS:
        value = {key.lower() if key.lower() in _KEYS else key: each for key, each in value.items()}
    if isinstance(value, dict) and any(isinstance(value.get(key), dict) for key in _CALL_KEYS) and value.keys() <= _KEYS:
        value = next(value[key] for key in _CALL_KEYS if isinstance(value.get(key), dict))
    is_named = isinstance(value, dict) and len(value) == 1 and not value.keys() & _KEYS
    if isinstance(value, dict) and is_named:
        # A tool's name may be the only key, behind a token that announces calls, or if the arguments fit.
        value = next({"name": name, "arguments": given} for name, given in value.items())
    if isinstance(value, dict) and value and (flat := _read_flat(value, tools)):
        return flat
    if not isinstance(value, dict) or not value.keys() <= _KEYS:
        return None
    if is_whole and isinstance(kind := value.get("type", _TYPES[0]), str) and kind not in _TYPES:
        return None  # it is of another kind
    names = [value[key] for key in _NAME_KEYS if isinstance(value.get(key), str)]
    given = [value[key] for key in ARGUMENT_KEYS if key in value]
    name = find_tool_name(names[0], tools) if len(names) == 1 else ""
    # A text that is only a name and nothing else might as well be data.
    if name not in tools or len(given) > 1 or (is_whole and not given):
        return None
    arguments = given[0] if given else {}
    if isinstance(arguments, str) and value.keys() & {"action_input", "tool_input"} and not arguments.lstrip().startswith("{"):
        arguments = name_only_argument(arguments, tools[name])
    with suppress(ValueError, RecursionError):
        written = (
            read_arguments(json_text(arguments), name, list_properties(tools[name])) if arguments not in (None, "") else "{}"
        )
        arguments = json.loads(written)
    if not isinstance(arguments, dict) or _is_declaration(arguments, tools[name]):
        return None
    typed = type_values(arguments, tools[name])
    return LeakedCall(name, json_text(typed)) if not (is_whole and is_named) or fits(typed, tools[name]) else None


def _read_flat(value: Json, tools: Tools) -> LeakedCall | None:
    """A call whose arguments stand beside its name, and nothing else does."""
    key, *others = value
    named = value[key]
    name = find_tool_name(named, tools) if key in _NAME_KEYS and isinstance(named, str) else ""
    if name not in tools or not others or {*others} & _KEYS:
        return None
    arguments = type_values({other: value[other] for other in others}, tools[name])
    return LeakedCall(name, json_text(arguments)) if fits(arguments, tools[name]) else None


def _is_declaration(arguments: Json, tool: ToolDefinition) -> bool:
    """Whether these are the schema of the tool's parameters: then it is described, not called."""
    return isinstance(arguments.get("properties"), dict) and "properties" not in list_properties(tool)


def _read_xml(text: str, place: int, tools: Tools) -> _Found | None:
    found = _XML.match(text, place)
    if found is None:
        return None
    parts = list(_PARAMETER.finditer(found[3]))
    if parts and not found[4] and not parts[-1][0].rstrip().endswith(">"):
        return None  # it was cut off
    values = {part[1]: part[2] for part in parts}
    rest = _PARAMETER.sub("", found[3]).strip()
    if not values and rest.startswith("<"):
        values, rest = _split_parts(rest, _ELEMENT)
    called = _finish_call(found[2], values, rest, found.end(), tools)
    return called if called is None or found[1] not in _PLAIN_TAGS else _take_fitting(called, tools)


def _take_fitting(called: _Found, tools: Tools) -> _Found | None:
    """A call in tags that others use, too: its arguments must fit."""
    made = called.calls[0]
    return called if fits(json.loads(made.arguments), tools[made.name]) else None


def read_parameters(text: str, tool: ToolDefinition) -> str:
    """Arguments that are parameters or elements of XML, as JSON; the text if they are none."""
    for pattern in (_PARAMETER, _PAIR, _ELEMENT):
        values, rest = _split_parts(text, pattern)
        if values and not rest:
            arguments = type_values({key: _strip_break(value) for key, value in values.items()}, tool)
            return json_text(arguments) if fits(arguments, tool) else text
    return text


def _split_parts(text: str, pattern: Pattern[str]) -> tuple[dict[str, str], str]:
    """The parts that a text begins with, and what follows them."""
    values, rest, place = dict[str, str](), text.strip(), 0
    while (part := pattern.match(rest, place)) is not None:
        values[part[1]] = part[2]
        place = part.end() if (blank := _BLANK.match(rest, part.end())) is None else blank.end()
    return values, rest[place:]


def _strip_break(value: str) -> str:
    """A value between tags without the line breaks that belong to these."""
    return value.removeprefix("\n").removesuffix("\n")


def _read_input(text: str, place: int, tools: Tools) -> _Found | None:
    """A name and its input in elements, as prompts for agents have it."""
    found = _TOOL_AND_INPUT.match(text, place)
    name = "" if found is None else find_tool_name(found[1], tools)
    if found is None or name not in tools:
        return None
    call = _make_call({"name": name, "tool_input": found[2].strip()}, tools, is_whole=False)
    return None if call is None else _Found([call], found.end())


def _read_elements(text: str, place: int, tools: Tools) -> _Found | None:
    """An element for the name and one for the arguments, or one that is called as the tool, between the tags of a call."""
    found = (_NAME_ELEMENT.match(text, place) if place else None) or _TOOL_ELEMENT.match(text, place)
    part = _ELEMENT
    if found is None:
        found, part = _NAME_ATTRIBUTES.match(text, place) or _TOOL_ATTRIBUTES.match(text, place), _ATTRIBUTE
    if found is None:
        return None
    values, rest = _split_parts(found[2], part)
    called = _finish_call(found[1], values, rest, found.end(), tools)
    return called if called is None or place else _take_fitting(called, tools)


def _read_pairs(text: str, place: int, tools: Tools) -> _Found | None:
    """A name, then keys and values in tags, as GLM was trained to write them."""
    found = _PAIRS.match(text, place)
    if found is None:
        return None
    return _finish_call(found[1], {part[1]: part[2] for part in _PAIR.finditer(found[2])}, "", found.end(), tools)


def _finish_call(called: str, values: Mapping[str, str], rest: str, end: int, tools: Tools) -> _Found | None:
    """A call whose arguments are words, which its schema gives their types, or else an object in JSON."""
    name = find_tool_name(called, tools)
    if name not in tools or (values and rest):
        return None
    if rest:
        inner = _make_call({"name": name, "arguments": rest}, tools, is_whole=False)
        return None if inner is None else _Found([inner], end)
    properties = list_properties(tools[name])
    arguments = {key.strip(): type_value(_strip_break(value), properties.get(key.strip())) for key, value in values.items()}
    return _Found([LeakedCall(name, json_text(arguments))], end)


def _read_tokens(text: str, place: int, tools: Tools) -> _Found | None:
    """A name, a control token, and the arguments as JSON."""
    found = _NAMED.match(text, place) if place else None
    if found is None:
        return None
    try:
        arguments, end = _decoder.raw_decode(text, found.end())
    except (ValueError, RecursionError):
        return None
    call = _make_call({"name": found[1], "arguments": arguments}, tools, is_whole=False)
    fence = _FENCE_END.match(text, end)
    return None if call is None else _Found([call], end if fence is None else fence.end())


def _read_python(text: str, place: int, tools: Tools) -> _Found | None:
    """Calls as Python writes them, in a list unless something announces them."""
    found = _CALLED.match(text, place)
    if found is None or (place == 0 and not found[0].startswith("[")):
        return None
    calls = _make_calls(read_list(found[0], tools) or (read_code(found[0], tools) if place else []), tools)
    return _Found(calls, found.end()) if calls else None


def _make_calls(written: list[CodeCall], tools: Tools) -> list[LeakedCall]:
    made = [_make_call({"name": each.name, "arguments": each.arguments}, tools, is_whole=False) for each in written]
    return [call for call in made if call is not None] if None not in made else []


def _read_braces(text: str, place: int, tools: Tools) -> _Found | None:
    """A name and bare keys, with tokens for quotes, as Gemma was trained to write them behind a token that announces it."""
    found = _BRACES.match(text, place) if place else None
    if found is None:
        return None
    parts = _QUOTE_TOKEN.split(found[2])
    written = [json.dumps(part) if number % 2 else _BARE_KEY.sub(r'\1"\2":', part) for number, part in enumerate(parts)]
    call = _make_call({"name": found[1], "arguments": f"{{{''.join(written)}}}"}, tools, is_whole=False)
    return None if call is None else _Found([call], found.end())


def _read_name(text: str, place: int, tools: Tools) -> _Found | None:
    """Nothing but the name of a tool without parameters, between the tags of a call."""
    found = _NAME_ONLY.match(text, place) if place else None
    name = "" if found is None else find_tool_name(found[1], tools)
    if found is None or name not in tools or list_properties(tools[name]):
        return None
    return _Found([LeakedCall(name, "{}")], found.end())


_QUOTES: Final = str.maketrans({"\u201c": '"', "\u201d": '"'})
_decoder = json.JSONDecoder(strict=False)
_strict_decoder = json.JSONDecoder()
_JSON_BLOCK: Final = re.compile(r"```(?:json|JSON)?\s*[{\[]")
_OPENING: Final = re.compile(r"[{\[]")
_CALLED: Final = re.compile(r"\[?\s*+[A-Za-z_][\w.]*+\(.*?\)\s*+\]?(?=\s*+(?:</?[\w|]|```|\Z))", re.DOTALL)
_BRACES: Final = re.compile(r"call:([\w.:-]+?)\{(.*?)\}(?=\s*(?:<tool_call\|>|<end_function_call>|\Z))", re.DOTALL)
_QUOTE_TOKEN: Final = re.compile(r'<\|"\|>|<escape>')
_BARE_KEY: Final = re.compile(r"(\A|[{,\[])\s*([A-Za-z_]\w*)\s*:")
_NAME_ONLY: Final = re.compile(r"([\w.:-]++)\s*+(?=</(?:longcat_)?tool_call>)")
_NAME_KEYS: Final = ("name", "tool", "tool_name", "function", "function_name", "action", "recipient_name", "method")
_CALL_KEYS: Final = (
    "function", "function_call", "functioncall", "functionCall", "tool_call", "tool", "call", "command", "toolUse", "tooluse",
)  # fmt: skip
_TYPES: Final = ("function", "function_call", "tool_call", "tool_use")
# What a model thinks before it calls, and what names a call.
_BESIDE_KEYS: Final = (
    "thought",
    "thoughts",
    "reasoning",
    "rationale",
    "id",
    "call_id",
    "tool_call_id",
    "index",
    "toolUseId",
    "jsonrpc",
)
_LIST_KEYS: Final = ("tool_calls", "tool_uses", "function_calls", "calls", "actions")
_MESSAGE_KEYS: Final = {"role", "content", "response", "thought", "thoughts", "reasoning", *_LIST_KEYS}
_KEYS: Final = {*_NAME_KEYS, *ARGUMENT_KEYS, *_LIST_KEYS, *_BESIDE_KEYS, "type", *_CALL_KEYS}
_ELEMENT_HEAD: Final = re.compile(
    r"```[a-z]*\s*<(?:[|\uff5c]|/?(?:\w+:)?(?:(?:tool|function)(?:s|_\w+|_?calls?)?|invoke)[\s=>])|&lt;(?:tool|function)\w*&gt;\s*[{\[&]"
    r"|<code>\s*(?:\w+\s*=\s*)?(?:print\()?([\w.]+)\(|(?:```(?:xml|html)?\s*)?<([\w.-]+)(?:\s*/>|>\s*[<{]|\s+[\w-]+=\")"
    r"|<\w+:(?:tool|function)_?calls?(?:>| name=)",
    re.IGNORECASE,
)
_HALF_ELEMENT: Final = re.compile(
    r"`{1,3}[a-z]*\s*(?:<[\w:.-]*>?\s*)?|&\w{0,2};?|&lt;\w*(?:&\w{0,2};?)?\s*|<[\w.:-]*>?\s*|<[\w.-]+\s*/?|<[\w.-]+\s+[\w-]*=?|<code>\s*(?:\w+\s*=\s*)?[\w.(]*",
    re.IGNORECASE,
)
# What stands between the name of an argument and its value.
_GIVEN: Final = r"[\"']?\s*(?:[:=>]|</\w*key>\s*<\w+>|(?<=\s)(?=\"))\s*[^\s<]"
_MOST_HEAD: Final = 200
FUNCTOOLS: Final = "functools["
_HALF_PYTHON: Final = re.compile(r"\[\s*(?:[A-Za-z_][\w.]*)?")
_HEAD: Final = re.compile(
    rf'(?:```(?:json[5cl]?|JSON|{"|".join(BLOCK_LABELS)})?\s*)?(?:\[\s*)?\{{\s*"?(\w+)"?\s*:\s*(?:"([^"]*)"|[^\s"])'
)
_QUOTED_HEAD: Final = re.compile(r'(?:```(?:json)?\s*)?(?:\[\s*)?"')
# What follows the first value of an object, if that has no objects in it: another key, or the end.
_FIRST_KEY: Final = r'(?:```\w*\s*)?(?:\[\s*)?\{\s*"\w+"\s*:\s*'
_AFTER_VALUE: Final = re.compile(
    rf'{_FIRST_KEY}(?:(?:{STRING.pattern}|[\w.+-]++|\[[^\[\]{{}}]*\])\s*(?:,\s*"(\w+)"|\}})|\{{[^{{}}]*\}}\s*,\s*"(\w+)")',
    re.DOTALL,
)
_DEEP_VALUE: Final = re.compile(rf"{_FIRST_KEY}[\[{{]\s*[\[{{]")
_PYTHON_HEAD: Final = re.compile(
    r"(?:```tool_code\s+(?:\w+\s*=\s*|\[\s*)?|\[\s*)(?:print\()?(?:await\s+)?(?!print\()([A-Za-z_][\w.]*)\("
)
_HALF_HEAD: Final = re.compile(
    r"`{0,3}|(?:```tool_code\s+(?:\w+\s*(?:=\s*)?|\[\s*)?|\[\s*)(?:print\()?(?:await\s+)?(?:[A-Za-z_][\w.]*)?"
    r'|(?:```(?:[a-z_-]*5?|JSON)\s*)?(?:\[\s*)?(?:\{\s*(?:"?\w*(?:"?\s*(?::\s*(?:"[^"]*)?)?)?)?)?'
)
_FENCES: Final = ("", "json", "json5", "jsonc", "jsonl", *BLOCK_LABELS)
_WHOLE_BLOCK: Final = re.compile(r"```[^\n`]*\n.*?\n```\s+", re.DOTALL)
_FENCE_END: Final = re.compile(r"\s*(?:```|\))")
# An object with slips or as Python writes it, up to the tag that closes it or the end.
_LITERAL: Final = re.compile(r"\{.*?\}(?=\s*(?:</\w+>|\[END_TOOL|<\||\Z))", re.DOTALL)
_GLUE: Final = re.compile(
    r"(?:[\s,;]|</?code>|<tool_call\s+(?:id|index|type)=[^<>]*>|</?(?:\w+:)?(?:(?:longcat_)?tool_calls?|toolcall|tools|tool_use|tool_code|function_?calls?|(?:execute_)?tool|use_mcp_tool|tool-call|api_call|use_tool|fn)>|</?\uff5cDSML\uff5c(?:function|tool)_calls>|\[/?TOOL_CALLS?\]|\[(?:END_)?TOOL_REQUEST\]|functools(?=\[)|<\|python_tag\|>|<\|tool_call>|<tool_call\|>"
    r"|<(?:start|end)_function_call>|<\uff5ctool_calls?_(?:begin|end)\uff5c>|function<\uff5ctool_sep\uff5c>"
    r"|(?<=>\n)```(?:json)?\n|```(?=\s*</)|(?<=[\s}\]])```\s*```(?:json)?\s*(?=[{\[])"
    r"|(?<=\})\}(?=\s*</tool_call>)|\[unused1[12]\]|<<function>>|function call<\|role_sep\|>"
    r"|<\|tool_call:begin\|>\w*<\|tool_call:name\|>|<\|(?:im_end|calls|tool_call:end|python_start|python_end|eom_id|eot_id|end|call|/?tool_calls?|tool_calls?_(?:section_)?(?:begin|start|end)|action_start|plugin|action_end"
    r"|START_ACTION|END_ACTION|tools_prefix|tools_suffix)\|>"
    rf"|<\uff5ctool▁calls?▁(?:begin|end)\uff5c>|function<\uff5ctool▁sep\uff5c>|function<tool_sep>"
    rf"|{'|'.join(map(re.escape, STOPS))})*",
    re.IGNORECASE,
)
_XML: Final = re.compile(
    r"<(?:\uff5cDSML\uff5c|\w+:)?(function(?:_call)?|invoke|tool_call|tool|call)(?:=|\s+name=)\"?([^\">\s{]+)\"?\s*(?:>|(?=\{))(.*?)"
    r"(</(?:\uff5cDSML\uff5c|\w+:)?\1>|(?=</tool_call>)|\Z)",
    re.DOTALL,
)
_PLAIN_TAGS: Final = ("tool", "call")
_PARAMETER: Final = re.compile(
    r"<(?:\uff5cDSML\uff5c|\w+:)?(?:parameter|param|argument|arg)(?:=|\s+name=)\"?([^\"<>\s]+)\"?(?:\s[^<>]*)?>(.*?)"
    r"(?:</(?:\uff5cDSML\uff5c|\w+:)?(?:parameter|param|argument|arg)>|(?=<parameter\b)|\Z)",
    re.DOTALL,
)
# The name of a server may stand before that of its tool.
_NAME_ELEMENT: Final = re.compile(
    r"(?:<invoke>\s*)?(?:<server_name>[^<]*</server_name>\s*)?<(?:tool_)?name>\s*([^<\s]+)\s*</(?:tool_)?name>\s*"
    r"<(?:tool_)?(?:arguments|parameters|input)>(.*?)</(?:tool_)?(?:arguments|parameters|input)>(?:\s*</invoke>)?",
    re.DOTALL,
)
_TOOL_AND_INPUT: Final = re.compile(r"(?:<tool>)?\s*([\w.-]+)\s*</tool>\s*<tool_input>(.*?)</tool_input>", re.DOTALL)
_TOOL_ELEMENT: Final = re.compile(r"<([\w.-]+)>(.*?)</\1>", re.DOTALL)
_TOOL_ATTRIBUTES: Final = re.compile(r"<([\w.-]+)((?:\s+[\w-]+=\"[^\"]*\")+|(?=\s*/>))\s*(?:/>|>\s*</\1>)")
_NAME_ATTRIBUTES: Final = re.compile(
    r"<(?:tool_call|tool|function|invoke|call)\s+name=\"([^\"]+)\"((?:\s+[\w-]+=\"[^\"]*\")*)\s*(?:/>|>\s*</\w+>)"
)
_ATTRIBUTE: Final = re.compile(r"([\w-]+)=\"([^\"]*)\"")
_ELEMENT: Final = re.compile(r"<(\w+)>(.*?)</\1>", re.DOTALL)
_BLANK: Final = re.compile(r"\s+")
# Some write the bars of DeepSeek's tokens as ASCII has them.
_WITH_ASCII_BARS: Final = re.compile(r"<(/?)\|(DSML|tool▁[^|<>]+)\|")
_PAIR: Final = re.compile(
    r"<(?:longcat_)?arg_key>(.*?)</(?:longcat_)?arg_key>\s*<(?:longcat_)?arg_value>(.*?)</(?:longcat_)?arg_value>\s*", re.DOTALL
)
_PAIRS: Final = re.compile(rf"([\w.:-]+)\s*(?:<tool_sep>\s*)?((?:{_PAIR.pattern.replace('(.*?)', '.*?')})+)", re.DOTALL)
_PAIRS_HEAD: Final = re.compile(r"([\w.:-]+)\n<arg_key>")
_KEY_TAG: Final = len("\n<arg_key>")
_NAMED: Final = re.compile(
    r"([\w.:-]++)\s*+(?:<\|[\w:/-]+\|>|<\uff5ctool▁sep\uff5c>|(?:\[CALL_ID\]\w+)?\[ARGS\]|\()?\s*+(?:```(?:json)?\s*+)?(?=\{)"
)
_READERS: Final[tuple[Callable[[str, int, Tools], _Found | None], ...]] = (
    _read_json, _read_quoted, _read_xml, _read_pairs, _read_tokens, _read_python, _read_braces, _read_name, _read_input,
    _read_elements,
)  # fmt: skip
