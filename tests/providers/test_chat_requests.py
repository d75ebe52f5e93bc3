"""What a Chat Completions backend is asked: every item, tool and option of ours in its terms."""

import pytest
from msgspec.structs import replace
from tests.providers.backend import ASKED, DONE, QUESTION, Backend, ask, chunk, events_of, sse

from mainspring.core.chain import Chain
from mainspring.core.errors import BadOutput, InvalidRequest, Refused
from mainspring.core.history import Entry
from mainspring.core.items import (
    ApprovalRequest,
    FunctionCall,
    FunctionCallOutput,
    InputFile,
    InputImage,
    InputText,
    Item,
    Json,
    Message,
    OutputText,
    Part,
    Reasoning,
    ReasoningText,
    Refusal,
    ToolDefinition,
    Unknown,
    assistant,
    user,
)
from mainspring.core.model_request import Items, ModelRequest
from mainspring.core.spec import ToolChoice
from mainspring.ports import ProfileValue
from mainspring.providers.chat.provider import Chat
from mainspring.providers.chat.refusals import REFUSALS
from mainspring.providers.chat.request import build_body
from mainspring.providers.http_client import HttpReply
from mainspring.providers.json_text import encode_body

NOON = sse(chunk({"content": "noon"}, finish="stop"))
LOOK = ToolDefinition("look", "Looks at a clock", {"type": "object", "properties": {"at": {"type": "string"}}})
RING = ToolDefinition("ring", kind="builtin", strict=True, effects=("write",), timeout=5.0)
WRAPPED = [
    {"type": "function", "function": {"name": "look", "description": "Looks at a clock", "parameters": LOOK.parameters}},
    {
        "type": "function",
        "function": {"name": "ring", "description": "", "parameters": {"type": "object", "properties": {}}, "strict": True},
    },
]


def tool_call(id: str, name: str, arguments: str) -> Json:
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


async def messages_for(backend: Backend, *items: Item, expected: list[Json], instructions: str | None = None) -> None:
    backend.replies(NOON, DONE, expect=ASKED | {"messages": expected})
    await ask(backend, replace(QUESTION, items=items, instructions=instructions))


@pytest.mark.requirement("C39")
async def test_instructions_come_first_and_developers_speak_as_the_system(backend: Backend) -> None:
    developer = Message("developer", (InputText("Be brief."),))
    await messages_for(
        backend,
        user("Hello"),
        developer,
        Message("system", (InputText("Use UTC."),)),
        assistant("Hi."),
        user("Time?"),
        instructions="You are a clock.",
        expected=[
            {"role": "system", "content": "You are a clock."},
            {"role": "user", "content": "Hello"},
            {"role": "system", "content": "Be brief."},
            {"role": "system", "content": "Use UTC."},
            {"role": "assistant", "content": "Hi."},
            {"role": "user", "content": "Time?"},
        ],
    )


@pytest.mark.requirement("C22", "C39", "C43", "C81", "C-T24")
async def test_a_turn_is_one_assistant_message_and_its_outputs_follow_in_call_order(backend: Backend) -> None:
    await messages_for(
        backend,
        user("Time?"),
        Reasoning(content=(ReasoningText("Where is it?"),)),
        assistant("I look."),
        FunctionCall("a", "look", '{"at":"wall"}', id="fc_1"),
        Unknown({"type": "hologram"}),
        FunctionCall("b", "ring", "", id="fc_2"),
        FunctionCallOutput("b", "dong"),
        FunctionCallOutput("a", "12:00"),
        FunctionCall("c", "look", '{"at":"sun"}'),
        FunctionCallOutput("c", "high"),
        assistant("Noon."),
        expected=[
            {"role": "user", "content": "Time?"},
            {
                "role": "assistant",
                "content": "I look.",
                "tool_calls": [tool_call("a", "look", '{"at":"wall"}'), tool_call("b", "ring", "{}")],
            },
            {"role": "tool", "tool_call_id": "a", "name": "look", "content": "12:00"},
            {"role": "tool", "tool_call_id": "b", "name": "ring", "content": "dong"},
            {"role": "assistant", "content": None, "tool_calls": [tool_call("c", "look", '{"at":"sun"}')]},
            {"role": "tool", "tool_call_id": "c", "name": "look", "content": "high"},
            {"role": "assistant", "content": "Noon."},
        ],
    )


