"""Python functions as tools.

    @tool(effects=("network",), timeout=10)
    async def weather(city: str, unit: Literal["c", "f"] = "c") -> str:
        \"\"\"Tells the weather of today.

        Args:
            city: Where, as one would say it.
        \"\"\"

Type hints become the schema, the docstring the descriptions. Both are read once, when the function is declared; what cannot
become a tool is refused there. `FunctionTool` runs coroutines in the event loop, everything else in worker threads.
"""

import inspect
import operator
import os
import re
import sys
from asyncio import CancelledError
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import suppress
from difflib import get_close_matches
from functools import partial
from importlib import import_module, invalidate_caches
from itertools import takewhile
from math import inf
from textwrap import dedent
from types import ModuleType
from typing import TypeVar, Union, get_type_hints, overload

import msgspec
from anyio import CapacityLimiter, sleep, to_thread
from anyio.lowlevel import RunVar
from msgspec import UNSET, Struct, UnsetType
from msgspec.structs import replace

from mainspring.core.errors import InvalidRequest
from mainspring.core.items import Effect, Json, Part, Purpose, ToolDefinition, Unknown, decode, encode, text_of
from mainspring.ports import CallContext
from mainspring.ports import ToolResult as CallResult
from mainspring.tools.contract import ToolContext, ToolResult
from mainspring.tools.schema import REF, inline_components
from mainspring.tools.work_turns import Turns

Function = Callable[..., object]
F = TypeVar("F", bound=Function)

MARK = "__mainspring_tool__"
# How often it is looked whether a function in a thread has ended that was cancelled.
LOOK_SECONDS = 0.01
# How many functions run in threads at a time, and how many of them may be one tenant's.
MOST_THREADS = 80
MOST_OF_TENANT = 40
NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


@overload
def tool(function: F, /) -> F: ...
@overload
def tool(
    *,
    name: str | None = None,
    description: str | None = None,
    repeatable: bool = False,
    polls: bool = False,
    effects: Sequence[Effect] = (),
    purposes: Mapping[str, Purpose] = {},
    timeout: float | None = None,
) -> Callable[[F], F]: ...
def tool(
    function: F | None = None,
    /,
    *,
    name: str | None = None,
    description: str | None = None,
    repeatable: bool = False,
    polls: bool = False,
    effects: Sequence[Effect] = (),
    purposes: Mapping[str, Purpose] = {},
    timeout: float | None = None,
) -> F | Callable[[F], F]:
    """Declares a function to be a tool and returns it unchanged.

    `repeatable` promises that the call is idempotent, `polls` that it is made again and again to see whether something has
    changed, `effects` says what it does to the world, `purposes` which of its parameters are shell commands, paths and URLs,
    `timeout` is in seconds. Raises `TypeError` naming a parameter that no model could fill in, or `ValueError` for an invalid
    name or option.
    """

    def declare(function: F) -> F:
        declared = _read_declaration(function, name, description)
        options = replace(
            declared.definition,
            repeatable=repeatable,
            polls=polls,
            effects=tuple(effects),
            purposes=dict(purposes),
            timeout=timeout,
        )
        try:
            setattr(function, MARK, replace(declared, definition=check_definition(options)))
        except AttributeError as error:
            kind = type(function).__name__
            raise TypeError(f"tool `{options.name}`: a {kind} cannot be marked; mark its function, or a partial of it") from error
        return function

    return declare if function is None else declare(function)


