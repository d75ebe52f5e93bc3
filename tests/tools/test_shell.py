"""Command lines run in a container as a shell user expects, are shown while they run, and end with the run."""

import asyncio

import anyio
import pytest
from tests.kit.waiting import PATIENCE
from tests.sandbox.traces import processes_of

from mainspring.app.engine import Engine
from mainspring.core.errors import SandboxError
from mainspring.core.events import ToolEnded, ToolProgress
from mainspring.core.items import FunctionCallOutput, Json
from mainspring.core.sandbox import OutputChunk, SandboxLimits, SandboxSpec
from mainspring.providers.scripted import Scripted, call, calls, prompt, say
from mainspring.tools.builtin.builtins import DeferredSandbox
from mainspring.tools.builtin.container_tools import ProgressLines, Shell
from mainspring.tools.builtin.containers import NEW, Containers
from mainspring.tools.contract import SchemaAwareTool, ToolContext, ToolResult
from mainspring.tools.registry import Registry
from mainspring.tools.sandbox.local import LocalSandbox


@pytest.fixture
def shell(containers: Containers) -> Shell:
    return Shell(containers)


async def ran(shell: Shell, command: str, heard: list[str] | None = None, /, **more: object) -> ToolResult:
    params: Json = {"command": command, **more}
    context = ToolContext(scope="conv_1", progress=(heard if heard is not None else []).append)
    with anyio.fail_after(PATIENCE):
        return await Registry([shell]).validated_execute("shell", params, context)


async def output(shell: Shell, command: str, **more: str) -> str:
    """What a call that nothing stopped answers, without the note that its container is new."""
    result = await ran(shell, command, **more)
    assert result.success, result.error
    return str(result.output).removeprefix(f"{NEW}\n")


async def test_shell_is_a_tool_that_declares_what_it_does(sandbox: LocalSandbox, shell: Shell) -> None:
    assert isinstance(shell, SchemaAwareTool)
    [definition] = Registry([shell]).definitions
    assert definition.parameters is not None
    assert definition.parameters["required"] == ["command"]
    assert (definition.kind, definition.effects) == ("builtin", ("read", "write", "execute"))
    assert (definition.purposes, definition.repeatable) == ({"command": "command"}, False)
    assert "network" in Shell(Containers(sandbox, spec=SandboxSpec(network=True))).effects


@pytest.mark.requirement("D72")
@pytest.mark.parametrize(
    ("command", "told"),
    [
        ("printf 'b\\na\\nb\\n' | sort | uniq -c | tr -s ' '", " 1 a\n 2 b\n[exit code 0]"),
        ("echo one > f; echo two >> f; cat < f", "one\ntwo\n[exit code 0]"),
        ("cat <<'END'\n$HOME stays\nEND", "$HOME stays\n[exit code 0]"),
        ("cat <<< here", "here\n[exit code 0]"),
        ("echo out; echo err >&2", "out\nerr\n[exit code 0]"),
        ("{ echo out; echo err >&2; } > both 2>&1; wc -l < both", "2\n[exit code 0]"),
        ("false | true; echo ${PIPESTATUS[0]}", "1\n[exit code 0]"),
        ("diff <(echo a) <(echo a) && echo same", "same\n[exit code 0]"),
        ("for i in 1 2 3; do echo $((i * i)); done", "1\n4\n9\n[exit code 0]"),
        ("yes | head -n 1", "y\n[exit code 0]"),
        ("true", "[exit code 0]"),
    ],
)
async def test_pipes_redirections_and_here_documents_work(shell: Shell, command: str, told: str) -> None:
    assert await output(shell, command) == told


async def test_a_command_that_fails_is_told_and_no_error_of_the_call(shell: Shell) -> None:
    assert await output(shell, "echo no >&2; exit 3") == "no\n[exit code 3]"
    assert (await output(shell, "no-such-program")).endswith("no-such-program: command not found\n[exit code 127]")
    assert (await output(shell, "kill -SEGV $$")).endswith("[ended by signal 11]")


