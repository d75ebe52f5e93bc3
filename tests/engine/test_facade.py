"""The public engine: typed options, and the ways to use it without an event loop."""

from pathlib import Path
from typing import Any, get_type_hints

import pytest
from msgspec.structs import replace

from mainspring import Engine
from mainspring.app.engine import RunOptions
from mainspring.core.errors import InvalidRequest, RunFailed
from mainspring.core.spec import RunSpec, spec_options
from mainspring.parts import PartContents
from mainspring.ports import EndedRun, OrderContext, OrderStep, RunObserver
from mainspring.providers.scripted import Scripted, fail, say


async def test_a_misspelt_option_gets_a_did_you_mean() -> None:
    async with Engine(Scripted(say("unasked"))) as engine:
        with pytest.raises(InvalidRequest, match="did you mean `temperature`") as refused:
            await engine.run("Hello", temprature=0.2)  # type: ignore[call-arg]
        assert refused.value.param == "temprature"
        assert (await engine.store.list()).runs == ()


def test_every_option_is_one_that_an_order_takes() -> None:
    assert set(get_type_hints(RunOptions)) - spec_options() == set()


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
