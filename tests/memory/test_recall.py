"""Recall by words: three levels, the best first, any text as a query, and never another tenant's."""

import sqlite3
import time
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.memory.world import NOW, a_memory, seen

from mainspring.core.errors import InvalidRequest, NotFound
from mainspring.core.tokens import tokens_of_text
from mainspring.features.memory.memory import Memory
from mainspring.features.memory.no_memory import NoMemory
from mainspring.features.memory.observation import Observation
from mainspring.storage.search.word_index import COMMON

CALL = {"tool": "weather", "arguments": '{"city":"Paris"}'}


async def kept(memory: Memory, *observations: Observation) -> list[str]:
    return [await memory.record(each) for each in observations]


on_both = pytest.mark.usefixtures("each_database")


@on_both
@pytest.mark.requirement("C4")
async def test_an_agent_is_reminded_of_five_at_most_each_on_an_index_line_with_its_citation() -> None:
    async with a_memory() as memory:
        ids = await kept(memory, *[seen(f"Lesson {n}: water the plants.\nDaily.", id=f"obs_{n}") for n in range(8)])
        found = await memory.recall("How often should plants get water?", tenant="", agent="scout")
        assert len(found) == 5
        assert {each.citation for each in found} <= set(ids)
        assert all(each.text.startswith("scout/llm_response Lesson") and "\n" not in each.text for each in found)
        assert len(await memory.search("plants", tenant="", level="index", top_k=5)) == 5
        assert await memory.recall("plants", tenant="", agent="another") == []


@on_both
async def test_the_three_levels_tell_more_and_more_and_what_that_costs() -> None:
    content = "It is sunny in Paris. " + "Bring a hat. " * 50
    observation = seen(content, event_type="tool_call", metadata=CALL, tags=("travel", "sky", "france", "summer"))
    async with a_memory() as memory:
        [id] = await kept(memory, observation)
        index, timeline, full = [
            (await memory.search("sunny Paris", tenant="", level=level))[0] for level in ("index", "timeline", "full")
        ]
    begins = 'weather {"city":"Paris"}: It is sunny in Paris. Bring a hat. '
    assert index.text == f"scout/tool_call [travel, sky, france] {begins}Bring a hat. Bri..."
    assert len(index.text.partition("] ")[2]) == 80
    assert timeline.text.startswith(f"2027-01-15 08:00:00Z scout {begins}")
    assert len(timeline.text.removeprefix("2027-01-15 08:00:00Z scout ")) == 300
    assert (
        full.text == f'2027-01-15 08:00:00Z scout/tool_call [travel, sky, france, summer]\nweather {{"city":"Paris"}}: {content}'
    )
    for each in (index, timeline, full):
        assert each.citations == (id,)
        assert each.tokens == tokens_of_text(each.text)
    assert index.tokens < timeline.tokens < full.tokens


@on_both
async def test_the_better_and_the_newer_come_first() -> None:
    year = 365 * 86_400
    async with a_memory(keep_days=10_000) as memory:
        await kept(
            memory,
            seen("deploy failed because the disk was full", id="old", timestamp=NOW - year),
            seen("deploy failed because the disk was full", id="new", timestamp=NOW),
            seen("the disk is round", id="weak"),
            seen("nothing like that", id="none"),
        )
        found = await memory.search("Why did the deploy fail: full disk?", tenant="")
    assert [each.citation for each in found] == ["new", "old", "weak"]
    assert found[0].score > found[1].score > found[2].score


@on_both
async def test_words_are_found_in_any_form_in_arguments_and_in_tags() -> None:
    async with a_memory() as memory:
        await kept(
            memory,
            seen("She reviewed the changes.", id="stem"),
            seen("Crème brûlée", id="accent"),
            seen("done", id="call", event_type="tool_call", metadata=CALL),
            seen("done", id="tag", tags=("quarterly",)),
            seen("今日は晴れです", id="japanese"),
        )
        for query, id in {
            "review": "stem",
            "creme": "accent",
            "paris": "call",
            "Quarterly": "tag",
            "今日は晴れです": "japanese",
        }.items():
            assert [each.citation for each in await memory.search(query, tenant="")] == [id], query


