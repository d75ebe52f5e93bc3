"""Events: the log on disk is the log that happened."""

from typing import get_args

import pytest

from mainspring.core.errors import InvalidRequest, RateLimited
from mainspring.core.events import (
    Annotated,
    ArgumentsDelta,
    CallJudged,
    Compacted,
    ErrorInfo,
    Event,
    ItemDone,
    ItemStarted,
    Nudged,
    Reason,
    ReasoningDelta,
    Recorded,
    RefusalDelta,
    RunEnded,
    RunResumed,
    RunStarted,
    TextDelta,
    ToolEnded,
    ToolProgress,
    ToolStarted,
    ToolWithheld,
    TurnAborted,
    TurnEnded,
    TurnStarted,
)
from mainspring.core.items import FunctionCall, InputText, Message, OutputText, Unknown, Usage, user
from mainspring.core.spec import RunSpec, ToolChoice, spec_for
from mainspring.core.stored_log import decode_log, encode_log

ODD = Unknown({"type": "hologram", "id": "h", "parts": [{"type": "deeper", "x": None}]})
SPEC = spec_for(
    "iterative",
    id="run_1",
    model="m",
    input=(user("go"), ODD, Message("user", (InputText("a"), ODD))),
    tools=(Unknown({"type": "web_search"}),),
    tool_choice=ToolChoice("required", allowed=("a", "b")),
    metadata={"k": "v"},
    text={"format": {"type": "json_schema", "schema": {"type": "object"}}},
)
EVENTS: list[Event] = [
    RunStarted(SPEC),
    RunResumed(),
    TurnStarted(),
    ItemStarted(ODD),
    TextDelta("m", "a", 1),
    RefusalDelta("m", "a", 1),
    ReasoningDelta("m", "a", 1, summary=True),
    ArgumentsDelta("f", "{"),
    Annotated("m", {"type": "url_citation"}, 1),
    ItemDone(Message("assistant", (OutputText("a"), ODD), id="m")),
    ItemDone(FunctionCall("c", "look", "{}", id="f")),
    TurnEnded("length", Usage(1, 2, 3, 4, 5), ErrorInfo("a", "b", retryable=True)),
    TurnAborted(),
    CallJudged("c", "deny", "budget", "too dear", Reason.BUDGET),
    ToolStarted("c"),
    ToolProgress("c", "half"),
    ToolEnded("c", "text", is_error=True, seconds=1.5),
    ToolEnded("c", (InputText("a"), ODD)),
    Nudged("close", "wrap up", Reason.MAX_TURNS),
    ToolWithheld("look", "again and again"),
    Compacted(ODD, Usage(1, 2)),
    Compacted(error=ErrorInfo("a", "b")),
    RunEnded("failed", Reason.PROVIDER_ERROR, ErrorInfo("a", "b")),
]


def test_every_kind_of_event_is_here() -> None:
    assert {type(event) for event in EVENTS} == set(get_args(Event))


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: type(event).__name__)
def test_event_survives_storage(event: Event) -> None:
    record = Recorded(3, 1000.25, event)
    assert decode_log(encode_log([record])) == [record]


def test_log_survives_storage_as_a_whole() -> None:
    log = [Recorded(seq, 1000.0 + seq, event) for seq, event in enumerate(EVENTS)]
    assert decode_log(encode_log(log)) == log


def test_spec_of_a_log_keeps_what_it_does_not_know() -> None:
    (record,) = decode_log(encode_log([Recorded(0, 0.0, RunStarted(SPEC))]))
    assert isinstance(record.event, RunStarted)
    spec: RunSpec = record.event.spec
    assert spec.input[1] == ODD
    assert spec.tools == (Unknown({"type": "web_search"}),)


def test_error_becomes_data() -> None:
    assert ErrorInfo.of(RateLimited("slow down", retry_after=3.0)) == ErrorInfo(
        "rate_limit_exceeded", "slow down", retryable=True, retry_after=3.0
    )
    assert ErrorInfo.of(InvalidRequest("no", param="x")) == ErrorInfo("invalid_request_error", "no", retryable=False)
