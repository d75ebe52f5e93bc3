"""What observation, tracing and enforcement stand on: a sink hears everything, a policy is asked about every call."""

import pytest

from mainspring import Engine, tool
from mainspring.core.events import Event, RunEnded, ToolEnded, ToolStarted, TurnEnded, TurnStarted
from mainspring.core.run import Call, Run
from mainspring.ports import Allow, Deny, Verdict
from mainspring.providers.scripted import Scripted, call, calls, say


@tool(effects=("read",))
def look(at: str) -> str:
    """Looks at something."""
    return f"nothing at {at}"


@tool(effects=("write",))
def write(text: str) -> str:
    """Writes something."""
    return "written"


class Observer:
    """A sink that keeps what it is told, as observations and traces do."""

    def __init__(self) -> None:
        self.told: list[tuple[int, Event]] = []

    async def __call__(self, run: Run, event: Event) -> None:
        self.told.append((run.turns, event))

    def turns_of(self, *kinds: type) -> list[int]:
        return [turn for turn, event in self.told if isinstance(event, kinds)]


def script() -> Scripted:
    return Scripted(calls(call("look", at="a"), call("look", at="b")), call("write", text="c"), say("Done."))


@pytest.mark.requirement("C-T17")
async def test_ct17_an_observer_hears_of_every_model_response_and_every_tool_call() -> None:
    observer = Observer()
    async with Engine(script(), tools=[look, write], sinks=[observer]) as engine:
        run = await engine.run("Go.")
    assert observer.turns_of(TurnEnded) == [1, 2, 3]
    assert observer.turns_of(ToolEnded) == [1, 1, 2]
    assert run.status == "completed"


@pytest.mark.requirement("C-T18")
async def test_ct18_the_log_holds_a_step_per_turn_an_action_per_call_and_one_end() -> None:
    observer = Observer()
    async with Engine(script(), tools=[look, write], sinks=[observer]) as engine:
        await engine.run("Go.")
    steps = dict.fromkeys(observer.turns_of(TurnStarted), 0)
    for turn in observer.turns_of(ToolStarted):
        steps[turn] += 1
    assert steps == {1: 2, 2: 1, 3: 0}
    assert isinstance(observer.told[-1][1], RunEnded)


class Enforcer:
    """A policy that counts what it is asked about and forbids writing."""

    name = "enforcer"

    def __init__(self) -> None:
        self.asked: list[tuple[str, str]] = []

    async def judge(self, call: Call, run: Run) -> Verdict:
        definition = run.spec.tool(call.item.name)
        assert definition is not None
        self.asked.append((call.item.name, call.item.arguments))
        return Deny("writing is not allowed here") if "write" in definition.effects else Allow()


@pytest.mark.requirement("C-T19")
async def test_ct19_an_enforcer_is_asked_about_each_call_by_what_its_tool_does() -> None:
    enforcer = Enforcer()
    async with Engine(script(), tools=[look, write], policies=[enforcer]) as engine:
        run = await engine.run("Go.")
    assert enforcer.asked == [("look", '{"at":"a"}'), ("look", '{"at":"b"}'), ("write", '{"text":"c"}')]
    assert "writing is not allowed here" in str(run.output)