@pytest.mark.requirement("C81", "C-T25")
async def test_outputs_carry_the_tools_name_unless_a_backend_refuses_it(backend: Backend) -> None:
    call = {"role": "assistant", "content": None, "tool_calls": [tool_call("a", "look", "{}")]}
    output = {"role": "tool", "tool_call_id": "a", "content": "12:00"}
    refusal = b'{"error": {"message": "\'messages.1\' : property \'name\' is unsupported"}}'
    backend.replies(refusal, status=400, expect=ASKED | {"messages": [call, output | {"name": "look"}]})
    for _ in range(2):
        backend.replies(NOON, DONE, expect=ASKED | {"messages": [call, output]})
    chat = Chat(backend.url)
    for _ in range(2):
        await events_of(chat, replace(QUESTION, items=(FunctionCall("a", "look", "{}"), FunctionCallOutput("a", "12:00"))))
    await chat.close()


async def test_outputs_follow_their_calls_even_if_a_user_spoke_between(backend: Backend) -> None:
    await messages_for(
        backend,
        FunctionCall("a", "look", "{}"),
        user("Hurry!"),
        FunctionCallOutput("a", "12:00"),
        ApprovalRequest("mcpr_1", "ring", "{}"),
        expected=[
            {"role": "assistant", "content": None, "tool_calls": [tool_call("a", "look", "{}")]},
            {"role": "tool", "tool_call_id": "a", "name": "look", "content": "12:00"},
            {"role": "user", "content": "Hurry!"},
        ],
    )


async def test_an_id_used_in_two_turns_leads_to_the_nearest_call_and_an_output_without_call_is_left_out(backend: Backend) -> None:
    await messages_for(
        backend,
        FunctionCall("a", "look", "{}"),
        FunctionCallOutput("a", "11:59"),
        FunctionCall("a", "look", "{}"),
        FunctionCallOutput("a", "12:00"),
        FunctionCallOutput("a", "lost"),
        expected=[
            {"role": "assistant", "content": None, "tool_calls": [tool_call("a", "look", "{}")]},
            {"role": "tool", "tool_call_id": "a", "name": "look", "content": "11:59"},
            {"role": "assistant", "content": None, "tool_calls": [tool_call("a", "look", "{}")]},
            {"role": "tool", "tool_call_id": "a", "name": "look", "content": "12:00"},
        ],
    )


async def test_failed_outputs_say_that_they_are_errors_once(backend: Backend) -> None:
    await messages_for(
        backend,
        FunctionCall("a", "look", "{}"),
        FunctionCall("b", "look", "{}"),
        FunctionCallOutput("a", "no clock", is_error=True),
        FunctionCallOutput("b", "Error: too dark", is_error=True),
        expected=[
            {"role": "assistant", "content": None, "tool_calls": [tool_call("a", "look", "{}"), tool_call("b", "look", "{}")]},
            {"role": "tool", "tool_call_id": "a", "name": "look", "content": "Error: no clock"},
            {"role": "tool", "tool_call_id": "b", "name": "look", "content": "Error: too dark"},
        ],
    )


async def test_images_in_outputs_follow_as_a_message_of_the_user(backend: Backend) -> None:
    image = InputImage("data:image/png;base64,AA==")
    await messages_for(
        backend,
        FunctionCall("a", "look", "{}"),
        FunctionCall("b", "peek", "{}"),
        FunctionCallOutput("a", (InputText("a "), image, InputText("clock"))),
        FunctionCallOutput("b", (InputImage("http://clock/b.png", detail="low"),)),
        expected=[
            {"role": "assistant", "content": None, "tool_calls": [tool_call("a", "look", "{}"), tool_call("b", "peek", "{}")]},
            {"role": "tool", "tool_call_id": "a", "name": "look", "content": "a clock"},
            {"role": "tool", "tool_call_id": "b", "name": "peek", "content": "The output is attached below."},
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "Attached by the output of `look` (a):"},
                    {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA==", "detail": "auto"}},
                    {"type": "text", "text": "Attached by the output of `peek` (b):"},
                    {"type": "image_url", "image_url": {"url": "http://clock/b.png", "detail": "low"}},
                ],
            },
        ],
    )


async def test_arguments_the_model_botched_are_sent_as_json_that_quotes_them(backend: Backend) -> None:
    await messages_for(
        backend,
        FunctionCall("a", "look", '{"at": '),
        FunctionCallOutput("a", "not JSON", is_error=True),
        expected=[
            {"role": "assistant", "content": None, "tool_calls": [tool_call("a", "look", '{"invalid_arguments":"{\\"at\\": "}')]},
            {"role": "tool", "tool_call_id": "a", "name": "look", "content": "Error: not JSON"},
        ],
    )