class FunctionTool:
    """A function as a tool. A function without `@tool` is treated as if it had it.

    Arguments are converted to the hinted types. The return value becomes text: a string as it is, None as nothing, anything else
    as JSON; content parts and results stay what they are. Exceptions propagate. A cancelled function in a thread runs to its end,
    which is waited for as long as whoever has cancelled it waits, and its result is discarded.
    """

    def __init__(self, function: Function) -> None:
        self._function = function
        self._declared: _Declared = getattr(function, MARK, None) or _read_declaration(function)
        self._definition = self._declared.definition
        self.name = self._definition.name
        self.description = self._definition.description
        self.parameters_schema = self._definition.parameters or {}
        self.effects = self._definition.effects
        self.purposes = self._definition.purposes
        self.repeatable = self._definition.repeatable
        self.polls = self._definition.polls
        self.timeout = self._definition.timeout
        self.source = _unwrap_callable(function).__module__

    async def execute(self, params: Json, context: ToolContext) -> ToolResult:
        """Raises `ValueError` naming the invalid argument, and whatever the function raises."""
        function = self._function
        told = CallContext(
            context.run_id, self._definition, context.progress, context.tenant, context.scope, call_id=context.call_id
        )
        arguments = self._declared.arguments(params, told)
        if inspect.iscoroutinefunction(_unwrap_callable(function)):
            value = function(**arguments)
        else:
            value = await _run_in_thread(_ThreadCall(partial(function, **arguments)), context.tenant)
        return _build_result(self.name, await value if inspect.isawaitable(value) else value)


class _ThreadCall:
    """A call for a worker thread, which says whether it is under way."""

    __slots__ = ("_call", "is_running")

    def __init__(self, call: Callable[[], object]) -> None:
        self._call, self.is_running = call, False

    def __call__(self) -> object:
        self.is_running = True
        try:
            return self._call()
        finally:
            self.is_running = False


class _Threads:
    """The threads of functions. They are none of those in which everything else is done: slow functions hold up only each other,
    and those of one tenant leave half of the threads to the others."""

    def __init__(self) -> None:
        self.turns, self.limiter = Turns(MOST_THREADS, MOST_OF_TENANT), CapacityLimiter(inf)


_threads: RunVar[_Threads | None] = RunVar("function_threads")


async def _run_in_thread(call: _ThreadCall, tenant: str) -> object:
    if (threads := _threads.get(None)) is None:
        threads = _Threads()
        _threads.set(threads)
    async with threads.turns.take(tenant):
        try:
            return await to_thread.run_sync(call, abandon_on_cancel=True, limiter=threads.limiter)
        except CancelledError:
            # Nobody can stop it there, and it may have its effect yet: it has not stopped before it has ended.
            while call.is_running:  # noqa: ASYNC110
                await sleep(LOOK_SECONDS)
            raise


def load_functions(reference: str) -> tuple[Function, ...]:
    """The function that `module:function` names, or with `module` alone every `@tool` in it.

    Modules are also looked for in the current directory. Raises `InvalidRequest` if the reference is wrong.
    """
    module_name, colon, path = reference.partition(":")
    if not module_name or (colon and not path):
        raise InvalidRequest(f"`{reference}` names no tool; write `module:function`, or `module` for all tools in it")
    module = _import_module(module_name)
    if not colon:
        found = {id(value): value for value in vars(module).values() if callable(value) and hasattr(value, MARK)}
        if not found:
            raise InvalidRequest(
                f"module `{module_name}` has no function marked with @tool; mark one, or name it: `{module_name}:function`"
            )
        return tuple(found.values())
    function = _find_attribute(module, path)
    if not callable(function):
        raise InvalidRequest(f"`{reference}` is {type(function).__name__}, not a function; name a function")
    if not hasattr(function, MARK):
        try:
            _read_declaration(function)
        except (TypeError, ValueError) as error:
            raise InvalidRequest(f"`{reference}` cannot be a tool: {error}") from error
    return (function,)


class _Declared(Struct, frozen=True):
    """A function read as a tool: `fields` has a field for each argument, `context` names the parameter that takes the context."""

    definition: ToolDefinition
    fields: type[Struct]
    context: str | None

    def arguments(self, parsed: Json, context: CallContext) -> dict[str, object]:
        """The keyword arguments of the call. Raises `ValueError` naming the invalid argument."""
        given = msgspec.convert(_convert_integers(parsed), self.fields, str_keys=True)
        named = {name: getattr(given, name) for name in self.fields.__struct_fields__}
        arguments = {name: value for name, value in named.items() if value is not UNSET}
        return arguments if self.context is None else {**arguments, self.context: context}


