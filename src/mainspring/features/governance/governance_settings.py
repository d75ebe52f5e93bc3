"""Governance from the settings: the table `[governance]` becomes the policies that every call is judged by, `[budget]` the plan
that every run works under."""

import os
import time
from collections.abc import Iterable, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any, Final, Literal

import msgspec
from msgspec import Struct

from mainspring.core.errors import InvalidRequest
from mainspring.core.items import ToolDefinition
from mainspring.core.spec import spec_for
from mainspring.engine.policy_order import PolicySlots, Slot
from mainspring.features.budgets.budget import LEVELS, AutonomyBudget
from mainspring.features.budgets.plan import Plan
from mainspring.features.budgets.preflight import preflight
from mainspring.features.governance.command_policy import CommandRules, Commands
from mainspring.features.governance.domains import Domains
from mainspring.features.governance.level import AutonomyLevel, Level
from mainspring.features.governance.paths import Paths
from mainspring.features.governance.patterns import Rules, ToolRules
from mainspring.features.governance.rate import Rate
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
    """Calls of server tools per minute, for each caller; 60 if only `burst` is set."""
    burst: int | None = None
    """Calls within a second or so; 10 if only `per_minute` is set."""
    commands: Few | None = None
    """Programs that shell commands may run, or a program and its first words."""
    paths: Few | None = None
    """Folders that files must be in, and patterns of files that are taboo."""
    domains: Few | None = None
    """Domains that may be reached, with those below them, and those that may not."""
    scan_inputs: bool = False
    """Take note of inputs that read like orders to the model, in the log and the audit. They are not refused."""


def build_policies(table: Mapping[str, object], guard: AddressGuard) -> PolicySlots:
    """Returns the policies that the table asks for, each in its slot; none for an empty table. Raises `InvalidRequest`."""
    if not table:
        return {}
    try:
        return _policies(msgspec.convert(table, Oversight), guard)
    except (msgspec.ValidationError, ValueError) as error:
        raise _misfit("governance", error, Oversight.__struct_fields__) from None


def scans_inputs(table: Mapping[str, object]) -> bool:
    return table.get("scan_inputs") is True


_NESTED: Final = ("limits", "files", "network", "prices")


def digest_of(governance: Mapping[str, Any], budget: Mapping[str, Any], *more: object) -> str:
    """A digest of what governs runs, and of `more` that it goes by; empty if nothing governs them. Folders count as what they are
    from here."""
    if not governance and not budget:
        return ""
    allowed = [os.path.realpath(root) for root in (governance.get("paths") or {}).get("allowed", ())]
    told = (governance, allowed, budget, more)
    return sha256(msgspec.json.encode(told, order="deterministic")).hexdigest()[:16]


def plan_of(table: Mapping[str, Any]) -> Plan | None:
    """The plan that `[budget]` describes, None for an empty one. Raises `InvalidRequest`.

    It may hold `level` (0 to 3, the preset to begin with), `per`, `share`, `tenants`, and every field of an `AutonomyBudget`.
    Those of `limits`, `files` and `network` are put into the preset's, others take their place; "unlimited" is no limit. Each of
    `tenants` is the whole table but for what it says.
    """
    if not table:
        return None
    plan = {name: value for name, value in table.items() if name in ("per", "share")}
    tenants = table.get("tenants", {})
    try:
        others = {name: _budget(_overlaid(table, own)) for name, own in _tables("tenants", tenants)}
        return msgspec.convert({**plan, "budget": _budget(table), "tenants": others}, Plan)
    except (msgspec.ValidationError, AttributeError, TypeError, ValueError) as error:
        known = ("level", "per", "share", "tenants", *AutonomyBudget.__struct_fields__)
        raise _misfit("budget", error, known) from None


