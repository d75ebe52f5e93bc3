"""What governs runs, from the settings: the policies of `[governance]`, a digest of all, and what in it may be a slip."""

import os
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path

import msgspec
from msgspec import NODEFAULT, Struct
from msgspec.structs import FieldInfo, fields

from mainspring.core.autonomy import Autonomy
from mainspring.core.items import ToolDefinition
from mainspring.engine.policy_order import PolicySlots, Slot
from mainspring.features.governance.limit_policies import LevelPolicy, RatePolicy
from mainspring.features.governance.rule_policy import RulePolicy, Rules
from mainspring.features.governance.scope_policies import CommandPolicy, DomainPolicy, PathPolicy
from mainspring.features.governance.settings import GovernanceSettings
from mainspring.ports import CallPolicy, SharedLimits
from mainspring.tools.addresses import AddressGuard


def build_policies(settings: GovernanceSettings, guard: AddressGuard, limits: SharedLimits | None = None) -> PolicySlots:
    """Returns the policies that the settings ask for, each in its slot; none by default. With `limits`, rates hold for all
    processes together."""
    commands, paths, domains = settings.commands, settings.paths, settings.domains
    slots: dict[Slot, tuple[CallPolicy, ...]] = {}
    if settings.rules:
        slots["rules"] = (RulePolicy(Rules.of(settings.rules)),)
    if settings.per_minute is not None or settings.burst is not None:
        slots["rate"] = (RatePolicy(settings.per_minute or 60, settings.burst or 10, shared=limits),)
    if Autonomy.parse(settings.level) < Autonomy.STANDARD:
        reads, logs = settings.network_reads, settings.supervised == "log"
        slots["level"] = (LevelPolicy(settings.level, network_reads=reads, commands_judged=commands is not None, logs_only=logs),)
    if commands is not None:
        slots["commands"] = (CommandPolicy(commands.allowed, commands.denied),)
    if paths is not None:
        slots["paths"] = (PathPolicy(paths.allowed, paths.denied),)
    if domains is not None:
        slots["domains"] = (DomainPolicy(guard.check, domains.allowed, domains.denied),)
    return slots


def digest_settings(governance: GovernanceSettings, budget: Struct, *more: object) -> str:
    """A digest of what governs runs, and of `more` that it depends on; empty if nothing governs them. Folders count as what they
    are from here. Runs keep it: the same settings must give the same digest in every version."""
    tables = _as_written(governance), _as_written(budget)
    if not any(tables):
        return ""
    allowed = [os.path.realpath(root) for root in governance.paths.allowed] if governance.paths is not None else []
    told = (tables[0], allowed, tables[1], more)
    return sha256(msgspec.json.encode(told, order="deterministic")).hexdigest()[:16]


def _as_written(value: object) -> object:
    """The value as a settings file usually spells it: without defaults, whole numbers without a fraction."""
    match value:
        case Struct():
            return {
                field.encode_name: _as_written(each)
                for field in fields(type(value))
                if (each := getattr(value, field.name)) != _default_of(field)
            }
        case dict():
            return {name: _as_written(each) for name, each in value.items()}
        case tuple():
            return [_as_written(each) for each in value]
        case float() if value.is_integer():
            return int(value)
        case _:
            return value


def _default_of(field: FieldInfo) -> object:
    return field.default if field.default_factory is NODEFAULT else field.default_factory()


def find_rule_doubts(governance: GovernanceSettings, tools: Sequence[ToolDefinition]) -> list[str]:
    """What in these settings, which are right in form, may be a slip. `tools` are all that there are; none if it is not known."""
    known = [tool.name for tool in tools]
    told = [
        f"governance.rules: `{pattern}` fits none of the tools"
        for pattern in governance.rules
        if known and Rules.of({pattern: "deny"}).is_idle(known)
    ]
    roots = () if governance.paths is None else governance.paths.allowed
    return told + [f"governance.paths.allowed: there is no folder `{root}`" for root in roots if not Path(root).is_dir()]
