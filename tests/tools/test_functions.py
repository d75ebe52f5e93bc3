"""Python functions as tools: how they are declared, what the model is told of them, and how they run."""

import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import date, datetime
from decimal import Decimal
from enum import Enum
from functools import partial, wraps
from pathlib import PurePosixPath
from types import MappingProxyType
from typing import Annotated, Any, Literal, NotRequired, Optional, TypedDict, cast
from uuid import UUID

import anyio
import anyio.from_thread
import msgspec
import pytest
from anyio import to_thread
from anyio.lowlevel import checkpoint
from msgspec import Meta
from tests.kit.waiting import PATIENCE

from mainspring import Engine
from mainspring.core.errors import DelegateToClient
from mainspring.core.items import InputImage, InputText, Json, Part, ToolDefinition, Unknown, decode, encode
from mainspring.ports import CallContext, ToolCall, ToolExecutor, ToolResult
from mainspring.providers.scripted import Scripted, call, calls, say
from mainspring.tools.contract import ToolContext
from mainspring.tools.functions import MOST_OF_TENANT, FunctionTool, parse_docstring, tool
from mainspring.tools.registry import Registry
from mainspring.tools.schema import Validator


def definition(function: Callable[..., object]) -> ToolDefinition:
    (made,) = Registry([function]).definitions
    return made


def parameters(function: Callable[..., object]) -> Json:
    made = definition(function).parameters
    assert made is not None
    return made


def properties(function: Callable[..., object]) -> Json:
    return cast(Json, parameters(function)["properties"])


async def result(function: Callable[..., object], progress: Callable[[str], None] = print, /, **arguments: object) -> ToolResult:
    registry: ToolExecutor = Registry([function])
    (made,) = Registry([function]).definitions
    assert registry.can_execute(made)
    call = ToolCall("call_1", made.name, encode(arguments).decode(), arguments)
    return await registry.execute(call, CallContext("resp_1", made, progress))


async def output(function: Callable[..., object], /, **arguments: object) -> str | tuple[Part, ...]:
    given = await result(function, print, **arguments)
    assert (given.call_id, given.is_error) == ("call_1", False)
    return given.output


class Color(Enum):
    RED = "red"
    BLUE = "blue"


@dataclass
class Place:
    """Somewhere."""

    name: Annotated[str, Meta(description="As on the map.")]
    tags: list[str] = field(default_factory=list)


HOME = Place("x")
NOT_GIVEN = cast(int, object())


class Size(TypedDict):
    width: int
    height: NotRequired[int]


class Node(msgspec.Struct):
    value: int
    children: list["Node"] = []


def test_a_function_becomes_a_definition() -> None:
    @tool(repeatable=True, polls=True, effects=("read", "network"), timeout=2.5)
    def weather(city: str, days: int = 1) -> str:
        """Tells the weather,
        as far as it is known.

        More that the model need not read.

        Args:
            city: Which city,
                by its full name.
            days (int, optional): How far to look ahead.
        """
        return f"{city} {days}"

    assert definition(weather) == ToolDefinition(
        name="weather",
        description="Tells the weather, as far as it is known.",
        parameters={
            "type": "object",
            "properties": {
                "city": {"type": "string", "description": "Which city, by its full name."},
                "days": {"type": "integer", "description": "How far to look ahead.", "default": 1},
            },
            "required": ["city"],
            "additionalProperties": False,
        },
        kind="builtin",
        repeatable=True,
        effects=("read", "network"),
        timeout=2.5,
        polls=True,
    )
    assert weather("Rome") == "Rome 1"


def test_a_declaration_works_bare_and_names_can_be_given() -> None:
    @tool
    def first() -> None:
        """One."""

    @tool(name="second-tool", description="Two.")
    def other() -> None:
        """Not this."""

    assert [(made.name, made.description) for made in Registry([first, other]).definitions] == [
        ("first", "One."),
        ("second-tool", "Two."),
    ]
    assert first.__name__ == "first"


