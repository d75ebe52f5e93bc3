"""Governance from the settings: the table `[governance]` becomes the policies that every call is judged by, `[budget]` the plan
that every run works under."""

from collections.abc import Iterable, Mapping
from typing import Any, Literal

import msgspec
from msgspec import Struct

from mainspring.errors import InvalidRequest
from mainspring.policies.autonomy.budget import LEVELS, AutonomyBudget
from mainspring.policies.autonomy.plan import Plan
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
    supervised: Literal["ask", "log"] = "ask"
    """Whether a supervised call waits for a person, or is only taken note of."""
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
    scan_inputs: bool = False
    """Take note of inputs that read like orders to the model, in the log and the audit. They are not refused."""


def policies_of(table: Mapping[str, object], guard: AddressGuard) -> tuple[CallPolicy, ...]:
    """The policies that the table asks for, in order; none for an empty one. Raises `InvalidRequest`."""
    if not table:
        return ()
    try:
        return _policies(msgspec.convert(table, Oversight), guard)
    except (msgspec.ValidationError, ValueError) as error:
        raise _misfit("governance", error, Oversight.__struct_fields__) from None


def scans_inputs(table: Mapping[str, object]) -> bool:
    return table.get("scan_inputs") is True


def plan_of(table: Mapping[str, Any]) -> Plan | None:
    """The plan that `[budget]` describes, None for an empty one. Raises `InvalidRequest`.

    It may hold `level` (0 to 3, the preset to begin with), `per`, `share`, `tenants`, and every field of an `AutonomyBudget`.
    Those of `limits`, `files` and `network` are put into the preset's, others take their place; "unlimited" is no limit.
    """
    if not table:
        return None
    plan = {name: value for name, value in table.items() if name in ("per", "share")}
    tenants = table.get("tenants", {})
    try:
        others = {name: _budget({**table, **own}) for name, own in tenants.items()}
        return msgspec.convert({**plan, "budget": _budget(table), "tenants": others}, Plan)
    except (msgspec.ValidationError, AttributeError, TypeError, ValueError) as error:
        known = ("level", "per", "share", "tenants", *AutonomyBudget.__struct_fields__)
        raise _misfit("budget", error, known) from None


def _budget(table: Mapping[str, Any]) -> AutonomyBudget:
    level = table.get("level", 3)
    if type(level) is not int or level not in range(4):
        raise ValueError(f"there is no level {level}; write 0, 1, 2 or 3")
    whole = {**msgspec.to_builtins(LEVELS[level]), "budget_id": "default"}
    for name, value in table.items():
        if name in ("limits", "files", "network"):
            whole[name] = {**whole[name], **_unlimited(value)}
        elif name == "allowed_commands":
            whole[name] = [{"command": rule} if isinstance(rule, str) else _unlimited(rule) for rule in value]
        elif name not in ("level", "per", "share", "tenants"):
            whole[name] = value
    return msgspec.convert(whole, AutonomyBudget)


def _unlimited(table: Mapping[str, object]) -> dict[str, object]:
    """TOML has no word for nothing."""
    return {name: None if value == "unlimited" else value for name, value in table.items()}


def _misfit(name: str, error: Exception, known: Iterable[str]) -> InvalidRequest:
    told = f"{name}: {str(error).replace('`$.', '`')}; it may hold {', '.join(known)}"
    return InvalidRequest(f"the settings are not right: {told}")


def _policies(asked: Oversight, guard: AddressGuard) -> tuple[CallPolicy, ...]:
    commands, paths, domains = asked.commands, asked.paths, asked.domains
    return governance(
        rules=Rules.of(asked.rules) if asked.rules else None,
        rate=Rate(asked.per_minute, asked.burst) if asked.per_minute is not None else None,
        level=(lambda run: asked.level) if asked.level != "full" else None,
        network_reads=asked.network_reads,
        logs_only=asked.supervised == "log",
        commands=Commands(CommandRules(commands.allowed, commands.denied)) if commands is not None else None,
        paths=Paths(paths.allowed, paths.denied) if paths is not None else None,
        domains=Domains(guard.check, domains.allowed, domains.denied) if domains is not None else None,
    )
