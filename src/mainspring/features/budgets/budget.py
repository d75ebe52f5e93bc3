"""What an agent may do without a person, and how much of it: the budget, its life cycle and the four levels.

A list allows what it names and nothing else: an empty one allows nothing, `*` (for paths `**`) everything. None is no limit,
0 is none at all. What is denied is denied whatever else allows it.
"""

import re
from datetime import datetime
from functools import lru_cache
from typing import Annotated, Final, Literal, get_args

from msgspec import Meta, Struct
from msgspec.structs import replace

from mainspring.core.errors import InvalidRequest
from mainspring.core.spec import Price
from mainspring.features.budgets.amounts import Amounts
from mainspring.tools.programs import BUILTINS
from mainspring.tools.scope import AllowedCommand, CommandScope

State = Literal["draft", "pending_approval", "active", "suspended", "expired", "completed", "rejected"]
Action = Literal["stop", "escalate", "warn"]
Urgency = Literal["immediate", "normal", "low"]
Count = Annotated[int, Meta(ge=0)]
Number = Annotated[float, Meta(ge=0)]
Share = Annotated[float, Meta(gt=0, le=1)]
Name = Annotated[str, Meta(min_length=1)]
Moment = Annotated[datetime, Meta(tz=True)]

TRANSITIONS: Final[dict[State, frozenset[State]]] = {
    "draft": frozenset({"pending_approval", "active"}),
    "pending_approval": frozenset({"active", "rejected"}),
    "active": frozenset({"suspended", "expired", "completed"}),
    "suspended": frozenset({"active", "expired"}),
    "rejected": frozenset({"draft"}),
    "expired": frozenset(),
    "completed": frozenset(),
}


class AutonomyLimits(Struct, frozen=True, forbid_unknown_fields=True):
    """How much may be used in all. `max_cost` is in the currency of the prices."""

    max_iterations: Count | None = 100
    max_duration_minutes: Number | None = 60
    max_tool_calls: Count | None = 200
    max_files_modified: Count | None = 50
    max_lines_changed: Count | None = 5000
    max_tokens: Count | None = None
    max_cost: Number | None = None


class FileScope(Struct, frozen=True, forbid_unknown_fields=True):
    """Which files may be read and written. `*` and `?` stay within a name, `**` is any number of folders, none included.

    A relative pattern is for paths below `root`, an absolute one for all others. A pattern to deny that has no `/` fits that name
    anywhere, and all that is in a folder of the name.
    """

    read: tuple[Name, ...] = ("**",)
    write: tuple[Name, ...] = ()
    deny: tuple[Name, ...] = ()
    root: str = ""


class Network(Struct, frozen=True, forbid_unknown_fields=True):
    """Which hosts may be spoken to. A domain stands for itself and all below it, `*` for every one."""

    enabled: bool = False
    allowed_domains: tuple[Name, ...] = ("*",)
    denied_domains: tuple[Name, ...] = ()
    max_requests: Count | None = None


class StopCondition(Struct, frozen=True, forbid_unknown_fields=True):
    """What makes a run stop, ask a person, or take note.

    SC-05 to SC-08 look at iterations, time, files and lines, and hold once more than the share `at` of the limit is used. SC-09
    is three failures in a row, SC-10 a call outside the scope. Any other id holds when somebody signals it.
    """

    id: Name
    description: str = ""
    action: Action = "stop"
    at: Share = 1.0


class EscalationTrigger(Struct, frozen=True, forbid_unknown_fields=True):
    """Asks `target` about what the enforcement point `id` (EF-01 to EF-04) would block for not being listed.

    What a list denies, and what exceeds a limit, stays blocked: nobody is asked.
    """

    id: Name
    description: str = ""
    target: str = ""
    urgency: Urgency = "normal"


