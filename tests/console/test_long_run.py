"""A run of 10,000 events: what is not in view is not in the page, and every event is found all the same."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect
from tests.console.conftest import run_apart
from tests.kit.databases import database_in
from tests.kit.waiting import PATIENCE
from tests.server.process import Served, serving
from tests.store.logs import answer

from mainspring.core.events import (
    CallJudged,
    Compacted,
    ErrorInfo,
    Event,
    ItemDone,
    ItemStarted,
    Nudged,
    Reason,
    Recorded,
    RunEnded,
    RunResumed,
    RunStarted,
    ToolEnded,
    ToolProgress,
    ToolStarted,
    ToolWithheld,
    TurnAborted,
    TurnEnded,
    TurnStarted,
)  # fmt: skip
from mainspring.core.items import Adaptation, FunctionCall, InputImage, Part, assistant, user
from mainspring.core.spec import spec_for
from mainspring.features.conversations.routes import MOST_ITEMS
from mainspring.storage.choose_store import open_store
from mainspring.storage.location import parse_location

RUN, ODD, HOSTILE = "resp_long", "resp_odd", "resp_hostile"
LONG_WORD = "Donaudampfschifffahrtselektrizitätenhauptbetriebswerk" * 3
PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
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


def make_odd_log() -> list[Recorded]:
    """A run in which something of each kind has happened."""
    asked = spec_for("responses", id=ODD, model="scripted", input=(user("Try all."),))
    outputs: list[str | tuple[Part, ...]] = [
        "--- a/x\n+++ b/x\n@@ -1 +1 @@\n-old line\n+new line\n",
        '[{"city": "Oslo", "people": 700000}, {"city": "Bergen", "people": 290000}]',
        (InputImage(image_url=f"data:image/png;base64,{PIXEL}"), InputImage(image_url="http://elsewhere.example/spy.png")),
    ]
    happened: list[Event] = [RunStarted(asked), TurnStarted(), TurnAborted(), RunResumed(), TurnStarted()]
    calls = [FunctionCall(f"call_odd_{number}", f"odd_{number}", "{}", id=f"fc_odd_{number}") for number in range(len(outputs))]
    happened += [event for call in calls for event in (ItemStarted(call), ItemDone(call))]
    again = Adaptation("changed", "stream_tools", False, "the answer was empty", 2)
    happened += [TurnEnded(adaptations=(again,))]
    happened += [CallJudged(call.call_id, "allow", "tool_rules", f"because I say so, {LONG_WORD}") for call in calls]
    for call, output in zip(calls, outputs, strict=True):
        happened += [ToolStarted(call.call_id), ToolProgress(call.call_id, "half of it"), ToolEnded(call.call_id, output)]
    happened += [Nudged("close", "Come to an end."), Compacted(assistant("All in all.", id="msg_sum"))]
    happened += [ToolWithheld("odd_0", "the same call again and again"), TurnStarted()]
    happened += [TurnEnded("error", error=ErrorInfo("provider_unavailable", "nobody is at home"))]
    happened += [RunEnded("failed", Reason.PROVIDER_ERROR, ErrorInfo("provider_unavailable", "nobody is at home"))]
    return [Recorded(seq, BEGAN + seq, event) for seq, event in enumerate(happened)]


def make_hostile_log() -> list[Recorded]:
    """Answers that were made to stop the page: nested without end, or slow to read."""
    texts = [
        ">" * 10_000 + " deep",
        "\n".join("  " * depth + "- deep" for depth in range(1500)),
        "a|b\n" + "- " * 10_000 + "x",
        "a|b\n-|-\n" + "x|y\n" * 5000,
        "word " * 100_000,
    ]
    happened: list[Event] = [
        RunStarted(spec_for("responses", id=HOSTILE, model="scripted", input=(user("Say it."),))),
        TurnStarted(),
    ]
    for number, text in enumerate(texts):
        said = assistant(text, id=f"msg_hostile_{number}")
        happened += [ItemStarted(said), ItemDone(said)]
    happened += [TurnEnded(), RunEnded("completed", Reason.FINAL_ANSWER)]
    return [Recorded(seq, BEGAN + seq, event) for seq, event in enumerate(happened)]


async def store_runs(folder: Path) -> int:
    log = make_log()
    async with open_store(parse_location(database_in(folder, "served.db"))) as store:
        await store.append(RUN, log, answer(RUN, "That was **all** of it."))
        await store.append(ODD, make_odd_log(), answer(ODD, ""))
        await store.append(HOSTILE, make_hostile_log(), answer(HOSTILE, ""))
    return len(log)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("long")
    assert run_apart(store_runs(folder)) >= 9_990
    with serving(folder, [{"say": "unasked"}]) as server:
        yield server


def address(served: Served, run: str = RUN, **query: object) -> str:
    said = "&".join([f"{name}={value}" for name, value in query.items()])
    return f"{served.url.removesuffix('/v1')}/#/runs/{run}?{said}"


def seq_of(turn: int) -> int:
    """The event that begins the call of a turn."""
    return 1 + turn * PER_TURN + 3


def expect_few(page: Page) -> None:
    assert page.locator(".entry").count() <= MOST_ENTRIES
    assert page.locator("*").count() <= MOST_ELEMENTS


def test_only_what_is_near_the_view_is_in_the_page(served: Served, page: Page) -> None:
    page.goto(address(served))
    expect(page.get_by_text("Page 0 comes next.")).to_be_visible()
    expect(page.locator(".runhead .facts")).to_contain_text(f"Turns {TURNS + 1:,}")
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


def test_whatever_happens_in_a_run_is_shown_and_thousands_of_runs_stay_few_in_the_page(served: Served, page: Page) -> None:
    page.goto(address(served, ODD))
    for told in (
        "The turn was cut off", "Taken up by another process", "The engine reminded the model", "Come to an end.",
        "What came before was summed up", "The tool odd_0 is withheld", "nobody is at home", "because I say so", "half of it",
        "The model was asked again, attempt 2: stream_tools is false", "the answer was empty", "All in all.",
    ):  # fmt: skip
        expect(page.get_by_text(told).first).to_be_visible()
    page.set_viewport_size({"width": 360, "height": 740})
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    page.set_viewport_size({"width": 1280, "height": 900})
    expect(page.locator(".added")).to_contain_text(["+++ b/x", "+new line"])
    expect(page.get_by_role("cell", name="Bergen")).to_be_visible()
    expect(page.locator("img.picture")).to_have_count(1)
    expect(page.get_by_text("not loaded: http://elsewhere.example/spy.png")).to_be_visible()
    # A search leads from what it found to the next.
    page.get_by_placeholder("Search in this run").fill("half of it")
    page.keyboard.press("Enter")
    page.keyboard.press("Enter")
    expect(page.locator(".entry.chosen .who")).to_have_text("odd_1")
    lines = page.request.get(f"{served.url}/runs").json()
    many = [{**lines["data"][0], "id": f"resp_{number}", "prompt": f"Question {number}"} for number in range(5000)]
    page.route("**/v1/runs?*", lambda route: route.fulfill(json={**lines, "data": many, "has_more": False}))
    page.get_by_role("link", name="Runs", exact=True).first.click()
    expect(page.get_by_role("link", name="Question 0", exact=True)).to_be_visible()
    assert page.locator(".runs tr").count() < 100
    page.keyboard.press("End")
    expect(page.get_by_role("link", name="Question 4999")).to_be_in_viewport()
    assert page.locator(".runs tr").count() < 100


def test_a_long_conversation_opens_at_its_end_and_its_beginning_is_read_on_demand(served: Served, page: Page) -> None:
    made = page.request.post(f"{served.url}/conversations", data={}).json()["id"]
    said = [{"role": "user", "content": f"Line {number}."} for number in range(120)]
    for at in range(0, len(said), MOST_ITEMS):
        page.request.post(f"{served.url}/conversations/{made}/items", data={"items": said[at : at + MOST_ITEMS]})
    page.goto(f"{served.url.removesuffix('/v1')}/#/chat?c={made}")
    expect(page.locator(".entry.input").last).to_contain_text("Line 119.")
    expect(page.locator(".entry.input").last).to_be_in_viewport()
    expect(page.locator(".entry.input")).to_have_count(100)
    page.get_by_role("button", name="Show what was said earlier").click()
    expect(page.locator(".entry.input")).to_have_count(len(said))
    expect(page.locator(".entry.input").first).to_contain_text("Line 0.")


def test_texts_and_addresses_that_were_made_to_break_the_page_do_not(served: Served, page: Page) -> None:
    page.goto(address(served, HOSTILE))
    expect(page.locator(".runhead .status")).to_have_text("completed")
    said = page.locator(".entry.message")
    expect(said).to_have_count(5)
    expect(said.nth(0)).to_contain_text("deep")
    expect(said.nth(3).get_by_role("row")).to_have_count(101)
    said.nth(4).get_by_role("button", name="Show all 500,000 characters").click()
    expect(said.nth(4).get_by_role("button", name="Show all")).to_have_count(0)
    for place in ("runs/%E0%A4%A", "usage?chart=constructor&days=all"):
        page.goto(f"{served.url.removesuffix('/v1')}/#/{place}")
        expect(page.locator("main .failure, main .uplot canvas, main .bars").first).to_be_visible()
