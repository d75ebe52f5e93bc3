"""The sandbox that expressions are evaluated in: a template engine, with everything taken away that can do harm or grow.

The engine's own sandbox keeps expressions away from Python's insides. On top of it only expressions are left, no statements and
so no loops; methods and filters are those listed here; whatever could grow a value by a factor is bounded; and all that filters,
tests, methods, operators and slices go through or make is counted, and an evaluation has so much and no more: that bounds its
memory, since what it made may all be held at once. `~` and slices are compiled as filters, since the engine offers no other way
to see what they make. Import this only to evaluate: the template engine takes longer to import than most commands.
"""

from collections.abc import Callable, ItemsView, Iterator, KeysView, Mapping, Sized, ValuesView
from contextvars import ContextVar
from functools import lru_cache, wraps
from types import BuiltinMethodType, MethodType
from typing import Any, Final, cast

import msgspec
from jinja2 import StrictUndefined, TemplateError, Undefined, nodes, pass_environment, pass_eval_context
from jinja2.exceptions import SecurityError
from jinja2.filters import FILTERS, do_join, do_replace, do_round, do_sum
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.tests import TESTS
from jinja2.visitor import NodeTransformer

from mainspring.core.errors import InvalidRequest
from mainspring.core.items import to_json
from mainspring.core.json_values import parse_json
from mainspring.features.workflows.expressions import ExpressionReads

MOST_CHARS: Final = 1_000_000

MOST_STEPS: Final = 10_000

MOST_BITS: Final = 4_096

MOST_WORK: Final = 2_000_000
"""How many elements and characters one evaluation may go through and make: about a second, and 100 MB, at the worst."""

MOST_DEPTH: Final = 100

LONGEST: Final = 20_000


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_METHODS: Final[dict[type, frozenset[str]]] = {
    str: _words(
        "upper lower title capitalize strip lstrip rstrip split rsplit splitlines startswith endswith removeprefix removesuffix "
        "find count isdigit isalpha isalnum"
    ),
    dict: _words("get keys values items"),
    list: _words("index count"),
}

_FILTERS: Final = _words(
    "abs capitalize count d default dictsort first float groupby int items join last length list lower map max min reject "
    "rejectattr replace reverse round select selectattr sort string sum title trim truncate unique upper wordcount"
)

_TESTS: Final = _words(
    "boolean defined divisibleby eq equalto even false float ge greaterthan gt in integer iterable le lessthan lower lt mapping "
    "ne none number odd sequence string true undefined upper == != < <= > >="
)


@lru_cache(maxsize=1024)
def find_reads(text: str, *, is_expression: bool = False) -> ExpressionReads:
    """The names and steps that the expressions of a text read. Raises `InvalidRequest` for an invalid expression."""
    meant = _add_braces(text) if is_expression else text.strip()
    _compile(meant)
    tree = _parse(meant)
    if is_expression and not _is_one(tree):
        raise InvalidRequest(f"`{_short(text)}` is not an expression; write one, such as `steps.a.output == 1`")
    names = {node.name for node in tree.find_all(nodes.Name)}
    attributes = [(node, node.node, node.attr) for node in tree.find_all(nodes.Getattr)]
    items = [(node, node.node, node.arg.value) for node in tree.find_all(nodes.Getitem) if isinstance(node.arg, nodes.Const)]
    keys = (*attributes, *items)
    ended = [owner for _, owner, key in keys if key in ("status", "error")]
    steps = [(node, str(key)) for node, owner, key in keys if isinstance(owner, nodes.Name) and owner.name == "steps"]
    outcomes = {id for node, id in steps if any(node is each for each in ended)}
    results = {id for node, id in steps if not any(node is each for each in ended)}
    fields = {(id, str(key)) for node, id in steps for _, owner, key in keys if owner is node}
    return ExpressionReads(frozenset(names), frozenset(results), frozenset(outcomes), frozenset(fields))


def render_template(text: str, names: Mapping[str, object]) -> Any:
    """The value of a text that is a single expression, else the text with values inserted. Raises `InvalidRequest`."""
    whole = text.strip()
    # Blanks around a single expression are nobody's wish; in other text they belong to it.
    return _value(whole if _is_one(_parse(whole)) else text, names)


