"""Would this command run only programs that the operator allows?

The policy is for the verdict and for what a person is shown; it is no boundary. Whatever an allowed program does, the sandbox
holds.
"""

import re
from collections.abc import Sequence
from typing import Final

from msgspec import Struct

from mainspring.core.run import Call, Run
from mainspring.ports import Allow, Ask, Deny, Verdict
from mainspring.tools.declarations import find_served_tool, parsed_arguments, read_texts
from mainspring.tools.programs import BUILTINS, basename, explain_reentry
from mainspring.tools.shell_reader import ShellLine, read_line

SYSTEM: Final = ("/bin", "/usr/bin", "/usr/local/bin", "/sbin", "/usr/sbin")

_HARMLESS = re.compile(r"LANG|LANGUAGE|LC_[A-Z]+|TZ|TERM|NO_COLOR|COLUMNS|LINES|REPLY|(?!npm_)[a-z_][a-z0-9_]*(?<!_proxy)")
_MOVES = frozenset({"cd", "pushd", "popd"})
_STRICTNESS: Final[dict[type, int]] = {Allow: 0, Ask: 1, Deny: 2}

Words = tuple[str | None, ...]


class CommandRules(Struct, frozen=True):
    """What commands may begin with: a program, or a program and its first words (`git status`).

    `allowed` programs run unless they would start others; with the words that make them do so, they may. `*` allows every
    program that starts no other. `denied` holds wherever its words stand in a command, and before all else. What is in neither
    needs approval.
    """

    allowed: tuple[str, ...] = ()
    denied: tuple[str, ...] = ()


class Commands:
    """Denies command lines with a denied program, and asks about those that run, or may run, more than is allowed."""

    name = "commands"
    # The parser has its own time limit, and most commands are known or plain: a task for each would cost more than the verdict.
    never_waits = True

    def __init__(self, rules: CommandRules) -> None:
        self._allowed = tuple([tuple(entry.split()) for entry in rules.allowed])
        self._denied = tuple([tuple(entry.casefold().split()) for entry in rules.denied])

    async def judge(self, call: Call, run: Run) -> Verdict:
        tool = find_served_tool(call, run)
        if tool is None or "command" not in tool.purposes.values():
            return Allow()
        try:
            texts = read_texts(tool, parsed_arguments(call.item.arguments), "command")
        except ValueError as error:
            return Deny(f"Invalid call of `{tool.name}`: {error}.")
        verdicts = [self._verdict(text, await read_line(text)) for text in texts]
        return max(verdicts, key=lambda verdict: _STRICTNESS[type(verdict)], default=Allow())

    def _verdict(self, text: str, line: ShellLine) -> Verdict:
        if "\0" in text:
            return Deny("The rule `commands` denies a command with a NUL; leave it out.")
        for words in line.commands:
            if (entry := self._denial(words)) is not None:
                return Deny(f"The rule `commands` denies `{' '.join(entry)}`; do it in another way, or without it.")
        why = self._doubt(line)
        return Allow() if why is None else Ask(f"The rule `commands` asks before this command: {why}.")

    def _denial(self, words: Words) -> tuple[str, ...] | None:
        """The denied entry that these words hold, in its order but with anything between."""
        said = [basename(words[0] or "").casefold(), *[(word or "").casefold() for word in words[1:]]]
        for entry in self._denied:
            rest = iter(said[1:])
            if entry and entry[0] == said[0] and all(word in rest for word in entry[1:]):
                return entry
        return None

    def _doubt(self, line: ShellLine) -> str | None:
        """Why a person should look at this line first; None if nothing speaks against it."""
        if line.doubts:
            return line.doubts[0]
        if strange := next((name for name in line.sets if _HARMLESS.fullmatch(name) is None), None):
            return f"it sets `{strange}`, which may change what runs"
        moves = any(words[0] in _MOVES for words in line.commands)
        if outside := next((target or "a file" for target in line.writes if moves or not _is_inside(target)), None):
            return f"it writes to `{outside}`"
        return next((why for words in line.commands if (why := self._objection(words)) is not None), None)

    def _objection(self, words: Words) -> str | None:
        name = words[0]
        if not name:
            return "the name of a program is known only when it runs"
        granted = max([len(entry) for entry in self._allowed if _begins(words, entry)], default=0)
        if (why := explain_reentry(words, granted)) is not None or name in BUILTINS:
            return why
        denied = next((entry for entry in self._denied if entry[:1] == (basename(name).casefold(),)), None)
        if denied is not None and None in words:
            return f"it may be `{' '.join(denied)}`, which is denied"
        return None if granted or ("*",) in self._allowed else f"`{name}` is not among the allowed programs"


def _begins(words: Words, entry: Sequence[str]) -> bool:
    """Whether a command begins with these words. A path counts as its last part only in the system's own folders."""
    name = words[0] or ""
    folder, _, last = name.rpartition("/")
    names = (name, last) if folder in SYSTEM else (name,)
    return bool(entry) and entry[0] in names and tuple(words[1 : len(entry)]) == tuple(entry[1:])


def _is_inside(target: str | None) -> bool:
    return target is not None and not target.startswith(("/", "~")) and ".." not in target.split("/")
