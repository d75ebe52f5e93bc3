"""Rules by pattern: the most specific decides, an overlay only narrows."""

from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.policies.world import FILES, tried

from mainspring.core.errors import InvalidRequest
from mainspring.core.items import ToolDefinition
from mainspring.features.governance.rule_policy import STRICTNESS, Choice, RulePolicy, Rules, combine_rules

NAMES = st.sampled_from(["file_ops", "file_find", "shell", "*"])
PATTERNS = st.one_of(
    st.sampled_from(["*", "file_ops", "file_*", "sh?ll", "shell:*", "*:read", "file_*:read", "*:wr*"]),
    st.builds("{}:{}".format, NAMES, st.sampled_from(["read", "write", "*"])),
)
RULES = st.dictionaries(PATTERNS, st.sampled_from(get_args(Choice)), max_size=6).map(Rules.of)
CALLS = st.tuples(
    st.sampled_from(["file_ops", "file_find", "shell", "SHELL", "other"]), st.sampled_from(["", "read", "write", "WRITE", None])
)


def strictness(rules: Rules, call: tuple[str, str | None]) -> int:
    rule = rules.rule(*call)
    return 0 if rule is None else STRICTNESS[rule.choice]


def test_the_most_specific_pattern_decides() -> None:
    ranked = [
        "file_ops:write",
        "file_ops:w*",
        "file_ops:*",
        "file_ops",
        "file_*:write",
        "*:write",
        "file_*:*",
        "file_*",
        "f*",
        "*",
    ]
    for start in range(len(ranked)):
        rules = Rules.of(dict.fromkeys(reversed(ranked[start:]), "ask"))
        found = rules.rule("file_ops", "write")
        assert found is not None
        assert found.pattern == ranked[start]


@pytest.mark.parametrize(
    ("tool", "operation", "expected"),
    [
        ("file_ops", "read", "allow"),
        ("file_ops", "write", "deny"),
        ("file_ops", "WRITE", "deny"),
        ("file_ops", "list", "ask"),
        ("search", "", "ask"),
        ("search", "read", "ask"),
    ],
)
def test_operations_and_tools_find_their_rules(tool: str, operation: str, expected: Choice) -> None:
    rules = Rules.of({"*": "ask", "file_ops:read": "allow", "file_ops:write": "deny"})
    found = rules.rule(tool, operation)
    assert found is not None
    assert found.choice == expected


def test_allowed_is_only_what_is_spelled_exactly() -> None:
    rules = Rules.of({"*": "deny", "shell": "allow"})
    choices = [rule.choice for name in ("shell", "Shell", "shell ", "\uff53hell") if (rule := rules.rule(name)) is not None]
    assert choices == ["allow", "deny", "deny", "deny"]


def test_operation_that_is_not_known_is_judged_by_the_strictest_rule_of_the_tool() -> None:
    rules = Rules.of({"file_ops": "allow", "file_ops:read": "allow", "file_ops:write": "deny", "other:write": "deny"})
    found = rules.rule("file_ops", None)
    assert found is not None
    assert (found.pattern, found.choice) == ("file_ops:write", "deny")


def test_call_that_no_rule_fits_is_left_to_others() -> None:
    assert Rules.of({"shell": "deny", "*:write": "deny"}).rule("search") is None
    assert Rules().rule("search") is None


@given(base=RULES, overlay=RULES, call=CALLS)
def test_overlay_only_narrows(base: Rules, overlay: Rules, call: tuple[str, str | None]) -> None:
    together = strictness(combine_rules(base, overlay), call)
    assert together == max(strictness(base, call), strictness(overlay, call))


@given(layers=st.lists(RULES, min_size=2, max_size=4), call=CALLS)
def test_order_of_overlays_does_not_matter(layers: list[Rules], call: tuple[str, str | None]) -> None:
    forth, back = layers[0], layers[-1]
    for layer in layers[1:]:
        forth = combine_rules(forth, layer)
    for layer in reversed(layers[:-1]):
        back = combine_rules(back, layer)
    assert strictness(forth, call) == strictness(back, call)


@pytest.mark.parametrize(("pattern", "choice"), [("shell", "perhaps"), ("", "deny"), (":write", "deny"), ("shell:", "deny")])
def test_rule_that_says_nothing_is_refused(pattern: str, choice: Choice) -> None:
    with pytest.raises(InvalidRequest, match=f"rule `{pattern}`"):
        Rules.of({pattern: choice})


async def test_denied_and_asked_calls_name_the_pattern() -> None:
    policy = RulePolicy(Rules.of({"file_*:write": "ask", "file_ops:delete": "deny"}))
    outcome = await tried(
        [policy],
        ("file_ops", '{"operation": "read"}'),
        ("file_ops", '{"operation": "delete"}'),
        ("file_ops", '{"operation": "write"}'),
    )
    assert [judged.verdict for judged in outcome.judged] == ["allow", "deny", "ask"]
    assert "`file_ops:delete` denies" in outcome.judged[1].reason
    assert "`file_*:write` asks" in outcome.judged[2].reason
    assert outcome.done == [("file_ops", {"operation": "read"})]


async def test_default_of_the_operation_is_the_operation_that_is_meant() -> None:
    properties = {"operation": {"type": "string", "default": "write"}}
    tool = ToolDefinition("file_ops", parameters={"type": "object", "properties": properties}, kind="builtin")
    rules = Rules.of({"file_ops:write": "deny", "file_ops": "allow"})
    outcome = await tried([RulePolicy(rules)], ("file_ops", "{}"), tools=(tool,))
    assert outcome.only.verdict == "deny"


async def test_rules_hold_for_the_clients_tools_too() -> None:
    tools = (ToolDefinition("ask_user"), FILES)
    outcome = await tried([RulePolicy(Rules.of({"ask_user": "deny"}))], ("ask_user", "not json"), tools=tools)
    assert (outcome.only.verdict, outcome.only.policy) == ("deny", "tool_rules")
