"""What is about to happen and what has happened, as the enforcement points see it."""

from collections.abc import Iterable
from typing import TypeVar

from msgspec import Struct
from msgspec.structs import replace

from mainspring.core.items import Effect
from mainspring.features.budgets.budget import AutonomyBudget
from mainspring.tools.scope import Words

N = TypeVar("N", int, float)


class EnforcementContext(Struct, frozen=True):
    """One step: an iteration, or a call with all that it would read, write, run and speak to.

    A word of a command, or a file to write, that is known only later is None; `doubts` say what else cannot be told; `mentions`
    are words of commands that may be files. `unseen`
    are effects of which no parameter shows what they touch, `is_declared` whether the tool says so itself. `flaw` is why the call
    cannot be understood at all. `failures` is how many steps failed in a row, `signals` are conditions that somebody reports.
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


class Spent(Struct, frozen=True):
    """What has been used. `files` are those that were written, each once; `commands` counts by `AllowedCommand`."""

    iterations: int = 0
    seconds: float = 0.0
    calls: int = 0
    files: tuple[str, ...] = ()
    lines: int = 0
    requests: int = 0
    tokens: int = 0
    cost: float = 0.0
    commands: dict[str, int] = {}

    def __add__(self, other: "Spent") -> "Spent":
        commands = self.commands
        if other.commands:
            keys = {**self.commands, **other.commands}
            commands = {key: self.commands.get(key, 0) + other.commands.get(key, 0) for key in keys}
        return Spent(
            self.iterations + other.iterations,
            self.seconds + other.seconds,
            self.calls + other.calls,
            tuple(dict.fromkeys([*self.files, *other.files])) if other.files else self.files,
            self.lines + other.lines,
            self.requests + other.requests,
            self.tokens + other.tokens,
            self.cost + other.cost,
            commands,
        )

    def amount(self, measure: str) -> float:
        return len(self.files) if measure == "files" else float(getattr(self, measure))


class Ceilings(Struct, frozen=True):
    """How much may be used of each measure; None is no limit. A command that is not named has none."""

    iterations: int | None = None
    seconds: float | None = None
    calls: int | None = None
    files: int | None = None
    lines: int | None = None
    requests: int | None = None
    tokens: int | None = None
    cost: float | None = None
    commands: dict[str, int] = {}


def tightest(budgets: Iterable[AutonomyBudget]) -> Ceilings:
    """The strictest of their limits, but for those of single commands."""
    every = [ceilings(budget) for budget in budgets]
    bounds = {name: least(*[getattr(each, name) for each in every]) for name in Ceilings.__struct_fields__ if name != "commands"}
    return replace(Ceilings(), **bounds)


def least(*bounds: N | None) -> N | None:
    """The strictest of these bounds, of which None is none."""
    return min([bound for bound in bounds if bound is not None], default=None)


def ceilings(budget: AutonomyBudget) -> Ceilings:
    limits = budget.limits
    return Ceilings(
        limits.max_iterations,
        None if limits.max_duration_minutes is None else limits.max_duration_minutes * 60,
        limits.max_tool_calls,
        limits.max_files_modified,
        limits.max_lines_changed,
        budget.network.max_requests,
        limits.max_tokens,
        limits.max_cost,
        {rule.key: rule.max_calls for rule in budget.allowed_commands if rule.max_calls is not None},
    )
