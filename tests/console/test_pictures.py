"""Every screen with something on it, in both themes: axe finds nothing serious, and a picture of each is left.

The pictures are in the folder of the test, or in the one that MAINSPRING_PICTURES names; `docs/pictures` has those of the light
theme.
"""

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace
from playwright.sync_api import Browser, Page, expect
from tests.agents.world import written
from tests.console.axe import find_flaws, require_axe
from tests.console.conftest import run_apart
from tests.console.test_screens import address, send
from tests.kit.databases import database_in
from tests.kit.waiting import PATIENCE
from tests.server.process import Served, serving
from tests.store.logs import answer

from mainspring.core.events import Event, ItemDone, ItemStarted, Reason, Recorded, RunEnded, RunStarted, TurnEnded, TurnStarted
from mainspring.core.items import Usage, assistant, user
from mainspring.core.spec import spec_for
from mainspring.storage.choose_store import open_store
from mainspring.storage.location import parse_location

DAY = 86_400
WIDTHS = (360, 768, 1024, 2560)
LEAST_ASKED = 160
OVERFLOW = "document.documentElement.scrollWidth - window.innerWidth"
TOOLS = '''
from mainspring import tool

@tool(effects=("read",))
def find_reports(year: int) -> list[dict]:
    """Finds the reports of a year in the archive."""
    return [{"path": f"/archive/{year}-{quarter}.pdf", "pages": 12 + quarter} for quarter in (1, 2, 3, 4)]

@tool(effects=("write",))
def remove_report(path: str) -> str:
    """Removes a report from the archive."""
    return "removed " + path
'''
SETTINGS = """
agents = ["agents"]
workflows = ["workflows"]

[governance.rules]
remove_report = "ask"

[budget]
per = "tenant"

[budget.limits]
max_tokens = 50_000
max_tool_calls = 200

[budget.prices]
"*" = { input = 3.0, output = 15.0 }
"""
WORKFLOW = """
name: tidy-archive
version: 1.2.0
description: Finds what is old in the archive, and reports it.
inputs:
  year: {type: number, required: true, description: The last year to keep.}
steps:
  - {id: find-reports, action: transform, value: "{{ inputs.year }}"}
  - {id: find-owners, action: transform, value: "Ada"}
  - {id: sort-out, action: transform, value: "{{ steps['find-reports'].output }} {{ steps['find-owners'].output }}"}
  - {id: report, action: transform, value: "{{ steps['sort-out'].output }}"}
"""
TURNS: list[dict[str, object]] = [
    {"think": "The archive has to be looked through first.", "calls": [{"name": "find_reports", "arguments": {"year": 2019}}]},
    {
        "say": "Four reports of 2019 are in the archive. The first may go.",
        "calls": [{"name": "remove_report", "arguments": {"path": "/archive/2019-1.pdf"}}],
    },
    {"say": "The archive holds **four** reports of 2019:\n\n- the first has 13 pages,\n- the others have 14 to 16."},
]


SAID: list[dict[str, object]] = [
    {"role": "user", "content": "Which reports of 2019 are in the archive, and how long are they?"},
    {"type": "function_call", "call_id": "call_1", "name": "find_reports", "arguments": '{"year": 2019}'},
    {
        "type": "function_call_output",
        "call_id": "call_1",
        "output": '[{"path": "/archive/2019-1.pdf", "pages": 13}, {"path": "/archive/2019-2.pdf", "pages": 14}]',
    },
    {
        "role": "assistant",
        "content": [
            {
                "type": "output_text",
                "text": "There are **two**:\n\n- `/archive/2019-1.pdf` has 13 pages.\n- `/archive/2019-2.pdf` has 14.",
            }
        ],
    },
]


async def store_days(folder: Path) -> None:
    """Runs of the last two weeks."""
    said = assistant("Done.", id="msg_1")
    async with open_store(parse_location(database_in(folder, "served.db"))) as store:
        for day in range(14):
            began, run = time.time() - (14 - day) * DAY, f"resp_{day:024x}"
            usage = Usage(input_tokens=900 + 140 * (day % 5), output_tokens=300 + 60 * (day % 3))
            spec = spec_for(
                "responses", input=(user("Tidy the archive."),), id=run, model="small-model" if day % 3 else "large-model"
            )
            happened: list[Event] = [RunStarted(spec), TurnStarted(), ItemStarted(said), ItemDone(said), TurnEnded(usage=usage)]
            happened.append(RunEnded("completed", Reason.FINAL_ANSWER))
            log = [Recorded(seq, began + seq, event) for seq, event in enumerate(happened)]
            kept = answer(run, "Done.")
            used = {"input_tokens": usage.input_tokens, "output_tokens": usage.output_tokens}
            await store.append(run, log, replace(kept, response=replace(kept.response, usage=used)))


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("pictures")
    (folder / "archive_tools.py").write_text(TOOLS)
    (folder / "mainspring.toml").write_text(SETTINGS)
    (folder / "workflows").mkdir()
    (folder / "workflows" / "tidy-archive.yaml").write_text(WORKFLOW)
    written(folder / "agents", "archivist", description="Keeps the archive in order.")
    run_apart(store_days(folder))
    options = ("--tool", "archive_tools", "--allow-host", "127.0.0.1", "--model", "scripted:script.json")  # no path in a picture
    with serving(folder, TURNS, *options, env={"PYTHONPATH": str(folder)}) as server:
        yield server


