"""What an MCP server asks in the middle of a call is answered in the page."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect
from tests.console.test_screens import address, ask
from tests.kit.waiting import PATIENCE
from tests.mcp.asking_web import FORM, LINK, Hotel
from tests.mcp.wild_web import serve
from tests.server.process import Served, serving


@contextmanager
def hosting(hotel: Hotel) -> Iterator[None]:
    """The server in a thread: the browser has the loop of this one."""
    ready, done = threading.Event(), asyncio.Event()
    loop = asyncio.new_event_loop()

    async def work() -> None:
        async with serve(hotel):
            ready.set()
            await done.wait()

    thread = threading.Thread(target=lambda: loop.run_until_complete(work()))
    thread.start()
    assert ready.wait(PATIENCE)
    try:
        yield
    finally:
        loop.call_soon_threadsafe(done.set)
        thread.join(PATIENCE)
        loop.close()


@pytest.fixture
def hotel() -> Iterator[Hotel]:
    asking = Hotel(is_modern=True, questions=(FORM, LINK))
    with hosting(asking):
        yield asking


@pytest.fixture
def served(tmp_path: Path, hotel: Hotel) -> Iterator[Served]:
    (tmp_path / "mainspring.toml").write_text(f'[mcp.hotel]\nurl = "{hotel.url}"\nrequire_approval = "never"\n')
    turns: list[dict[str, object]] = [{"calls": [{"name": "book", "arguments": {}}]}, {"say": "Booked."}]
    with serving(tmp_path, turns, "--allow-host", "127.0.0.1") as server:
        yield server


def test_a_form_and_a_link_of_a_server_are_answered_in_the_page(page: Page, served: Served, hotel: Hotel) -> None:
    page.goto(address(served, "approvals"))
    ask(served, "Book.")
    form = page.get_by_role("group", name="Form of hotel")
    form.get_by_label("room").select_option("red")
    form.get_by_label("nights").fill("2")
    page.get_by_role("button", name="Send").click()
    link = page.get_by_role("link", name="Open pay.example")
    expect(link).to_have_attribute("href", "https://pay.example/1")
    watch = page.get_by_role("link", name="Watch the run go on")
    first = watch.get_attribute("href")
    page.get_by_role("button", name="Done").click()
    # Until this answer has arrived, the link leads to the run that went on with the one before.
    expect(watch).not_to_have_attribute("href", first or "")
    watch.click()
    expect(page.locator(".entry.message")).to_contain_text("Booked.")
    assert hotel.bookings == [[{"action": "accept", "content": {"room": "red", "nights": 2}}, {"action": "accept"}]]
