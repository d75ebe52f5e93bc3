"""Chromium, driven by Playwright, before a real server. Without a browser or the built pages there is nothing to test."""

import asyncio
from collections.abc import Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from typing import TypeVar
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, sync_playwright
from tests.kit.waiting import PATIENCE

from mainspring.core.errors import ToolUnavailable
from mainspring.features.console.routes import BUILD_COMMAND, FILES
from mainspring.tools.browser.chromium import find_chromium

FLAGS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
]  # fmt: skip


T = TypeVar("T")


@contextmanager
def open_browser() -> Iterator[Browser]:
    """While it is there, the event loop of Playwright runs, and nothing else in the thread could run one."""
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


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """One for the tests of a file; what they have to do in an event loop, they do in a thread."""
    with open_browser() as opened:
        yield opened


@pytest.fixture(scope="module")
def visitor(browser: Browser) -> Iterator[BrowserContext]:
    """Whoever looks at the pages of a file. A page is always open: as long as one is, the browser keeps the process that
    has the fonts and the scripts, and the next page takes half."""
    with closing(open_context(browser)) as context:
        context.new_page()
        yield context


@pytest.fixture
def page(visitor: BrowserContext) -> Iterator[Page]:
    """A page on which no script may fail and which the policy of the server holds. Nothing that pages before it kept is there."""
    before = visitor.pages
    with open_page(visitor) as opened:
        for each in before:
            each.close()
        yield opened
        forget_all(opened)


def run_apart(work: Coroutine[None, None, T]) -> T:
    """Runs it in a thread, since the browser has the loop of this one."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, work).result()


def open_context(browser: Browser) -> BrowserContext:
    context = browser.new_context(viewport={"width": 1280, "height": 900}, locale="en-GB", timezone_id="UTC")
    context.set_default_timeout(PATIENCE * 1000)
    return context


@contextmanager
def open_page(context: BrowserContext) -> Iterator[Page]:
    """It stays open."""
    opened = context.new_page()
    problems: list[str] = []
    opened.on("pageerror", lambda error: problems.append(str(error)))
    asked: set[str] = set()
    opened.on("request", lambda request: asked.add(urlsplit(request.url).netloc))
    opened.on("console", lambda said: problems.append(said.text) if "Content Security Policy" in said.text else None)
    yield opened
    assert problems == []
    assert len(asked - {""}) <= 1, "the page asks no other host"


def forget_all(page: Page) -> None:
    """Leaves the context as a new one is, but for what the browser has compiled."""
    place = urlsplit(page.url)
    page.goto("about:blank")
    if place.netloc:
        session = page.context.new_cdp_session(page)
        session.send("Storage.clearDataForOrigin", {"origin": f"{place.scheme}://{place.netloc}", "storageTypes": "all"})
        session.detach()
    page.context.clear_cookies()
    page.context.clear_permissions()
