"""The work for arguments grows as they do, whatever is in them, and what is too long to find out about stays as it is."""

import pytest

from mainspring.core.items import ToolDefinition, parse_arguments
from mainspring.providers.call_draft import MOST_HELD, CallDraft, JsonScan
from mainspring.providers.code_calls import read_list
from mainspring.providers.json_text import read_arguments
from mainspring.providers.labelled_calls import PAST_THOUGHT, may_be_labelled
from mainspring.providers.leaked_calls import LeakedCall, parse_calls

LOOK = ToolDefinition("look", parameters={"type": "object", "properties": {"place": {"type": "string"}}})


class CountedDraft(CallDraft):
    """Counts the characters of its arguments as often as they are looked at."""

    looked: int = 0

    @property
    def arguments(self) -> str:
        text = "".join(self.pieces)
        self.looked += len(text)
        return text


@pytest.mark.parametrize("odd", [",]", "True ", "}x", "},", '\\"', "{", ": ", '" : "'])
def test_arguments_are_looked_at_a_few_times_however_odd_they_are(odd: str) -> None:
    arguments = '{"place": "' + odd * 5_000 + '"}'
    call = CountedDraft("a", 0, name="look", id="fc_1", tool=LOOK, types={"place": {"string"}})
    call.add(arguments)
    told = call.take()
    assert call.looked < 10 * len(arguments)
    assert (told + call.settle(is_cut=False)).startswith(arguments[: len(told)])


@pytest.mark.parametrize("cut", [1, 2, 3, 5, 100])
def test_each_place_is_scanned_once_however_the_arguments_are_cut(cut: int) -> None:
    text = r'{"a": "}\"{", "b": {"c": "\\"}} {"d": "}"} "'
    scan, ends = JsonScan(), []
    for to in [*range(0, len(text), cut), len(text)]:
        ends.append(scan.at)
        scan.advance(text, to)
    assert ends == sorted(ends)
    assert (scan.at, text[: scan.end], scan.depth, scan.is_inside) == (len(text), r'{"a": "}\"{", "b": {"c": "\\"}}', 0, True)


def test_what_follows_a_whole_object_is_none_of_it_in_whatever_piece_it_comes() -> None:
    call = CallDraft("a", 0, name="look", id="fc_1", tool=LOOK)
    for piece in ('{"place": "a}b', '"}', "}", "} and more", ' {"place": 1}'):
        call.add(piece)
    assert call.arguments == '{"place": "a}b"}'


LONG = {
    "brackets": "[" * 100_000,
    "keys": '{"a": ' * 50_000,
    "Python": "(" * 100_000,
    "values": '{"place": [' + "[]," * 100_000 + "[]]}",
    "slips": "{'a': 1, " * 20_000 + "}",
}


@pytest.mark.parametrize("kind", LONG)
def test_what_is_too_long_to_find_out_about_stays_as_it_is(kind: str) -> None:
    assert len(LONG[kind]) > MOST_HELD
    assert read_arguments(LONG[kind], "look", {"place": {}}) == LONG[kind]


def test_a_name_that_is_there_twice_is_found_among_many() -> None:
    names = ", ".join([f'"n{number}": 0' for number in range(20_000)])
    with pytest.raises(ValueError, match="`n19999` twice"):
        parse_arguments(f'{{{names}, "n19999": 1}}')


BLANKS, LINES = " " * 100_000, "\n" * 100_000
HOSTILE = {
    "code": f"<code>{BLANKS}x</code>y",
    "awaited": f"await {BLANKS}x",
    "input": f"Action: look\nAction Input: {BLANKS}{{",
    "lines": f"Action: look\nAction Input: x{BLANKS}{LINES}Obs",
    "action": f"Action: look{LINES}{{",
    "thought": f"Thought: {LINES}x",
}


@pytest.mark.timeout(60)
@pytest.mark.parametrize("kind", HOSTILE)
def test_blanks_in_what_looks_like_a_call_are_read_once(kind: str) -> None:
    """Read again from each of them, they take minutes: then nobody else is served meanwhile."""
    text, tools = HOSTILE[kind], {LOOK.name: LOOK}
    assert parse_calls(text, tools, is_all=True) == []
    may_be_labelled(text, tools)
    assert PAST_THOUGHT.search(text) is None


@pytest.mark.parametrize(
    ("text", "arguments"),
    [
        ("await look(place='Oslo')", '{"place":"Oslo"}'),
        ("print(look(place='Oslo'))\n", '{"place":"Oslo"}'),
        ("await look(place=('Oslo'))", '{"place":"Oslo"}'),
        ("Action: look\nAction Input: Oslo\n\nObservation: it rains", '{"place":"Oslo"}'),
        ("Action: look \n\nAction Input: Oslo  \nPAUSE\n", '{"place":"Oslo"}'),
        ("Action: look[Oslo]", '{"place":"Oslo"}'),
    ],
)
def test_a_call_is_found_where_it_is_shown(text: str, arguments: str) -> None:
    assert parse_calls(text, {LOOK.name: LOOK}, is_all=True) == [LeakedCall("look", arguments)]


@pytest.mark.parametrize(
    ("text", "is_past"),
    [
        ("Thought: a\n\nIt rains in Oslo today.", True),
        ("Thought: a \n \n  It rains in Oslo today.", True),
        ("Thought: a\nIt rains in Oslo today.", False),
        ("Thought: a\n\n**Action: look up something", False),
        ("Thought: a\n\nshort", False),
    ],
)
def test_a_paragraph_behind_a_thought_is_no_thought(text: str, is_past: bool) -> None:
    assert (PAST_THOUGHT.search(text) is not None) == is_past


def test_a_parser_that_counts_wrong_spoils_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> object:
        raise SystemError("AST constructor recursion depth mismatch (before=74, after=76)")

    monkeypatch.setattr("ast.parse", fail)
    monkeypatch.setattr("ast.literal_eval", fail)
    tool = ToolDefinition("add", parameters={"type": "object", "properties": {"a": {"type": "integer"}}})
    assert parse_arguments(read_arguments("{a: 1,}", "add", ("a",))) == {"a": 1}
    assert read_list("[add(a=1)]", {"add": tool}) == []
    assert parse_calls("<tool_call>\nadd(a=1)\n</tool_call>", {"add": tool}) == []