async def test_files_stay_for_the_next_call_but_variables_folder_and_processes_do_not(shell: Shell) -> None:
    await output(shell, "mkdir sub && cd sub && export NAME=x && echo kept > file\nsleep 600 &")
    assert await output(shell, 'echo "[$NAME]"; ls; grep -l sleep /proc/[0-9]*/comm | wc -l') == "[]\nsub\n0\n[exit code 0]"
    assert await output(shell, "cat sub/file") == "kept\n[exit code 0]"


async def test_a_command_runs_in_the_folder_it_asks_for(shell: Shell) -> None:
    await output(shell, "mkdir -p 'a b/c'")
    told = await output(shell, "cat > here <<END\nthere\nEND", working_dir="a b/c")
    assert told == "[exit code 0]"
    assert await output(shell, "cat 'a b/c/here'", working_dir=".") == "there\n[exit code 0]"
    assert "No such file or directory" in await output(shell, "touch never", working_dir="gone")
    assert await output(shell, "ls never gone 2>&1 | wc -l") == "2\n[exit code 0]"


@pytest.mark.parametrize("folder", ["/etc", "../up", "a/../../b"])
async def test_a_folder_outside_the_workspace_is_refused(shell: Shell, folder: str) -> None:
    result = await ran(shell, "pwd", working_dir=folder)
    assert (result.success, f"`{folder}` is no folder of the workspace" in result.error) == (False, True)


@pytest.mark.parametrize(
    ("params", "told"), [({}, "command"), ({"command": ""}, "command"), ({"command": "ls", "timeout_ms": 0}, "timeout_ms")]
)
async def test_arguments_that_do_not_fit_are_refused(shell: Shell, params: Json, told: str) -> None:
    result = await Registry([shell]).validated_execute("shell", params, ToolContext())
    assert not result.success
    assert told in result.error


async def test_a_command_that_takes_too_long_is_stopped_and_what_it_said_is_kept(shell: Shell) -> None:
    result = await ran(shell, "echo begun; sleep 600", timeout_ms=500)
    assert not result.success
    assert "begun\n[stopped: it took longer than it may" in str(result.output)
    assert await output(shell, "echo fine") == "fine\n[exit code 0]", "the container goes on"


async def test_a_flood_of_output_is_stopped(sandbox: LocalSandbox) -> None:
    async with Containers(sandbox, spec=SandboxSpec(limits=SandboxLimits(output=50_000))) as containers:
        result = await ran(Shell(containers), "yes")
    assert not result.success
    assert "[stopped: too much output" in str(result.output)
    assert len(str(result.output)) < 51_000


async def test_output_is_progress_in_whole_lines(shell: Shell) -> None:
    heard: list[str] = []
    await ran(shell, "seq 1 20000; printf 'caf\\xc3\\xa9 without end'", heard)
    assert "\n".join(heard).splitlines() == [*map(str, range(1, 20_001)), "café without end"]


async def test_lines_that_come_together_are_one_piece_of_progress() -> None:
    heard: list[str] = []
    with ProgressLines(heard.append) as lines:
        for piece in (b"one\ncaf", b"\xc3", b"\xa9\n", b"99%\r100%"):
            lines.add(OutputChunk("stdout", piece))
        lines.add(OutputChunk("stderr", b"oops\n"))
        assert heard == [], "not an event for each"
        with anyio.fail_after(PATIENCE):
            while not heard:  # noqa: ASYNC110 (a timer shows it, which sets no event)
                await asyncio.sleep(0.001)
        assert heard == ["one\ncafé\n99%\roops"], "without waiting for the end"
    assert heard[1:] == ["100%"]


async def test_a_line_that_never_ends_is_shown_in_pieces(shell: Shell) -> None:
    heard: list[str] = []
    await ran(shell, "head -c 300000 /dev/zero | tr '\\0' x; echo oops >&2", heard)
    shown = "".join(heard).replace("\n", "")
    assert (shown.count("x"), "oops" in shown) == (300_000, True)


async def test_output_is_streamed_and_cancelling_the_run_ends_the_command_at_once(
    sandbox: LocalSandbox, containers: Containers
) -> None:
    before = processes_of(sandbox)
    async with Engine(Scripted(call("shell", command="echo up; sleep 600 & sleep 600")), tools=[Shell(containers)]) as engine:
        handle = await engine.ask("Wait.")
        with anyio.fail_after(PATIENCE):
            shown = (record.event.text async for record in handle.events() if isinstance(record.event, ToolProgress))
            assert await anext(shown) == "up", "while the command is far from its end"
            await shown.aclose()
            assert len(processes_of(sandbox)) > len(before)
            run = await handle.cancel()
            while set(processes_of(sandbox)) - set(before):  # noqa: ASYNC110 (processes set no event)
                await asyncio.sleep(0.01)
    assert run.status == "cancelled"