@on_both
async def test_a_rare_word_is_found_however_old_behind_more_than_a_thousand_common_ones() -> None:
    async with a_memory() as memory:
        await kept(
            memory,
            seen("the build number of the walrus", id="rare"),
            seen("the build is broken", id="both"),
            *[seen(f"the build {n}", id=f"b{n}") for n in range(COMMON)],
            *[seen(f"is broken {n}", id=f"c{n}") for n in range(COMMON)],
        )
        rare = await memory.search("What is the build of the walrus?", tenant="", top_k=3)
        assert [each.citation for each in rare] == ["rare"]
        newest = [each.citation for each in await memory.search("the build", tenant="", top_k=2)]
        assert newest == ["b999", "b998"]
        assert (await memory.search("build broken", tenant="", top_k=1))[0].citation == "both"


@on_both
async def test_agent_and_session_narrow_a_search() -> None:
    async with a_memory() as memory:
        await kept(memory, *[seen("bread", id=f"{a}{s}", agent_name=a, session_id=s) for a in "xy" for s in "12"])
        for query in ("bread", ""):
            found = await memory.search(query, tenant="", agent="x", session="2")
            assert [each.citation for each in found] == ["x2"]
            assert {each.citation for each in await memory.search(query, tenant="", agent="y")} == {"y1", "y2"}
            assert {each.citation for each in await memory.search(query, tenant="", session="1")} == {"x1", "y1"}


@on_both
async def test_a_query_without_words_finds_the_newest() -> None:
    async with a_memory() as memory:
        await kept(memory, *[seen(f"fact {n}", id=str(n)) for n in range(5)])
        for query in ("", "  ", "?!", "\0"):
            assert [each.citation for each in await memory.search(query, tenant="", top_k=2)] == ["4", "3"]


@on_both
@pytest.mark.parametrize(
    "query",
    [
        '"', '""', "'", "a AND", "NOT", "OR OR", "NEAR(", "content:fact", "-fact", "^fact", "fact*", "{a b}: c", "(((", "a\0b",
        "fact'; DROP TABLE observations; --", "\ud800 fact", "\U0001d518\u0301 Ø", "a" * 100_000,
        " ".join(map(str, range(5000))), "owner", "_", "ª²",
    ],
)  # fmt: skip
async def test_any_text_is_a_query(query: str) -> None:
    async with a_memory() as memory:
        await kept(memory, seen("a fact that stays", id="1"))
        assert await memory.search(query, tenant="other") == []
        await memory.search(query, tenant="", agent=query[:100], session=query[:100])
        assert [each.citation for each in await memory.search("fact", tenant="")] == ["1"]
        await memory.search(query, tenant="")


texts = st.text(max_size=30) | st.sampled_from(["fact", "shared words", 'tenant : "a"', "owner:*", "a OR b", '"', "NOT fact"])
tenants = st.sampled_from(["", "a", "b", "A", "a b", "a' OR 1=1", 't"', "ta"]) | st.text(max_size=5)
rows_of = st.tuples(tenants, texts, st.sampled_from(["x", "y", ""]), st.sampled_from(["1", "2", "*"]))


@pytest.mark.slow
@pytest.mark.requirement("D80")
@given(st.lists(rows_of, max_size=12), tenants, texts, st.sampled_from([None, "x", "*"]), st.sampled_from([None, "1", "*"]))
async def test_recall_never_crosses_tenants(
    kept_rows: list[tuple[str, str, str, str]], tenant: str, query: str, agent: str | None, session: str | None
) -> None:
    async with a_memory() as memory:
        whose: dict[str, str] = {}
        for number, (owner, text, by, of) in enumerate(kept_rows):
            id = await memory.record(seen(text, id=f"obs_{number}", tenant=owner, agent_name=by, session_id=of))
            whose[id] = owner
        for asked in (query, *[text for _, text, _, _ in kept_rows]):
            for found in await memory.search(asked, tenant=tenant, agent=agent, session=session, level="full", top_k=100):
                assert whose[found.citation] == tenant
        mine = {id for id, owner in whose.items() if owner == tenant}
        assert {each.citation for each in await memory.search("", tenant=tenant, top_k=100)} == mine
        for id in whose.keys() - mine:
            with pytest.raises(NotFound):
                await memory.get(id, tenant=tenant)


