"""Calls that a model writes as code: a list of calls, or a few lines that call tools and show what they return.

Nothing is executed. Code is read as calls if it consists of nothing else and every argument stands there as a value; code that
does more is no call.
"""

import ast
import re
import textwrap
from collections.abc import Mapping
from typing import Final, NamedTuple

from mainspring.core.items import Json, ToolDefinition
from mainspring.providers.argument_types import fits, list_properties, type_values
from mainspring.providers.called_names import find_tool_name
from mainspring.providers.json_text import UNREADABLE, parse_loosely

Tools = Mapping[str, ToolDefinition]


class CodeCall(NamedTuple):
    name: str
    arguments: Json


def read_code(text: str, tools: Tools) -> list[CodeCall]:
    """The calls of tools that code consists of; none if it does anything else."""
    calls: list[CodeCall] = []
    results: set[str] = set()
    try:
        for statement in ast.parse(textwrap.dedent(text).strip()).body:
            match statement:
                case ast.Assign(targets=[ast.Name(id=result)], value=value):
                    results.add(result)
                    calls.append(read_call(value, tools))
                case ast.Expr(value=ast.List(elts=values)):
                    calls += [read_call(value, tools) for value in values]
                case ast.Expr(value=value) if not _shows(value, results, tools):
                    calls.append(read_call(value, tools))
                case ast.Expr():
                    pass
                case _:
                    return []
    except UNREADABLE:
        return []
    return calls


def read_lines(text: str, tools: Tools) -> list[CodeCall]:
    """The calls of lines, or of a row, of which each is nothing but a call whose arguments fit."""
    is_row = _CALL_ROW.match(text) is not None
    calls = read_list(f"[{text}]", tools) if is_row else read_code(text, tools) if _CALL_LINES.fullmatch(text) else []
    is_all = (len(calls) > 1 if is_row else len(calls) == text.count("\n") + 1) and all(
        fits(type_values(each.arguments, tools[each.name]), tools[each.name]) for each in calls
    )
    return calls if is_all else []


def read_script(text: str, tools: Tools) -> list[CodeCall]:
    """The calls of tools that a block of JavaScript consists of, each with one object of values that fits; none if it does
    anything else."""
    found = _SCRIPT.fullmatch(text)
    calls: list[CodeCall] = []
    body, place = ("", 0) if found is None else (found[1].strip(), 0)
    while place < len(body):
        if (shown := _SHOWN.match(body, place)) is not None and calls:
            place = shown.end()
            continue
        statement = _STATEMENT.match(body, place)
        name = "" if statement is None else find_tool_name(statement[1], tools)
        arguments = None if statement is None else parse_loosely(statement[2] or "{}")
        if statement is None or name not in tools or not isinstance(arguments, dict) or not fits(arguments, tools[name]):
            return []
        calls.append(CodeCall(name, arguments))
        place = statement.end()
    return calls


def may_be_script(text: str, tools: Tools) -> bool | None:
    """Whether a block of JavaScript that begins like this may be calls of tools; None if it cannot be told yet."""
    if (head := _SCRIPT_HEAD.match(text)) is not None:
        return find_tool_name(head[1], tools) in tools
    return None if len(text) < _MOST_HEAD and _HALF_SCRIPT.fullmatch(text) else False


def read_list(text: str, tools: Tools) -> list[CodeCall]:
    """The calls of a list, or the one call without it; none if anything else is among them."""
    try:
        parsed = ast.parse(text.strip(), mode="eval").body
        return [read_call(each, tools) for each in (parsed.elts if isinstance(parsed, ast.List) else [parsed])]
    except UNREADABLE:
        return []


