"""Tools that clients perform and that are no functions: OpenAI's own client and openai-agents use each of them as made for it."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from agents import (
    Agent,
    ApplyPatchOperation,
    ApplyPatchResult,
    ApplyPatchTool,
    CustomTool,
    LocalShellCommandRequest,
    LocalShellTool,
    OpenAIResponsesModel,
    RunConfig,
    Runner,
    ShellCallOutcome,
    ShellCommandOutput,
    ShellCommandRequest,
    ShellResult,
    ShellTool,
)
from agents.tool_context import ToolContext
from openai import AsyncOpenAI, BadRequestError, OpenAI
from openai.types.responses import ResponseCustomToolCall, ToolParam
from tests.clients.tap import Tap
from tests.clients.upstream import Model, calls, says

QUIETLY = RunConfig(tracing_disabled=True)
LINES: ToolParam = {"type": "custom", "name": "lines", "description": "Counts lines."}
TEXT = 'first "line"\nsecond \\ line\n'


def offered(model: Model, turn: int = 0) -> dict[str, Any]:
    return {tool["function"]["name"]: tool["function"]["parameters"] for tool in model.asked[turn]["tools"]}


async def asked_by(agent: Agent[Any], question: str, *, streamed: bool) -> str:
    if not streamed:
        return str((await Runner.run(agent, question, run_config=QUIETLY)).final_output)
    result = Runner.run_streamed(agent, question, run_config=QUIETLY)
    async for _ in result.stream_events():
        pass
    return str(result.final_output)


@pytest.fixture
async def asked(url: str, model: Model) -> AsyncIterator[OpenAIResponsesModel]:
    """The test's model as an agent asks it."""
    async with AsyncOpenAI(base_url=url, api_key="unused", max_retries=0, timeout=30, _strict_response_validation=True) as client:
        yield OpenAIResponsesModel(model.name, client)


def test_a_custom_tool_gets_plain_text_and_answers_with_it(client: OpenAI, model: Model) -> None:
    model.hears("How many", calls(("lines", {"input": TEXT})))
    model.hears("2 lines", says("Two."))
    first = client.responses.create(model=model.name, input="How many?", tools=[LINES])
    [call] = first.output
    assert isinstance(call, ResponseCustomToolCall)
    assert (call.name, call.input) == ("lines", TEXT)
    waiting = {"type": "custom_tool_call_output", "call_id": call.call_id, "name": "lines"}
    assert first.model_dump()["required_input"] == [waiting]
    assert first.tools[0].type == "custom"
    second = client.responses.create(
        model=model.name,
        input=[{"type": "custom_tool_call_output", "call_id": call.call_id, "output": "2 lines"}],
        previous_response_id=first.id,
    )
    assert second.output_text == "Two."
    assert offered(model)["lines"]["required"] == ["input"]
    [sent] = client.responses.input_items.list(second.id).data
    assert sent.type == "custom_tool_call_output"
    assert sent.output == "2 lines"


def test_a_custom_tool_call_streams_its_input(client: OpenAI, model: Model) -> None:
    model.hears("How many", calls(("lines", {"input": TEXT})))
    with client.responses.stream(model=model.name, input="How many?", tools=[LINES]) as stream:
        events = list(stream)
        final = stream.get_final_response()
    deltas = [event.delta for event in events if event.type == "response.custom_tool_call_input.delta"]
    [done] = [event.input for event in events if event.type == "response.custom_tool_call_input.done"]
    assert "".join(deltas) == done == TEXT
    assert not [event for event in events if event.type == "response.function_call_arguments.delta"]
    assert final.output[0].type == "custom_tool_call"


def test_a_client_that_keeps_the_history_sends_calls_of_its_own_kind_back(client: OpenAI, model: Model) -> None:
    model.hears("2 lines", says("Two."))
    answer = client.responses.create(
        model=model.name,
        store=False,
        tools=[LINES],
        input=[
            {"role": "user", "content": "How many?"},
            {"type": "custom_tool_call", "call_id": "call_1", "name": "lines", "input": TEXT},
            {"type": "custom_tool_call_output", "call_id": "call_1", "output": [{"type": "input_text", "text": "2 lines"}]},
        ],
    )
    assert answer.output_text == "Two."
    assert [message["role"] for message in model.messages()] == ["user", "assistant", "tool"]
    called = model.messages()[1]["tool_calls"][0]["function"]
    assert (called["name"], json.loads(called["arguments"])) == ("lines", {"input": TEXT})


@pytest.mark.parametrize(
    "choice", [{"type": "custom", "name": "lines"}, {"type": "allowed_tools", "mode": "auto", "tools": [dict(LINES)]}]
)
def test_a_custom_tool_can_be_forced_or_allowed(client: OpenAI, model: Model, choice: Any) -> None:
    model.hears("How many", calls(("lines", {"input": "x"})))
    answer = client.responses.create(model=model.name, input="How many?", tools=[LINES], tool_choice=choice)
    assert answer.output[0].type == "custom_tool_call"
    assert model.asked[0].get("tool_choice") in (None, {"type": "function", "function": {"name": "lines"}})


