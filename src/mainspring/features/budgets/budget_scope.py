"""EF-01 to EF-04: what a call reads, writes, runs and speaks to, and whether that is within the scope of a budget.

A call is read from its arguments by what its tool declares of them. Paths are compared as they are written, without a look at the
disk, so that the same call gets the same answer on another day. That no link leads out of the root is for the policy `paths`.
"""

import posixpath
import re
from collections.abc import Iterator
from functools import lru_cache
from typing import Final

from msgspec import Struct

from mainspring.core.effects import read_effects
from mainspring.core.items import Effect, FunctionCall, ToolDefinition
from mainspring.features.budgets.budget import AutonomyBudget, FileScope
from mainspring.tools.declarations import parsed_arguments, read_texts
from mainspring.tools.scope import (
    Misspelling,
    Objection,
    Words,
    find_denied,
    find_misspelling,
    is_allowed,
    judge_command,
    judge_host,
    list_urls,
    parse_host,
)
from mainspring.tools.shell_reader import ShellLine, read_line

_VERBS: Final[dict[Effect, str]] = {
    "write": "write", "destructive": "destroy", "execute": "run programs", "network": "use the network",
}  # fmt: skip
_MISSPELLINGS: Final[dict[Misspelling, str]] = {
    "empty": "is empty or has signs that cannot be seen; write a plain path",
    "long": "is longer than a path can be; name a file",
    "invisible": "is empty or has signs that cannot be seen; write a plain path",
    "upwards": "goes up by `..` or begins with `~`; write the path without",
    "home": "goes up by `..` or begins with `~`; write the path without",
    "elsewhere": "is no plain path; write it relative to the working directory",
}


class EnforcementContext(Struct, frozen=True):
    """One step: an iteration, or a call with all that it would read, write, run and speak to.

    A word of a command, or a file to write, that is known only later is None; `doubts` say what else cannot be told; `mentions`
    are words of commands that may be files. `unseen` are effects of which no parameter shows what they touch, `is_declared`
    whether the tool says so itself. `flaw` is why the call cannot be understood at all.
    `failures` is how many steps failed in a row, `signals` are conditions that somebody reports.
    """

    now: float = 0.0
    tool: str = ""
    iterations: int = 0
    calls: int = 0
    reads: tuple[str, ...] = ()
    writes: tuple[str | None, ...] = ()
    lines: int = 0
    commands: tuple[Words, ...] = ()
    doubts: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()
    unseen: frozenset[Effect] = frozenset()
    is_declared: bool = True
    flaw: str | None = None
    failures: int = 0
    signals: frozenset[str] = frozenset()
    is_priced: bool = True
    mentions: tuple[str, ...] = ()


async def read_call(call: FunctionCall, tool: ToolDefinition) -> EnforcementContext:
    """The call as the enforcement points see it. One that cannot be understood has a flaw, and nothing else."""
    try:
        arguments = parsed_arguments(call.arguments)
        paths, commands = read_texts(tool, arguments, "path"), read_texts(tool, arguments, "command")
        lines = [await read_line(command) for command in commands]
        urls = [*read_texts(tool, arguments, "url"), *[url for line in lines for url in list_urls(line)]]
        hosts = tuple([_read_host(url) for url in urls])
    except ValueError as error:
        return EnforcementContext(tool=tool.name, calls=1, flaw=f"the call of `{tool.name}` is invalid: {error}")
    effects = read_effects(tool, arguments)
    is_writing = bool(paths) and not effects.isdisjoint(("write", "destructive"))
    seen = {"read", *(("write", "destructive") if paths else ()), *(("network",) if hosts else ())}
    told = [value for name, value in arguments.items() if name not in tool.purposes and name != "operation"]
    return EnforcementContext(
        tool=tool.name,
        calls=1,
        reads=tuple(paths) if "read" in effects or not is_writing else (),
        writes=(*(paths if is_writing else ()), *[target for line in lines for target in _list_targets(line)]),
        lines=_count_lines(told) if is_writing else 0,
        commands=tuple([words for line in lines for words in line.commands]),
        mentions=tuple([word for line in lines for word in line.mentions]),
        doubts=tuple([doubt for line in lines for doubt in line.uncertainties]),
        hosts=hosts,
        # What a call with a command does is what its command does.
        unseen=frozenset() if commands else frozenset([effect for effect in effects if effect not in seen]),
        is_declared=bool(tool.effects or tool.operations),
    )


def _list_targets(line: ShellLine) -> list[str | None]:
    """The files that a line redirects to. Where it moves first, a relative name is not known."""
    return [None if line.moves and target is not None and not target.startswith("/") else target for target in line.writes]


