"""A program that the engine starts itself is held as sandboxed code is; `tests/mcp/test_held.py` tries what it can do."""

import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from tempfile import TemporaryDirectory

import anyio
import pytest
from tests.sandbox.conftest import opened

from mainspring.tools.sandbox.cgroup import Groups
from mainspring.tools.sandbox.grants import Program, list_mounts
from mainspring.tools.sandbox.local import LocalSandbox
from mainspring.tools.sandbox.probe import Mode
from mainspring.tools.sandbox.workspace_files import Owner
from mainspring.tools.sandbox.wrap import build_bare_command, wrap_program

LOOK = """
import json, os
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
print(json.dumps({
    "folder": os.getcwd(),
    "uid": os.getuid(),
    "rights": int(status["CapEff"], 16) | int(status["CapBnd"], 16),
    "filter": status["Seccomp"].strip(),
    "names": sorted(os.environ),
    "given": os.environ.get("GIVEN"),
    "files": len(os.listdir("/proc/self/fd")),
}))
"""


@pytest.fixture(scope="module")
async def bwrap() -> AsyncIterator[LocalSandbox]:
    async for entered in opened("bwrap"):
        yield entered


def ran(line: tuple[str, ...]) -> str:
    theirs, ours = os.pipe()
    try:
        done = subprocess.run(
            [*line, str(theirs)],
            capture_output=True,
            text=True,
            env={"GIVEN": "a key"},
            timeout=60,
            check=False,
            pass_fds=(theirs,),
        )
    finally:
        os.close(theirs)
        os.close(ours)
    assert done.returncode == 0, done.stderr
    return done.stdout


async def look(sandbox: LocalSandbox, program: Program) -> dict[str, object]:
    async with wrap_program(sandbox, program) as line:
        return dict(json.loads(await anyio.to_thread.run_sync(ran, tuple(line))))


async def test_a_wrapped_program_is_nobody_without_rights_in_a_group_of_its_own(bwrap: LocalSandbox) -> None:
    seen = await look(bwrap, Program(argv=(sys.executable, "-c", LOOK)))
    assert (seen["folder"], seen["rights"], seen["filter"], seen["given"]) == ("/workspace", 0, "2", "a key")
    assert seen["uid"] != 0
    assert seen["files"] == 4, "its three and the one it looks with"
    own = {"GIVEN", "HOME", "LANG", "LC_CTYPE", "LD_LIBRARY_PATH", "PATH", "PWD", "PYTHONDONTWRITEBYTECODE", "TMPDIR", "USER"}
    assert isinstance(seen["names"], list)
    assert set(seen["names"]) <= own
    assert [path.name for path in bwrap.data.iterdir()] == ["etc"]


async def test_a_wrapped_program_has_a_control_group_where_there_are_any_and_leaves_none(bwrap: LocalSandbox) -> None:
    async with wrap_program(bwrap, Program(argv=("/bin/true",))) as line:
        joins = json.loads(line[4])["launch"]["joins"]
        assert bool(joins) is ((await bwrap.health()).totals != "none")
        assert all(os.access(join, os.W_OK) for join in joins)
    assert not any(os.access(join, os.F_OK) for join in joins)


async def test_unsafe_holds_nothing(unsafe: LocalSandbox) -> None:
    program = Program(argv=(sys.executable, "-c", "print('out')"))
    async with wrap_program(unsafe, program) as line:
        assert line == build_bare_command(program)
        assert await anyio.to_thread.run_sync(ran, tuple(line)) == "out\n"


def paths(*argv: str, cwd: Path | None = None) -> set[str]:
    program = Program(argv=argv, cwd=None if cwd is None else str(cwd))
    return {grant.path for grant in list_mounts(program, Owner())}


