"""A model that is asked for a summary and gives none: what is old is left out instead, if it may be."""

from typing import Any

import pytest
from tests.loop.world import Story, order, says, used

from mainspring.core.actions import CallModel, Compact, Finish
from mainspring.core.decide import next_action
from mainspring.core.errors import BadOutput
from mainspring.core.events import Compacted, ErrorInfo, Reason, TurnAborted, TurnStarted
from mainspring.core.items import user
from mainspring.core.run import history_after
from mainspring.core.spec import RunSpec

NONE = ErrorInfo(BadOutput.code, "no summary")


def long(spec: RunSpec) -> Story:
    """A story that continues a long one."""
    before = Story(order())
    before.play(says("many words " * 200))
    return Story(spec, history_after(before.run))


def spec(truncation: str = "auto", **changes: Any) -> RunSpec:
    return order(id="run_2", input=(user("more"),), truncation=truncation, compact_threshold=100, **changes)


def test_a_run_that_may_leave_out_what_is_old_goes_on_without_a_summary() -> None:
    story = long(spec())
    assert isinstance(next_action(story.run), Compact)
    run = story.apply(Compacted(usage=used(10, 2), error=NONE))
    assert (run.status, run.failure, run.usage, run.sums_up) == ("in_progress", None, used(10, 2), False)
    assert next_action(run) == CallModel(), "no other summary is asked for"
    story.play(says("done"))
    assert (story.end, story.run.usage) == (("completed", Reason.FINAL_ANSWER), used(10, 2))


def test_what_was_used_is_estimated_if_nobody_says() -> None:
    story, cut = long(spec()), long(spec())
    run = story.apply(Compacted(error=NONE))
    assert run.lost == cut.apply(TurnStarted(), TurnAborted()).lost
    assert (run.lost.input_tokens > 0, run.usage) == (True, used(0, 0))


def test_usage_that_was_told_is_not_estimated_and_adds_up() -> None:
    run = long(spec()).apply(Compacted(usage=used(10, 2), error=NONE), Compacted(usage=used(1, 1), error=NONE))
    assert (run.usage, run.lost) == (used(11, 3), used(0, 0))


@pytest.mark.parametrize("changes", [{"truncation": "disabled"}, {"goal": "compaction"}])
def test_a_run_that_needs_its_summary_fails_without_one(changes: dict[str, str]) -> None:
    story = long(spec(**changes))
    run = story.apply(Compacted(usage=used(10, 2), error=NONE))
    assert (run.failure, run.sums_up) == (NONE, True)
    assert next_action(run) == Finish("failed", Reason.PROVIDER_ERROR, NONE)


def test_other_failures_fail_the_run() -> None:
    error = ErrorInfo("provider_unavailable", "it broke")
    run = long(spec()).apply(Compacted(error=error))
    assert (run.failure, run.sums_up) == (error, True)