def evaluate(expression: str, names: Mapping[str, object]) -> Any:
    """The value of an expression, with or without `{{ }}` around it. Raises `InvalidRequest`."""
    return _value(_add_braces(expression), names)


def _value(text: str, names: Mapping[str, object]) -> Any:
    prepared, token = _compile(text), _LEFT.set([MOST_WORK])
    try:
        value = prepared(names)
        if isinstance(value, Undefined):
            value._fail_with_undefined_error()
        return _to_plain_data(list(value) if isinstance(value, _VIEWS) else value, text)
    except _FAULTS as error:
        raise _wrong(text, error) from error
    finally:
        _LEFT.reset(token)


@lru_cache(maxsize=4096)
def _compile(text: str) -> Callable[[Mapping[str, object]], object]:
    """Compiles a text to a function of its names. Raises `InvalidRequest` for anything but expressions."""
    is_one = _is_one(_parse(text))
    try:
        if is_one:
            return _environment().compile_expression(_bare(text), undefined_to_none=False)
        template = _environment().from_string(text)
    except (TemplateError, RecursionError, SyntaxError, ValueError, MemoryError) as error:
        raise InvalidRequest(f"`{_short(text)}` is not an expression: {error}") from error
    return lambda names: _join_pieces(template.generate(names))


def _join_pieces(pieces: Iterator[str]) -> str:
    whole: list[str] = []
    size = 0
    for piece in pieces:
        whole.append(piece)
        _check_size(size := size + len(piece))
    return "".join(whole)


@lru_cache(maxsize=1024)
def _parse(text: str) -> nodes.Template:
    if len(text) > LONGEST:
        raise InvalidRequest(f"an expression has {len(text)} characters; at most {LONGEST} are allowed")
    try:
        tree = _environment().parse(text)
    except (TemplateError, RecursionError) as error:
        raise InvalidRequest(f"`{_short(text)}` is not an expression: {error}") from error
    if (depth := _depth(tree)) > MOST_DEPTH:
        told = f"`{_short(text)}` nests {depth} expressions; at most {MOST_DEPTH} are allowed: make several steps of it"
        raise InvalidRequest(told)
    if not all(isinstance(node, nodes.Output) for node in tree.body):
        raise InvalidRequest(f"`{_short(text)}` has a statement; only expressions `{{{{ ... }}}}` are allowed")
    return tree


def _depth(tree: nodes.Node) -> int:
    deepest, left = 0, [(tree, 0)]
    while left:
        node, depth = left.pop()
        deepest = max(deepest, depth)
        left.extend([(inner, depth + 1) for inner in node.iter_child_nodes()])
    return deepest


def _is_one(tree: nodes.Template) -> bool:
    """Whether this is a single expression with nothing around it."""
    parts = [node for output in tree.body if isinstance(output, nodes.Output) for node in output.nodes]
    return len(parts) == 1 and not isinstance(parts[0], nodes.TemplateData)


# What an expression can do wrong: the sandbox's objections, and Python's to what it was made to do.
_FAULTS = (TemplateError, TypeError, ValueError, ArithmeticError, LookupError, AttributeError, RecursionError, MemoryError)

_VIEWS = (Iterator, range, KeysView, ValuesView, ItemsView)


def _wrong(text: str, error: BaseException) -> InvalidRequest:
    return InvalidRequest(f"`{_short(text)}` cannot be evaluated: {str(error) or type(error).__name__}")


def _add_braces(expression: str) -> str:
    text = expression.strip()
    return text if text.startswith("{{") and text.endswith("}}") else "{{" + text + "}}"


def _bare(text: str) -> str:
    """The text between the braces, without whitespace control signs."""
    inside = text[2:-2]
    inside = inside[1:] if inside[:1] in ("-", "+") else inside
    return inside[:-1] if inside[-1:] in ("-", "+") else inside