def read_call(node: ast.expr, tools: Tools) -> CodeCall:
    """What has no name has that of its place. Raises `ValueError` for what is no call of a tool."""
    match node:
        case ast.Await(value=inner):
            return read_call(inner, tools)
        case ast.Call(func=ast.Name(id="print" | "final_answer" as shown), args=[inner], keywords=[]) if shown not in tools:
            return read_call(inner, tools)
        case ast.Call(func=ast.Name() | ast.Attribute() as called, args=args, keywords=keywords):
            name = find_tool_name(ast.unparse(called).removesuffix(".call"), tools)
        case _:
            raise ValueError("it is no call")
    if name not in tools:
        raise ValueError("it is no call of a tool")
    properties = list_properties(tools[name])
    names = [*properties]
    if len(args) > len(names) or any(each.arg is None for each in keywords):
        raise ValueError("its arguments have no names")
    written = [*zip(names, args, strict=False), *[(str(each.arg), each.value) for each in keywords]]
    arguments = {key: _read_value(value, properties.get(key)) for key, value in written}
    is_plain = not args and not any(isinstance(each.value, ast.Name) for each in keywords)
    if len(arguments) < len(written) or not (is_plain or fits(type_values(arguments, tools[name]), tools[name])):
        raise ValueError("its arguments do not fit")
    return CodeCall(name, arguments)


def _read_value(node: ast.expr, schema: object) -> object:
    """A value. Models leave out the quotes of a word, and write the constants of JSON."""
    if isinstance(node, ast.Name):
        if node.id in _CONSTANTS:
            return _CONSTANTS[node.id]
        if isinstance(schema, dict) and schema.get("type") == "string":
            return node.id
    return ast.literal_eval(node)


def _shows(node: ast.expr, results: set[str], tools: Tools) -> bool:
    """Whether results are only shown."""
    match node:
        case ast.Call(func=ast.Name(id="print" | "final_answer" as shown), args=args, keywords=[]) if shown not in tools:
            names = {each.id for arg in args for each in ast.walk(arg) if isinstance(each, ast.Name)}
            is_called = any(isinstance(each, ast.Call) for arg in args for each in ast.walk(arg))
            return names <= results and not is_called
        case ast.Name(id=name):
            return name in results
        case _:
            return False


def find_code(text: str) -> str | None:
    """The code of an answer that is marked as one that calls tools; None if it is none."""
    found = _CODE.fullmatch(text)
    if found is None or found.lastgroup is None:
        return None
    code = found[found.lastgroup]
    return None if ("</code>" if found.lastgroup == "tag" else "```") in code else code


_CALL_ROW: Final = re.compile(r"[A-Za-z_][\w.]*\([^()\n]*\),\s*[A-Za-z_][\w.]*\(")
_CALL_LINES: Final = re.compile(r"[A-Za-z_][\w.]*\([^\n]*\)(?:\n[A-Za-z_][\w.]*\([^\n]*\))+")
_MOST_HEAD: Final = 200
_LANGUAGE: Final = r"```(?:js|jsx|ts|tsx|javascript|typescript)[ \t]*\n"
_SCRIPT: Final = re.compile(rf"{_LANGUAGE}((?:(?!```).)*)```\s*", re.DOTALL | re.IGNORECASE)
_KEPT: Final = r"(?:(?:const|let|var)\s+\w+\s*=\s*)?(?:return\s+)?(?:console\.log\()?(?:await\s+)?"
_STATEMENT: Final = re.compile(rf"{_KEPT}([A-Za-z_$][\w.$]*)\((\{{.*?\}})?\s*\)\)?;?[ \t]*(?:\n\s*|\Z)", re.DOTALL)
_SHOWN: Final = re.compile(r"(?:console\.log\(\w+\)|return \w+);?\s*")
_SCRIPT_HEAD: Final = re.compile(rf"{_LANGUAGE}\s*{_KEPT}(?!console\.log\b)([A-Za-z_$][\w.$]*)\(", re.IGNORECASE)
_HALF_SCRIPT: Final = re.compile(
    rf"`{{1,3}}|```[a-z]{{0,10}}[ \t]*|{_LANGUAGE}[\w.$=\s]*(?:console\.log\([\w.$\s]*)?", re.IGNORECASE
)
_CONSTANTS: Final[Mapping[str, object]] = {"true": True, "false": False, "null": None}
# As Gemma, SmolLM and smolagents mark it.
_CODE: Final = re.compile(
    r"```tool_code\n(?P<tool>.*?)```\s*+|<code>(?P<tag>.*?)(?:</code>\s*+|\Z)"
    r"|(?:Code:\s*+)?```(?:py|python)\n(?P<block>.*?)```\s*+(?:<end_code>)?\s*+",
    re.DOTALL,
)
