"""Expressions: values, text, names that are not there; and everything that wants out of the sandbox, or to fill it."""

import asyncio
import threading
import time
import tracemalloc
from collections.abc import Iterator, Mapping

import anyio
import pytest

from mainspring.core.errors import InvalidRequest
from mainspring.core.items import Json
from mainspring.features.workflows.expressions import (
    check_condition,
    find_expression_reads,
    find_reads,
    is_true,
    resolve_values,
    resolve_values_now,
)

NAMES: Json = {
    "inputs": {"n": 3, "list": [1, 2], "text": "a b", "items": "a key", "template": "{{ 7 * 7 }}", "nothing": None},
    "steps": {"get-it": {"output": {"ok": True}, "status": "success"}},
}


@pytest.mark.parametrize(
    ("template", "value"),
    [
        ("{{ inputs.n }}", 3),
        ("{{inputs.list}}", [1, 2]),
        ("{{- inputs.n -}}", 3),
        ("{{ -inputs.n }}", -3),
        ("  {{ inputs.n + 1 }}  ", 4),
        ("{{ {'a': inputs.list, 'b': none} }}", {"a": [1, 2], "b": None}),
        ("{{ steps['get-it'].output.ok }}", True),
        ("{{ inputs.items }}", "a key"),
        ("{{ inputs.nothing }}", None),
        ("{{ '{{' }}", "{{"),
        ("{{ range(3) }}", [0, 1, 2]),
        ("{{ {'a': 1}.keys() }}", ["a"]),
        ("{{ inputs.list | map('string') | join('-') }}", "1-2"),
        ("{{ inputs.text.split() | last | upper }}", "B"),
        ("{{ '[1, {\"a\": 2}]' | fromjson }}", [1, {"a": 2}]),
        ("{{ inputs.list | tojson }}", "[1,2]"),
        ("{{ inputs.missing | default('none') }}", "none"),
        ("{{ 'yes' if inputs.n > 2 else 'no' }}", "yes"),
        ("n={{ inputs.n }}", "n=3"),
        ("{{ inputs.n }}{{ inputs.n }}", "33"),
        ("{{ inputs.text }}\n", "a b"),
        ("plain", "plain"),
        (7, 7),
        ({"a": ["{{ inputs.n }}", {"b": "{{ inputs.text }}!"}]}, {"a": [3, {"b": "a b!"}]}),
    ],
)
def test_one_expression_is_its_value_and_mixed_text_is_text(template: object, value: object) -> None:
    assert resolve_values_now(template, NAMES) == value


def test_what_the_data_says_is_never_read_as_an_expression() -> None:
    assert resolve_values_now("{{ inputs.template }}", NAMES) == "{{ 7 * 7 }}"
    assert resolve_values_now("<{{ inputs.template }}>", NAMES) == "<{{ 7 * 7 }}>"


@pytest.mark.parametrize(
    "template", ["{{ inputs.missing }}", "{{ missing }}", "x{{ inputs.missing }}", "{{ steps.other.output }}"]
)
def test_a_name_that_leads_nowhere_is_an_error_that_names_it(template: str) -> None:
    with pytest.raises(InvalidRequest, match=r"cannot be evaluated: .*(missing|other)"):
        resolve_values_now(template, NAMES)


@pytest.mark.parametrize(
    "template",
    [
        "{{ ''.__class__ }}",
        "{{ ''['__class__'] }}",
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ ().__class__.__bases__[0] }}",
        "{{ inputs.__init__.__globals__ }}",
        "{{ inputs.get.__self__ }}",
        "{{ inputs.text.upper.__func__ }}",
        "{{ inputs | attr('__class__') }}",
        "{{ [inputs] | map(attribute='__class__') | list }}",
        "{{ inputs | selectattr('__class__') | list }}",
        "{{ '{0.__class__}'.format(inputs) }}",
        "{{ '{0.__class__}'.format_map({'0': 1}) }}",
        "{{ ['{0.__class__}'] | map('format', inputs) | list }}",
        "{{ self }}",
        "{{ self.__init__.__globals__ }}",
        "{{ self._TemplateReference__context }}",
        "{{ range.__init__ }}",
        "{{ lipsum.__globals__ }}",
        "{{ cycler.__init__.__globals__.os }}",
        "{{ joiner() }}",
        "{{ namespace(a=1) }}",
        "{{ dict(a=1) }}",
        "{{ config }}",
        "{{ caller() }}",
        "{{ inputs.list.append(3) }}",
        "{{ inputs.update({'n': 4}) }}",
        "{{ inputs.get }}",
        "{{ range }}",
        "{% for x in [1] %}{{ x }}{% endfor %}",
        "{% set x = 1 %}{{ x }}",
        "{% include '/etc/passwd' %}",
        "{% import 'os' as os %}",
        "{% macro m() %}{% endmacro %}",
        "{% raw %}{{ x }}{% endraw %}{% if 1 %}{% endif %}",
    ],
)
def test_nothing_leads_out_of_the_sandbox(template: str) -> None:
    before = dict(NAMES["inputs"])
    with pytest.raises(InvalidRequest):
        resolve_values_now(template, NAMES)
    assert NAMES["inputs"] == before