async def test_content_parts_are_sent_in_order(backend: Backend) -> None:
    content = (
        InputText("What do these show?"),
        InputImage("http://clock/a.png", detail="high"),
        InputFile("time.pdf", "data:application/pdf;base64,AA=="),
        InputFile(file_id="file_1"),
        Unknown({"type": "input_smell"}),
    )
    said = Message("assistant", (OutputText("A clock. "), Refusal("I cannot say more.")))
    await messages_for(
        backend,
        Message("user", content),
        said,
        Message("assistant"),
        Message("user", (Unknown({"type": "input_smell"}),)),
        user(""),
        expected=[
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "What do these show?"},
                    {"type": "image_url", "image_url": {"url": "http://clock/a.png", "detail": "high"}},
                    {"type": "file", "file": {"filename": "time.pdf", "file_data": "data:application/pdf;base64,AA=="}},
                    {"type": "file", "file": {"file_id": "file_1"}},
                ],
            },
            {"role": "assistant", "content": "A clock. \nI cannot say more."},
            {"role": "user", "content": ""},
        ],
    )


@pytest.mark.parametrize("part", [InputImage(file_id="file_1"), InputFile(file_url="http://clock/time.pdf")])
async def test_content_that_cannot_be_sent_is_refused_before_anything_is_sent(backend: Backend, part: Part) -> None:
    with pytest.raises(Refused, match="cannot be sent to a Chat Completions backend; pass"):
        await ask(backend, replace(QUESTION, items=(Message("user", (part,)),)))


@pytest.mark.requirement("C22", "C41", "C43", "C81", "C-T29")
async def test_tools_are_wrapped_as_functions(backend: Backend) -> None:
    backend.replies(NOON, DONE, expect=ASKED | {"tools": WRAPPED})
    await ask(backend, replace(QUESTION, tools=(LOOK, Unknown({"type": "web_search"}), RING)))


@pytest.mark.requirement("C72")
@pytest.mark.parametrize("choice", [ToolChoice(), ToolChoice("none"), ToolChoice("required")])
async def test_without_tools_nothing_about_tools_is_sent(backend: Backend, choice: ToolChoice) -> None:
    backend.replies(NOON, DONE, expect=ASKED)
    tools = (Unknown({"type": "web_search"}),)
    await ask(backend, replace(QUESTION, tools=tools, tool_choice=choice, parallel_tool_calls=False))


@pytest.mark.requirement("C22")
@pytest.mark.parametrize(
    ("choice", "sent"),
    [
        (ToolChoice(), {}),
        (ToolChoice("none"), {"tool_choice": "none"}),
        (ToolChoice("required"), {"tool_choice": "required"}),
        (ToolChoice("required", name="ring"), {"tool_choice": {"type": "function", "function": {"name": "ring"}}}),
        (ToolChoice("auto", allowed=("ring",)), {}),
        (ToolChoice("required", allowed=("ring",)), {"tool_choice": "required"}),
    ],
)
async def test_tool_choice_is_translated(backend: Backend, choice: ToolChoice, sent: Json) -> None:
    backend.replies(NOON, DONE, expect=ASKED | {"tools": WRAPPED, **sent})
    await ask(backend, replace(QUESTION, tools=(LOOK, RING), tool_choice=choice))


async def test_every_option_is_sent_and_extra_has_the_last_word(backend: Backend) -> None:
    schema = {"type": "object", "properties": {"hour": {"type": "integer"}}}
    form = {"type": "json_schema", "name": "time", "schema": schema, "strict": True, "description": None}
    request = replace(
        QUESTION,
        tools=(LOOK,),
        parallel_tool_calls=False,
        temperature=0.0,
        top_p=0.5,
        max_output_tokens=100,
        text={"format": form, "verbosity": "low"},
        reasoning={"effort": "high", "summary": "auto"},
        extra={"seed": 7, "top_p": 0.6, "model": "sundial"},
    )
    sent = {
        "model": "sundial",
        "tools": WRAPPED[:1],
        "parallel_tool_calls": False,
        "temperature": 0.0,
        "top_p": 0.6,
        "max_tokens": 100,
        "response_format": {"type": "json_schema", "json_schema": {"name": "time", "schema": schema, "strict": True}},
        "reasoning_effort": "high",
        "seed": 7,
    }
    backend.replies(NOON, DONE, expect=ASKED | sent)
    await ask(backend, request)


@pytest.mark.parametrize(
    ("text", "sent"),
    [
        (None, None),
        ({"format": {"type": "text"}}, None),
        ({"format": None}, None),
        ({"format": {"type": "json_object"}}, {"type": "json_object"}),
        (
            {"format": {"type": "json_schema", "schema": {}}},
            {"type": "json_schema", "json_schema": {"name": "answer", "schema": {}}},
        ),
    ],
)
def test_response_formats(text: Json | None, sent: Json | None) -> None:
    assert build_body(replace(QUESTION, text=text), "localhost").get("response_format") == sent


