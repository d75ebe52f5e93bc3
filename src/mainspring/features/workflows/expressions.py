"""Expressions in workflows: `{{ steps.fetch.output.status }}`.

A text that is one `{{ ... }}` and nothing else stands for the value itself, be it a list or a number. In a longer text, values
are put in as text. What a name leads to must be there. Only what a definition says is ever read as an expression, never the
data that it is about. What has no `{{` in it needs no evaluating, and so not the template engine in `expression_sandbox` either.
"""

from collections.abc import Iterator, Mapping
from types import ModuleType
from typing import Any

from anyio.to_thread import run_sync
from msgspec import Struct

from mainspring.core.errors import InvalidRequest


class Reading(Struct, frozen=True):
    """What an expression reads: names, and the ids of steps: those whose `results` it wants, and those of which it wants to know
    how they ended, by `status` or `error`."""

    names: frozenset[str] = frozenset()
    results: frozenset[str] = frozenset()
    outcomes: frozenset[str] = frozenset()

    @property
    def steps(self) -> frozenset[str]:
        return self.results | self.outcomes

    def __or__(self, other: "Reading") -> "Reading":
        return Reading(self.names | other.names, self.results | other.results, self.outcomes | other.outcomes)


async def resolve_values(template: object, names: Mapping[str, object]) -> Any:
    """Like `resolve_values_now`, beside the event loop: others go on while much is computed."""
    if next(_templates(template), None) is None:
        return resolve_values_now(template, names)
    return await run_sync(resolve_values_now, template, names, abandon_on_cancel=True)


async def check_condition(expression: str | bool, names: Mapping[str, object]) -> bool:
    """Like `is_true`, beside the event loop."""
    return await run_sync(is_true, expression, names, abandon_on_cancel=True)


def resolve_values_now(template: object, names: Mapping[str, object]) -> Any:
    """What a value of a definition stands for, in all its depth. Raises `InvalidRequest` in words for whoever wrote it."""
    match template:
        case str() if _is_template(template):
            return _sandbox().render_template(template, names)
        case dict():
            return {name: resolve_values_now(each, names) for name, each in template.items()}
        case list() | tuple():
            return [resolve_values_now(each, names) for each in template]
        case _:
            return template


def is_true(expression: str | bool, names: Mapping[str, object]) -> bool:
    """Whether a condition holds, with or without `{{ }}` around it. One that gives a text like `no` is refused, lest it count as
    true."""
    if isinstance(expression, bool):
        return expression
    said = _sandbox().evaluate(expression, names)
    if isinstance(said, str) and said.strip().lower() in ("true", "false", "yes", "no"):
        raise InvalidRequest(f"the condition `{expression[:120]}` gives the text `{said}`; compare it: ... == '{said}'")
    return bool(said)


def find_reads(template: object) -> Reading:
    """What a value of a definition reads, in all its depth. Raises `InvalidRequest` for what is no expression."""
    found = Reading()
    for text in _templates(template):
        found |= _sandbox().read(text)
    return found


def find_expression_reads(expression: str) -> Reading:
    """Like `find_reads`, for an expression with or without `{{ }}` around it."""
    read: Reading = _sandbox().read(expression, is_expression=True)
    return read


def _templates(value: object) -> Iterator[str]:
    match value:
        case str() if _is_template(value):
            yield value
        case dict():
            for each in value.values():
                yield from _templates(each)
        case list() | tuple():
            for each in value:
                yield from _templates(each)
        case _:
            pass


def _is_template(text: str) -> bool:
    return "{{" in text or "{%" in text or "{#" in text


def _sandbox() -> ModuleType:
    from mainspring.features.workflows import expression_sandbox as sandbox

    return sandbox