@pytest.mark.parametrize("wrong", [{"top_k": 0}, {"top_k": 101}, {"level": "whole"}], ids=str)
async def test_what_cannot_be_asked_is_refused(wrong: dict[str, object]) -> None:
    async with a_memory() as memory:
        with pytest.raises(InvalidRequest, match="must be"):
            await memory.search("x", tenant="", **wrong)  # type: ignore[arg-type]


async def test_a_memory_that_is_off_or_broken_reminds_of_nothing(caplog: pytest.LogCaptureFixture) -> None:
    assert await NoMemory().recall("x", tenant="", agent="a", top_k=5) == ()
    async with a_memory() as memory:
        await memory._database.write(lambda connection: connection.execute("DROP TABLE observation_words"))
        assert await memory.recall("x", tenant="", agent="a", top_k=5) == []
    assert "nothing could be recalled" in caplog.text


async def test_what_is_too_old_or_too_much_is_forgotten(tmp_path: Path) -> None:
    path, now = tmp_path / "memory.db", NOW
    async with a_memory(path) as memory:
        memory._keep_seconds = 10 * 86_400.0
        await kept(memory, *[seen(f"fact {n}", id=f"{n}", timestamp=now) for n in range(1200)])
    async with a_memory(path, keep_observations=700) as memory:
        found = {each.citation for each in await memory.search("", tenant="", top_k=100)}
        assert found == {str(n) for n in range(1100, 1200)}
        assert await memory.search("500", tenant="") != []
        assert await memory.search("499", tenant="") == []
    with sqlite3.connect(path) as raw:
        assert raw.execute("SELECT count(*) FROM observations").fetchone() == (700,)
        assert raw.execute("SELECT count(*) FROM observation_words_docsize").fetchone() == (700,)
        raw.execute("UPDATE observations SET at = 1.0 WHERE number <= 1000")
    raw.close()
    async with a_memory(path):
        pass
    with sqlite3.connect(path) as raw:
        assert raw.execute("SELECT count(*) FROM observations").fetchone() == (200,)
        raw.execute("INSERT INTO observation_words (observation_words) VALUES ('integrity-check')")
    raw.close()


def count(path: Path, tenant: str) -> int:
    with closing(sqlite3.connect(path)) as raw:
        found: int = raw.execute("SELECT count(*) FROM observations WHERE tenant = ?", (tenant,)).fetchone()[0]
        return found


async def test_the_bound_of_a_tenant_holds_after_every_record_and_every_flush(tmp_path: Path) -> None:
    path = tmp_path / "memory.db"
    async with a_memory(path, keep_observations=5) as memory, a_memory(path, keep_observations=5) as other:
        for number in range(12):
            await (memory, other)[number % 2].record(seen(f"fact {number}", id=f"r{number}"))
            assert count(path, "") == min(number + 1, 5)
        for size in (1, 2, 3, 30):
            for number in range(size):
                await memory.capture._keep(seen(f"fact {number} of {size}", id=f"k{size}.{number}"))
            await memory.capture.flush()
            assert count(path, "") == 5
        newest = [each.citation for each in await memory.search("", tenant="", top_k=100)]
        assert newest == [f"k30.{number}" for number in range(29, 24, -1)]


async def test_a_file_of_the_first_version_is_bound_too(tmp_path: Path) -> None:
    path = tmp_path / "memory.db"
    async with a_memory(path) as memory:
        await kept(memory, *[seen(f"fact {number}", id=f"{number}") for number in range(8)])
    with closing(sqlite3.connect(path)) as raw, raw:
        for statement in (
            "DROP TRIGGER observation_counted",
            "DROP TRIGGER observation_discounted",
            "DROP TABLE observation_counts",
            "UPDATE memory SET version = 1",
        ):
            raw.execute(statement)
    async with a_memory(path, keep_observations=5) as memory:
        await memory.record(seen("fact 8", id="8"))
        assert [each.citation for each in await memory.search("", tenant="")] == ["8", "7", "6", "5", "4"]


