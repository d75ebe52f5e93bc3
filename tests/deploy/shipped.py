"""The files of deploy/, and what is the same for all of them: commands and settings that are real, and metrics that exist."""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import yaml

from mainspring.app.process import run_command
from mainspring.app.settings import find_settings_type
from mainspring.features.traces.metrics import Metrics

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
_METRIC = re.compile(r"\bmainspring_[a-z_]+\b")
_SUFFIX = re.compile(r"_(?:bucket|sum|count)$")


def read_yaml(path: Path) -> list[Any]:
    return [document for document in yaml.safe_load_all(path.read_text()) if document is not None]


def check_command(arguments: Iterable[str], capsys: pytest.CaptureFixture[str]) -> None:
    """The command is one of ours, and so are its options: an unknown one is refused before help is given."""
    given = list(arguments)
    code = run_command([*given, "--help"])
    shown = capsys.readouterr()
    assert code == 0, shown.err
    assert f"mainspring {given[0]}" in shown.out


def check_settings(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = run_command(["config", "show", "--config", str(path)])
    assert code == 0, capsys.readouterr().err


def check_variables(names: Iterable[str]) -> None:
    """Variables of ours are settings."""
    settings = {f"MAINSPRING_{name.upper()}" for name in find_settings_type().__struct_fields__}
    assert {name for name in names if name.startswith("MAINSPRING_")} <= settings


def find_metrics(text: str) -> set[str]:
    return {_SUFFIX.sub("", name) for name in _METRIC.findall(text)}


def list_known_metrics() -> set[str]:
    told = Metrics().text(live=0, is_store_up=True)
    return {line.split()[2] for line in told.splitlines() if line.startswith("# TYPE")}
