"""What a person is asked to approve is all there to see, as it was written, and so is what a run has said."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect
from tests.console.test_screens import address, ask
from tests.kit.waiting import PATIENCE
from tests.server.process import Served, serving

expect.set_options(timeout=PATIENCE * 1000)

ACCOUNT = 1234567890123456789
TOOLS = '''
from mainspring import tool

@tool(effects=("write",))
def pay(account: int, note: str, details: dict) -> str:
    """Pays somebody."""
    return "paid"
'''
NOTE = "Thanks for the good work. " * 150 + "Then pay mallory, too."
DETAILS = {"a": {"b": {"c": {"d": {"to": "somebody-else"}}}}, "parts": [*range(150), "the-last-part"]}
ARGUMENTS = {"account": ACCOUNT, "note": NOTE, "details": DETAILS}
TOO_LONG = {"account": 1, "note": "x" * 30_000, "details": {}}
# Signs that a terminal acts on, or that nobody sees.
HIDDEN = "before\u009b31m\u202eafter"
SAID = "| what | price |\n|---|--:|\n| tea | 2 |\n\nPay at [https://bank.example](https://evil.example/login), or read [the manual](https://example.org/a)."


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    (tmp_path / "pay_tools.py").write_text(TOOLS)
    (tmp_path / "mainspring.toml").write_text('[governance.rules]\npay = "ask"\n')
    turns: list[dict[str, object]] = [
        {"when": "Pay.", "calls": [{"name": "pay", "arguments": json.dumps(ARGUMENTS)}]},
        {"when": "Pay much.", "calls": [{"name": "pay", "arguments": json.dumps(TOO_LONG)}]},
        {"when": "Tell", "say": SAID},
        {"when": "Fail", "fail": {"code": "provider_unavailable", "message": "the model `tiny` is away"}},
    ]
    with serving(tmp_path, turns, "--tool", "pay_tools", env={"PYTHONPATH": str(tmp_path)}, chunk=0) as server:
        yield server


def test_nothing_of_a_call_is_folded_cut_or_rounded_where_it_is_approved(page: Page, served: Served) -> None:
    ask(served, "Pay.")
    page.goto(address(served, "approvals"))
    card = page.get_by_role("article", name="Approve pay?")
    for text in (str(ACCOUNT), "somebody-else", "the-last-part", "Then pay mallory, too."):
        expect(card.get_by_text(text)).to_be_visible()
    hidden = "(texts) => texts.filter((each) => each.scrollHeight > each.clientHeight + 1).length"
    assert card.locator(".text").evaluate_all(hidden) == 0, "the end of a text need not be scrolled to"
    expect(card.get_by_text("Not all of the arguments is shown")).to_have_count(0)


def test_an_approval_says_that_its_arguments_are_too_long_to_be_shown(page: Page, served: Served) -> None:
    ask(served, "Pay much.")
    page.goto(address(served, "approvals"))
    card = page.get_by_role("article", name="Approve pay?")
    expect(card.get_by_text("Not all of the arguments is shown")).to_be_visible()
    expect(card.get_by_role("button", name="Show all 30,000 characters")).to_be_visible()


def test_a_copied_run_has_no_signs_that_a_terminal_acts_on(page: Page, served: Served) -> None:
    run = ask(served, f"Tell {HIDDEN}")
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.goto(address(served, f"runs/{run}"))
    for name in ("Copy as curl", "Copy as Python"):
        page.get_by_role("button", name=name).click()
        expect(page.get_by_role("button", name="Copied")).to_be_visible()
        copied = page.evaluate("navigator.clipboard.readText()")
        assert "before\\u009b31m\\u202eafter" in copied, name
        expect(page.get_by_role("button", name="Copied")).to_have_count(0)


def test_figures_stand_in_columns_and_a_link_that_names_another_place_tells_where_it_leads(page: Page, served: Served) -> None:
    run = ask(served, "Tell me.")
    page.goto(address(served, f"runs/{run}"))
    answer = page.locator(".entry.message")
    expect(answer.get_by_role("cell", name="2")).to_have_css("text-align", "right")
    expect(answer).to_contain_text("https://bank.example (https://evil.example/login)")
    expect(answer).to_contain_text("or read the manual.")


def test_a_failure_is_red_and_names_are_code(page: Page, served: Served) -> None:
    run = ask(served, "Fail.")
    page.goto(address(served, f"runs/{run}"))
    note = page.locator(".entry.note")
    expect(note.locator("code")).to_have_text("tiny")
    expect(page.locator(".why code")).to_have_text("tiny")
    expect(page.locator(".why")).to_have_text("The model's provider failed. The model tiny is away.")
    red = page.locator(".status.failed").evaluate("(each) => getComputedStyle(each).color")
    expect(note).to_have_css("border-left-color", red)
    page.get_by_role("link", name="Runs", exact=True).first.click()
    expect(page.locator("td.asked .bad code")).to_have_text("tiny")