@pytest.mark.parametrize(
    "template",
    [
        "{{ range(10 ** 9) }}",
        "{{ range(0, 10 ** 18, 2) | list }}",
        "{{ 'a' * 10 ** 9 }}",
        "{{ 10 ** 9 * 'a' }}",
        "{{ [0] * 10 ** 9 }}",
        "{{ ([[0] * 1000] * 1000) * 1000 }}",
        "{{ 2 ** 1000000000 }}",
        "{{ (10 ** 1000) * (10 ** 1000) }}",
        "{{ 10 ** 1000 * 10 ** 1000 }}",
        "{{ '%999999999d' % 1 }}",
        "{{ '{:>999999999}'.format(1) }}",
        "{{ 'a' | center(10 ** 9) }}",
        "{{ 'a'.center(10 ** 9) }}",
        "{{ 'a'.ljust(10 ** 9) }}",
        "{{ 'a'.zfill(10 ** 9) }}",
        "{{ ('a' * 100000).replace('a', 'b' * 100000) }}",
        "{{ ('a' * 100000) | replace('a', 'b' * 100000) }}",
        "{{ range(10000) | join('b' * 100000) }}",
        "{{ ('b' * 100000).join(['a'] * 10000) }}",
        "{{ 1.5 | round(10 ** 9, 'ceil') }}",
        "{{ ['a' * 900000, 'a' * 900000] }}",
        "{{ 'a' * 900000 }}{{ 'a' * 900000 }}",
        "{{ 'a' | indent(10 ** 9) }}",
        "{{ range(9) | batch(10 ** 9, 0) | list }}",
        "{{ 'a' | wordwrap(1, wrapstring='b' * 1000000) }}",
        "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}",
        "{{ " + "1 + " * 9000 + "1 }}",
        "{{ inputs" + ".a" * 300 + " }}",
        "{{ ('a' * 400000) | map('replace', 'a', 'b' * 20000) }}",
        "{{ ('a' * 400000) | map('replace', 'a', 'b' * 20000) | list | length }}",
        "{{ ([[1]] * 20000) | sum(start=[]) }}",
        "{{ range(10000) | select('in', range(10000) | map('string') | list) | list }}",
        "{{ range(10000) | select('in', range(10000) | map('string') | list) | first }}",
    ],
)
def test_no_expression_grows_without_bounds(template: str) -> None:
    with pytest.raises(InvalidRequest):
        resolve_values_now(template, NAMES)


LARGE: Json = {"text": "\U0001f600" * 900_000, "words": ("\U0001f600" * 999 + " ") * 900, "list": ["ab"] * 100_000}


@pytest.mark.parametrize(
    "template",
    [
        "{{ [" + "'\U0001f600' * 900000, " * 200 + "] | length }}",
        "{{ [" + "[0] * 900000, " * 200 + "] | length }}",
        "{{ " + " ~ ".join(["text"] * 250) + " }}",
        "{{ (" + " ~ ".join(["text"] * 250) + ") | length }}",
        "{{ [" + "text[1:], " * 200 + "] | length }}",
        "{{ [" + "list[::-1], " * 200 + "] | length }}",
        "{{ [" + "text.upper(), " * 200 + "] | length }}",
        "{{ [" + "words.split(), " * 200 + "] | length }}",
        "{{ [" + "text | upper, " * 200 + "] | length }}",
        "{{ [" + "list + list, " * 200 + "] | length }}",
        "{{ [" + "text, " * 250 + "] | tojson | length }}",
        "{{ [" + "text, " * 250 + "] | string | length }}",
        "{{ [" + "text, " * 250 + "] | join | length }}",
        "{{ [[" + "text, " * 250 + "]] | join | length }}",
        "so: {{ [" + "text, " * 250 + "] }}",
        "{{ [" + "text | tojson, " * 200 + "] | length }}",
    ],
    ids=lambda template: template[:30],
)
def test_what_an_expression_holds_at_once_is_bounded(template: str) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(InvalidRequest, match=r"at most|more than"):
            resolve_values_now(template, LARGE)
        assert tracemalloc.get_traced_memory()[1] < 100_000_000
    finally:
        tracemalloc.stop()