def _read_declaration(function: Function, name: str | None = None, description: str | None = None) -> _Declared:
    label = getattr(function, "__qualname__", repr(function))
    name = name if name is not None else getattr(function, "__name__", "")
    if not NAME.fullmatch(name):
        raise ValueError(
            f"`{label}` cannot be called `{name}` as a tool; name it with letters, digits, `_` and `-`: tool(name=...)"
        )
    source = _unwrap_callable(function)
    if inspect.isgeneratorfunction(source) or inspect.isasyncgenfunction(source):
        raise TypeError(f"tool `{label}` yields; return a list, and use `CallContext.progress` to report on the way")
    parameters = _read_parameters(function, label)
    context = next((each.name for each in parameters if each.annotation is CallContext), None)
    parameters = [each for each in parameters if each.annotation is not CallContext]
    fields = _make_fields(parameters)
    doc = parse_docstring(inspect.getdoc(source) or "")
    definition = ToolDefinition(
        name=name,
        description=doc.summary if description is None else description,
        parameters=_build_schema(fields, parameters, doc.parameters),
        kind="builtin",
    )
    return _Declared(check_definition(definition), fields, context)


def check_definition(definition: ToolDefinition) -> ToolDefinition:
    """Returns the definition if it is valid and survives a round trip through JSON. Raises `ValueError`."""
    if definition.timeout is not None and definition.timeout <= 0:
        raise ValueError(f"tool `{definition.name}`: timeout must be above 0, not {definition.timeout}; leave it out for none")
    known = definition.purposes if definition.parameters is None else definition.parameters.get("properties", {})
    if unknown := sorted(definition.purposes.keys() - known.keys()):
        raise ValueError(f"tool `{definition.name}` has no parameter `{unknown[0]}`; `purposes` are for its parameters")
    try:
        return decode(encode(definition), ToolDefinition)
    except msgspec.ValidationError as error:
        raise ValueError(f"tool `{definition.name}`: {error}") from error


def _read_parameters(function: Function, label: str) -> list[inspect.Parameter]:
    """The parameters that can be passed by name, with their hints resolved."""
    try:
        hints = get_type_hints(_unwrap_callable(function), include_extras=True)
    except NameError as error:
        raise TypeError(f"tool `{label}`: a hint cannot be resolved: {error}; import it where the function is defined") from error
    found = list(inspect.signature(function).parameters.values())
    # The object of a method: it is bound before the tool is called.
    if found and found[0].name in ("self", "cls") and found[0].name not in hints:
        found = found[1:]
    return [_resolve(parameter, hints, label) for parameter in found]


def _resolve(parameter: inspect.Parameter, hints: Mapping[str, object], label: str) -> inspect.Parameter:
    where = f"tool `{label}`, parameter `{parameter}`"
    if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
        raise TypeError(f"{where}: a model can only fill in named parameters; name each one")
    if parameter.kind is parameter.POSITIONAL_ONLY:
        raise TypeError(f"{where}: a model passes every argument by name; remove the `/` from the signature")
    if parameter.name.startswith("__"):
        raise TypeError(f"{where}: a name cannot begin with two underscores; rename it")
    if parameter.name not in hints:
        raise TypeError(f"{where}: has no type hint; add one, such as `{parameter.name}: str`")
    hint = hints[parameter.name]
    if hint is not CallContext:
        try:
            msgspec.json.schema(hint)
        except (TypeError, NameError) as error:
            why = str(error).splitlines()[-1]
            raise TypeError(f"{where}: JSON has no form for it ({why}); use str, int, list, a dataclass or the like") from error
    return parameter.replace(annotation=hint)


def _make_fields(parameters: Iterable[inspect.Parameter]) -> type[Struct]:
    """A struct with a field for each parameter. An omitted one stays unset, so that the function's own default applies."""
    declared: list[tuple[str, type] | tuple[str, type, object]] = []
    for parameter in parameters:
        if parameter.default is parameter.empty:
            declared.append((parameter.name, parameter.annotation))
        else:
            optional: type = operator.getitem(Union, (parameter.annotation, UnsetType))  # type: ignore[assignment]
            declared.append((parameter.name, optional, UNSET))
    return msgspec.defstruct("Arguments", declared, kw_only=True, forbid_unknown_fields=True)


