"""Runs every check of the project: a line per step, the output of those that fail, and a summary line.

A step is a list of commands, and fails with the first that does. A few failed tests are run once more, alone: those that
then pass are named as unsteady and fail nothing, so that one slip of a busy machine among thousands of tests is told and
mended without holding up what has nothing to do with it. The steps form two lanes, one for each core of a small
machine; within a lane they keep their order, because the last ones try out what an earlier one built. A failed step
stops none of the others. An interrupt ends the running commands and the whole check.
"""

import asyncio
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
# More failed tests than these are no slips.
MOST_UNSTEADY = 8
# What pytest exits with when tests have failed and it ran them all: not when it was interrupted, or broke itself.
TESTS_FAILED = 1
# The examples of all pages, which are tried in the clean installation.
PAGES = "tests/docs/test_examples.py::test_every_example_of_the_page_runs"


class Step(NamedTuple):
    name: str
    commands: list[list[str]]
    cwd: Path = ROOT
    has_summary: bool = False  # the last line of the output is worth showing even when all went well
    again: Callable[[], list[str] | None] = lambda: None  # after failed tests: what may make it good, if anything


class Output(NamedTuple):
    status: int
    text: str


def lanes(scratch: Path) -> list[list[Step]]:
    image = scratch / "image"
    image.mkdir()
    typed = [folder for folder in ("src", "tests", "bench", "scripts") if (ROOT / folder).is_dir()]
    wheels, fresh, elsewhere = scratch / "wheels", scratch / "fresh", scratch / "elsewhere"
    elsewhere.mkdir()
    cache, docs_cache = scratch / "cache", scratch / "docs-cache"
    elsewhere_python = ["env", f"MAINSPRING_DOCS_PYTHON={fresh}/bin/python"]
    # By the pip of the project: one of its own, and what is never imported in compiled form, would take most of the time.
    pip_install = ["python", "-m", "pip", "--python", f"{fresh}/bin/python", "install", "--quiet", "--no-input", "--no-compile"]
    return [
        [
            Step(
                "tests",
                [
                    # Once, before several processes do so at the same time.
                    ["python", "-m", "compileall", "-q", "src"],
                    ["python", "scripts/rewrite_tests.py"],
                    ["pytest", "-q", "-n", "4", "--dist=worksteal", "--deselect", PAGES, "-o", f"cache_dir={cache}"],
                ],
                has_summary=True,
                again=lambda: rerun_few_failed(cache),
            ),
        ],
        [
            Step("format", [["ruff", "format", "--check", "."]]),
            Step("lint", [["ruff", "check", "."]]),
            Step("types", [["mypy", *typed]]),
            Step("contracts", [["lint-imports", "--no-cache"]]),
            Step("counts", [["python", "-m", "scripts.counts"]], has_summary=True),
            Step("build", [["python", "-m", "build", "--wheel", "--no-isolation", "--outdir", str(wheels)]]),
            Step(
                "install",
                [
                    ["python", "-m", "venv", "--without-pip", str(fresh)],
                    [*pip_install, "--require-hashes", "--requirement", "requirements.lock"],
                    [*pip_install, "--no-deps", "--no-index", "--find-links", str(wheels), "mainspring"],
                ],
            ),
            Step("image", [["python", "scripts/replay_image.py", str(image)]], has_summary=True),
            Step(
                "smoke",
                [[f"{fresh}/bin/mainspring", "--version"], [f"{fresh}/bin/mainspring", "demo", "--json"]],
                cwd=elsewhere,
            ),
            # What the README and the docs say holds for whoever has installed nothing else, but for what a page names.
            Step(
                "docs",
                [[*elsewhere_python, "pytest", "-q", PAGES, "-o", f"cache_dir={docs_cache}"]],
                has_summary=True,
                again=lambda: (found := rerun_few_failed(docs_cache)) and [*elsewhere_python, *found],
            ),
        ],
    ]


def rerun_few_failed(cache: Path) -> list[str] | None:
    """The command that runs the failed tests once more; None if they are too many, or if something else went wrong."""
    try:
        failed: dict[str, bool] = json.loads((cache / "v" / "cache" / "lastfailed").read_text())
    except (OSError, ValueError):
        return None
    if not 0 < len(failed) <= MOST_UNSTEADY:
        return None
    return ["pytest", "-q", "--last-failed", "--last-failed-no-failures=none", "-o", f"cache_dir={cache}"]


async def run_command(command: list[str], cwd: Path) -> Output:
    try:
        process = await asyncio.create_subprocess_exec(
            *command,
            cwd=cwd,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            start_new_session=True,
        )
    except OSError as error:
        return Output(1, f"{command[0]}: {error.strerror}\n")
    try:
        output, _ = await process.communicate()
    finally:
        if process.returncode is None:
            os.killpg(process.pid, signal.SIGTERM)
            await process.wait()
    return Output(process.returncode or 0, output.decode(errors="replace"))


async def run_step(step: Step) -> bool:
    started = time.monotonic()
    result = Output(0, "")
    for command in step.commands:
        result = await run_command(command, step.cwd)
        if result.status != 0:
            break
    passed = result.status == 0
    again = step.again() if result.status == TESTS_FAILED else None
    second = await run_command(again, step.cwd) if again else None
    if second:
        passed = second.status == 0
    seconds = time.monotonic() - started
    lines = result.text.rstrip().splitlines()
    summary = f"   {lines[-1].strip('= ')}" if step.has_summary and lines else ""
    print(f"{step.name:<10} {'ok' if passed else 'FAILED':<7} {seconds:6.1f} s{summary}")
    if result.status != 0:
        if passed:
            print("    UNSTEADY: what failed below passed when it was run once more; find out why")
        print(f"$ {' '.join(command)}", *lines, f"exit status {result.status}", sep="\n    ")
        if again and second and not passed:
            print(f"$ {' '.join(again)}", *second.text.rstrip().splitlines(), f"exit status {second.status}", sep="\n    ")
    sys.stdout.flush()
    return passed


async def run_lane(steps: list[Step]) -> list[bool]:
    return [await run_step(step) for step in steps]


async def main() -> int:
    with tempfile.TemporaryDirectory(prefix="mainspring-check-") as scratch:
        results = [passed for lane in await asyncio.gather(*map(run_lane, lanes(Path(scratch)))) for passed in lane]
    print(f"check: {sum(results)} passed, {results.count(False)} failed")
    return 0 if all(results) else 1


if __name__ == "__main__":
    os.chdir(ROOT)
    # Hundreds of processes start here, and each would compile what it imports: half a second of a core for a server.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
    try:
        sys.exit(asyncio.run(main()))
    except KeyboardInterrupt:
        sys.exit(130)
