"""Calls that a model writes with labels of its own around them: `Action: NAME`, `>>>NAME`, `NAME\n{...}`, `Call: NAME(x=1)`.

Families of models and prompts have a hundred such forms. They have in common that nothing stands there but the name of a tool,
arguments that fit it, signs, and words of the trade. So one reader is enough: it reads a text that is all of an answer, and one
other word makes it text.
"""

import ast
import json
import re
from collections.abc import Mapping
from contextlib import suppress
from typing import Final, Literal, NamedTuple

from mainspring.core.items import Json, ToolDefinition
from mainspring.providers.argument_types import fits, list_properties, type_values
from mainspring.providers.called_names import find_tool_name
from mainspring.providers.json_text import MOST_ODD, UNREADABLE, json_text, parse_loosely
from mainspring.providers.made_up_turns import CUT_TURN, MADE_UP

Tools = Mapping[str, ToolDefinition]


class Labelled(NamedTuple):
    """Where labels end: at a value, at the end of the text, or at another word. `name` is the tool they have named."""

    at: Literal["value", "end", "word"]
    name: str
    place: int


class NamedArguments(NamedTuple):
    name: str
    arguments: Json


def skip_labels(text: str, tools: Tools, name: str = "") -> Labelled:
    """Walks over signs, labels and the name of one tool. A word that ends the text may still become one of them."""
    place = 0
    for token in _TOKEN.finditer(text):
        word, place = token[0], token.start()
        if word[0] in "{[":
            if word[0] == "{" or _OBJECT.match(text, place):
                return Labelled("value", name, place)
            continue
        if word[0] == "(":
            if name and not _OBJECT.match(text, place):
                return Labelled("value", name, place)
            continue
        # Whatever a token is called, it is a sign.
        is_token = text.endswith("<|", 0, place) and text[token.end() : token.end() + 2] in ("", "|", "|>")
        if word not in tools and (is_token or word.lower() in _LABELS):
            continue
        # `Now: {}` begins with a word, though there be a tool of that name.
        is_word = word.istitle() and word.lower() in tools
        meant = "" if name or is_word else find_tool_name(word, tools)
        if meant in tools:
            name = meant
        else:
            is_half = token.end() == len(text) and _may_become(word, tools)
            return Labelled("end" if is_half else "word", name, place)
    return Labelled("end", name, len(text))


def may_be_labelled(text: str, tools: Tools) -> bool | None:
    """Whether an answer that begins like this may be a call with labels; None if it cannot be told yet."""
    if is_thought := _THOUGHT.match(text) is not None:
        if (action := _ACTION.search(text)) is None:
            return None if len(text) < MOST_THOUGHT and not PAST_THOUGHT.search(text) else False
        text = text[action.start() :]
    elif (len(text) <= len(_THOUGHT_WORD) and _THOUGHT_WORD.startswith(text)) or _HALF_THOUGHT.fullmatch(text):
        return None
    if (is_thought and is_code(text)) or _names_action(text, tools):
        return True
    if text.startswith("`") and (opened := open_block(text, tools)) != text:
        if opened is None or not opened:
            return None
        text = opened
    if text.startswith(("`", "> ", "|")):
        return False
    labels = skip_labels(text[:_MOST_LABELS], tools)
    is_worded = _WORD.search(text, 0, labels.place) is not None
    if labels.at == "end":
        return None if len(text) < (_MOST_LABELS if is_worded else _MOST_SIGNS) else False
    # JSON alone has no labels.
    if labels.at == "word" or not is_worded:
        return False
    if _HALF_VALUE.fullmatch(text, labels.place):
        return None
    return _VALUE.match(text, labels.place) is not None


def open_block(text: str, tools: Tools) -> str | None:
    """A block of code without the signs that open it, if its label is nothing, a word of the trade or the name of a tool, which
    is kept as the label of a call. None if that cannot be told yet."""
    found = _BLOCK.match(text)
    if found is None:
        return None if "```".startswith(text) else text
    label, end = found[1], found[2]
    if is_program(text):
        return text
    is_call = not label or label.lower() in BLOCK_LABELS or find_tool_name(label, tools) in tools
    if not end:
        is_half = len(text) < _MOST_LABELS and not text[found.end() :].strip()
        return None if is_half and (is_call or _may_become(label, tools)) else text
    return f"{label}{text[found.end() - 1 :]}" if is_call else text


