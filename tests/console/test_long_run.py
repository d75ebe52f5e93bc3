"""A run of 10,000 events: what is not in view is not in the page, and every event is found all the same."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect
from tests.kit.databases import database_in
from tests.kit.waiting import PATIENCE
from tests.server.process import Served, serving
from tests.store.logs import answer

from mainspring.core.events import (
    CallJudged,
    Event,
    ItemDone,
    ItemStarted,
    Reason,
    Recorded,
    RunEnded,
    RunStarted,
    ToolEnded,
    ToolStarted,
    TurnEnded,
    TurnStarted,
)  # fmt: skip
from mainspring.core.items import FunctionCall, assistant, user
from mainspring.core.spec import spec_for
from mainspring.storage.choose_store import open_store
from mainspring.storage.location import parse_location

RUN = "resp_long"
TURNS = 1110
PER_TURN = 9
BEGAN = 1_700_000_000.0
MOST_ENTRIES = 400
MOST_ELEMENTS = 12_000

expect.set_options(timeout=PATIENCE * 1000)


def make_turn(number: int) -> list[Event]:
    said = assistant(f"Page {number} comes next.", id=f"msg_{number}")
    call = FunctionCall(f"call_{number}", "read_page", json.dumps({"page": number}), id=f"fc_{number}")
    return [
        TurnStarted(), ItemStarted(said), ItemDone(said), ItemStarted(call), ItemDone(call), TurnEnded(),
        CallJudged(call.call_id, "allow", "default"), ToolStarted(call.call_id),
        ToolEnded(call.call_id, f"text of page {number}"),
    ]  # fmt: skip


def make_log() -> list[Recorded]:
    asked = spec_for("responses", id=RUN, model="scripted", input=(user("Read the book."),), max_turns=2 * TURNS)
    happened: list[Event] = [RunStarted(asked)]
    for number in range(TURNS):
        happened += make_turn(number)
    said = assistant("That was **all** of it.", id="msg_last")
    happened += [TurnStarted(), ItemStarted(said), ItemDone(said), TurnEnded(), RunEnded("completed", Reason.FINAL_ANSWER)]
    return [Recorded(seq, BEGAN + seq / 10, event) for seq, event in enumerate(happened)]


async def store_run(folder: Path) -> int:
    log = make_log()
    async with open_store(parse_location(database_in(folder, "served.db"))) as store:
        await store.append(RUN, log, answer(RUN, "That was **all** of it."))
    return len(log)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("long")
    assert asyncio.run(store_run(folder)) >= 9_990
    with serving(folder, [{"say": "unasked"}]) as server:
        yield server


def address(served: Served, **query: object) -> str:
    said = "&".join([f"{name}={value}" for name, value in query.items()])
    return f"{served.url.removesuffix('/v1')}/#/runs/{RUN}?{said}"


def seq_of(turn: int) -> int:
    """The event that begins the call of a turn."""
    return 1 + turn * PER_TURN + 3


def expect_few(page: Page) -> None:
    assert page.locator(".entry").count() <= MOST_ENTRIES
    assert page.locator("*").count() <= MOST_ELEMENTS


def test_only_what_is_near_the_view_is_in_the_page(served: Served, page: Page) -> None:
    page.goto(address(served))
    expect(page.get_by_text("Page 0 comes next.")).to_be_visible()
    expect(page.locator(".runhead .facts")).to_contain_text(f"Turns {TURNS + 1}")
    expect_few(page)
    page.keyboard.press("End")
    expect(page.get_by_text("That was all of it.").last).to_be_in_viewport()
    expect_few(page)
    page.evaluate("window.scrollTo(0, document.documentElement.scrollHeight / 2)")
    expect(page.get_by_text("Page 0 comes next.")).to_have_count(0)
    expect(page.locator(".entry.call").first).to_be_attached()
    expect_few(page)


def test_a_link_leads_to_an_exact_event_in_the_middle_and_keys_step_on(served: Served, page: Page) -> None:
    page.goto(address(served, event=seq_of(700)))
    chosen = page.locator(".entry[aria-current]")
    expect(chosen).to_contain_text("text of page 700")
    expect(chosen).to_be_in_viewport()
    expect(page.locator(".waterfall button.chosen .label")).to_have_text("read_page")
    expect_few(page)
    page.keyboard.press("ArrowRight")
    expect(chosen).to_contain_text("Page 701 comes next.")
    expect(chosen).to_be_in_viewport()


def test_search_finds_one_event_among_all_and_leads_to_its_place(served: Served, page: Page) -> None:
    page.goto(address(served))
    expect(page.get_by_text("Page 0 comes next.")).to_be_visible()
    page.keyboard.press("/")
    page.keyboard.type("text of page 987")
    found = page.locator(".entry")
    expect(found).to_have_count(1)
    expect(found).to_contain_text("page: 987")
    found.locator(".anchor").click()
    page.get_by_label("Search in this run").fill("")
    chosen = page.locator(".entry[aria-current]")
    expect(chosen).to_contain_text("text of page 987")
    expect(page.get_by_text("Page 988 comes next.")).to_be_in_viewport()
    assert f"event={seq_of(987)}" in page.url
    expect_few(page)
