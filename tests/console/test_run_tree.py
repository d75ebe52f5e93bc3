"""The runs around a run, and a run as a file: real runs of agents and workflows, in a real browser."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import Browser, Download, Page, expect
from tests.agents.world import written
from tests.console.axe import find_flaws, require_axe
from tests.kit.waiting import PATIENCE
from tests.server.process import Served, serving

NASTY = "<img src=x onerror=alert(1)>\n```\n![spy](http://evil.example/x.png)\x1b"
BEE = {"calls": [{"name": "agent_bee", "arguments": {"task": "Gather"}}]}
ANT = {"calls": [{"name": "agent_ant", "arguments": {"task": "Carry"}}]}
TURNS: list[dict[str, object]] = [
    {"when": "is every part", "say": "Done."},
    {"when": "Carry", "say": NASTY},
    {"when": "Gather", **ANT},
    {"when": "Gather", "say": "Gathered."},
    {"when": "Hang", "calls": [{"name": "agent_bee", "arguments": {"task": "Sleep"}}]},
    {"when": "Sleep", "say": "Zzz.", "stall": True},
    {"when": "Manage", **BEE},
    {"when": "Manage", "say": "Managed **well**."},
]
WORKFLOW = """
name: tidy
version: 1.0.0
description: Tidies up.
steps:
  - {id: look, action: transform, value: seen}
  - {id: manage, action: invoke-agent, agent: boss, inputs: {task: Manage}, depends_on: [look]}
"""
SLOW = """
name: idle
version: 1.0.0
description: Never ends.
steps:
  - {id: look, action: transform, value: seen}
  - {id: manage, action: invoke-agent, agent: boss, inputs: {task: Hang}, depends_on: [look]}
  - {id: report, action: transform, value: "{{ steps.manage.output }}"}
