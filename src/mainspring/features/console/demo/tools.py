"""The tools of the demo. They are real: the notes are read from the package, and the sums are done here."""

import ast
import operator
from collections.abc import Callable
from decimal import Decimal, DivisionByZero, InvalidOperation
from importlib.resources import files

from mainspring.tools.functions import tool

NOTES = files("mainspring.features.console.demo") / "notes"
LONGEST = 200

_OPERATORS: dict[type[ast.operator], Callable[[Decimal, Decimal], Decimal]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}


@tool(repeatable=True, effects=("read",))
def list_notes() -> str:
    """Lists the notes."""
    return "\n".join(_names())


@tool(repeatable=True, effects=("read",))
def read_note(name: str) -> str:
    """Reads a note.

    Args:
        name: As `list_notes` gives it.
    """
    if name not in _names():
        raise ValueError(f"there is no note `{name}`; there are {', '.join(_names())}")
    return (NOTES / name).read_text("utf-8")


@tool(repeatable=True)
def calculate(expression: str) -> str:
    """Does a sum, exactly.

    Args:
        expression: Decimal numbers, + - * / and parentheses.
    """
    try:
        parsed = ast.parse(expression[:LONGEST], mode="eval")
        return str(_value(parsed.body, expression))
    except SyntaxError as error:
        raise ValueError("this is not a sum: use numbers, + - * / and parentheses only") from error
    except (DivisionByZero, InvalidOperation) as error:
        raise ValueError("this divides by zero") from error


def _names() -> list[str]:
    return sorted([note.name for note in NOTES.iterdir() if note.name.endswith(".txt")])


def _value(node: ast.expr, source: str) -> Decimal:
    match node:
        case ast.Constant(value=int() | float()):
            # The digits as they are written: 0.10 is a tenth here, and keeps its two places.
            return Decimal(ast.get_source_segment(source, node) or "0")
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_value(operand, source)
        case ast.BinOp(left=left, op=sign, right=right) if type(sign) in _OPERATORS:
            return _OPERATORS[type(sign)](_value(left, source), _value(right, source))
        case _:
            raise ValueError(f"`{ast.unparse(node)}` is not a number; numbers, + - * / and parentheses only")
