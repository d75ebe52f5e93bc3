"""The structure that the architecture page describes is the one that is enforced."""

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "mainspring"
PAGES = ("architecture.md", "glossary.md")


def test_the_layer_table_is_the_contract() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text()
    table = page.partition("| layer | what it is |")[2].partition("\n\n")[0]
    told = [re.findall(r"`(\w+)`", row.split("|")[1]) for row in table.splitlines() if row.startswith("| `")]
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    layers = next(contract["layers"] for contract in contracts if contract["name"] == "Layers import downwards only")
    assert told == [re.findall(r"\w+", layer) for layer in layers]


@pytest.mark.parametrize("page", PAGES)
def test_every_file_that_a_page_names_is_there(page: str) -> None:
    text = (ROOT / "docs" / page).read_text()
    named = set(re.findall(r"`((?:[a-z_]+/)*[a-z_]+\.py|(?:[a-z_]+/)+)`", text))
    assert len(named) > 10
    found = {path.relative_to(SOURCE).as_posix() for path in SOURCE.rglob("*.py")}
    folders = {f"{path.relative_to(SOURCE).as_posix()}/" for path in SOURCE.rglob("*") if path.is_dir()}
    names = {path.name for path in SOURCE.parent.rglob("*.py")}
    found |= {path.relative_to(ROOT).as_posix() for path in (ROOT / "tests").rglob("*.py")}
    tests = ROOT / "tests"
    folders |= {f"{path.relative_to(SOURCE.parent).as_posix()}/" for path in SOURCE.parent.rglob("*") if path.is_dir()}
    folders |= {f"{path.relative_to(ROOT).as_posix()}/" for path in (tests, *tests.rglob("*")) if path.is_dir()}
    missing = [name for name in named if name not in found and name not in folders and ("/" in name or name not in names)]
    assert missing == []
