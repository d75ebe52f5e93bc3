"""Requests changed for what a backend refuses: any set of refusals gives a request, whatever is in the history."""

from itertools import combinations
from typing import Any

import msgspec

from mainspring.core.items import Json
from mainspring.providers.adapted_request import MOST_PARTS, bare_schema
from mainspring.providers.chat.adaptations import _CHANGES, adapt
from mainspring.providers.profiles import NEUTRAL, ModelProfile

CALL = {"id": "call_1", "type": "function", "function": {"name": "clock", "arguments": "{}"}}
TOOL: dict[str, Any] = {"type": "function", "function": {"name": "clock", "strict": True, "parameters": {"type": "object"}}}
BODY: dict[str, Any] = {
    "model": "m",
    "stream": True,
    "stream_options": {"include_usage": True},
    "messages": [
        {"role": "user", "content": "What time is it?"},
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "call_1", "name": "clock", "content": ""},
        {"role": "assistant", "content": "Noon."},
        {"role": "user", "content": "Thanks."},
    ],
    "tools": [TOOL],
    "tool_choice": "required",
    "max_tokens": 9,
}


def test_any_three_changes_together_give_a_request() -> None:
    for number in (1, 2, 3):
        for changes in combinations(_CHANGES, number):
            messages = adapt(BODY, msgspec.convert(dict(changes), ModelProfile))["messages"]
            assert "Thanks." in str(messages[-1]["content"]) or ("tool_choice", "auto") in changes, changes


def test_nothing_is_said_for_a_system_that_says_nothing() -> None:
    assert adapt(BODY, ModelProfile(system="first"))["messages"] == BODY["messages"]


def test_a_neutral_profile_changes_nothing() -> None:
    assert adapt(BODY, NEUTRAL) is BODY


def test_schemas_that_no_grammar_can_be_made_of_are_told_in_words() -> None:
    (tool,) = adapt(BODY, ModelProfile(schemas="told"))["tools"]
    assert tool["function"]["parameters"] == {"type": "object"}
    assert '{"type":"object"}' in tool["function"]["description"]


def test_a_short_description_is_one_plain_line() -> None:
    words = {
        "description": "Tells the time <|now|> “here”.\nAnd more.",
        "parameters": {"properties": {"a": {"description": "x"}}},
    }
    (tool,) = adapt({**BODY, "tools": [{"function": words}]}, ModelProfile(descriptions="short"))["tools"]
    assert tool["function"] == {"description": "Tells the time now here .", "parameters": {"properties": {"a": {}}}}


def test_a_bare_schema_has_names_and_types_of_what_references_and_alternatives_mean() -> None:
    node: Json = {"type": "object", "properties": {"next": {"$ref": "#/$defs/node"}, "at": {"$ref": "#/$defs/place"}}}
    place: Json = {"type": ["null", "string"], "description": "A city.", "pattern": "^[A-Z]"}
    schema: Json = {
        "type": "object",
        "properties": {
            "place": {"$ref": "#/$defs/place"},
            "size": {"anyOf": [{"type": "null"}, {"type": "integer", "minimum": 1}], "description": "How large."},
            "names": {"type": "array", "items": {"type": "string", "enum": ["a"]}},
            "lost": {"$ref": "#/$defs/nothing"},
        },
        "required": ["place", "other"],
        "additionalProperties": False,
        "$defs": {"place": place, "node": node},
    }
    assert bare_schema(schema) == {
        "type": "object",
        "properties": {
            "place": {"type": "string", "description": "A city."},
            "size": {"type": "integer", "description": "How large."},
            "names": {"type": "array", "items": {"type": "string"}},
            "lost": {"type": "object"},
        },
        "required": ["place"],
    }
    endless = bare_schema({"type": "object", "properties": {"node": {"$ref": "#/$defs/node"}}, "$defs": {"node": node}})
    assert str(endless).count("'next'") < 20
    wide = {"type": "object", "properties": {str(number): {"$ref": "#/$defs/wide"} for number in range(50)}}
    assert str(bare_schema({**wide, "$defs": {"wide": wide}})).count("type") < 60 * MOST_PARTS
