"""Whether the arithmetic of a shell line may run a program.

bash evaluates what a variable holds, so `$((x))` runs the command in `x='a[$(rm file)]'`, and so does every index, every slice
and every numeric test. What is written out is seen by the parser. What a variable holds is known only where the line itself sets
it to a number. A variable that it never sets is the environment's, which no line of a model has written; those that bash sets by
itself are doubted.
"""

import re
from collections.abc import Iterator
from typing import Final

from mainspring.core.items import Json

_NAME: Final = re.compile(r"[A-Za-z_]\w*")
_NUMBER: Final = re.compile(r"[+-]?\d+|\{-?\d+\.\.-?\d+(?:\.\.-?\d+)?\}")
# What bash itself sets to a number, whatever a line does.
_NUMERIC: Final = frozenset({
    "#", "?", "$", "!", "RANDOM", "SRANDOM", "SECONDS", "EPOCHSECONDS", "LINENO", "UID", "EUID", "PPID", "BASHPID", "SHLVL",
    "COLUMNS", "LINES", "OPTIND", "BASH_SUBSHELL",
})  # fmt: skip
# Programs that print one number and nothing that they are given.
_COUNTERS: Final = re.compile(r"nproc|date \+%s|seq(?: -?\d+){1,3}|wc -[lcmw]")


class Arithmetic:
    """Collects what a line computes with, and what it sets variables to."""

    def __init__(self) -> None:
        self._used: set[str] = set()
        self._unsure: set[str] = set()
        self._copies: dict[str, set[str]] = {}
        self._doubts: list[str] = []

    @property
    def doubts(self) -> tuple[str, ...]:
        known = dict(self._copies)
        reached, ahead = set[str](), list(self._used)
        while ahead:
            if (name := ahead.pop()) not in reached:
                reached.add(name)
                ahead += known.get(name, ())
        unsure = [name for name in sorted(reached) if name in self._unsure or (name not in known and _is_doubtful(name))]
        return (*self._doubts, *[f"it computes with `{name}`, which may hold code" for name in unsure])

    def evaluate(self, tree: object) -> None:
        """Notes what stands in an expression, an index, a slice or an operand of a numeric test."""
        for part in _walk_expression(tree):
            match part:
                case {"Type": "Lit", "Value": str(text)}:
                    self._used |= set(_NAME.findall(text))
                case {"Type": "ParamExp", "Length": True}:
                    pass
                case {"Type": "ParamExp"}:
                    self._used.add(part["Param"]["Value"])
                case {"Type": "CmdSubst"} if not _is_counter(part):
                    self._doubts.append("it computes with what a program says, which may be code")
                case {"Type": "SglQuoted" | "ExtGlob" | "ProcSubst"}:
                    self._doubts.append("it computes with a text, which may hold code")

    def assign(self, assign: Json) -> None:
        """Notes what a variable is set to."""
        name = assign["Name"]["Value"]
        self._copies.setdefault(name, set())
        if assign.get("Index") is not None:
            self.evaluate(assign["Index"])
        for element in (assign.get("Array") or {}).get("Elems") or ():
            if element.get("Index") is not None:
                self.evaluate(element["Index"])
            self._hold(name, element.get("Value"))
        if assign.get("Value") is not None:
            self._hold(name, assign["Value"])

    def loop(self, name: str, items: object) -> None:
        """Notes a variable that takes each of these words."""
        self._copies.setdefault(name, set())
        for word in items if isinstance(items, list) and items else [None]:
            self._hold(name, word)

    def set_unknown(self, name: str) -> None:
        self._unsure.add(name)

    def _hold(self, name: str, word: Json | None) -> None:
        copied = _list_copied(word)
        if copied is None:
            self._unsure.add(name)
        else:
            self._copies[name] |= copied


def _is_doubtful(name: str) -> bool:
    """Whether a variable that the line does not set may hold what the line has written: bash keeps some of its words."""
    return name not in _NUMERIC and (name == "_" or name.isupper() or not _NAME.fullmatch(name))


def _list_copied(word: Json | None) -> set[str] | None:
    """The variables whose numbers a word is made of; None if it may be more than numbers."""
    copied: set[str] = set()
    for part in (word or {}).get("Parts") or [{}]:
        match part:
            case {"Type": "Lit", "Value": str(text)} if _NUMBER.fullmatch(text):
                pass
            case {"Type": "ArithmExp"} | {"Type": "ParamExp", "Length": True}:
                pass
            case {"Type": "ParamExp"} if not part.keys() & {"Excl", "Index", "Slice", "Repl", "Exp", "Names"}:
                copied.add(part["Param"]["Value"])
            case {"Type": "CmdSubst"} if _is_counter(part):
                pass
            case {"Type": "DblQuoted"} if (inner := _list_copied(part)) is not None:
                copied |= inner
            case _:
                return None
    return copied


def _is_counter(substitution: Json) -> bool:
    """Whether a command says a number and nothing else: a counting program, or one behind a pipe."""
    statements: list[Json] = substitution.get("Stmts") or []
    if len(statements) != 1:
        return False
    statement = statements[0]
    while (command := statement.get("Cmd") or {}).get("Type") == "BinaryCmd" and command.get("Op") == "|":
        if statement.get("Redirs"):
            return False
        statement = command["Y"]
    if command.get("Type") != "CallExpr" or command.get("Assigns"):
        return False
    if any(redirect["Op"] != "<" for redirect in statement.get("Redirs") or ()):
        return False
    words = [[part.get("Value") if part.get("Type") == "Lit" else None for part in word["Parts"]] for word in command["Args"]]
    return _COUNTERS.fullmatch(" ".join([str(each) for word in words for each in word])) is not None


def _walk_expression(tree: object) -> Iterator[Json]:
    """Every part of an expression, but for the insides of what it substitutes."""
    ahead = [tree]
    while ahead:
        node = ahead.pop()
        if isinstance(node, list):
            ahead += node
        elif isinstance(node, dict):
            yield node
            if node.get("Type") not in ("CmdSubst", "ProcSubst"):
                ahead += [value for key, value in node.items() if key != "Param"]
