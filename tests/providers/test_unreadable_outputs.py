"""A file that a tool has put out and a backend cannot take is named to the model: it does not fail the run."""

from base64 import b64encode
from collections.abc import Callable

import msgspec
import pytest

from mainspring.core.items import FunctionCall, FunctionCallOutput, InputFile, InputText, Json, user
from mainspring.core.model_request import ModelRequest
from mainspring.providers.anthropic.request import build_body as build_anthropic
from mainspring.providers.bedrock.request import build_body as build_bedrock
from mainspring.providers.chat.request import build_body as build_chat
from mainspring.providers.gemini.request import build_body as build_gemini
from mainspring.providers.ollama.request import build_body as build_ollama
from mainspring.providers.responses.request import build_body as build_responses

WAV = b64encode(b"RIFF\xff\xfe").decode()
NOTED = "[song.wav: audio/wav, 6 bytes, which this model cannot be given]"


def build(request: ModelRequest, backend: str) -> Json:
    builders: dict[str, Callable[[ModelRequest], Json]] = {
        "anthropic": build_anthropic,
        "bedrock": build_bedrock,
        "chat": lambda request: build_chat(request, "api.example"),
        "gemini": build_gemini,
        "ollama": build_ollama,
        "responses": lambda request: build_responses(request, "api.example"),
    }
    return builders[backend](request)


def asks(file: InputFile) -> ModelRequest:
    output = FunctionCallOutput("call_1", (InputText("Here it is."), file))
    return ModelRequest("resp_1", "m", (user("Sing."), FunctionCall("call_1", "sing", "{}"), output))


@pytest.mark.parametrize("backend", ["anthropic", "bedrock", "chat", "ollama", "responses"])
def test_sound_is_named_to_a_model_that_cannot_hear(backend: str) -> None:
    told = msgspec.json.encode(build(asks(InputFile("song.wav", f"data:audio/wav;base64,{WAV}")), backend)).decode()
    assert NOTED in told
    assert WAV not in told


def test_sound_is_heard_by_a_model_that_can() -> None:
    told = msgspec.json.encode(build(asks(InputFile("song.wav", f"data:audio/wav;base64,{WAV}")), "gemini")).decode()
    assert WAV in told


@pytest.mark.parametrize("backend", ["anthropic", "bedrock", "chat", "gemini", "ollama"])
def test_bytes_of_no_known_kind_are_named(backend: str) -> None:
    data = b64encode(b"\xff\xfe\x00").decode()
    told = msgspec.json.encode(build(asks(InputFile("a.bin", f"data:application/octet-stream;base64,{data}")), backend)).decode()
    assert "[a.bin: application/octet-stream, 3 bytes" in told