def read_block(text: str, tools: Tools) -> NamedArguments | None:
    """The call of a block of code whose label is the name of a tool, and which holds keys and values, a word, or nothing."""
    found = _NAMED_BLOCK.fullmatch(text)
    name = "" if found is None else find_tool_name(found[1], tools)
    if found is None or name not in tools or is_program(text):
        return None
    written = read_words(found[2], tools[name]) if found[2].strip() else "{}"
    with suppress(ValueError, RecursionError):
        arguments = json.loads(written)
        return NamedArguments(name, arguments) if isinstance(arguments, dict) and fits(arguments, tools[name]) else None
    return None


def is_program(text: str) -> bool:
    """Whether a block of code is labelled as a language and is no JSON: it is shown, though a tool has that name."""
    return _PROGRAM.match(text) is not None


def is_code(text: str) -> bool:
    """Whether a text that follows a thought is code."""
    return _CODE.match(text) is not None


def split_thought(text: str) -> tuple[str, str]:
    """The thought that a text begins with, if an action follows it, and the rest."""
    if _THOUGHT.match(text) and (action := _ACTION.search(text)):
        return text[: action.start()], text[action.start() :]
    return "", text


def read_labelled(text: str, tools: Tools) -> list[NamedArguments] | str:
    """The calls that a text is, each with labels of its own, or the JSON of calls that labels announce; none if it is neither."""
    if (plain := _read_plain(text, tools)) is not None:
        return [plain]
    text = _take_shown(CUT_TURN.split(text, maxsplit=1)[0])
    labels = skip_labels(text, tools)
    if labels.at == "value" and not labels.name:
        return _strip_labels(text[labels.place :]) if labels.place else []
    calls: list[NamedArguments] = []
    while labels.at == "value" and labels.name:
        tool = tools[labels.name]
        found = _read_object(text, labels.place) if text[labels.place] == "{" else _read_parameters(text, labels.place, tool)
        if found is None or not fits(arguments := type_values(found[0], tool), tool):
            return []
        calls.append(NamedArguments(labels.name, arguments))
        text = text[found[1] :]
        if _is_label(text) or (calls and MADE_UP.match(text.lstrip(_SIGNS)) and skip_labels(text, tools).at != "value"):
            return calls
        labels = skip_labels(text, tools)
    return []


def read_words(text: str, tool: ToolDefinition) -> str:
    """Arguments without their braces, or the one word that a tool needs, as JSON; the text if they are none, or do not fit."""
    bare = text.strip()
    if len(bare) > MOST_ODD or not list_properties(tool):
        return text
    lines = [(pair[1], pair[2]) for line in bare.splitlines() if (pair := _PAIR.fullmatch(line))]
    found = _read_parameters(f"({bare})", 0, tool) if "=" in bare else None
    candidates = [
        parse_loosely(f"{{{bare}" if bare.endswith("}") else f"{{{bare}}}"),
        None if found is None else found[0],
        dict(lines) if lines and len(lines) == bare.count("\n") + 1 else None,
        name_only_argument(bare, tool) if _ONE_WORD.fullmatch(bare) else None,
    ]
    for value in candidates:
        if isinstance(value, dict) and fits(typed := type_values(value, tool), tool):
            return json_text(typed)
    return text


def name_only_argument(word: str, tool: ToolDefinition) -> object:
    """A word as the arguments of a tool that needs one, or has one place for it; else the word."""
    properties, required = list_properties(tool), (tool.parameters or {}).get("required") or []
    texts = [key for key, schema in properties.items() if isinstance(schema, dict) and schema.get("type") == "string"]
    keys = [key for key in texts if key in required] if required else texts
    return {keys[0]: word.strip().strip("\"'`")} if len(keys) == 1 and len(required) <= 1 else word


