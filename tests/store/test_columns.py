"""Deltas in columns: what a log costs, and that old files and new ones are read alike."""

import sqlite3
from contextlib import closing
from itertools import chain
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import NODEFAULT, UNSET, Struct, structs
from tests.store.logs import answer, begin, end, logs, pieces, say

from mainspring.core.events import (
    ArgumentsDelta,
    Event,
    ItemDone,
    ReasoningDelta,
    Recorded,
    RefusalDelta,
    RunEnded,
    TextDelta,
    TurnEnded,
    TurnStarted,
)  # fmt: skip
from mainspring.core.items import Item, ToolDefinition, Usage, assistant, from_wire, to_wire
from mainspring.core.response import Response
from mainspring.core.spec import Caller, Completion, Limits, RunSpec, Sampling, ToolChoice, Window
from mainspring.core.stored_log import decode_log, encode_log, shrink_log
from mainspring.ports import Segment
from mainspring.storage.sqlite_runs import SqliteStore

texts = st.text(max_size=4)
ids = st.sampled_from(["a", "b"])
deltas: st.SearchStrategy[Event] = (
    st.builds(TextDelta, ids, texts, st.integers(0, 1), st.just(UNSET) | st.just(({"token": "x"},)))
    | st.builds(ArgumentsDelta, ids, texts)
    | st.builds(ReasoningDelta, ids, texts, st.integers(0, 1), st.booleans())
    | st.builds(RefusalDelta, ids, texts)
    | st.builds(ItemDone, st.builds(assistant, texts, id=ids))
)
moments = st.integers(0, 2**40).map(lambda part: 1.7e9 + part / 1024) | st.floats(0, 4e9)


@st.composite
def streams(draw: st.DrawFn) -> list[Recorded]:
    happened = draw(
        st.lists(deltas.flatmap(lambda event: st.integers(1, 4).map(lambda times: [event] * times)), min_size=1, max_size=8)
    )
    return [Recorded(seq, draw(moments), event) for seq, event in enumerate(chain.from_iterable(happened))]


@given(streams() | logs(), st.lists(st.integers(1, 20), max_size=6))
def test_any_log_reads_back_whole_or_continued_in_place(log: list[Recorded], cuts: list[int]) -> None:
    items: list[Item] = [record.event.item for record in log if isinstance(record.event, ItemDone)]
    assert decode_log(encode_log(log)) == log
    assert decode_log(encode_log(log, entered=items), items) == log
    kept, last = b"", None
    for piece in pieces(log, cuts):
        added = encode_log(piece, last)
        # What goes on with no delta is the same whether it is added or a row of its own.
        assert not added.startswith(b"\n[") or added[1:] == encode_log(piece)
        kept += added
        last = piece[-1]
    assert decode_log(kept) == log


@st.composite
def spoken_logs(draw: st.DrawFn) -> tuple[list[Recorded], list[Item]]:
    """Logs whose items have the texts of their deltas, or nearly; and those items."""
    happened: list[Event] = []
    items: list[Item] = []
    for number in range(draw(st.integers(1, 3))):
        words = draw(st.lists(st.text(max_size=5), min_size=1, max_size=12))
        for word in words:
            happened += draw(st.sampled_from([[], [], [], [TurnStarted()], [ReasoningDelta("r", "hm")]]))
            happened.append(TextDelta(f"m{number}", word, 0, ({"token": "x"},) if draw(st.integers(0, 4)) == 0 else UNSET))
        said = "".join(words) + draw(st.sampled_from(["", "", "", "and more"]))
        items.append(assistant(draw(st.sampled_from([said, said, said, "something else"])), id=f"m{number}"))
        happened.append(ItemDone(items[-1]))
    at, log = draw(moments), list[Recorded]()
    for seq, event in enumerate(happened):
        at += draw(st.sampled_from([0.0, 0.0, 1 / 1024, 52 / 1024, 100.0, 0.0123, -1.0]))
        log.append(Recorded(seq, at, event))
    return log, items


@given(spoken_logs(), st.lists(st.integers(1, 9), max_size=6), st.lists(st.booleans(), min_size=7, max_size=7))
def test_a_log_without_the_texts_that_its_items_have_reads_back(
    told: tuple[list[Recorded], list[Item]], cuts: list[int], begins_row: list[bool]
) -> None:
    log, items = told
    kept, last = b"", None
    for piece, is_row in zip(pieces(log, cuts), [True, *begins_row], strict=False):
        kept += (b"\n" if kept else b"") + encode_log(piece, entered=items) if is_row else encode_log(piece, last, items)
        last = piece[-1]
    assert decode_log(kept, items) == log
    assert decode_log(shrink_log(kept, items), items) == log
    assert decode_log(shrink_log(shrink_log(kept, items), items), items) == log


