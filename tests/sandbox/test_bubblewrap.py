"""Which bubblewrap is used: one without known weaknesses first, and of one with them is said what it lacks."""

from pathlib import Path

import pytest

from mainspring.tools.sandbox import bwrap
from mainspring.tools.sandbox.probe import list_candidates


@pytest.mark.parametrize(
    ("version", "is_fixed"),
    [
        ("bubblewrap 0.12.0", True),
        ("bubblewrap 1.0", True),
        ("bubblewrap 0.11.0", False),
        ("bubblewrap 0.8.0", False),
        ("?", False),
    ],
)
def test_versions_below_the_fix_and_unknown_ones_are_weak(version: str, is_fixed: bool) -> None:
    assert bwrap.is_fixed(version) is is_fixed


def test_a_fixed_bubblewrap_of_the_system_goes_before_the_one_that_came_along(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs = {}
    for name, version in (("old", "0.11.0"), ("new", "0.12.1")):
        programs[name] = tmp_path / name
        programs[name].write_text(f"#!/bin/sh\necho bubblewrap {version}\n")
        programs[name].chmod(0o755)
    monkeypatch.setattr(bwrap, "find_bundled", lambda: programs["old"])
    monkeypatch.setattr(bwrap, "find_installed", lambda: programs["new"])
    assert [candidate.bwrap for candidate in list_candidates("bwrap")] == [programs["new"], programs["old"]]
