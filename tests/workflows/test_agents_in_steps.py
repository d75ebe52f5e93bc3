"""Steps in which agents are chosen, take over and talk, and in which code runs."""

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from tests.agents.world import written as agent
from tests.kit.waiting import until
from tests.workflows.world import defined, engine_for, failure

from mainspring import Engine
from mainspring.core.errors import InvalidRequest
from mainspring.features.budgets.budget import LEVELS
from mainspring.features.budgets.plan import Plan
from mainspring.features.workflows import agent_steps
from mainspring.features.workflows.step_work import derive_next_id, derive_run_id
from mainspring.providers.script import Call, Turn
from mainspring.providers.scripted import Scripted, prompt, say, stall

ROUTE = "name: one\nsteps: [{id: s, action: route, task: Count the ships., agents: [ann, bob]}]"
HANDOFF = """
name: one
steps:
  - {id: s, action: handoff, agent: bob, source: ann, objective: Finish it., context: Half is done., data: {n: 3}}
"""
CHAT = "name: one\nsteps: [{id: s, action: group-chat, task: Name a ship., agents: [ann, bob, cid], speaker: round_robin}]"


def engine_of(tmp_path: Path, text: str, *turns: Turn | Call, **options: Any) -> tuple[Engine, Scripted]:
    script, folder = Scripted(*turns, chunk=0), tmp_path / "agents"
    agent(folder, "ann", description="Counts ships.", inputs={"topic": {"required": True}}, outputs={"text": {}})
    agent(folder, "bob", description="Names ships.", outputs={"text": {}})
    agent(folder, "cid", description="Sinks ships.")
    return engine_for(tmp_path, text, model=script, agents=[folder], **options), script


@pytest.mark.parametrize(
    ("said", "output"),
    [
        ("bob", {"agent": "bob", "is_fallback": False}),
        ("I would take `bob`, not ann.", {"agent": "bob", "is_fallback": False}),
        ("bobby", {"agent": "ann", "is_fallback": True}),
    ],
)
async def test_a_model_chooses_an_agent_and_else_it_is_the_first(tmp_path: Path, said: str, output: dict[str, object]) -> None:
    engine, script = engine_of(tmp_path, ROUTE, say(said, expect="- bob: Names ships."))
    async with engine:
        run = await engine.workflows.run("one")
    script.assert_done()
    assert (run.status, run.steps["s"].output) == ("success", output)
    assert "Count the ships." in prompt(script.requests[0])


async def test_an_agent_takes_over_and_is_told_only_what_is_handed_to_it(tmp_path: Path) -> None:
    engine, script = engine_of(tmp_path, HANDOFF, say('{"text": "Done."}'))
    async with engine:
        run = await engine.workflows.run("one")
        step = (await engine.attach(run.steps["s"].run_id)).run
    assert run.steps["s"].output == {"text": "Done."}
    assert (step.spec.agent, [charter.agent for charter in step.spec.charters]) == ("bob", ["bob"])
    (message,) = script.requests[0].items
    ledger = '{"source":"ann","target":"bob","objective":"Finish it.","context":"Half is done.","data":{"n":3}}'
    assert getattr(message, "text", "").endswith(ledger)


async def test_agents_talk_in_turn_until_one_ends_it(tmp_path: Path) -> None:
    engine, script = engine_of(tmp_path, CHAT, say("Argo."), say("Why?"), say("It sank."), say("Argo it is. TERMINATE"))
    async with engine:
        run = await engine.workflows.run("one")
        first = derive_run_id(run.id, "s", 1)
        spoke = (await engine.attach(first)).run.spec.agent, (await engine.attach(derive_next_id(first))).run.spec.agent
    script.assert_done()
    said = [("ann", "Argo."), ("bob", "Why?"), ("cid", "It sank."), ("ann", "Argo it is.")]
    assert run.steps["s"].output == {
        "messages": [{"agent": name, "text": text} for name, text in said],
        "rounds": 4,
        "is_finished": True,
        "text": "Argo it is.",
    }
    assert spoke == ("ann", "bob")
    assert "ann: Argo.\n\nbob: Why?" in prompt(script.requests[2])


@pytest.mark.parametrize(
    ("speaker", "turns", "spoke"),
    [
        ("mention", ["Ask @cid.", "I? @nobody", "@bob?"], ["ann", "cid", "ann"]),
        ("auto", ["cid", "One.", "nobody knows", "Two.", "bob", "Three."], ["cid", "ann", "bob"]),
        ("random", ["One.", "Two.", "Three."], None),
    ],
)
async def test_who_speaks_next_is_named_chosen_or_drawn(
    tmp_path: Path, speaker: str, turns: list[str], spoke: list[str] | None
) -> None:
    text = CHAT.replace("round_robin", f"{speaker}, max_rounds: 3, history: 1")
    engine, script = engine_of(tmp_path, text, *[say(each) for each in turns])
    async with engine:
        run = await engine.workflows.run("one")
    script.assert_done()
    output = run.steps["s"].output
    assert (output["rounds"], output["is_finished"]) == (3, False)
    assert spoke is None or [each["agent"] for each in output["messages"]] == spoke
    assert output["messages"][0]["text"] not in prompt(script.requests[-1])


