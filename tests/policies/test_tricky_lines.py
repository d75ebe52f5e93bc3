"""Lines in which bash evaluates what it should only name are denied, and harmless lines that look like them are not."""

import tomllib
from pathlib import Path

from mainspring.features.governance.scope_policies import CommandPolicy
from mainspring.ports import Allow, Ask, Deny, Verdict
from mainspring.tools.shell_reader import read_line

LINES = tomllib.loads((Path(__file__).parent / "tricky_lines.toml").read_text())
SET = "x='a[$(rm -v victim >&2)]'; "
EVALUATED = [SET + line for line in LINES["evaluated"].splitlines()] + LINES["complete"].splitlines() + LINES["several"]
HARMLESS = LINES["harmless"].splitlines() + LINES["harmless_several"]
ALLOWED = "ls cat wc grep head sort uniq cut date seq tr sed awk diff find tar mkdir cp touch sleep"
POLICY = CommandPolicy([*ALLOWED.split(), "git status"], ["rm"])


async def judge(line: str) -> Verdict:
    return POLICY.judge_line(line, await read_line(line))


async def test_every_line_that_evaluates_text_is_denied() -> None:
    assert len(EVALUATED) >= 150
    assert [line for line in EVALUATED if not isinstance(await judge(line), Deny)] == []


async def test_harmless_lines_are_allowed() -> None:
    refused = [line for line in HARMLESS if await judge(line) != Allow()]
    assert len(refused) <= 0.05 * len(HARMLESS), refused


async def test_what_deletes_or_is_run_by_an_allowed_program_is_asked_about() -> None:
    lines = [
        "tar c --remove-files -f o.tar victim",
        "tar -c --remove-f -f o.tar victim",
        "echo '[core]' > .git/config; git status",
    ]
    assert [line for line in lines if not isinstance(await judge(line), Ask)] == []


async def test_builtins_that_are_written_as_programs_are_not_covered_by_a_star() -> None:
    lines = ["\\let y=x", '"declare" -i y=x', "\\export PATH=.", "'local' -n r=x", "jobs -x rm v", "setpriv rm v"]
    everything = CommandPolicy(["*"], ["rm"])
    assert [line for line in lines if everything.judge_line(line, await read_line(line)) == Allow()] == []
