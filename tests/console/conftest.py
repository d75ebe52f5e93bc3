"""Chromium, driven by Playwright, before a real server. Without a browser or the built pages there is nothing to test."""

from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, Page, sync_playwright
from tests.kit.waiting import PATIENCE

from mainspring.core.errors import ToolUnavailable
from mainspring.features.console.routes import BUILD_COMMAND, FILES
from mainspring.tools.browser.chromium import find_chromium

FLAGS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
]  # fmt: skip


@contextmanager
def open_browser() -> Iterator[Browser]:
    """While it is there, the event loop of Playwright runs, and nothing else in the process could run one."""
    if not (FILES / "index.html").is_file():
        pytest.skip(f"the console is not built; {BUILD_COMMAND} builds it")
    try:
        program = find_chromium()
    except ToolUnavailable as error:
        pytest.skip(error.message)
    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=str(program), args=FLAGS)
        yield opened
        opened.close()


@pytest.fixture
def browser() -> Iterator[Browser]:
    """One for each test. Files whose tests and fixtures run no loop have one for all."""
    with open_browser() as opened:
        yield opened


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """A page of its own, on which no script may fail and which the policy of the server holds."""
    context = browser.new_context(viewport={"width": 1280, "height": 900}, locale="en-GB", timezone_id="UTC")
    context.set_default_timeout(PATIENCE * 1000)
    opened = context.new_page()
    problems: list[str] = []
    opened.on("pageerror", lambda error: problems.append(str(error)))
    asked: set[str] = set()
    opened.on("request", lambda request: asked.add(urlsplit(request.url).netloc))
    opened.on("console", lambda said: problems.append(said.text) if "Content Security Policy" in said.text else None)
    yield opened
    context.close()
    assert problems == []
    assert len(asked - {""}) <= 1, "the page asks no other host"
