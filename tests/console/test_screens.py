"""What people do in the console, in a real browser before a real server process."""

import json
import urllib.request
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import Browser, Page, Route, expect
from tests.console.conftest import open_context, open_page
from tests.kit.waiting import PATIENCE
from tests.server.process import Served, serving

NASTY = (
    "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>\x1b[31m\x07\u202e]]>\u061c\U000e0041"
)
TOOLS = f'''
from mainspring import tool

@tool(effects=("write",))
def remove_report(path: str) -> str:
    """Removes a report from the archive."""
    return "removed " + path

@tool(effects=("read",))
def read_page(url: str) -> str:
    """Reads a page."""
    return {NASTY!r}
'''
SETTINGS = 'workflows = ["workflows"]\n[governance.rules]\nremove_report = "ask"\n'
WORKFLOW = """
name: tidy
version: 1.0.0
description: Tidies a folder.
inputs:
  folder: {type: string, required: true, description: Where.}
  depth: {type: integer, enum: [1, 2]}
  kinds: {type: array, description: What to tidy.}
  options: {type: object, default: {dry: true}}
steps:
  - {id: look, action: transform, value: "{{ inputs.folder }}"}
  - {id: count, action: transform, value: 3}
  - {id: report, action: transform, value: "{{ steps.look.output }} has {{ steps.count.output }}"}
"""

SECONDS_BETWEEN_LOOKS = 10
# By how many pixels the header is higher than what is kept free for it.
HEADER_EXCESS = """() => {
    const style = getComputedStyle(document.documentElement);
    const kept = parseFloat(style.getPropertyValue("--top")) * parseFloat(style.fontSize);
    return document.querySelector("header.top").offsetHeight - kept;
}"""

expect.set_options(timeout=PATIENCE * 1000)


def removal(path: str) -> dict[str, object]:
    return {"think": "The old report has to go.", "calls": [{"name": "remove_report", "arguments": {"path": path}}]}


@pytest.fixture
def turns() -> list[dict[str, object]]:
    return [removal("/archive/2019.pdf"), {"say": "The report is **gone**."}]


@pytest.fixture
def served(tmp_path: Path, turns: list[dict[str, object]]) -> Iterator[Served]:
    (tmp_path / "archive_tools.py").write_text(TOOLS)
    (tmp_path / "mainspring.toml").write_text(SETTINGS)
    (tmp_path / "workflows").mkdir()
    (tmp_path / "workflows" / "tidy.yaml").write_text(WORKFLOW)
    (tmp_path / "workflows" / "broken.yaml").write_text("nmae: broken\n")
    with serving(tmp_path, turns, "--tool", "archive_tools", env={"PYTHONPATH": str(tmp_path)}) as server:
        yield server


def address(served: Served, place: str = "") -> str:
    return f"{served.url.removesuffix('/v1')}/#/{place}"


def send(served: Served, path: str, body: dict[str, object], key: str = "") -> dict[str, str]:
    headers = {"content-type": "application/json", **({"authorization": f"Bearer {key}"} if key else {})}
    asked = urllib.request.Request(f"{served.url}/{path}", json.dumps(body).encode(), headers)
    with urllib.request.urlopen(asked, timeout=PATIENCE) as answer:
        found: dict[str, str] = json.load(answer)
        return found


def ask(served: Served, text: str, key: str = "") -> str:
    """The id of a run that works in the background."""
    return send(served, "responses", {"model": "scripted", "input": text, "background": True}, key)["id"]


def test_the_demo_runs_to_its_end_before_ones_eyes(page: Page, served: Served) -> None:
    page.goto(address(served))
    page.get_by_role("button", name="Start the demo").click()
    seen = page.locator(".runhead .status")
    expect(seen).to_have_text("running")
    # Its calls appear while it runs, one turn after the other.
    expect(page.get_by_text("ada.txt").first).to_be_visible()
    assert seen.text_content() == "running"
    expect(page.get_by_text("Bruno gives Ada 9.50.").last).to_be_visible()
    expect(seen).to_have_text("completed")
    expect(page.get_by_role("status").filter(has_text="answer")).to_be_visible()
    expect(page.locator(".waterfall li")).to_have_count(16)
    # Whoever has not scrolled has followed it to its end, though its head became shorter there.
    expect(page.locator(".entry.end")).to_be_in_viewport(ratio=1)


