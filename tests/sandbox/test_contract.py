"""What every sandbox promises: programs run, output streams, files go in and out, limits end what exceeds them."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

import pytest
from tests.kit.waiting import GROWING
from tests.sandbox.conftest import AnySandbox
from tests.sandbox.traces import find_traces

from mainspring.core.errors import InvalidRequest, NotFound, SandboxError
from mainspring.core.sandbox import OutputChunk, ProgramExit, SandboxLimits, SandboxSpec
from mainspring.tools.sandbox.lease import LocalLease
from mainspring.tools.sandbox.local import LocalSandbox

FOREVER = "import time\nprint('on', flush=True)\ntime.sleep(600)"


async def test_python_code_runs_and_its_output_and_exit_code_come_back(runner: AnySandbox) -> None:
    async with runner.acquire() as lease:
        result = await lease.execute("import sys\nprint('out')\nprint('err', file=sys.stderr)\nsys.exit(3)")
    assert (result.stdout, result.stderr, result.exit) == ("out\n", "err\n", ProgramExit(3))


async def test_an_exception_is_told_with_the_lines_of_the_code_and_nothing_of_ours(runner: AnySandbox) -> None:
    async with runner.acquire() as lease:
        result = await lease.execute("def half(x):\n    return x / 0\nhalf(1)")
    lines = [line.strip() for line in result.stderr.splitlines() if "^" not in line and "~" not in line]
    assert lines == [
        "Traceback (most recent call last):",
        'File "<code>", line 3, in <module>',
        "half(1)",
        'File "<code>", line 2, in half',
        "return x / 0",
        "ZeroDivisionError: division by zero",
    ]
    assert result.exit == ProgramExit(1)
    assert result.text.endswith("[exit code 1]")


async def test_shell_commands_run_with_pipes_that_break_quietly(runner: AnySandbox) -> None:
    async with runner.acquire() as lease:
        result = await lease.execute("yes | head -n 2; echo $((6 * 7))", language="shell")
    assert (result.stdout, result.stderr, result.exit) == ("y\ny\n42\n", "", ProgramExit(0))


async def test_node_runs_if_it_is_installed(runner: AnySandbox) -> None:
    if "node" not in (await runner.health()).languages:
        pytest.skip("node is not installed")
    async with runner.acquire() as lease:
        result = await lease.execute("console.log([1, 2].map(x => x * 2).join())", language="node")
    assert (result.stdout, result.exit) == ("2,4\n", ProgramExit(0)), result.text


async def test_a_command_is_run_as_its_words_without_a_shell(runner: AnySandbox) -> None:
    async with runner.acquire() as lease:
        result = await lease.execute(["echo", "$HOME", "a b"])
        missing = await lease.execute(["no-such-program"])
    assert result.stdout == "$HOME a b\n"
    assert (missing.exit, missing.stderr) == (ProgramExit(127), "no-such-program: No such file or directory\n")


async def test_a_program_that_a_signal_ended_says_so(runner: AnySandbox) -> None:
    async with runner.acquire() as lease:
        child = await lease.execute(["sh", "-c", "kill -SEGV $$"])
        itself = await lease.execute("import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)")
    assert child.exit == ProgramExit(139, 11, "signal")
    assert itself.exit == ProgramExit(139, 11, "signal")


async def test_code_may_end_the_interpreter_without_a_word(runner: AnySandbox) -> None:
    async with runner.acquire() as lease:
        result = await lease.execute("import os\nprint('bye', flush=True)\nos._exit(7)")
    assert (result.stdout, result.exit) == ("bye\n", ProgramExit(7))


async def test_threads_and_exit_functions_are_waited_for_and_forked_copies_are_not_taken_for_the_end(
    runner: AnySandbox,
) -> None:
    code = (
        "import atexit, os, threading\n"
        "atexit.register(print, 'last')\n"
        "child = os.fork()\n"
        "if child:\n"
        "    os.waitpid(child, 0)\n"
        "    threading.Timer(0.05, print, ['thread']).start()\n"
    )
    async with runner.acquire() as lease:
        result = await lease.execute(code)
    assert result.stdout == "last\nthread\nlast\n"


async def test_output_is_streamed_while_the_program_runs(runner: AnySandbox) -> None:
    async with runner.acquire() as lease, aclosing(lease.run("print('first')\nprint('got', input())", stdin=b"second")) as output:
        parts = [part async for part in output]
    assert b"".join(part.data for part in parts if isinstance(part, OutputChunk)) == b"first\ngot second\n"
    assert parts[-1] == ProgramExit(0)
    async with runner.acquire() as lease, aclosing(lease.run(FOREVER)) as output:
        assert await anext(output) == OutputChunk("stdout", b"on\n"), "though the program is far from its end"


async def test_a_megabyte_goes_in_and_comes_out_of_a_program(runner: AnySandbox) -> None:
    data = bytes(range(256)) * 2048
    async with runner.acquire() as lease:
        parts = [part async for part in lease.run(["cat"], stdin=data)]
    assert b"".join(part.data for part in parts if isinstance(part, OutputChunk)) == data


async def test_a_program_that_ignores_its_input_is_not_waited_for(runner: AnySandbox) -> None:
    async with runner.acquire() as lease:
        result = await lease.execute(["true"], stdin=b"x" * 1_000_000)
    assert result.exit == ProgramExit(0)


async def test_a_program_that_closes_its_output_is_waited_for_all_the_same(runner: AnySandbox) -> None:
    code = "exec >&- 2>&-; head -c 1 /dev/zero > made; sleep 0.2; exit 5"
    async with runner.acquire() as lease:
        result = await lease.execute(code, language="shell")
    assert result.exit == ProgramExit(5)


async def test_an_answer_does_not_wait_for_what_runs_on_in_the_background(runner: AnySandbox) -> None:
    async with runner.acquire() as lease:
        result = await lease.execute("sleep 600 & echo started", language="shell", timeout=60)
    assert (result.stdout, result.exit) == ("started\n", ProgramExit(0))


async def test_files_go_in_are_worked_on_and_come_out(runner: AnySandbox) -> None:
    code = "text = open('in/data.txt').read()\nopen('out.txt', 'w').write(text.upper())\nopen('in/data.txt', 'a').write('!')"
    async with runner.acquire() as lease:
        await lease.put("untouched", b"x")
        await lease.put("in/data.txt", b"hello")
        result = await lease.execute(code)
        assert [entry.path for entry in result.files] == ["in/data.txt", "out.txt"]
        assert await lease.get("out.txt") == b"HELLO"
        assert await lease.get("in/data.txt") == b"hello!"
        assert [entry.path for entry in (await lease.list()).entries] == ["in/data.txt", "out.txt", "untouched"]


async def test_a_workspace_can_be_made_again_from_its_listing(runner: AnySandbox) -> None:
    # Not by chmod, which Landlock cannot keep to the workspace.
    making = (
        "import os\nfor folder in ('bin', 'e/mpty', 'taken'): os.makedirs(folder)\n"
        "os.write(os.open('bin/it', os.O_CREAT | os.O_WRONLY, 0o755), b'#!/bin/sh\\necho works')\n"
        "open('plain', 'w')\nos.symlink('bin/it', 'link')\nos.symlink('/no', 'gone')"
    )
    async with runner.acquire() as lease:
        await lease.execute(making)
        listing = await lease.list()
        contents = {entry.path: await lease.get(entry.path) for entry in listing.entries}
    assert [(entry.path, entry.size, entry.is_executable) for entry in listing.entries] == [
        ("bin/it", 20, True),
        ("plain", 0, False),
    ]
    assert (listing.folders, sorted(listing.links)) == (("e/mpty", "taken"), [("gone", "/no"), ("link", "bin/it")])
    async with runner.acquire() as lease:
        for path in ("taken", "gone"):
            await lease.put(path, b"there already ")
        await lease.put_all(contents, listing)
        result = await lease.execute("./link; ls -d e/mpty; cat taken gone", language="shell")
    assert result.stdout == "works\ne/mpty\nthere already there already "


async def test_runs_of_one_lease_share_its_files_but_no_other_lease_does(runner: AnySandbox) -> None:
    async with runner.acquire() as one, runner.acquire() as other:
        await one.execute("open('note', 'w').write('mine')")
        assert (await one.execute("print(open('note').read())")).stdout == "mine\n"
        assert "FileNotFoundError" in (await other.execute("print(open('note').read())")).stderr


@pytest.mark.parametrize("path", ["/etc/passwd", "../x", "a/../../x", "", ".", "a\0b"])
async def test_a_path_that_is_not_in_the_workspace_is_refused(runner: AnySandbox, path: str) -> None:
    async with runner.acquire() as lease:
        with pytest.raises(InvalidRequest):
            await lease.put(path, b"x")
        with pytest.raises(InvalidRequest):
            await lease.get(path)


async def test_a_missing_file_and_one_too_large_say_so(runner: AnySandbox) -> None:
    async with runner.acquire(SandboxSpec(limits=SandboxLimits(file=1000))) as lease:
        with pytest.raises(NotFound, match="there is no file `gone`"):
            await lease.get("gone")
        with pytest.raises(InvalidRequest, match="more than the 1000"):
            await lease.put("large", b"x" * 1001)
        await lease.put("small", b"x" * 1000)
        assert len(await lease.get("small")) == 1000


async def test_a_timeout_ends_the_run_and_keeps_what_was_said(runner: AnySandbox) -> None:
    async with runner.acquire() as lease:
        for seconds in GROWING:
            result = await lease.execute(FOREVER, timeout=seconds)
            if result.stdout:
                break
        assert (result.stdout, result.exit) == ("on\n", ProgramExit(None, reason="timeout"))
        assert "took longer than it may" in result.text
        assert (await lease.execute("print('fine')")).stdout == "fine\n", "the lease goes on"


async def test_closing_the_stream_ends_the_run(runner: AnySandbox) -> None:
    async with runner.acquire(SandboxSpec(network=True)) as lease:
        traces = find_traces(runner, lease)
        output = lease.run(FOREVER)
        assert await anext(output) == OutputChunk("stdout", b"on\n")
        await output.aclose()
        await lease.release()
        assert traces.left(runner) == []


async def test_cancelling_whoever_waits_ends_the_run(runner: AnySandbox) -> None:
    started = asyncio.Event()

    async def work(output: AsyncGenerator[OutputChunk | ProgramExit, None]) -> None:
        async with aclosing(output):
            async for _ in output:
                started.set()

    async with runner.acquire(SandboxSpec(network=True)) as lease:
        traces = find_traces(runner, lease)
        task = asyncio.get_running_loop().create_task(work(lease.run(FOREVER)))
        await asyncio.wait_for(started.wait(), 30)
        task.cancel()
        await asyncio.wait([task])
        await lease.release()
        assert task.cancelled()
        assert traces.left(runner) == []


async def test_releasing_a_lease_ends_what_another_task_runs_in_it(runner: AnySandbox) -> None:
    async with runner.acquire() as lease:
        output = lease.run(FOREVER)
        assert await anext(output) == OutputChunk("stdout", b"on\n")
        await lease.release()
        ends = [part async for part in output]
    assert ends == [ProgramExit(137, 9, "signal")]


async def test_many_leases_work_side_by_side(runner: AnySandbox) -> None:
    async def one(number: int) -> str:
        async with runner.acquire() as lease:
            return (await lease.execute(f"print({number} ** 2)")).stdout

    squares = await asyncio.gather(*(one(number) for number in range(8)))
    assert squares == [f"{number**2}\n" for number in range(8)]


async def test_a_language_that_is_not_there_is_refused_with_those_there_are(runner: AnySandbox) -> None:
    async with runner.acquire() as lease:
        with pytest.raises(InvalidRequest, match="`cobol` is not installed for the sandbox; there is: python"):
            await lease.execute("x", language="cobol")  # type: ignore[arg-type]
        with pytest.raises(InvalidRequest, match="put them into a file"):
            await lease.execute("#" * 200_000, language="shell")


async def test_code_of_any_length_runs_in_python(runner: AnySandbox) -> None:
    async with runner.acquire() as lease:
        result = await lease.execute(f"text = '{'x' * 3_000_000}'\nprint(len(text))")
    assert result.stdout == "3000000\n"


async def test_health_names_the_backend_its_limits_and_its_languages(runner: AnySandbox) -> None:
    if isinstance(runner, LocalSandbox):
        await runner.wait_until_warm()
    async with runner.acquire():
        pass
    if isinstance(runner, LocalSandbox):
        await runner.wait_until_warm()
    health = await runner.health()
    assert health.backend == (runner._kind if isinstance(runner, LocalSandbox) else "kubernetes")
    assert health.totals in ("cgroup v1", "cgroup v2", "none", "pod")
    assert {"python", "shell"} <= set(health.languages)
    assert health.is_ok
    assert health.uid != 0
    assert health.warm == (1 if isinstance(runner, LocalSandbox) or runner.settings.warm_pool else 0)


async def test_cells_share_their_variables_and_show_their_last_value(runner: AnySandbox) -> None:
    async with runner.acquire() as lease, lease.session() as session:
        first = await session.run_cell("import math\nx = 40\nprint('said')")
        second = await session.run_cell("x += 2\nopen('made', 'w').write('1')\nx")
        third = await session.run_cell("raise ValueError(x)")
        fourth = await session.run_cell("x")
    assert (first.stdout, first.value, first.is_state_lost) == ("said\n", None, False)
    assert (second.value, [entry.path for entry in second.files]) == ("42", ["made"])
    assert third.stderr.endswith("ValueError: 42\n")
    assert (third.exit, third.is_state_lost) == (ProgramExit(1), False)
    assert fourth.value == "42"


@pytest.mark.parametrize("code", ["while True: pass", "import os; os._exit(0)", "print('x' * 2_000_000)"])
async def test_a_cell_that_ends_the_interpreter_says_that_the_state_is_lost(runner: AnySandbox, code: str) -> None:
    async with runner.acquire() as lease, lease.session() as session:
        await session.run_cell("x = 1\nopen('kept', 'w').write('1')")
        ended = await session.run_cell(code, timeout=1.0)
        after = await session.run_cell("import os\nprint(os.listdir())\nx")
    assert ended.is_state_lost
    assert "its variables are gone" in ended.text
    assert after.stdout == "['kept']\n"
    assert "NameError" in after.stderr
    assert not after.is_state_lost


async def test_a_released_lease_runs_nothing_any_more(runner: AnySandbox) -> None:
    async with runner.acquire() as lease:
        await lease.release()
        with pytest.raises(SandboxError, match="the lease was released"):
            await anext(lease.run("print(1)"))


async def test_a_reader_that_dawdles_misses_nothing(runner: AnySandbox) -> None:
    async with runner.acquire() as lease, aclosing(lease.run("print('first')\nimport os\nos.close(3)\nos._exit(4)")) as output:
        assert await anext(output) == OutputChunk("stdout", b"first\n")
        if isinstance(lease, LocalLease):
            (jail,) = lease._slot._jails
            await asyncio.wait([jail.process.ended])
        assert [part async for part in output] == [ProgramExit(4)]


async def test_a_session_that_is_left_while_a_cell_runs_ends_the_cell(runner: AnySandbox) -> None:
    async with runner.acquire() as lease:
        async with lease.session() as session:
            cell = asyncio.get_running_loop().create_task(
                session.run_cell("open('on', 'w').close()\nimport time\ntime.sleep(600)")
            )
            while not (await lease.list()).entries:
                assert not cell.done()
        result = await asyncio.wait_for(cell, 30)
    assert result.exit == ProgramExit(137, 9, "signal")
    assert result.is_state_lost


async def test_a_cell_that_answers_in_place_of_the_worker_does_not_shift_later_answers(runner: AnySandbox) -> None:
    forged = "import os, struct\nm = struct.pack('>iii', 2, 0, 0) + b'forged'\nos.write(3, struct.pack('>I', len(m)) + m)\n'real'"
    async with runner.acquire() as lease, lease.session() as session:
        await session.run_cell("n = 1")
        assert (await session.run_cell(forged)).value in ("forged", "'real'")
        results = [await session.run_cell(f"{number}") for number in range(3)]
        # The answer that was left over ends its interpreter, and is taken for no other.
        assert [result.value for result in results] in (["0", "1", "2"], [None, "1", "2"])
        assert results[0].value is not None or results[0].is_state_lost