def _build_schema(fields: type[Struct], parameters: Iterable[inspect.Parameter], descriptions: Mapping[str, str]) -> Json:
    (root,), components = msgspec.json.schema_components([fields], ref_template=REF + "{name}")
    annotated = components[root["$ref"].removeprefix(REF)]["properties"]
    schema = inline_components(root, components)
    for parameter in parameters:
        described = schema["properties"][parameter.name]
        # The description in a hint takes precedence over the docstring, and both over the description of the type.
        if parameter.name in descriptions and "description" not in annotated[parameter.name]:
            described["description"] = descriptions[parameter.name]
        if parameter.default is not parameter.empty:
            with suppress(TypeError, ValueError):
                described["default"] = msgspec.json.decode(msgspec.json.encode(parameter.default))
    return schema


def _unwrap_callable(function: Function) -> Function:
    """The function whose hints, docstring and nature count: that of a partial, or the `__call__` of an object."""
    while isinstance(function, partial):
        function = function.func
    return function if inspect.isroutine(function) else type(function).__call__


def _convert_integers(value: object) -> object:
    """Converts 3.0 to 3: JSON has one kind of number, and some backends write integers so."""
    if isinstance(value, float):
        return int(value) if value.is_integer() and abs(value) < 2**53 else value
    if isinstance(value, dict):
        return {key: _convert_integers(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_convert_integers(inner) for inner in value]
    return value


def _build_result(name: str, value: object) -> ToolResult:
    match value:
        case ToolResult():
            return value
        case CallResult(output=output, is_error=is_error):
            return ToolResult(not is_error, output, text_of(output) if is_error else "")
        case None:
            return ToolResult.ok()
        case str():
            return ToolResult.ok(str.__str__(value))
        case Part():
            return ToolResult.ok((value,))
        case list() | tuple() if parts := [part for part in value if isinstance(part, Part)]:
            return ToolResult.ok(tuple(parts) if len(parts) == len(value) else _encode_json(name, value))
        case _:
            return ToolResult.ok(_encode_json(name, value))


def _encode_json(name: str, value: object) -> str:
    try:
        return msgspec.json.encode(value, enc_hook=_encode_unknown).decode()
    except (TypeError, ValueError, RecursionError) as error:
        kind = type(value).__name__
        raise TypeError(
            f"`{name}` returned {kind}, which cannot be sent to the model: {error}; return text, or plain data"
        ) from error


def _encode_unknown(value: object) -> object:
    """Converts a value that the JSON encoder does not know. Raises `TypeError`."""
    if isinstance(value, Unknown):
        return value.data
    if callable(dump := getattr(value, "model_dump", None)):
        return dump()
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, Sequence | Set) and not isinstance(value, tuple | frozenset):
        return list(value)
    if isinstance(value, Iterator | AsyncIterator):
        raise TypeError(f"a {type(value).__name__} can be read only once; return a list of it")
    # Tuples and frozen sets come here only as keys; as values the encoder knows them.
    raise TypeError(f"{type(value).__name__} has no form in JSON{' as a key' if isinstance(value, tuple | frozenset) else ''}")


def _import_module(name: str) -> ModuleType:
    if "" not in sys.path and (here := os.getcwd()) not in sys.path:
        sys.path.insert(0, here)
    invalidate_caches()
    module = ".".join([part for part in name.removesuffix(".py").split(os.sep) if part.strip(".")])
    named = f"name the module as in an import, not its file: `{module}`"
    if name.startswith(".") or os.sep in name:
        raise InvalidRequest(f"there is no module `{name}`; {named}")
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise InvalidRequest(f"module `{name}` cannot be imported: {error}; install what it needs") from error
        advice = named if name.endswith(".py") else f"looked in {os.getcwd()} and in sys.path"
        raise InvalidRequest(f"there is no module `{name}`; {advice}") from error
    # Importing runs foreign code, which may raise anything.
    except Exception as error:
        raise InvalidRequest(f"module `{name}` fails when it is imported: {type(error).__name__}: {error}") from error