def test_openai_has_its_own_name_for_the_output_limit() -> None:
    request = replace(QUESTION, max_output_tokens=100)
    assert build_body(request, "api.openai.com") == ASKED | {"max_completion_tokens": 100}
    assert build_body(request, "openrouter.ai") == ASKED | {"max_tokens": 100}


async def test_key_headers_and_query_are_sent(backend: Backend) -> None:
    backend.replies(NOON, DONE)
    chat = Chat(f"{backend.url}/?api-version=1", api_key=" sk-secret\n", headers={"X-Title": "clock"})
    await events_of(chat)
    await chat.close()
    received = backend.received[0]
    assert (received.method, received.target) == ("POST", "/v1/chat/completions?api-version=1")
    names = ("Authorization", "X-Title", "Content-Type", "Accept-Encoding")
    assert [received.headers[name] for name in names] == ["Bearer sk-secret", "clock", "application/json", "identity"]


async def test_a_header_of_ones_own_replaces_the_key(backend: Backend) -> None:
    backend.replies(NOON, DONE)
    chat = Chat(backend.url, api_key="sk-secret", headers={"authorization": "Token mine"})
    await events_of(chat)
    await chat.close()
    assert backend.received[0].headers["Authorization"] == "Token mine"


async def test_user_and_password_in_the_address_are_sent_as_such(backend: Backend) -> None:
    backend.replies(NOON, DONE)
    chat = Chat(backend.url.replace("http://", "http://me:secret@"))
    await events_of(chat)
    await chat.close()
    assert backend.received[0].headers["Authorization"] == "Basic bWU6c2VjcmV0"


@pytest.mark.parametrize("address", ["localhost:8000/v1", "", "ftp://clock/v1", "http://", "http://[::1/v1"])
def test_an_address_that_can_never_work_is_an_error_at_once(address: str) -> None:
    with pytest.raises(InvalidRequest, match="base URL"):
        Chat(address)


def test_a_password_in_an_address_that_cannot_be_read_is_not_shown() -> None:
    with pytest.raises(InvalidRequest, match="base URL `http://clock:99999/v1` cannot be read"):
        Chat("http://me:secret@clock:99999/v1")


def test_a_header_with_a_line_break_is_an_error_that_does_not_show_it() -> None:
    with pytest.raises(InvalidRequest, match="header `X-Key` contains a line break") as caught:
        Chat("http://clock/v1", headers={"X-Key": "secret\r\nX-Evil: 1"})
    assert "secret" not in caught.value.message


async def test_what_is_no_json_is_refused(backend: Backend) -> None:
    with pytest.raises(Refused, match="the request cannot be written as JSON"):
        await ask(backend, ModelRequest("resp_1", "clockwork", (user("half a \ud83d pair"),)))


SAID = [user("What time is it?"), FunctionCall("call_1", "look", "{}"), FunctionCallOutput("call_1", "noon")]


@pytest.mark.parametrize(("field", "value"), [(rule.field, rule.value) for rule in REFUSALS])
async def test_a_transcript_is_adapted_as_a_list_of_its_items_is(field: str, value: ProfileValue) -> None:
    sent: list[bytes] = []

    class Recorder(Chat):
        async def _post(self, path: str, body: Json, query: object = None) -> HttpReply:
            sent.append(encode_body(body))
            raise BadOutput("that is all")

    chain = Chain([Entry(item, "input") for item in SAID])
    form = {"format": {"type": "json_object"}}
    request = replace(QUESTION, tools=(LOOK, RING), tool_choice=ToolChoice("required"), text=form, instructions="Be brief.")
    for items in (Items(chain), Items(chain), tuple(SAID)):
        chat = Recorder("http://localhost/v1", profiles={"*": {field: value}})
        with pytest.raises(BadOutput):
            _ = [event async for event in chat.stream(replace(request, items=items))]
    assert sent[0] == sent[1] == sent[2]


async def test_a_refusal_that_nothing_can_be_done_about_is_told_for_a_transcript_too(backend: Backend) -> None:
    backend.replies(b'{"error": {"message": "messages.0.name is unsupported"}}', status=400, expect=ASKED)
    with pytest.raises(Refused, match="unsupported"):
        await ask(backend, replace(QUESTION, items=Items(Chain([Entry(user("What time is it?"), "input")]))))
