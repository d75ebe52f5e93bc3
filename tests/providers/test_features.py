"""What only some adapters can carry: log probabilities there and back, sound, and who says to have them."""

import aiohttp
import msgspec
from msgspec.structs import replace
from tests.providers.backend import ASKED, DONE, QUESTION, Backend, ask, chunk, events_of, sse
from tests.providers.dialects.responses import DIALECT
from tests.providers.dialects.server import serving
from tests.server.hosting import hosted

from mainspring.app.engine import Engine
from mainspring.app.server import server
from mainspring.core.events import ItemDone, TextDelta
from mainspring.core.ids import counting
from mainspring.core.items import InputText, Json, Message, OutputText, Unknown
from mainspring.providers.anthropic.provider import Anthropic
from mainspring.providers.anthropic.request import build_body as build_anthropic_body
from mainspring.providers.bedrock.request import build_body as build_bedrock_body
from mainspring.providers.chat.provider import Chat
from mainspring.providers.chat.request import build_body as build_chat_body
from mainspring.providers.compose import BackendOptions, compose
from mainspring.providers.constrained.provider import Constrained
from mainspring.providers.gemini.provider import Gemini
from mainspring.providers.gemini.request import build_body as build_gemini_body
from mainspring.providers.ollama.request import build_body as build_ollama_body
from mainspring.providers.responses.provider import Responses
from mainspring.providers.router import Router
from mainspring.providers.scripted import Scripted
from mainspring.providers.wrapper import find_features

URL = "http://127.0.0.1:9/v1"
NOON: Json = {
    "token": "No",
    "logprob": -0.1,
    "bytes": [78, 111],
    "top_logprobs": [{"token": "Mi", "logprob": -2.5, "bytes": [77, 105]}],
}
LATE: Json = {"token": "on", "logprob": -0.2, "bytes": [111, 110], "top_logprobs": []}
AUDIO: Json = {"type": "input_audio", "input_audio": {"data": "UklGRg==", "format": "wav"}}


def likely(content: str, *logprobs: Json) -> Json:
    said = chunk({"content": content})
    said["choices"][0]["logprobs"] = {"content": list(logprobs), "refusal": None}
    return said


def replies_with_logprobs(backend: Backend, asked: Json = ASKED) -> None:
    frames = sse(chunk({"role": "assistant", "content": ""}), likely("No", NOON), likely("on", LATE), chunk(finish="stop"))
    backend.replies(frames, DONE, expect={**asked, "logprobs": True, "top_logprobs": 1})


async def test_chat_asks_for_logprobs_and_brings_them_back_with_each_piece(backend: Backend) -> None:
    replies_with_logprobs(backend)
    events = await ask(backend, replace(QUESTION, top_logprobs=1))
    assert [event.logprobs for event in events if isinstance(event, TextDelta)] == [(NOON,), (LATE,)]
    done = [event.item for event in events if isinstance(event, ItemDone)]
    assert done == [Message("assistant", (OutputText("Noon", logprobs=(NOON, LATE)),), id="msg_1")]


async def test_logprobs_of_words_held_back_come_with_the_words(backend: Backend) -> None:
    blank = {"token": "\n", "logprob": None}
    backend.replies(
        sse(likely("\n", blank), likely("Noon", NOON), chunk(finish="stop")), DONE, expect={**ASKED, "logprobs": True}
    )
    events = await ask(backend, replace(QUESTION, top_logprobs=0))
    told = {"token": "\n", "logprob": -9999.0, "bytes": [10], "top_logprobs": []}
    assert [event for event in events if isinstance(event, TextDelta)] == [TextDelta("msg_1", "\nNoon", 0, (told, NOON))]


async def test_clients_read_logprobs_in_the_stream_and_in_the_answer(backend: Backend) -> None:
    replies_with_logprobs(backend)
    provider = Chat(backend.url)
    engine = Engine(provider, default_model="clockwork", owns_provider=True)
    async with hosted(server(engine)) as url, aiohttp.ClientSession() as session:
        run = await engine.run("What time is it?", background=True, top_logprobs=1)
        where = f"{url}/responses/{run.spec.id}"
        async with session.get(where, params={"stream": "true"}) as reply:
            lines = [line for line in (await reply.text()).splitlines() if line.startswith("data: {")]
        async with session.get(where) as reply:
            answered = await reply.json()
    told = [msgspec.json.decode(line.removeprefix("data: ")) for line in lines]
    assert [event["logprobs"] for event in told if event["type"] == "response.output_text.delta"] == [[NOON], [LATE]]
    assert answered["output"][0]["content"][0]["logprobs"] == [NOON, LATE]