def _to_plain_data(value: object, text: str) -> Any:
    """Converts the value to plain data. Raises `InvalidRequest` if it is not, or is too large."""
    try:
        _check_size(_size(value))
        return msgspec.json.decode(msgspec.json.encode(value))
    except SecurityError as error:
        raise _wrong(text, error) from error
    except (TypeError, ValueError, RecursionError, OverflowError, NotImplementedError) as error:
        kind = type(value).__name__
        raise InvalidRequest(f"`{_short(text)}` does not give plain data but `{kind}`: {error}") from error


def _short(text: object) -> str:
    whole = " ".join(str(text).split())
    return whole if len(whole) <= 120 else f"{whole[:120]}..."


class _Environment(ImmutableSandboxedEnvironment):
    """The sandbox, restricted further."""

    intercepted_binops = frozenset({"*", "**", "%", "+"})

    def getattr(self, obj: Any, attribute: str) -> Any:
        # Data goes before methods: `output.items` is the key, if there is one.
        if isinstance(obj, Mapping) and attribute in obj:
            return obj[attribute]
        return super().getattr(obj, attribute)

    def wrap_str_format(self, value: Any) -> Any:
        is_method = isinstance(value, MethodType | BuiltinMethodType)
        if is_method and value.__name__ in ("format", "format_map") and isinstance(value.__self__, str):
            raise SecurityError("`format` pads without bounds and is not allowed; join text with `~`")
        return None

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        allowed = next((names for kind, names in _METHODS.items() if isinstance(obj, kind)), frozenset())
        return attr in allowed and super().is_safe_attribute(obj, attr, value)

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        if operator == "%" and isinstance(left, str):
            raise SecurityError("`%` does not format text here; join it with `~`")
        if operator == "*" and any(isinstance(side, Sized) for side in (left, right)):
            what, times = (left, right) if isinstance(left, Sized) else (right, left)
            _check_size(_size(what) * times if isinstance(times, int) else 0)
        elif operator == "**" or (operator == "*" and isinstance(left, int) and isinstance(right, int)):
            _check_power(operator, left, right)
        elif operator == "+" and isinstance(left, Sized) and isinstance(right, Sized):
            _check_size(len(left) + len(right))
        return _count_made(super().call_binop(context, operator, left, right))

    def call(*given: Any, **options: Any) -> Any:
        # As its base declares it: every name is free for what is called.
        made = ImmutableSandboxedEnvironment.call(*given, **options)
        _spend(_size(made))
        return made

    def _generate(self, source: nodes.Template, *given: Any, **options: Any) -> str:
        return super()._generate(_Transformer().visit(source), *given, **options)


class _Transformer(NodeTransformer):
    """Makes filters of `~` and of slices."""

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        parts = nodes.List([self.visit(part) for part in node.nodes], lineno=node.lineno)
        return nodes.Filter(parts, "concat", [], [], None, None, lineno=node.lineno)

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Node:
        self.generic_visit(node)
        if not isinstance(cut := node.arg, nodes.Slice):
            return node
        bounds = [bound or nodes.Const(None, lineno=node.lineno) for bound in (cut.start, cut.stop, cut.step)]
        return nodes.Filter(node.node, "slice", bounds, [], None, None, lineno=node.lineno)


def _check_power(operator: str, left: Any, right: Any) -> None:
    if not (isinstance(left, int | float) and isinstance(right, int | float)):
        raise SecurityError(f"`{operator}` takes numbers")
    if isinstance(left, int) and isinstance(right, int):
        bits = left.bit_length() * abs(right) if operator == "**" else left.bit_length() + right.bit_length()
        if bits > MOST_BITS:
            raise SecurityError(f"`{operator}` would give a number of {bits} bits; at most {MOST_BITS} are allowed")


def _size(value: object) -> int:
    """The size of a value, counted up to the limit."""
    size, left = 0, [value]
    while left and size <= MOST_CHARS:
        match left.pop():
            case str(text):
                size += len(text) + 1
            case dict(pairs):
                size += 1 + sum([len(str(name)) for name in pairs])
                left.extend(pairs.values())
            case list() | tuple() as many:
                size += 1
                left.extend(many)
            case _:
                size += 1
    return size


