"""How Chat backends refuse a request: a table from their words to the field of the profile that helps.

The first that fits and whose change makes a difference counts.
"""

import re
from re import Pattern
from typing import Final

from mainspring.providers.profiles import MOST_OUTPUT, NO_DESCRIPTION, NO_TEMPERATURE, WINDOW, RefusalRule


def _unknown(name: str) -> Pattern[str]:
    """A field that is not known at all. One whose value is not liked is the caller's to mend."""
    no = (
        r"(?:(?:unknown|unrecognized|unsupported|unexpected|extra|invalid) [^.]*(?:parameter|argument|field|input)[^.]*"
        r"|not support[^.]*(?:parameter|argument)s? \W*|(?:parameter|argument)s? not support\w*[^.:]*: )"
    )
    return re.compile(rf"{no}{name}|{name}[^.]*{no}|\b{name}\b[^.]* (is|are) not (supported|permitted|allowed|enabled)", re.I)


# What no change of single words may mend.
_WRONG_SCHEMA: Final = (
    r"not a valid [\w ]*json schema|input_schema: json schema is invalid|schema contains features"
    r"|unmarshal .*tools\.function\.parameters"
)
RARE_WORDS: Final = (
    "additionalProperties",
    "exclusiveMinimum",
    "exclusiveMaximum",
    "$schema",
    "patternProperties",
    "propertyNames",
)
_RARE: Final = f"({'|'.join(map(re.escape, RARE_WORDS))})"
_NOT_KNOWN: Final = (
    "(unknown|unsupported|unexpected|unrecognized|not (?:supported|handled|implemented|permitted|allowed)|cannot find)"
)
_SCHEMA: Final = r"(?:\b|_)(schema|parameters|function_declarations|grammar)\b"
# The schema of an answer is the caller's to mend.
_OF_TOOLS: Final = r"\A(?!.*response.format).*"
_FORMAT: Final = "(response.format|json_schema|structured output)"
_NOT_THERE: Final = (
    "(not support|unsupported|unavailable|unknown|unrecognized|not permitted|not enabled|invalid value|[不仅]支持)"
)
_TOGETHER: Final = "(incompatible|mutually exclusive|cannot (specify|use|combine)|not allowed together)"
_STREAMED: Final = (
    r"\bstream(ing)?\b(?!_)[^.]*\b(not (yet )?(be )?(support|available|allowed)|unsupported)|set .?stream.? to false"
    r"|\bstream\b\W{0,3}(must be|should be|=|to)?\W{0,3}false\b|\bstream\b(?!_)[^.]*\bcannot be (used|combined)\b"
    r"|\b(not (yet )?support\w*|unsupported|cannot (be )?(use|combine)d?)\b[^.]* (in|with|when|while) [^.]*\bstream(ing|ed)?\b"
    r"(?!_)|verified to stream\b"
)
# A refusal that names nothing: what can best be done without is left out.
_NAMELESS: Final = re.compile(
    r"answered HTTP (400|422)(: ((bad|invalid) (request|api parameters?|parameters?|input)\b|API 调用参数有误|unprocessable)"
    r"[^`'\"\[]{0,60})?\Z",
    re.I,
)
REFUSALS: Final = (
    MOST_OUTPUT,
    WINDOW,
    RefusalRule("stream_options", False, re.compile(r"stream_options")),
    RefusalRule("stream_tools", False, re.compile(_STREAMED, re.I)),
    # What is said of streams without tools is said of all.
    RefusalRule("stream", False, re.compile(_STREAMED, re.I)),
    RefusalRule("parallel_tool_calls", False, re.compile(r"parallel_tool_calls")),
    RefusalRule(
        "tools",
        False,
        re.compile(
            r"(not|n't|that) support (tools|tool use|tool calling|function)|enable-auto-tool-choice"
            r"|(?<!parallel )\b(tools|tool use|(tool|function) calling)\W+is not|unsupported param\w*: tools\b"
            r"|\btools: extra input|\btools\b.*requires --jinja|extra inputs[^.]*\W'tools'|\btools are not supported"
            r"|(tool|function) calling is unsupported|not handle tools|tool.call.parser"
            r"|(tool|function) calls? (is|are) not support|tool(s| use| calling) ((has|have) )?not (been )?(enabled|implemented)"
            r"|supplied: tools\b|'/tools' not allowed"
            r"|not have the capability\W+(tool|function)",
            re.I,
        ),
    ),
    RefusalRule(
        "reasoning_effort",
        False,
        re.compile(
            rf"{_unknown('reasoning_?effort').pattern}|reasoning_effort.*one of .?none\W+(or )?\W*default"
            r"|not support thinking\b(?! mode)|thinking is not supported|reasoning is mandatory"
            r"|think value .*not support|reasoning effort is not supported|reasoning_effort\W+extra input"
            r"|(thinking|reasoning)[ _](level|effort) (is not|cannot be|is n't) (adjust|configur|chang|set\b)",
            re.I,
        ),
    ),
    # What is refused is one of the other levels.
    RefusalRule(
        "efforts",
        "three",
        re.compile(
            r"(supported values are|input should be|must be one of|expected( one of)?):? *['`\"]?low\b.{1,12}\bmedium\b"
            r".{1,16}\bhigh\b",
            re.I,
        ),
    ),
    RefusalRule("presence_penalty", False, _unknown("presence_penalty")),
    RefusalRule("frequency_penalty", False, _unknown("frequency_penalty")),
    RefusalRule(
        "limit",
        "max_completion_tokens",
        re.compile(
            r"\bmax_tokens\b.*\bmax_completion_tokens\b"
            rf"|max_completion_tokens\b.{{0,3}} (rather than|instead of|not)\b.*\bmax_tokens\b|{_unknown('max_tokens').pattern}"
            r"|\bmax_tokens\b.? is deprecated",
            re.I,
        ),
    ),
    # The names of tools on their outputs.
    RefusalRule(
        "output_names",
        False,
        re.compile(
            r"messages.*\bname\b.*(unsupported|unexpected|not (supported|permitted|allowed))"
            r"|'name' is (unsupported|not (supported|permitted|allowed))",
            re.I,
        ),
    ),
    RefusalRule(
        "blank",
        "empty",
        re.compile(
            r"\bcontent\b.*((must|to) be (a )?strings?|valid string|null|none|nil|must have a 'type'"
            r"|(field|is) (a )?required|missing)|missing field .content\b|\b(null|nil)\b.*\bcontent\b|NoneType"
            r"|\bnull at row \d|role .assistant. must not be empty|messages 参数非法",
            re.I,
        ),
    ),
    RefusalRule(
        "blank", "omitted", re.compile(r"\bcontents?\b.*(empty|blank|whitespace)|role .assistant. must not be empty", re.I)
    ),
    RefusalRule(
        "blank",
        "told",
        re.compile(r"\bcontents?\b.*(empty|blank|whitespace|is (a )?required|missing)|role .assistant. must not be empty", re.I),
    ),
    RefusalRule(
        "content",
        "text",
        re.compile(
            r"\bcontent\b.*(must be (a )?strings?|valid string|expected (a )?string|of type string)|invalid type: sequence"
            r"|not \"list\"",
            re.I,
        ),
    ),
    RefusalRule(
        "output_content",
        "parts",
        re.compile(r"\bcontent\b.*(valid list|(must|should) be (a list|an array)|expected (a |an )?(list|array|sequence))", re.I),
    ),
    RefusalRule(
        "arguments",
        "object",
        re.compile(
            r"\barguments\b.*(valid dict|type map|type api\.|be an? (object|dict|map)|expected (an? )?(object|dict|map))", re.I
        ),
    ),
    RefusalRule(
        "ids",
        "nine",
        re.compile(
            r"\b(tool.?)?(calls?|use)\b.{0,80}\bids?\b.{0,80}(pattern|length|alphanumeric|a-z)|call.?id\b.*(pattern|length)", re.I
        ),
    ),
    RefusalRule(
        "calls_together", False, re.compile(r"only supports? (a )?single tool.calls?\b|one tool.call (at a time|per )", re.I)
    ),
    RefusalRule("user_after_output", False, re.compile(r"unexpected role .?user.? after role .?tool", re.I)),
    RefusalRule(
        "system",
        "first",
        re.compile(
            r"system (message|role).*(beginning|first)|(only one|single|multiple|several|second) system"
            r"|invalid chat setting",
            re.I,
        ),
    ),
    RefusalRule(
        "system",
        "user",
        re.compile(
            r"system.? role.*not (supported|allowed)|role.*does not support .?system|(not|n't) support system (message|prompt)"
            r"|system (messages?|prompts?|instructions?) (is|are) not (supported|allowed)"
            r"|(roles|messages) (must|should) alternate|\balternat(e|ing)\b"
            r"|only user and assistant roles|invalid role\W+system|developer instruction\w* (is|are) not (enabled|supported)"
            r"|(first message|conversation)s? must (be|start|begin|use) .*\buser\b",
            re.I,
        ),
    ),
    RefusalRule(
        "output_role",
        "user",
        # Some templates cannot read arguments as they are written, or no words beside calls.
        re.compile(
            rf"{_NOT_KNOWN}.*\brole\b.*\btool\b|\brole\b.*\btool\b.*{_NOT_KNOWN}|variant .tool\b|only user and assistant roles"
            r"|item pairs from a mapping|filter\W+items\b|either content or tool_calls|\balternat(e|ing)\b|no user query found"
            r"|\brole\b.*(should|must) be (one of )?(?!.*\btool\b).*\buser\b.*\bassistant\b|last role\b.*\buser\b.*\bgot .?tool"
            r"|\btool_calls\b.*extra inputs",
            re.I,
        ),
    ),
    RefusalRule(
        "recall",
        "reasoning_content",
        re.compile(
            r"reasoning(_content)?\b.*(passed back|sent back|missing|required|must be)|missing \W*reasoning_content", re.I
        ),
    ),
    RefusalRule(
        "calls_without_tools",
        False,
        re.compile(r"(tools|toolConfig)\b.*must be (defined|specified|provided)|tools=?.? param", re.I),
    ),
    RefusalRule(
        "schemas",
        "common",
        re.compile(
            rf"{_NOT_KNOWN}[^.]*{_RARE}|{_RARE}[^.]*{_NOT_KNOWN}|non-empty for OBJECT type"
            r"|object schema missing properties|function\b.* parameters is empty",
            re.I,
        ),
    ),
    RefusalRule("descriptions", "filled", NO_DESCRIPTION),
    RefusalRule("strict", False, re.compile(rf"\bstrict\b.*({_NOT_KNOWN}|same value|mixed)|{_NOT_KNOWN}.*\bstrict\b", re.I)),
    RefusalRule(
        "schemas",
        "bare",
        re.compile(
            rf"{_SCHEMA}.*(unsupported|not support|unknown|fail|missing items|only '?enum|unimplemented)"
            rf"|{_OF_TOOLS}({_WRONG_SCHEMA})"
            rf"|{_OF_TOOLS}{_SCHEMA}.*(not permitted|not allowed|(didn't|must|does not) specify)"
            rf"|(unsupported|unknown|unrecognized|fail|unable).*{_SCHEMA}|are supported for STRING type",
            re.I,
        ),
    ),
    # Last, what even names and types are refused for.
    RefusalRule(
        "schemas",
        "told",
        re.compile(
            r"fail.*\bgrammar\b|too (large|many|complex).*\b(tools|schema|grammar)\b"
            rf"|{_OF_TOOLS}(\b(anyOf|oneOf|allOf|enum)\b.*{_NOT_KNOWN}|(didn't|must|does not) specify.*\bschema type\b"
            rf"|json schema not supported|unimplemented keys|{_WRONG_SCHEMA})",
            re.I,
        ),
    ),
    RefusalRule("descriptions", "short", re.compile(r"grammar stack|grammar.*(crash|unexpected)", re.I)),
    RefusalRule(
        "tool_choice",
        "auto",
        re.compile(
            r"tool.choice.*(incompatible|not support|unsupported|not allowed|not available|only|must (either )?be|should be"
            r"|invalid|permitted|forces|requires)"
            r"|unmarshal\b.*\btool.choice|(invalid|unsupported)\b.*\btool.choice|(not|n't) support\b.*tool.?choice"
            r"|only tool.choice\W+auto|tool.choice\W+(unknown variant|.{0,20}[不仅]支持)|support the provided .?tool.choice",
            re.I,
        ),
    ),
    RefusalRule(
        "response_format",
        "without_tools",
        re.compile(
            r"(json mode|response.format|structured output).*\b(tool|function)|function calling.*response mime"
            rf"|grammar constraints with tools|\btools\b.*{_TOGETHER}.*response.format|{_TOGETHER}.*\btools\b.*response.format"
            r"|grammar and tools are mutually exclusive",
            re.I,
        ),
    ),
    RefusalRule("json_object", False, re.compile(r"response.format.*json_schema", re.I)),
    RefusalRule("format_told", True, re.compile(r"must contain the word .?json", re.I)),
    # A schema that is wrong is the caller's to mend.
    RefusalRule(
        "response_format",
        "none",
        re.compile(
            rf"\A(?!.*invalid schema)(?:.*{_FORMAT}.*{_NOT_THERE}|.*{_NOT_THERE}.*{_FORMAT})|response_format.*input should be"
            r"|json mode.*not (supported|enabled)|guided decoding is not supported|convert the grammar"
            r"|too many states for serving|\bresponse_format value as json_schema is enabled only"
            r"|requested parameters: response_format",
            re.I,
        ),
    ),
    RefusalRule("temperature", False, NO_TEMPERATURE),
    RefusalRule(
        "top_p",
        False,
        re.compile(
            r"top_p.*(not support|unsupported|only the default|deprecated|extra input|\bboth\b)|unsupported.*top_p"
            r"|\bboth\b.*top_p",
            re.I,
        ),
    ),
    RefusalRule("stream_options", False, _NAMELESS),
    RefusalRule("strict", False, _NAMELESS),
    RefusalRule("parallel_tool_calls", False, _NAMELESS),
    RefusalRule("tool_choice", "auto", _NAMELESS),
)