def _read_plain(text: str, tools: Tools) -> NamedArguments | None:
    """An action whose input is a word, as ReAct was first written."""
    found = _PLAIN_ACTION.fullmatch(text)
    name = "" if found is None else find_tool_name(found[1], tools)
    if found is None or name not in tools:
        return None
    tool, given = tools[name], (found[2] or found[3]).strip()
    if given.strip("\"'`").lower() in _NO_INPUT and fits({}, tool):
        return NamedArguments(name, {})
    written = read_words(given, tool)
    arguments = name_only_argument(given, tool) if written == given else json.loads(written)
    return NamedArguments(name, arguments) if isinstance(arguments, dict) else None


def _take_shown(text: str) -> str:
    """The call that is awaited or printed; the text if there is none."""
    said = text.rstrip()
    if said.startswith("await "):
        return said.removeprefix("await ")
    return said.removeprefix("print(")[:-1] if said.startswith("print(") and said.endswith("))") else text


def _names_action(text: str, tools: Tools) -> bool:
    found = _ACTION_HEAD.match(text)
    return found is not None and find_tool_name(found[1], tools) in tools


def _read_object(text: str, place: int) -> tuple[Json, int] | None:
    with suppress(ValueError, RecursionError):
        value, end = _decoder.raw_decode(text, place)
        return (value, end) if isinstance(value, dict) else None
    end = text.rfind("}") + 1
    value = parse_loosely(text[place:end])
    return (value, end) if isinstance(value, dict) else None


def _read_parameters(text: str, place: int, tool: ToolDefinition) -> tuple[Json, int] | None:
    """What stands in the brackets of a call of Python's; what has no name has that of its place."""
    end = text.rfind(")") + 1
    with suppress(*UNREADABLE):
        made = ast.parse(f"f{text[place:end]}", mode="eval").body
        if isinstance(made, ast.Call):
            names = [*list_properties(tool)]
            given = dict(zip(names, map(ast.literal_eval, made.args), strict=False)) if len(made.args) <= len(names) else {}
            named = {each.arg: ast.literal_eval(each.value) for each in made.keywords if each.arg}
            is_whole = len(given) + len(named) == len(made.args) + len(made.keywords) == len({**given, **named})
            return ({**given, **named}, end) if is_whole else None
    return None


def _strip_labels(text: str) -> str:
    """JSON without the labels behind it."""
    end = max(text.rfind("}"), text.rfind("]")) + 1
    return text[:end] if _is_label(text[end:]) else text[: text.rfind("}") + 1] if _is_label(text[text.rfind("}") + 1 :]) else ""


def _is_label(text: str) -> bool:
    """Whether nothing but signs and labels is there."""
    return all(token[0].lower() in _LABELS or token[0][0] in "([{" for token in _TOKEN.finditer(text))


def _may_become(word: str, tools: Tools) -> bool:
    # A namespace may stand before the name.
    begun = word[max(map(word.rfind, "./:")) + 1 :]
    return any(name.startswith(begun) for name in tools) or any(label.startswith(word.lower()) for label in _LABELS)