async def test_the_words_of_a_run_that_has_ended_are_in_the_file_once(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    words = [f"word{place} " for place in range(60)]
    said = [Recorded(1 + place, 1.7e9 + place * 52 / 1024, TextDelta("msg_0", word)) for place, word in enumerate(words)]
    snapshot = answer("a", "".join(words))
    log = [*begin("a"), *said, Recorded(61, 1.8e9, ItemDone(snapshot.entries[1].item)), *end(62)]
    async with SqliteStore(path) as store:
        await store.append("a", log[:1])
        for place in range(1, 61):
            await store.append("a", log[place : place + 1])
        await store.append("a", log[61:], snapshot)
        assert await store.events("a") == log
        assert await store.events("a", 30) == log[31:]
    assert path.read_bytes().count(b"word37 ") == 1


@given(logs())
def test_a_log_of_an_older_version_is_read(log: list[Recorded]) -> None:
    old = msgspec.json.Encoder(enc_hook=to_wire).encode(log)
    assert decode_log(old) == log
    assert msgspec.json.decode(old, type=list[Recorded], dec_hook=from_wire) == log


async def test_a_log_that_an_older_version_began_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(Path(__file__).with_name("version_1.sql").read_text())
    async with SqliteStore(path) as store:
        before = await store.events("b")
        await store.append("b", say(1, "more ", "words"))
        await store.append("b", end(3), answer("b", "more words"))
        assert await store.events("b") == [*before, *say(1, "more ", "words"), *end(3)]
        assert await store.events("b", 1) == [*say(2, "words"), *end(3)]
        await store.delete("b")
        assert [run.id for run in (await store.list()).runs] == ["a"]
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT count(*) FROM segments").fetchone() == (0,)
        assert connection.execute("SELECT DISTINCT run FROM old_segments").fetchall() == [(1,)]


@pytest.mark.parametrize("at_once", [1, 500])
async def test_a_delta_takes_at_most_twenty_bytes_of_the_file(tmp_path: Path, at_once: int) -> None:
    words = [f"{place:04} " for place in range(2000)]
    spoken = [Recorded(1 + place, 1.7e9 + place * 52 / 1024, TextDelta("msg_0", word)) for place, word in enumerate(words)]
    sizes = []
    for length in (1, len(words)):
        path = tmp_path / f"{length}.db"
        async with SqliteStore(path) as store:
            for number in range(20):
                id, said = f"resp_{number}", spoken[:length]
                await store.append(id, begin(id))
                for start in range(0, length, at_once):
                    await store.append(id, said[start : start + at_once])
                snapshot = answer(id, "".join(words[:length]))
                done = Recorded(length + 1, 1.9e9, ItemDone(snapshot.entries[1].item))
                await store.append(id, [done, *end(length + 2)], snapshot)
                assert await store.events(id) == [*begin(id), *said, done, *end(length + 2)]
        sizes.append(path.stat().st_size)
    assert (sizes[1] - sizes[0]) / 20 / (len(words) - 1) <= 20


async def test_two_writers_of_one_file_append_to_each_others_logs_by_turns(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    async with SqliteStore(path) as left, SqliteStore(path) as right:
        assert await left.append_all([Segment(id, begin(id)) for id in "abc"]) == [None] * 3
        for seq in range(1, 40):
            writer = (left, right)[seq % 2]
            assert await writer.append_all([Segment(id, say(seq, f"{seq} ")) for id in "abc"]) == [None] * 3
        await right.delete("b")
        missing, fine = await left.append_all([Segment("b", say(40, "x")), Segment("c", say(40, "x"))])
        assert missing is not None
        assert fine is None
        assert await left.events("a") == [*begin("a"), *say(1, *[f"{seq} " for seq in range(1, 40)])]


USUAL: dict[type[Struct], str] = {
    RunSpec: (
        '{"instructions":null,"tools":[],"tool_choice":{"mode":"auto","name":null,"allowed":null},"limits":{"'
        'max_turns":10,"max_tool_calls":null,"max_tool_calls_per_turn":null,"max_tokens":null,"max_output_tok'
        'ens":null,"max_seconds":null,"max_errors_in_row":3,"max_repeats":null,"max_cycle":null,"turn_seconds'
        '":3600.0,"tool_seconds":null,"tool_output_chars":15000,"concurrency":null,"budget_turns":null,"appro'
        'val_seconds":null,"agent_concurrency":null,"turn_bytes":67108864},"completion":{"confirm":null,"clos'
        'e":null,"repeat":"You have made the very same tool call several times in a row. Repeating it will no'
        't help: try something else, or give your answer with what you know.","retry_model_errors":false,"max'
        '_retries":null,"confirm_once":false},"sampling":{"temperature":null,"top_p":null,"max_turn_tokens":n'
        'ull,"text":null,"reasoning":null,"extra":null,"top_logprobs":null,"presence_penalty":null,"frequency'
        '_penalty":null,"stop":[],"seed":null,"cache_ttl":null},"window":{"max_messages":null,"max_chars":null,"compact_threshold":null,"context_tok'
        'ens":null,"truncation":"disabled"},"preset":"responses","parallel_tool_calls":true,"parent":null,"st'
        'ore":true,"background":false,"metadata":{},"echo":{},"tenant":"","conversation":null,"caller":{"subj'
        'ect":"","scopes":null},"listed":[],"scope":"","budget":null,"agent":"","traceparent":"","purse":null'
        ',"flags":[],"charters":[],"within":"","governed":"","dictated":null,"goal":"answer","role":""}'
    ),
    Limits: (
        '{"max_turns":10,"max_tool_calls":null,"max_tool_calls_per_turn":null,"max_tokens":null,"max_output_t'
        'okens":null,"max_seconds":null,"max_errors_in_row":3,"max_repeats":null,"max_cycle":null,"turn_secon'
        'ds":3600.0,"tool_seconds":null,"tool_output_chars":15000,"concurrency":null,"budget_turns":null,"app'
        'roval_seconds":null,"agent_concurrency":null,"turn_bytes":67108864}'
    ),
    Completion: (
        '{"confirm":null,"close":null,"repeat":"You have made the very same tool call several times in a row.'
        ' Repeating it will not help: try something else, or give your answer with what you know.","retry_mod'
        'el_errors":false,"max_retries":null,"confirm_once":false}'
    ),
    Sampling: (
        '{"temperature":null,"top_p":null,"max_turn_tokens":null,"text":null,"reasoning":null,"extra":null,"t'
        'op_logprobs":null,"presence_penalty":null,"frequency_penalty":null}'
    ),
    Window: ('{"max_messages":null,"max_chars":null,"compact_threshold":null,"context_tokens":null,"truncation":"disabled"}'),
    ToolDefinition: (
        '{"description":"","parameters":null,"strict":null,"kind":"function","repeatable":false,"effects":[],'
        '"timeout":null,"asks":false,"operations":{},"purposes":{},"polls":false}'
    ),
    ToolChoice: '{"mode":"auto","name":null,"allowed":null}',
    Caller: '{"subject":"","scopes":null}',
    Usage: (
        '{"input_tokens":0,"output_tokens":0,"cached_tokens":0,"cache_write_tokens":0,"reasoning_tokens":0,"is_estimated":false}'
    ),
    Response: (
        '{"object":"response","completed_at":null,"background":false,"error":null,"incomplete_details":null,"'
        'instructions":null,"max_output_tokens":null,"max_tool_calls":null,"metadata":{},"output":[],"paralle'
        'l_tool_calls":true,"previous_response_id":null,"reasoning":null,"required_input":null,"service_tier"'
        ':"default","store":true,"temperature":1.0,"tool_choice":"auto","tools":[],"top_logprobs":0,"top_p":1'
        '.0,"presence_penalty":0.0,"frequency_penalty":0.0,"truncation":"disabled","usage":null,"safety_ident'
        'ifier":null,"prompt_cache_key":null,"user":null}'
    ),
    TurnEnded: '{"finish":"stop","usage":null,"error":null}',
    RunEnded: '{"error":null}',
}


@pytest.mark.parametrize("kind", USUAL, ids=lambda kind: kind.__name__)
def test_what_is_left_out_of_the_file_keeps_its_meaning(kind: type[Struct]) -> None:
    """Whoever changes a usual value changes what is stored already: say the new one where orders are made."""
    fields = [field for field in structs.fields(kind) if not field.required]
    usual = {
        field.encode_name: field.default if field.default_factory is NODEFAULT else field.default_factory() for field in fields
    }
    told = {name: value for name, value in usual.items() if value is not UNSET}
    known = msgspec.json.decode(USUAL[kind])
    assert {name: msgspec.json.decode(msgspec.json.encode(told[name])) for name in known} == known