def test_a_plain_function_is_taken_as_it_is() -> None:
    def add(a: int, b: int) -> int:
        return a + b

    assert definition(add) == ToolDefinition(
        "add",
        parameters={
            "type": "object",
            "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
            "required": ["a", "b"],
            "additionalProperties": False,
        },
        kind="builtin",
    )


@pytest.mark.parametrize(
    ("hint", "schema"),
    [
        (str, {"type": "string"}),
        (float, {"type": "number"}),
        (bool, {"type": "boolean"}),
        (Any, {}),
        (Optional[int], {"anyOf": [{"type": "integer"}, {"type": "null"}]}),  # noqa: UP045
        (int | str, {"anyOf": [{"type": "integer"}, {"type": "string"}]}),
        (Literal["a", "b"], {"enum": ["a", "b"]}),
        (Color, {"enum": ["blue", "red"]}),
        (list[Color], {"type": "array", "items": {"enum": ["blue", "red"]}}),
        (dict[str, int], {"type": "object", "additionalProperties": {"type": "integer"}}),
        (
            tuple[int, str],
            {
                "type": "array",
                "minItems": 2,
                "maxItems": 2,
                "prefixItems": [{"type": "integer"}, {"type": "string"}],
                "items": False,
            },
        ),
        (date, {"type": "string", "format": "date"}),
        (
            Annotated[int, Meta(ge=1, description="At least one.")],
            {"type": "integer", "minimum": 1, "description": "At least one."},
        ),
        (
            Place,
            {
                "description": "Somewhere.",
                "type": "object",
                "properties": {
                    "name": {"type": "string", "description": "As on the map."},
                    "tags": {"type": "array", "items": {"type": "string"}},
                },
                "required": ["name"],
                "additionalProperties": False,
            },
        ),
        (
            Size,
            {
                "type": "object",
                "properties": {"height": {"type": "integer"}, "width": {"type": "integer"}},
                "required": ["width"],
                "additionalProperties": False,
            },
        ),
    ],
    ids=str,
)
def test_a_hint_becomes_a_schema_complete_in_itself(hint: object, schema: Json) -> None:
    def take(value: object) -> None: ...

    take.__annotations__["value"] = hint
    assert properties(take) == {"value": schema}
    Validator(definition(take))


def test_a_type_that_contains_itself_is_described_once() -> None:
    def grow(root: Node) -> None: ...

    schema = parameters(grow)
    assert schema["properties"] == {"root": {"$ref": "#/$defs/Node"}}
    assert list(schema["$defs"]) == ["Node"]
    assert Validator(definition(grow)).errors({"root": {"value": 1, "children": [{"value": 2}]}}) == []


def test_defaults_are_told_where_json_can_express_them() -> None:
    def take(color: Color = Color.RED, size: tuple[int, int] = (1, 2), place: Place = HOME, odd: int = NOT_GIVEN) -> None: ...

    assert {name: schema.get("default", "-") for name, schema in properties(take).items()} == {
        "color": "red",
        "size": [1, 2],
        "place": {"name": "x", "tags": []},
        "odd": "-",
    }
    assert parameters(take)["required"] == []


def test_a_hint_describes_a_parameter_before_the_docstring_and_that_before_its_type() -> None:
    def move(start: Annotated[Place, Meta(description="Hint.")], end: Place, via: Place) -> None:
        """Moves.

        Args:
            start: Docstring.
            end: Docstring.
        """

    described = {name: schema["description"] for name, schema in properties(move).items()}
    assert described == {"start": "Hint.", "end": "Docstring.", "via": "Somewhere."}


def test_a_definition_survives_being_stored() -> None:
    def take(size: tuple[int, int] = (1, 2), node: Node | None = None) -> None: ...

    assert decode(encode(definition(take)), ToolDefinition) == definition(take)