class AutonomyBudget(Struct, frozen=True, forbid_unknown_fields=True):
    """What an agent may do on its own. The scope in words is for people and prompts; the rules below it are enforced.

    `overlays` are budgets that hold besides: each is asked too, and the strictest answer stands, so they can only narrow.
    """

    budget_id: Name
    task_id: str = ""
    agent_id: str = ""
    state: State = "draft"
    expires_at: Moment | None = None
    approved_by: str = ""
    in_scope: tuple[str, ...] = ()
    out_of_scope: tuple[str, ...] = ()
    files: FileScope = FileScope()
    allowed_commands: tuple[AllowedCommand, ...] = ()
    denied_commands: tuple[Name, ...] = ()
    require_approval_commands: tuple[Name, ...] = ()
    network: Network = Network()
    limits: AutonomyLimits = AutonomyLimits()
    stop_conditions: tuple[StopCondition, ...] = ()
    escalation_triggers: tuple[EscalationTrigger, ...] = ()
    default_escalation_target: str = "orchestrator"
    prices: dict[str, Price] = {}
    overlays: tuple["AutonomyBudget", ...] = ()

    @property
    def layers(self) -> "tuple[AutonomyBudget, ...]":
        return (self, *self.overlays)

    @property
    def command_scope(self) -> CommandScope:
        return CommandScope(self.allowed_commands, self.denied_commands, self.require_approval_commands)

    @property
    def amounts(self) -> Amounts:
        """How much may be used of each measure."""
        limits, minutes = self.limits, self.limits.max_duration_minutes
        return Amounts(
            limits.max_iterations,
            None if minutes is None else minutes * 60,
            limits.max_tool_calls,
            limits.max_files_modified,
            limits.max_lines_changed,
            self.network.max_requests,
            limits.max_tokens,
            limits.max_cost,
            {rule.key: rule.max_calls for rule in self.allowed_commands if rule.max_calls is not None},
        )

    def with_amounts(self, most: Amounts) -> "AutonomyBudget":
        minutes = None if most.seconds is None else most.seconds / 60
        limits = AutonomyLimits(most.iterations, minutes, most.calls, most.files, most.lines, most.tokens, most.cost)
        commands = [replace(rule, max_calls=most.commands.get(rule.key, rule.max_calls)) for rule in self.allowed_commands]
        network = replace(self.network, max_requests=most.requests)
        return replace(self, limits=limits, allowed_commands=tuple(commands), network=network)

    def price(self, model: str) -> Price | None:
        """The price of the longest pattern that fits the model's name; None if none does."""
        fitting = [pattern for pattern in self.prices if _fits(pattern, model)]
        return self.prices[max(fitting, key=len)] if fitting else None


def move_budget(budget: AutonomyBudget, state: State, *, by: str = "") -> AutonomyBudget:
    """The budget in its next state. Raises `InvalidRequest` if there is no way there; `by` is who approved."""
    if state not in TRANSITIONS[budget.state]:
        ways = ", ".join([f"`{each}`" for each in get_args(State) if each in TRANSITIONS[budget.state]]) or "none, it is over"
        raise InvalidRequest(f"budget `{budget.budget_id}` cannot go from `{budget.state}` to `{state}`; possible: {ways}")
    return replace(budget, state=state, approved_by=by or budget.approved_by)


READERS: Final = (
    "ls", "cat", "head", "tail", "wc", "grep", "rg", "find", "stat", "du", "df", "diff", "cut", "tr", "date", "whoami", "uname",
    "which", "basename", "dirname", "realpath",
)  # fmt: skip
HARMFUL: Final = (
    "sudo", "su", "doas", "rm", "rmdir", "shred", "dd", "mkfs", "fdisk", "mount", "umount", "chmod", "chown", "chgrp", "kill",
    "killall", "pkill", "shutdown", "reboot", "systemctl", "iptables", "crontab", "nc",
)  # fmt: skip
SECRETS: Final = (
    ".env", ".env.*", "*.pem", "*.key", "id_rsa*", "id_ed25519*", ".ssh", ".aws", ".gnupg", ".netrc", "credentials*",
)  # fmt: skip

# Both can write a file if they are told to, `git` also by any beginning of `--output`.
_SORTING = r"(?:(?:-[bdfghinruVM]+|-k[\d.,]+|[^-\s]\S*)(?: |$))*"
_GIT_READING = r"(?:status|log|diff|show|blame)(?: (?!--ou)\S+)*"
LEVELS: Final = (
    AutonomyBudget(
        "level-0", state="active", in_scope=("reading",), files=FileScope(deny=SECRETS), limits=AutonomyLimits(5, 10, 10, 0, 0)
    ),
    AutonomyBudget(
        "level-1",
        state="active",
        in_scope=("small changes, under watch",),
        files=FileScope(write=("**",), deny=SECRETS),
        allowed_commands=(
            *[AllowedCommand(name) for name in (*sorted(BUILTINS), *READERS)],
            AllowedCommand("sort", _SORTING),
            AllowedCommand("git", _GIT_READING),
        ),
        denied_commands=HARMFUL,
        require_approval_commands=("python", "python3", "pip", "npm", "node"),
        limits=AutonomyLimits(20, 30, 50, 10, 1000),
    ),
    AutonomyBudget(
        "level-2",
        state="active",
        in_scope=("ordinary work",),
        files=FileScope(write=("**",), deny=SECRETS),
        allowed_commands=(AllowedCommand("*"),),
        denied_commands=HARMFUL,
        network=Network(enabled=True, allowed_domains=("localhost", "127.0.0.1", "::1")),
        limits=AutonomyLimits(50, 60, 200, 30, 3000),
    ),
    AutonomyBudget(
        "level-3",
        state="active",
        in_scope=("everything",),
        files=FileScope(read=("**", "/**"), write=("**", "/**")),
        allowed_commands=(AllowedCommand("*"),),
        network=Network(enabled=True),
        limits=AutonomyLimits(100, 120, 500, 50, 5000),
    ),
)


@lru_cache(maxsize=1024)
def _fits(pattern: str, text: str) -> bool:
    return re.fullmatch(".*".join([re.escape(part) for part in pattern.split("*")]), text, re.DOTALL) is not None
