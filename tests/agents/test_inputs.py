"""Inputs: what an agent is given, and what it is not."""

import pytest
from tests.agents.world import defined

from mainspring.core.errors import InvalidInputs
from mainspring.features.agents.agent_inputs import build_input_schema, complete_inputs, parse_inputs, render_message

INPUTS = {
    "path": {"type": "string", "required": True, "description": "Where."},
    "depth": {"type": "integer", "default": 2, "enum": [1, 2]},
    "tags": {"type": "array"},
    "loud": {"type": "boolean"},
    "ratio": {"type": "number"},
    "more": {"type": "object"},
    "any": {"type": "any"},
}
AGENT = defined(inputs=INPUTS)


def test_defaults_are_filled_in_and_what_is_optional_may_be_missing() -> None:
    assert complete_inputs(AGENT, {"path": "src"}) == {"path": "src", "depth": 2}


def test_everything_that_is_wrong_is_named() -> None:
    given = {"depht": 1, "depth": True, "tags": "x", "loud": 1, "ratio": "1", "more": [], "any": None}
    with pytest.raises(InvalidInputs) as caught:
        complete_inputs(AGENT, given)
    assert caught.value.status == 422
    for expected in (
        "there is no input `depht`; did you mean `depth`?",
        "`depth` must be of type integer, not boolean",
        "`tags` must be of type array, not string",
        "`loud` must be of type boolean, not integer",
        "`ratio` must be of type number, not string",
        "`more` must be of type object, not array",
        "`path` (string) is missing: Where.",
    ):
        assert expected in caught.value.message
    assert "`any`" not in caught.value.message


def test_a_value_outside_the_enum_is_refused() -> None:
    with pytest.raises(InvalidInputs, match="`depth` must be one of 1, 2, not 3"):
        complete_inputs(AGENT, {"path": "x", "depth": 3})


def test_an_agent_without_declared_inputs_takes_any() -> None:
    assert complete_inputs(defined(), {"a": [1]}) == {"a": [1]}


def test_texts_are_read_as_what_the_definition_wants() -> None:
    given = {"depth": "2", "tags": '["a"]', "path": "5", "loud": "maybe", "more": {"type": "input_text", "text": "{}"}}
    assert parse_inputs(AGENT, given) == {"depth": 2, "tags": ["a"], "path": "5", "loud": "maybe", "more": {}}


def test_inputs_are_said_as_json_or_in_the_words_of_the_definition() -> None:
    assert render_message(defined(), {"a": 1}) == '{"a":1}'
    spoken = defined(inputs={"a": {}, "b": {"type": "array"}}, prompts={"user": "Do {{ a }} with {{b}}{{ a }}."})
    assert render_message(spoken, {"a": "{{ b }}", "b": [1]}) == "Do {{ b }} with [1]{{ b }}."


def test_the_schema_of_an_agent_is_that_of_its_inputs() -> None:
    made = build_input_schema(AGENT)
    assert made["required"] == ["path"]
    assert made["properties"]["depth"] == {"type": "integer", "enum": [1, 2], "default": 2}
    assert made["properties"]["any"] == {}
    assert build_input_schema(defined())["required"] == ["task"]