def _overlaid(table: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """The table, but for what `own` says; of the tables in it, but for what `own` says of each."""
    whole = {**table, **own}
    for name in _NESTED:
        if isinstance(table.get(name), Mapping) and isinstance(own.get(name), Mapping):
            whole[name] = {**table[name], **own[name]}
    return whole


def _tables(name: str, tables: object) -> Iterable[tuple[str, Mapping[str, Any]]]:
    """The tables in a table. Raises `ValueError` naming what is none."""
    if not isinstance(tables, Mapping):
        raise ValueError(f"`{name}` must be a table, not {tables!r}")
    for key, value in tables.items():
        if not isinstance(value, Mapping):
            raise ValueError(f"`{name}.{key}` must be a table, not {value!r}")
        if name == "tenants" and (strange := next((each for each in ("per", "share", "tenants") if each in value), None)):
            raise ValueError(f"`{name}.{key}` cannot hold `{strange}`, which is for all tenants alike")
    return tables.items()


def _budget(table: Mapping[str, Any]) -> AutonomyBudget:
    level = table.get("level", 3)
    if type(level) is not int or level not in range(4):
        raise ValueError(f"there is no level {level!r}; write 0, 1, 2 or 3, without quotes")
    whole = {**msgspec.to_builtins(LEVELS[level]), "budget_id": "default"}
    for name, value in table.items():
        if name in _NESTED and not isinstance(value, Mapping):
            raise ValueError(f"`{name}` must be a table, not {value!r}")
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
    why = str(error).replace("`$.", "`")
    may = f"; it may hold {', '.join(known)}" if "unknown field" in why and " - at " not in why else ""
    return InvalidRequest(f"the settings are not right: {name}: {why}{may}")


def _rate(asked: Oversight) -> Rate | None:
    given = {name: value for name in ("per_minute", "burst") if (value := getattr(asked, name)) is not None}
    return Rate(**given) if given else None


def _check_entries(asked: Oversight) -> None:
    """Raises `ValueError` naming a list with an entry that is empty."""
    for name in ("commands", "paths", "domains"):
        few = getattr(asked, name) or Few()
        for side in ("allowed", "denied"):
            if any(not entry.strip() for entry in getattr(few, side)):
                raise ValueError(f"`{name}.{side}` has an entry that is empty; leave it out")


def doubts(governance: Mapping[str, Any], plan: Plan | None, tools: Sequence[ToolDefinition], model: str) -> list[str]:
    """What in these settings, which are right in form, may be a slip. `tools` are all that there are; none if it is not known."""
    asked, known = msgspec.convert(governance, Oversight), [tool.name for tool in tools]
    told = [
        f"governance.rules: `{pattern}` fits none of the tools"
        for pattern in asked.rules
        if known and Rules.of({pattern: "deny"}).is_idle(known)
    ]
    roots = () if asked.paths is None else asked.paths.allowed
    told += [f"governance.paths.allowed: there is no folder `{root}`" for root in roots if not Path(root).is_dir()]
    budgets = {} if plan is None else {"budget": plan.budget, **{f"budget.tenants.{id}": own for id, own in plan.tenants.items()}}
    order = spec_for("responses", id="preflight", model=model or "model", input=())
    for name, budget in budgets.items():
        checks = [check for check in preflight(order, budget, tools, time.time()) if check.result != "pass"]
        # To go without conditions is a choice, and the usual one.
        told += [f"{name}: {check.id}: {check.message}" for check in checks if check.id != "PF-09" or budget.stop_conditions]
    return told


def _policies(asked: Oversight, guard: AddressGuard) -> PolicySlots:
    commands, paths, domains, rate = asked.commands, asked.paths, asked.domains, _rate(asked)
    _check_entries(asked)
    slots: dict[Slot, tuple[CallPolicy, ...]] = {}
    if asked.rules:
        slots["rules"] = (ToolRules(Rules.of(asked.rules)),)
    if rate is not None:
        slots["rate"] = (rate,)
    if asked.level != "full":
        slots["level"] = (
            AutonomyLevel(
                lambda run: asked.level,
                network_reads=asked.network_reads,
                commands_judged=commands is not None,
                logs_only=asked.supervised == "log",
            ),
        )
    if commands is not None:
        slots["commands"] = (Commands(CommandRules(commands.allowed, commands.denied)),)
    if paths is not None:
        slots["paths"] = (Paths(paths.allowed, paths.denied),)
    if domains is not None:
        slots["domains"] = (Domains(guard.check, domains.allowed, domains.denied),)
    return slots
