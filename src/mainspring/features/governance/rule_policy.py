"""Which calls an operator's rules allow, ask about or deny: patterns like `file_ops:write`, the most specific first.

    rules = Rules.of({"*": "ask", "file_ops": "allow", "file_ops:write": "deny"})

A pattern is `tool:operation` or `tool`; `*` and `?` stand for any text and any character. Of the patterns that fit, the most
specific rules: an exact tool before a wildcard, with an operation before without, the longer before the shorter, and the stricter
of two that are alike. A call that no pattern fits is no concern of the rules: other policies decide, or a rule for `*` does.

A tool of an MCP server goes by several names: what the model calls it, what its server does, and `server__tool`. A rule for any
of them can deny it or ask; only one for the name that the model has for it can allow.

An overlay can only narrow. Its rules are asked beside those it is laid over, and the strictest answer stands.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Literal, get_args

from msgspec import Struct

from mainspring.core.errors import InvalidRequest
from mainspring.core.run import Call, Run
from mainspring.ports import Allow, Ask, Deny, QuickPolicy, Verdict
from mainspring.tools.declarations import compile_pattern, fold_name, name_call

Choice = Literal["allow", "ask", "deny"]

STRICTNESS: Final[dict[Choice, int]] = {"allow": 0, "ask": 1, "deny": 2}


class ToolRule(Struct, frozen=True):
    pattern: str
    choice: Choice


class Rules(Struct, frozen=True):
    """Rules in layers, each in its order of precedence."""

    layers: tuple[tuple[ToolRule, ...], ...] = ()

    @classmethod
    def of(cls, choices: Mapping[str, Choice]) -> "Rules":
        """Raises `InvalidRequest` naming a pattern or a choice that is none."""
        for pattern, choice in choices.items():
            if choice not in STRICTNESS:
                raise InvalidRequest(f"rule `{pattern}` says `{choice}`; write one of {', '.join(get_args(Choice))}")
            if not all(pattern.split(":", 1)):
                raise InvalidRequest(f"rule `{pattern}` names no tool or no operation; write `tool`, `tool:operation` or `*`")
        rules = [ToolRule(pattern, choice) for pattern, choice in choices.items()]
        return cls((tuple(sorted(rules, key=_precedence)),))

    def rule(self, tool: str, operation: str | None = "", others: Sequence[str] = ()) -> ToolRule | None:
        """The rule that decides about this call, None if none does. Of an operation that is not known, the strictest does.

        `others` are more names of the tool, by which it can be denied or asked about, and not allowed.
        """
        found = [rule for layer in self.layers if (rule := _first(layer, tool, operation)) is not None]
        for layer in self.layers:
            named = [rule for other in others if (rule := _first(layer, other, operation)) is not None]
            # One that fits the tool's first name as well has given way there to a more specific one, or was found.
            found += [rule for rule in named if rule.choice != "allow" and not _fits(rule, tool, operation)]
        return _strictest(found)

    def is_idle(self, tools: Iterable[str]) -> bool:
        """Whether no rule is for any of these tools, whatever they are asked to do."""
        return all(not _alike(rule.pattern.partition(":")[0], tool) for layer in self.layers for rule in layer for tool in tools)


def combine_rules(base: Rules, overlay: Rules) -> Rules:
    """Both together: a call is denied if either denies it, and allowed only if neither objects."""
    return Rules(base.layers + overlay.layers)


class RulePolicy(QuickPolicy):
    """Does as the operator's rules say about the tool and its operation. They hold for the client's tools as well."""

    name = "tool_rules"

    def __init__(self, rules: Rules) -> None:
        self._rules = rules

    async def judge(self, call: Call, run: Run) -> Verdict:
        if (named := name_call(call, run)) is None:
            return Deny(f"There is no tool `{call.item.name}`.")
        tool, *others = named.names
        rule = self._rules.rule(tool, named.operation, others)
        if rule is None or rule.choice == "allow":
            return Allow()
        if rule.choice == "ask":
            return Ask(f"The rule `{rule.pattern}` asks before this call of `{tool}`.")
        return Deny(f"The rule `{rule.pattern}` denies this call of `{tool}`; do it in another way, or without it.")


def _precedence(rule: ToolRule) -> tuple[bool, bool, bool, int, int]:
    tool, _, operation = rule.pattern.partition(":")
    exact_tool, exact_operation = not _is_wild(tool), bool(operation) and not _is_wild(operation)
    return (not exact_tool, not exact_operation, not operation, -len(rule.pattern), -STRICTNESS[rule.choice])


def _first(layer: tuple[ToolRule, ...], tool: str, operation: str | None) -> ToolRule | None:
    fitting = [rule for rule in layer if _fits(rule, tool, operation)]
    return _strictest(fitting) if operation is None else next(iter(fitting), None)


def _fits(rule: ToolRule, tool: str, operation: str | None) -> bool:
    """Only an exact spelling is allowed; a spelling that differs by case or form alone does not slip by the other rules."""
    named, colon, operated = rule.pattern.partition(":")
    same = _equal if rule.choice == "allow" else _alike
    return same(named, tool) and (not colon or operation is None or operated == "*" or same(operated, operation))


def _equal(pattern: str, text: str) -> bool:
    return compile_pattern(pattern).fullmatch(text) is not None if _is_wild(pattern) else pattern == text


def _alike(pattern: str, text: str) -> bool:
    return _equal(pattern, text) or _equal(fold_name(pattern), fold_name(text))


def _strictest(rules: list[ToolRule]) -> ToolRule | None:
    return max(rules, key=lambda rule: STRICTNESS[rule.choice], default=None)


def _is_wild(pattern: str) -> bool:
    return "*" in pattern or "?" in pattern
