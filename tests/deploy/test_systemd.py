"""The units: systemd takes them, and their commands are ours."""

import configparser
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
from tests.deploy.shipped import DEPLOY, check_command
from tests.kit.waiting import PATIENCE

UNITS = sorted((DEPLOY / "systemd").iterdir())
PROGRAM = "/opt/mainspring/bin/mainspring"


def read_unit(path: Path) -> configparser.ConfigParser:
    parser = configparser.ConfigParser(interpolation=None, strict=False)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read_string(path.read_text())
    return parser


@pytest.mark.parametrize("path", [path for path in UNITS if path.suffix == ".service"], ids=lambda path: path.name)
def test_units_start_real_commands_without_rights(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    service = read_unit(path)["Service"]
    command = shlex.split(service["ExecStart"])
    if command[0] == "/bin/sh":
        command = shlex.split(command[2].removeprefix("exec ").replace("$(", "").replace(")", ""))
    assert command[0] == PROGRAM
    check_command(command[1:], capsys)
    assert service["User"] == "mainspring"
    assert service["NoNewPrivileges"] == "yes"
    assert service["ProtectSystem"] == "strict"


def test_the_server_has_the_time_to_drain_and_reloads_by_a_signal() -> None:
    service = read_unit(DEPLOY / "systemd/mainspring.service")["Service"]
    assert int(service["TimeoutStopSec"]) >= 30 + 20
    assert "-HUP" in service["ExecReload"]


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not on this machine")
def test_systemd_finds_nothing_wrong(tmp_path: Path) -> None:
    for unit in UNITS:
        # It asks for programs that are there, and the user is made by whoever installs.
        text = (
            unit.read_text().replace(PROGRAM, "/bin/true").replace("User=mainspring", "User=root").replace("Group=mainspring", "")
        )
        (tmp_path / unit.name).write_text(text)
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", *[str(tmp_path / unit.name) for unit in UNITS]],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    ours = [line for line in done.stderr.splitlines() if "mainspring" in line]
    assert ours == []
