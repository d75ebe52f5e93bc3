"""What the task agent keeps, as it is copied: the decision log and the tasks."""

from pathlib import Path
from typing import Final

from mainspring.storage.location import Location
from mainspring.storage.transfer.content import ContentKind, Placed, TableForm
from mainspring_tasks.decision_log import DECISIONS, SERVED_DECISIONS
from mainspring_tasks.decision_settings import DecisionSettings, find_log, find_tasks
from mainspring_tasks.server.sqlite_tasks import TASKS
from mainspring_tasks.server.task_store import SERVED_TASKS

DECISION_CONTENT: Final = ContentKind(
    name="decisions",
    schema=DECISIONS,
    served=SERVED_DECISIONS,
    tables=(TableForm(name="decision_logs"), TableForm(name="tool_invocation_logs"), TableForm(name="baselines")),
)
TASK_CONTENT: Final = ContentKind(
    name="tasks",
    schema=TASKS,
    served=SERVED_TASKS,
    tables=(TableForm(name="tasks"),),
    is_escaped=False,
)


def place_tasks(settings: object, database: Location) -> tuple[Placed, ...]:
    """Tasks at the URL of another server are for that one to keep."""
    known = settings if isinstance(settings, DecisionSettings) else DecisionSettings()
    folder = Path() if database.file is None else database.file.absolute().parent
    log = Placed(DECISION_CONTENT, find_log(known, database, folder))
    return (log,) if known.is_remote else (log, Placed(TASK_CONTENT, find_tasks(known, database, folder)))
