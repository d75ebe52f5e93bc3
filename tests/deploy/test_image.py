"""The Dockerfile: what it copies is sent to the engine, and what it runs has no rights. `./check` replays its steps."""

import json
import re

import pytest
from scripts.replay_image import ROOT, is_sent, move_paths, read_environment, read_stages
from tests.deploy.shipped import check_command, check_variables

FIRST, LAST = read_stages((ROOT / "deploy/Dockerfile").read_text())


def test_what_it_copies_is_there_and_sent() -> None:
    copied = [source for step in FIRST if step.name == "COPY" for source in step.rest.split()[:-1]]
    assert "src" in copied
    for source in copied:
        assert (ROOT / source).exists()
        assert is_sent(source)
    assert not is_sent("tests")


def test_the_image_has_no_compiler_no_rights_and_a_health_check(capsys: pytest.CaptureFixture[str]) -> None:
    by_name = {step.name: step.rest for step in LAST}
    assert by_name["FROM"] == "python:3.13-slim"
    assert by_name["USER"] == "65532:65532"
    assert by_name["COPY"].startswith("--from=build ")
    assert "/healthz" in by_name["HEALTHCHECK"]
    assert json.loads(by_name["ENTRYPOINT"]) == ["mainspring"]
    check_command(json.loads(by_name["CMD"]), capsys)
    check_variables(read_environment(LAST, ROOT))


def test_packages_are_installed_by_their_hashes_and_the_tools_of_that_go() -> None:
    commands = [step.rest for step in FIRST if step.name == "RUN"]
    assert any("--require-hashes" in command for command in commands)
    assert any(re.search(r"pip uninstall .*\bpip\b", command) for command in commands)
    lock = (ROOT / "deploy/requirements.lock").read_text()
    pins = re.findall(r"^[\w.\[\]-]+==", lock, re.MULTILINE)
    assert len(pins) > 30
    assert lock.count("--hash=sha256:") >= len(pins)
    assert "://" not in "".join([line for line in lock.splitlines() if not line.lstrip().startswith("#")])


def test_paths_are_moved_into_the_folder_of_a_replay() -> None:
    text = 'ENV PATH=/opt/mainspring/bin:$PATH && cp /src/a /database "/data"'
    moved = move_paths(text.replace("=/", " /"), ROOT / "x")
    assert moved == f'ENV PATH {ROOT}/x/opt/mainspring/bin:$PATH && cp {ROOT}/x/src/a /database "{ROOT}/x/data"'
