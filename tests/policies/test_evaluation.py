# ruff: noqa: E501
"""Whatever bash evaluates is seen: no line that runs a denied program by arithmetic is allowed, and its harmless twin is.

Each line is a way to set a variable and a way to evaluate it. Real bash says which of them run the program in the variable.
"""

import subprocess
from itertools import product
from pathlib import Path

import pytest

from mainspring.features.governance.scope_policies import CommandPolicy
from mainspring.ports import Allow
from mainspring.tools.shell_reader import read_line

CODE = "a[$(touch ran)]"
SETS = (
    "x='{code}'", "x=\"a[\\$(touch ran)]\"", "x='a[$(touch '; x+='ran)]'", "y='{code}'; x=$y", "x=('{code}')", "declare x='{code}'",
    "export x='{code}'", "readonly x='{code}'", "read -r x <<< '{code}'", "read -r x < code", "x=$(cat code)", "x=$(<code)",
    ": ${{x:='{code}'}}", "x=${{unset_:-'{code}'}}", "x=$'a[\\x24(touch ran)]'", "mapfile -t x < code", "x=`cat code`",
    "printf -v x %s '{code}'", "IFS= read -r x < code", "y=(1 '{code}'); x=${{y[1]}}", "set -- '{code}'; x=$1", "x='{code}'; z=$x; x=$z",
)  # fmt: skip
EVALUATES = (
    "echo $((x))", "echo $(( x + 1 ))", "echo $[x]", "((x))", "((x > 1)) && ls", "arr[x]=1", "arr=([x]=1)", "echo ${arr[x]}",
    "s=abc; echo ${s:x}", "s=abc; echo ${s:0:x}", "for ((i=x;0;)); do ls; done", "for ((;x;)); do break; done", "[[ x -eq 1 ]]",
    "[[ $x -gt 1 ]]", "[[ 1 -lt x ]]", "echo ${!x}", "echo $(( $x ))", "echo \"$((x))\"", "i=$((x))", "echo ${arr[$x]}",
    "(( y = x ))", "echo $(( 1 ? x : 0 ))", "cat <<END\n$((x))\nEND", "echo {1..3} $((x))", "while ((x)); do break; done",
    "[[ -v x ]] ; [[ -v $x ]]", "test -v \"$x\"", "[ -v \"$x\" ]", "unset \"$x\"", "echo ${#arr[x]}", "echo ${arr[@]:x}",
    "[[ ${arr[x]} ]]", "echo $((-x))", "((++x))", "echo $((x++))", "(( x += 1 ))",
)  # fmt: skip
OTHERS = (
    ": '{code}'; echo $((_))", "[[ '{code}' =~ .* ]]; echo $((BASH_REMATCH))", "read -r < code; echo $((REPLY))", "echo $(( $(cat code) ))",
    "mapfile -t < code; echo $((MAPFILE))", "for x in '{code}'; do echo $((x)); done", "for x in $(cat code); do echo $((x)); done",
    "set -- '{code}'; echo $(($1))", "set -- '{code}'; for x; do echo $((x)); done", "declare -i x='{code}'", "declare -i x; x='{code}'",
    "x='{code}' y=$((x))", "exec {{a[x]}}>out", "x='{code}'; exec {{arr[x]}}>out", "let 'y={code}'", "declare -n y=x; x='{code}'; echo $((y))",
    "cat code | {{ read -r x; echo $((x)); }}", "x='{code}'; (echo $((x)))", "x='{code}'; echo $(echo $((x)))", "read -r 'a[$(touch ran)]' <<< 1",
    "x='{code}'; y='x'; echo $((y))", "printf -v 'a[$(touch ran)]' %s 1", "test -v '{code}'", "[[ -v '{code}' ]]", "echo $(( `cat code` ))",
    "select x in '{code}'; do echo $((x)); break; done <<< 1", "x='{code}'; case $((x)) in 1) ls;; esac", "unset 'a[$(touch ran)]'",
    "echo $((BASH_COMMAND))", "wait -n -p 'a[$(touch ran)]'", "x='{code}'; ulimit -n $((x))", "x='{code}'; shift $((x))", "y=1; x='{code}'; y=x; ((y))",
    "mkdir -p '{code}'; cd '{code}'; echo $(( ${{PWD##*/}} ))", "getopts ':' x '-{code}'; echo $((OPTARG))", "echo $(( $(cat code | tail -1) ))",
)  # fmt: skip
# A fourth of all pairs, such that each way meets several others.
PAIRS = [pair for number, pair in enumerate(product(SETS, EVALUATES)) if (number + number // len(EVALUATES)) % 4 == 0]
LINES = [f"{before}; {after}" for before, after in PAIRS] + list(OTHERS)

HARMLESS_SETS = (
    "x=1", "x=$((2 + 3))", "x=-4", "declare x=2", "export x=7", "y=2; x=$y", "x=${#HOME}", "x=(1 2 3)", "x=$(nproc)",
    "x=$(ls | wc -l)", "x=$(date +%s)", "x=$(wc -l < code)", "x=\"12\"", "x=$#", "x=$?", "x=$RANDOM",
)  # fmt: skip
HARMLESS = [
    *[f"{before}; {after}" for before, after in product(HARMLESS_SETS, EVALUATES) if "!x" not in after and "unset" not in after],
    "for i in 1 2 3; do echo $((i * 2)); done", "for i in {1..5}; do echo $((i+1)); done", "for i in $(seq 1 10); do echo $((i)); done",
    "for ((i=0; i<10; i++)); do echo $i; done", "s=hello; echo ${s:1:2} ${s: -2}", "a=(x y z); echo ${a[0]} ${a[@]} ${#a[@]} ${!a[@]}",
    "awk '{print $1}' notes; i=0; i=$((i+1))", "grep '$(x)' notes; n=3; [[ $n -gt 2 ]]", "echo $(( $(nproc) * 2 ))",
    "n=$(find . -name '*.py' | wc -l); if ((n > 3)); then echo many; fi", "start=$(date +%s); echo $(( $(date +%s) - start ))",
    "echo $((1024 * 1024))", "i=0; while ((i < 3)); do ((i++)); done", "a=(1 2 3); sum=0; for v in 1 2 3; do sum=$((sum + v)); done; echo $sum",
    "[ $# -gt 0 ] || echo none", "x=5; y=$x; z=$((x + y)); echo $z", "head -n $((2 + 3)) notes", "a[0]=1; a[1]=2; echo ${a[1]}",
    "echo ${HOME##*/} ${PATH//:/ }", "for f in *.txt; do echo \"$f\"; done", "sed -n '1,$p' notes | head -n 3",
]  # fmt: skip


def fill(line: str) -> str:
    return line.replace("{code}", CODE).replace("{{", "{").replace("}}", "}")


def runs_code(lines: list[str], folder: Path) -> list[bool]:
    """Which of these lines run the program, by bash itself."""
    found = []
    for line in lines:
        (folder / "code").write_text(CODE + "\n")
        subprocess.run(["bash", "-c", line], cwd=folder, capture_output=True, timeout=60, check=False)
        found.append((folder / "ran").exists())
        (folder / "ran").unlink(missing_ok=True)
    return found


async def is_allowed(line: str) -> bool:
    policy = CommandPolicy(allowed=["*"], denied=["touch"])
    return isinstance(policy.judge_line(line, await read_line(line)), Allow)


async def test_no_line_that_evaluates_code_is_allowed(tmp_path: Path) -> None:
    lines = [fill(line) for line in LINES]
    assert len(lines) >= 150
    running = [line for line, does_run in zip(lines, runs_code(lines, tmp_path), strict=True) if does_run]
    assert len(running) >= 150  # most of the table is real
    assert [line for line in running if await is_allowed(line)] == []


async def test_their_harmless_twins_are_allowed() -> None:
    refused = [line for line in HARMLESS if not await is_allowed(line)]
    assert len(refused) <= 0.05 * len(HARMLESS), refused


@pytest.mark.parametrize(
    "line", ["x='{code}'; arr[x]=1", "x='{code}'; echo ${arr[x]}", "x='{code}'; echo ${!x}", "s=a; echo ${s:x}; x='{code}'"]
)
async def test_what_was_allowed_once_is_asked_about(line: str) -> None:
    assert not await is_allowed(fill(line))