def test_an_approval_is_answered_in_the_page_and_the_run_goes_on(page: Page, served: Served) -> None:
    page.goto(address(served, "approvals"))
    expect(page.get_by_text("Nothing waits for a person.")).to_be_visible()
    ask(served, "Clean up.")
    card = page.get_by_role("article", name="Approve remove_report?")
    expect(card).to_contain_text("/archive/2019.pdf")
    expect(card).to_contain_text("Declares: write")
    expect(card).to_contain_text("23 h 5")
    expect(page).to_have_title("(1) Approvals · Mainspring")
    expect(card.get_by_role("link", name="Clean up.")).to_be_visible()
    card.get_by_text("The run up to here").click()
    expect(card.locator(".entry.reasoning")).to_contain_text("The old report has to go.")
    card.get_by_label("Reason").fill("It is old.")
    card.get_by_role("button", name="Approve").click()
    page.get_by_role("link", name="Watch the run go on").click()
    expect(page.locator(".entry.message")).to_contain_text("The report is gone.")
    expect(page.locator(".entry.input")).to_contain_text("It is old.")
    expect(page.locator(".entry.call .who")).to_have_text("remove_report")
    expect(page).not_to_have_title("(1)")


@pytest.mark.parametrize("turns", [[removal(f"/archive/{year}.pdf") for year in (2017, 2018, 2019)]])
def test_keys_lead_from_approval_to_approval_and_those_of_the_browser_answer_none(page: Page, served: Served) -> None:
    for _ in range(3):
        ask(served, "Clean up.")
    page.goto(address(served, "approvals"))
    cards = page.get_by_role("article", name="Approve")
    expect(cards).to_have_count(3)
    page.keyboard.press("j")
    expect(cards.nth(0)).to_be_focused()
    page.keyboard.press("j")
    expect(cards.nth(1)).to_be_focused()
    page.keyboard.press("Control+a")
    page.keyboard.press("Control+d")
    page.keyboard.press("d")
    expect(page.get_by_text("Denied: remove_report.")).to_be_visible()
    expect(cards).to_have_count(2)
    # Where the answered one was is the next one now.
    page.keyboard.press("j")
    expect(cards.nth(1)).to_be_focused()


def test_a_page_out_of_sight_holds_no_connection_and_still_counts_what_waits(browser: Browser, served: Served) -> None:
    see = """(isSeen) => {
        Object.defineProperty(document, "hidden", { value: !isSeen, configurable: true });
        document.dispatchEvent(new Event("visibilitychange"));
    }"""
    with closing(open_context(browser)) as context, open_page(context) as page:
        page.clock.install()
        page.goto(address(served, "runs"))
        expect(page.get_by_text("Live")).to_be_visible()
        with page.expect_event("requestfailed", lambda request: "runs/changes" in request.url):
            page.evaluate(see, False)
        ask(served, "Clean up.")
        page.clock.fast_forward(SECONDS_BETWEEN_LOOKS * 1000)
        expect(page).to_have_title("(1) Runs · Mainspring")
        expect(page.get_by_role("row").filter(has_text="Clean up.")).to_have_count(0)
        page.evaluate(see, True)
        expect(page.get_by_role("row").filter(has_text="Clean up.")).to_be_visible()


def test_a_call_is_denied_by_keyboard_on_a_phone(page: Page, served: Served, turns: list[dict[str, object]]) -> None:
    page.set_viewport_size({"width": 360, "height": 740})
    run = ask(served, "Clean up.")
    page.goto(address(served, f"runs/{run}"))
    card = page.get_by_role("article", name="Approve remove_report?")
    expect(card.get_by_role("button", name="Deny")).to_be_visible()
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    card.focus()
    page.keyboard.press("d")
    expect(page.locator(".entry.input")).to_contain_text("A person denied")


ODD_NAME = "read\u202epage"


