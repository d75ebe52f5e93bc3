"""Python keeps its state in a container, shows its images and names its files, and says when its state is gone."""

import asyncio
from base64 import b64decode

import anyio
import pytest
from tests.kit.waiting import PATIENCE

from mainspring.app.engine import Engine
from mainspring.core.errors import SandboxError
from mainspring.core.items import FunctionCallOutput, InputImage, InputText, text_of
from mainspring.providers.scripted import Scripted, call, calls, say
from mainspring.tools.builtin.builtins import DeferredSandbox
from mainspring.tools.builtin.container_tools import LOST, MOST_IMAGES, CodeInterpreter, Shell
from mainspring.tools.builtin.containers import NEW, Containers
from mainspring.tools.contract import ToolContext, ToolResult
from mainspring.tools.registry import Registry
from mainspring.tools.sandbox.local import LocalSandbox

PICTURE = """
import struct, zlib
def piece(kind, data):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
head = piece(b"IHDR", struct.pack(">IIBBBBB", 1, 1, 8, 2, 0, 0, 0))
picture = b"\\x89PNG\\r\\n\\x1a\\n" + head + piece(b"IDAT", zlib.compress(b"\\0\\xff\\0\\0")) + piece(b"IEND", b"")
"""


@pytest.fixture
def python(containers: Containers) -> CodeInterpreter:
    return CodeInterpreter(containers)


async def ran(python: CodeInterpreter, code: str, scope: str = "conv_1") -> ToolResult:
    with anyio.fail_after(PATIENCE):
        return await Registry([python]).validated_execute("code_interpreter", {"code": code}, ToolContext(scope=scope))


async def output(python: CodeInterpreter, code: str, scope: str = "conv_1") -> str:
    """What a cell that nothing stopped answers, without the note that its container is new."""
    result = await ran(python, code, scope)
    assert result.success, result.error
    return text_of(result.output).removeprefix(NEW).removeprefix("\n")


async def test_cells_answer_with_what_they_print_and_their_last_value(python: CodeInterpreter) -> None:
    assert await output(python, "import sys\nprint('out')\nprint('err', file=sys.stderr)\n6 * 7") == "out\nerr\n42"
    assert await output(python, "x = 1") == "[no output]"


async def test_what_a_cell_defines_is_there_in_the_next_of_its_container_only(python: CodeInterpreter) -> None:
    await output(python, "x = 40")
    assert await output(python, "x + 2") == "42"
    assert "NameError: name 'x' is not defined" in await output(python, "x", scope="conv_2")


async def test_what_a_cell_starts_ends_with_it(python: CodeInterpreter, sandbox: LocalSandbox) -> None:
    if (await sandbox.health()).backend != "bwrap":
        pytest.skip("only a sandbox with processes of its own can tell them from others")
    await ran(python, "import subprocess\nloop = subprocess.Popen(['sh', '-c', 'while :; do :; done'])")
    assert "ended by -9" in str((await ran(python, "print('ended by', loop.wait(5))")).output)


async def test_what_a_cell_raises_is_told_and_no_error_of_the_call(python: CodeInterpreter) -> None:
    await output(python, "x = 1")
    told = await output(python, "1 / 0")
    assert told.endswith("ZeroDivisionError: division by zero\n[exit code 1]")
    assert await output(python, "x") == "1", "the state is still there"


async def test_new_and_changed_files_are_named_with_their_size(python: CodeInterpreter) -> None:
    told = await output(python, "import os\nos.mkdir('out')\n_ = open('out/data.csv', 'w').write('a,b' * 500)")
    assert told == "[files written: out/data.csv (1,500 bytes)]"
    assert await output(python, "_ = open('out/data.csv', 'a').write('!')") == "[files written: out/data.csv (1,501 bytes)]"
    assert await output(python, "open('out/data.csv').read()[-1]") == "'!'"


async def test_of_many_files_some_are_named(python: CodeInterpreter) -> None:
    told = await output(python, "for n in range(60): open(f'f{n:02}', 'w').close()")
    assert told.endswith("f49 (0 bytes), 10 more]")


async def test_a_name_that_is_no_text_is_shown_as_well_as_it_can_be(python: CodeInterpreter) -> None:
    assert await output(python, r"open(b'caf\xe9', 'w').close()") == "[files written: caf\ufffd (0 bytes)]"


