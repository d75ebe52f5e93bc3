"""Traces as spans: whose child a run is, which ids it has, and what is exported of it."""

import pytest
from tests.loop.world import order

from mainspring import Engine
from mainspring.core.events import Compacted, ErrorInfo, Event, Reason, Recorded, RunEnded, RunStarted, TurnEnded, TurnStarted
from mainspring.core.items import Usage
from mainspring.core.spec import RunSpec
from mainspring.engine.traceparent import clean_traceparent, derive_span_id, make_traceparent, parse_traceparent
from mainspring.features.traces.spans import Span, build_spans, derive_trace_hex
from mainspring.features.traces.trace_builder import build_trace
from mainspring.providers.scripted import Scripted, call, calls, say

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


def spans(spec: RunSpec, *, content: bool = False) -> tuple[str, list[Span]]:
    """The trace id and the spans of a run with a turn, a failed summary, and an end."""
    story: list[Event] = [
        RunStarted(spec),
        TurnStarted(),
        TurnEnded(usage=Usage(3, 2, reasoning_tokens=1)),
        Compacted(error=ErrorInfo("provider_unavailable", "down")),
        RunEnded("failed", Reason.PROVIDER_ERROR, ErrorInfo("provider_unavailable", "down")),
    ]
    trace = build_trace([Recorded(seq, 100.0 + seq, event) for seq, event in enumerate(story)])
    return derive_trace_hex(trace), list(build_spans(trace, "scripted", content=content))


@pytest.mark.parametrize(
    ("header", "is_sampled"),
    [
        (f"00-{TRACE}-{SPAN}-01", True),
        (f"00-{TRACE}-{SPAN}-00", False),
        (f" 00-{TRACE}-{SPAN}-03 ", True),
        (f"cc-{TRACE}-{SPAN}-01-what-the-future-brings", True),
    ],
)
def test_a_header_names_the_span_of_the_caller(header: str, is_sampled: bool) -> None:
    found = parse_traceparent(header)
    assert found is not None
    assert (found.trace_id, found.span_id, found.is_sampled) == (TRACE, SPAN, is_sampled)
    assert clean_traceparent(header) == header.strip()


@pytest.mark.parametrize(
    "header",
    [
        "",
        "nonsense",
        f"00-{TRACE}-{SPAN}",
        f"00-{TRACE}-{SPAN}-01-more",
        f"ff-{TRACE}-{SPAN}-01",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE[:-1]}-{SPAN}-01",
        f"00-{TRACE}-{SPAN}-0g",
        "x" * 10_000,
    ],
)
def test_a_header_that_is_none_is_not_kept(header: str) -> None:
    assert parse_traceparent(header) is None
    assert clean_traceparent(header) == ""


def test_ids_follow_from_the_run_so_that_every_export_of_it_is_the_same() -> None:
    assert spans(order(id="resp_1")) == spans(order(id="resp_1"))
    assert spans(order(id="resp_1"))[0] != spans(order(id="resp_2"))[0]
    trace_id, told = spans(order(id="resp_1", traceparent=f"00-{TRACE}-{SPAN}-01"))
    assert (trace_id, told[0].parent) == (TRACE, SPAN)


@pytest.mark.parametrize("header", ["", f"00-{TRACE}-{SPAN}-01"], ids=["alone", "called"])
def test_a_run_that_another_one_starts_is_inside_it_however_deep(header: str) -> None:
    first = order(id="resp_1", traceparent=header)
    second = order(id="resp_2", within="resp_1", traceparent=make_traceparent(first))
    third = order(id="resp_3", within="resp_2", traceparent=make_traceparent(second))
    told = [spans(spec) for spec in (first, second, third)]
    assert len({trace_id for trace_id, _ in told}) == 1
    assert [run[0].parent for _, run in told[1:]] == [derive_span_id("resp_1"), derive_span_id("resp_2")]


def test_a_caller_who_does_not_sample_is_handed_on() -> None:
    assert make_traceparent(order(traceparent=f"00-{TRACE}-{SPAN}-00")).endswith("-00")
    assert make_traceparent(order()).endswith("-01")


def test_turns_and_summaries_are_chats_and_their_errors_have_a_kind() -> None:
    _, (run, turn, summary) = spans(order(id="resp_1", agent="clerk"))
    assert (run.name, turn.name, summary.name) == ("invoke_agent clerk", "chat m", "chat m")
    assert (run.error, turn.error, summary.error) == ("provider_error", "", "provider_unavailable")
    assert turn.attributes["gen_ai.usage.reasoning.output_tokens"] == 1
    assert summary.attributes["mainspring.step.kind"] == "compaction"
    assert (summary.start, summary.end) == (102.0, 103.0)


def test_what_went_wrong_is_told_in_words_only_with_the_content() -> None:
    assert spans(order())[1][0].message == ""
    assert spans(order(), content=True)[1][0].message == "down"


async def test_a_request_keeps_its_place_in_the_log() -> None:
    async with Engine(Scripted(say("Hi."))) as engine:
        run = await engine.run("go", traceparent=f"00-{TRACE}-{SPAN}-01")
        trace = await engine.trace(run.spec.id)
    assert trace.metadata.traceparent == f"00-{TRACE}-{SPAN}-01"


async def test_a_name_that_the_model_made_up_is_in_no_span() -> None:
    async with Engine(Scripted(calls(call("tell_jane_doe")), say("Hi."))) as engine:
        trace = await engine.trace((await engine.run("go")).spec.id)
    found = list(build_spans(trace, "scripted"))
    assert "execute_tool _unknown" in [span.name for span in found]
    assert "jane" not in repr(found)
