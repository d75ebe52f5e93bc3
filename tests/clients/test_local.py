"""The model that runs on this machine, end to end: through the Responses API with OpenAI's client, and through the command."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from openai import NotFoundError, OpenAI
from tests.cli.command import Shell
from tests.server.process import Served, serving

from mainspring.providers.local.provider import is_available

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not is_available(), reason="the local runtime has no wheel for this machine"),
]
TOOLS = '''
from mainspring import tool


@tool
def departure(city: str) -> str:
    """When the next train leaves for a city."""
    return "The next train leaves at noon."
'''
CITY: Any = {
    "type": "function",
    "name": "weather",
    "description": "Tells the weather in a city.",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 20}, "unit": {"enum": ["c", "f"]}},
        "required": ["city", "unit"],
        "additionalProperties": False,
    },
    "strict": True,
}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("local")
    (folder / "timetable.py").write_text(TOOLS)
    with serving(folder, [], "--model", "local", "--tool", "timetable") as running:
        yield running


@pytest.fixture
def client(served: Served) -> Iterator[OpenAI]:
    with OpenAI(base_url=served.url, api_key="unused", max_retries=0, timeout=120, _strict_response_validation=True) as client:
        yield client


def test_it_answers_a_chat_in_a_stream(client: OpenAI) -> None:
    with client.responses.stream(model="local", input="What colour is the sky?", max_output_tokens=60) as stream:
        events = list(stream)
    deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
    # Whether so small a model stops by itself or is cut off is not ours to say.
    [final] = [event.response for event in events if event.type in ("response.completed", "response.incomplete")]
    assert len(deltas) > 1
    assert "".join(deltas) == final.output_text
    assert final.usage is not None
    assert final.usage.output_tokens > 0


def test_a_forced_call_fits_its_schema_and_its_result_is_answered(client: OpenAI) -> None:
    choice: Any = {"type": "function", "name": "weather"}
    first = client.responses.create(
        model="local", input="How is Oslo, in Celsius?", tools=[CITY], tool_choice=choice, temperature=0
    )
    [call] = [item for item in first.output if item.type == "function_call"]
    arguments = json.loads(call.arguments)
    assert set(arguments) == {"city", "unit"}
    assert arguments["unit"] in ("c", "f")
    second = client.responses.create(
        model="local",
        previous_response_id=first.id,
        input=[{"type": "function_call_output", "call_id": call.call_id, "output": "Sunny, 20 degrees."}],
        tools=[CITY],
        tool_choice="none",
        max_output_tokens=80,
        temperature=0,
    )
    assert second.output_text.strip()


def test_a_forced_call_of_the_server_s_own_tool_is_made(client: OpenAI) -> None:
    choice: Any = {"type": "function", "name": "departure"}
    answer = client.responses.create(
        model="local", input="When is the train to Oslo?", tool_choice=choice, max_tool_calls=1, max_output_tokens=300
    )
    calls = [item for item in answer.output if item.type == "mcp_call"]
    assert calls[0].output == "The next train leaves at noon."


def test_the_command_makes_a_forced_call(tmp_path: Path) -> None:
    shell = Shell(tmp_path)
    (tmp_path / "timetable.py").write_text(TOOLS)
    order = ("run", "When is the train to Oslo?", "--model", "local", "--tool", "timetable", "--tool-choice", "departure")
    result = shell.run(*order, "--max-turns", "2")
    assert "departure" in result.out
    assert "The next train leaves at noon." in result.out


@pytest.mark.parametrize("name", ["gpt-4o", "smolm2"])
def test_another_models_name_is_an_error_and_starts_nothing(client: OpenAI, name: str) -> None:
    with pytest.raises(NotFoundError) as refused:
        client.responses.create(model=name, input="Hello")
    assert (refused.value.code, refused.value.param) == ("model_not_found", "model")
    assert "`local`" in refused.value.message
