"""A chain is a sequence that is never changed, only continued."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainspring.core.chain import Chain


@given(st.lists(st.integers()), st.lists(st.integers()), st.lists(st.integers()))
def test_continuing_leaves_the_shorter_chain_as_it_is(start: list[int], left: list[int], right: list[int]) -> None:
    chain = Chain(start)
    first, second = chain.extend(left), chain.extend(right)
    assert [list(chain), list(first), list(second)] == [start, start + left, start + right]


@given(st.lists(st.tuples(st.integers(0, 9), st.lists(st.integers(), max_size=3)), max_size=20))
def test_any_version_can_be_continued_at_any_time(steps: list[tuple[int, list[int]]]) -> None:
    versions: list[tuple[Chain[int], list[int]]] = [(Chain(), [])]
    for which, more in steps:
        chain, same = versions[which % len(versions)]
        versions.append((chain.extend(more), same + more))
    assert [list(chain) for chain, _ in versions] == [same for _, same in versions]
    assert [len(chain) for chain, _ in versions] == [len(same) for _, same in versions]


def test_newest_version_is_continued_without_a_copy() -> None:
    chain = Chain([1]).extend([2])
    assert chain.extend([3])._shared is chain._shared


def test_older_version_is_continued_by_a_copy() -> None:
    chain = Chain([1])
    longer = chain.extend([2])
    assert chain.extend([3])._shared is not longer._shared


def test_first_and_last_item_are_found_from_both_ends() -> None:
    chain = Chain([1, 2, 3])
    chain.extend([4])
    assert (chain[0], chain[-3], chain[2], chain[-1]) == (1, 1, 3, 3)
    for index in (3, -4):
        with pytest.raises(IndexError):
            chain[index]


INDEX = st.integers(-6, 6)


@given(st.lists(st.integers(), max_size=5), INDEX)
def test_items_are_found_as_in_a_list(items: list[int], index: int) -> None:
    chain = Chain(items)
    chain.extend([99])
    if -len(items) <= index < len(items):
        assert chain[index] == items[index]
    else:
        with pytest.raises(IndexError, match=f"^{index}$"):
            chain[index]


@given(st.lists(st.integers(), max_size=5), st.slices(6))
def test_slices_are_those_of_a_list(items: list[int], part: slice) -> None:
    chain = Chain(items)
    chain.extend([99])
    assert chain[part] == items[part]


@given(st.lists(st.tuples(st.integers(0, 9), st.lists(st.integers(), max_size=3)), max_size=20))
def test_items_are_picked_from_any_version(steps: list[tuple[int, list[int]]]) -> None:
    def is_even(number: int) -> bool:
        return number % 2 == 0

    versions: list[tuple[Chain[int], list[int]]] = [(Chain(), [])]
    for which, more in steps:
        chain, same = versions[which % len(versions)]
        versions.append((chain.extend(more), same + more))
        for version, items in versions[:: 1 + which % 2]:
            assert version.pick(is_even) == list(filter(is_even, items))


def test_each_item_is_looked_at_once_when_some_are_picked() -> None:
    asked: list[int] = []

    def wants(number: int) -> bool:
        asked.append(number)
        return number > 1

    chain = Chain([1, 2])
    longer = chain.extend([3])
    assert (chain.pick(wants), longer.pick(wants), chain.pick(wants)) == ([2], [2, 3], [2])
    assert asked == [1, 2, 3]


def test_an_empty_chain_keeps_nothing_of_what_continues_it() -> None:
    empty: Chain[int] = Chain()
    assert empty.extend([1])._shared is not empty._shared


def test_chain_reads_backwards() -> None:
    assert list(reversed(Chain([1, 2, 3]))) == [3, 2, 1]
    assert Chain([1, 2, 3])[::-1] == [3, 2, 1]


def test_chain_is_read_in_steps() -> None:
    assert Chain([1, 2, 3, 4])[1::2] == [2, 4]


def test_chains_are_equal_if_their_items_are() -> None:
    chain = Chain([1, 2])
    chain.extend([3])
    assert chain == Chain([1, 2])
    assert hash(chain) == hash(Chain([1, 2]))
    assert len({hash(Chain([number])) for number in range(9)}) > 1
    assert chain != Chain([1, 3])
    assert chain != Chain([1])
    assert chain != Chain([1, 2, 3])
    assert chain != [1, 2]


def test_chain_shows_its_items() -> None:
    chain = Chain([1, 2])
    chain.extend([3])
    assert repr(chain) == "Chain([1, 2])"