"""

expect.set_options(timeout=PATIENCE * 1000)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("tree")
    written(folder / "agents", "ant")
    written(folder / "agents", "bee", dependencies=[{"agent": "ant"}])
    written(folder / "agents", "boss", dependencies=[{"agent": "bee"}])
    inputs = {"what": {"type": "string", "required": True}, "times": {"type": "integer", "default": 2}}
    written(folder / "agents", "clerk", inputs=inputs, prompts={"user": "Carry {{ what }}, {{ times }} times."})
    (folder / "workflows").mkdir()
    (folder / "workflows" / "tidy.yaml").write_text(WORKFLOW)
    (folder / "workflows" / "idle.yaml").write_text(SLOW)
    (folder / "mainspring.toml").write_text('agents = ["agents"]\nworkflows = ["workflows"]\n')
    with serving(folder, TURNS) as server:
        yield server


@pytest.fixture(scope="module")
def run(served: Served) -> str:
    """A run of an agent that asks another, which asks a third, as a step of a workflow."""
    answer = httpx.post(f"{served.url}/workflows/tidy/runs", json={"inputs": {}}, timeout=PATIENCE).json()
    assert answer.get("status") == "success", answer
    found: str = answer["steps"][-1]["run_id"]
    return found


def address(served: Served, run: str) -> str:
    return f"{served.url.removesuffix('/v1')}/#/runs/{run}"


def test_sub_agents_and_the_steps_of_a_workflow_are_a_tree(served: Served, run: str, page: Page) -> None:
    page.goto(address(served, run))
    tree = page.get_by_role("navigation", name="Runs around this one")
    expect(page.get_by_role("heading", level=1)).to_have_text("Manage")
    expect(tree.get_by_role("link", name="Workflow tidy")).to_be_visible()
    expect(tree).to_contain_text(re.compile(r"\bStep look"))
    expect(tree.get_by_role("link", name="boss")).to_have_attribute("aria-current", "page")
    # What the agents below have started is read when somebody wants to see it.
    expect(tree.get_by_role("link", name="ant")).to_have_count(0)
    tree.get_by_role("button", name="Runs of bee").click()
    tree.get_by_role("link", name="ant").click()
    # From below, the way up is there at once. Before it is, the page may still show the run it came from, which says more.
    expect(tree.get_by_role("link", name="ant")).to_have_attribute("aria-current", "page")
    expect(page.locator(".entry.message")).to_contain_text("onerror")
    expect(tree.get_by_role("listitem").filter(has=page.get_by_role("link", name="bee")).last).to_contain_text("Carry")
    tree.get_by_role("link", name="Workflow tidy").click()
    expect(page.locator(".steps .entry")).to_have_count(2)
    page.get_by_role("link", name="Workflows").click()
    page.get_by_label("Find an agent or a workflow").fill("tidies")
    expect(page.get_by_role("article")).to_have_count(1)
    card = page.get_by_role("article").filter(has_text="Tidies up.")
    card.get_by_text("Runs", exact=True).click()
    expect(card.get_by_role("region", name="Runs of tidy").locator("tbody tr")).to_contain_text("success")


def test_a_sub_agent_is_in_the_tree_while_it_works(served: Served, page: Page) -> None:
    asked = {"model": "agent:boss", "input": "Hang", "background": True}
    found = httpx.post(f"{served.url}/responses", json=asked, timeout=PATIENCE).json()["id"]
    page.goto(address(served, found))
    tree = page.get_by_role("navigation", name="Runs around this one")
    below = tree.get_by_role("listitem").filter(has=page.get_by_role("link", name="bee")).last
    expect(below).to_contain_text("running")
    page.get_by_role("button", name="Cancel").click()
    expect(page.locator(".runhead .status")).to_have_text("cancelled")
    expect(below).to_contain_text("cancelled")


def test_a_workflow_is_coloured_as_it_runs_and_leads_to_the_run_of_its_step(served: Served, page: Page) -> None:
    asked = {"inputs": {}, "background": True}
    begun = httpx.post(f"{served.url}/workflows/idle/runs", json=asked, timeout=PATIENCE).json()["id"]
    page.goto(f"{served.url.removesuffix('/v1')}/#/workflows/idle/{begun}")
    graph = page.get_by_role("region", name="Graph of the steps")
    expect(graph.locator(".node.running")).to_contain_text("manage")
    expect(graph.locator(".node.success")).to_contain_text("look")
    expect(graph.locator(".node.not-yet")).to_contain_text("report")
    graph.get_by_role("link").click()
    expect(page.locator(".runhead .facts")).to_contain_text("Agent boss")
    page.get_by_role("link", name="Workflow idle").click()
    page.get_by_role("button", name="Cancel").click()
    expect(graph.locator(".node.failed")).to_contain_text("manage")
    expect(page.get_by_role("button", name="Run again")).to_be_visible()


def test_a_run_is_run_again_with_another_agent(served: Served, run: str, page: Page) -> None:
    page.goto(address(served, run))
    page.get_by_role("button", name="Run again").click()
    form = page.get_by_role("dialog", name="Run again")
    form.get_by_label("Model or agent").fill("agent:ant")
    form.get_by_label("Question").fill("Carry this.")
    form.get_by_role("button", name="Start").click()
    expect(page.locator(".runhead .facts")).to_contain_text("Agent ant")
    expect(page.locator(".entry.message")).to_contain_text("onerror")


def test_a_run_is_gone_on_with_in_the_chat_and_an_answer_is_stopped(served: Served, run: str, page: Page) -> None:
    page.goto(address(served, run))
    page.get_by_role("button", name="Continue").click()
    expect(page.get_by_text("Goes on after this run.")).to_be_visible()
    page.get_by_label("Your message").fill("Sleep")
    page.get_by_role("button", name="Send").click()
    expect(page.locator(".entry.message")).to_contain_text("Zzz.")
    page.get_by_role("button", name="Stop").click()
    expect(page.locator(".entry.end")).to_contain_text("It was cancelled.")
    page.get_by_role("link", name="The run", exact=True).click()
    before = page.get_by_role("link", name="The run before")
    expect(before).to_have_attribute("href", f"#/runs/{run}")


def test_an_agent_starts_from_its_form_or_from_a_message(served: Served, page: Page) -> None:
    agents = f"{served.url.removesuffix('/v1')}/#/agents"
    for name, fields, asked in (
        ("clerk", {"what": "leaves", "times": "3"}, "Carry leaves, 3 times."),
        ("clerk", {"what": "leaves"}, "Carry leaves, 2 times."),
        ("ant", {"Message": "Carry what is there."}, "Carry what is there."),
    ):
        page.goto(agents)
        card = page.get_by_role("article").filter(has_text=f"{name} 1.0.0")
        for label, value in fields.items():
            card.get_by_label(label).fill(value)
        card.get_by_role("button", name="Start").click()
        expect(page.locator(".entry.input")).to_contain_text(asked)
        expect(page.locator(".runhead .facts")).to_contain_text(f"Agent {name}")


def download(page: Page, name: str) -> tuple[Download, str]:
    with page.expect_download() as awaited:
        page.get_by_role("button", name=f"Download {name}").click()
    return awaited.value, Path(awaited.value.path()).read_text()


def test_a_run_is_downloaded_as_markdown_and_as_its_whole_log(served: Served, run: str, page: Page) -> None:
    page.goto(address(served, run))
    file, text = download(page, "Markdown")
    assert file.suggested_filename == f"{run}.md"
    assert "- Agent: boss\n- Status: completed\n" in text
    assert "### Call of agent_bee (event " in text
    assert '"Gather"' in text
    assert "\n\nManaged **well**.\n" in text
    assert text.rstrip().endswith("The model gave its answer.")
    file, text = download(page, "JSON")
    log = json.loads(text)["data"]
    assert (file.suggested_filename, log[0]["type"], log[-1]["type"]) == (f"{run}.json", "run_started", "run_ended")
    assert [event["seq"] for event in log] == list(range(len(log)))


def test_what_models_say_stays_text_in_the_markdown(served: Served, page: Page) -> None:
    asked = {"model": "scripted", "input": "Carry"}
    found = httpx.post(f"{served.url}/responses", json=asked, timeout=PATIENCE).json()["id"]
    page.goto(address(served, found))
    _, text = download(page, "Markdown")
    shown = NASTY.replace("\x1b", "␛")
    assert f"\n````markdown\n{shown}\n````\n" in text


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_axe_finds_nothing_serious_in_the_tree(browser: Browser, served: Served, run: str, theme: str) -> None:
    require_axe()
    context = browser.new_context(bypass_csp=True, color_scheme="dark" if theme == "dark" else "light")
    page = context.new_page()
    page.goto(address(served, run))
    page.get_by_role("button", name="Runs of bee").click()
    expect(page.get_by_role("link", name="ant")).to_be_visible()
    found = find_flaws(page, "run")
    context.close()
    assert found == []
