"""Expressions in workflows: `{{ steps.fetch.output.status }}`.

A text that is a single `{{ ... }}` evaluates to the value itself, such as a list or a number. In a longer text, values are
inserted as text. Unknown names are errors. Only the definition is ever parsed for expressions, never the data. A value without
`{{` is not evaluated, and does not import the template engine of `expression_sandbox`.
"""

from asyncio import get_running_loop
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from anyio.lowlevel import RunVar
from msgspec import Struct

from mainspring.core.errors import InvalidRequest
from mainspring.late_module import LateModule
from mainspring.tools.work_turns import Turns

if TYPE_CHECKING:
    from mainspring.features.workflows import expression_sandbox as sandbox
else:
    sandbox = LateModule("mainspring.features.workflows.expression_sandbox")

AT_ONCE: Final = 2


class ExpressionReads(Struct, frozen=True):
    """What an expression reads: names, and ids of steps; of `results` it reads outputs, of `outcomes` the `status` or `error`.
    `fields` are what it reads of which step."""

    names: frozenset[str] = frozenset()
    results: frozenset[str] = frozenset()
    outcomes: frozenset[str] = frozenset()
    fields: frozenset[tuple[str, str]] = frozenset()

    @property
    def steps(self) -> frozenset[str]:
        return self.results | self.outcomes

    def __or__(self, other: "ExpressionReads") -> "ExpressionReads":
        return ExpressionReads(
            self.names | other.names, self.results | other.results, self.outcomes | other.outcomes, self.fields | other.fields
        )


async def resolve_values(template: object, names: Mapping[str, object], tenant: str) -> Any:
    """Like `resolve_values_now`, on a thread, so that a long evaluation does not block the event loop. Tenants take turns."""
    if next(_templates(template), None) is None:
        return resolve_values_now(template, names)
    async with _find_turns().take(tenant):
        return await get_running_loop().run_in_executor(_get_threads(), resolve_values_now, template, names)


async def check_condition(expression: str | bool, names: Mapping[str, object], tenant: str) -> bool:
    """Like `is_true`, on a thread."""
    async with _find_turns().take(tenant):
        return await get_running_loop().run_in_executor(_get_threads(), is_true, expression, names)


_turns: RunVar[Turns | None] = RunVar("expression_turns")


def _find_turns() -> Turns:
    if (turns := _turns.get(None)) is None:
        turns = Turns(AT_ONCE)
        _turns.set(turns)
    return turns


@cache
def _get_threads() -> ThreadPoolExecutor:
    """Threads that compute keep each other from the interpreter, and the event loop as well: it waits for all of them in turn.
    One whose result nobody waits for any more counts until it is done."""
    return ThreadPoolExecutor(AT_ONCE, "expressions")


def resolve_values_now(template: object, names: Mapping[str, object]) -> Any:
    """Evaluates every expression in a value of a definition. Raises `InvalidRequest`."""
    match template:
        case str() if _is_template(template):
            return sandbox.render_template(template, names)
        case dict():
            return {name: resolve_values_now(each, names) for name, each in template.items()}
        case list() | tuple():
            return [resolve_values_now(each, names) for each in template]
        case _:
            return template


def is_true(expression: str | bool, names: Mapping[str, object]) -> bool:
    """Whether a condition holds, with or without `{{ }}` around it. Raises `InvalidRequest` for a text such as `no`, which
    would count as true."""
    if isinstance(expression, bool):
        return expression
    said = sandbox.evaluate(expression, names)
    if isinstance(said, str) and said.strip().lower() in ("true", "false", "yes", "no"):
        raise InvalidRequest(f"the condition `{expression[:120]}` gives the text `{said}`; compare it: ... == '{said}'")
    return bool(said)


def find_reads(template: object) -> ExpressionReads:
    """What the expressions in a value of a definition read. Raises `InvalidRequest` for an invalid expression."""
    found = ExpressionReads()
    for text in _templates(template):
        found |= sandbox.find_reads(text)
    return found


def find_expression_reads(expression: str) -> ExpressionReads:
    """Like `find_reads`, for an expression with or without `{{ }}` around it."""
    read: ExpressionReads = sandbox.find_reads(expression, is_expression=True)
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