@on_both
async def test_forgetting_takes_one_session_or_one_tenant_and_nothing_comes_back() -> None:
    async with a_memory() as memory:
        happened = time.time() - 60
        breads = [seen("bread", id=f"{t}{s}", tenant=t, session_id=s, timestamp=happened) for t in "ab" for s in "12"]
        await kept(memory, *breads)
        assert await memory.forget(tenant="a", session="1") == 1
        assert await memory.forget(tenant="a", session="1") == 0
        assert await memory.forget(tenant="b") == 2
        # What is told again from a log has the time at which it happened.
        for bread in breads:
            await memory.capture._keep(bread)
        assert [each.citation for tenant in "ab" for each in await memory.search("bread", tenant=tenant)] == ["a2"]
        await kept(memory, seen("bread anew", id="new", tenant="b", session_id="1", timestamp=time.time() + 60))
        assert [each.citation for each in await memory.search("bread", tenant="b")] == ["new"]


async def test_bounds_that_keep_nothing_are_refused() -> None:
    with pytest.raises(InvalidRequest, match="above 0"):
        a_memory(keep_days=0)
    with pytest.raises(InvalidRequest, match="above 0"):
        a_memory(keep_observations=0)


async def test_what_somebody_records_is_kept_or_refused(tmp_path: Path) -> None:
    path = tmp_path / "memory.db"
    plain = Observation(id="", session_id="s", agent_name="scout", event_type="decision", content="bread")
    async with a_memory(path) as memory:
        await memory.record(plain)
        assert await memory.forget(tenant="", session="s") == 1
        anew = await memory.record(replace(plain, content="bread anew"))
        with pytest.raises(InvalidRequest, match="was forgotten; leave out its id and its time"):
            await memory.record(replace(plain, timestamp=1.0))
        await memory.record(replace(plain, id="obs_1", tenant="b"))
        with pytest.raises(InvalidRequest, match="`obs_1` cannot be kept: its id is taken"):
            await memory.record(replace(plain, id="obs_1", tenant="c"))
    async with a_memory(path) as memory:  # which prunes what is old
        assert [each.citation for each in await memory.search("bread", tenant="")] == [anew]
        assert await memory.search("bread", tenant="c") == []


@on_both
async def test_a_tenant_that_says_much_does_not_displace_another() -> None:
    async with a_memory(keep_observations=50) as memory:
        await kept(memory, *[seen(f"mine {n}", tenant="a") for n in range(40)])
        await kept(memory, *[seen(f"theirs {n}", tenant="b") for n in range(120)])
        await memory.capture.flush()
        assert len(await memory.search("", tenant="a", top_k=100)) == 40
        assert len(await memory.search("", tenant="b", top_k=100)) == 50


def bytes_of(folder: Path) -> bytes:
    return b"".join([file.read_bytes() for file in folder.iterdir()])


async def test_what_was_forgotten_leaves_no_trace_in_the_file_and_no_mark_for_ever(tmp_path: Path) -> None:
    path, now = tmp_path / "memory.db", time.time()
    async with a_memory(path) as memory:
        await kept(memory, *[seen(f"marzipan{n} cake", id=f"{n}", timestamp=now) for n in range(50)])
        await kept(memory, seen("bread", id="other", session_id="t", timestamp=now))
        assert await memory.forget(tenant="", session="s") == 50
        assert await memory.forget(tenant="", session="never there") == 0
    data = bytes_of(tmp_path)
    assert b"bread" in data
    assert b"marzipan" not in data
    assert b"cake" not in data
    with sqlite3.connect(path) as raw:
        assert raw.execute("SELECT count(*) FROM observations_forgotten").fetchone() == (2,)
        raw.execute("UPDATE observations_forgotten SET upto = 1.0")
    raw.close()
    async with a_memory(path):
        pass
    with sqlite3.connect(path) as raw:
        assert raw.execute("SELECT count(*) FROM observations_forgotten").fetchone() == (0,)
    raw.close()
