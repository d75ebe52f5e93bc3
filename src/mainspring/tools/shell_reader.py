"""What a line of shell would start, found by a real parser: `shfmt`, one process per line that is not known yet.

Theory of operation. `read_line` never refuses: what cannot be told before the line runs is among its `doubts`, or is a word
that is None. A line of plain words needs no parser: its program is the first word. All others are parsed as bash. Where a plain
sh would read the same text otherwise (`[[ a && b ]]` and `a &> f b` are two commands to it), they are parsed as that too, and
both readings count. The process has one reader with one cache, so a line is parsed once, however many policies ask about it.
"""

import asyncio
import re
import shutil
import sysconfig
import unicodedata
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Final

import msgspec
from msgspec import Struct

from mainspring.core.items import Json
from mainspring.core.lru_cache import LRUCache
from mainspring.tools.shell_arithmetic import COMPUTES, Arithmetic

LONGEST: Final = 64 * 1024
REMEMBERED: Final = 512
REMEMBERED_CHARS: Final = 4096
SECONDS: Final = 5.0

_PLAIN = re.compile(r"[A-Za-z0-9_./+][A-Za-z0-9_./+-]*(?:[ \t]+[A-Za-z0-9_./=@%+,:-]+)*")
# What the grammar gives a meaning of its own, in the place of a program's name.
_OTHERWISE = re.compile(
    r"if|then|else|elif|fi|for|while|until|do|done|case|esac|in|function|select|time|coproc|let|export|declare|local|readonly"
    r"|typeset|nameref"
)
# To open one of these, for reading as well, is to speak to another machine.
_CONNECTIONS = ("/dev/tcp/", "/dev/udp/")
_OTHERWISE_READ = "a plain sh reads it in another way"
_WRITES = frozenset({">", ">>", ">|", "<>", ">&", "&>", "&>>"})
_COMPARES = frozenset({"==", "!=", "<=", ">="})
_SETS_BY_NAME = frozenset({"read", "mapfile", "readarray", "getopts", "unset"})
_DECLARES = frozenset({"declare", "typeset", "local", "export", "readonly"})
_DECLARED = re.compile(r"-[xrpag]+|[A-Za-z_]\w*(?:=[\s\S]*)?")
_DEFAULTS = frozenset({"-", ":-", "=", ":=", "?", ":?", "+", ":+"})
_GLOB = frozenset("*?[{~")
_MOVES = frozenset({"cd", "pushd", "popd"})
# Variables that change nothing about which programs run.
_HARMLESS = re.compile(r"LANG|LANGUAGE|LC_[A-Z]+|TZ|TERM|NO_COLOR|COLUMNS|LINES|REPLY|(?!npm_)[a-z_][a-z0-9_]*(?<!_proxy)")


class ShellLine(Struct, frozen=True):
    """What a line of shell does, as far as it can be told.

    Each command is its words, the program first. A word that is known only when the line runs is None; one that may become
    several words or file names is there as it was written if its beginning is sure. `sets` are the variables that it sets,
    `writes` the files and connections that it redirects to, `reads` the files that it redirects from, where they are known.
    `doubts` say in words why there may be more; `evaluated` are those of them by which text may be run that nobody has read.
    """

    commands: tuple[tuple[str | None, ...], ...] = ()
    sets: tuple[str, ...] = ()
    writes: tuple[str | None, ...] = ()
    doubts: tuple[str, ...] = ()
    reads: tuple[str, ...] = ()
    evaluated: tuple[str, ...] = ()

    @property
    def mentions(self) -> tuple[str, ...]:
        """What is written out in the line and may be a file or a URL: arguments, values behind `=` and `@`, and redirections."""
        return _list_mentions(self)

    @property
    def uncertainties(self) -> tuple[str, ...]:
        """Why it cannot be told what the line runs: its doubts, and the variables it sets that may change that."""
        names = [name for name in self.sets if _HARMLESS.fullmatch(name) is None]
        return (*self.doubts, *[f"it sets `{name}`, which may change what runs" for name in names])

    @property
    def moves(self) -> bool:
        """Whether it goes to another folder, so that a relative name may be any file."""
        return any(words[0] in _MOVES for words in self.commands)


