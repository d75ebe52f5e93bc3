"""The pages that are written from the program are as it is, and every page can be found by what one wants to do."""

import re
from pathlib import Path

import pytest
from scripts.reference_pages import DOCS, PAGES


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_reference_page_is_as_it_is_generated(page: Path) -> None:
    assert page.read_text() == PAGES[page](), "write it anew with: python -m scripts.reference_pages"


def test_the_index_names_every_page() -> None:
    linked = set(re.findall(r"\]\(([a-z-]+\.md)", (DOCS / "README.md").read_text()))
    assert {page.name for page in DOCS.glob("*.md")} - {"README.md"} == linked
