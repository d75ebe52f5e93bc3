"""Whether the arithmetic of a shell line may run a program.

bash evaluates what a variable holds, so `$((x))` runs the command in `x='a[$(rm file)]'`, and so does every index, every slice
and every numeric test. What is written out is seen by the parser. What a variable holds is known only where the line itself sets
it to a number. A variable that it never sets is the environment's, which no line of a model has written; those that bash sets by
itself are doubted.

`test` and `[` compute with what their operators say, and a word that is known only when the line runs may be an operator, or
several words: `[ $x = y ]` runs the command in `x='-v a[$(rm${IFS}file)]'`. So where such a word may be one, it must be made of
plain words.
"""

import re
from collections.abc import Iterator, Sequence
from typing import Final

from mainspring.core.items import Json

_NAME: Final = re.compile(r"[A-Za-z_]\w*")
_NUMBER: Final = re.compile(r"[+-]?\d+|\{-?\d+\.\.-?\d+(?:\.\.-?\d+)?\}")
# What bash itself sets to a number, whatever a line does.
_NUMERIC: Final = frozenset({
    "#", "?", "$", "!", "RANDOM", "SRANDOM", "SECONDS", "EPOCHSECONDS", "LINENO", "UID", "EUID", "PPID", "BASHPID", "SHLVL",
    "COLUMNS", "LINES", "OPTIND", "BASH_SUBSHELL", "HISTCMD",
})  # fmt: skip
# What bash keeps of a line in variables that the line does not name.
_KEPT: Final = re.compile(
    r"_|BASH\w*|COMP\w*|COPROC\w*|DIRSTACK|FUNCNAME|MAPFILE|OLDPWD|OPTARG|PIPESTATUS|PS4|PWD|READLINE\w*|REPLY"
)
# One word that is no operator, whatever happens to it; and file names of which none is an operator.
_WORD: Final = re.compile(r"[\w./:@%+,][\w./:@%+,=-]*")
_FILES: Final = re.compile(r"[\w./~*?-]*[./][\w./*?-]*")
# In a text that is computed with these begin a command, quoted or not.
_CODE: Final = re.compile(r"[$`\\]")
# In a word that is computed with these set a variable, perhaps `PATH`; where the parser reads arithmetic it tells them apart.
_SETS: Final = re.compile(r"=|\+\+|--")
_TEXT: Final = "it computes with a text, which may hold code"
COMPUTES: Final = frozenset({"-eq", "-ne", "-lt", "-le", "-gt", "-ge", "-v", "-R"})
_JOINTS: Final = frozenset({"-a", "-o", "!", "(", ")", "]"})
_TEST_SIGN: Final = re.compile(r"-[a-zA-Z]+|!?=|==|[!<>()\]]")
# Programs that print one number and nothing that they are given.
_COUNTERS: Final = re.compile(r"nproc|date \+%s|seq(?: -?\d+){1,3}|wc -[lcmw]")


class Arithmetic:
    """Collects what a line computes with, and what it sets variables to."""

    def __init__(self) -> None:
        self._used: set[str] = set()
        self._unsure: set[str] = set()
        self._copies: dict[str, set[str]] = {}
        self._spread: set[str] = set()
        self._wide: set[str] = set()
        self._words: dict[str, set[str]] = {}
        self._doubts: list[str] = []

    @property
    def doubts(self) -> tuple[str, ...]:
        computed = [
            f"it computes with `{name}`, which may hold code" for name in _list_unsure(self._used, self._copies, self._unsure)
        ]
        tested = [
            f"it tests `{name}`, which may hold an operator and code; put it in double quotes"
            for name in _list_unsure(self._spread, self._words, self._wide)
        ]
        return (*self._doubts, *computed, *tested)

    def evaluate(self, tree: object) -> None:
        """Notes what stands in an expression, an index, a slice or an operand of a numeric test."""
        for part in _walk_expression(tree):
            match part:
                case {"Type": "Lit", "Value": str(text)}:
                    self._used |= set(_NAME.findall(text))
                    if _CODE.search(text) or _SETS.search(text):
                        self._doubts.append(_TEXT)
                case {"Type": "ParamExp", "Length": True}:
                    pass
                case {"Type": "ParamExp"}:
                    self._used.add(part["Param"]["Value"])
                case {"Type": "CmdSubst"} if not _is_counter(part):
                    self._doubts.append("it computes with what a program says, which may be code")
                case {"Type": "SglQuoted" | "ExtGlob" | "ProcSubst"}:
                    self._doubts.append(_TEXT)

    def test(self, args: Sequence[Json], words: Sequence[str | None]) -> None:
        """Notes the words behind `test` or `[`, and what they say as far as that is known."""
        if not COMPUTES.isdisjoint(words):
            operands = [arg for arg, text in zip(args, words, strict=True) if text is None or not _TEST_SIGN.fullmatch(text)]
            self.evaluate(operands)
            if any(_is_glob(arg) for arg in operands):
                self._doubts.append(_TEXT)
        elif not _has_known_operators(args, words):
            for arg, text in zip(args, words, strict=True):
                if text is not None and _CODE.search(text):
                    self._doubts.append(_TEXT)
                elif text is None:
                    self._spread_out(arg)

    def _spread_out(self, word: Json) -> None:
        if (copied := _list_copied(word, _WORD, _FILES)) is None:
            self._doubts.append("it tests what may be an operator and code; put it in double quotes")
        else:
            self._spread |= copied

    def assign(self, assign: Json) -> None:
        """Notes what a variable is set to."""
        name = assign["Name"]["Value"]
        self._declare(name)
        if assign.get("Index") is not None:
            self.evaluate(assign["Index"])
        for element in (assign.get("Array") or {}).get("Elems") or ():
            if element.get("Index") is not None:
                self.evaluate(element["Index"])
            self._hold(name, element.get("Value"))
        if name in _NUMERIC:  # it is computed at once
            self._used.add(name)
        if assign.get("Value") is not None:
            self._hold(name, assign["Value"])

    def loop(self, name: str, items: object) -> None:
        """Notes a variable that takes each of these words."""
        self._declare(name)
        for word in items if isinstance(items, list) and items else [None]:
            self._hold(name, word)

    def set_unknown(self, name: str) -> None:
        self._unsure.add(name)
        self._wide.add(name)

    def _declare(self, name: str) -> None:
        self._copies.setdefault(name, set())
        self._words.setdefault(name, set())

    def _hold(self, name: str, word: Json | None) -> None:
        for plain, copies, unsure in ((_NUMBER, self._copies, self._unsure), (_WORD, self._words, self._wide)):
            if (copied := _list_copied(word, plain)) is None:
                unsure.add(name)
            else:
                copies[name] |= copied


