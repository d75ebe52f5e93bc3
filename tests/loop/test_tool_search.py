"""Tools that the model sees once it has searched for them."""

from typing import Any

from msgspec import UNSET
from tests.loop.world import LOOK, Story, Turn, order, says

from mainspring.core.events import ToolEnded
from mainspring.core.items import FunctionCall, FunctionCallOutput, ToolDefinition

SEARCH = ToolDefinition("tool_search", kind="builtin", repeatable=True, effects=("read",), form="server_tool_search")
WEATHER = ToolDefinition("weather", "Tells the weather.", kind="mcp", deferred=True)
TIDES = ToolDefinition("tides", "Tells the tides.", kind="mcp", deferred=True)
TOOLS = (SEARCH, LOOK, WEATHER, TIDES)


class Searching(Story):
    """Its searches find what they look for, and other calls say that they have found something, too."""

    def result(self, call_id: str) -> ToolEnded:
        item = self.run.call(call_id).item
        return ToolEnded(call_id, f"searched: {item.arguments}", data={"loaded": [item.arguments]} if item.arguments else None)


def searches(number: int, wanted: str) -> Turn:
    call = FunctionCall(f"call_{number}", "tool_search", wanted, id=f"fc_{number}", form="server_tool_search")
    return Turn((call,))


def searching(**changes: Any) -> Searching:
    return Searching(order(tools=TOOLS, **changes))


def shown(story: Story) -> list[list[str]]:
    """The tools of each request."""
    return [[tool.name for tool in request.tools if isinstance(tool, ToolDefinition)] for request in story.requests]


def found(story: Story) -> list[object]:
    """What the searches of a run have declared, by their outputs."""
    return [item.tools for item in story.run.output if isinstance(item, FunctionCallOutput)]


def ended(story: Story) -> list[ToolEnded]:
    return [record.event for record in story.log if isinstance(record.event, ToolEnded)]


def declared(tool: ToolDefinition) -> object:
    told = {"type": "function", "name": tool.name, "description": tool.description}
    return {**told, "parameters": None, "strict": None, "defer_loading": True}


def test_what_searches_find_can_be_called_from_then_on() -> None:
    story = searching()
    story.play(searches(1, "weather"), searches(2, "tides"), says("done"))
    always = ["tool_search", "look"]
    assert shown(story) == [always, [*always, "weather"], [*always, "weather", "tides"]]
    assert story.run.loaded == ("weather", "tides")


def test_the_output_of_a_search_declares_what_it_has_found() -> None:
    story = searching()
    story.play(searches(1, "weather"), searches(2, "gone"), searches(3, ""), says("done"))
    assert found(story) == [(declared(WEATHER),), (), ()]


def test_only_searches_load_tools() -> None:
    story = searching()
    story.play(Turn((FunctionCall("call_1", "look", "weather", id="fc_1"),)), says("done"))
    assert shown(story)[1] == ["tool_search", "look"]
    assert (found(story), story.run.loaded) == ([UNSET], ())


def test_a_search_that_has_loaded_something_is_not_answered_from_what_is_known() -> None:
    story = searching(max_turns=None, max_errors_in_row=None)
    story.play(*[searches(number, "weather") for number in range(1, 5)])
    assert [event.outcome for event in ended(story)] == ["ok", "ok", "ok"]
    assert story.run.withheld == ("tool_search",)


def test_a_search_that_has_loaded_nothing_is_answered_from_what_is_known() -> None:
    story = searching(max_turns=None, max_errors_in_row=None)
    story.play(*[searches(number, "") for number in range(1, 5)])
    assert [event.outcome for event in ended(story)] == ["ok", "ok", "ok", "reused"]
