"""Arguments: from the model's text to an object, and that object against the tool's schema."""

import subprocess
import sys
from typing import Annotated

import msgspec
import pytest
from inline_snapshot import snapshot

from mainspring.core.errors import InvalidRequest
from mainspring.core.items import Json, ToolDefinition, parse_arguments
from mainspring.tools.schema import MOST_COMPILED, REF, Validator, Validators, inline_components

TRIP: Json = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 20},
        "stops": {"type": "array", "items": {"type": "object", "properties": {"days": {"type": "integer"}}}},
        "note": {"anyOf": [{"type": "string"}, {"type": "null"}]},
    },
    "required": ["city"],
    "additionalProperties": False,
}


def trip(parameters: Json | None = TRIP) -> ToolDefinition:
    return ToolDefinition("trip", parameters=parameters)


@pytest.mark.parametrize(("text", "parsed"), [("", {}), ("  \n", {}), ("{}", {}), ('{"a": [1, 2.5]}', {"a": [1, 2.5]})])
def test_arguments_are_an_object_and_nothing_means_none_given(text: str, parsed: Json) -> None:
    assert parse_arguments(text) == parsed


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('{"a": ', "not valid JSON"),
        ("{'a': 1}", "not valid JSON"),
        ('{"a": 1} trailing', "not valid JSON"),
        ("[1]", "must be a JSON object, not list"),
        ('"Paris"', "must be a JSON object, not str"),
        ("null", "must be a JSON object, not NoneType"),
        pytest.param('{"a":' + "[" * 50_000, "nested too deeply", id="deep"),
    ],
)
def test_arguments_that_are_no_object_are_refused_in_words_for_the_model(text: str, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        parse_arguments(text)


def test_arguments_that_fit_have_no_errors() -> None:
    assert Validator(trip()).errors({"city": "Paris", "stops": [{"days": 2}], "note": None}) == []


def test_every_error_is_told_with_its_path() -> None:
    assert Validator(trip()).errors({"city": 7, "stops": [{"days": 1}, {"days": "two"}], "note": 1, "when": "now"}) == snapshot(
        [
            'city: 7 is not of type "string"',
            'stops[1].days: "two" is not of type "integer"',
            'note: 1 is not of type "string", or 1 is not of type "null"',
            "arguments: Additional properties are not allowed ('when' was unexpected)",
        ]
    )
    assert Validator(trip()).errors({}) == ['arguments: "city" is a required property']


def test_an_error_about_a_huge_value_stays_short() -> None:
    (error,) = Validator(trip()).errors({"city": "x" * 100_000})
    assert len(error) < 400
    assert error.endswith("is longer than 20 characters")


def test_arguments_nested_beyond_measure_are_an_error() -> None:
    deep: object = 1
    for _ in range(500):
        deep = [deep]
    assert Validator(trip()).errors({"city": "x", "stops": deep}) == ["arguments: Recursion limit reached"]


def test_a_tool_without_parameters_takes_anything() -> None:
    assert Validator(trip(None)).errors({"anything": 1}) == []


@pytest.mark.parametrize(
    ("schema", "told"),
    [
        ({"type": "objct"}, r'type: "objct" is not valid'),
        ({"properties": {"a": {"type": 3}}}, r"properties\.a\.type: 3 is not valid"),
        ({"$ref": "#/$defs/missing"}, "the schema: Pointer '/\\$defs/missing' does not exist"),
    ],
)
def test_a_schema_that_is_none_names_the_tool_and_the_problem(schema: Json, told: str) -> None:
    with pytest.raises(InvalidRequest, match=f"tool `trip`: its parameters are not a JSON Schema: {told}") as caught:
        Validator(trip(schema))
    assert caught.value.param == "tools"


def test_a_pattern_that_is_too_large_beside_the_others_is_not_just_called_none() -> None:
    patterns = {f"p{place}": {"pattern": r"(?=.*\d)(?=.*[a-z])\w{8,64}"} for place in range(400)}
    with pytest.raises(InvalidRequest, match=r"properties\.p0\.pattern: .* or takes more than the 13333 bytes") as caught:
        Validator(trip({"properties": patterns}))
    assert caught.value.param == "tools"


@pytest.mark.parametrize("address", ["http://127.0.0.1:9/schema.json", "file:///etc/hostname", "https://example.com/x"])
def test_a_schema_that_refers_elsewhere_is_refused_and_nothing_is_fetched(address: str) -> None:
    with pytest.raises(InvalidRequest, match="is outside the schema and is not fetched"):
        Validator(trip({"$ref": address}))


def test_validators_are_compiled_once_per_tool() -> None:
    validators = Validators()
    assert validators.errors(trip(), {}) == validators.errors(trip({**TRIP}), {}) == ['arguments: "city" is a required property']
    assert len(validators._compiled) == 1
    assert validators.errors(trip({}), {}) == []
    assert len(validators._compiled) == 2


def test_validators_forget_the_oldest_of_very_many_tools() -> None:
    validators = Validators()
    for number in range(MOST_COMPILED + 5):
        validators.errors(ToolDefinition(f"tool_{number}"), {})
    names = [name for (name, _), _ in validators._compiled.items()]
    assert (len(names), names[0]) == (MOST_COMPILED, "tool_5")


class Place(msgspec.Struct):
    """Somewhere."""

    name: str


class Leg(msgspec.Struct):
    start: Place
    end: Annotated[Place, msgspec.Meta(description="Where to.")]


class Folder(msgspec.Struct):
    name: str
    inner: list["Folder"] = []


class Cat(msgspec.Struct, tag="cat"):
    lives: int = 9


class Dog(msgspec.Struct, tag="dog"):
    owner: Place


def self_contained(kind: object) -> Json:
    (schema,), components = msgspec.json.schema_components([kind], ref_template=REF + "{name}")
    return inline_components(schema, components)


def test_references_are_replaced_by_what_they_stand_for() -> None:
    place = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"], "additionalProperties": False}
    assert self_contained(Leg) == {
        "type": "object",
        "properties": {"start": {"description": "Somewhere.", **place}, "end": {"description": "Where to.", **place}},
        "required": ["start", "end"],
        "additionalProperties": False,
    }


def test_a_type_that_contains_itself_stays_a_definition() -> None:
    schema = self_contained(dict[str, Folder])
    assert schema == snapshot(
        {
            "type": "object",
            "additionalProperties": {"$ref": "#/$defs/Folder"},
            "$defs": {
                "Folder": {
                    "type": "object",
                    "properties": {
                        "name": {"type": "string"},
                        "inner": {"type": "array", "items": {"$ref": "#/$defs/Folder"}, "default": []},
                    },
                    "required": ["name"],
                    "additionalProperties": False,
                }
            },
        }
    )
    folders = Validator(trip(schema))
    assert folders.errors({"a": {"name": "x", "inner": [{"name": "y"}]}}) == []
    assert folders.errors({"a": {"name": "x", "inner": [{"nam": "y"}]}}) != []


def test_variants_are_told_apart_by_their_tag_alone() -> None:
    schema = self_contained(Cat | Dog)
    assert "$ref" not in str(schema)
    assert "$defs" not in str(schema)
    assert [variant["properties"]["type"] for variant in schema["anyOf"]] == [{"enum": ["cat"]}, {"enum": ["dog"]}]


def test_a_value_that_looks_like_a_reference_is_left_alone() -> None:
    place = self_contained(Place)
    lookalike = {"$ref": "#/$defs/Nothing"}
    schema = {"properties": {"default": {"$ref": "#/$defs/Place"}}, "default": lookalike, "examples": [lookalike]}
    whole = inline_components(schema, {"Place": place})
    assert whole == {"properties": {"default": place}, "default": lookalike, "examples": [lookalike]}


def test_importing_it_is_light() -> None:
    code = "import sys, mainspring.tools.schema; print('jsonschema_rs' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"


def doubling(levels: int, reference: str = "#/$defs/d%d", **marks: str) -> Json:
    """A schema in which each definition names the next one twice."""

    def define(number: int) -> Json:
        return {key: mark % number for key, mark in marks.items()}

    twice = {f"d{n}": {"allOf": [{"$ref": reference % (n + 1)}] * 2, **define(n)} for n in range(levels)}
    return {"$defs": {**twice, f"d{levels}": {"type": "object", **define(levels)}}, "$ref": reference % 0}


def nest(depth: int) -> Json:
    value: Json = {}
    for _ in range(depth):
        value = {"x": value}
    return value


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        (doubling(40), {}),
        (doubling(40, "#a%d", **{"$anchor": "a%d"}), {}),
        (doubling(40, "http://x/%d", **{"$id": "http://x/%d"}), {}),
        ({"$id": "http://x/y/root", **doubling(40, "../d%d", **{"$id": "/d%d"})}, {}),
        ({"$id": "http://x/root.json", **doubling(40, "root.json#/$defs/d%d")}, {}),
        ({"$id": "urn:example:root", **doubling(40)}, {}),
        ({"propertyNames": {"$ref": "#/$defs/d0"}, "$defs": doubling(40)["$defs"]}, {"a": 1}),
        ({"allOf": [{"properties": {"x": {"$ref": "#"}}}] * 2}, nest(60)),
        ({"properties": {"x": {"items": {"anyOf": [{"const": n} for n in range(3000)]}}}}, {"x": [*range(3000)]}),
    ],
    ids=["pointers", "anchors", "ids", "relative ids", "a named root", "a urn", "names", "recursion", "product"],
)
def test_what_would_take_years_to_validate_is_refused(schema: Json, value: Json) -> None:
    [problem] = Validator(ToolDefinition("f", parameters=schema)).errors(value)
    assert "steps" in problem


