"""The protocol's own conformance suite, for every test that is held to it: its command, and what it finds.

A run has all scenarios of a revision of the protocol: to start the suite takes longer than most of them.
"""

import json
import re
import subprocess
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import NamedTuple

import pytest
from tests.clients import node
from tests.clients.process import environment

FOLDER = Path(__file__).parent / "node"
REVISIONS = ["2025-11-25", "2026-07-28"]
SECONDS = 240


class Findings(NamedTuple):
    """The scenarios of a revision: for each that was run, the checks that did not pass, and why."""

    required: dict[str, dict[str, str]]
    others: dict[str, dict[str, str]]


@pytest.fixture(scope="session")
def suite() -> list[str]:
    """The command; the suite needs a newer Node than most machines have, so one is installed with it."""
    node.install(FOLDER)
    program = FOLDER / "node_modules" / ".bin" / "node"
    if not program.exists():
        pytest.skip("the conformance suite needs Node 22, and npm has none for this machine")
    return [str(program), str(FOLDER / "node_modules" / ".bin" / "conformance")]


def list_scenarios(suite: list[str], kind: str) -> set[str]:
    """All scenarios that the suite has for a `client` or a `server`, of whatever revision or extension."""
    listed = subprocess.run(
        [*suite, "list", f"--{kind}"], env=environment(), capture_output=True, text=True, timeout=SECONDS, check=True
    )
    return set(re.findall(r"^  - (\S+) \[", listed.stdout, re.MULTILINE))


def run_scenario(suite: list[str], name: str, command: str, folder: Path) -> dict[str, str]:
    """The checks that did not pass of one scenario for a client, and why."""
    order = ["client", "--command", command, "--scenario", name, "--timeout", str(SECONDS * 1000), "--output-dir", str(folder)]
    subprocess.run(
        [*suite, *order], env=environment(), stdin=subprocess.DEVNULL, capture_output=True, timeout=SECONDS, check=False
    )
    return _read_failed(folder, "client", name)


def run_revision(suite: list[str], kind: str, under_test: list[str], revision: str, folder: Path) -> Findings:
    """Runs every scenario of a revision for a `client` or a `server`; `folder` is for what the suite writes."""
    order = [kind, *under_test, "--requirements", revision, "--timeout", str(SECONDS * 1000), "--output-dir", str(folder)]
    done = subprocess.run(
        [*suite, *order],
        env=environment(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    _, title, summary = done.stdout.partition(" SUMMARY ===\n")
    assert title, done.stdout + done.stderr
    each, _, unscored = summary.partition("Not scored")
    ran = re.findall(r"^\S (\S+): \d+ passed", each, re.MULTILINE)
    others = re.findall(r"^  \S (\S+) \(", unscored, re.MULTILINE)
    failed = {name: _read_failed(folder, kind, name) for name in ran}
    return Findings({name: failed[name] for name in ran if name not in others}, {name: failed[name] for name in others})


def judge_server(found: Findings, apply: list[str], reasons: dict[str, str], excused: dict[str, str]) -> dict[str, object]:
    """What is wrong: with scenarios that apply, and others that neither do nor have a reason not to. A reason is for the scenario
    of its name, or, ending in `-`, for all whose names begin so."""
    ran = {**found.others, **found.required}
    failed = {name: {id: why for id, why in ran[name].items() if id not in excused} for name in apply}
    unknown = find_unexplained(ran, apply, reasons)
    return {name: checks for name, checks in failed.items() if checks} | dict.fromkeys(unknown, "applies or has a reason not to")


def find_unexplained(names: Iterable[str], apply: Collection[str], reasons: Collection[str]) -> list[str]:
    """The scenarios that neither apply nor have a reason not to."""
    groups = tuple([name for name in reasons if name.endswith("-")])
    return [name for name in names if name not in apply and name not in reasons and not name.startswith(groups)]


def _read_failed(folder: Path, kind: str, name: str) -> dict[str, str]:
    """A scenario without any check has failed, too. As in the suite, a warning fails a client and no server."""
    prefix, bad = ("", ("FAILURE", "WARNING")) if kind == "client" else ("server-", ("FAILURE",))
    [file] = [
        file
        for file in folder.rglob("checks.json")
        if re.fullmatch(re.escape(prefix + name) + r"-\d{4}-\d\d-\d\dT[\d-]+Z", str(file.parent.relative_to(folder)))
    ]
    checks = json.loads(file.read_text()) or [{"id": "", "status": "FAILURE", "errorMessage": "nothing was checked"}]
    return {check["id"]: str(check.get("errorMessage")) for check in checks if check["status"] in bad}
