"""The table `[limits]`: how far every run may go, and how far a request or an agent's definition may move that.

The limits of a run are those of its preset, then of this table, then of the agent's definition, then of the request.
"""

from typing import Annotated, Literal

from msgspec import Meta, Struct
from msgspec.structs import asdict, replace

from mainspring.core.operator_limits import OperatorLimits
from mainspring.core.spec import RunSpec
from mainspring.ports import OrderContext, OrderStep

Unlimited = Literal["unlimited"]
Turns = Annotated[int, Meta(ge=1, le=2**31 - 1)]
TurnBytes = Annotated[int, Meta(ge=65_536, le=2**40)]
Seconds = Annotated[float, Meta(gt=0, le=31_536_000)]


class MostLimits(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The most that a request or an agent's definition may ask for; more is refused. Defaults beyond it are lowered."""

    max_turns: Turns | None = None
    """Turns of the model."""
    max_errors_in_row: Turns | None = None
    """Turns in a row in which something failed and nothing succeeded."""
    tool_seconds: Seconds | None = None
    """Seconds for each call of a tool."""
    max_seconds: Seconds | None = None
    """Seconds for the whole run."""
    max_tool_calls_per_turn: Turns | None = None
    """Calls of tools in one turn; the model is told to make the others later."""


class LimitSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The limits of runs that are told no others; `"unlimited"` is none. Without an entry, a response has 10 turns, and an agent
    20 turns, 5 calls in each, 3 failed turns in a row and 60 seconds for each call."""

    max_turns: Turns | Unlimited | None = None
    """Turns of the model."""
    max_errors_in_row: Turns | Unlimited | None = None
    """Turns in a row in which something failed and nothing succeeded."""
    tool_seconds: Seconds | Unlimited | None = None
    """Seconds for each call of a tool; a tool may allow itself less."""
    max_seconds: Seconds | Unlimited | None = None
    """Seconds for the whole run; an agent's definition may allow it less."""
    max_tool_calls_per_turn: Turns | Unlimited | None = None
    """Calls of tools in one turn; the model is told to make the others later."""
    max_repeats: Turns | Unlimited | None = None
    """Turns with the same calls, after which the model is told so, then gets no new results, then no tool."""
    turn_seconds: Seconds | Unlimited | None = None
    """Seconds for one answer of the model; without an entry an hour. One that takes longer has failed."""
    turn_bytes: TurnBytes | Unlimited | None = None
    """Bytes that a backend may send in one answer, and about the memory that the answer takes; without an entry 64 MiB. Beyond
    that it is cut off."""
    max_resumes: Turns | Unlimited | None = None
    """How often a run is taken up again after the process that drove it has died, within an hour of each other; without an
    entry 3. Then it has failed with `resume_limit`: a run that ends the process does not do so for ever."""
    most: MostLimits = MostLimits()
    """The most that a request or an agent's definition may ask for: a table `[limits.most]`."""

    def __post_init__(self) -> None:
        most = asdict(self.most)
        for name, value in _list_given(self).items():
            if (bound := most.get(name)) is not None and (isinstance(value, str) or value > bound):
                raise ValueError(f"{name} is {value}, and `most` allows {bound:g}; lower it, or raise `limits.most.{name}`")


def build_limits(settings: LimitSettings) -> OperatorLimits:
    defaults = {name: None if isinstance(value, str) else value for name, value in _list_given(settings).items()}
    most = {name: value for name, value in asdict(settings.most).items() if value is not None}
    match settings.max_resumes:
        case None:
            return OperatorLimits(defaults, most)
        case "unlimited":
            return OperatorLimits(defaults, most, resumes=None)
        case int(resumes):
            return OperatorLimits(defaults, most, resumes=resumes)


def _list_given(settings: LimitSettings) -> dict[str, float | str]:
    return {name: value for name, value in asdict(settings).items() if value is not None and name not in ("most", "max_resumes")}


class LimitsStep(OrderStep):
    """Holds every order to the most that the operator allows. Steps of workflows have time limits of their own."""

    name = "limits"
    runs_in_place = True

    def __init__(self, limits: OperatorLimits) -> None:
        self._limits = limits

    async def prepare(self, order: RunSpec, context: OrderContext) -> RunSpec:
        if order.step_call is not None:
            return order
        if context.continued is None:  # what a person lets go on was ordered before, under what held then
            self._limits.refuse(asdict(order.limits))
        return replace(order, limits=self._limits.hold(order.limits))