@pytest.mark.parametrize(
    "turns",
    [[{"calls": [{"name": "read_page", "arguments": {"url": NASTY}}, {"name": ODD_NAME, "arguments": {}}]}, {"say": NASTY}]],
)
def test_html_and_control_characters_of_tools_and_models_are_shown_as_text(page: Page, served: Served) -> None:
    run = ask(served, NASTY)
    page.goto(address(served, f"runs/{run}"))
    expect(page.locator(".runhead .status")).to_have_text("completed")
    shown = page.locator(".entry.call").first.locator(".text").last
    expect(shown).to_contain_text("<script>document.title='owned'</script>␛[31m␇⟨U+202E⟩]]>⟨U+061C⟩⟨U+E0041⟩")
    expect(page.locator(".entry.message")).to_contain_text("<img src=x onerror=")
    expect(page.locator(".waterfall .label", has_text="read⟨U+202E⟩page")).to_be_visible()
    drawn = "[document.title, document.body.innerText, ...[...document.querySelectorAll('[title],[aria-label]')].map("
    drawn += "(each) => each.title + each.ariaLabel)].join()"
    assert not set(page.evaluate(drawn)) & set(NASTY[-6:]) - set("]>")
    assert page.locator("main img, main script").count() == 0
    assert page.title() != "owned"


def test_runs_appear_by_themselves_and_filters_are_in_the_address(page: Page, served: Served) -> None:
    page.goto(address(served, "runs"))
    expect(page.get_by_text("Nothing has run here yet.")).to_be_visible()
    run = ask(served, "Clean up.")
    row = page.get_by_role("row").filter(has_text="Clean up.")
    expect(row).to_contain_text("waiting")
    page.get_by_label("Status").select_option("completed")
    expect(page.get_by_text("No run fits these filters.")).to_be_visible()
    assert "status=completed" in page.url
    page.reload()
    expect(page.get_by_text("No run fits these filters.")).to_be_visible()
    page.get_by_role("button", name="Clear the filters").click()
    expect(row).to_be_visible()
    expect(page.get_by_label("Status")).to_have_value("")
    page.get_by_label("failed only").check()
    assert "status=failed" in page.url
    page.get_by_label("failed only").uncheck()
    # Who pauses keeps the place, and is told how many are new.
    page.get_by_role("button", name="Pause").click()
    ask(served, "Later.")
    expect(page.get_by_text("Paused, 1 new")).to_be_visible()
    expect(page.get_by_role("row").filter(has_text="Later.")).to_have_count(0)
    page.get_by_role("button", name="Go on").click()
    expect(page.get_by_role("row").filter(has_text="Later.")).to_be_visible()
    # What is typed is looked for without a further key, and stays while rows come.
    page.get_by_label("Search").press_sequentially("clean")
    expect(page.get_by_role("row").filter(has_text="Later.")).to_have_count(0)
    assert "q=clean" in page.url
    ask(served, "Cleaner.")
    expect(page.get_by_role("row").filter(has_text="Cleaner.")).to_be_visible()
    expect(page.get_by_label("Search")).to_have_value("clean")
    page.get_by_label("Search").fill("")
    expect(page.get_by_role("row").filter(has_text="Later.")).to_be_visible()
    page.get_by_role("heading", name="Runs").click()
    # Who has chosen one keeps it when others come above, and what fits the filters no more leaves the list.
    page.keyboard.press("j")
    expect(page.locator("tr.chosen")).to_contain_text("Cleaner.")
    page.get_by_label("waits for a person").check()
    expect(row).to_be_visible()
    waiting = page.request.get(f"{served.url}/approvals").json()["data"]
    send(served, f"approvals/{next(each['id'] for each in waiting if each['response_id'] == run)}", {"approve": False})
    expect(row).to_have_count(0)
    page.get_by_label("waits for a person").uncheck()
    expect(row).to_be_visible()
    page.keyboard.press("j")
    chosen = page.locator("tr.chosen")
    before = chosen.text_content()
    ask(served, "Last.")
    expect(page.get_by_role("row").filter(has_text="Last.")).to_be_visible()
    assert chosen.text_content() == before
    page.get_by_role("link", name="Clean up.").press("Enter")
    expect(page).to_have_url(address(served, f"runs/{run}"))


def test_a_link_leads_to_an_exact_event_and_keys_step_from_it(page: Page, served: Served) -> None:
    run = ask(served, "Clean up.")
    page.goto(address(served, f"runs/{run}"))
    page.locator(".entry.call .anchor").click()
    chosen = page.locator(".entry[aria-current]")
    expect(chosen.locator(".who")).to_have_text("remove_report")
    page.reload()
    expect(chosen.locator(".who")).to_have_text("remove_report")
    page.keyboard.press("ArrowLeft")
    expect(chosen.locator(".who")).to_have_text("Reasoning")


