"""A log in memory reads the same whether its records were put away or not."""

import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import UNSET

from mainspring.core.events import (
    ArgumentsDelta,
    Event,
    ReasoningDelta,
    Recorded,
    RefusalDelta,
    TextDelta,
    ToolProgress,
    TurnStarted,
    continues,
)  # fmt: skip
from mainspring.core.log import PACK, Log

texts = st.text(st.characters(exclude_categories=()), max_size=3)  # halves of pairs too
ids = st.sampled_from(["a", "b"])
events: st.SearchStrategy[Event] = (
    st.builds(TextDelta, ids, texts, st.integers(0, 1), st.just(UNSET) | st.just(({"token": "x"},)))
    | st.builds(ArgumentsDelta, ids, texts)
    | st.builds(ReasoningDelta, ids, texts, st.integers(0, 1), st.booleans())
    | st.builds(RefusalDelta, ids, texts)
    | st.builds(ToolProgress, ids, texts)
    | st.just(TurnStarted())
)
stretches = st.lists(events, min_size=1, max_size=3).flatmap(
    lambda some: st.integers(1, 20).map(lambda times: some[:1] * times + some)
)


@given(st.lists(stretches, max_size=5), st.lists(st.integers(0, 120), max_size=5), st.integers(-130, 130), st.integers(-130, 130))
def test_a_log_reads_as_the_list_of_its_records(said: list[list[Event]], packs: list[int], start: int, stop: int) -> None:
    records = [Recorded(seq, seq / 3, event) for seq, event in enumerate([event for some in said for event in some])]
    log = Log()
    for record in records:
        log.append(record)
        for upto in packs:
            if upto == record.seq:
                log.pack(upto)
    assert list(log) == records
    assert len(log) == len(records)
    assert log[start:stop] == records[start:stop]
    assert log[::2] == records[::2]
    assert [log[place] for place in range(-len(records), len(records))] == records * 2
    seen = {record.seq for record in log.skim()}
    assert list(log.skim()) == [record for record in records if record.seq in seen]
    for record in records:
        assert record.seq in seen or continues(records[record.seq - 1].event, record.event)
    with pytest.raises(IndexError):
        log[len(records)]
    log.truncate(max(start, 0))
    assert list(log) == records[: max(start, 0)]


def test_deltas_that_were_put_away_take_little_more_than_their_text() -> None:
    count = 20_000
    log = Log()
    tracemalloc.start()
    for seq in range(count):
        log.append(Recorded(seq, seq / 1024, TextDelta("msg_1", f"{seq:05}")))
        log.pack(seq - PACK)
    taken = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert taken / count < 30
    assert log[count - 1].event == TextDelta("msg_1", f"{count - 1:05}")
