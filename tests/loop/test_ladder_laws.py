"""Laws of the ladder, with random models: one that goes round in circles comes to an end, one that does not is let alone."""

from typing import Any

from hypothesis import assume, given
from hypothesis import strategies as st
from tests.loop.test_ladder import CIRCLE, DONE, TOOLS, of, reused, withheld
from tests.loop.world import Made, Story, Turn, calls, order, says

from mainspring.core.actions import CallModel
from mainspring.core.decide import next_action
from mainspring.core.events import CallJudged, ToolEnded, ToolWithheld
from mainspring.core.items import FunctionCall
from mainspring.core.run import replay
from mainspring.core.spec import MAX_CYCLE

CALL = st.builds(
    Made,
    st.sampled_from(["look", "save", "ping", "read", "fetch", "files", "nonsense"]),
    st.sampled_from(["{}", '{"n":1}', '{"operation":"read"}', '{"operation":']),
)
ROUND = st.lists(st.lists(CALL, min_size=1, max_size=3), min_size=1, max_size=MAX_CYCLE)


def bound(length: int, repeats: int) -> int:
    """The most turns of a run with a cycle of that many turns, if every result is another one."""
    return length + 4 * (max(repeats - 1, length) + 2 * length) + 2


class Circling(Story):
    """A model that says the same turns again and again. `fresh` tools never give the same result twice."""

    def __init__(self, around: list[list[Made]], fresh: frozenset[str], number: bool, **changes: Any) -> None:
        limits = {"max_turns": None, "max_errors_in_row": None, "tools": TOOLS}
        super().__init__(order(**{**limits, **changes}))
        self.around, self.fresh, self.is_numbering = around, fresh, number

    def result(self, call_id: str) -> ToolEnded:
        name = self.run.call(call_id).item.name
        return ToolEnded(call_id, call_id if name in self.fresh else "ok")

    def next_turn(self) -> Turn:
        made = self.around[self.run.answered % len(self.around)]
        # One of several calls is another one in every turn.
        other = [Made("look", f'{{"other":{self.run.answered}}}')] if self.is_numbering and len(made) > 1 else []
        return calls(*made, *other)

    def go_round(self, most: int) -> None:
        while not self.run.has_ended:
            assert len(self.requests) <= most, "it goes on and on"
            action = next_action(self.run)
            closes = isinstance(action, CallModel) and self.run.closing is not None
            self.perform(action, [says("All I know.") if closes else self.next_turn()])


def makes_progress(made: list[Made], fresh: frozenset[str]) -> bool:
    """Whether most results of a turn are new ones, beside a call that is new, too."""
    return len(made) > 1 and 2 * sum(call.name not in fresh for call in made) <= len(made) + 1


@given(ROUND, st.frozensets(st.sampled_from([tool.name for tool in TOOLS])), st.booleans(), st.integers(1, 5))
def test_a_model_that_goes_round_in_circles_comes_to_an_end(
    around: list[list[Made]], fresh: frozenset[str], number: bool, repeats: int
) -> None:
    assume(not number or not any(makes_progress(made, fresh) for made in around))
    story = Circling(around, fresh, number, max_repeats=repeats)
    story.go_round(bound(len(around), repeats))
    assert story.end == CIRCLE
    assert story.run.text == "All I know."
    assert story.nudges[0] == "repeat", "it was told first"
    assert story.nudges[-1] == "close"
    assert story.nudges.count("close") == 1
    assert replay(story.log, story.history) == story.run


@given(ROUND, st.frozensets(st.sampled_from([tool.name for tool in TOOLS])), st.booleans(), st.integers(1, 5))
def test_what_is_given_back_is_the_last_result_of_that_call_and_nothing_is_run_that_is_withheld(
    around: list[list[Made]], fresh: frozenset[str], number: bool, repeats: int
) -> None:
    assume(not number or not any(makes_progress(made, fresh) for made in around))
    story = Circling(around, fresh, number, max_repeats=repeats)
    story.go_round(bound(len(around), repeats))
    made = {item.call_id: (item.name, item.arguments) for item in story.run.output if isinstance(item, FunctionCall)}
    last: dict[tuple[str, str], str] = {}
    for event in of(story, ToolEnded):
        if event.outcome == "reused":
            assert event.output == last[made[event.call_id]]
            assert made[event.call_id][0] not in fresh
        last[made[event.call_id]] = str(event.output)
    gone: set[str] = set()
    for record in story.log:
        if isinstance(record.event, ToolWithheld):
            gone.add(record.event.name)
        if isinstance(record.event, CallJudged) and record.event.verdict == "allow":
            assert made[record.event.call_id][0] not in gone


@given(st.lists(st.lists(CALL, max_size=3), max_size=30), st.integers(1, 5))
def test_calls_that_are_all_different_are_never_held_up(turns: list[list[Made]], repeats: int) -> None:
    story = Story(order(tools=TOOLS, max_turns=None, max_errors_in_row=None, max_repeats=repeats, confirm="sure?"))
    numbers = iter(range(1000))
    script = [[Made(call.name, f'{{"id":{next(numbers)}}}') for call in turn] for turn in turns]
    story.play(*[calls(*turn) for turn in script if turn], says("done"), says("done"))
    assert (story.nudges, reused(story), withheld(story), story.end) == (["confirm"], [], [], DONE)


def test_an_agent_that_looks_edits_and_tests_is_never_held_up() -> None:
    """The status stays the same, every edit is another one, and the tests tell something new."""
    story = Circling([[Made("look", "{}"), Made("ping", "{}")]], frozenset({"ping"}), number=True, max_repeats=3, max_turns=60)
    story.go_round(60)
    assert len(story.requests) == 60, "the limit on turns ended it, and nothing else"
    assert (reused(story), withheld(story), story.nudges.count("repeat")) == ([], [], 0)
