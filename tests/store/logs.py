"""Logs to store: small ones by hand, and any log at all for hypothesis."""

from collections.abc import Sequence
from itertools import pairwise

from hypothesis import strategies as st

from mainspring.core.events import (
    Annotated,
    ArgumentsDelta,
    CallJudged,
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
    Status,
    TextDelta,
    ToolEnded,
    ToolProgress,
    ToolStarted,
    ToolWithheld,
    TurnAborted,
    TurnEnded,
    TurnStarted,
)  # fmt: skip
from mainspring.core.history import Entry
from mainspring.core.items import (
    FunctionCall,
    FunctionCallOutput,
    InputImage,
    InputText,
    Item,
    Json,
    Message,
    OutputText,
    Part,
    Reasoning,
    SummaryText,
    Tool,
    ToolDefinition,
    Unknown,
    Usage,
    assistant,
    user,
)  # fmt: skip
from mainspring.core.response import Response
from mainspring.core.spec import RunSpec, ToolChoice, spec_for
from mainspring.ports import Snapshot


def spec(id: str, parent: str | None = None, text: str = "hello", *, background: bool = False) -> RunSpec:
    return spec_for("responses", id=id, model="m", input=(user(text),), parent=parent, background=background)


def begin(id: str, parent: str | None = None, at: float = 1.0) -> list[Recorded]:
    """The first segment of a run: one event."""
    return [Recorded(0, at, RunStarted(spec(id, parent)))]


def say(first: int, *words: str) -> list[Recorded]:
    """Deltas, numbered from `first`."""
    return [Recorded(first + place, float(first + place), TextDelta("msg_1", word)) for place, word in enumerate(words)]


def end(seq: int, status: Status = "completed", at: float = 9.0) -> list[Recorded]:
    return [Recorded(seq, at, RunEnded(status, Reason.FINAL_ANSWER))]


def answer(id: str, *said: str, status: Status = "completed") -> Snapshot:
    """What is kept of an ended run that was told `hello` and said these words."""
    output = tuple([assistant(text, id=f"msg_{place}") for place, text in enumerate(said)])
    entries = (Entry(user("hello"), "input"), *[Entry(item, "model", 1) for item in output])
    text: Json = {"format": {"type": "text"}}
    return Snapshot(Response(id=id, created_at=1, status=status, model="m", text=text, output=output), entries)


def pieces(log: Sequence[Recorded], cuts: Sequence[int]) -> list[list[Recorded]]:
    """The log cut before each of these places."""
    bounds = [0, *sorted({cut for cut in cuts if 0 < cut < len(log)}), len(log)]
    return [list(log[start:stop]) for start, stop in pairwise(bounds)]


words = st.text(max_size=12)
moments = st.floats(0, 4e9)
plain = st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False) | words
json = st.dictionaries(words, plain | st.lists(plain, max_size=2) | st.dictionaries(words, plain, max_size=2), max_size=3)
unknowns = st.builds(lambda kind, data: Unknown({**data, "type": f"x_{kind}"}), words, json)
statuses: st.SearchStrategy[Status] = st.sampled_from(["completed", "incomplete", "failed", "cancelled", "requires_action"])

parts: st.SearchStrategy[Part] = (
    st.builds(InputText, words)
    | st.builds(OutputText, words, st.lists(json, max_size=1).map(tuple))
    | st.builds(InputImage, words | st.none())
    | unknowns
)
items: st.SearchStrategy[Item] = (
    st.builds(Message, st.sampled_from(["user", "assistant", "system"]), st.lists(parts, max_size=3).map(tuple), words)
    | st.builds(FunctionCall, words, words, words, words, st.sampled_from(["in_progress", "completed", "incomplete"]))
    | st.builds(FunctionCallOutput, words, words | st.lists(parts, max_size=2).map(tuple), words)
    | st.builds(
        Reasoning, words, st.lists(st.builds(SummaryText, words), max_size=2).map(tuple), encrypted_content=words | st.none()
    )
    | unknowns
)
tools: st.SearchStrategy[Tool] = st.builds(ToolDefinition, words, words, json | st.none(), repeatable=st.booleans()) | unknowns
errors = st.builds(ErrorInfo, words, words, st.booleans())
reasons = st.sampled_from(Reason)
middles: st.SearchStrategy[Event] = (
    st.builds(RunResumed)
    | st.builds(TurnStarted)
    | st.builds(ItemStarted, items)
    | st.builds(TextDelta, words, words, st.integers(0, 9))
    | st.builds(RefusalDelta, words, words)
    | st.builds(ReasoningDelta, words, words, summary=st.booleans())
    | st.builds(ArgumentsDelta, words, words)
    | st.builds(Annotated, words, json)
    | st.builds(ItemDone, items)
    | st.builds(TurnEnded, st.just("stop"), st.none() | st.builds(Usage, st.integers(0, 2**40)), st.none() | errors)
    | st.builds(TurnAborted)
    | st.builds(CallJudged, words, st.sampled_from(["allow", "deny", "ask", "client"]), words, words, st.none() | reasons)
    | st.builds(ToolStarted, words)
    | st.builds(ToolProgress, words, words)
    | st.builds(ToolEnded, words, words | st.lists(parts, max_size=2).map(tuple), st.booleans(), st.floats(0, 1e6))
    | st.builds(Nudged, st.just("confirm"), words, st.none() | reasons)
    | st.builds(ToolWithheld, words, words)
)
specs = st.builds(
    RunSpec,
    st.just("resp_1"),
    words,
    st.lists(items, max_size=3).map(tuple),
    words | st.none(),
    st.lists(tools, max_size=2).map(tuple),
    st.builds(ToolChoice, st.just("auto"), words | st.none()),
    metadata=st.dictionaries(words, words, max_size=2),
    background=st.booleans(),
    echo=json,
)


@st.composite
def logs(draw: st.DrawFn) -> list[Recorded]:
    """The log of run `resp_1`: begun, then anything, perhaps ended. Only the store reads it, so it need not make sense."""
    happened: list[Event] = [RunStarted(draw(specs)), *draw(st.lists(middles, max_size=12))]
    if draw(st.booleans()):
        happened.append(RunEnded(draw(statuses), draw(reasons), draw(st.none() | errors)))
    return [Recorded(seq, draw(moments), event) for seq, event in enumerate(happened)]


@st.composite
def snapshots(draw: st.DrawFn) -> Snapshot:
    output = draw(st.lists(items, max_size=3).map(tuple))
    entries = st.builds(Entry, items, st.sampled_from(["input", "model", "tool", "engine"]), st.integers(0, 9), st.booleans())
    response = Response(
        id="resp_1",
        created_at=draw(st.integers(0, 2**40)),
        status=draw(statuses),
        model=draw(words),
        text=draw(json),
        output=output,
        temperature=draw(st.floats(0, 2)),
        error=draw(st.none() | json),
    )
    return Snapshot(response, draw(st.lists(entries, max_size=4).map(tuple)))