def test_somebody_talks_to_the_model_and_finds_the_conversation_again(page: Page, served: Served) -> None:
    page.goto(address(served))
    page.get_by_label("Your question").fill("Clean up.")
    page.get_by_role("button", name="Ask").click()
    expect(page.locator(".entry.call .who")).to_have_text("remove_report")
    # Whoever comes back finds the call where it was left, and can answer it: after a reload, and from the list.
    page.reload()
    expect(page.get_by_role("button", name="Approve")).to_be_visible()
    expect(page.locator(".entry.input")).to_have_count(1)
    listed = page.get_by_role("navigation", name="Conversations").get_by_role("listitem")
    listed.get_by_role("link", name="Clean up.").click()
    expect(page.get_by_role("button", name="Approve")).to_be_visible()
    expect(page.locator(".entry.call .who")).to_have_text("remove_report")
    page.get_by_role("button", name="Approve").click()
    expect(page.locator(".entry.message")).to_contain_text("The report is gone.")
    page.get_by_role("button", name="Rename").click()
    page.get_by_label("Title").fill("The archive")
    page.get_by_role("button", name="Save").click()
    page.get_by_role("button", name="New conversation").click()
    expect(page.locator(".entry")).to_have_count(0)
    page.get_by_role("link", name="The archive").click()
    expect(page.locator(".entry.message")).to_contain_text("The report is gone.")
    # Each call is there once, with its result.
    expect(page.locator(".entry.call")).to_have_count(1)
    expect(page.locator(".entry.call")).to_contain_text("removed /archive/2019.pdf")
    page.get_by_role("button", name="Delete").click()
    page.get_by_role("button", name="Delete for good?").click()
    expect(listed).to_have_count(0)


@pytest.mark.parametrize(
    "turns", [[{"calls": [{"name": "read_page", "arguments": {"url": "x"}}]}, {"say": "word " * 60, "pause": 0.03}]]
)
def test_a_live_run_is_followed_across_a_restart_of_the_server(
    page: Page, served: Served, tmp_path: Path, turns: list[dict[str, object]]
) -> None:
    run = ask(served, "Read it.")
    page.goto(address(served, f"runs/{run}"))
    expect(page.locator(".entry.message")).to_contain_text("word word")
    assert page.locator(".runhead .status").text_content() == "running"
    served.kill()
    expect(page.get_by_text("The connection is lost; trying again.")).to_be_visible()
    banner = page.get_by_text("The server cannot be reached.")
    expect(banner).to_be_visible()
    port = served.url.removesuffix("/v1").rpartition(":")[2]
    with serving(tmp_path, turns, "--tool", "archive_tools", "--port", port, env={"PYTHONPATH": str(tmp_path)}):
        expect(page.locator(".runhead .status")).to_have_text("completed")
        expect(banner).to_have_count(0)
        expect(page.get_by_text("Taken up by another process")).to_be_visible()
        assert page.locator(".entry.call").count() == 1


def test_a_run_that_a_proxy_cannot_reach_is_read_once_the_server_is_back(page: Page, served: Served) -> None:
    run = ask(served, "Clean up.")
    page.route("**/v1/**", lambda route: route.fulfill(status=502, content_type="text/html", body="<h1>Bad gateway</h1>"))
    page.goto(address(served, f"runs/{run}"))
    expect(page.get_by_text("The server cannot be reached.")).to_be_visible()
    page.unroute_all()
    expect(page.locator(".runhead .status")).to_have_text("waiting")
    expect(page.get_by_role("alert")).to_have_count(0)


def test_a_swapped_call_is_refused(page: Page, served: Served) -> None:
    ask(served, "Clean up.")
    page.goto(address(served, "approvals"))
    sent: list[str] = []

    def swap(route: Route) -> None:
        body = json.loads(route.request.post_data or "")
        sent.append(body["digest"])
        route.continue_(post_data=json.dumps({**body, "digest": "0" * 64}))

    page.route("**/v1/approvals/*", swap)
    page.get_by_role("button", name="Approve").click()
    expect(page.get_by_role("alert")).to_contain_text("digest")
    assert len(sent[0]) == 64
    expect(page.get_by_role("button", name="Deny")).to_be_visible()


