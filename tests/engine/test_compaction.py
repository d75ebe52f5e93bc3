"""Long transcripts: what is left out, what is summed up, and that the laws hold all the same."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.engine.test_laws import (
    Played,
    begins_and_ends_once,
    executes_only_what_was_allowed,
    is_the_fold_of_its_log,
    play,
    reads_back_from_json,
    says_what_its_deltas_said,
    shows_the_model_whole_pairs,
    stays_within_its_limits,
    waits_exactly_for_client_and_approval,
)  # fmt: skip
from tests.engine.worlds import World, worlds

from mainspring.core.compaction import (
    HEADING,
    SUMMARIZE,
    Summary,
    apply_compaction,
    compaction_item,
    is_compaction,
    payload_of,
    summary_of,
)
from mainspring.core.errors import ContextOverflow, InvalidRequest
from mainspring.core.events import Compacted
from mainspring.core.history import pair_outputs
from mainspring.core.items import FunctionCall, FunctionCallOutput, Item, Message, Reasoning, Unknown, assistant, user
from mainspring.core.tokens import tokens_of
from mainspring.core.truncation import drop_oldest, groups
from mainspring.engine.seal import Seal
from mainspring.providers.scripted import Turn, call, fail, say, turn
from mainspring.storage.memory_runs import MemoryStore

LONG = "word " * 200


def called(number: int, count: int) -> list[Item]:
    """Calls made together after some thought, and their outputs."""
    ids = [f"call_{number}_{place}" for place in range(count)]
    thought = Reasoning(f"rs_{number}")
    return [thought, *[FunctionCall(id, "look", "{}") for id in ids], *[FunctionCallOutput(id, "x" * 40 * number) for id in ids]]


_groups = st.lists(
    st.one_of(
        st.builds(lambda text: [user(text)], st.text(max_size=60)),
        st.builds(lambda text: [assistant(text)], st.text(max_size=60)),
        st.builds(lambda text: [Message("system", user(text).content)], st.text(max_size=20)),
        st.integers(1, 3).map(lambda count: called(0, count)),
    ),
    max_size=10,
)
transcripts = _groups.map(
    lambda parts: [
        item
        for number, part in enumerate(parts)
        for item in (called(number, len(part) // 2) if isinstance(part[0], Reasoning) else part)
    ]
)


def is_whole(items: list[Item]) -> bool:
    found = pair_outputs(items)
    return list(found.items) == items and not found.unanswered and not found.orphans


def said(items: list[Item], *roles: str) -> list[Item]:
    return [item for item in items if isinstance(item, Message) and item.role in roles]


@given(transcripts, st.integers(0, 400))
def test_what_is_left_out_are_the_oldest_groups_and_never_half_of_one(items: list[Item], room: int) -> None:
    left = list(drop_oldest(items, room))
    assert is_whole(left)
    assert said(left, "system") == said(items, "system")
    assert said(left, "user")[-1:] == said(items, "user")[-1:]
    assert left[-1:] == items[-1:]
    if tokens_of(items) <= room:
        assert left == items


@given(transcripts, st.integers(0, 400))
def test_no_more_is_left_out_than_it_takes(items: list[Item], room: int) -> None:
    left = drop_oldest(items, room)
    gone = [part for part in groups(items) if not any(item is kept for item in part for kept in left)]
    assert not gone or tokens_of(left) + tokens_of(gone[-1]) > room


@given(transcripts)
def test_groups_are_whole_and_add_up_to_the_transcript(items: list[Item]) -> None:
    parts = [list(part) for part in groups(items)]
    assert [item for part in parts for item in part] == items
    assert all(map(is_whole, parts))


def summary(text: str, keeps: int | None = None) -> Item:
    return compaction_item("cmp_1", f"{payload_of(Summary(text, keeps))}.seal")


@given(transcripts, transcripts, st.integers(0, 12))
def test_a_summary_replaces_what_is_old_and_tears_nothing_apart(before: list[Item], after: list[Item], keeps: int) -> None:
    seen = list(apply_compaction([*before, summary("So far.", keeps), *after]))
    assert is_whole(seen)
    assert not any(map(is_compaction, seen))
    assert user(f"{HEADING}\n\nSo far.") in seen
    assert len(said(seen, "system")) == len(said([*before, *after], "system"))
    assert seen[len(seen) - len(after) :] == after
    assert len(seen) <= len(said(before, "system")) + 2 + keeps + len(after)


@given(transcripts, transcripts)
def test_a_summary_that_was_asked_for_leaves_everything_in_place(before: list[Item], after: list[Item]) -> None:
    assert list(apply_compaction([*before, summary("So far."), *after])) == [*before, user(f"{HEADING}\n\nSo far."), *after]


@given(st.text(), st.none() | st.integers(0, 99))
async def test_a_sealed_summary_reads_back_and_no_other_seal_will_do(text: str, keeps: int | None) -> None:
    seal = Seal(MemoryStore())
    item = compaction_item("cmp_1", await seal.close(Summary(text, keeps)))
    assert summary_of(item) == Summary(text, keeps)
    await seal.check((user("x"), item))
    other = compaction_item("cmp_1", await Seal(MemoryStore()).close(Summary(text, keeps)))
    for foreign in (other, compaction_item("cmp_1", await seal.close(Summary(text + "x", keeps)) + "x")):
        with pytest.raises(InvalidRequest, match=r"input\[1\]"):
            await seal.check((item, foreign))


def test_content_of_another_make_is_left_as_it_is() -> None:
    for content in ("gAAAAAB", "ms1.e30=.x", "ms1.***.x", "ms1.bm90IGpzb24=.x", None, 7):
        item = Unknown({"type": "compaction", "id": "cmp_1", "encrypted_content": content})
        assert summary_of(item) is None
        assert apply_compaction([item]) == (item,)


_words = st.text("ab ", min_size=9, max_size=60).map(lambda text: f"Well: {text}")
_busy = st.lists(st.just(call("good")), min_size=1, max_size=3)
_steps = st.one_of(
    *[st.builds(lambda text, made: turn(say=text, calls=made), _words, _busy)] * 4,
    st.builds(lambda text, made: turn(think="Hm.", say=text, calls=made), _words, _busy),
    st.just(fail(ContextOverflow("too long"))),
)
_long = st.builds(
    World, st.lists(_steps, min_size=4, max_size=10).map(tuple), st.just({"max_turns": 12, "max_errors_in_row": None})
)
managed_worlds = st.builds(
    lambda world, threshold, options: replace(world, options={**world.options, "compact_threshold": threshold, **options}),
    worlds | _long,
    st.none() | st.integers(4, 80),
    st.sampled_from([{}, {"truncation": "auto"}, {"truncation": "auto", "context_tokens": 640}, {"context_tokens": 900}]),
)


@given(managed_worlds)
async def test_the_laws_hold_for_runs_that_are_compacted_and_cut(world: World) -> None:
    played = await play(world)
    begins_and_ends_once(played)
    is_the_fold_of_its_log(played)
    stays_within_its_limits(played)
    executes_only_what_was_allowed(played)
    shows_the_model_whole_pairs(played)
    waits_exactly_for_client_and_approval(played)
    says_what_its_deltas_said(played)
    reads_back_from_json(played)
    every_compaction_is_in_the_answer(played)


def every_compaction_is_in_the_answer(played: Played) -> None:
    made = [record.event.item for record in played.log if isinstance(record.event, Compacted) and record.event.item is not None]
    assert [item for item in played.run.output if is_compaction(item)] == made


async def test_a_run_is_compacted_again_when_it_has_grown_again() -> None:
    def step(text: str) -> Turn:
        return turn(say=text, calls=[call("good")])

    sums_up = [say(f"Summary {number}.", expect=SUMMARIZE) for number in (1, 2)]
    turns = (step(LONG), sums_up[0], step("Go on."), step(LONG), sums_up[1], say("Done.", expect="Summary 2."))
    played = await play(World(turns, {"max_turns": 12, "compact_threshold": 640}))
    assert played.run.text == "Done."
    summaries = [summary_of(item) for item in played.run.output if is_compaction(item)]
    assert [found and found.text for found in summaries] == ["Summary 1.", "Summary 2."]
    assert not any("Summary 1." in item.text for item in played.requests[-1].items if isinstance(item, Message))
    shows_the_model_whole_pairs(played)
