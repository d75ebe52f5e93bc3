"""Mutation testing of the loop: changes its code bit by bit and lists the changes that no test notices.

A change that survives is accepted only with a written reason in `tests/loop/survivors.toml`. Reasons are keyed by function and
changed lines, so they outlive renumbering and go stale when the code they speak of changes; a stale reason fails as well.
"""

import argparse
import os
import resource
import shutil
import sys
import tomllib
from pathlib import Path
from typing import NamedTuple

from mutmut.__main__ import cli
from mutmut.mutation.data import SourceFileMutationData
from mutmut.mutation.diff_apply import get_diff_for_mutant
from mutmut.stats import status_by_exit_code
from mutmut.utils.file_utils import walk_mutatable_files
from mutmut.utils.format_utils import get_module_from_key, orig_function_and_class_names_from_key

ROOT = Path(__file__).resolve().parent.parent
REASONS = Path("tests/loop/survivors.toml")
NOTICED = {"killed", "timeout", "caught by type check"}
MEMORY = 2 * 1024**3


class Change(NamedTuple):
    """What a mutant does to which function: the lines it takes away (`-`) and adds (`+`), without indentation."""

    function: str
    lines: str


def mutate(jobs: int) -> None:
    """Runs mutmut from scratch: its memory of earlier runs does not notice that a test has changed."""
    shutil.rmtree("mutants", ignore_errors=True)
    # A mutant may ask for memory without end; it must fail, not the machine.
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    cli.main(["run", "--max-children", str(jobs)], standalone_mode=False)


class Outcome(NamedTuple):
    tried: int
    survivors: list[tuple[Change, str]]  # each with mutmut's word for it


def outcome() -> Outcome:
    tried, survivors = 0, []
    for path in walk_mutatable_files():
        data = SourceFileMutationData(path=path)
        data.load()
        tried += len(data.exit_code_by_key)
        for key, code in data.exit_code_by_key.items():
            if (status := status_by_exit_code[code]) not in NOTICED:
                survivors.append((changed(key, path), status))
    return Outcome(tried, survivors)


def changed(key: str, path: Path) -> Change:
    name, kind = orig_function_and_class_names_from_key(key)
    function = ".".join([get_module_from_key(key), *([kind] if kind else []), name])
    diff = get_diff_for_mutant(key, path=path).splitlines()
    lines = [line for line in diff if line.startswith(("-", "+")) and not line.startswith(("---", "+++"))]
    return Change(function, "\n".join([f"{line[0]} {line[1:].strip()}" for line in lines]))


def explained() -> set[Change]:
    entries = tomllib.loads(REASONS.read_text())["survivor"]
    return {Change(entry["function"], lines.strip()) for entry in entries if entry["reason"] for lines in entry["changes"]}


def main() -> int:
    arguments = argparse.ArgumentParser(description="mutation testing of the loop; takes minutes")
    arguments.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="mutants to try at a time")
    os.chdir(ROOT)
    mutate(arguments.parse_args().jobs)
    (tried, survivors), reasons = outcome(), explained()
    new = [(change, status) for change, status in survivors if change not in reasons]
    stale = sorted(reasons - {change for change, _ in survivors})
    for change, status in new:
        print(f"\n{status}, and no reason: {change.function}\n{change.lines}")
    for change in stale:
        print(f"\na reason, but no such survivor: {change.function}\n{change.lines}")
    print(f"\n{tried} mutants, {len(survivors)} survivors; {len(new)} without a reason, {len(stale)} stale reasons")
    return 1 if new or stale else 0


if __name__ == "__main__":
    sys.exit(main())
