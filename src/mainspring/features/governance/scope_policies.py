"""The policies `commands`, `paths` and `domains`: what a call would run, touch and speak to, by the operator's lists.

They are for the verdict and for what a person is shown, and no boundary. Whatever an allowed program does, the sandbox holds;
tools open files beneath their root themselves; and a connection checks the address that it connects to again.
"""

import os
from collections.abc import Awaitable, Callable, Iterable, Sequence
from pathlib import Path
from typing import Final

from anyio import fail_after

from mainspring.core.errors import InvalidRequest
from mainspring.core.items import Purpose, ToolDefinition
from mainspring.core.run import Call, Run
from mainspring.engine.policy_order import pick_strictest_verdict
from mainspring.ports import Allow, Ask, Deny, QuickPolicy, Verdict
from mainspring.tools.declarations import find_served_tool, parsed_arguments, read_texts
from mainspring.tools.scope import (
    LONGEST_PATH,
    AllowedBeginning,
    CommandScope,
    Misspelling,
    Objection,
    find_denied,
    find_misspelling,
    is_address,
    judge_command,
    judge_host,
    list_urls,
    normalize_domain,
    parse_host,
)
from mainspring.tools.shell_reader import ShellLine, read_line

LOOKUP_SECONDS: Final = 8.0

_MISSPELLINGS: Final[dict[Misspelling, str]] = {
    "empty": "the path is empty; name a file or `.`",
    "long": "`{path}...` is longer than a path can be; name a file",
    "invisible": "the path has signs that cannot be seen, a NUL perhaps; leave them out",
    "upwards": "`{path}` goes up by `..`; write the path without",
    "home": "`{path}` is no plain path; write it relative to the working directory",
    "elsewhere": "`{path}` is no plain path; write it relative to the working directory",
}


class CommandPolicy:
    """Denies command lines with a denied program, and asks about those that run, or may run, more than is allowed.

    An entry is a program, or a program and its first words (`git status`). `allowed` programs run unless they would start others;
    with the words that make them do so, they may. `*` allows every program that starts no other. `denied` holds wherever its
    words stand in a command, and before all else. What is in neither needs approval.
    """

    name = "commands"
    # The parser has its own time limit, and most commands are known or plain: a task for each would cost more than the verdict.
    never_waits = True

    def __init__(self, allowed: Iterable[str] = (), denied: Iterable[str] = ()) -> None:
        beginnings = tuple([AllowedBeginning(tuple(entry.split())) for entry in allowed if entry.strip()])
        denials = tuple([" ".join(entry.casefold().split()) for entry in denied if entry.strip()])
        self._scope = CommandScope(beginnings, denials, has_builtins=True)

    async def judge(self, call: Call, run: Run) -> Verdict:
        if (tool := find_served_tool(call, run)) is None:
            return Allow()
        try:
            [texts] = _read_texts(tool, call, "command")
        except ValueError as error:
            return Deny(f"Invalid call of `{tool.name}`: {error}.")
        return pick_strictest_verdict([self.judge_line(text, await read_line(text)) for text in texts])

    def judge_line(self, text: str, line: ShellLine) -> Verdict:
        if "\0" in text:
            return Deny("The rule `commands` denies a command with a NUL; leave it out.")
        found = [objection for words in line.commands if (objection := judge_command(words, self._scope)) is not None]
        if (denial := next((each for each in found if each.severity == "denied"), None)) is not None:
            return Deny(f"The rule `commands` denies `{denial.entry}`; do it in another way, or without it.")
        if line.evaluated:  # a person would not see it either
            return Deny(
                f"The rule `commands` denies this command: {line.evaluated[0]}; compute with plain numbers, or in a program."
            )
        # A file is written where the line is, unless it goes elsewhere first.
        outside = [target or "a file" for target in line.writes if line.moves or not _is_below(target)]
        doubts = [*line.uncertainties, *[f"it writes to `{target}`" for target in outside], *map(_word_doubt, found)]
        return Ask(f"The rule `commands` asks before this command: {doubts[0]}.") if doubts else Allow()


def _word_doubt(objection: Objection) -> str:
    if objection.severity == "unlisted":
        return f"`{objection.entry}` is not among the allowed programs"
    return f"it may be `{objection.entry}`, which is denied" if objection.entry else objection.why


def _is_below(target: str | None) -> bool:
    """Whether it is a file beneath the working directory, and none that tells `git` which programs to start."""
    return target is not None and not target.startswith(("/", "~")) and {"..", ".git"}.isdisjoint(target.split("/"))