def any_number(*numbers: int) -> None: ...
def any_keyword(**options: int) -> None: ...
def by_place(city: str, /) -> None: ...
def unhinted(city) -> None: ...  # type: ignore[no-untyped-def]
def impossible(city: complex) -> None: ...
def two_shapes(city: Place | Size) -> None: ...
def unresolved(city: "Nowhere") -> None: ...  # type: ignore[name-defined]  # noqa: F821
def hidden(__city: str) -> None: ...
def counted(up_to: int) -> Iterator[int]:
    yield up_to


async def streamed(up_to: int) -> AsyncIterator[int]:
    yield up_to  # fmt: skip


@pytest.mark.parametrize(
    ("function", "told"),
    [
        (any_number, "tool `any_number`, parameter `*numbers: int`: a model can only fill in named parameters; name each one"),
        (any_keyword, "tool `any_keyword`, parameter `**options: int`: a model can only fill in named parameters; name each one"),
        (
            by_place,
            "tool `by_place`, parameter `city: str`: a model passes every argument by name; remove the `/` from the signature",
        ),
        (unhinted, "tool `unhinted`, parameter `city`: has no type hint; add one, such as `city: str`"),
        (
            impossible,
            "tool `impossible`, parameter `city: complex`: JSON has no form for it (type <class 'complex'> is not supported);",
        ),
        (hidden, "tool `hidden`, parameter `__city: str`: a name cannot begin with two underscores; rename it"),
        (two_shapes, "tool `two_shapes`, parameter `city: "),
        (
            unresolved,
            "tool `unresolved`: a hint cannot be resolved: name 'Nowhere' is not defined; import it where the function is",
        ),
        (counted, "tool `counted` yields; return a list"),
        (streamed, "tool `streamed` yields; return a list"),
    ],
)
def test_what_no_model_could_call_is_refused_when_it_is_declared(function: Callable[..., object], told: str) -> None:
    for declare in (tool, tool(name="other"), lambda function: Registry([function])):
        with pytest.raises(TypeError) as caught:
            declare(function)
        assert str(caught.value).startswith(told)


def test_a_function_without_a_usable_name_needs_one() -> None:
    nameless = lambda: "hi"  # noqa: E731
    with pytest.raises(ValueError, match=r"cannot be called `<lambda>` as a tool; name it with letters, .*: tool\(name=\.\.\.\)"):
        Registry([nameless])
    assert definition(tool(name="greet")(nameless)).name == "greet"


def test_an_option_that_is_none_is_refused() -> None:
    with pytest.raises(ValueError, match="tool `any_name`: Invalid enum value 'reading'"):
        tool(name="any_name", effects=("reading",))(lambda: None)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="tool `any_name`: timeout must be above 0, not 0"):
        tool(name="any_name", timeout=0)(lambda: None)


def test_two_functions_of_one_name_are_refused() -> None:
    def same() -> None: ...

    with pytest.raises(ValueError, match="two tools are called `same`"):
        Registry([same, tool(name="same")(lambda: None)])


def test_a_method_is_a_tool_once_it_is_bound() -> None:
    class Counter:
        def __init__(self) -> None:
            self.count = 0

        @tool(name="raise")
        def increase(self, by: int = 1) -> int:
            """Counts up."""
            self.count += by
            return self.count

    counter = Counter()
    assert definition(counter.increase).name == "raise"
    assert list(properties(counter.increase)) == ["by"]
    assert anyio.run(partial(output, counter.increase, by=3)) == "3"
    assert counter.count == 3
    with pytest.raises(TypeError, match="tool `other`: a method cannot be marked; mark its function"):
        tool(name="other")(counter.increase)


GOOGLE = """Books a trip.

Longer words.

Args:
    city (str): Where to: a city,
        not a country.

    days (Optional[list(int)]): Which days.
    *rest: The rest.
    undescribed

Returns:
    city: not this one.
"""
NUMPY = """Books a trip.

Parameters
----------
city : str
    Where to: a city,
    not a country.
days : list of int, optional
    Which days.
rest, more
    The rest.

Returns
-------
city : str
    not this one.
"""
SPHINX = """Books a trip.

:param str city: Where to: a city,
    not a country.
:type city: str
:param days: Which days.
:keyword rest: The rest.
:returns: nothing
    at all.
"""


