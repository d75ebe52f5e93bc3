"""Items that need not be written and read back to know that they can be: none of them cannot."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from msgspec import UNSET

from mainspring.core.items import (
    FunctionCall,
    FunctionCallOutput,
    InputFile,
    InputImage,
    InputText,
    Item,
    Message,
    OutputText,
    assistant,
    flaw,
    user,
)
from mainspring.core.plain_items import is_plain

# What a field may have, and what it may not: half a character, bytes, a number, nothing, a list where a tuple belongs.
odd: st.SearchStrategy[Any] = st.sampled_from(["\ud800", b"x", 7, None, [], ("x",), UNSET, True, 1.5])
texts = st.text(st.characters(), max_size=4) | odd
statuses = st.sampled_from(["completed", "in_progress", "incomplete", "done"]) | odd
parts = (
    st.builds(InputText, texts)
    | st.builds(OutputText, texts, st.sampled_from([(), ({"type": "url_citation"},), []]))
    | st.builds(InputImage, texts, texts, texts)
    | st.builds(InputFile, texts, texts, texts, texts)
    | odd
)
contents = st.lists(parts, max_size=2).map(tuple) | st.lists(parts, max_size=1) | odd
roles = st.sampled_from(["user", "assistant", "system", "developer", "tool"]) | odd
items = (
    st.builds(Message, roles, contents, texts, statuses, st.sampled_from([UNSET, None, "final"]))
    | st.builds(FunctionCall, texts, texts, texts, texts, statuses, namespace=st.sampled_from([UNSET, None, "n", 3]))
    | st.builds(FunctionCallOutput, texts, texts | contents, texts, statuses, is_error=st.sampled_from([UNSET, True, 3]))
)


@given(items)
def test_what_is_plain_reads_back_as_it_is_written(item: Item) -> None:
    if is_plain(item):
        assert flaw(item, Item) is None


def test_usual_items_are_plain() -> None:
    usual = [
        user("Grüß dich"),
        assistant("hello"),
        FunctionCall("c", "add", '{"a":1}', id="fc_1"),
        FunctionCallOutput("c", "3"),
        Message("developer", (InputText("be kind"),)),
        Message("user", (InputImage("https://x"), InputFile(filename="a.pdf", file_data="AA=="))),
    ]
    assert [item for item in usual if not is_plain(item)] == []
    assert not is_plain(user("half \ud800"))
