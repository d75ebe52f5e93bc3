"""Texts are brought into a normal form as Unicode has it, but for marks that no letter has."""

import unicodedata

from hypothesis import given
from hypothesis import strategies as st

from mainspring.core.normal_form import MOST_MARKS, normalize

# The third is one sign that becomes two marks.
MARKS = ("\u0301\u0316", "\u05b0\u0591", "\u0f73", "\uff9e\u0301")


@given(st.text(max_size=MOST_MARKS))
def test_what_people_write_is_normalized_as_ever(text: str) -> None:
    assert normalize("NFC", text) == unicodedata.normalize("NFC", text)
    assert normalize("NFKD", text) == unicodedata.normalize("NFKD", text)


@given(st.sampled_from(MARKS))
def test_of_endless_marks_the_first_are_kept(marks: str) -> None:
    """All of them would take minutes."""
    found = normalize("NFKD", "e" + marks * 300_000 + "nd")
    assert found[0] + found[-2:] == "end"
    assert MOST_MARKS < len(found) <= 3 + 2 * MOST_MARKS