def test_a_tree_is_validated_whatever_its_depth_and_a_large_value_has_one_error() -> None:
    tree = {"$defs": {"n": {"properties": {"x": {"$ref": "#/$defs/n"}, "y": {"$ref": "#/$defs/n"}}, "type": "object"}}}
    tree["$ref"] = "#/$defs/n"  # type: ignore[assignment]
    assert Validator(ToolDefinition("f", parameters=tree)).errors(nest(100)) == []
    whole = Validator(ToolDefinition("f", parameters={"properties": {"x": {"items": {"type": "integer"}}}}))
    assert whole.errors({"x": [1] * 100_000}) == []
    assert len(whole.errors({"x": ["1"] * 100_000})) == 1
    assert len(whole.errors({"x": ["1"] * 100})) == 100


def test_a_reference_with_escaped_signs_is_found() -> None:
    schema = {"$ref": "#/definitions/Box%3Cint%3E", "definitions": {"Box<int>": {"type": "integer"}}}
    tool = ToolDefinition("box", parameters={"type": "object", "properties": {"n": schema}, "definitions": schema["definitions"]})
    assert Validator(tool).errors({"n": 1}) == []
    assert Validator(tool).errors({"n": "one"}) != []


WORD: Json = {"type": "string"}
STRICT: Json = {"$id": "http://x/strict", "$dynamicAnchor": "node", "$ref": "tree", "unevaluatedProperties": False}
TREE: Json = {
    "$id": "http://x/tree",
    "$dynamicAnchor": "node",
    "properties": {"w": WORD, "inner": {"type": "array", "items": {"$dynamicRef": "#node"}}},
}