def _read_host(url: str) -> str:
    """Raises `ValueError` for a URL that programs would read in different ways."""
    try:
        return parse_host(url)
    except ValueError as error:
        raise ValueError(f"`{url[:200]}` {error}") from None


def _count_lines(value: object) -> int:
    """The lines of all text in a value: as many as a write that is given it may change."""
    if isinstance(value, str):
        return len(value.splitlines())
    if isinstance(value, dict):
        return sum(map(_count_lines, value.values()))
    return sum(map(_count_lines, value)) if isinstance(value, list) else 0


def find_objections(budget: AutonomyBudget, context: EnforcementContext) -> Iterator[Objection]:
    """What speaks against a call, in the order of the enforcement points."""
    files, commands, network = budget.files, budget.command_scope, budget.network
    if context.flaw is not None:
        yield Objection("scope", "denied", context.flaw)
    for path in context.reads:
        yield from _judge_path("EF-01", path, files, files.read, "read")
    for target in context.writes:
        if target is not None:
            yield from _judge_path("EF-02", target, files, files.write, "written")
        elif not _writes_anything(files):
            yield Objection("EF-02", "unclear", "it writes to a file whose name is known only when it runs")
    if context.mentions and files.deny:
        yield from _judge_mentions(context.mentions, files.deny, files.root)
    if not commands.is_open:
        for doubt in context.doubts:
            yield Objection("EF-03", "unclear", doubt)
        for words in context.commands:
            if (objection := judge_command(words, commands)) is not None:
                yield objection
    for host in context.hosts:
        if not network.enabled:
            yield Objection("EF-04", "unlisted", f"the network is switched off, and `{host}` is on it")
        elif (objection := judge_host(host, network.allowed_domains, network.denied_domains)) is not None:
            yield objection
    for effect in sorted(context.unseen):
        yield from _judge_unseen(effect, budget, context)


def locate(path: str, root: str) -> str:
    """The path below the root, or absolute if it is elsewhere. Raises `ValueError` for one that may mean another file."""
    if (kind := find_misspelling(path)) is not None:
        raise ValueError(_MISSPELLINGS[kind])
    place = posixpath.normpath(re.sub("^/+", "/", path))
    if root and (place == root.rstrip("/") or place.startswith(root.rstrip("/") + "/")):
        return posixpath.relpath(place, root)
    return place


def _judge_path(point: str, path: str, files: FileScope, allowed: tuple[str, ...], verb: str) -> Iterator[Objection]:
    shown = path[:200]
    try:
        place = locate(path, files.root)
    except ValueError as error:
        yield Objection(point, "denied", f"`{shown}` {error}")
        return
    if (pattern := find_denied(files.deny, place)) is not None:
        yield Objection(point, "denied", f"`{shown}` fits the denied pattern `{pattern}`")
    elif not is_allowed(allowed, place):
        yield Objection(point, "unlisted", f"`{shown}` is not among the files that may be {verb}: {', '.join(allowed) or 'none'}")


@lru_cache(maxsize=512)
def _judge_mentions(words: tuple[str, ...], deny: tuple[str, ...], root: str) -> tuple[Objection, ...]:
    """What a list denies is not for commands either. Of a word that is in no list nothing is claimed: it may be anything."""
    found: list[Objection] = []
    for word in words:
        try:
            place = locate(word, root)
        except ValueError:
            place = posixpath.normpath(word)
        if (pattern := find_denied(deny, place)) is not None:
            found.append(Objection("EF-01", "denied", f"`{word[:200]}` fits the denied pattern `{pattern}`"))
    return tuple(found)


def _writes_anything(files: FileScope) -> bool:
    return not files.deny and {"**", "/**"} <= set(files.write)


def _judge_unseen(effect: Effect, budget: AutonomyBudget, context: EnforcementContext) -> Iterator[Objection]:
    """A tool that may do something which none of its parameters shows is blocked if nothing of the kind may be, and else asked
    about, unless all of the kind may be."""
    network = budget.network
    match effect:
        case "write" | "destructive":
            point, everything, nothing = "EF-02", _writes_anything(budget.files), not budget.files.write
        case "execute":
            point, everything, nothing = "EF-03", budget.command_scope.is_open, not budget.allowed_commands
        case "network":
            open_to_all = network.enabled and "*" in network.allowed_domains and not network.denied_domains
            point, everything, nothing = "EF-04", open_to_all, not network.enabled
        case _:
            return  # what is read without a path is no file
    if not everything:
        is_sure = nothing and context.is_declared
        yield Objection(point, "unlisted" if is_sure else "unclear", f"`{context.tool}` may {_VERBS[effect]} out of sight")
