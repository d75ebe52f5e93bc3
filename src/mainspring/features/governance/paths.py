"""Does the path stay where this run may work?

A path is resolved as the system would resolve it, symbolic links followed, and must then lie inside one of the roots, component
by component: `/data-evil` is not inside `/data`. What a tool opens a moment later may be another file; so tools open files
beneath their root themselves, and this is for the verdict.

Of a command, what is written out in it is compared with the denied patterns, and nothing else is claimed: what a program opens is
for the sandbox.
"""

import os
import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from urllib.parse import unquote

from mainspring.core.run import Call, Run
from mainspring.ports import Allow, Deny, Verdict
from mainspring.tools.declarations import find_served_tool, parsed_arguments, read_texts
from mainspring.tools.shell_reader import read_line


class Paths:
    """Denies calls with a path outside `roots`, or one that a `denied` pattern fits. Relative paths start at the first root.

    In a pattern, `*` and `?` stay within a name, and `**` is any number of folders, none included; it fits in any case of
    letters. One without `/` fits a name anywhere: `.env` is every `.env` and all that is in a folder of that name. A command is
    denied if a word of it fits one.
    """

    name = "paths"
    never_waits = True

    def __init__(self, roots: Sequence[str | Path], denied: Iterable[str] = ()) -> None:
        if not roots:
            raise ValueError("paths need at least one root to be inside of")
        self._roots = tuple([os.path.realpath(root) for root in roots])
        self._denied = tuple([(pattern, _expression(pattern)) for pattern in denied])

    async def judge(self, call: Call, run: Run) -> Verdict:
        tool = find_served_tool(call, run)
        if tool is None or {"path", "command"}.isdisjoint(tool.purposes.values()):
            return Allow()
        try:
            arguments = parsed_arguments(call.item.arguments)
            texts, commands = read_texts(tool, arguments, "path"), read_texts(tool, arguments, "command")
        except ValueError as error:
            return Deny(f"Invalid call of `{tool.name}`: {error}.")
        mentioned = [word for text in commands for word in (await read_line(text)).mentions] if self._denied else []
        flaws = (*map(self.flaw, texts), *map(self._mention_flaw, mentioned))
        why = next((why for why in flaws if why is not None), None)
        return Allow() if why is None else Deny(f"The rule `paths` denies this call: {why}.")

    def flaw(self, text: str) -> str | None:
        """Why this path may not be used, in words for the model; None if it may."""
        if (why := _misspelling(text)) is not None:
            return why
        resolved = os.path.realpath(os.path.join(self._roots[0], text))
        inner = [_plain(os.path.relpath(resolved, root)) for root in self._roots if _is_inside(resolved, root)]
        if not inner:
            return f"`{text[:200]}` is outside {', '.join([f'`{root}`' for root in self._roots])}"
        return self._denial(text, inner)

    def _mention_flaw(self, word: str) -> str | None:
        """Why a word of a command may not be there: it is, or looks like, a file that is denied, wherever that is."""
        if "\0" in word:
            return None
        if "." not in word and "/" not in word and not os.path.lexists(f"{self._roots[0]}/{word}"):
            return None
        if (place := self._plainly_inside(word)) is not None:
            return self._denial(word, [_plain(place)])
        resolved = os.path.realpath(os.path.join(self._roots[0], os.path.expanduser(word)))
        inner = [os.path.relpath(resolved, root) for root in self._roots if _is_inside(resolved, root)]
        return self._denial(word, [_plain(path) for path in inner or [resolved.lstrip("/")]])

    def _plainly_inside(self, word: str) -> str | None:
        """The path below the only root, if there is nothing to resolve in it: asking about each folder on the way to the root, as
        the system's own way of resolving does, would cost more than all else."""
        if len(self._roots) > 1 or word.startswith(("/", "~")) or ".." in word:
            return None
        path = self._roots[0]
        for part in word.split("/"):
            path = f"{path}/{part}"
            if os.path.islink(path):
                return None
        return os.path.normpath(word)

    def _denial(self, text: str, places: Sequence[str]) -> str | None:
        fitting = next((pattern for pattern, expression in self._denied if any(map(expression.fullmatch, places))), None)
        return None if fitting is None else f"`{text[:200]}` fits the denied pattern `{fitting}`"


def _misspelling(text: str) -> str | None:
    """What is wrong with the path before anybody looks at the disk."""
    if not text:
        return "the path is empty; name a file or `.`"
    if any(unicodedata.category(sign) in ("Cc", "Cf", "Cs") for sign in text):
        return "the path has signs that cannot be seen, a NUL perhaps; leave them out"
    for form in _forms(text):
        if ".." in re.split(r"[/\\]", form):
            return f"`{text[:200]}` goes up by `..`; write the path without"
    if text.startswith("~") or re.match(r"[a-zA-Z][a-zA-Z0-9+.-]*://|[a-zA-Z]:[/\\]|\\\\", text):
        return f"`{text[:200]}` is no plain path; write it relative to the working directory"
    return None


def _forms(text: str) -> Iterator[str]:
    """The text, and what programs that decode or normalise it would make of it."""
    yield text
    for _ in range(3):
        text = unicodedata.normalize("NFKC", unquote(text))
        yield text


def _is_inside(path: str, root: str) -> bool:
    return path == root or path.startswith(root.rstrip(os.sep) + os.sep)


def _plain(text: str) -> str:
    return unicodedata.normalize("NFKC", text).casefold()


def _expression(pattern: str) -> re.Pattern[str]:
    """A pattern as an expression over a path inside a root. What is beneath a path that fits, fits too."""
    rooted = pattern if "/" in pattern else f"**/{pattern}"
    signs = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
    parts = re.split(r"(\*\*/|\*\*|\*|\?)", _plain(rooted.lstrip("/")))
    return re.compile("".join([signs.get(part) or re.escape(part) for part in parts]) + "(?:/.*)?", re.DOTALL)