def test_a_key_signs_in_and_a_tenant_sees_only_its_own(page: Page, served: Served) -> None:
    # Whoever makes the first key in the page is not locked out by it.
    page.goto(address(served, "system"))
    page.get_by_label("Name").fill("operator")
    # What is no number of days makes no key that lasts for ever.
    days = page.get_by_label("Days it lasts")
    days.press_sequentially("1e")
    page.get_by_role("button", name="Create a key").click()
    expect(page.get_by_label("The new key")).to_have_count(0)
    days.fill("")
    page.get_by_role("button", name="Create a key").click()
    operator = page.get_by_label("The new key").text_content() or ""
    expect(page.get_by_role("cell", name="operator", exact=True)).to_be_visible()
    wanted: dict[str, dict[str, object]] = {
        "acme": {"tenant": "acme"}, "other": {"tenant": "other"}, "approver": {"tenant": "acme", "scopes": ["approvals"]},
    }  # fmt: skip
    made = {name: send(served, "keys", body, operator) for name, body in wanted.items()}
    keys = {name: each["key"] for name, each in made.items()}
    ask(served, "Clean up.", keys["acme"])
    page.goto(address(served, "approvals"))
    expect(page.get_by_role("article", name="Approve remove_report?")).to_contain_text("Tenant acme")
    page.get_by_role("button", name="Approve").click()
    page.get_by_role("link", name="Watch the run go on").click()
    expect(page.locator(".entry.message")).to_contain_text("The report is gone.")
    page.get_by_role("button", name="Sign out").click()
    expect(page.get_by_label("API key")).to_be_visible()
    page.goto(address(served, "runs"))
    for name, sign in (
        ("other", "Nothing has run here yet."),
        ("acme", "Clean up."),
        ("approver", "Nothing waits for a person."),
    ):
        page.get_by_label("API key").fill("ms_wrong")
        page.get_by_role("button", name="Sign in").click()
        expect(page.get_by_role("alert")).to_be_visible()
        page.get_by_label("API key").fill(keys[name])
        page.get_by_role("button", name="Sign in").click()
        if name == "approver":
            page.get_by_role("link", name="Approvals").click()
            expect(page.get_by_role("navigation", name="Screens").get_by_role("link")).to_have_text(["Welcome", "Approvals"])
        expect(page.get_by_text(sign).first).to_be_visible()
        if name == "acme":
            # What only operators may do is not offered.
            page.get_by_role("link", name="Governance").click()
            expect(page.get_by_role("cell", name="remove_report").first).to_be_visible()
            expect(page.get_by_role("button", name="Verify")).to_have_count(0)
            page.get_by_role("link", name="Runs", exact=True).click()
            # On a phone, too, what says who one is has room beside the rest.
            page.set_viewport_size({"width": 360, "height": 740})
            assert page.evaluate(HEADER_EXCESS) <= 1
            page.set_viewport_size({"width": 1280, "height": 900})
        if name != "approver":
            page.get_by_role("button", name="Sign out").click()
            expect(page.get_by_label("API key")).to_be_visible()
    # A key that is revoked ends what was begun with it, wherever one is.
    httpx.delete(
        f"{served.url}/keys/{made['approver']['id']}", headers={"authorization": f"Bearer {operator}"}
    ).raise_for_status()
    page.get_by_role("link", name="Welcome").click()
    expect(page.get_by_text("Your session is over")).to_be_visible()
    expect(page.get_by_role("navigation", name="Screens")).to_have_count(0)
    assert page.evaluate("document.cookie") == ""


