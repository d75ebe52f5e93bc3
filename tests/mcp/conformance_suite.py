"""The protocol's own conformance suite, for every test that is held to it: its command, and a run of it."""

import subprocess
from pathlib import Path

import pytest
from tests.clients import node
from tests.clients.process import environment

FOLDER = Path(__file__).parent / "node"
SECONDS = 120


@pytest.fixture(scope="session")
def suite() -> list[str]:
    """The command; the suite needs a newer Node than most machines have, so one is installed with it."""
    node.install(FOLDER)
    program = FOLDER / "node_modules" / ".bin" / "node"
    if not program.exists():
        pytest.skip("the conformance suite needs Node 22, and npm has none for this machine")
    return [str(program), str(FOLDER / "node_modules" / ".bin" / "conformance")]


def run_suite(command: list[str]) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        command, env=environment(), stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=SECONDS, check=False
    )
