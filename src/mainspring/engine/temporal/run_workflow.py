"""The workflow of a run, as Temporal replays it: one activity that drives the run, until it has ended.

What a run does is in our log and not in Temporal's history, so this code has nothing to decide and hardly ever changes. A change
to it must fit histories that were begun with the code before: use `workflow.patched`, or another name.
"""

from asyncio import CancelledError
from datetime import timedelta
from typing import Final

from temporalio import workflow
from temporalio.common import RetryPolicy
from temporalio.exceptions import ActivityError, is_cancelled_exception

WORKFLOW: Final = "mainspring.run"
ACTIVITY: Final = "mainspring.drive"
CANCEL: Final = "cancel"
# A run may take as long as it wants; its heartbeats tell whether somebody works on it.
LONGEST: Final = timedelta(days=3650)
# How often a run that kills its process is tried is counted in the store.
RETRIES: Final = RetryPolicy(
    initial_interval=timedelta(milliseconds=250), backoff_coefficient=2, maximum_interval=timedelta(seconds=30)
)


@workflow.defn(name=WORKFLOW)
class RunWorkflow:
    """Its id is that of the run. The signal `cancel` cancels the run."""

    def __init__(self) -> None:
        self._is_cancelled = False

    @workflow.run
    async def run(self, run_id: str, heartbeat_seconds: float) -> str:
        """How it came to its end: `ended` or `cancelled`."""
        driving = workflow.start_activity(
            ACTIVITY,
            run_id,
            start_to_close_timeout=LONGEST,
            heartbeat_timeout=timedelta(seconds=heartbeat_seconds),
            retry_policy=RETRIES,
            cancellation_type=workflow.ActivityCancellationType.WAIT_CANCELLATION_COMPLETED,
        )
        try:
            await workflow.wait_condition(lambda: self._is_cancelled or driving.done())
        except CancelledError:  # by Temporal's own tools
            self._is_cancelled = True
        if not driving.done():
            driving.cancel()
        try:
            await driving
        except ActivityError as error:
            if not is_cancelled_exception(error):
                raise
        return "cancelled" if self._is_cancelled else "ended"

    @workflow.signal(name=CANCEL)
    def cancel(self) -> None:
        self._is_cancelled = True