def _list_unsure(used: set[str], copies: dict[str, set[str]], unsure: set[str]) -> list[str]:
    """Those of the variables, and of the ones that they are copies of, which may hold anything."""
    reached, ahead = set[str](), list(used)
    while ahead:
        if (name := ahead.pop()) not in reached:
            reached.add(name)
            ahead += copies.get(name, ())
    return [name for name in sorted(reached) if name in unsure or (name not in copies and _is_doubtful(name))]


def _has_known_operators(args: Sequence[Json], words: Sequence[str | None]) -> bool:
    """Whether a test has the words that are written out, and none that is not known stands where an operator may stand."""
    if not all(text is not None or _is_one_word(arg) for arg, text in zip(args, words, strict=True)):
        return False
    terms: list[list[str | None]] = [[]]
    for text in words:
        if text in _JOINTS:
            terms.append([])
        else:
            terms[-1].append(text)
    return all(len(term) < 2 or (len(term) < 4 and term[len(term) - 2] is not None) for term in terms)


def _is_one_word(word: Json) -> bool:
    """Whether quotes keep a word from becoming several or none."""
    return all(_is_one_piece(part) for part in word.get("Parts") or ())


def _is_one_piece(part: Json) -> bool:
    match part["Type"]:
        case "Lit":
            return re.fullmatch(r"[\w./:@%+,=-]*", part["Value"]) is not None
        case "DblQuoted":
            inner = [each for each in part.get("Parts") or () if each["Type"] == "ParamExp"]
            return not any(each["Param"]["Value"] == "@" or each.keys() & {"Index", "Names", "Excl"} for each in inner)
        case kind:
            return bool(kind == "SglQuoted")


def _is_glob(word: Json) -> bool:
    """Whether a word may become names of files."""
    parts = word.get("Parts") or ()
    return any(part["Type"] == "ExtGlob" or (part["Type"] == "Lit" and re.search(r"[*?]", part["Value"])) for part in parts)


def _is_doubtful(name: str) -> bool:
    """Whether a variable that the line does not set may hold what the line has written."""
    return name not in _NUMERIC and (_KEPT.fullmatch(name) is not None or not _NAME.fullmatch(name))


def _list_copied(word: Json | None, *plain: re.Pattern[str]) -> set[str] | None:
    """The variables whose values a word is made of, beside plain text; None if it may be more than that."""
    copied: set[str] = set()
    for part in (word or {}).get("Parts") or [{}]:
        match part:
            case {"Type": "Lit", "Value": str(text)} if any(form.fullmatch(text) for form in plain):
                pass
            case {"Type": "ArithmExp"} | {"Type": "ParamExp", "Length": True}:
                pass
            case {"Type": "ParamExp"} if not part.keys() & {"Excl", "Index", "Slice", "Repl", "Exp", "Names"}:
                copied.add(part["Param"]["Value"])
            case {"Type": "CmdSubst"} if _is_counter(part):
                pass
            case {"Type": "DblQuoted"} if (inner := _list_copied(part, *plain)) is not None:
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
