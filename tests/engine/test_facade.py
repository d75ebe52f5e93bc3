"""The public engine: typed options, and the ways to use it without an event loop."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, ClassVar, get_type_hints

import pytest
from anyio import sleep_forever
from msgspec.structs import replace

from mainspring import Engine, tool
from mainspring.app.run_options import RunOptions
from mainspring.core.errors import DelegateToClient, Interrupted, InvalidRequest, OrderStepTimeout, RunFailed
from mainspring.core.items import FunctionCallOutput, Json, ToolDefinition, ToolKind, text_of
from mainspring.core.spec import Completion, Limits, RunSpec, Sampling, Window
from mainspring.engine.engine import Engine as CoreEngine
from mainspring.features.budgets.budget import LEVELS
from mainspring.features.budgets.plan import Plan
from mainspring.parts import Host, PartContents
from mainspring.ports import CallContext, EndedRun, OrderContext, OrderStep, RunObserver, ToolCall, ToolResult
from mainspring.providers.script import Call
from mainspring.providers.scripted import Scripted, call, calls, fail, say
from mainspring.storage.memory_runs import MemoryStore
from mainspring.tools.contract import ToolContext
from mainspring.tools.contract import ToolResult as ToolOutcome
from mainspring.tools.entries import ToolEntry
from mainspring.tools.registry import Registry


async def test_a_misspelt_option_gets_a_did_you_mean() -> None:
    async with Engine(Scripted(say("unasked"))) as engine:
        with pytest.raises(InvalidRequest, match="did you mean `temperature`") as refused:
            await engine.run("Hello", temprature=0.2)  # type: ignore[call-arg]
        assert refused.value.param == "temprature"
        assert (await engine.store.list()).runs == ()


def test_every_option_is_one_that_an_order_takes() -> None:
    parts = (RunSpec, Limits, Completion, Sampling, Window)
    assert set(get_type_hints(RunOptions)) - {name for part in parts for name in part.__struct_fields__} == set()


def test_a_program_without_an_event_loop_runs_and_streams(tmp_path: Path) -> None:
    with Engine(Scripted(say("Hello."), say("Again."), chunk=2), database=tmp_path / "runs.db") as engine:
        first = engine.run_sync("Hi")
        assert (first.text, first.status) == ("Hello.", "completed")
        assert "".join(engine.stream_sync("And?", previous=first.spec.id)) == "Again."


def test_a_single_blocking_run_opens_and_closes_the_engine_itself() -> None:
    assert Engine(Scripted(say("Hello."))).run_sync("Hi").text == "Hello."


def test_a_blocking_stream_of_a_run_that_fails_raises() -> None:
    with pytest.raises(RunFailed):
        list(Engine(Scripted(fail("server_error"))).stream_sync("Hi"))


async def test_parts_add_steps_and_observers_and_one_that_fails_harms_nobody(caplog: pytest.LogCaptureFixture) -> None:
    ended: list[str] = []

    class Labels(OrderStep):
        name = "labels"

        async def prepare(self, order: RunSpec, context: OrderContext) -> RunSpec:
            return replace(order, metadata={**order.metadata, "label": "x"})

    class Breaks(RunObserver):
        name = "breaks"

        def run_ended(self, ended: EndedRun) -> None:
            raise ZeroDivisionError

    class Counts(RunObserver):
        name = "counts"

        def run_ended(self, told: EndedRun) -> None:
            ended.append(told.run.spec.metadata["label"])

    part = PartContents(steps=(Labels(),), observers=(Breaks(), Counts()))
    async with Engine(Scripted(say("Hello.")), parts=[part]) as engine:
        assert (await engine.run("Hi")).status == "completed"
    assert ended == ["x"]
    assert [record.getMessage().split()[1] for record in caplog.records if record.exc_info] == ["breaks"]


async def test_the_default_model_keeps_its_label_however_many_others_there_are() -> None:
    others: list[Any] = [say("x") for _ in range(101)]
    async with Engine(Scripted(*others, say("y")), default_model="ours") as engine:
        for number in range(101):
            await engine.run("Hi", model=f"theirs-{number}")
        await engine.run("Hi")
        told = engine.metrics.text(live=0, is_store_up=True)
    assert 'mainspring_turns_total{model="ours",status="completed"} 1' in told
    assert 'model="_other"' in told


async def test_an_id_can_be_chosen_and_a_slip_of_previous_is_recognised() -> None:
    async with Engine(Scripted(say("Hi."))) as engine:
        assert (await engine.run("Hi", id="resp_mine")).spec.id == "resp_mine"
        with pytest.raises(InvalidRequest, match="did you mean `previous`"):
            await engine.run("Hi", previus="resp_mine")  # type: ignore[call-arg]


def test_single_blocking_runs_can_follow_each_other_in_memory() -> None:
    engine = Engine(Scripted(say("One."), say("Two.")))
    first = engine.run_sync("Hi")
    assert (first.status, engine.run_sync("And?", previous=first.spec.id).text) == ("completed", "Two.")


async def test_a_blocking_run_of_an_engine_that_is_open_in_a_loop_is_refused_and_harms_nothing() -> None:
    async with Engine(Scripted(say("Hi."))) as engine:
        with pytest.raises(Interrupted, match="await `run`"):
            engine.run_sync("x")
        with pytest.raises(Interrupted, match="open already"):
            await engine.__aenter__()
        assert (await engine.run("Hi")).text == "Hi."


async def test_steps_of_a_part_that_fail_to_clean_up_hold_nothing_back(caplog: pytest.LogCaptureFixture) -> None:
    class Clumsy(OrderStep):
        name = "clumsy"

        async def prepare(self, order: RunSpec, context: OrderContext) -> RunSpec:
            return order

        async def withdraw(self, order: RunSpec) -> None:
            raise RuntimeError("no")

        def release(self, run_id: str) -> None:
            raise SystemExit(3)

    budget = Plan(
        replace(LEVELS[3], budget_id="all", limits=replace(LEVELS[3].limits, max_tool_calls=4)), per="tenant", share=1.0
    )
    async with Engine(Scripted(say("Hi.")), budget=budget, parts=[PartContents(steps=(Clumsy(),))]) as engine:
        with pytest.raises(InvalidRequest):
            await engine.run("x", previous="resp_unknown")
        assert (await engine.run("x")).status == "completed"


async def test_what_is_never_awaited_is_refused_when_the_engine_is_made() -> None:
    class Forgets(RunObserver):
        name = "forgets"

        async def run_ended(self, ended: EndedRun) -> None:  # type: ignore[override]
            raise AssertionError

    class Lingers(OrderStep):
        name = "lingers"

        async def prepare(self, order: RunSpec, context: OrderContext) -> RunSpec:
            return order

        async def release(self, run_id: str) -> None:  # type: ignore[override]
            raise AssertionError

    for part, told in (
        (PartContents(observers=(Forgets(),)), "`run_ended` of `forgets`"),
        (PartContents(steps=(Lingers(),)), "`release` of `lingers`"),
    ):
        with pytest.raises(InvalidRequest, match=told):
            Engine(Scripted(say("unasked")), parts=[part])


async def test_an_order_step_that_hangs_is_given_up_and_named() -> None:
    released: list[str] = []

    class Hangs(OrderStep):
        name = "hangs"

        async def prepare(self, order: RunSpec, context: OrderContext) -> RunSpec:
            await sleep_forever()
            raise AssertionError

        def release(self, run_id: str) -> None:
            released.append(run_id)

    core = CoreEngine(Scripted(say("unasked")), MemoryStore(), steps=[Hangs()], step_seconds=0.01)
    async with core:
        with pytest.raises(OrderStepTimeout, match="`hangs`") as refused:
            await core.start(core.order("Hi", id="resp_1"))
        assert (refused.value.status, refused.value.code, core.live) == (503, "order_step_timeout", 0)
    assert released == ["resp_1"]


async def test_a_part_whose_lifespan_fails_is_named() -> None:
    @asynccontextmanager
    async def lifespan(host: Host) -> AsyncIterator[None]:
        if host.folder:
            raise ConnectionRefusedError("nobody there")
        yield

    engine = Engine(Scripted(say("unasked")), parts=[PartContents(name="greeter", lifespan=lifespan)])
    with pytest.raises(InvalidRequest, match="the part `greeter` cannot start: ConnectionRefusedError: nobody there"):
        async with engine:
            raise AssertionError


class Locksmith:
    """Opens doors, but for one that only the client has the key of."""

    kind: ToolKind = "sandbox"

    def can_execute(self, tool: ToolDefinition) -> bool:
        return tool.kind == self.kind

    async def execute(self, call: ToolCall, context: CallContext) -> ToolResult:
        if call.arguments == '{"door":"safe"}':
            raise DelegateToClient("only the client has the key")
        return ToolResult(call.id, "open")


@pytest.mark.requirement("A1", "A11", "A13", "A24", "S3")
async def test_a_programs_own_executor_performs_what_it_can_and_hands_over_what_it_cannot() -> None:
    unlock = ToolDefinition("unlock", kind="sandbox")
    turns = (call("unlock", door="shed"), say("Open."), calls(call("unlock", door="shed"), call("unlock", door="safe")))
    async with Engine(Scripted(*turns), executors=[Locksmith()]) as engine:
        done = await engine.run("Open the shed.", tools=[unlock])
        handed = await engine.run("Open both.", tools=[unlock])
    assert (done.status, done.text) == ("completed", "Open.")
    assert [text_of(item.output) for item in handed.output if isinstance(item, FunctionCallOutput)] == ["open"]
    assert (handed.status, handed.reason) == ("requires_action", "client_action")
    async with Engine(Scripted(call("unlock", door="shed"), say("Nobody can."))) as engine:
        assert (await engine.run("Open the shed.", tools=[unlock])).text == "Nobody can."


@pytest.mark.requirement("S14")
async def test_the_wording_of_the_question_is_the_programs() -> None:
    script = Scripted(say("Done."), say("Yes.", expect="Swear it."))
    async with Engine(script, preset="iterative", tools=[noop]) as engine:
        assert (await engine.run("Work.", confirm="Swear it.")).text == "Yes."


def noop() -> str:
    """Does nothing."""
    return "nothing"


class Oracle:
    """A tool with nothing but what every tool has; it answers with what it is told of its surroundings."""

    name = "oracle"
    description = "Answers."

    async def execute(self, params: Json, context: ToolContext) -> ToolOutcome:
        lists = (context.user_scopes, context.command_allowlist, context.path_allowlist, context.domain_allowlist)
        return ToolOutcome.ok(f"{lists} {context.working_dir}")


class Weather(Oracle):
    """One that declares what it takes."""

    name = "weather"
    parameters_schema: ClassVar[Json] = {"type": "object", "properties": {"town": {"type": "string"}}}


class Forecast(Weather):
    name = "forecast"


@pytest.mark.requirement("C13", "C15", "C16")
async def test_a_programs_own_tools_are_offered_with_the_schema_in_force_and_told_their_context(tmp_path: Path) -> None:
    context = ToolContext(("tools:execute",), ("ls",), ("src",), ("example.org",), tmp_path)
    registry = Registry([Oracle(), Weather()], context=context)
    other: Json = {"type": "object", "properties": {"city": {"enum": ["Paris"]}}, "required": ["city"]}
    registry.register(Forecast(), ToolEntry(name="forecast", schema=other))
    turn = calls(call("oracle"), call("weather", town="Rome"), call("forecast", city="Rome"), call("forecast", city="Paris"))
    script = Scripted(turn, say("Done."))
    async with Engine(script, tools=registry) as engine:
        run = await engine.run("Go.")
    declared = {tool.name: tool.parameters for tool in script.requests[0].tools if isinstance(tool, ToolDefinition)}
    assert declared == {"oracle": None, "weather": Weather.parameters_schema, "forecast": other}
    told = [text_of(item.output) for item in run.output if isinstance(item, FunctionCallOutput)]
    assert told[0] == f"(('tools:execute',), ('ls',), ('src',), ('example.org',)) {tmp_path}"
    assert ["city" in text for text in told[1:]] == [False, True, False], told


@pytest.mark.parametrize(
    "arguments", ['{"x": [' + "[]," * 70_000 + "0]}", '{"x": "' + "x" * 5_000_000 + '"}'], ids=["values", "text"]
)
async def test_a_call_with_more_arguments_than_any_tool_takes_is_answered_and_not_made(arguments: str) -> None:
    made = []

    @tool
    def note(x: Any) -> str:
        """Notes."""
        made.append(x)
        return "noted"

    model = Scripted(calls(Call("note", arguments)), say("Done.", expect="send less at a time"), chunk=0)
    async with Engine(model, tools=[note]) as engine:
        assert (await engine.run("hi")).text == "Done."
    assert made == []
