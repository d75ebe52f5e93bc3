"""Which database of tasks a name means."""

from typing import TYPE_CHECKING, Final

from mainspring.core.errors import InvalidRequest
from mainspring.late_module import LateModule
from mainspring.storage.location import parse_location
from mainspring.storage.sql import ServerTables
from mainspring_tasks.ports import TaskStore
from mainspring_tasks.server.sqlite_tasks import SqliteTasks

if TYPE_CHECKING:
    from mainspring_tasks.server import postgres_tasks
else:
    postgres_tasks = LateModule("mainspring_tasks.server.postgres_tasks")

SERVED_TASKS: Final = ServerTables(
    name="tasks",
    migrations=(
        # Earlier versions counted their migrations elsewhere, so these may be there.
        """
        CREATE TABLE IF NOT EXISTS mainspring_tasks (
            number BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
            id UUID NOT NULL UNIQUE,
            owner TEXT NOT NULL,
            description TEXT NOT NULL,
            created_at TIMESTAMPTZ NOT NULL,
            completed_at TIMESTAMPTZ
        );
        CREATE INDEX IF NOT EXISTS mainspring_tasks_by_owner ON mainspring_tasks (owner, number);
        """,
    ),
    tables=("mainspring_tasks",),
)


def choose_task_store(database: str) -> TaskStore:
    """The database of a `postgresql://` URL, or an SQLite file. Raises `InvalidRequest` for what can be neither."""
    location = parse_location(database)
    if location.file is not None:
        return SqliteTasks(location.file)
    try:
        make_store = postgres_tasks.PostgresTasks
    except ImportError:
        raise InvalidRequest("tasks in PostgreSQL need another package: pip install 'mainspring[postgres]'") from None
    return make_store(location)
