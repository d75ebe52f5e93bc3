"""A skill is read as the open format says, and whatever is wrong with it is told by file and line."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.skills.shelf import list_left, put

from mainspring.core.errors import InvalidRequest
from mainspring.features.skills.skill_definition import MOST_BYTES, Skill, parse_skill, read_skill

PLACE = Path("/skills/invoices")
WHOLE = """---
name: invoices
description: >
  Checks invoices. Use it when
  a bill is to be looked at.
license: Apache-2.0
compatibility: Needs Python 3.11
metadata:
  version: 1.10
  "author": Ada
allowed-tools: file_ops:read, web_fetch  shell:*
disallowed_tools: [post, "mail_*"]
---

# Steps

1. Read it.
---
2. Check it.
"""


def parsed(text: str) -> Skill:
    return parse_skill(text.encode(), PLACE)


def faults(front: str) -> str:
    with pytest.raises(InvalidRequest) as refused:
        parsed(f"---\n{front}---\nbody\n")
    return refused.value.message


def test_every_field_is_read_as_it_is_written() -> None:
    assert parsed(WHOLE) == Skill(
        name="invoices",
        description="Checks invoices. Use it when a bill is to be looked at.",
        body="# Steps\n\n1. Read it.\n---\n2. Check it.",
        path=PLACE,
        license="Apache-2.0",
        compatibility="Needs Python 3.11",
        metadata={"version": "1.10", "author": "Ada"},
        allowed_tools=("file_ops:read", "web_fetch", "shell:*"),
        disallowed_tools=("post", "mail_*"),
    )


def test_windows_line_ends_and_a_byte_order_mark_change_nothing() -> None:
    assert parse_skill(b"\xef\xbb\xbf" + WHOLE.replace("\n", "\r\n").encode(), PLACE) == parsed(WHOLE)


def test_skill_that_says_nothing_of_tools_allows_all_and_an_empty_list_none() -> None:
    front = "name: invoices\ndescription: x\n"
    assert parsed(f"---\n{front}---\n").allowed_tools is None
    assert parsed(f"---\n{front}allowed-tools: []\n---\n").allowed_tools == ()


@pytest.mark.parametrize(
    ("front", "line", "why"),
    [
        ("description: x\n", 2, "`name` is missing"),
        ("name: invoices\n", 2, "`description` is missing"),
        ("name: invoices\ndescription:\n", 3, "`description`"),
        ("name: Invoices\ndescription: x\n", 2, "lower-case letters"),
        ("name: in--voices\ndescription: x\n", 2, "single hyphens"),
        ("name: -invoices\ndescription: x\n", 2, "`name`"),
        (f"name: {'a' * 65}\ndescription: x\n", 2, "up to 64"),
        ("description: x\n\nname: bills\n", 4, "its folder `invoices`"),
        (f"name: invoices\ndescription: {'x' * 1025}\n", 3, "at most 1024 characters"),
        (f"name: invoices\ndescription: x\ncompatibility: {'x' * 501}\n", 4, "at most 500 characters"),
        ("name: invoices\ndescription: [x]\n", 3, "`description`"),
        ("name: invoices\ndescription: x\nmetadata: text\n", 4, "`metadata`"),
        ("name: invoices\ndescription: x\nmetadata:\n  a: [1]\n", 5, "`a`"),
        ("name: invoices\ndescription: x\nalowed-tools: shell\n", 4, "did you mean `allowed_tools`?"),
        ("name: invoices\ndescription: x\ncolour: red\n", 4, "unknown key `colour`"),
        ("name: invoices\ndescription: x\ndescription: y\n", 4, "there twice"),
        ("name: invoices\ndescription: x\nallowed-tools: a\nallowed_tools: b\n", 5, "there twice"),
        ("name: invoices\ndescription: x\nallowed-tools:\n", 4, "write `[]` for none"),
        ("name: invoices\ndescription: x\nallowed-tools: {a: b}\n", 4, "`allowed_tools`"),
        ("name: invoices\ndescription: x\nallowed-tools: Bash(git add:*\n", 4, "`Bash(git` in `allowed_tools` is no tool"),
        ("name: invoices\ndescription: x\ndisallowed-tools: Bash(git)\n", 4, "`Bash(git)` in `disallowed_tools` is no tool"),
        ("name: invoices\ndescription: x\nallowed-tools: [[a]]\n", 4, "`allowed_tools`"),
        ("name: invoices\ndescription: Use when: always\n", 3, "not YAML"),
        ("name: invoices\n\tdescription: x\n", 3, "not YAML"),
        ("name: invoices\ndescription: x\x07\n", 3, "a character that YAML does not allow"),
        ("- name\n", 2, "a mapping is needed"),
        ("just text\n", 2, "a mapping is needed"),
        ("? [a]\n: b\n", 2, "keys must be text"),
    ],
)
def test_fault_is_told_by_file_and_line(front: str, line: int, why: str) -> None:
    message = faults(front)
    assert f"{PLACE}/SKILL.md:{line}: " in message
    assert why in message


def test_front_matter_nested_beyond_all_measure_is_refused() -> None:
    assert "nested too deeply" in faults("name: " + "[" * 1000 + "\n")


def test_yaml_tags_build_nothing() -> None:
    front = "name: invoices\ndescription: !!python/object/apply:os.system [x]\n"
    assert "SKILL.md:3: `description`" in faults(front)


def test_all_faults_are_told_at_once() -> None:
    found = faults("name: A\ncolour: red\nmetadata: [a]\n")
    assert (found.count(f"{PLACE}/SKILL.md:"), found.count("\n  line ")) == (1, 4)


@pytest.mark.parametrize(
    ("data", "line", "why"),
    [
        (b"# Steps\n", 1, "begins with a line `---`"),
        (b"", 1, "begins with a line `---`"),
        (b"---\nname: invoices\n", 1, "has no end"),
        (b"---\nname: invoices\ndescription: \xff\n---\n", 3, "not UTF-8"),
    ],
)
def test_file_without_front_matter_is_refused(data: bytes, line: int, why: str) -> None:
    with pytest.raises(InvalidRequest, match=f"SKILL.md:{line}: .*{why}"):
        parse_skill(data, PLACE)


def test_file_beyond_the_limit_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match=f"more than the {MOST_BYTES}"):
        read_skill(put(tmp_path, "long", body="x" * MOST_BYTES))


@given(st.binary(max_size=200) | st.text(max_size=200).map(lambda text: f"---\n{text}\n---\n".encode()))
def test_any_file_is_a_skill_or_a_fault_with_its_line(data: bytes) -> None:
    assert outcome(data).startswith(("invoices", f"{PLACE}/SKILL.md:"))


def outcome(data: bytes) -> str:
    try:
        return parse_skill(data, PLACE).name
    except InvalidRequest as error:
        return error.message


def test_tools_of_other_programs_narrow_to_nothing_they_name_and_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    front = "---\nname: invoices\ndescription: x\nallowed-tools: Bash(git add:*) Bash(git:*), Read shell\n---\n"
    found = parsed(front)
    assert found.allowed_tools == ("Bash(git add:*)", "Bash(git:*)", "Read", "shell")
    assert list_left([found], ["shell", "file_ops", "Bash"]) == ("shell",)
    assert "SKILL.md:4: `Bash(git add:*)` in `allowed_tools` is no tool here, and allows none" in caplog.text
