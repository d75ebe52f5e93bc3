"""The one order in which policies are asked about a call: a list of named slots, filled by whoever composes an engine.

The gate takes the first verdict that is not Allow, so the order decides which reason the model reads. What can be told from the
call alone comes first, then what the operator has configured, then the budget. `approval` follows every slot that denies without
asking: nobody is asked about a call that would be denied anyway.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Literal, get_args

from mainspring.ports import Allow, Ask, CallPolicy, Deny, Verdict

Slot = Literal[
    "limits",  # of the run: calls per turn, calls in all, repeats
    "known tool",
    "allowed_tools",
    "arguments",
    "caller scope",
    "status",  # of the tool in the registry
    "skill scope",
    "charter",  # of the agents that the run works for
    "rules",
    "rate",
    "level",
    "commands",
    "paths",
    "domains",
    "custom",  # policies in code, such as an application's own
    "budget",
    "approval",
    "client",  # who performs the call
]

SLOTS: Final[tuple[Slot, ...]] = get_args(Slot)

PolicySlots = Mapping[Slot, Sequence[CallPolicy]]


def order_policies(*filled: PolicySlots) -> tuple[CallPolicy, ...]:
    """Returns the policies of all these slots in the order of `SLOTS`; within a slot, in the order given.

    Raises `ValueError` for a slot that does not exist.
    """
    if unknown := [slot for slots in filled for slot in slots if slot not in SLOTS]:
        raise ValueError(f"there is no policy slot `{unknown[0]}`; the slots are {', '.join(SLOTS)}")
    return tuple([policy for slot in SLOTS for slots in filled for policy in slots.get(slot, ())])


_STRICTNESS: Final[dict[type, int]] = {Allow: 0, Ask: 1, Deny: 2}


def pick_strictest_verdict(verdicts: Iterable[Verdict]) -> Verdict:
    """The first of the strictest: a policy that judges several things denies if one is denied. Allows if there are none."""
    return max(verdicts, key=lambda verdict: _STRICTNESS[type(verdict)], default=Allow())