@pytest.fixture(scope="module")
def places(served: Served) -> dict[str, tuple[str, str]]:
    """By the name of its picture, where each screen is and what shows that it is drawn."""
    run = send(served, "responses", {"model": "scripted", "input": "Tidy the archive.", "background": True})["id"]
    timed = {"name": "every-morning", "workflow": "tidy-archive", "inputs": {"year": 2019}, "cron": "0 7 * * MON-FRI"}
    send(served, "schedules", {**timed, "timezone": "Europe/Berlin", "description": "Before anybody is there."})
    send(served, "webhooks", {"name": "from-the-scanner", "workflow": "tidy-archive", "inputs": {"year": 2019}})
    send(served, "webhook_endpoints", {"url": "http://127.0.0.1:9/runs", "events": ["response.failed"]})
    workflow = send(served, "workflows/tidy-archive/runs", {"inputs": {"year": 2019}})["id"]
    conversation = send(served, "conversations", {"items": SAID})["id"]
    return {
        "welcome": ("", "Mainspring is running"),
        "runs": ("runs", "Tidy the archive."),
        "run": (f"runs/{run}", "/archive/2019-1.pdf"),
        "approvals": ("approvals", "Arguments"),
        "chat": (f"chat?c={conversation}", "has 13 pages."),
        "agents": ("agents", "Keeps the archive in order."),
        "workflow": (f"workflows/tidy-archive/{workflow}", "Outputs"),
        "triggers": ("triggers", "every-morning"),
        "usage": ("usage", "output"),
        "governance": ("governance", "tool_rules"),
        "system": ("system", "Finds the reports of a year in the archive."),
    }


def expect_to_fit(page: Page, screen: str, width: int) -> None:
    page.set_viewport_size({"width": width, "height": 860})
    assert page.evaluate(OVERFLOW) <= 0, (screen, width)
    if screen == "runs":
        box = page.locator(".runs td.asked").first.bounding_box()
        assert box is not None
        assert box["width"] > LEAST_ASKED, width


def take_picture(page: Page, screen: str, folder: Path) -> None:
    page.screenshot(path=folder / f"{screen}.png")
    assert (folder / f"{screen}.png").stat().st_size > 5_000


@pytest.mark.parametrize(("theme", "width"), [("light", 1280), ("dark", 768), ("contrast", 360)])
def test_every_screen_is_pictured_and_axe_finds_nothing_serious_on_it(
    browser: Browser, served: Served, places: dict[str, tuple[str, str]], tmp_path: Path, theme: str, width: int
) -> None:
    require_axe()
    kept = os.environ.get("MAINSPRING_PICTURES")
    folder = Path(kept) if kept and theme == "light" else tmp_path
    context = browser.new_context(
        bypass_csp=True, color_scheme="dark" if theme == "dark" else "light", viewport={"width": width, "height": 860}
    )
    page = context.new_page()
    page.set_default_timeout(PATIENCE * 1000)
    found: list[str] = []
    if theme == "contrast":
        page.goto(address(served))
        page.get_by_label("Theme").select_option("High contrast")
    for screen, (place, sign) in places.items():
        page.goto(address(served, place))
        expect(page.get_by_text(sign).first).to_be_visible()
        found += find_flaws(page, screen)
        take_picture(page, screen, folder)
        for each in (*WIDTHS, width) if theme == "light" else (width,):
            expect_to_fit(page, screen, each)
    context.close()
    assert found == []


def test_usage_shows_charts_money_and_what_is_used_of_a_budget(
    page: Page, served: Served, places: dict[str, tuple[str, str]]
) -> None:
    page.goto(address(served, "usage"))
    expect(page.locator(".uplot canvas")).to_be_visible()
    page.get_by_role("button", name="Cost").click()
    assert "chart=cost" in page.url
    expect(page.get_by_role("button", name="Cost")).to_have_attribute("aria-pressed", "true")
    page.get_by_label("By").select_option("model")
    expect(page.locator(".bars .label").first).to_have_text("small-model")
    costs = page.get_by_role("region", name="Usage").locator("tbody td:last-child").all_inner_texts()
    assert len({len(cost.partition(".")[2]) for cost in costs}) == 1, costs
    with page.expect_download() as awaited:
        page.get_by_role("button", name="Download CSV").click()
    assert '"small-model",9,0,' in Path(awaited.value.path()).read_text()
    expect(page.get_by_role("img", name="tokens: ")).to_be_visible()
    page.get_by_role("button", name="Suspend").click()
    page.get_by_role("button", name="Activate").click()
    expect(page.get_by_role("button", name="Suspend")).to_be_visible()
    run = page.request.get(f"{served.url}/runs/resp_{0:024x}").json()
    assert run["cost"] == pytest.approx((900 * 3 + 300 * 15) / 1_000_000)
    page.goto(address(served, f"runs/resp_{0:024x}"))
    expect(page.locator(".runhead .facts")).to_contain_text("Cost 0.0072")


def test_a_schedule_is_run_paused_and_resumed_and_secrets_are_shown_once(
    page: Page, served: Served, places: dict[str, tuple[str, str]]
) -> None:
    page.goto(address(served, "triggers"))
    schedule = page.get_by_role("article", name="Schedule every-morning")
    expect(schedule).to_contain_text("0 7 * * MON-FRI")
    expect(schedule).to_contain_text("07:00")
    schedule.get_by_role("button", name="Run now").click()
    schedule.get_by_text("due time").click()
    expect(schedule.get_by_role("cell", name="started")).to_be_visible()
    schedule.get_by_role("button", name="Pause").click()
    expect(schedule).to_contain_text("paused")
    schedule.get_by_role("button", name="Resume").click()
    expect(schedule.get_by_role("button", name="Pause")).to_be_visible()
    webhook = page.get_by_role("article", name="Webhook ")
    webhook.get_by_role("button", name="New secret").click()
    expect(webhook.get_by_label("Secret")).to_contain_text("whsec_")
    page.reload()
    expect(webhook.get_by_role("button", name="New secret")).to_be_visible()
    expect(webhook.get_by_label("Secret")).to_have_count(0)
