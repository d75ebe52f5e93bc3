"""The API reference at `/docs`, in a browser: a route is found and tried there, by whoever is signed in."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect
from tests.console.axe import find_flaws, require_axe
from tests.kit.waiting import PATIENCE
from tests.server.process import Served, serving

WIDTHS = (360, 1280, 2560)

expect.set_options(timeout=PATIENCE * 1000)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving(tmp_path_factory.mktemp("reference"), [{"when": "Hello", "say": "Good morning."}]) as server:
        yield server


@pytest.fixture
def reference(served: Served) -> str:
    return f"{served.url.removesuffix('/v1')}/docs"


def test_a_route_is_found_and_tried(page: Page, served: Served, reference: str) -> None:
    page.goto(reference)
    page.get_by_label("Find").fill("post /v1/responses creates")
    expect(page.locator("section:visible")).to_have_count(1)
    page.locator("summary:visible").first.click()
    box = page.locator("details[open]").first
    box.get_by_label("Body").first.fill(json.dumps({"model": "scripted", "input": "Hello"}))
    box.get_by_role("button", name="Try it").click()
    expect(box.get_by_label("What the server answers")).to_contain_text("200 OK")
    expect(box.get_by_label("What the server answers")).to_contain_text("Good morning.")
    # An answer that comes in pieces is shown as it comes.
    box.get_by_label("Body").first.fill(json.dumps({"model": "scripted", "input": "Hello", "stream": True}))
    box.get_by_role("button", name="Try it").click()
    expect(box.get_by_label("What the server answers")).to_contain_text("event: response.completed")
    page.get_by_role("link", name="Console").click()
    expect(page.get_by_role("heading", name="Mainspring is running")).to_be_visible()


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_axe_finds_nothing_serious_in_the_reference(browser: Browser, reference: str, theme: str, tmp_path: Path) -> None:
    require_axe()
    context = browser.new_context(bypass_csp=True, color_scheme="dark" if theme == "dark" else "light")
    page = context.new_page()
    page.set_default_timeout(PATIENCE * 1000)
    page.goto(reference)
    page.locator("summary").nth(8).click()
    expect(page.get_by_role("button", name="Try it")).to_be_visible()
    flaws = find_flaws(page, "reference")
    for width in WIDTHS:
        page.set_viewport_size({"width": width, "height": 860})
        assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth"), width
    page.screenshot(path=tmp_path / "reference.png")
    context.close()
    assert flaws == []
