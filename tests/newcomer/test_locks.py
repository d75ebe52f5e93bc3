"""The locks are fresh: they pin whatever pyproject.toml asks for, to versions that it permits, with hashes."""

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]
LOCKS = {
    "requirements.lock": ("build", "documents", "local"),
    "deploy/requirements.lock": ("build", "documents", "objects", "otel", "postgres", "vectors"),
    "requirements-dev.lock": ("dev",),
}


def list_wanted(*extras: str) -> list[Requirement]:
    """What the project needs with these extras, and with those that they name in turn."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [Requirement(text) for text in project["dependencies"]]
    for extra in extras:
        for text in project["optional-dependencies"][extra]:
            needed = Requirement(text)
            wanted += list_wanted(*needed.extras) if needed.name == project["name"] else [needed]
    return wanted


@pytest.mark.parametrize("lock", LOCKS)
def test_a_lock_pins_what_the_project_asks_for(lock: str) -> None:
    text = (ROOT / lock).read_text()
    pins: dict[str, list[str]] = {}
    for name, version in re.findall(r"^([\w.-]+)(?:\[[\w,-]+\])?==([^\s;\\]+)", text, re.MULTILINE):
        pins.setdefault(canonicalize_name(name), []).append(version)
    for needed in list_wanted(*LOCKS[lock]):
        if needed.marker is not None and not needed.marker.evaluate({"extra": ""}):
            continue
        found = pins.get(canonicalize_name(needed.name), [])
        assert any(needed.specifier.contains(version, prereleases=True) for version in found), (
            f"{needed}: {found}; run scripts/lock"
        )
    entries = re.split(r"\n(?=[\w.-]+(?:\[[\w,-]+\])?==)", text)[1:]
    assert all("--hash=sha256:" in entry for entry in entries)