@pytest.mark.parametrize("text", [GOOGLE, NUMPY, SPHINX], ids=["google", "numpy", "sphinx"])
def test_parameters_are_described_in_three_styles(text: str) -> None:
    doc = parse_docstring(text)
    assert doc.summary == "Books a trip."
    described = {"city": "Where to: a city, not a country.", "days": "Which days.", "rest": "The rest."}
    assert {name: words for name, words in doc.parameters.items() if name != "more"} == described


@pytest.mark.parametrize(
    ("text", "summary"),
    [
        ("", ""),
        ("One line.", "One line."),
        ("Two\nlines.\n\nMore.", "Two lines."),
        ("Args:\n    a: b", ""),
        ("No gap.\nArgs:\n    a: b", "No gap."),
        ("No gap.\n:param a: b", "No gap."),
        ("Parameters\n----------\na\n    b", ""),
        ("Note: this is text.", "Note: this is text."),
    ],
)
def test_the_summary_is_the_first_paragraph(text: str, summary: str) -> None:
    assert parse_docstring(text).summary == summary


async def test_arguments_arrive_as_the_hinted_types() -> None:
    seen: list[object] = []

    def take(
        place: Place, color: Color, on: date, pair: tuple[int, str], ids: set[UUID], size: Size, by_number: dict[int, str]
    ) -> None:
        seen.extend([place, color, on, pair, ids, size, by_number])

    await output(
        take,
        place={"name": "x"},
        color="blue",
        on="2024-02-29",
        pair=[1, "a"],
        ids=["12345678-1234-5678-1234-567812345678"],
        size={"width": 1},
        by_number={"7": "seven"},
    )
    uuid = UUID("12345678-1234-5678-1234-567812345678")
    assert seen == [Place("x"), Color.BLUE, date(2024, 2, 29), (1, "a"), {uuid}, {"width": 1}, {7: "seven"}]


async def test_an_argument_that_is_not_given_is_left_to_the_function() -> None:
    nothing = object()

    def take(a: int, b: object | int = nothing, c: list[int] = [1, 2]) -> str:  # noqa: B006
        return f"{a} {b is nothing} {c}"

    take.__annotations__["b"] = int
    assert await output(take, a=1) == "1 True [1, 2]"


async def test_a_whole_number_is_an_integer_however_it_is_written() -> None:
    def take(count: int, share: float, nested: list[dict[str, int]]) -> str:
        return repr((count, share, nested))

    assert await output(take, count=3.0, share=2.0, nested=[{"a": 4.0}]) == "(3, 2.0, [{'a': 4}])"


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"count": "3"}, r"Expected `int`, got `str` - at `\$\.count`"),
        ({"count": 3.5}, "Expected `int`, got `float`"),
        ({"count": True}, "Expected `int`, got `bool`"),
        ({}, "missing required field `count`"),
        ({"count": 1, "extra": 2}, "unknown field `extra`"),
    ],
)
async def test_an_argument_of_another_type_is_an_error_that_names_it(arguments: dict[str, object], told: str) -> None:
    def take(count: int) -> None: ...

    with pytest.raises(ValueError, match=told):
        await FunctionTool(take).execute(arguments, ToolContext())


async def test_a_parameter_called_self_is_one_if_it_has_a_hint() -> None:
    def know(self: str) -> str:
        return self

    assert await output(know, self="thyself") == "thyself"


async def test_a_function_may_ask_for_its_context() -> None:
    heard: list[str] = []

    def work(context: CallContext, times: int) -> str:
        for number in range(times):
            context.progress(f"step {number}")
        return f"{context.run_id} {context.call_id} {context.tool.name}"

    assert list(properties(work)) == ["times"]
    assert (await result(work, heard.append, times=2)).output == "resp_1 call_1 work"
    assert heard == ["step 0", "step 1"]


