"""Runs begun anew from another, and questions asked once more: what the model is asked then is seen at its end of the line."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect
from tests.console.test_screens import address, ask, send
from tests.kit.waiting import PATIENCE
from tests.server.process import Served, serving

TOOLS = '''
from mainspring import tool

@tool(effects=("read",))
def read_page(url: str) -> str:
    """Reads a page."""
    return "it says 42"

@tool(effects=("read",))
def read_mail() -> str:
    """Reads the mail."""
    return "no mail"
'''
TURNS: list[dict[str, object]] = [
    {"calls": [{"name": "read_page", "arguments": {"url": "x"}}]},
    {"say": "It says 42."},
    {"say": "A second answer."},
    {"say": "A third answer."},
    {"say": "A fourth answer."},
]


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    (tmp_path / "page_tools.py").write_text(TOOLS)
    with serving(tmp_path, TURNS, "--tool", "page_tools", env={"PYTHONPATH": str(tmp_path)}) as server:
        yield server


def read_order(served: Served, page: Page) -> dict[str, object]:
    """What the run that is shown was ordered to do."""
    run = page.url.rpartition("/")[2]
    answer = page.request.get(f"{served.url}/runs/{run}/events")
    spec: dict[str, object] = answer.json()["data"][0]["spec"]
    return spec


def said(spec: dict[str, object]) -> list[str]:
    items = spec["input"]
    assert isinstance(items, list)
    return ["".join(part["text"] for part in item["content"]) if item.get("role") else item["type"] for item in items]


def test_a_run_is_run_again_with_other_instructions_and_another_question(page: Page, served: Served) -> None:
    run = send(served, "responses", {"model": "scripted", "input": "Read it.", "temperature": 0.5, "metadata": {"of": "mine"}})[
        "id"
    ]
    page.goto(address(served, f"runs/{run}"))
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    for language, sign in (
        ("curl", f"curl {served.url}/responses -H"),
        ("Python", 'client.responses.create(\n    model="scripted",\n'),
    ):
        page.get_by_role("button", name=f"Copy as {language}").click()
        expect(page.get_by_role("button", name="Copied")).to_be_visible()
        assert sign in page.evaluate("navigator.clipboard.readText()")
        expect(page.get_by_role("button", name="Copied")).to_have_count(0)
    page.get_by_role("button", name="Run again").click()
    form = page.get_by_role("dialog", name="Run again")
    expect(form.get_by_label("Question")).to_have_value("Read it.")
    form.get_by_label("Instructions").fill("Be short.")
    form.get_by_label("Question").fill("Read it once more.")
    form.get_by_role("button", name="Start").click()
    expect(page.locator(".entry.message")).to_contain_text("A second answer.")
    spec = read_order(served, page)
    assert said(spec) == ["Read it once more."]
    assert spec["instructions"] == "Be short."
    assert spec["metadata"] == {"of": "mine", "branch_of": run}
    assert page.request.get(f"{served.url}/responses/{spec['id']}").json()["temperature"] == 0.5


def test_a_branch_goes_on_behind_a_call_with_what_was_found(page: Page, served: Served) -> None:
    run = ask(served, "Read it.")
    page.goto(address(served, f"runs/{run}"))
    expect(page.locator(".runhead .status")).to_have_text("completed")
    page.locator(".entry.call").get_by_role("button", name="Branch").click()
    form = page.get_by_role("dialog", name="Branch from this point")
    form.get_by_label("Message to go on with").fill("And what does it mean?")
    form.get_by_role("button", name="Start").click()
    expect(page.locator(".entry.message")).to_contain_text("A second answer.")
    kept = said(read_order(served, page))
    assert kept[0] == "Read it."
    assert kept[-1] == "And what does it mean?"
    assert len(kept) > 2
    assert "It says 42." not in kept


def test_a_question_is_edited_and_the_conversation_parts_before_it(page: Page, served: Served) -> None:
    page.goto(address(served, "chat"))
    for number, question in enumerate(["First.", "Second."]):
        page.get_by_label("Your message").fill(question)
        page.get_by_role("button", name="Send").click()
        expect(page.locator(".entry.message")).to_have_count(number + 1)
    first = page.url
    page.get_by_role("button", name="Edit the question").last.click()
    page.get_by_label("Your message").fill("Second, in other words.")
    page.get_by_role("button", name="Send").click()
    expect(page.locator(".entry.message")).to_contain_text(["It says 42.", "A third answer."])
    expect(page.locator(".entry.input")).to_contain_text(["First.", "Second, in other words."])
    assert page.url != first
    page.goto(first)
    expect(page.locator(".entry.message")).to_contain_text(["It says 42.", "A second answer."])


def test_a_file_goes_along_and_a_tool_is_switched_off(page: Page, served: Served, tmp_path: Path) -> None:
    (tmp_path / "note.txt").write_text("The number is 42.")
    page.goto(address(served, "chat"))
    page.get_by_label("Attach").set_input_files(tmp_path / "note.txt")
    expect(page.get_by_role("list", name="Attached files")).to_contain_text("note.txt")
    page.get_by_text("Tools (2 of 2)").click()
    page.get_by_label("read_mail").uncheck()
    page.get_by_label("Your message").fill("What is in the file?")
    page.get_by_role("button", name="Send").click()
    expect(page.locator(".entry.message")).to_contain_text("It says 42.")
    expect(page.get_by_role("list", name="Attached files")).to_have_count(0)
    page.get_by_role("link", name="The run").click()
    page.wait_for_url("**/runs/*", timeout=PATIENCE * 1000)
    spec = read_order(served, page)
    assert "file_id" in json.dumps(spec["input"])
    answer = page.request.get(f"{served.url}/responses/{spec['id']}").json()
    assert [tool["name"] for tool in answer["tool_choice"]["tools"]] == ["read_page"]


def test_a_question_that_is_refused_stays_in_its_box(page: Page, served: Served) -> None:
    refusal = {"error": {"code": "rate_limit_exceeded", "message": "Too many requests."}}
    page.route("**/v1/responses", lambda route: route.fulfill(status=429, json=refusal))
    page.goto(address(served, "chat"))
    page.get_by_label("Your message").fill("Hello.")
    page.get_by_role("button", name="Send").click()
    expect(page.get_by_role("alert")).to_contain_text("Too many requests.")
    expect(page.get_by_label("Your message")).to_have_value("Hello.")


def test_the_task_agent_is_one_of_the_agents(page: Page, served: Served) -> None:
    page.goto(address(served, "chat"))
    page.get_by_label("Model").select_option("Task agent")
    expect(page.get_by_text("Tools (")).to_have_count(0)
    page.get_by_label("Your message").fill("What is on my list?")
    page.get_by_role("button", name="Send").click()
    # Whatever it says: this model was not made for it, and the page shows the answer or why there is none.
    expect(page.locator(".entry.message, .failure")).to_have_count(1)
    # What it has said is found again: after a reload, and from the list.
    page.reload()
    expect(page.locator(".entry.message, .failure")).to_have_count(1)
    page.get_by_role("button", name="New conversation").click()
    expect(page.locator(".entry")).to_have_count(0)
    page.get_by_role("navigation", name="Conversations").get_by_role("link", name="What is on my list?").click()
    expect(page.locator(".entry.input")).to_contain_text("What is on my list?")
    # Where nobody has a tenant, the list of runs tells none.
    page.get_by_role("link", name="Runs", exact=True).click()
    expect(page.get_by_role("row").filter(has_text="What is on my list?")).to_have_count(1)
    expect(page.get_by_role("columnheader", name="Tenant")).to_have_count(0)
    expect(page.get_by_label("Tenant")).to_have_count(0)
