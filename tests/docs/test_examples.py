"""Runs every code block of README.md and docs/, so that what the pages teach stays true.

The blocks of a page run in order and share one working directory, empty at first. What a block is good for depends on
its language:

- ``python`` runs as a script, on its own, with the interpreter of the project;
- ``sh`` and ``bash`` run under ``bash -eu``; of a ``console`` block the lines after ``$ `` do;
- ``json``, ``toml`` and ``yaml`` must parse;
- ``text``, ``mermaid`` and blocks without a language are for the reader alone.

A block after the comment ``<!-- file: NAME -->`` is written to NAME for the later blocks of the page, and not run.
Lines that start with ``./run`` or ``./check`` would set up or test the project again, so they are only asked for the
help of their subcommand. What a block leaves running is ended with its page.
"""

import json
import os
import re
import signal
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

import pytest
import yaml
from tests.kit.processes import DEVNULL, STDOUT, Process, start

ROOT = Path(__file__).resolve().parents[2]
PAGES = [page for page in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))) if page.is_file()]
SECONDS_PER_BLOCK = 60
# Another installation to try the pages with that name no packages, such as one without what only tests need.
PYTHON = os.environ.get("MAINSPRING_DOCS_PYTHON", sys.executable)
NEEDED = re.compile(r"^The examples of this page need `pip install (.*)`\.$", re.MULTILINE)

FILE_COMMENT = re.compile(r"\s*<!-- file: (\S+) -->\s*")
FENCE = re.compile(r"( *)(`{3,})([\w+-]*).*")
ENTRY_POINT = re.compile(r"^((?:\$ |[ \t]+)?)\./(run|check)\b(?:[ \t]+([a-z][\w-]*))?.*", re.MULTILINE)
PROMPTED = re.compile(r"^\$ (.*)", re.MULTILINE)
PARSERS: dict[str, Callable[[str], object]] = {"json": json.loads, "toml": tomllib.loads, "yaml": yaml.safe_load}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_example_of_the_page_runs(page: Path, tmp_path: Path) -> None:
    try_out(page, tmp_path)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_names_the_packages_that_its_examples_need_beside_mainspring(page: Path) -> None:
    names: set[str] = set()
    for block in blocks_of(page):
        if block.language == "python":
            names |= set(re.findall(r"^(?:import|from) (\w+)", block.text, re.MULTILINE))
        elif block.language in ("sh", "bash", "console"):
            names |= set(re.findall(r"python -m (\w+)", block.text))
    files = {Path(block.file).stem for block in blocks_of(page) if block.file is not None}
    lock = {
        name.replace("-", "_") for name in re.findall(r"^([\w.-]+)==", (ROOT / "requirements.lock").read_text(), re.MULTILINE)
    }
    needed = names - sys.stdlib_module_names - lock - files - {"mainspring", "mainspring_tasks", "bench"}
    told = NEEDED.findall(page.read_text())
    assert needed == {name.replace("-", "_") for line in told for name in line.split()}


