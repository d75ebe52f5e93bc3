"""Amounts add up, are taken from each other and shared; and the ledger stores them as it always has."""

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from mainspring.features.budgets.amounts import Amounts, Spent
from mainspring.features.budgets.ledger import LedgerEntry, Reserved, Settled

COUNTS = st.none() | st.integers(0, 1000)
NUMBERS = st.none() | st.floats(0, 1000)
COMMANDS = st.dictionaries(st.sampled_from(["ls", "git"]), st.integers(0, 20))
AMOUNTS = st.builds(Amounts, COUNTS, NUMBERS, COUNTS, COUNTS, COUNTS, COUNTS, COUNTS, NUMBERS, COMMANDS)


@given(one=AMOUNTS, two=AMOUNTS)
def test_none_changes_nothing_and_order_does_not_matter(one: Amounts, two: Amounts) -> None:
    assert one + Amounts() == one.min(Amounts()) == one - Amounts() == one
    assert one + two == two + one
    assert one.min(two) == two.min(one)
    assert one.min(one) == one


@given(whole=AMOUNTS, used=AMOUNTS)
def test_what_is_left_is_never_below_nothing_nor_above_the_whole(whole: Amounts, used: Amounts) -> None:
    left = whole - used
    assert left.min(whole) == left
    assert all(amount is None or amount >= 0 for amount in left.measures.values())
    assert left.commands.keys() == whole.commands.keys()


def test_a_share_of_what_is_counted_is_whole_and_not_below_its_least() -> None:
    whole = Amounts(iterations=9, seconds=9.0, calls=0, files=1, commands={"ls": 3})
    assert whole.scale(0.5) == Amounts(iterations=4, seconds=4.5, calls=0, files=0, commands={"ls": 1})
    assert whole.scale(0.1, at_least=1) == Amounts(iterations=1, seconds=0.9, calls=0, files=1, commands={"ls": 1})
    assert whole.scale(1, parts=3) == Amounts(iterations=3, seconds=3.0, calls=0, files=0, commands={"ls": 1})


def test_entries_of_the_ledger_are_stored_as_ever() -> None:
    reserved = (
        b'{"type":"Reserved","run_id":"resp_1","share":{"iterations":20,"seconds":720.0,"calls":40,"files":10,"lines":1000,'
        b'"requests":null,"tokens":null,"cost":null,"commands":{"git":2}}}'
    )
    settled = (
        b'{"type":"Settled","run_id":"resp_1","spent":{"iterations":2,"seconds":1.5,"calls":1,"files":["a"],"lines":3,'
        b'"requests":0,"tokens":10,"cost":0.0,"commands":{}}}'
    )
    share = Amounts(20, 720.0, 40, 10, 1000, commands={"git": 2})
    found = [msgspec.json.decode(text, type=LedgerEntry) for text in (reserved, settled)]
    assert found == [Reserved("resp_1", share), Settled("resp_1", Spent(2, 1.5, 1, ("a",), 3, tokens=10))]
    assert [msgspec.json.encode(entry) for entry in found] == [reserved, settled]
    assert Spent.whole(share, "r").amounts == share.min(Amounts()) + Amounts(requests=0, tokens=0, cost=0.0)
