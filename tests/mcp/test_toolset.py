"""Tools of several servers under names of their own, and answers as parts of an output."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainspring.core.items import (
    FunctionCall,
    FunctionCallOutput,
    InputFile,
    InputImage,
    InputText,
    Json,
    ToolDefinition,
    Unknown,
    encode,
)
from mainspring.http.hosted_calls import render_server_call
from mainspring.tools.mcp.exchange import RejectedTool, RemoteTool, ToolAnswer, ToolListing
from mainspring.tools.mcp.result_content import render_answer
from mainspring.tools.mcp.server_specs import ServerSpec, ToolFilter
from mainspring.tools.mcp.toolset import ServerOffer, Toolset, build_offer, build_toolset

PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABAQAAAAA3bvkkAAAACklEQVR4nGNgAAAAAgABSK+kcQAAAABJRU5ErkJggg=="
PDF = "data:application/pdf;base64,cGRm"
SCHEMA: Json = {"type": "object", "properties": {"text": {"type": "string"}}}


def server(label: str = "gears", **more: object) -> ServerSpec:
    return ServerSpec(label, url="https://tools.example/mcp", **more)  # type: ignore[arg-type]


def remote(name: str, **annotations: bool) -> RemoteTool:
    return RemoteTool(name, f"Does {name}.", SCHEMA, dict(annotations))


def named(*servers: tuple[str, list[str]], taken: tuple[str, ...] = ()) -> Toolset:
    offers = [ServerOffer(server(label), tuple(map(remote, names))) for label, names in servers]
    return build_toolset(offers, taken=taken)


def owners(tools: Toolset) -> dict[str, tuple[str, str]]:
    return {name: (route.spec.label, route.tool.name) for name, route in tools.routes.items()}


def test_a_name_that_is_free_stays() -> None:
    assert owners(named(("a", ["read"]), ("b", ["write"]))) == {"read": ("a", "read"), "write": ("b", "write")}


def test_names_that_collide_are_told_apart_by_their_server() -> None:
    assert owners(named(("a", ["read", "list"]), ("b", ["read"]))) == {
        "a__read": ("a", "read"),
        "list": ("a", "list"),
        "b__read": ("b", "read"),
    }


def test_the_client_keeps_the_names_of_its_functions() -> None:
    assert list(named(("a", ["read", "write"]), taken=("read",)).routes) == ["a__read", "write"]


def test_signs_that_no_provider_takes_are_replaced_and_the_tool_is_found_again() -> None:
    tools = named(("a", ["files.read", "files read", "größe"]))
    assert owners(tools) == {
        "a__files_read": ("a", "files.read"),
        "a__files_read_21b04ee0": ("a", "files read"),
        "gr__e": ("a", "größe"),
    }


def test_a_long_name_is_cut_and_keeps_apart_from_another_that_begins_alike() -> None:
    tools = named(("a", ["x" * 200, "x" * 201]))
    assert {len(name) for name in tools.routes} == {64}
    assert len(tools.routes) == 2
    assert list(named(("a", ["x" * 200, "x" * 201])).routes) == list(tools.routes)


def test_a_qualified_name_is_known_where_a_shorter_one_is_in_use() -> None:
    tools = named(("a", ["read"]))
    assert list(tools.routes) == ["read"]
    assert tools.route("a__read") is tools.route("read") is not None
    assert tools.route("b__read") is None


LABELS = st.text(min_size=1, max_size=64).filter(lambda label: bool(label.strip()) and label.isprintable())


@given(
    st.lists(st.tuples(LABELS, st.lists(st.text(min_size=1), unique=True, max_size=5)), max_size=4),
    st.lists(st.text(alphabet="ab_", min_size=1, max_size=3), max_size=4),
)
def test_any_names_become_distinct_names_that_providers_take(servers: list[tuple[str, list[str]]], taken: list[str]) -> None:
    tools = named(*servers, taken=tuple(taken))
    refused = sum([len(offer.rejected) for offer in tools.offers])  # names that imitate another server's
    assert len(tools.routes) == sum([len(names) for _, names in servers]) - refused
    assert all(re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", name) for name in tools.routes)
    assert not set(tools.routes) & set(taken)
    assert all(route.definition.name == name for name, route in tools.routes.items())


def test_a_definition_tells_the_model_and_the_engine_what_they_need() -> None:
    spec = server(trusted=True, timeout=7)
    tool = RemoteTool("read", "Reads.", {"type": "object"}, {"readOnlyHint": True, "openWorldHint": False})
    assert build_toolset([ServerOffer(spec, (tool,))]).definitions == (
        ToolDefinition(
            "read",
            "Reads.",
            {"type": "object", "properties": {}},
            strict=False,
            kind="mcp",
            repeatable=True,
            effects=("read",),
            timeout=7,
        ),
    )


@pytest.mark.parametrize(
    ("hints", "effects", "repeatable"),
    [
        ({}, ("write", "destructive", "network"), False),
        ({"readOnlyHint": True}, ("read", "network"), True),
        ({"destructiveHint": False, "openWorldHint": False}, ("write",), False),
        ({"idempotentHint": True, "openWorldHint": False}, ("write", "destructive"), True),
    ],
)
def test_annotations_of_a_trusted_server_are_believed(hints: dict[str, bool], effects: tuple[str, ...], repeatable: bool) -> None:
    [definition] = build_toolset([ServerOffer(server(trusted=True), (remote("do", **hints),))]).definitions
    assert (definition.effects, definition.repeatable) == (effects, repeatable)


def test_annotations_of_a_stranger_make_no_tool_harmless() -> None:
    [definition] = build_toolset([ServerOffer(server(), (remote("do", readOnlyHint=True, openWorldHint=False),))]).definitions
    assert definition.effects == ("write", "destructive", "network")


def test_the_operator_can_declare_a_tool_repeatable() -> None:
    [one, other] = build_toolset([ServerOffer(server(repeatable=("put",)), (remote("put"), remote("post")))]).definitions
    assert (one.repeatable, other.repeatable) == (True, False)


def test_the_operator_and_a_trusted_server_can_declare_a_tool_to_poll() -> None:
    [one, other] = build_toolset([ServerOffer(server(polling=("put",)), (remote("put"), remote("post")))]).definitions
    assert (one.polls, other.polls) == (True, False)
    for trusted in (True, False):
        offer = ServerOffer(server(trusted=trusted), (remote("put", pollingHint=True),))
        assert [tool.polls for tool in build_toolset([offer]).definitions] == [trusted]


async def test_each_tool_is_looked_at_by_itself() -> None:
    broken = RemoteTool("broken", "", {"type": "object", "properties": {"text": {"pattern": "("}}})
    listing = ToolListing((remote("read"), broken, remote("read"), remote("secret")), (RejectedTool("null", "no schema"),))
    offer = await build_offer(server(allowed_tools=ToolFilter(("read", "broken"))), listing)
    assert [tool.name for tool in offer.tools] == ["read"]
    assert [found.name for found in offer.rejected] == ["null", "broken", "read"]
    assert "not a JSON Schema" in offer.rejected[1].reason
    assert offer.rejected[2].reason == "it is listed twice"


def test_texts_become_one_text() -> None:
    assert render_answer(ToolAnswer(({"type": "text", "text": "a"}, {"type": "text", "text": "b"}))) == "a\nb"
    assert render_answer(ToolAnswer()) == ""


def test_every_kind_of_content_is_carried() -> None:
    blob = {"uri": "file:///a/plan.pdf", "mimeType": "application/pdf", "blob": "cGRm"}
    content: list[Json] = [
        {"type": "text", "text": "see"},
        {"type": "image", "data": PNG, "mimeType": "image/jpeg"},
        {"type": "audio", "data": "d2F2", "mimeType": "audio/x-wav"},
        {"type": "resource", "resource": {"uri": "memo://1", "text": "a memo"}},
        {"type": "resource", "resource": blob},
        {"type": "resource", "resource": {"uri": "x://y", "mimeType": "image/png", "blob": PNG}},
        {"type": "resource_link", "uri": "https://a.example/b", "name": "b", "description": "The b."},
        {"type": "hologram", "light": 1},
    ]
    assert render_answer(ToolAnswer(tuple(content), {"n": 1})) == (
        InputText("see"),
        InputImage(f"data:image/png;base64,{PNG}"),
        InputFile(filename="audio.wav", file_data="data:audio/x-wav;base64,d2F2"),
        InputText("memo://1:\na memo"),
        InputFile(filename="plan.pdf", file_data="data:application/pdf;base64,cGRm"),
        InputImage(f"data:image/png;base64,{PNG}"),
        InputText("https://a.example/b (b, The b.)"),
        InputText('{"type":"hologram","light":1}'),
        InputText('{"n":1}'),
    )


@pytest.mark.parametrize(
    ("data", "mime", "told"),
    [
        ("not base64", "image/png", "[the server sent image (image/png) that is not base64]"),
        ("iVBORw0=", "image/png", "[the server sent 5 bytes as image/png that are no image a model can look at]"),
        (PNG[:40], "image/png", "[the server sent 30 bytes as image/png that are no image a model can look at]"),
        ("aW1n", "image/svg+xml", "[the server sent 3 bytes as image/svg+xml that are no image a model can look at]"),
        ("aW1n", "image/png\r\nx: y", "[the server sent 3 bytes as image/png x: y that are no image a model can look at]"),
    ],
)
def test_an_image_that_is_none_is_told_and_not_passed_on(data: str, mime: str, told: str) -> None:
    assert render_answer(ToolAnswer(({"type": "image", "data": data, "mimeType": mime},))) == told


def test_the_client_is_told_what_else_the_model_was_given() -> None:
    output = (InputText("see"), InputImage(f"data:image/png;base64,{PNG}"), InputFile(filename="a.pdf", file_data=PDF))
    item = render_server_call(FunctionCall("call_1", "look", "{}", id="fc_1"), FunctionCallOutput("call_1", output))
    assert isinstance(item, Unknown)
    assert item.data["output"] == "see\n[image: image/png, 69 bytes]\n[a.pdf: application/pdf, 3 bytes]"


def test_the_kind_of_a_file_is_one_that_can_be_written_down() -> None:
    sent = {"type": "audio", "data": "d2F2", "mimeType": "audio/wav\r\nx: y"}
    assert render_answer(ToolAnswer((sent,))) == (
        InputFile(filename="audio.bin", file_data="data:application/octet-stream;base64,d2F2"),
    )


async def test_a_server_that_tells_too_much_is_cut_short() -> None:
    wide: Json = {"type": "object", "properties": {"text": {"type": "string", "description": "x" * 60_000}}}
    listed = (RemoteTool("long", "x" * 15_000_000, SCHEMA), *[RemoteTool(f"wide{number}", "", wide) for number in range(20)])
    offer = await build_offer(server(), ToolListing(listed))
    assert len(offer.tools[0].description) == 8_000
    assert len(encode(offer.tools)) < 600_000
    assert offer.rejected[-1] == RejectedTool("wide19", "what the server tells of its tools has more than 512000 bytes")
    assert len(offer.tools) + len(offer.rejected) == 21


def test_the_operators_tools_keep_the_names_that_a_stranger_would_take() -> None:
    own = ServerOffer(ServerSpec("a", url="https://a.example/mcp", trusted=True), (remote("read"), remote("write")))
    stranger = ServerOffer(server("b"), (remote("read"), remote("a__read"), remote("list")))
    assert owners(build_toolset([stranger, own])) == {
        "read": ("a", "read"),
        "write": ("a", "write"),
        "b__read": ("b", "read"),
        "list": ("b", "list"),
    }  # and `a__read` is refused: it imitates


def test_structured_content_that_a_text_repeats_is_told_once() -> None:
    said = {"type": "text", "text": '{ "n": 1 }'}
    assert render_answer(ToolAnswer((said,), {"n": 1})) == '{ "n": 1 }'
    assert render_answer(ToolAnswer((said,), {"n": 2})) == '{ "n": 1 }\n{"n":2}'
    assert render_answer(ToolAnswer((), {"n": 1})) == '{"n":1}'


@pytest.mark.parametrize(("texts", "result"), [(["3"], 3), (["three"], "three"), (["a", "b"], ["a", "b"])])
def test_a_bare_result_that_the_server_has_wrapped_is_told_once(texts: list[str], result: object) -> None:
    said = [{"type": "text", "text": text} for text in texts]
    assert render_answer(ToolAnswer(tuple(said), {"result": result})) == "\n".join(texts)
    assert render_answer(ToolAnswer(tuple(said), {"result": result, "unit": "s"})) != "\n".join(texts)


@pytest.mark.parametrize(
    ("text", "structured", "is_once"),
    [
        ("hello\n", {"content": "hello\n"}, True),  # as the server for files reads them
        ('[\n  {"name": "a"}\n]', {"entities": [{"name": "a"}]}, True),  # and the one for memory
        ('{"entities": [1]}', {"entities": [1]}, True),
        ("33", {"temperature": 33}, False),
        ("true", {"deleted": True}, False),
        ("hello", {"content": "hello", "size": 5}, False),
        ("hello", {"content": "bye"}, False),
        ("hello", {}, False),
    ],
)
def test_a_value_that_the_server_has_wrapped_under_a_name_of_its_own_is_told_once(
    text: str, structured: object, is_once: bool
) -> None:
    assert (render_answer(ToolAnswer(({"type": "text", "text": text},), structured)) == text) == is_once
