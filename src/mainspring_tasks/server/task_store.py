"""Which database of tasks a name means."""

from pathlib import Path

from mainspring.core.errors import InvalidRequest
from mainspring_tasks.ports import TaskStore
from mainspring_tasks.server.sqlite_tasks import SqliteTasks


def choose_task_store(database: str) -> TaskStore:
    """The database of a `postgresql://` URL, or an SQLite file. Raises `InvalidRequest` for what can be neither."""
    if database.startswith(("postgresql://", "postgres://")):
        try:
            from mainspring_tasks.server.postgres_tasks import PostgresTasks
        except ImportError:
            raise InvalidRequest("tasks in PostgreSQL need another package: pip install 'mainspring[postgres]'") from None
        return PostgresTasks(database)
    scheme, found, _ = database.partition("://")
    if found:
        raise InvalidRequest(f"tasks cannot be kept in `{scheme}://`; name a file, or a postgresql:// URL", param="database")
    return SqliteTasks(Path(database))