def test_the_blocks_of_a_page_share_a_directory(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(SHARING_PAGE)
    try_out(page, tmp_path)
    assert (tmp_path / "page" / "seen").read_text() == "42\n"


SHARING_PAGE = r"""
<!-- file: settings/a.toml -->
```toml
answer = 42
```

1. An indented block:

   ```python
   import tomllib
   from pathlib import Path

   print(tomllib.loads(Path("settings/a.toml").read_text())["answer"], file=Path("answer").open("w"))
   ```

```console
$ cat \
    answer | tee seen
42
$ ./check fast
```

```
not code
```
"""


@pytest.mark.parametrize(
    "text",
    [
        "```python\n1 / 0\n```",
        "```sh\nfalse\ntrue\n```",
        "```console\n$ false\n```",
        "```sh\n./check no-such-target\n```",
        "```json\n{...}\n```",
        "```toml\na =\n```",
        "```cobol\nSTOP RUN.\n```",
        "```python\nnever closed",
    ],
)
def test_a_block_that_does_not_hold_fails_its_page(text: str, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(text)
    with pytest.raises(AssertionError, match=r"page\.md, line \d"):
        try_out(page, tmp_path)


def try_out(page: Path, scratch: Path) -> None:
    with Bench(page, scratch) as bench:
        for block in blocks_of(page):
            bench.try_out(block)


class Block(NamedTuple):
    line: int
    language: str
    text: str
    file: str | None


def blocks_of(page: Path) -> Iterator[Block]:
    """The fenced code blocks of a Markdown page, in order; ``line`` is where the first line of code stands."""
    lines = enumerate(page.read_text("utf-8").splitlines(), start=1)
    file = None
    for number, line in lines:
        if named := FILE_COMMENT.fullmatch(line):
            file = named[1]
        elif opening := FENCE.fullmatch(line):
            indent, fence, language = opening.groups()
            code = []
            for _, inner in lines:
                if inner.strip() == fence:
                    break
                code.append(inner.removeprefix(indent) + "\n")
            else:
                raise AssertionError(f"{page.name}, line {number}: the block is never closed")
            yield Block(number + 1, language, "".join(code), file)
            file = None
        elif line.strip():
            file = None


class Bench:
    """The place where the blocks of one page are tried out."""

    def __init__(self, page: Path, scratch: Path) -> None:
        self.page = page
        self.python = sys.executable if NEEDED.search(page.read_text("utf-8")) else PYTHON
        self.cwd = scratch / "page"
        self.home = scratch / "home"
        self.log = scratch / "log"
        self.processes: list[Process | subprocess.Popen[bytes]] = []

    def __enter__(self) -> Self:
        self.cwd.mkdir()
        self.home.mkdir()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for process in self.processes:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def try_out(self, block: Block) -> None:
        where = f"{self.page.name}, line {block.line}"
        if block.file is not None:
            path = self.cwd / block.file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(block.text, "utf-8")
        match block.language:
            case "json" | "toml" | "yaml" as language:
                try:
                    PARSERS[language](block.text)
                except (ValueError, yaml.YAMLError) as error:
                    raise AssertionError(f"{where}: {error}") from error
            case _ if block.file is not None:
                pass
            case "python":
                # Blank lines before the code give a traceback the line numbers of the page.
                script = self.cwd / f"{self.page.stem}.example.py"
                script.write_text("\n" * (block.line - 1) + block.text, "utf-8")
                self.run(where, [self.python, script.name])
            case "sh" | "bash":
                self.run(where, ["bash", "-eu", "-c", script_of(block.text)])
            case "console":
                self.run(where, ["bash", "-eu", "-c", "\n".join(PROMPTED.findall(script_of(block.text)))])
            case "" | "text" | "mermaid":
                pass
            case language:
                raise AssertionError(f"{where}: nothing runs `{language}`; mark what is only to be read as `text`")

    def run(self, where: str, command: list[str]) -> None:
        environment = os.environ | {
            "HOME": str(self.home),
            "PATH": os.pathsep.join([str(Path(self.python).parent), os.environ["PATH"]]),
        }
        # A file, not a pipe: a process left in the background must not keep the block from ending.
        with self.log.open("wb") as log:
            process: Process | subprocess.Popen[bytes]
            if command[0] == sys.executable:
                process = start(
                    command, cwd=self.cwd, env=environment, stdout=log.fileno(), stderr=STDOUT, start_new_session=True
                )
            else:
                process = subprocess.Popen(
                    command, cwd=self.cwd, env=environment, stdin=DEVNULL, stdout=log, stderr=STDOUT, start_new_session=True
                )
        self.processes.append(process)
        try:
            outcome = f"exit status {process.wait(SECONDS_PER_BLOCK)}"
        except subprocess.TimeoutExpired:
            outcome = f"still running after {SECONDS_PER_BLOCK} s"
        assert process.returncode == 0, f"{where}: {outcome}\n{self.log.read_text('utf-8', 'replace')}"


def script_of(text: str) -> str:
    """The text as a script in which ``./run`` and ``./check`` ask for help instead of doing their work."""
    joined = text.replace("\\\n", " ")
    return ENTRY_POINT.sub(lambda line: f"{line[1]}'{ROOT}/{line[2]}' {line[3] or ''} --help", joined)
