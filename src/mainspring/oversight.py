"""Governance from the settings: the table `[governance]` becomes the policies that every call is judged by."""

from collections.abc import Mapping
from typing import Literal

import msgspec
from msgspec import Struct

from mainspring.errors import InvalidRequest
from mainspring.policies.commands import CommandRules, Commands
from mainspring.policies.domains import Domains
from mainspring.policies.governance import governance
from mainspring.policies.level import Level
from mainspring.policies.paths import Paths
from mainspring.policies.patterns import Rules
from mainspring.policies.rate import Rate
from mainspring.ports import CallPolicy
from mainspring.tools.addresses import AddressGuard


class Few(Struct, frozen=True, forbid_unknown_fields=True):
    """What may be and what may not. What is in neither list needs approval, or is refused."""

    allowed: tuple[str, ...] = ()
    denied: tuple[str, ...] = ()


class Oversight(Struct, frozen=True, forbid_unknown_fields=True):
    """What `[governance]` may hold. What it does not mention is not asked about."""

    rules: dict[str, Literal["allow", "ask", "deny"]] = {}
    """Verdicts by `tool:operation`, `tool`, or a pattern with `*`; the most specific counts."""
    level: Level = "full"
    """`read-only`, `supervised` (a person is asked before anything but reading) or `full`."""
    network_reads: bool = False
    """Whether reading from the network counts as reading."""
    per_minute: int | None = None
    """Calls of server tools per minute, for each caller."""
    burst: int = 10
    """Calls within a second or so."""
    commands: Few | None = None
    """Programs that shell commands may run, or a program and its first words."""
    paths: Few | None = None
    """Folders that files must be in, and patterns of files that are taboo."""
    domains: Few | None = None
    """Domains that may be reached, with those below them, and those that may not."""


def policies_of(table: Mapping[str, object], guard: AddressGuard) -> tuple[CallPolicy, ...]:
    """The policies that the table asks for, in order; none for an empty one. Raises `InvalidRequest`."""
    if not table:
        return ()
    try:
        asked = msgspec.convert(table, Oversight)
        return _policies(asked, guard)
    except (msgspec.ValidationError, ValueError) as error:
        known = ", ".join(Oversight.__struct_fields__)
        told = f"governance: {str(error).replace('`$.', '`')}; it may hold {known}"
        raise InvalidRequest(f"the settings are not right: {told}") from None


def _policies(asked: Oversight, guard: AddressGuard) -> tuple[CallPolicy, ...]:
    commands, paths, domains = asked.commands, asked.paths, asked.domains
    return governance(
        rules=Rules.of(asked.rules) if asked.rules else None,
        rate=Rate(asked.per_minute, asked.burst) if asked.per_minute is not None else None,
        level=(lambda run: asked.level) if asked.level != "full" else None,
        network_reads=asked.network_reads,
        commands=Commands(CommandRules(commands.allowed, commands.denied)) if commands is not None else None,
        paths=Paths(paths.allowed, paths.denied) if paths is not None else None,
        domains=Domains(guard.check, domains.allowed, domains.denied) if domains is not None else None,
    )