def test_an_item_of_a_known_kind_that_lacks_a_field_is_refused_by_name(client: OpenAI, model: Model) -> None:
    lacking: Any = [{"type": "custom_tool_call_output", "call_id": "call_1"}]
    with pytest.raises(BadRequestError, match="custom_tool_call_output"):
        client.responses.create(model=model.name, input=lacking)


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
async def test_an_agent_performs_a_custom_tool(asked: OpenAIResponsesModel, model: Model, tap: Tap, streamed: bool) -> None:
    heard: list[str] = []

    async def count(_: ToolContext[Any], text: str) -> str:
        heard.append(text)
        return f"{text.count(chr(10))} lines"

    model.hears("How many", calls(("lines", {"input": TEXT})))
    model.hears("2 lines", says("Two."))
    tool = CustomTool("lines", "Counts lines.", count)
    agent = Agent("Counter", tools=[tool], model=asked)
    assert await asked_by(agent, "How many?", streamed=streamed) == "Two."
    assert heard == [TEXT]
    assert tap.posted()[1]["input"][1]["type"] == "custom_tool_call"


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
async def test_an_agent_runs_shell_commands(asked: OpenAIResponsesModel, model: Model, streamed: bool) -> None:
    ran: list[str] = []

    def run(request: ShellCommandRequest) -> ShellResult:
        ran.extend(request.data.action.commands)
        outputs = [ShellCommandOutput("shut\n", "", ShellCallOutcome("exit", 0)) for _ in request.data.action.commands]
        return ShellResult(outputs)

    model.hears("Is the door", calls(("shell", {"commands": ["cat door", "ls"], "timeout_ms": 1000})))
    model.hears("shut", says("It is shut."))
    agent = Agent("Porter", tools=[ShellTool(run)], model=asked)
    assert await asked_by(agent, "Is the door open?", streamed=streamed) == "It is shut."
    assert ran == ["cat door", "ls"]
    assert json.loads(model.messages()[-1]["content"])[0]["stdout"] == "shut\n"


async def test_an_agent_runs_a_local_shell(asked: OpenAIResponsesModel, model: Model) -> None:
    ran: list[list[str]] = []

    def run(request: LocalShellCommandRequest) -> str:
        ran.append(request.data.action.command)
        return "shut"

    model.hears("Is the door", calls(("local_shell", {"command": ["cat", "door"]})))
    model.hears("shut", says("It is shut."))
    agent = Agent("Porter", tools=[LocalShellTool(run)], model=asked)
    assert await asked_by(agent, "Is the door open?", streamed=False) == "It is shut."
    assert ran == [["cat", "door"]]


class Editor:
    """Writes what a patch would leave, well enough for files of one line."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def create_file(self, operation: ApplyPatchOperation) -> ApplyPatchResult:
        (self._folder / operation.path).write_text((operation.diff or "").removeprefix("+"))
        return ApplyPatchResult("completed", f"made {operation.path}")

    def update_file(self, operation: ApplyPatchOperation) -> ApplyPatchResult:
        return ApplyPatchResult("failed", f"no such file: {operation.path}")

    def delete_file(self, operation: ApplyPatchOperation) -> ApplyPatchResult:
        (self._folder / operation.path).unlink()
        return ApplyPatchResult("completed")


def contents(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in folder.iterdir()}


async def test_an_agent_applies_patches_and_hears_which_failed(asked: OpenAIResponsesModel, model: Model, tmp_path: Path) -> None:
    (tmp_path / "old.txt").write_text("old")
    made = {"type": "create_file", "path": "new.txt", "diff": "+hello"}
    wrong = {"type": "update_file", "path": "none.txt", "diff": "@@\n-a\n+b"}
    model.hears(
        "Tidy up",
        calls(("apply_patch", made), ("apply_patch", wrong), ("apply_patch", {"type": "delete_file", "path": "old.txt"})),
    )
    model.hears("Done.", says("Tidied."))
    agent = Agent("Editor", tools=[ApplyPatchTool(Editor(tmp_path))], model=asked)
    assert await asked_by(agent, "Tidy up", streamed=True) == "Tidied."
    assert contents(tmp_path) == {"new.txt": "hello"}
    assert [message["content"] for message in model.messages()[-3:]] == ["made new.txt", "Error: no such file: none.txt", "Done."]


def test_a_shell_that_the_server_would_have_to_host_is_refused_with_what_to_do(client: OpenAI, model: Model) -> None:
    hosted: ToolParam = {"type": "shell", "environment": {"type": "container_auto"}}
    with pytest.raises(BadRequestError, match="--builtin shell"):
        client.responses.create(model=model.name, input="Hello", tools=[hosted])