def test_a_program_may_read_what_it_consists_of_and_no_more() -> None:
    with TemporaryDirectory() as name:
        root = Path(name).resolve()
        for folder in ("env/bin", "env/lib", "env/secrets", "app/src", "app/node_modules/.bin", "app/node_modules/x", "loose"):
            (root / folder).mkdir(parents=True)
        for file in ("env/bin/python3", "env/bin/node", "app/package.json", "app/src/main.js", "app/node_modules/x/main.js"):
            (root / file).touch(mode=0o755)
        for file in ("loose/script.py", "loose/data.db", "lone.py"):
            (root / file).touch()
        (root / "app/node_modules/.bin/x").symlink_to("../x/main.js")
        python, node = str(root / "env/bin/python3"), str(root / "env/bin/node")
        installed = {str(root / "env/bin"), str(root / "env/lib")}
        assert paths(python, "-m", "loose") == installed
        assert paths(node, str(root / "app/src/main.js")) == installed | {str(root / "app")}
        assert paths(node, str(root / "app/node_modules/.bin/x")) == installed | {str(root / "app/node_modules")}
        assert paths(python, "loose/script.py", cwd=root) == {str(root)}, "the rest lies in it"
        assert paths(python, "-c", "pass", str(root / "loose/script.py")) == installed
        assert paths("/bin/cat", str(root / "loose/script.py")) == set(), "data is nobody's own program"
        assert paths(python, str(root / "loose/script.py"), str(root / "lone.py")) == installed | {str(root / "loose")}
        (root / "loose/mainspring.db").touch()
        assert paths(python, str(root / "loose/script.py")) == installed | {str(root / "loose/script.py")}


def test_nothing_is_mounted_on_a_link() -> None:
    """bubblewrap 0.12 refuses that, and `lib64` of a virtual environment is one."""
    with TemporaryDirectory() as name:
        root = Path(name).resolve()
        for folder in ("app/env/bin", "app/env/lib", "data/old", "work"):
            (root / folder).mkdir(parents=True)
        for file in ("app/pyproject.toml", "app/server.py", "app/env/bin/python3"):
            (root / file).touch(mode=0o755)
        (root / "app/env/lib64").symlink_to("lib")
        (root / "app/data").symlink_to(root / "data")
        (root / "app/work").symlink_to(root / "work")
        app, python = root / "app", str(root / "app/env/bin/python3")

        def mounted(*folders: str, reads: tuple[str, ...] = ()) -> set[tuple[str, bool]]:
            program = Program(argv=(python, str(app / "server.py")), folders=folders, reads=reads)
            return {(mount.path.removeprefix(f"{root}/"), mount.is_writable) for mount in list_mounts(program, Owner())}

        assert mounted() == {("app", False)}
        assert mounted(str(app / "work"), reads=(str(app / "data/old"),)) == {("app", False), ("work", True), ("data/old", False)}
        assert mounted(str(app)) == {("app", True), ("app/env/bin", False), ("app/env/lib", False)}


def test_a_script_in_a_home_does_not_show_the_home(monkeypatch: pytest.MonkeyPatch) -> None:
    with TemporaryDirectory() as name:
        home = Path(name).resolve()
        monkeypatch.setenv("HOME", name)
        (home / "server.py").touch()
        (home / "package.json").touch()
        assert paths("/usr/bin/python3", str(home / "server.py")) == {str(home / "server.py")}


LIMITS = "import json, resource\nprint(json.dumps([resource.getrlimit(getattr(resource, f'RLIMIT_{n}'))[1] for n in NAMES]))"


@pytest.mark.parametrize("mode", ["bwrap", "landlock"])
async def test_each_process_is_held_to_limits_where_no_group_counts_them_together(mode: Mode) -> None:
    async for sandbox in opened(mode, groups=Groups()):
        code = f"NAMES = ('CORE', 'FSIZE', 'NPROC', 'DATA')\n{LIMITS}"
        async with wrap_program(sandbox, Program(argv=(sandbox.backend.python.executable, "-c", code))) as line:
            core, file, processes, data = json.loads(await anyio.to_thread.run_sync(ran, tuple(line)))
        assert (core, file, data) == (0, 1 << 30, 2 << 30)
        assert 512 <= processes < 10_000
