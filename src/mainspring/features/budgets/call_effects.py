"""What a call would do, read from its arguments by what its tool declares of them."""

from urllib.parse import urlsplit

from msgspec import Struct

from mainspring.core.items import FunctionCall, ToolDefinition
from mainspring.features.budgets.enforcement import EnforcementContext, Words
from mainspring.features.governance.domains import Domains, urls_in
from mainspring.tools.declarations import parsed_arguments, read_effects, read_texts
from mainspring.tools.shell_reader import ShellLine, read_line


class ReadLines(Struct, frozen=True):
    """What lines of shell would run and write."""

    commands: tuple[Words, ...] = ()
    writes: tuple[str | None, ...] = ()
    doubts: tuple[str, ...] = ()
    mentions: tuple[str, ...] = ()
    urls: tuple[str, ...] = ()


async def read_lines(texts: list[str]) -> ReadLines:
    lines = [await read_line(text) for text in texts]
    names = [name for line in lines for name in line.sets if not name.islower() or name.endswith("_proxy")]
    settings = [f"it sets `{name}`, which may change what runs" for name in names]
    return ReadLines(
        tuple([words for line in lines for words in line.commands]),
        tuple([target for line in lines for target in _targets(line)]),
        (*[doubt for line in lines for doubt in line.doubts], *settings),
        tuple([word for line in lines for word in line.mentions]),
        tuple([url for line in lines for url in urls_in(line)]),
    )


def _targets(line: ShellLine) -> list[str | None]:
    """The files that a line redirects to. Where a line goes elsewhere first, a relative name may be any file."""
    moves = any(words[0] in ("cd", "pushd", "popd") for words in line.commands)
    return [None if moves and target is not None and not target.startswith("/") else target for target in line.writes]


async def context_of(call: FunctionCall, tool: ToolDefinition) -> EnforcementContext:
    """The call as the enforcement points see it. One that cannot be understood has a flaw, and nothing else."""
    try:
        arguments = parsed_arguments(call.arguments)
        paths, commands = read_texts(tool, arguments, "path"), read_texts(tool, arguments, "command")
        lines = await read_lines(commands)
        hosts = tuple([await host_of(url) for url in (*read_texts(tool, arguments, "url"), *lines.urls)])
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
        writes=(*(paths if is_writing else ()), *lines.writes),
        lines=_lines(told) if is_writing else 0,
        commands=lines.commands,
        mentions=lines.mentions,
        doubts=lines.doubts,
        hosts=hosts,
        # What a call with a command does is what its command does.
        unseen=frozenset() if commands else frozenset([effect for effect in effects if effect not in seen]),
        is_declared=bool(tool.effects or tool.operations),
    )


async def host_of(url: str) -> str:
    """The host of a URL. Raises `ValueError` for one that programs would read in different ways."""
    if (why := await _spelling.flaw(url)) is not None:
        raise ValueError(why)
    return urlsplit(url).hostname or ""


async def _anywhere(url: str) -> None:
    """Whether the address may be connected to is for the policy `domains`."""


_spelling = Domains(_anywhere)


def _lines(value: object) -> int:
    """The lines of all text in a value: as many as a write that is given it may change."""
    if isinstance(value, str):
        return len(value.splitlines())
    if isinstance(value, dict):
        return sum(map(_lines, value.values()))
    return sum(map(_lines, value)) if isinstance(value, list) else 0
