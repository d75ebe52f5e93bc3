"""Where tasks are kept: the one port, and which database a name means."""

from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Protocol
from uuid import UUID

from mainspring.core.errors import InvalidRequest
from mainspring_tasks.server.sqlite_tasks import SqliteTasks
from mainspring_tasks.server.task import Status, Task


class TaskStore(Protocol):
    """Tasks by their owners. Each method is one step that happens or does not; all raise `StoreError`, and may work again later.

    What is somebody else's is answered like what is missing; `exists` tells the two apart.
    """

    async def open(self) -> None:
        """Makes the tables, if they are missing. Raises `StoreError` that says what to do."""

    async def close(self) -> None: ...

    async def add(self, owner: str, task: Task) -> None: ...

    async def list(self, owner: str, status: Status | None = None) -> Sequence[Task]:
        """Newest first."""

    async def reword(self, owner: str, id: UUID, description: str) -> Task | None: ...

    async def complete(self, owner: str, id: UUID, at: datetime) -> Task | None:
        """The task, completed: now, or when it was before."""

    async def delete(self, owner: str, id: UUID) -> bool: ...

    async def restore(self, owner: str, task: Task) -> Task | None:
        """Puts a task back as it was, whether it has changed or is gone."""

    async def exists(self, id: UUID) -> bool:
        """Whether anybody has this task."""


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
