"""What the model sees of a transcript is worked out once, and is what it would be if it were worked out anew."""

from hypothesis import example, given
from hypothesis import strategies as st

from mainspring.core.chain import Chain
from mainspring.core.compaction import Summary, apply_compaction, compaction_item, payload_of
from mainspring.core.history import Entry, pair_outputs
from mainspring.core.items import (
    FunctionCall,
    FunctionCallOutput,
    Item,
    Message,
    Reasoning,
    SummaryText,
    Unknown,
    assistant,
    user,
)
from mainspring.core.model_request import Items, ModelRequest
from mainspring.core.prefix import Prefix, find_prefix, list_seen
from mainspring.providers.chat.request import build_body
from mainspring.providers.json_text import encode_body
from mainspring.providers.turn import list_call_ids


def sum_up(keeps: int | None) -> Item:
    return compaction_item("cmp", f"{payload_of(Summary('So far.', keeps))}.seal")


CALL_IDS = st.sampled_from(["call_1", "call_2", "call_3"])
ITEM: st.SearchStrategy[Item] = st.one_of(
    st.builds(user, st.sampled_from(["a", "b", ""])),
    st.builds(assistant, st.sampled_from(["c", ""])),
    st.just(Message("system", user("rule").content)),
    st.builds(FunctionCall, CALL_IDS, st.just("look"), st.sampled_from(["{}", "{"]), st.just("fc")),
    st.builds(FunctionCall, CALL_IDS, st.just("save"), status=st.just("in_progress")),
    st.builds(FunctionCallOutput, CALL_IDS, st.sampled_from(["ok", "no"])),
    st.builds(FunctionCallOutput, CALL_IDS, st.just("ok")),
    st.just(Reasoning("rs", (SummaryText("hm"),))),
    st.just(Unknown({"type": "mcp_list_tools", "server_label": "x"})),
    st.just(Unknown({"type": "item_reference", "id": "x"})),
    st.builds(sum_up, st.none() | st.integers(0, 3)),
)  # fmt: skip
ENTRY = st.builds(Entry, ITEM, st.just("model"), hidden=st.sampled_from([False, False, False, False, True]))
# Which version is continued (counted from the newest), and by what.
STEPS = st.lists(st.tuples(st.sampled_from([0, 0, 0, 0, 1, 2]), st.lists(ENTRY, max_size=5)), max_size=12)


def entry(item: Item) -> Entry:
    return Entry(item, "model")


def see_anew(entries: list[Entry]) -> list[Item]:
    return list(apply_compaction(pair_outputs(list_seen(entries)).items))


def write(items: Items | tuple[Item, ...]) -> bytes:
    return encode_body(build_body(ModelRequest("run_1", "m", items, instructions="Be brief."), "localhost"))


LATE = [(0, [entry(FunctionCall("call_1", "look")), entry(user("a"))]), (0, [entry(FunctionCallOutput("call_1", "ok"))])]
SAID = [(0, [entry(user("a")), entry(assistant("b"))]), (0, [entry(assistant("c")), entry(user("d"))])]


@given(STEPS)
@example(LATE)
@example(SAID)
def test_the_model_sees_and_is_sent_what_it_would_if_all_were_made_anew(steps: list[tuple[int, list[Entry]]]) -> None:
    versions: list[tuple[Chain[Entry], list[Entry]]] = [(Chain(), [])]
    for back, more in steps:
        chain, same = versions[-1 - back % len(versions)]
        versions.append((chain.extend(more), same + more))
        longer, entries = versions[-1]
        assert list(Items(longer)) == see_anew(entries)
        assert write(Items(longer)) == write(tuple(see_anew(entries)))
        calls = {item.call_id for item in see_anew(entries) if isinstance(item, FunctionCall)}
        assert set(list_call_ids(Items(longer))) >= calls
    for chain, entries in versions:
        assert list(Items(chain)) == see_anew(entries)


def test_what_has_been_seen_is_added_to_and_not_made_anew() -> None:
    first = Chain([entry(user("a"))])
    prefix = find_prefix(first)
    second = first.extend([entry(FunctionCall("call_1", "look")), entry(FunctionCallOutput("call_1", "ok"))])
    assert find_prefix(second) is prefix
    assert prefix is not None
    assert (len(prefix.items), prefix.call_ids) == (3, {"call_1"})
    assert find_prefix(first) is None, "it says more than the shorter version does"
    assert Prefix not in first.extend([entry(user("b"))]).notes, "a fork begins without"


def test_open_calls_and_half_turns_are_no_prefix() -> None:
    for open in (FunctionCall("call_1", "look"), FunctionCall("call_1", "look", status="in_progress"), assistant("and")):
        assert find_prefix(Chain([entry(user("a")), entry(open)])) is None
    assert find_prefix(Chain([entry(FunctionCall("call_1", "look")), entry(user("a"))])) is None


def test_a_compaction_begins_a_new_prefix() -> None:
    chain = Chain([entry(user("a")), entry(assistant("b")), entry(user("c"))])
    before = find_prefix(chain)
    after = find_prefix(chain.extend([entry(sum_up(1))]))
    assert after is not None
    assert after is not before
    assert len(after.items) == 2
