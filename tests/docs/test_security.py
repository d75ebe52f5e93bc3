"""The page on security names tests and settings that are there."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/security.md").read_text()
SETTINGS = (ROOT / "docs/settings.md").read_text()


def test_the_tests_that_it_names_are_there() -> None:
    named = re.findall(r"`(tests/[\w/]+\.py)`", PAGE)
    assert len(named) > 15
    assert [file for file in named if not (ROOT / file).is_file()] == []


def test_the_settings_that_it_names_are_there() -> None:
    rows = [line.split("|") for line in PAGE.splitlines() if line.startswith("|") and line.count("|") == 5]
    named = [name for row in rows[2:] for name in re.findall(r"`(\w+)`", row[3])]
    assert "body_bytes" in named
    assert "max_resumes" in named
    assert [name for name in named if name not in SETTINGS] == []
