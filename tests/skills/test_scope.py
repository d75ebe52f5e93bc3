"""Skills narrow the tools: together they leave what each of them leaves, and nothing is better than too much."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.skills.shelf import list_left, skill

from mainspring.features.skills.skill_definition import Skill
from mainspring.features.skills.skill_scope import find_refusal

TOOLS = ("shell", "file_ops", "web_fetch", "web_search", "mail")
names = st.sampled_from(TOOLS)
patterns = (
    names | st.builds("{}:{}".format, names, st.sampled_from(["read", "write", "*"])) | st.sampled_from(["web_*", "*", "?ail"])
)
several = st.lists(patterns, max_size=4).map(tuple)
skills = st.lists(st.builds(skill, st.sampled_from(["a", "b", "c"]), st.none() | several, several), max_size=3)
operations = st.sampled_from(["", "read", "write", "other", None])


@pytest.mark.requirement("C23")
@pytest.mark.parametrize(
    ("active", "left"),
    [
        ([], TOOLS),
        ([skill("a")], TOOLS),
        ([skill("a", ("shell", "mail"))], ("shell", "mail")),
        ([skill("a", ("shell", "mail")), skill("b", ("mail", "web_fetch"))], ("mail",)),
        ([skill("a", ("shell", "mail")), skill("b")], ("shell", "mail")),
        ([skill("a", ("shell",)), skill("b", ("mail",))], ()),
        ([skill("a", ())], ()),
        ([skill("a", ("unknown",))], ()),
        ([skill("a", None, ("mail", "web_*"))], ("shell", "file_ops")),
        ([skill("a", ("mail",), ("mail",))], ()),
        ([skill("a", None, ("*",))], ()),
        ([skill("a", ("shell:*", "file_ops:read"))], ("shell", "file_ops")),
        ([skill("a", ("file_ops:read",)), skill("b", ("file_ops:write",))], ()),
        ([skill("a", ("file_ops",)), skill("b", ("file_ops:write",))], ("file_ops",)),
        ([skill("a", ("file_ops:read",), ("file_ops:read",))], ()),
        ([skill("a", None, ("file_ops:write",))], TOOLS),
        ([skill("a", None, ("MAIL", "shel\uff4c"))], ("file_ops", "web_fetch", "web_search")),
        ([skill("a", ("MAIL",))], ()),
    ],
)  # fmt: skip
def test_tools_that_active_skills_leave(active: list[Skill], left: tuple[str, ...]) -> None:
    assert list_left(active, TOOLS) == left


def test_scope_says_why_a_tool_is_gone() -> None:
    active = [skill("a", ("shell",)), skill("b", None, ("she*",))]
    assert find_refusal(active, "shell") == "the skill `b` disallows `she*`"
    assert find_refusal(active, "mail") == "the skill `a` allows only: shell"


@pytest.mark.parametrize(
    ("pattern", "operation", "fits"),
    [
        ("file_ops", "write", True),
        ("file_ops:*", "write", True),
        ("file_ops:*", "", True),
        ("file_ops:write", "write", True),
        ("file_ops:write", "read", False),
        ("file_ops:write", "", False),
        ("file_ops:write", None, False),
        ("file_*", None, True),
        ("file", "write", False),
    ],
)
def test_pattern_allows_an_operation(pattern: str, operation: str | None, fits: bool) -> None:
    assert (find_refusal([skill("a", (pattern,))], "file_ops", operation) is None) is fits


@pytest.mark.parametrize("operation", ["write", "Write", "writ\uff45", " write ", None])
def test_operation_that_is_disallowed_does_not_slip_by_in_another_spelling(operation: str | None) -> None:
    active = [skill("a", None, ("file_ops:write",))]
    assert find_refusal(active, "file_ops", operation) is not None
    assert find_refusal(active, "file_ops", "read") is None


@given(skills, skills)
def test_more_skills_never_leave_more(some: list[Skill], more: list[Skill]) -> None:
    assert set(list_left([*some, *more], TOOLS)) <= set(list_left(some, TOOLS)) & set(list_left(more, TOOLS))


@given(skills, names, operations)
def test_call_is_refused_exactly_if_one_skill_refuses_it(active: list[Skill], tool: str, operation: str | None) -> None:
    alone = [find_refusal([each], tool, operation) for each in active]
    assert find_refusal(active, tool, operation) == next((why for why in alone if why is not None), None)
