"""What a line of shell would start: the parser's answer, and that the way without a parser gives the same."""

import asyncio
import os
import re
from pathlib import Path
from typing import Any

import pytest
from anyio import to_thread
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import UNSET, convert

from mainspring.app.build import compose_engine
from mainspring.app.settings import Settings
from mainspring.core.items import FunctionCallOutput
from mainspring.features.budgets.settings import BudgetSettings
from mainspring.features.governance.settings import GovernanceSettings
from mainspring.providers.scripted import Scripted, call, say
from mainspring.tools.shell_reader import LONGEST, REMEMBERED, ShellLine, ShellReader, find_shfmt, read_line, read_plain_line

WORDS = st.one_of(
    st.sampled_from(
        ["ls", "if", "time", "export", "let", "for", "in", "do", "function", "read", "PATH=x", ".", "-", "%1", "a=b"]
    ),
    st.from_regex(r"[A-Za-z0-9_./=@%+,:-]{1,6}", fullmatch=True),
)
LINES = st.lists(WORDS, min_size=1, max_size=5).flatmap(
    lambda words: st.sampled_from([" ", "\t", "  "]).map(lambda blank: blank.join(words))
)


def programs(line: ShellLine) -> list[str | None]:
    return [words[0] for words in line.commands]


class Counting(ShellReader):
    """Counts how often the parser is started."""

    def __init__(self) -> None:
        super().__init__()
        self.parsed = 0

    async def _parse(self, text: str) -> ShellLine:
        self.parsed += 1
        return await super()._parse(text)


@settings(max_examples=20)
@given(lines=st.lists(LINES, min_size=20, max_size=40))
def test_plain_line_is_read_as_the_parser_reads_it(lines: list[str]) -> None:
    plainly = {line: read for line in lines if (read := read_plain_line(line)) is not None}
    # Many lines in one text, so that one process reads them all. A blank after each keeps the text from being plain itself.
    parsed = asyncio.run(ShellReader()._parse(" \n".join(plainly)))
    assert parsed.commands == tuple(dict.fromkeys([words for read in plainly.values() for words in read.commands]))
    assert set(parsed.sets) == {name for read in plainly.values() for name in read.sets}
    assert set(parsed.doubts) == {doubt for read in plainly.values() for doubt in read.doubts}
    assert parsed.writes == ()


@pytest.mark.parametrize(
    "line",
    [
        *("PATH=x ls", "ls;rm", "ls $x", "ls 'x'", "ls *", "~/ls", "if x", "time ls", "export A=b", "", " ls", "ls ", "ls\n"),
        *("ls #", "[ a ]", "!", "-x", "ls (", "ls\rrm", "ls \u00e9"),
    ],
)
def test_line_with_any_other_meaning_takes_the_parser(line: str) -> None:
    assert read_plain_line(line) is None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a | b && c || d; e & f", ["a", "b", "c", "d", "e", "f"]),
        ('a "$(b `c`)" <(d) ${x:-$(e)} $((1 + $(f)))', ["a", "b", "c", "d", "e", "f"]),
        ("a <<X\n$(b)\nX\nc", ["a", "b", "c"]),
        ("if a; then b; elif c; then d; else e; fi", ["a", "b", "c", "d", "e"]),
        ("while a; do b; done; until c; do d; done", ["a", "b", "c", "d"]),
        ("for x in $(a); do b; done; select y in $(c); do d; done", ["a", "b", "c", "d"]),
        ("case $(a) in $(b)) c;; esac", ["a", "b", "c"]),
        ("( a ); { b; }; ! c; time d; coproc e", ["a", "b", "c", "d", "e"]),
        ("x=$(a) c; y=($(b)); z[$(d)]=1", ["a", "b", "c", "d"]),
        ("a > $(b) 2> >(c)", ["a", "b", "c"]),
        ('[[ -n "$(a)" && $(b) == c ]]', ["a", "b", "$"]),
        ("$x; \"$y\" a; $(b); r''m; \\ls; $'rm'; {a,b}; ?s", [None, None, None, "b", "rm", "ls", None, None, None]),
    ],
)
async def test_every_program_of_a_line_is_found(text: str, expected: list[str | None]) -> None:
    found = programs(await read_line(text))
    wanted = [None if name == "$" else name for name in expected]
    assert set(found) == set(wanted)


@pytest.mark.parametrize(
    ("text", "sets"),
    [
        ("A=1 B+=2 c", {"A", "B"}),
        ("export A=1; readonly B=2; declare -x C; local D=$(x)", {"A", "B", "C", "D"}),
        ("for A in x; do c; done; for ((B=0; B<3; B++)); do c; done", {"A", "B"}),
        (": ${A:=x} ${B=y} ${C:-z}", {"A", "B"}),
        ("echo $((A=1)); ((B+=1)); echo $((C==1))", {"A", "B"}),
        ("read -r A B; mapfile C; unset D; getopts ab: E", {"A", "B", "C", "D", "E", "ab:"}),
    ],
)
async def test_every_variable_that_is_set_is_found(text: str, sets: set[str]) -> None:
    assert set((await read_line(text)).sets) == sets


