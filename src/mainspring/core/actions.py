"""What the loop can ask for. The driver performs exactly these."""

from msgspec import Struct

from mainspring.core.events import ErrorInfo, NudgeKind, Reason, Status
from mainspring.core.items import Part


class CallModel(Struct, frozen=True):
    """Ask the model for a turn."""


class Judge(Struct, frozen=True):
    """Ask the gate about these calls, in order."""

    call_ids: tuple[str, ...]


class Execute(Struct, frozen=True):
    """Run these calls at once; each ends in one output."""

    call_ids: tuple[str, ...]


class Nudge(Struct, frozen=True):
    """Say something to the model in the engine's name."""

    kind: NudgeKind
    text: str
    reason: Reason | None = None


class Reuse(Struct, frozen=True):
    """Answer this call with the result that the same call had before."""

    call_id: str
    output: str | tuple[Part, ...]
    is_error: bool = False


class Withhold(Struct, frozen=True):
    """Deny this tool for the rest of the run."""

    name: str
    reason: str


class Compact(Struct, frozen=True):
    """Have the model sum up what came before; it goes on seeing that many of the last items besides."""

    keeps: int


class Finish(Struct, frozen=True):
    """End the run."""

    status: Status
    reason: Reason
    error: ErrorInfo | None = None


Action = CallModel | Judge | Execute | Nudge | Reuse | Withhold | Compact | Finish