@pytest.mark.parametrize(
    "schema",
    [
        {"$id": "http://x/a/root.json", "properties": {"w": {"$ref": "word"}}, "$defs": {"any": {"$id": "word", **WORD}}},
        {"$id": "http://x/a/root.json", "properties": {"w": {"$ref": "/word"}}, "$defs": {"any": {"$id": "../word", **WORD}}},
        {"$id": "http://x/root", "properties": {"w": {"$ref": "root#/$defs/word"}}, "$defs": {"word": WORD}},
        {"$id": "http://x/root", "properties": {"w": {"$ref": "#word"}}, "$defs": {"any": {"$anchor": "word", **WORD}}},
        {"properties": {"w": {"$ref": "word"}}, "$defs": {"any": {"$id": "word", **WORD}}},
        {
            "$id": "http://x/root",
            "properties": {"w": {"$ref": "b/outer"}},
            "$defs": {"o": {"$id": "b/outer", "$ref": "inner#/$defs/w", "$defs": {"i": {"$id": "inner", "$defs": {"w": WORD}}}}},
        },
        {**STRICT, "$defs": {"tree": TREE}},
    ],
    ids=["beside", "above", "itself", "anchor", "no root", "nested", "dynamic"],
)
def test_a_reference_is_relative_to_the_id_around_it(schema: Json) -> None:
    validator = Validator(ToolDefinition("f", parameters={"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}))
    assert validator.errors({"w": "a word"}) == []
    assert [problem for problem in validator.errors({"w": 1}) if problem.startswith("w: ")]