async def test_responses_asks_for_logprobs_and_keeps_those_of_the_pieces() -> None:
    where = {"item_id": "msg_7", "output_index": 0, "content_index": 0}
    item = {"type": "message", "id": "msg_7", "role": "assistant", "status": "in_progress", "content": []}
    async with serving(DIALECT, judges=False) as fake:
        fake.replies(
            sse(
                {"type": "response.output_item.added", "output_index": 0, "item": item},
                {"type": "response.output_text.delta", **where, "delta": "No", "logprobs": [NOON]},
                {"type": "response.output_text.delta", **where, "delta": "on", "logprobs": [LATE]},
                {"type": "response.completed", "response": {"status": "completed"}},
            )
        )
        provider = Responses(f"{fake.url}/v1", new_id=counting())
        events = await events_of(provider, replace(QUESTION, top_logprobs=2))
        await provider.close()
    assert [event.logprobs for event in events if isinstance(event, TextDelta)] == [(NOON,), (LATE,)]
    assert [event.item.content for event in events if isinstance(event, ItemDone) and isinstance(event.item, Message)] == [
        (OutputText("Noon", logprobs=(NOON, LATE)),)
    ]
    asked = msgspec.json.decode(fake.bodies[0])
    assert asked["top_logprobs"] == 2
    assert "message.output_text.logprobs" in asked["include"]


async def test_sound_goes_to_those_who_can_hear_it(backend: Backend) -> None:
    spoken = Message("user", (InputText("What is this?"), Unknown(AUDIO)))
    request = replace(QUESTION, items=(spoken,))
    told = {"role": "user", "content": [{"type": "text", "text": "What is this?"}, AUDIO]}
    backend.replies(sse(chunk({"content": "A clock."}), chunk(finish="stop")), DONE, expect={**ASKED, "messages": [told]})
    await ask(backend, request)
    heard = {"inlineData": {"mimeType": "audio/wav", "data": "UklGRg=="}}
    assert build_gemini_body(request)["contents"] == [{"role": "user", "parts": [{"text": "What is this?"}, heard]}]


def test_adapters_say_what_they_can_carry_through_all_that_wraps_them() -> None:
    chat, options = Chat(URL), BackendOptions(attempts=3, failures=2, concurrency=1, first_seconds=9.0)
    router = Router(
        {"house": compose(chat, options), "claude": Anthropic(URL), "gemini": Gemini(URL)},
        aliases={"any": ["house/a", "gemini/b"]},
    )
    assert find_features(Engine(router).core.provider, "house/qwen") == Chat.features
    assert Chat.features == {"logprobs", "audio_input", "penalties", "seed"}
    assert find_features(router, "any") == {"audio_input", "seed"}
    assert (
        find_features(Constrained(chat), "m") == find_features(Scripted(), "m") == find_features(router, "claude/opus") == set()
    )


def test_texts_that_end_an_answer_and_a_seed_go_to_each_backend_under_its_own_name() -> None:
    asked = replace(QUESTION, stop=("END", "\n\n"), seed=7)
    stop = ["END", "\n\n"]
    chat = build_chat_body(asked, "127.0.0.1")
    assert (chat["stop"], chat["seed"]) == (stop, 7)
    assert build_anthropic_body(asked)["stop_sequences"] == stop
    gemini = build_gemini_body(asked)["generationConfig"]
    assert (gemini["stopSequences"], gemini["seed"]) == (stop, 7)
    ollama = build_ollama_body(asked)["options"]
    assert (ollama["stop"], ollama["seed"]) == (stop, 7)
    assert build_bedrock_body(replace(asked, model="anthropic.claude-opus-4"))["inferenceConfig"]["stopSequences"] == stop
