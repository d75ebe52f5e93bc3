"""Built-in tools through OpenAI's own client: code in a sandbox, its container, its images, and what stands around it."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from anyio.from_thread import BlockingPortal
from openai import BadRequestError, OpenAI
from tests.clients.process import Served, served
from tests.clients.tap import lint, tapping
from tests.clients.upstream import Model, Upstream, calls, says

pytestmark = pytest.mark.slow

INTERPRETER: Any = {"type": "code_interpreter", "container": {"type": "auto"}}
SETTINGS = """
builtins = ["code_interpreter", "shell", "file_ops"]
working_dir = "work"
skills = ["skills"]

[governance]
rules = { "file_ops:write" = "ask", "shell" = "allow" }

[governance.commands]
allowed = ["echo", "cat", "ls"]
denied = ["rm"]
"""
SKILL = """---
name: tidying
description: How to tidy up.
allowed-tools: shell
---
Use `ls` first.
"""


@pytest.fixture(scope="module")
def running(upstream: Upstream, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("builtins")
    (folder / "mainspring.toml").write_text(SETTINGS)
    (folder / "work").mkdir()
    (folder / "skills" / "tidying").mkdir(parents=True)
    (folder / "skills" / "tidying" / "SKILL.md").write_text(SKILL)
    with served(folder, upstream.url) as server:
        yield server
    assert "Traceback" not in server.complaints()


@pytest.fixture
def url(portal: BlockingPortal, running: Served) -> Iterator[str]:
    with portal.wrap_async_context_manager(tapping(running.port)) as tap:
        yield tap.url
    lint(tap.streams())


def test_code_runs_and_keeps_its_variables_along_a_chain(client: OpenAI, model: Model) -> None:
    model.hears("Set", calls(("code_interpreter", {"code": "x = 6 * 7\nprint('set')"})))
    model.hears("earlier calls]\nset", says("Done."))
    first = client.responses.create(model=model.name, input="Set x", tools=[INTERPRETER])
    call = first.output[0]
    assert call.type == "code_interpreter_call"
    assert (call.code, call.status) == ("x = 6 * 7\nprint('set')", "completed")
    assert call.outputs is not None
    assert call.outputs[0].type == "logs"
    assert "set" in call.outputs[0].logs
    model.hears("Show", calls(("code_interpreter", {"code": "print('x is', x)"})))
    model.hears("x is 42", says("It is 42."))
    second = client.responses.create(model=model.name, input="Show x", previous_response_id=first.id, tools=[INTERPRETER])
    again = second.output[0]
    assert again.type == "code_interpreter_call"
    assert again.container_id == call.container_id
    assert second.output_text == "It is 42."


def test_a_stream_tells_of_the_code_and_shows_the_image(client: OpenAI, model: Model) -> None:
    draw = (
        "import struct, zlib\n"
        "def piece(kind, data): return struct.pack('>I', len(data)) + kind + data + struct.pack('>I', zlib.crc32(kind + data))\n"
        "head = struct.pack('>IIBBBBB', 1, 1, 8, 2, 0, 0, 0)\n"
        "data = zlib.compress(b'\\0\\xff\\0\\0')\n"
        "png = b'\\x89PNG\\r\\n\\x1a\\n' + piece(b'IHDR', head) + piece(b'IDAT', data) + piece(b'IEND', b'')\n"
        "open('dot.png', 'wb').write(png)\nprint('drawn')\n"
    )
    model.hears("Draw", calls(("code_interpreter", {"code": draw})))
    model.hears("Attached", says("A dot."))
    with client.responses.stream(model=model.name, input="Draw", tools=[INTERPRETER]) as stream:
        kinds = [event.type for event in stream if "code_interpreter" in event.type]
        final = stream.get_final_response()
    assert kinds == [
        "response.code_interpreter_call.in_progress",
        "response.code_interpreter_call_code.delta",
        "response.code_interpreter_call_code.done",
        "response.code_interpreter_call.interpreting",
        "response.code_interpreter_call.completed",
    ]
    call = final.output[0]
    assert call.type == "code_interpreter_call"
    assert call.outputs is not None
    assert [output.type for output in call.outputs] == ["logs", "image"]
    assert final.output_text == "A dot."


@pytest.mark.requirement("C-T8")
def test_commands_are_judged_before_they_run(client: OpenAI, model: Model) -> None:
    model.hears("Say hello", calls(("shell", {"command": "echo hello > note; cat note"})))
    model.hears("hello\n", says("Said."))
    said = client.responses.create(model=model.name, input="Say hello")
    assert said.output_text == "Said."
    model.hears("Remove", calls(("shell", {"command": "echo ok && rm -rf /"})))
    model.hears("rm", says("I may not."))
    refused = client.responses.create(model=model.name, input="Remove all")
    call = refused.output[0]
    assert call.type == "mcp_call"
    assert call.status == "failed"
    model.hears("Fetch", calls(("shell", {"command": "curl example.com"})))
    asked = client.responses.create(model=model.name, input="Fetch it")
    assert asked.output[-1].type == "mcp_approval_request"


@pytest.mark.requirement("C23")
def test_a_skill_is_listed_loaded_and_narrows_what_may_be_called(client: OpenAI, model: Model) -> None:
    model.hears("Tidy", calls(("load_skill", {"name": "tidying"})))
    model.hears("Use `ls` first", calls(("file_ops", {"operation": "list", "path": "."})))
    model.hears("tidying", says("Only the shell, then."))
    answer = client.responses.create(model=model.name, input="Tidy up", instructions="Be neat.")
    assert answer.output_text == "Only the shell, then."
    assert answer.instructions == "Be neat."
    assert "- tidying: How to tidy up." in model.messages()[0]["content"]
    assert [item.status for item in answer.output if item.type == "mcp_call"] == ["completed", "failed"]


def test_health_says_which_sandbox_holds(client: OpenAI, running: Served) -> None:
    health = client.get("/../health", cast_to=object)
    assert isinstance(health, dict)
    assert health["sandbox"]["backend"] in ("bwrap", "landlock")
    assert health["sandbox"]["is_ok"] is True


def test_a_server_without_the_tool_says_how_to_get_it(upstream: Upstream, model: Model, tmp_path: Path) -> None:
    with (
        served(tmp_path, upstream.url) as plain,
        OpenAI(base_url=plain.url, api_key="unused", max_retries=0) as client,
        pytest.raises(BadRequestError, match="--builtin code_interpreter"),
    ):
        client.responses.create(model=model.name, input="Hello", tools=[INTERPRETER])


def test_files_of_a_shell_stay_along_a_chain(client: OpenAI, model: Model) -> None:
    model.hears("Keep", calls(("shell", {"command": "echo kept > note"})))
    model.hears("earlier calls]", says("Kept."))
    first = client.responses.create(model=model.name, input="Keep it")
    model.hears("Show", calls(("shell", {"command": "cat note"})))
    model.hears("kept", says("It is there."))
    second = client.responses.create(model=model.name, input="Show it", previous_response_id=first.id)
    assert second.output_text == "It is there."


@pytest.mark.parametrize("container", [{"type": "auto", "memory_limit": "4g"}, {"type": "bogus"}, 5, "", "x" * 2000])
def test_a_container_that_cannot_be_had_is_refused(client: OpenAI, model: Model, container: Any) -> None:
    with pytest.raises(BadRequestError, match="container must be"):
        client.responses.create(model=model.name, input="Hello", tools=[{"type": "code_interpreter", "container": container}])
