"""The table `[budget]`: how far runs may go on their own, and how much they may use.

The table changes the preset of a level: what it leaves out, which is None here, is as the preset has it.
"""

from typing import Literal

from msgspec import Struct

from mainspring.core.autonomy import Level
from mainspring.core.spec import Price
from mainspring.features.budgets.budget import (
    AutonomyBudget,
    Count,
    EscalationTrigger,
    Moment,
    Name,
    Number,
    Share,
    State,
    StopCondition,
)
from mainspring.tools.scope import AllowedCommand

Unlimited = Literal["unlimited"]


class BudgetLimits(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How much may be used in all; `"unlimited"` is no limit."""

    max_iterations: Count | Unlimited | None = None
    """Turns of the model."""
    max_duration_minutes: Number | Unlimited | None = None
    """Minutes that a run may take."""
    max_tool_calls: Count | Unlimited | None = None
    """Calls of tools."""
    max_files_modified: Count | Unlimited | None = None
    """Files that are written to."""
    max_lines_changed: Count | Unlimited | None = None
    """Lines that are written."""
    max_tokens: Count | Unlimited | None = None
    """Tokens that the model takes and makes."""
    max_cost: Number | Unlimited | None = None
    """What the model costs, in the currency of the prices."""


class BudgetFiles(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which files may be read and written. `*` and `?` stay within a name, `**` is any number of folders."""

    read: tuple[Name, ...] | None = None
    """Patterns of files that may be read."""
    write: tuple[Name, ...] | None = None
    """Patterns of files that may be written."""
    deny: tuple[Name, ...] | None = None
    """Patterns of files that are denied, whatever else allows them."""
    root: str | None = None
    """The folder that relative patterns are for."""


class BudgetNetwork(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which hosts may be reached. A domain stands for itself and all below it, `*` for every one."""

    enabled: bool | None = None
    """Whether any host may be reached."""
    allowed_domains: tuple[Name, ...] | None = None
    """Domains that may be reached."""
    denied_domains: tuple[Name, ...] | None = None
    """Domains that are denied, whatever else allows them."""
    max_requests: Count | Unlimited | None = None
    """Requests in all."""


class BudgetCommand(Struct, frozen=True, forbid_unknown_fields=True):
    """A program that may run; `*` is every one."""

    command: Name
    """The program."""
    args_pattern: str | None = None
    """A regular expression that must match all of its arguments, joined by spaces."""
    max_calls: Count | Unlimited | None = None
    """How often it may run."""

    def __post_init__(self) -> None:
        AllowedCommand(self.command, self.args_pattern)


class TenantBudget(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The budget of one tenant, where it differs from `[budget]`."""

    level: Level | None = None
    """The preset to begin with, by number or name: 0 (`read-only`) to 3 (`full`). Default: 3."""
    budget_id: Name | None = None
    """What the budget is called. Default: `default`."""
    task_id: str | None = None
    """The task that it is for; for people."""
    agent_id: str | None = None
    """The agent that it is for; for people."""
    state: State | None = None
    """Its state; only an `active` one lets runs begin."""
    expires_at: Moment | None = None
    """When it expires."""
    approved_by: str | None = None
    """Who approved it."""
    in_scope: tuple[str, ...] | None = None
    """What belongs to the task, in words."""
    out_of_scope: tuple[str, ...] | None = None
    """What does not belong to the task, in words."""
    files: BudgetFiles | None = None
    """Which files may be read and written."""
    allowed_commands: tuple[Name | BudgetCommand, ...] | None = None
    """Programs that may run: names, or tables with `command`, `args_pattern` and `max_calls`."""
    denied_commands: tuple[Name, ...] | None = None
    """Programs that are denied, whatever else allows them."""
    require_approval_commands: tuple[Name, ...] | None = None
    """Programs that a person must approve."""
    network: BudgetNetwork | None = None
    """Which hosts may be reached."""
    limits: BudgetLimits | None = None
    """How much may be used in all."""
    stop_conditions: tuple[StopCondition, ...] | None = None
    """What makes a run stop, ask a person, or log a warning."""
    escalation_triggers: tuple[EscalationTrigger, ...] | None = None
    """What asks a person instead of blocking a call."""
    default_escalation_target: str | None = None
    """Whom to ask if a trigger does not say."""
    prices: dict[str, Price] | None = None
    """What a million tokens cost, by the pattern of a model's name: tables with `input`, `output`, `cached`, `cache_write`."""
    overlays: tuple[AutonomyBudget, ...] | None = None
    """Budgets that hold besides; they can only narrow."""


class BudgetSettings(TenantBudget, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How far runs may go on their own, and how much they may use; without the table, no limits. See docs/governance.md."""

    per: Literal["run", "key", "tenant"] | None = None
    """Whether each run has the whole budget (the default), or all runs of a key or a tenant share one."""
    share: Share | None = None
    """How much of each limit of a shared budget one run may reserve. Default: 0.2."""
    tenants: dict[str, TenantBudget] | None = None
    """Budgets of single tenants, each a table `[budget.tenants.NAME]` that says where it differs from this one."""