_decoder = json.JSONDecoder(strict=False)
BLOCK_LABELS: Final = (
    "tool_call", "tool_calls", "tool_code", "tool_use", "tool", "tool-call", "tool-calls", "toolcall", "function_call",
    "function_calls", "function-call", "functioncall", "function", "functions", "action", "api_call", "call",
)  # fmt: skip
"""What a block of code is called that holds calls."""
_BLOCK: Final = re.compile(r"```[ \t]*(?:json[ \t]+(?=\w))?([\w.:/-]*+)([ \t]*\n|[ \t]+(?=\{))?")
_NAMED_BLOCK: Final = re.compile(r"```[ \t]*(?:json[ \t]+)?([\w.:/-]++)[ \t]*\n((?:(?!```).)*?)\s*```\s*", re.DOTALL)
_PROGRAM: Final = re.compile(
    r"```[ \t]*(?:bash|sh|zsh|fish|shell|console|terminal|powershell|pwsh|cmd|bat|python3?|py|ipython|sql|javascript|js"
    r"|typescript|ts|node|deno|ruby|perl|php|lua|go|rust|java|kotlin|swift|scala|c|cpp|r|julia|matlab|html|css|xml|json|yaml|yml|toml|ini|csv|text|txt"
    r"|plaintext|markdown|md|diff|patch|http|graphql|mermaid|latex|tex|regex|docker|dockerfile|git|curl|make|makefile|nginx|jq|awk|sed)"
    r"[ \t]*\n\s*+[^\s{\[<`]",
    re.IGNORECASE,
)
_PAIR: Final = re.compile(r"\s*(\w+):[ \t]+(\S.*?)\s*")
# In quotes or without any; half a text has one.
_ONE_WORD: Final = re.compile(r"[^\s\"'`{}\[\]:=,]+|\"[^\"\\\n]+\"")
_TOKEN: Final = re.compile(r"[^\W\d](?:[\w./:-]*\w)?|\d+|[{(\[]")
_WORD: Final = re.compile(r"[^\W\d]")
_OBJECT: Final = re.compile(r"[\[(]\s*\{")
_THOUGHT_WORD: Final = "Thought:"
_HALF_THOUGHT: Final = re.compile(r"\*{1,2}(?:T(?:h(?:o(?:u(?:g(?:h(?:ts?:?\*{0,2})?)?)?)?)?)?)?")
_THOUGHT: Final = re.compile(r"\**+Thoughts?:\**+ ")
_ACTION: Final = re.compile(r"^(?:\**Action\**:|(?:Code:\s*\n)?```(?:py|python)\n|<code>)", re.MULTILINE)
_CODE: Final = re.compile(r"(?:Code:\s*)?```(?:py|python)\n|<code>")
# Possessive, and one place for the end of a line: what does not match is read once, however many blanks it has.
_ACTION_HEAD: Final = re.compile(r"\**+Action\**+:\s*+`?([\w.-]++)`?(?:\[|[^\S\n]*+\n\s*+\**+Action[ _]?Input\b)")
_PLAIN_ACTION: Final = re.compile(
    r"\**+Action\**+:\s*+`?([\w.-]++)`?"
    r"(?:\[([^\[\]\n]++)\]|[^\S\n]*+\n\s*+\**+Action[ _]?Input\**+:\**+[ \t]*+([^\n{\[]*+))"
    r"(?:\s*+\Z|[^\S\n]*+\n\s*+(?:Observation\b.*+|PAUSE\s*+))",
    re.DOTALL,
)
PAST_THOUGHT: Final = re.compile(
    r"(?<!\s)(?=[^\S\n]*+\n[^\S\n]*+\n)\s++(?!\**+(?:Thought|Action|Code|Observation|Final|```|<))[^\n]{12}"
)
"""What follows a thought that neither an action nor an answer follows."""
_NO_INPUT: Final = frozenset({"", "none", "null", "n/a", "nothing", "no input"})
# How arguments begin: words in brackets, or a set, do so otherwise.
_VALUE: Final = re.compile(r"""[\[(\s]*\{\s*["'}]|(?<=\()\{\s*\w+\s*:|\(\s*(?:[)"'\d{\[-]|\w+\s*=|(?:True|False|None)\b)""")
_HALF_VALUE: Final = re.compile(r"[\[(\s]*\{?\s*|(?<=\()\{\s*\w*\s*|\(\s*\w*\s*")
_SIGNS: Final = " \t\n)]`.;"
_MOST_LABELS: Final = 200
_MOST_SIGNS: Final = 24
MOST_THOUGHT: Final = 2_000
_LABELS: Final = frozenset(
    {
        "action", "action_input", "actioninput", "args", "arguments", "assistant", "assistantcommentary", "await",
        "bot_end", "bot_start", "call", "calling", "calls", "code",
        "commentary", "content", "from", "function", "function_call", "function_calls", "functioncall",
        "functions", "input", "invoke", "json", "name", "observation", "parameters", "params", "pause", "print", "py", "python",
        "recipient", "result", "stop", "to", "tool", "tool_call", "tool_calls", "tool_code", "tool_name", "tool_use", "toolcall",
        "tool/function_call", "tools", "type", "using", "with", "xml",
    }
)  # fmt: skip