def test_slices_and_joined_words_are_what_they_were() -> None:
    names = {"text": "abcdef", "list": [1, 2, 3]}
    made = resolve_values_now("{{ [text[1:3], text[::-1], list[-2:], list[0], text ~ list[:1] ~ 7, text[:2] ~ '!'] }}", names)
    assert made == ["bc", "fedcba", [2, 3], 1, "abcdef[1]7", "ab!"]


@pytest.mark.parametrize("expression", ["inputs.n == 3", "{{ inputs.n == 3 }}", "steps['get-it'].output.ok", True])
def test_a_condition_needs_no_braces(expression: str | bool) -> None:
    assert is_true(expression, NAMES) is True
    assert is_true("not inputs.list", NAMES) is False


def test_a_condition_that_gives_a_word_for_no_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="gives the text `false`"):
        is_true("'false'", NAMES)


def test_what_an_expression_reads_is_known_without_evaluating_it() -> None:
    reading = find_reads({"a": ["{{ steps.one.output ~ steps['two-2'].output }}"], "b": "{{ inputs.x }}", "c": "steps.three"})
    assert reading.names == {"steps", "inputs"}
    assert reading.steps == {"one", "two-2"}
    assert find_expression_reads("steps.three.status == 'success'").steps == {"three"}


@pytest.mark.parametrize("expression", ["{{ a }} and {{ b }}", "a b", "", "{{ }}", "inputs.n ==", "x | nofilter"])
def test_what_is_no_expression_is_told_before_it_is_evaluated(expression: str) -> None:
    with pytest.raises(InvalidRequest, match="is not an expression"):
        find_expression_reads(expression)


async def test_others_go_on_while_an_expression_is_evaluated() -> None:
    """What is evaluated is told in another thread, and so can be waited for by whoever is meanwhile served in this one."""
    served, asked = threading.Event(), anyio.Event()
    loop = asyncio.get_running_loop()

    class Slow(dict[str, object]):
        def __missing__(self, key: str) -> object:
            loop.call_soon_threadsafe(asked.set)
            assert served.wait(30)
            return 7

        def __contains__(self, key: object) -> bool:
            return True

    async def serve() -> None:
        await asked.wait()
        served.set()

    async with anyio.create_task_group() as group:
        group.start_soon(serve)
        assert await resolve_values("{{ inputs.a }}", {"inputs": Slow()}, "") == 7
        served.clear()
        assert await check_condition("inputs.a == 7", {"inputs": {"a": 7}}, "")


def test_what_is_asked_of_a_step_is_told_apart() -> None:
    reading = find_expression_reads("steps.a.status == 'failed' and steps['b'].error and steps.c.output.status and steps.d")
    assert (set(reading.outcomes), set(reading.results)) == ({"a", "b"}, {"c", "d"})


class Crowd(Mapping[str, object]):
    """Names that note how many read them at the same time."""

    def __init__(self) -> None:
        self.now = self.most = 0
        self._turn = threading.Lock()

    def __getitem__(self, name: str) -> object:
        with self._turn:
            self.now += 1
            self.most = max(self.most, self.now)
        time.sleep(0.005)
        with self._turn:
            self.now -= 1
        return {"x": 1}

    def __iter__(self) -> Iterator[str]:
        return iter(("inputs",))

    def __len__(self) -> int:
        return 1


async def test_few_expressions_are_evaluated_at_once() -> None:
    crowd = Crowd()
    async with anyio.create_task_group() as group:
        for _ in range(20):
            group.start_soon(resolve_values, "{{ inputs.x }}", crowd, "")
    assert 1 <= crowd.most <= 2


async def test_tenants_take_turns_with_their_expressions() -> None:
    crowd, done = Crowd(), list[str]()

    async def evaluate(tenant: str) -> None:
        assert await resolve_values("{{ inputs.x }}", crowd, tenant) == 1
        done.append(tenant)

    async with anyio.create_task_group() as group:
        for tenant in [*["busy"] * 20, "other"]:
            group.start_soon(evaluate, tenant)
    assert done.index("other") < 6


async def test_expressions_that_nobody_waits_for_any_more_count_until_they_are_evaluated() -> None:
    crowd = Crowd()
    for _ in range(20):
        with anyio.move_on_after(0.001):
            await resolve_values("{{ inputs.x }}", crowd, "")
    assert await resolve_values("{{ inputs.x }}", crowd, "") == 1
    assert 1 <= crowd.most <= 2