def _check_size(size: int) -> None:
    if size > MOST_CHARS:
        raise SecurityError(f"this would give {size} characters or elements; at most {MOST_CHARS} are allowed")


_LEFT: ContextVar[list[int]] = ContextVar("left")


def _count_work(work: Callable[..., Any]) -> Callable[..., Any]:
    """Counts the work of a filter or a test; that of a lazy one as its results are consumed."""

    @wraps(work)
    def run_counted(*given: Any, **options: Any) -> Any:
        _count(*given)
        made = work(*given, **options)
        return _each(made) if isinstance(made, Iterator) else _count_made(made)

    return run_counted


def _each(made: Iterator[Any]) -> Iterator[Any]:
    for item in made:
        _count(item)
        yield item


def _count(*values: object) -> None:
    _spend(1 + sum([len(value) for value in values if isinstance(value, str | list | tuple | dict | range)]))


def _spend(work: int) -> None:
    left = _LEFT.get()
    left[0] -= work
    if left[0] < 0:
        raise SecurityError(f"it goes through more than {MOST_WORK} elements and characters; pass it less, or use a command")


def _count_made(made: Any) -> Any:
    _count(made)
    return made


def _check_whole(value: Any) -> Any:
    """The value, unless it would be too long as text."""
    _check_size(_size(value))
    return value


def _range(*bounds: int) -> range:
    made = range(*bounds)
    if len(made) > MOST_STEPS:
        raise SecurityError(f"range has {len(made)} steps; at most {MOST_STEPS} are allowed")
    return made


@pass_eval_context
def _join(eval_ctx: Any, value: Any, d: str = "", attribute: Any = None) -> str:
    parts = _check_whole(list(value))
    _check_size(len(str(d)) * len(parts) + sum([len(str(part)) for part in parts]))
    return str(do_join(eval_ctx, parts, d, attribute))


@pass_eval_context
def _replace(eval_ctx: Any, s: str, old: str, new: str, count: int | None = None) -> str:
    _check_size(len(str(s)) + str(s).count(str(old)) * len(str(new)))
    return str(do_replace(eval_ctx, str(s), str(old), str(new), count))


@pass_environment
def _sum(environment: Any, iterable: Any, attribute: Any = None, start: Any = 0) -> Any:
    if not isinstance(start, int | float):
        raise SecurityError(f"sum adds numbers; it cannot start with `{type(start).__name__}`")
    return do_sum(environment, iterable, attribute, start)


def _round(value: float, precision: int = 0, method: Any = "common") -> float:
    if not 0 <= precision <= 15:
        raise SecurityError(f"round keeps 0 to 15 digits, not {precision}")
    return do_round(value, precision, method)


def _to_json(value: Any) -> str:
    return to_json(_check_whole(value))


def _to_string(value: Any) -> str:
    return str(_check_whole(value))


def _concat(parts: list[Any]) -> str:
    return "".join([str(part) for part in _check_whole(parts)])


def _slice(value: Any, start: int | None, stop: int | None, step: int | None) -> Any:
    return value[start:stop:step]


def _from_json(text: str) -> Any:
    try:
        return parse_json(text)
    except ValueError as error:
        raise ValueError(f"the text is not JSON: {error}") from None


@lru_cache(maxsize=1)
def _environment() -> _Environment:
    # Not optimized: what is constant would be computed when it is compiled, and not run_counted.
    made = _Environment(
        undefined=StrictUndefined, autoescape=False, keep_trailing_newline=True, optimized=False, finalize=_check_whole
    )
    own = {
        "join": _join, "replace": _replace, "round": _round, "sum": _sum, "tojson": _to_json, "fromjson": _from_json,
        "string": _to_string, "concat": _concat, "slice": _slice,
    }  # fmt: skip
    made.filters = {name: _count_work(work) for name, work in ({name: FILTERS[name] for name in _FILTERS} | own).items()}
    made.tests = {name: _count_work(cast(Callable[..., Any], TESTS[name])) for name in _TESTS}
    made.globals = {"range": _range}
    return made