async def test_a_coroutine_runs_in_the_event_loop_and_anything_else_in_a_thread() -> None:
    async def here() -> bool:
        await checkpoint()
        return threading.current_thread() is threading.main_thread()

    def elsewhere() -> bool:
        return threading.current_thread() is threading.main_thread()

    assert (await output(here), await output(elsewhere)) == ("true", "false")


async def test_a_blocking_function_lets_others_run() -> None:
    began, go_on = anyio.Event(), threading.Event()

    def block() -> str:
        anyio.from_thread.run_sync(began.set)
        assert go_on.wait(10)
        return "done"

    answers = []
    async with anyio.create_task_group() as tasks:

        async def ask() -> None:
            answers.append(await output(block))

        tasks.start_soon(ask)
        with anyio.fail_after(PATIENCE):
            await began.wait()
            go_on.set()
    assert answers == ["done"]


async def test_blocking_functions_of_a_tenant_keep_no_thread_from_others() -> None:
    go_on, begun = threading.Event(), threading.Semaphore(0)

    def block() -> None:
        begun.release()
        go_on.wait(PATIENCE)

    def answer() -> str:
        return "done"

    tools, told = Registry([block, answer]), list[object]()

    async def ask(name: str, tenant: str) -> None:
        made = next(each for each in tools.definitions if each.name == name)
        context = CallContext("resp_1", made, print, tenant=tenant)
        told.append((await tools.execute(ToolCall("call_1", name, "{}", {}), context)).output)

    async with anyio.create_task_group() as group:
        for _ in range(2 * MOST_OF_TENANT):
            group.start_soon(ask, "block", "busy")
        with anyio.fail_after(PATIENCE):
            for _ in range(MOST_OF_TENANT):
                await to_thread.run_sync(begun.acquire, limiter=anyio.CapacityLimiter(1))
            # What the server does itself in threads, and what others have it do.
            assert await to_thread.run_sync(lambda: "free") == "free"
            await ask("answer", "other")
        assert told == ["done"]
        assert not begun.acquire(blocking=False)
        go_on.set()


async def test_a_blocking_function_is_abandoned_when_it_is_cancelled() -> None:
    began, go_on, ended = anyio.Event(), threading.Event(), threading.Event()

    def block() -> None:
        anyio.from_thread.run_sync(began.set)
        go_on.wait(10)
        ended.set()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(result, block)
        with anyio.fail_after(PATIENCE):
            await began.wait()
        tasks.cancel_scope.cancel()
    assert not ended.is_set()
    go_on.set()
    assert ended.wait(10)


user_of_request: ContextVar[str] = ContextVar("user_of_request")


async def test_context_variables_reach_the_function() -> None:
    def who() -> str:
        return user_of_request.get()

    async def who_else() -> str:
        return user_of_request.get()

    user_of_request.set("ann")
    assert (await output(who), await output(who_else)) == ("ann", "ann")


async def test_wrapped_partial_and_callable_objects_run_as_well() -> None:
    def twice(function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def call(*args: object, **kwargs: object) -> object:
            return function(*args, **kwargs)

        return call

    @twice
    @tool(description="Greets.")
    async def greet(name: str) -> str:
        return f"hi {name}"

    class Shout:
        async def __call__(self, name: str) -> str:
            """Shouts."""
            return name.upper()

    assert definition(greet).description == "Greets."
    assert await output(greet, name="ann") == "hi ann"
    bound = tool(name="greet_bob")(partial(greet, name="bob"))
    assert await output(bound) == "hi bob"
    shout = tool(name="shout")(Shout())
    assert definition(shout).description == "Shouts."
    assert await output(shout, name="ann") == "ANN"


class Dumped:
    def __repr__(self) -> str:
        return "Dumped()"

    def model_dump(self) -> dict[str, object]:
        return {"at": datetime(2024, 1, 2, 3, 4, 5)}


class Loud(str, Enum):  # noqa: UP042
    HEY = "hey"


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("as it is", "as it is"),
        (Loud.HEY, "hey"),
        (None, ""),
        (True, "true"),
        (3, "3"),
        ([], "[]"),
        ({"a": [1, None]}, '{"a":[1,null]}'),
        (Place("x"), '{"name":"x","tags":[]}'),
        (Node(1), '{"value":1,"children":[]}'),
        (Color.RED, '"red"'),
        (Decimal("1.50"), '"1.50"'),
        (Dumped(), '{"at":"2024-01-02T03:04:05"}'),
        ([PurePosixPath("/a")], '["/a"]'),
        (deque([1, 2]), "[1,2]"),
        (range(2), "[0,1]"),
        (MappingProxyType({"a": 1}), '{"a":1}'),
        (InputText("x"), (InputText("x"),)),
        ([InputText("x"), InputImage("u")], (InputText("x"), InputImage("u"))),
        ((InputText("x"), "y"), '[{"type":"input_text","text":"x"},"y"]'),
        ({"part": Unknown({"type": "new"})}, '{"part":{"type":"new"}}'),
    ],
    ids=repr,
)
async def test_what_a_function_returns_becomes_output(value: object, expected: object) -> None:
    def give() -> object:
        return value

    assert await output(give) == expected