async def test_an_agent_that_is_named_twice_by_expressions_has_one_place_in_a_talk(tmp_path: Path) -> None:
    agents = """["{{ 'ann' }}", "{{ 'a' + 'nn' }}", bob]"""
    text = CHAT.replace("[ann, bob, cid]", agents).replace("round_robin", "round_robin, max_rounds: 3")
    engine, script = engine_of(tmp_path, text, say("One."), say("Two."), say("Three."))
    async with engine:
        run = await engine.workflows.run("one")
    script.assert_done()
    assert [each["agent"] for each in run.steps["s"].output["messages"]] == ["ann", "bob", "ann"]


async def test_a_talk_goes_on_after_a_crash_with_the_round_that_was_under_way(tmp_path: Path) -> None:
    database = tmp_path / "runs.db"
    engine, script = engine_of(tmp_path, CHAT, say("Argo."), stall(), database=database)
    async with engine:
        handle = await engine.workflows.start("one")
        await until(lambda: len(script.requests) == 2)
    engine, script = engine_of(
        tmp_path, CHAT, say("Why?", expect="ann: Argo."), say("TERMINATE", expect="bob: Why?"), database=database
    )
    async with engine:
        run = await (await engine.workflows.resume(handle.run.id)).wait()
    script.assert_done()
    assert [each["agent"] for each in run.steps["s"].output["messages"]] == ["ann", "bob", "cid"]


async def test_a_talk_in_which_too_much_is_said_has_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent_steps, "MOST_SAID", 20)
    engine, script = engine_of(tmp_path, CHAT, say("Argo is a name."), say("It sank."), say("unasked"))
    async with engine:
        run = await engine.workflows.run("one")
    assert (run.status, "20 characters were said" in failure(run, "s")) == ("failed", True)
    assert len(script.requests) == 2


async def test_a_cancel_stops_the_round_that_is_under_way_and_no_other_begins(tmp_path: Path) -> None:
    engine, script = engine_of(tmp_path, CHAT, say("Argo."), stall(), say("unasked"))
    async with engine:
        handle = await engine.workflows.start("one")
        await until(lambda: len(script.requests) == 2)
        run = await engine.workflows.cancel(handle.run.id)
        second = derive_next_id(derive_run_id(run.id, "s", 1))
        assert (run.status, (await engine.attach(second)).run.status) == ("cancelled", "cancelled")
        assert len(script.requests) == 2


async def test_a_talk_is_within_the_budget_of_the_server(tmp_path: Path) -> None:
    shared = Plan(replace(LEVELS[3], limits=replace(LEVELS[3].limits, max_iterations=2)), "tenant", share=1.0)
    engine, script = engine_of(tmp_path, CHAT, say("One."), say("Two."), say("unasked"), budget=shared)
    async with engine:
        run = await engine.workflows.run("one")
    assert run.status == "failed"
    assert len(script.requests) == 2


@pytest.mark.parametrize(("text", "step"), [(ROUTE, "ann, bob"), (CHAT, "ann, bob, cid"), (HANDOFF, "agent: bob")])
async def test_an_agent_that_is_not_there_fails_the_step_and_the_dry_run(tmp_path: Path, text: str, step: str) -> None:
    engine, script = engine_of(tmp_path, text.replace(step, step.replace("bob", "dan")), say("unasked"))
    async with engine:
        run = await engine.workflows.run("one")
        dry = await engine.workflows.run("one", dry_run=True)
    assert failure(run, "s") == "there is no agent `dan`; known: `ann`, `bob`, `cid`"
    assert dry.status == "failed"
    assert script.requests == []


@pytest.mark.parametrize(
    "step",
    [
        "{id: s, action: route, task: x, agents: []}",
        "{id: s, action: route, task: x, agents: [ann, ann]}",
        "{id: s, action: group-chat, task: x, agents: [ann], speaker: loudest}",
        "{id: s, action: execute-code, code: x, inputs: {class: 1}}",
        "{id: s, action: handoff, agent: bob}",
    ],
)
def test_a_step_that_cannot_be_carried_out_is_refused_when_it_is_read(step: str) -> None:
    with pytest.raises(InvalidRequest):
        defined(f"name: one\nsteps: [{step}]")


async def test_code_runs_with_its_inputs_as_variables(tmp_path: Path) -> None:
    text = """
name: one
inputs: {word: {default: "x'); import os #"}}
steps:
  - {id: s, action: execute-code, inputs: {word: "{{ inputs.word }}", n: 2}, code: "print(word)\\n[len(word), n]"}
  - {id: t, action: execute-code, code: "raise ValueError('bad luck')", depends_on: [s]}
"""
    engine, _ = engine_of(tmp_path, text, builtins=["code_interpreter"])
    async with engine:
        run = await engine.workflows.run("one")
    assert run.steps["s"].output["value"] == [16, 2]
    assert "x'); import os #" in run.steps["s"].output["text"]
    assert "bad luck" in failure(run, "t")