async def test_a_long_output_reaches_the_model_with_its_beginning_its_end_and_the_exit_code(containers: Containers) -> None:
    with Scripted(call("shell", command="seq 1 50000; exit 4"), say("Long.")) as script:
        async with Engine(script, tools=[Shell(containers)]) as engine:
            run = await engine.run("Count.")
    [told] = [str(item.output) for item in run.output if isinstance(item, FunctionCallOutput)]
    assert told.startswith(f"{NEW}\n1\n2\n3\n")
    assert "characters left out" in told
    assert told.endswith("49999\n50000\n[exit code 4]")
    assert len(told) < 16_000


@pytest.mark.requirement("C-T30")
async def test_an_agent_does_a_task_of_several_steps_with_the_shell(containers: Containers) -> None:
    with Scripted(
        call("shell", command="cat > add.sh <<'END'\necho $(($1 + $3))\nEND\nbash add.sh 20 22"),
        calls(call("shell", command="sed -i 's/$3/$2/' add.sh && bash add.sh 20 22"), expect="[exit code 1]"),
        calls(call("shell", command="bash add.sh 1 2 | tee result; wc -c < result"), expect="42\n[exit code 0]"),
        say("It adds.", expect="3\n2\n[exit code 0]"),
        say("Done: 20 + 22 = 42.", expect="is every part of the task done"),
    ) as script:
        async with Engine(script, tools=[Shell(containers)], preset="iterative") as engine:
            run = await engine.run("Write a script that adds two numbers, and try it.")
            log = [record.event async for record in (await engine.attach(run.spec.id)).events()]
    assert (run.status, run.reason, run.text) == ("completed", "final_answer", "Done: 20 + 22 = 42.")
    assert run.tools_used == ("shell",)
    assert [event.is_error for event in log if isinstance(event, ToolEnded)] == [False, False, False]


@pytest.mark.requirement("C15")
@pytest.mark.parametrize("line", ["id -un; echo ran anyway", "ls; id", "ls $(id)", "/tmp/ls", "bash -c id", "PATH=. ls"])
async def test_a_context_that_lists_commands_permits_no_others(containers: Containers, line: str) -> None:
    registry = Registry([Shell(containers)], context=ToolContext(command_allowlist=("ls",)))
    script = Scripted(call("shell", command=line), call("shell", command="ls /"), say("Done."))
    async with Engine(script, tools=registry) as engine:
        run = await engine.run("Who are you?")
    refused, listed = [item for item in run.output if isinstance(item, FunctionCallOutput)]
    assert refused.is_error is True
    assert "allowed: `ls`" in str(refused.output)
    assert "[exit code" not in str(refused.output)
    assert "usr" in str(listed.output)


async def test_without_a_sandbox_the_tool_is_offered_and_every_call_refused_with_what_to_do() -> None:
    absent = DeferredSandbox(SandboxError("no sandbox holds here, so code is not run; install bubblewrap, or choose `unsafe`"))
    tool = Shell(Containers(absent))
    with Scripted(call("shell", command="id"), call("shell", command="id"), say("I cannot.")) as script:
        async with Engine(script, tools=[tool]) as engine:
            run = await engine.run("Who are you?")
    outputs = [(item.output, item.is_error) for item in run.output if isinstance(item, FunctionCallOutput)]
    refusal = "no sandbox holds here, so code is not run; install bubblewrap, or choose `unsafe`"
    assert outputs == [(refusal, True)] * 2
    assert refusal in prompt(script.requests[-1])
    assert not (await absent.health()).is_ok


async def test_a_nul_in_the_command_is_told_in_words(containers: Containers) -> None:
    result = await Shell(containers).execute({"command": "echo a\0b"}, ToolContext(run_id="resp_1"))
    assert (result.success, "cannot hold the character NUL" in result.error) == (False, True)