async def test_a_function_may_return_a_whole_result() -> None:
    def give() -> ToolResult:
        return ToolResult("", "nothing found", is_error=True)

    assert await result(give) == ToolResult("call_1", "nothing found", is_error=True)


def endless() -> object:
    ring: list[object] = []
    ring.append(ring)
    return ring


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (
            object,
            "`give` returned object, which cannot be sent to the model: object has no form in JSON; return text, or plain data",
        ),
        (lambda: {"a": [1j]}, "complex has no form in JSON"),
        (lambda: {(1, 2): 3}, "tuple has no form in JSON as a key"),
        (lambda: (number for number in range(3)), "a generator can be read only once; return a list of it"),
        (lambda: map(str, [1]), "a map can be read only once"),
        (endless, "cannot be sent to the model"),
    ],
)
async def test_what_cannot_be_sent_to_the_model_is_an_error_that_says_so(make: Callable[[], object], told: str) -> None:
    def give() -> object:
        return make()

    with pytest.raises(TypeError) as caught:
        await result(give)
    assert told in str(caught.value)


@pytest.mark.parametrize("error", [ZeroDivisionError("oops"), DelegateToClient("yours"), KeyError("x")])
async def test_what_a_function_raises_goes_through(error: Exception) -> None:
    def sync_fail() -> None:
        raise error

    async def async_fail() -> None:
        raise error

    for function in (sync_fail, async_fail):
        with pytest.raises(type(error)) as caught:
            await result(function)
        assert caught.value is error


async def test_only_its_own_builtin_tools_are_executed() -> None:
    def mine() -> None: ...

    registry = Registry([mine])
    assert registry.can_execute(ToolDefinition("mine", kind="builtin"))
    assert not registry.can_execute(ToolDefinition("mine", kind="function"))
    assert not registry.can_execute(ToolDefinition("other", kind="builtin"))
    answer = await registry.execute(ToolCall("call_1", "other", "{}"), CallContext("resp_1", ToolDefinition("other"), print))
    assert answer == ToolResult("call_1", "There is no tool `other`. Available: `mine`.", is_error=True)


def test_importing_it_is_light() -> None:
    heavy = ("httptools", "yarl", "rich", "typer", "pydantic", "jsonschema_rs")
    code = f"import sys, mainspring.tools.functions; print([name for name in {heavy!r} if name in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


async def test_a_function_in_a_thread_ends_before_its_run_is_told_to_be_cancelled() -> None:
    begun, effects = threading.Event(), list[str]()

    def act() -> str:
        """Acts."""
        begun.set()
        time.sleep(0.3)
        effects.append("done")
        return "done"

    async with Engine(Scripted(calls(call("act")), say("never")), tools=[act]) as engine:
        handle = await engine.ask("Go.")
        await to_thread.run_sync(begun.wait, PATIENCE)
        assert (await handle.cancel()).status == "cancelled"
        assert effects == ["done"], "it has no effect after that"