async def test_an_image_that_a_cell_writes_is_shown(python: CodeInterpreter) -> None:
    result = await ran(python, f"{PICTURE}\n_ = open('red.png', 'wb').write(picture)\nprint(len(picture))")
    assert isinstance(result.output, tuple)
    text, image = result.output
    assert isinstance(text, InputText)
    assert isinstance(image, InputImage)
    head, _, data = str(image.image_url).partition(",")
    assert head == "data:image/png;base64"
    assert text.text == f"{NEW}\n{len(b64decode(data))}"


@pytest.mark.parametrize(
    "code",
    ["_ = open('no.png', 'w').write('words')", "_ = open('no.jpg', 'wb').write(b'\\xff\\xd8\\xff' + bytes(3_000_000))"],
    ids=["no image", "too large"],
)
async def test_what_no_model_can_look_at_is_only_named(python: CodeInterpreter, code: str) -> None:
    assert (await output(python, code)).startswith("[files written: no.")


async def test_more_images_than_fit_are_named(python: CodeInterpreter) -> None:
    result = await ran(python, f"{PICTURE}\nfor n in range({MOST_IMAGES + 1}): open(f'{{n}}.png', 'wb').write(picture)")
    assert sum(isinstance(part, InputImage) for part in result.output) == MOST_IMAGES
    assert f"[files written: {MOST_IMAGES}.png (" in text_of(result.output)


@pytest.mark.slow
async def test_a_cell_that_takes_too_long_loses_the_state_and_the_next_one_says_so(containers: Containers) -> None:
    python = CodeInterpreter(containers, seconds=1.0)
    await output(python, "x = 1\n_ = open('kept', 'w').write('here')")
    late = await ran(python, "print('begun')\nwhile True: pass")
    assert not late.success
    assert "begun\n[stopped: it took longer than it may" in str(late.output)
    assert "its variables are gone" in str(late.output)
    told = await output(python, "print(open('kept').read())\nx")
    assert told.startswith(f"{LOST}\nhere\n")
    assert "NameError" in told
    assert LOST not in await output(python, "1"), "said once"


async def test_a_cell_that_is_cancelled_loses_the_state_and_the_next_one_says_so(
    containers: Containers, python: CodeInterpreter
) -> None:
    await output(python, "x = 1")
    cell = asyncio.get_running_loop().create_task(ran(python, "open('begun', 'w').close()\nwhile True: pass"))
    with anyio.fail_after(PATIENCE):
        while not (await containers.list("", "cntr_1")).entries:
            assert not cell.done()
        cell.cancel()
        await asyncio.wait([cell])
    assert cell.cancelled()
    assert (await output(python, "2 + 2")) == f"{LOST}\n4"


async def test_files_that_were_put_are_worked_on_and_come_out(containers: Containers, python: CodeInterpreter) -> None:
    await containers.create("", "cntr_1")
    await containers.put("", "cntr_1", "in/data.txt", b"hello")
    await output(python, "_ = open('out.txt', 'w').write(open('in/data.txt').read().upper())")
    assert await containers.get("", "cntr_1", "out.txt") == b"HELLO"
    assert [entry.path for entry in (await containers.list("", "cntr_1")).entries] == ["in/data.txt", "out.txt"]


async def test_a_run_works_in_one_container_with_both_tools_and_the_model_sees_its_images(containers: Containers) -> None:
    code = f"{PICTURE}\n_ = open('red.png', 'wb').write(picture)\nopen('words').read()"
    with Scripted(
        call("shell", command="printf shared > words"),
        calls(call("code_interpreter", code=code), expect=f"{NEW}\n[exit code 0]"),
        calls(call("code_interpreter", code="len(picture)"), expect="[output] 'shared'"),
        say("A red dot."),
    ) as script:
        async with Engine(script, tools=[Shell(containers), CodeInterpreter(containers)]) as engine:
            run = await engine.run("Draw.")
    assert run.text == "A red dot."
    outputs = [item.output for item in script.requests[-1].items if isinstance(item, FunctionCallOutput)]
    assert isinstance(outputs[1], tuple)
    [image] = [part for part in outputs[1] if isinstance(part, InputImage)]
    assert str(outputs[2]) == str(len(b64decode(str(image.image_url).partition(",")[2])))


async def test_without_a_sandbox_every_call_is_refused_with_what_to_do() -> None:
    result = await ran(CodeInterpreter(Containers(DeferredSandbox(SandboxError("install bubblewrap")))), "1")
    assert (result.success, result.error) == (False, "install bubblewrap")