class PathPolicy(QuickPolicy):
    """Denies calls with a path outside `roots`, or one that a `denied` pattern fits. Relative paths start at the first root.

    A path is resolved as the system would resolve it, symbolic links followed, and must then lie inside one of the roots,
    component by component: `/data-evil` is not inside `/data`. In a pattern, `*` and `?` stay within a name, and `**` is any
    number of folders, none included; it fits in any case of letters. One without `/` fits a name anywhere: `.env` is every `.env`
    and all that is in a folder of that name. A command is denied if a word of it fits one; what a program opens is for the
    sandbox.
    """

    name = "paths"

    def __init__(self, roots: Sequence[str | Path], denied: Iterable[str] = ()) -> None:
        if not roots:
            raise ValueError("paths need at least one root to be inside of")
        self._roots = tuple([os.path.realpath(root) for root in roots])
        self._denied = tuple(denied)

    async def judge(self, call: Call, run: Run) -> Verdict:
        if (tool := find_served_tool(call, run)) is None:
            return Allow()
        try:
            texts, commands = _read_texts(tool, call, "path", "command")
        except ValueError as error:
            return Deny(f"Invalid call of `{tool.name}`: {error}.")
        mentioned = [word for text in commands for word in (await read_line(text)).mentions] if self._denied else []
        flaws = (*map(self.flaw, texts), *map(self._mention_flaw, mentioned))
        why = next((why for why in flaws if why is not None), None)
        return Allow() if why is None else Deny(f"The rule `paths` denies this call: {why}.")

    def flaw(self, text: str) -> str | None:
        """Why this path may not be used, in words for the model; None if it may."""
        if (kind := find_misspelling(text)) is not None:
            return _MISSPELLINGS[kind].format(path=text[:200])
        resolved = os.path.realpath(os.path.join(self._roots[0], text))
        inner = self._relative_places(resolved)
        if not inner:
            return f"`{text[:200]}` is outside {', '.join([f'`{root}`' for root in self._roots])}"
        return self._denial(text, inner)

    def _mention_flaw(self, word: str) -> str | None:
        """Why a word of a command may not be there: it is, or looks like, a file that is denied, wherever that is."""
        if "\0" in word:
            return None
        if len(word) > LONGEST_PATH:  # no file is called so, but a program may shorten it
            return self._denial(word, [os.path.normpath(word)])
        if "." not in word and "/" not in word and not os.path.lexists(f"{self._roots[0]}/{word}"):
            return None
        if (place := self._plainly_inside(word)) is not None:
            return self._denial(word, [place])
        resolved = os.path.realpath(os.path.join(self._roots[0], os.path.expanduser(word)))
        return self._denial(word, self._relative_places(resolved) or [resolved])

    def _relative_places(self, resolved: str) -> list[str]:
        """A path as seen from each of the roots that it is inside of."""
        inside = [root for root in self._roots if resolved == root or resolved.startswith(root.rstrip(os.sep) + os.sep)]
        return [os.path.relpath(resolved, root) for root in inside]

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
        pattern = find_denied(self._denied, *places)
        return None if pattern is None else f"`{text[:200]}` fits the denied pattern `{pattern}`"


class DomainPolicy:
    """Denies calls with a URL whose host is denied, is not among the allowed ones, or is not public.

    The host of a URL must be spelled so that every program reads it alike. `example.com` in a list stands for itself and all
    below it; an empty `allowed` is every host that is not denied. `check` resolves the host of a URL and raises `InvalidRequest`
    unless each of its addresses may be connected to. Of a command, a URL that is written out in it is judged by its host alone.
    """

    name = "domains"
    # Looking up a host has its own time limit, and most calls have none: a task for each would cost more than the verdict.
    never_waits = True

    def __init__(
        self,
        check: Callable[[str], Awaitable[None]],
        allowed: Iterable[str] = (),
        denied: Iterable[str] = (),
        *,
        seconds: float = LOOKUP_SECONDS,
    ) -> None:
        self._check, self._seconds = check, seconds
        self._allowed = tuple([normalize_domain(domain) for domain in allowed]) or ("*",)
        self._denied = tuple([normalize_domain(domain) for domain in denied])

    async def judge(self, call: Call, run: Run) -> Verdict:
        if (tool := find_served_tool(call, run)) is None:
            return Allow()
        try:
            urls, commands = _read_texts(tool, call, "url", "command")
        except ValueError as error:
            return Deny(f"Invalid call of `{tool.name}`: {error}.")
        flaws = [await self.flaw(url) for url in urls]
        flaws += [await self.flaw(url, is_mention=True) for text in commands for url in list_urls(await read_line(text))]
        why = next((why for why in flaws if why is not None), None)
        return Allow() if why is None else Deny(f"The rule `domains` denies this call: {why}.")

    async def flaw(self, url: str, *, is_mention: bool = False) -> str | None:
        """Why this URL may not be fetched, in words for the model; None if it may. A tool that follows a redirect asks about each
        new URL. A name that is only mentioned in a command is not looked up."""
        try:
            host = parse_host(url)
        except ValueError as error:
            return f"`{url[:200]}` {error}"
        if (objection := judge_host(host, self._allowed, self._denied)) is not None:
            return f"`{objection.entry}` is denied" if objection.severity == "denied" else objection.why
        if is_mention and not is_address(host):
            return None
        try:
            with fail_after(self._seconds):
                await self._check(url)
        except InvalidRequest as error:
            return error.message
        except TimeoutError:
            return f"`{host}` could not be looked up in {self._seconds:g} s"
        return None


def _read_texts(tool: ToolDefinition, call: Call, *purposes: Purpose) -> list[list[str]]:
    """The arguments for each purpose. Raises `ValueError`."""
    if not set(purposes) & set(tool.purposes.values()):
        return [[] for _ in purposes]
    arguments = parsed_arguments(call.item.arguments)
    return [read_texts(tool, arguments, purpose) for purpose in purposes]