def test_a_workflow_runs_from_its_form(page: Page, served: Served) -> None:
    page.goto(address(served, "agents"))
    expect(page.get_by_role("alert")).to_contain_text("broken.yaml")
    page.get_by_label("folder").fill("/archive")
    page.get_by_label("depth").select_option("2")
    # Lists and objects by keyboard: who adds an entry is in it.
    add = page.get_by_role("button", name="Add an entry to kinds", exact=True)
    add.press("Enter")
    expect(page.get_by_label("kinds, entry 1", exact=True)).to_be_focused()
    page.keyboard.type("pdf")
    add.press("Enter")
    expect(page.get_by_label("kinds, entry 2", exact=True)).to_be_focused()
    page.get_by_label("Kind of kinds, entry 2", exact=True).select_option("object")
    page.get_by_role("button", name="Add a field to kinds, entry 2").press("Enter")
    expect(page.get_by_label("Name of field 1 of kinds, entry 2")).to_be_focused()
    page.keyboard.press("Control+A")
    page.keyboard.type("newer")
    page.get_by_label("Kind of kinds, entry 2, newer").select_option("number")
    page.get_by_label("kinds, entry 2, newer", exact=True).fill("2.5")
    add.press("Enter")
    expect(page.get_by_label("Kind of kinds, entry 3", exact=True)).to_have_value("object")
    page.get_by_role("button", name="Remove kinds, entry 3", exact=True).press("Enter")
    expect(add).to_be_focused()
    page.get_by_role("button", name="Write it as JSON (options)").click()
    written = page.get_by_label("options as JSON")
    expect(written).to_have_value('{\n  "dry": true\n}')
    written.fill("[1")
    page.get_by_role("button", name="Run").click()
    expect(page.get_by_text("This is no object in JSON.")).to_be_visible()
    written.fill('{"dry": false, "of": {"a": [1]}}')
    page.get_by_role("button", name="Run").click()
    expect(page.locator(".steps .entry").last).to_contain_text("success")
    graph = page.get_by_role("region", name="Graph of the steps")
    expect(graph.locator(".node.success")).to_have_count(3)
    # What comes after two others is drawn below them, with a line to each.
    boxes = [graph.locator(".node", has_text=name).bounding_box() for name in ("look", "count", "report")]
    look, count, report = [box["y"] for box in boxes if box]
    assert look == count < report
    expect(graph.locator("path")).to_have_count(2)
    run = page.url.rpartition("/")[2]
    sent = {"folder": "/archive", "depth": 2, "kinds": ["pdf", {"newer": 2.5}], "options": {"dry": False, "of": {"a": [1]}}}
    assert page.request.get(f"{served.url}/workflows/tidy/runs/{run}").json()["inputs"] == sent
    page.get_by_role("button", name="Run again").click()
    expect(page).not_to_have_url(address(served, f"workflows/tidy/{run}"))
    again = page.url.rpartition("/")[2]
    assert page.request.get(f"{served.url}/workflows/tidy/runs/{again}").json()["inputs"] == sent


def test_usage_is_summed_a_call_is_tried_and_the_audit_verified(page: Page, served: Served) -> None:
    run = ask(served, "Clean up.")
    page.goto(address(served, f"runs/{run}"))
    expect(page.locator(".runhead .status")).to_have_text("waiting")
    page.goto(address(served, "usage?by=model"))
    expect(page.get_by_role("cell", name="scripted")).to_be_visible()
    page.goto(address(served, "governance"))
    page.locator("#tool").fill("remove_report")
    expect(page.get_by_label("Arguments")).to_have_value('{\n  "path": ""\n}')
    page.get_by_label("Arguments").fill('{"path": "x"}')
    page.get_by_role("button", name="Try").click()
    expect(page.locator(".verdict.ask")).to_contain_text("a person is asked by tool_rules: The rule remove_report")
    page.get_by_role("button", name="Verify").click()
    expect(page.get_by_text("Whole: ")).to_be_visible()
    page.locator(".filters select").select_option("run ended")
    expect(page.get_by_role("region", name="Audit").locator("tbody tr")).to_have_count(1)
    page.get_by_label("What").select_option("judged")
    expect(page.get_by_role("region", name="Audit").get_by_role("cell", name="remove_report", exact=True)).to_be_visible()
    page.get_by_label("What").select_option("run ended")
    assert "what=run_ended" in page.url
    page.goto(address(served, f"runs/{run}"))
    page.locator(".entry.call").get_by_text("Explain").click()
    expect(page.locator(".entry.call details ol li").first).to_contain_text("remove_report")
    page.goto(address(served, "system"))
    expect(page.get_by_role("cell", name="Removes a report from the archive.")).to_be_visible()
    page.locator("summary", has_text="scripted").click()
    expect(page.get_by_text("Nothing special is known of it.")).to_be_visible()
    page.get_by_label("Find a setting").fill("workflows")
    expect(page.get_by_role("region", name="Settings").locator("tbody tr")).to_have_count(1)
