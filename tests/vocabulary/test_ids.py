"""Identifiers."""

import re
from multiprocessing import get_context

from mainspring.core.ids import counting, derive_id, random_id


def test_random_ids_have_their_prefix_and_are_unique() -> None:
    made = {random_id("resp") for _ in range(1000)}
    assert len(made) == 1000
    assert all(re.fullmatch(r"resp_[0-9a-z]{24}", one) for one in made)


def test_a_forked_process_makes_ids_of_its_own() -> None:
    random_id("resp")
    with get_context("fork").Pool(1) as children:
        theirs = children.map(random_id, ["resp"] * 200)
    assert not {random_id("resp") for _ in range(200)} & set(theirs)


def test_counted_ids_are_known_beforehand() -> None:
    new = counting()
    assert [new("msg"), new("fc"), new("msg")] == ["msg_1", "fc_2", "msg_3"]
    assert counting()("msg") == "msg_1"


def test_derived_id_keeps_what_is_behind_the_prefix() -> None:
    assert derive_id("fco", "fc_a1") == "fco_a1"
    assert derive_id("fco", "fc_a_b") == "fco_a_b"
    assert derive_id("fco", "plain") == "fco_plain"
