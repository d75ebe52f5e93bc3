"""How Chat backends refuse a part of a request: a table of the fields, or parts of fields, and the words.

The first that fits and whose change makes a difference counts.
"""

import re
from re import Pattern
from typing import Final


def _unknown(name: str) -> Pattern[str]:
    """A field that is not known at all. One whose value is not liked is the caller's to mend."""
    no = r"(unknown|unrecognized|unsupported|unexpected|extra|invalid) [^.]*(parameter|argument|field|input)[^.]*"
    return re.compile(rf"{no}{name}|{name}[^.]*{no}|\b{name}\b[^.]* (is|are) not (supported|permitted|allowed)", re.I)


RARE_WORDS: Final = (
    "additionalProperties",
    "exclusiveMinimum",
    "exclusiveMaximum",
    "$schema",
    "patternProperties",
    "propertyNames",
)
_RARE: Final = f"({'|'.join(map(re.escape, RARE_WORDS))})"
_NOT_KNOWN: Final = "(unknown|unsupported|unexpected|unrecognized|not supported|not permitted|not allowed|cannot find)"
_SCHEMA: Final = r"\b(schema|parameters|function_declarations|grammar)\b"
_FORMAT: Final = "(response.format|json_schema|structured output)"
_NOT_THERE: Final = "(not support|unsupported|unavailable|unknown|unrecognized|not permitted)"
STREAM: Final = "stream"
"""Calls get lost when they are streamed."""
RECALLED: Final = "messages.reasoning_content"
"""The model wants its reasoning back with its calls."""
REFUSALS: Final = (
    ("stream_options", re.compile(r"stream_options")),
    ("parallel_tool_calls", re.compile(r"parallel_tool_calls")),
    ("tools", re.compile(r"not support (tools|tool use|tool calling|function)|enable-auto-tool-choice|tool use is not", re.I)),
    ("reasoning_effort", _unknown("reasoning_effort")),
    ("presence_penalty", _unknown("presence_penalty")),
    ("frequency_penalty", _unknown("frequency_penalty")),
    ("max_tokens", re.compile(rf"\bmax_tokens\b.*\bmax_completion_tokens\b|{_unknown('max_tokens').pattern}", re.I)),
    # The names of tools on their outputs.
    ("messages.name", re.compile(r"messages.*\bname\b.*(unsupported|unexpected|not (supported|permitted|allowed))", re.I)),
    (
        "messages.content",
        re.compile(
            r"\bcontent\b.*(must be (a )?strings?|valid string|null|none|nil|must have a 'type'|is required|missing)", re.I
        ),
    ),
    ("messages.blank", re.compile(r"\bcontent\b.*(empty|blank|whitespace)", re.I)),
    (
        "messages.id",
        re.compile(r"\b(tool.?)?(calls?|use)\b.*\bid\b.*(pattern|length|alphanumeric|a-z)|call.?id\b.*(pattern|length)", re.I),
    ),
    ("messages.after", re.compile(r"unexpected role .?user.? after role .?tool", re.I)),
    ("messages.system", re.compile(r"system (message|role).*(beginning|first)|only one system|multiple system", re.I)),
    (
        "messages.roles",
        re.compile(r"system.? role.*not (supported|allowed)|(roles|messages) (must|should) alternate|\balternat(e|ing)\b", re.I),
    ),
    ("messages.tool", re.compile(rf"{_NOT_KNOWN}.*\brole\b.*\btool\b|\brole\b.*\btool\b.*{_NOT_KNOWN}|variant .tool\b", re.I)),
    (RECALLED, re.compile(r"reasoning(_content)?\b.*(passed back|sent back|missing|required|must be)", re.I)),
    ("messages.tools", re.compile(r"(tools|toolConfig)\b.*must be (defined|specified|provided)|tools param", re.I)),
    ("tools.schema", re.compile(rf"{_NOT_KNOWN}[^.]*{_RARE}|{_RARE}[^.]*{_NOT_KNOWN}", re.I)),
    ("tools.strict", re.compile(rf"\bstrict\b.*({_NOT_KNOWN}|same value|mixed)|{_NOT_KNOWN}.*\bstrict\b", re.I)),
    (
        "tools.words",
        re.compile(rf"{_SCHEMA}.*(unsupported|not support|unknown|fail)|(unsupported|unknown|fail|unable).*{_SCHEMA}", re.I),
    ),
    ("tool_choice", re.compile(r"tool.choice.*(incompatible|not support|unsupported|not allowed|only|must be|invalid)", re.I)),
    ("response_format.tools", re.compile(r"(json mode|response.format|structured output).*\b(tool|function)", re.I)),
    ("response_format.type", re.compile(r"response.format.*json_schema", re.I)),
    # A schema that is wrong is the caller's to mend.
    ("response_format", re.compile(rf"\A(?!.*invalid schema)(?:.*{_FORMAT}.*{_NOT_THERE}|.*{_NOT_THERE}.*{_FORMAT})", re.I)),
    # With these, a value that is not supported means that only the default is.
    ("temperature", re.compile(r"temperature.*(not support|unsupported|only the default)|unsupported.*temperature", re.I)),
    ("top_p", re.compile(r"top_p.*(not support|unsupported|only the default)|unsupported.*top_p", re.I)),
)