@pytest.mark.parametrize(
    ("text", "writes"),
    [
        ("a > b >> c 2> d", ["b", "c", "d"]),
        ("a &> b; a >| c; a <> d; a >& e", ["b", "c", "d", "e"]),
        ("a > /dev/null 2>&1 < in 3>&-", []),
        ('a > "$x"', [None]),
        ("{ a; } > b", ["b"]),
    ],
)
async def test_every_file_that_is_written_is_found(text: str, writes: list[str | None]) -> None:
    assert list((await read_line(text)).writes) == writes


@pytest.mark.parametrize(
    ("text", "doubt"),
    [
        ("f() { a; }", "defines a function"),
        ("let x=1", "`let` evaluates"),
        ("coproc a <<< x", "coprocess"),
        ("((a))\nx=(1)", "in another way"),
        ("declare -n x=y", "not understood"),
        ("nameref x=y; declare $x", "not understood"),
        ("read $x", "not known"),
        ("printf -v x y", "may set a variable"),
        ("printf $x y", "may set a variable"),
        ("echo ${x@P}", "once more"),
        ("x='a[$(b)]'; ((x))", "may hold code"),
        ("test -v 'a[$(b)]'", "may hold code"),
        ("a '", "cannot be parsed"),
        ("a\x1b[2K", r"U\+001B"),
        ("a\u202e", r"U\+202E"),
        ("a\ud800", r"U\+D800"),
        ("a" * (LONGEST + 1), "longer than"),
        ("$(" * 3000 + "a" + ")" * 3000, "deep|parsed"),
    ],
)
async def test_what_cannot_be_told_is_said(text: str, doubt: str) -> None:
    assert any(re.search(doubt, said) for said in (await read_line(text)).doubts)


async def test_line_is_parsed_once_and_the_oldest_is_forgotten() -> None:
    reader = Counting()
    for _ in range(3):
        await reader.read("a; b")
    assert reader.parsed == 1
    for number in range(REMEMBERED):
        reader._known[f"{number};"] = ShellLine()
    await reader.read("c; d")
    assert len(reader._known) == REMEMBERED
    await reader.read("a; b")
    assert reader.parsed == 3


async def test_call_starts_the_parser_once_whoever_judges_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[str] = []
    start = asyncio.create_subprocess_exec

    def count(program: str, *args: str, **options: Any) -> Any:
        started.append(Path(program).name)
        return start(program, *args, **options)

    monkeypatch.setattr(asyncio, "create_subprocess_exec", count)
    governance: Any = {
        "commands": {"allowed": ["touch", "echo"]},
        "paths": {"allowed": [str(tmp_path)], "denied": ["/etc"]},
        "domains": {"allowed": ["example.com"]},
        "level": "full",
    }
    budget: Any = {"level": 2, "allowed_commands": ["touch", "echo"]}
    chosen = Settings(
        builtins=("shell",), sandbox="unsafe", working_dir=str(tmp_path),
        governance=convert(governance, GovernanceSettings), budget=convert(budget, BudgetSettings),
    )  # fmt: skip
    line = f"echo {tmp_path.name}; echo done; touch nothing-{tmp_path.name}"
    script = Scripted(call("shell", command=line), say("Done."))
    async with compose_engine(chosen, script, "scripted", database=None) as engine:
        run = await engine.run("Go.")
    assert [item.is_error for item in run.output if isinstance(item, FunctionCallOutput)] == [UNSET]
    assert started.count("shfmt") == 1


async def test_without_the_parser_nothing_is_taken_for_known_and_nothing_is_remembered() -> None:
    found: list[str | None] = [None, find_shfmt()]
    reader = ShellReader(lambda: found.pop(0))
    assert "shfmt-py" in (await reader.read("a; b")).doubts[0]
    assert (await reader.read("a; b")).doubts == ()
    assert programs(await reader.read("ls -l")) == ["ls"]


async def test_parser_that_hangs_is_killed_when_nobody_waits_for_it_any_more(tmp_path: Path) -> None:
    told, hanging = tmp_path / "pid", tmp_path / "shfmt"
    os.mkfifo(told)
    hanging.write_text(f"#!/bin/sh\necho $$ > {told}\nexec sleep 1000\n")
    hanging.chmod(0o700)
    reader = ShellReader(lambda: str(hanging))
    task = asyncio.create_task(reader.read("a; b"))
    pid = int(await asyncio.wait_for(to_thread.run_sync(told.read_text, abandon_on_cancel=True), 10))
    task.cancel()
    await asyncio.wait([task], timeout=10)
    assert task.cancelled()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
