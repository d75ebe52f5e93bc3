"""Says how many animals survive, beside what pytest counts."""

import tomllib
from pathlib import Path

import pytest


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    fates = list(tomllib.loads(Path(__file__).with_name("expectations.toml").read_text()).values())
    terminalreporter.write_line(f"zoo: {fates.count('survives')} of {len(fates)} animals survive")
