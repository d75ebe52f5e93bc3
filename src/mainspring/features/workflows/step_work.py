"""What a step works with, how it fails, and the ids of the runs that do its work."""

from collections.abc import Awaitable, Callable
from hashlib import sha256

from msgspec import Struct

from mainspring.core.errors import PeerError
from mainspring.core.items import Json
from mainspring.features.workflows.workflow_run import WorkflowOrder


class StepError(PeerError):
    """A step failed. `may_repeat` says that another attempt is safe."""

    code = "step_failed"

    def __init__(self, message: str, *, may_repeat: bool = True) -> None:
        super().__init__(message)
        self.may_repeat = may_repeat


class StepWork(Struct, frozen=True):
    """What a step works with: the order, its key in the log, the run of the engine and the names for its expressions.

    `waiting` is called with the approvals that the run waits for, and with none when it goes on.
    """

    order: WorkflowOrder
    key: str
    run_id: str
    names: Json
    waiting: Callable[[tuple[str, ...]], Awaitable[None]]

    @property
    def metadata(self) -> dict[str, str]:
        """Says of the run which step it is."""
        return {"workflow": self.order.workflow, "workflow_run": self.order.id, "step": self.key[:500]}


def derive_run_id(workflow_run: str, step: str, attempt: int) -> str:
    """The id of the run that does the work of a step, the same in every process and however often the workflow is resumed."""
    return f"resp_{sha256(f'{workflow_run} {step} {attempt}'.encode()).hexdigest()[:24]}"


def derive_next_id(run_id: str) -> str:
    """The id of the run that a step begins after this one, if it takes several."""
    return f"resp_{sha256(run_id.encode()).hexdigest()[:24]}"
