"""Items: one family for the API, the stores and the providers, and a codec that loses nothing it does not know."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainspring.core.items import (
    ApprovalRequest,
    ApprovalResponse,
    FunctionCall,
    FunctionCallOutput,
    InputFile,
    InputImage,
    InputText,
    Item,
    Message,
    OutputText,
    Part,
    Reasoning,
    ReasoningText,
    Refusal,
    SummaryText,
    Tool,
    ToolDefinition,
    Unknown,
    Usage,
    assistant,
    convert,
    decode,
    encode,
    from_wire,
    parse_arguments,
    text_of,
    to_wire,
    user,
)

ODD = Unknown({"type": "hologram", "id": "h_1", "depth": [1, {"x": None}]})

WHOLE: list[tuple[Item, dict[str, Any]]] = [
    (
        Message("user", (InputText("hi"), InputImage("http://x/y.png"), InputFile("a.txt", "QQ=="), ODD), id="msg_1"),
        {
            "type": "message",
            "role": "user",
            "content": [
                {"type": "input_text", "text": "hi"},
                {"type": "input_image", "image_url": "http://x/y.png", "detail": "auto"},
                {"type": "input_file", "filename": "a.txt", "file_data": "QQ=="},
                {"type": "hologram", "id": "h_1", "depth": [1, {"x": None}]},
            ],
            "id": "msg_1",
            "status": "completed",
        },
    ),
    (
        Message(
            "assistant",
            (OutputText("a", annotations=({"type": "x"},)), Refusal("no")),
            id="msg_2",
            status="incomplete",
            phase="final",
        ),
        {
            "type": "message",
            "role": "assistant",
            "content": [
                {"type": "output_text", "text": "a", "annotations": [{"type": "x"}], "logprobs": []},
                {"type": "refusal", "refusal": "no"},
            ],
            "id": "msg_2",
            "status": "incomplete",
            "phase": "final",
        },
    ),
    (
        FunctionCall("call_1", "look", '{"at":"sky"}', id="fc_1"),
        {
            "type": "function_call",
            "call_id": "call_1",
            "name": "look",
            "arguments": '{"at":"sky"}',
            "id": "fc_1",
            "status": "completed",
        },
    ),
    (
        FunctionCallOutput("call_1", "blue", id="fco_1"),
        {"type": "function_call_output", "call_id": "call_1", "output": "blue", "id": "fco_1", "status": "completed"},
    ),
    (
        FunctionCallOutput("call_1", (InputText("blue"), ODD), is_error=True),
        {
            "type": "function_call_output",
            "call_id": "call_1",
            "output": [{"type": "input_text", "text": "blue"}, {"type": "hologram", "id": "h_1", "depth": [1, {"x": None}]}],
            "id": "",
            "status": "completed",
            "is_error": True,
        },
    ),
    (
        Reasoning("rs_1", (SummaryText("s"),), (ReasoningText("t"),), encrypted_content="zz"),
        {
            "type": "reasoning",
            "id": "rs_1",
            "summary": [{"type": "summary_text", "text": "s"}],
            "content": [{"type": "reasoning_text", "text": "t"}],
            "encrypted_content": "zz",
            "status": "completed",
        },
    ),
    (
        ApprovalRequest("mcpr_1", "look", "{}", call_id="call_1"),
        {
            "type": "mcp_approval_request",
            "id": "mcpr_1",
            "name": "look",
            "arguments": "{}",
            "server_label": "",
            "call_id": "call_1",
        },
    ),
    (
        ApprovalResponse("mcpr_1", approve=False, reason="not today"),
        {"type": "mcp_approval_response", "approval_request_id": "mcpr_1", "approve": False, "reason": "not today"},
    ),
    (ODD, {"type": "hologram", "id": "h_1", "depth": [1, {"x": None}]}),
]


@pytest.mark.parametrize(("item", "wire"), WHOLE, ids=[str(wire["type"]) for _, wire in WHOLE])
def test_item_is_shaped_like_the_wire_and_comes_back_whole(item: Item, wire: dict[str, Any]) -> None:
    assert msgspec.json.decode(encode(item)) == wire
    assert decode(encode(item), Item) == item
    assert convert(wire, Item) == item


@pytest.mark.requirement("A3", "A4")
def test_tool_call_has_an_id_a_name_and_arguments_as_text() -> None:
    call = decode('{"type":"function_call","call_id":"call_abc123","name":"look","arguments":"{}"}', Item)
    assert call == FunctionCall("call_abc123", "look", "{}")


@pytest.mark.requirement("A5", "A6", "A17")
def test_tool_result_is_an_output_item_with_the_call_id_and_an_error_mark() -> None:
    wire = msgspec.json.decode(encode(FunctionCallOutput("call_1", "broken", is_error=True)))
    assert (wire["type"], wire["call_id"], wire["output"], wire["is_error"]) == ("function_call_output", "call_1", "broken", True)
    assert "is_error" not in msgspec.json.decode(encode(FunctionCallOutput("call_1", "fine")))


@pytest.mark.parametrize(
    ("role", "part"), [("user", InputText("hi")), ("developer", InputText("hi")), ("assistant", OutputText("hi"))]
)
def test_message_may_lack_its_type_and_have_plain_text(role: Any, part: Part) -> None:
    assert convert({"role": role, "content": "hi"}, Item) == Message(role, (part,))
    assert convert({"type": "message", "role": role, "content": "hi"}, Item) == Message(role, (part,))


def test_what_a_client_sent_is_not_changed_by_reading_it() -> None:
    sent = {"role": "user", "content": "hi"}
    convert(sent, Item)
    assert sent == {"role": "user", "content": "hi"}


@pytest.mark.parametrize(
    ("wire", "message"),
    [
        (7, "expected an object with a `type`, got int"),
        ({"id": "x"}, "expected an object with a `type`"),
        ({"type": 3}, "expected an object with a `type`"),
        ({"type": "message"}, "Object missing required field `role`"),
        ({"type": "message", "role": "judge"}, "Invalid enum value 'judge'"),
        ({"type": "function_call", "name": "look"}, "Object missing required field `call_id`"),
    ],
)
def test_what_is_not_an_item_is_named(wire: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        convert(wire, Item)


def test_error_names_the_path_at_fault() -> None:
    wire = {"role": "user", "content": [{"type": "input_text", "text": 5}]}
    with pytest.raises(msgspec.ValidationError) as caught:
        convert([wire], list[Item])
    assert "text" in str(caught.value)


def test_unknown_tool_is_kept_and_a_known_one_is_read() -> None:
    given = b'[{"type":"web_search","size":"low"},{"type":"function","name":"look"}]'
    tools = decode(given, list[Tool])
    assert tools == [Unknown({"type": "web_search", "size": "low"}), ToolDefinition("look")]
    assert msgspec.json.decode(encode(tools))[0] == {"type": "web_search", "size": "low"}


@pytest.mark.requirement("A2")
def test_tool_is_the_clients_unless_it_says_who_performs_it() -> None:
    assert ToolDefinition("look").kind == "function"
    for kind in ("mcp", "sandbox", "builtin"):
        assert decode(f'{{"type":"function","name":"look","kind":"{kind}"}}', Tool) == ToolDefinition("look", kind=kind)


def test_unknown_things_are_equal_if_their_data_is() -> None:
    assert Unknown({"type": "a", "b": 1}) == Unknown({"b": 1, "type": "a"})
    assert hash(Unknown({"type": "a", "b": 1})) == hash(Unknown({"b": 1, "type": "a"}))
    assert Unknown({"type": "a"}) != Unknown({"type": "b"})
    assert Unknown({"type": "a"}) != {"type": "a"}
    assert repr(Unknown({"type": "a"})) == "Unknown({'type': 'a'})"


def test_codec_says_what_it_cannot_do() -> None:
    with pytest.raises(NotImplementedError, match=r"^cannot encode object$"):
        to_wire(object())
    with pytest.raises(NotImplementedError, match=r"^cannot decode int$"):
        from_wire(int, 3)


def test_text_of_a_message_is_all_its_text_but_refusals() -> None:
    assert Message("assistant", (OutputText("a"), Refusal("x"), InputText("b"), ODD)).text == "ab"


def test_text_of_an_output_is_its_text_in_any_form() -> None:
    assert text_of("plain") == "plain"
    assert text_of((InputText("a"), ODD, OutputText("b"))) == "ab"


def test_short_ways_to_make_a_message() -> None:
    assert user("hi", id="m") == Message("user", (InputText("hi"),), id="m")
    assert assistant("hi") == Message("assistant", (OutputText("hi"),))


@pytest.mark.parametrize("text", ["", "  ", "{}"])
def test_empty_arguments_are_an_empty_object(text: str) -> None:
    assert parse_arguments(text) == {}


def test_arguments_are_a_json_object() -> None:
    assert parse_arguments('{"a": [1, null]}') == {"a": [1, None]}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"a":', "^the arguments are not valid JSON: "),
        ("[1]", "^the arguments must be a JSON object, not list$"),
        ("3", "^the arguments must be a JSON object, not int$"),
    ],
)
def test_bad_arguments_are_explained_to_the_model(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_arguments(text)


def test_absurdly_nested_arguments_are_explained_to_the_model() -> None:
    with pytest.raises(ValueError, match=r"^the arguments are nested too deeply"):
        parse_arguments("[" * 50_000)


def test_usage_adds_up_and_the_total_is_the_sum() -> None:
    total = Usage(1, 2, 3, 4, 5) + Usage(10, 20, 30, 40, 50)
    assert total == Usage(11, 22, 33, 44, 55)
    assert total.total_tokens == 33


TEXT = st.text(max_size=6)
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=4,
)
UNKNOWN = st.dictionaries(TEXT, JSON, max_size=3).map(lambda data: Unknown({**data, "type": "from_the_future"}))
NOTES = st.lists(st.dictionaries(TEXT, JSON, max_size=2), max_size=2).map(tuple)
PARTS = st.one_of(
    st.builds(InputText, TEXT),
    st.builds(InputImage, st.none() | TEXT, TEXT),
    st.builds(InputFile, filename=st.none() | TEXT),
    st.builds(OutputText, TEXT, annotations=NOTES),
    st.builds(Refusal, TEXT),
    UNKNOWN,
)
CONTENT = st.lists(PARTS, max_size=3).map(tuple)
ITEMS = st.one_of(
    st.builds(Message, st.sampled_from(["user", "assistant", "system", "developer"]), CONTENT, id=TEXT),
    st.builds(FunctionCall, TEXT, TEXT, TEXT, TEXT, st.sampled_from(["in_progress", "completed", "incomplete"])),
    st.builds(FunctionCallOutput, TEXT, TEXT | CONTENT),
    st.builds(Reasoning, TEXT, st.lists(st.builds(SummaryText, TEXT), max_size=2).map(tuple)),
    st.builds(ApprovalRequest, TEXT, TEXT, TEXT),
    st.builds(ApprovalResponse, TEXT, st.booleans(), st.none() | TEXT),
    UNKNOWN,
)


@given(st.lists(ITEMS, max_size=4))
def test_any_items_survive_json(items: list[Item]) -> None:
    assert decode(encode(items), list[Item]) == items