def _find_attribute(module: ModuleType, path: str) -> object:
    found: object = module
    for name in path.split("."):
        if not hasattr(found, name):
            public = [known for known in dir(found) if not known.startswith("_")]
            close = get_close_matches(name, public, 1)
            advice = f"did you mean `{close[0]}`?" if close else f"it has: {_list_names(public)}"
            raise InvalidRequest(f"module `{module.__name__}` has no `{path}`; {advice}")
        found = getattr(found, name)
    return found


def _list_names(names: Iterable[str]) -> str:
    return ", ".join([f"`{name}`" for name in names]) or "nothing"


class Docstring(Struct, frozen=True):
    """What a docstring says: its first paragraph, and a description for each parameter it names."""

    summary: str
    parameters: dict[str, str]


def parse_docstring(text: str) -> Docstring:
    """Reads Google, NumPy and Sphinx style; `text` as `inspect.getdoc` gives it."""
    lines = text.strip().splitlines()
    summary: list[str] = []
    for number, line in enumerate(lines):
        if not line.strip() or _GOOGLE.fullmatch(line) or _FIELD.match(line) or _is_numpy_heading(lines, number):
            break
        summary.append(line.strip())
    described: dict[str, str] = {}
    for number, line in enumerate(lines):
        if _GOOGLE.fullmatch(line):
            described |= _parse_entries(_take_indented(lines[number + 1 :]), _GOOGLE_ENTRY)
        elif _is_numpy_heading(lines, number) and _NUMPY.fullmatch(line):
            described |= _parse_entries(_take_section(lines, number + 2), _NUMPY_ENTRY)
    return Docstring(" ".join(summary), described | _parse_entries(lines, _SPHINX_ENTRY))


_GOOGLE = re.compile(r"(?:Args|Arguments|Params|Parameters|Keyword Args|Keyword Arguments|Other Parameters):\s*")
_GOOGLE_ENTRY = re.compile(r"\*{0,2}(?P<names>\w+)\s*(?:\((?:[^()]|\([^()]*\))*\))?\s*:\s*(?P<text>.*)")
_NUMPY = re.compile(r"(?:Other )?Parameters\s*")
_NUMPY_ENTRY = re.compile(r"(?P<names>\*{0,2}\w+(?:\s*,\s*\*{0,2}\w+)*)\s*(?::.*)?(?P<text>)")
_FIELD = re.compile(r":\w+[^:]*:")
_SPHINX_ENTRY = re.compile(
    r":(?:param(?:eter)?|arg(?:ument)?|key(?:word)?)\s+(?:[^:]*\s)?\*{0,2}(?P<names>\w+)\s*:\s*(?P<text>.*)"
)


def _parse_entries(lines: Sequence[str], pattern: re.Pattern[str]) -> dict[str, str]:
    """Entries of the form `pattern` at the left margin, each with the lines indented below it."""
    found: dict[str, list[str]] = {}
    words: list[str] = []
    for line in dedent("\n".join(lines)).splitlines():
        if entry := pattern.fullmatch(line):
            words = [entry["text"]]
            found |= {name.strip(" *"): words for name in entry["names"].split(",")}
        elif line[:1].isspace():
            words.append(line.strip())
        elif line:
            words = []
    return {name: " ".join(words).strip() for name, words in found.items()}


def _take_indented(lines: Sequence[str]) -> list[str]:
    return list(takewhile(lambda line: not line or line[0].isspace(), lines))


def _take_section(lines: Sequence[str], start: int) -> list[str]:
    """The lines up to the next heading."""
    end = next((number for number in range(start, len(lines)) if _is_numpy_heading(lines, number)), len(lines))
    return list(lines[start:end])


def _is_numpy_heading(lines: Sequence[str], number: int) -> bool:
    return number + 1 < len(lines) and bool(re.fullmatch(r"-{3,}\s*", lines[number + 1]))