@lru_cache(maxsize=512)
def _list_mentions(line: ShellLine) -> tuple[str, ...]:
    words = [word for command in line.commands for place, word in enumerate(command) if word and (place or "/" in word)]
    targets = [*words, *line.reads, *[target for target in line.writes if target]]
    pieces = [piece.lstrip("@") for word in targets for piece in (word, word.partition("=")[2])]
    return tuple(dict.fromkeys([piece for piece in pieces if piece and not piece.startswith("-")]))


@lru_cache(maxsize=1)
def find_shfmt() -> str | None:
    return shutil.which("shfmt", path=sysconfig.get_path("scripts")) or shutil.which("shfmt")


class ShellReader:
    """Reads lines of shell, with an LRU cache. `find_parser` returns the path of `shfmt`, None if it is not installed."""

    def __init__(self, find_parser: Callable[[], str | None] = find_shfmt) -> None:
        self._find_parser = find_parser
        self._known: LRUCache[str, ShellLine] = LRUCache(REMEMBERED)

    async def read(self, text: str) -> ShellLine:
        if (line := read_plain_line(text)) is not None:
            return line
        if (line := self._known.get(text)) is not None:
            return line
        try:
            line = await self._parse(text)
        except ValueError as error:
            return ShellLine(doubts=(str(error),))  # not remembered: the next time may be better
        if len(text) <= REMEMBERED_CHARS:
            self._known[text] = line
        return line

    async def _parse(self, text: str) -> ShellLine:
        """Raises `ValueError` if the parser does not do its work."""
        if (flaw := _find_flaw(text)) is not None:
            return ShellLine(doubts=(flaw,))
        try:
            reading = _Reading(await self._parse_tree(text, "bash"), text)
        except SyntaxError as error:
            return ShellLine(doubts=(str(error),))
        if reading.is_read_otherwise:
            await self._read_otherwise(text, reading)
        return reading.line

    async def _read_otherwise(self, text: str, reading: "_Reading") -> None:
        """Adds what the text means to a plain sh."""
        try:
            other = _Reading(await self._parse_tree(text, "posix"), text)
        except SyntaxError:
            # It would still run what stands before the line at fault.
            reading.doubts.append(_OTHERWISE_READ)
            return
        # No program is called `[[` or like an option; they are what is left of a test.
        commands = [words for words in other.commands if not (words[0] or "").startswith(("[[", "-"))]
        other.commands = [words for words in commands if not _is_plain_declaration(words)]
        other.sets += [word.partition("=")[0] for words in commands if _is_plain_declaration(words) for word in words[1:] if word]
        reading.join(other)

    async def _parse_tree(self, text: str, language: str) -> Json:
        """The syntax tree. Raises `SyntaxError` if the text has none, `ValueError` if that is not known."""
        if (shfmt := self._find_parser()) is None:
            raise ValueError("the parser `shfmt` is not installed (`pip install shfmt-py`)")
        process = await asyncio.create_subprocess_exec(
            shfmt, "--to-json", "-ln", language,
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        try:
            async with asyncio.timeout(SECONDS):
                told, wrong = await process.communicate(text.encode())
        except TimeoutError:
            raise ValueError(f"it was not parsed within {SECONDS:g} s") from None
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        if process.returncode != 0:
            reason = wrong.decode(errors="replace").strip().removeprefix("<standard input>:")
            raise SyntaxError(f"it cannot be parsed ({reason[:200]})")
        try:
            tree: Json = msgspec.json.decode(told)
        except (msgspec.DecodeError, RecursionError):
            raise SyntaxError("it is nested too deeply") from None
        return tree


read_line: Final = ShellReader().read
"""Reads a line with the one reader of this process."""


def read_plain_line(text: str) -> ShellLine | None:
    """The line if it is made of plain words alone, so that no shell reads it in two ways; None if it takes a parser."""
    if len(text) > LONGEST or _PLAIN.fullmatch(text) is None:
        return None
    words = tuple(text.split())
    return None if _OTHERWISE.fullmatch(words[0]) else ShellLine((words,), sets=_list_sets(words), doubts=_doubt_builtin(words))


class _Reading:
    """Collects what the nodes of one or two trees of a text say."""

    def __init__(self, tree: Json, text: str) -> None:
        self._text = text.encode()
        self.commands: list[tuple[str | None, ...]] = []
        self.sets: list[str] = []
        self.writes: list[str | None] = []
        self.reads: list[str] = []
        self.doubts: list[str] = []
        self.evaluated: list[str] = []
        self.is_read_otherwise = False
        self._arithmetic = Arithmetic()
        self._add(tree)

    @property
    def line(self) -> ShellLine:
        evaluated = tuple(dict.fromkeys([*self.evaluated, *self._arithmetic.doubts]))
        doubts = dict.fromkeys([*self.doubts, *evaluated])
        names = tuple(dict.fromkeys(self.sets))
        writes, reads = tuple(dict.fromkeys(self.writes)), tuple(dict.fromkeys(self.reads))
        return ShellLine(tuple(dict.fromkeys(self.commands)), names, writes, tuple(doubts), reads, evaluated)

    def join(self, other: "_Reading") -> None:
        self.commands += other.commands
        self.sets += other.sets
        self.writes += other.writes
        self.reads += other.reads
        self.doubts += other.doubts
        self.evaluated += other.evaluated

    def _add(self, tree: Json) -> None:
        for node in _walk_nodes(tree):
            for redirect in node.get("Redirs") or ():
                self._redirect(redirect)
                if redirect["Op"].startswith("&>") and _find_offset(node) > redirect["OpPos"]["Offset"]:
                    self.doubts.append(_OTHERWISE_READ)
            self._visit(node)

    def _visit(self, node: Json) -> None:
        if "Hash" in node and "\n" in node.get("Text", ""):
            # The parser takes the next line for more of this one; bash runs it.
            self.evaluated.append("it has a comment that ends with a backslash")
        match node.get("Type"):
            case "CallExpr":
                self._at_call(node)
            case "DeclClause":
                self._at_declaration(node)
            case "ForClause" if node["Loop"]["Type"] == "WordIter":
                self.sets.append(node["Loop"]["Name"]["Value"])
                self._arithmetic.loop(self.sets[-1], node["Loop"].get("Items"))
            case "ForClause":
                self._arithmetic.evaluate([node["Loop"].get(part) for part in ("Init", "Cond", "Post")])
            case "CoprocClause":
                # The parser takes some of its programs for the coprocess's name: `coproc a <<< x`.
                self.doubts.append("it starts a coprocess")
            case "ParamExp":
                self._at_parameter(node)
            case "BinaryArithm" if node["Op"].endswith("=") and node["Op"] not in _COMPARES:
                self.sets.append(_read_literal(node["X"]))
            case "UnaryArithm" if node["Op"] in ("++", "--"):
                self.sets.append(_read_literal(node["X"]))
            case "ArithmExp":
                self._arithmetic.evaluate(node["X"])
            case "ArithmCmd":
                self.is_read_otherwise = True
                self._arithmetic.evaluate(node["X"])
            case "TestClause":
                self.is_read_otherwise = True
            case "BinaryTest" | "UnaryTest" if node["Op"] in COMPUTES:
                self._arithmetic.evaluate([node["X"], node.get("Y")])
            case "LetClause":
                self.evaluated.append("`let` evaluates text")
            case "FuncDecl":
                self.doubts.append("it defines a function")

    def _at_call(self, node: Json) -> None:
        for assign in node.get("Assigns") or ():
            self.sets.append(assign["Name"]["Value"])
            self._arithmetic.assign(assign)
        args = node.get("Args")
        if not args:
            return
        words = (_read_name(args[0]), *[_read_argument(word) for word in args[1:]])
        self.commands.append(words)
        self.sets += (named := _list_sets(words))
        for name in named:
            self._arithmetic.set_unknown(name)
        self.doubts += _doubt_builtin(words)
        if _has_unknown_name(words):
            self.evaluated.append(f"`{words[0]}` sets a variable whose name is not known, or computes its index")
        if words[0] in ("test", "[", "[["):
            self._arithmetic.test(args[1:], words[1:])

    def _at_declaration(self, node: Json) -> None:
        if node["Variant"]["Value"] == "nameref":
            self.evaluated.append("it gives a variable a second name")
        for assign in node.get("Args") or ():
            if "Name" in assign:
                self.sets.append(assign["Name"]["Value"])
                self._arithmetic.assign(assign)
            elif (option := _read_name(assign["Value"])) is None or re.fullmatch(r"-[xrpagA]+", option) is None:
                self.evaluated.append("it declares variables in a way that is not understood")

    def _at_parameter(self, node: Json) -> None:
        operator = node.get("Exp", {}).get("Op", "")
        if operator in ("=", ":="):
            self.sets.append(node["Param"]["Value"])
            self._arithmetic.set_unknown(self.sets[-1])
        if node.get("Excl") and "Names" not in node and _read_literal(node.get("Index") or {}) not in ("@", "*"):
            self.evaluated.append("it uses a variable whose name another one holds")
        self._arithmetic.evaluate([node.get("Index"), node.get("Slice")])
        if operator in _DEFAULTS and any(map(_is_quoted_code, node["Exp"].get("Word", {}).get("Parts") or ())):
            # Within double quotes and here-documents bash takes these quotes for plain signs, and evaluates what is in them.
            self.evaluated.append("it has single quotes inside of `${...}`")
        if operator.startswith("@"):
            self.evaluated.append("it expands what a variable holds once more")

    def _redirect(self, redirect: Json) -> None:
        target = _read_name(redirect["Word"])
        if (body := redirect.get("Hdoc")) is not None:
            self._at_document(redirect["Word"], body)
        if "[" in (redirect.get("N") or {}).get("Value", ""):
            self.evaluated.append("it computes where to keep the number of a file")
        if redirect["Op"] in ("<", "<>") and target:
            self.reads.append(target)
        if redirect["Op"] not in _WRITES and not (target or "").startswith(_CONNECTIONS):
            return
        if redirect["Op"] == ">&" and target is not None and re.fullmatch(r"\d+-?|-", target):
            return  # another of its own channels
        if target != "/dev/null":
            self.writes.append(target)

    def _at_document(self, word: Json, body: Json) -> None:
        # The parser and the shells disagree about where a here-document ends if its last word stands in a line that a backslash
        # continues, or right before a parenthesis: what is text to one is commands to the other.
        end = _read_text(word)
        said = self._text[body["Pos"]["Offset"] : body["End"]["Offset"]].decode()
        *lines, _ = said.split("\n")
        if end is None:
            is_clear = False
        elif all(part["Type"] == "Lit" and "\\" not in part["Value"] for part in word["Parts"]):
            joined = said.replace("\\\n", "").split("\n")[:-1]
            is_clear = end not in [line.replace("\t", "") for line in joined] and not (lines and lines[-1].endswith("\\"))
        else:
            is_clear = True
        if not is_clear or any(line.lstrip("\t").startswith(f"{end})") for line in lines):
            self.evaluated.append("it has a here-document that does not end clearly")


def _walk_nodes(tree: Json) -> Iterator[Json]:
    """Every object of the tree, in the order of the text."""
    ahead: list[object] = [tree]
    while ahead:
        node = ahead.pop()
        if isinstance(node, dict):
            yield node
            ahead += reversed(node.values())
        elif isinstance(node, list):
            ahead += reversed(node)


def _find_offset(statement: Json) -> int:
    """Where the last word of a statement's command begins; -1 if it has no words."""
    words = (statement.get("Cmd") or {}).get("Args") or ()
    return int(words[-1].get("Pos", {}).get("Offset", 0)) if words else -1


def _read_name(word: Json) -> str | None:
    """The text of a word that is the same whenever the line runs."""
    raw = _mask_quoted(word)
    return _read_text(word) if raw in ("[", "[[") or _GLOB.isdisjoint(raw) else None


def _read_argument(word: Json) -> str | None:
    """Like `_read_name`, but also a word that may become several if none of them can be an option that is not written out."""
    text, raw = _read_text(word), _mask_quoted(word)
    if text is None or _GLOB.isdisjoint(raw):
        return text
    first, option = raw[:1], raw.partition("=")[0]
    if not first or first in _GLOB or (text.startswith("-") and not _GLOB.isdisjoint(option)):
        return None
    return text


def _read_text(word: Json) -> str | None:
    """What the parts of a word say, quotes and escapes removed; None if one of them is known only later."""
    said = [_read_part(part) for part in word.get("Parts") or ()]
    return None if None in said else "".join([text for text in said if text is not None])


def _read_part(part: Json) -> str | None:
    match part:
        case {"Type": "Lit", "Value": str(value)}:
            return re.sub(r"\\(\n|.)", lambda found: found[1].strip("\n"), value)
        case {"Type": "SglQuoted"} if not part.get("Dollar"):
            return str(part.get("Value", ""))
        case {"Type": "DblQuoted"} if not part.get("Dollar"):
            inner = [_read_quoted(each) for each in part.get("Parts") or ()]
            return None if None in inner else "".join([text for text in inner if text is not None])
        case _:
            return None


def _read_quoted(part: Json) -> str | None:
    if part.get("Type") != "Lit":
        return None
    return re.sub(r'\\(["$`\\]|\n)', lambda found: found[1].strip("\n"), part["Value"])


def _mask_quoted(word: Json) -> str:
    """The signs of a word that may stand for others; the quoted and escaped ones, and a lone `{}`, are shown as `_`."""
    parts = [part["Value"] if part.get("Type") == "Lit" else "_" for part in word.get("Parts") or ()]
    return re.sub(r"\\.|\{\}", "_", "".join(parts), flags=re.DOTALL)


def _read_literal(word: Json) -> str:
    """What is sure of a word's text, whatever the rest of it becomes."""
    return "".join([_read_part(part) or "" for part in word.get("Parts") or ()])


def _is_quoted_code(part: Json) -> bool:
    return part["Type"] == "SglQuoted" and re.search(r'[$`"}\\]', part.get("Value", "")) is not None


def _list_sets(words: tuple[str | None, ...]) -> tuple[str, ...]:
    """The variables that a builtin sets by their names."""
    if words[0] not in _SETS_BY_NAME:
        return ()
    return tuple([word for word in words[1:] if word is not None and not word.startswith("-")])


def _is_plain_declaration(words: tuple[str | None, ...]) -> bool:
    """Whether a plain sh reads a program where bash reads a declaration of variables, all written out."""
    return words[0] in _DECLARES and all(word and _DECLARED.fullmatch(word) for word in words[1:])


def _doubt_builtin(words: tuple[str | None, ...]) -> tuple[str, ...]:
    if words[0] == "printf" and words[1:] and (words[1] is None or words[1].startswith("-v")):
        return ("`printf` may set a variable",)
    return ()


def _has_unknown_name(words: tuple[str | None, ...]) -> bool:
    """Whether a builtin sets a variable whose name is not known, or has an index: bash evaluates what is in it."""
    if words[0] == "printf":
        option = words[1] if len(words) > 1 else ""
        words = words[:2] if option is None else words[:3] if option == "-v" else (option,) if option.startswith("-v") else ()
    elif words[0] not in _SETS_BY_NAME:
        return False
    return any(word is None or "[" in word for word in words)


def _find_flaw(text: str) -> str | None:
    if len(text) > LONGEST:
        return f"it is longer than {LONGEST} characters"
    strange = {sign for sign in text if sign not in "\n\t" and unicodedata.category(sign) in ("Cc", "Cf", "Cs", "Zl", "Zp")}
    shown = ", ".join(sorted([f"U+{ord(sign):04X}" for sign in strange]))
    return f"it has signs that cannot be seen ({shown})" if strange else None
