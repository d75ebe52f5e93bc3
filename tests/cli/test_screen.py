"""What the screen makes of events that no script produces: items at the same time, items without deltas, unknown ones."""

import pytest
from inline_snapshot import snapshot

from mainspring.cli.console import TextFlow, format_call
from mainspring.cli.screen import Screen
from mainspring.core.events import (
    CallJudged,
    Event,
    ItemDone,
    ItemStarted,
    ReasoningDelta,
    Recorded,
    RefusalDelta,
    RunResumed,
    TextDelta,
    ToolEnded,
    ToolProgress,
    ToolStarted,
    TurnAborted,
    TurnEnded,
    TurnStarted,
)
from mainspring.core.items import FunctionCall, InputImage, Message, Reasoning, ReasoningText, Refusal, Unknown, assistant

CALL = FunctionCall("call_1", "deploy", '{"to": "production"}', id="fc_1")


def drawn(capsys: pytest.CaptureFixture[str], *events: Event) -> str:
    Screen().draw([Recorded(seq, 0.0, event) for seq, event in enumerate(events)])
    return capsys.readouterr().out


def test_items_said_at_the_same_time_are_shown_one_after_the_other(capsys: pytest.CaptureFixture[str]) -> None:
    shown = drawn(
        capsys,
        ReasoningDelta("rs_1", "One "), TextDelta("msg_1", "Three "), ItemDone(CALL), ReasoningDelta("rs_1", "two."),
        ItemDone(Reasoning(id="rs_1", content=(ReasoningText("One two."),))), TextDelta("msg_1", "four."), TurnEnded(),
    )  # fmt: skip
    assert shown == snapshot("""\
┊ One two.
  Three four.
→ deploy(to="production")
""")


def test_items_without_deltas_are_shown_whole(capsys: pytest.CaptureFixture[str]) -> None:
    shown = drawn(
        capsys,
        ItemDone(Reasoning(id="rs_1", content=(ReasoningText("Hm."),))), ItemDone(assistant("Hello.", id="msg_1")),
        ItemDone(Message("assistant", (Refusal("No."),), id="msg_2")),
        ItemDone(Unknown({"type": "web_search_call", "id": "ws_1"})),
    )  # fmt: skip
    assert shown == snapshot("""\
┊ Hm.
  Hello.
! No.
  (web_search_call)
""")


def test_a_turn_that_is_cut_off_is_counted_again(capsys: pytest.CaptureFixture[str]) -> None:
    shown = drawn(capsys, TurnStarted(), TextDelta("msg_1", "He"), RunResumed(), TurnAborted(), TurnStarted())
    assert shown == snapshot("""\

── turn 1 ──────────────────────────────────────────────────
  He

… taken up again
✗ the turn was cut off

── turn 1 ──────────────────────────────────────────────────
""")


def test_calls_that_others_must_perform_or_allow_are_marked(capsys: pytest.CaptureFixture[str]) -> None:
    shown = drawn(
        capsys,
        ItemDone(CALL), CallJudged("call_1", "ask", "approval", "Really deploy?"), CallJudged("call_1", "client", "hand_off"),
        CallJudged("call_1", "deny", "approval", "A person refused this call."),
        CallJudged("call_1", "ask", "elicitation", "MCP server `a` asks: \u202e?yas \x1b[2J"),
    )  # fmt: skip
    assert shown == snapshot("""\
→ deploy(to="production")
? deploy waits for a person to agree: Really deploy?
… deploy is left to the caller
✗ deploy: A person refused this call.
? deploy waits for a person to agree: MCP server `a` asks: \\u202e?yas \\x1b[2J
""")


def test_tools_report_on_the_way_and_may_return_no_text(capsys: pytest.CaptureFixture[str]) -> None:
    shown = drawn(
        capsys,
        ItemStarted(CALL), ItemDone(CALL), ToolStarted("call_1"), ToolProgress("call_1", "half\nway"),
        ToolEnded("call_1", "", seconds=2.5), ToolEnded("call_2", (InputImage("https://example.org/x.png"),)),
        RefusalDelta("msg_1", "No."), TurnEnded(),
    )  # fmt: skip
    assert shown == snapshot("""\
→ deploy(to="production")
  deploy: half way
✓ (nothing)  2.5 s
✓ [1 image]  0 ms
! No.
""")


def test_arguments_are_shown_by_name_or_as_they_are() -> None:
    assert format_call("f", '{"a": [1, null], "b": "x"}', 80) == 'f(a=[1,null], b="x")'
    assert format_call("f", "", 80) == "f()"
    assert format_call("f", '{"a": ', 80) == 'f({"a":)'
    assert format_call("f", "[" * 100_000, 20) == f"f({'[' * 16}…)"


@pytest.mark.parametrize("size", [1, 2, 7, 1000])
def test_text_breaks_at_the_same_places_however_it_arrives(size: int) -> None:
    text = "Ein Text, der\n\n  eingerückt ist.\tSpalte 日本語の文章です。 Donaudampfschifffahrtsgesellschaft! "
    flow = TextFlow("┊ ", 20)
    written = "".join([flow.add(text[at : at + size]) for at in range(0, len(text), size)]) + flow.end()
    assert written == snapshot("""\
┊ Ein Text, der

┊   eingerückt ist.
┊ Spalte 日本語の文
┊ 章です。
┊ Donaudampfschifffahrtsgesellschaft!
""")
