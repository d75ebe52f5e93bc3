"""How much: the one unit of budgets, for limits, shares of them, what is used, and what is left."""

from collections.abc import Callable
from math import floor

from msgspec import Struct
from msgspec.structs import asdict

from mainspring.core.items import Json


class Amounts(Struct, frozen=True):
    """An amount of each measure, None where nothing is said: a limit that is None does not limit, and changes no other amount.

    `commands` counts the calls of each `AllowedCommand`; one that is not named has no amount.
    """

    iterations: int | None = None
    seconds: float | None = None
    calls: int | None = None
    files: int | None = None
    lines: int | None = None
    requests: int | None = None
    tokens: int | None = None
    cost: float | None = None
    commands: dict[str, int] = {}

    def __add__(self, other: "Amounts") -> "Amounts":
        return _combine(self, other, lambda one, two: one + two)

    def __sub__(self, other: "Amounts") -> "Amounts":
        """What is left of each amount, at least 0."""
        used = other.measures
        rest = {name: None if most is None else max(most - (used[name] or 0), 0) for name, most in self.measures.items()}
        return _make(rest, {key: max(most - other.commands.get(key, 0), 0) for key, most in self.commands.items()})

    def min(self, other: "Amounts") -> "Amounts":
        return _combine(self, other, min)

    def scale(self, share: float, *, parts: int = 1, at_least: int = 0) -> "Amounts":
        """A share of each amount, over `parts`. What is counted is rounded down, but to no less than `at_least`, if there is as
        much."""

        def take(amount: float) -> float:
            part = amount * share / parts
            return min(max(floor(part), at_least), amount) if isinstance(amount, int) else part

        whole = {name: None if amount is None else take(amount) for name, amount in self.measures.items()}
        return _make(whole, {key: take(count) for key, count in self.commands.items()})

    @property
    def measures(self) -> dict[str, float | None]:
        """The amounts by the names of their measures, but for the commands."""
        amounts = asdict(self)
        del amounts["commands"]
        return amounts


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

    @classmethod
    def whole(cls, share: Amounts, run_id: str) -> "Spent":
        """All of a share, as if the run had used it."""
        amounts: Json = {name: amount or 0 for name, amount in share.measures.items()}
        names = [f"{run_id}?{number}" for number in range(share.files or 0)]
        return cls(**{**amounts, "files": tuple(names), "commands": share.commands})

    @property
    def amounts(self) -> Amounts:
        return Amounts(**{**asdict(self), "files": len(self.files)})

    def __add__(self, other: "Spent") -> "Spent":
        # Written out: every judged call adds up.
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


def _combine(one: Amounts, two: Amounts, combine: Callable[[float, float], float]) -> Amounts:
    def join(mine: float | None, theirs: float | None) -> float | None:
        return theirs if mine is None else mine if theirs is None else combine(mine, theirs)

    amounts = two.measures
    joined = {name: join(amount, amounts[name]) for name, amount in one.measures.items()}
    keys = {**one.commands, **two.commands}
    return _make(joined, {key: join(one.commands.get(key), two.commands.get(key)) for key in keys})


def _make(measures: Json, commands: Json) -> Amounts:
    return Amounts(**measures, commands=commands)
