"""A task, what a tool answers about tasks, and why it may refuse."""

from datetime import UTC, datetime
from typing import Literal
from uuid import UUID

from msgspec import Struct

Status = Literal["pending", "completed"]
Code = Literal["VALIDATION_ERROR", "NOT_FOUND", "ACCESS_DENIED", "DATABASE_ERROR"]

LONGEST_DESCRIPTION = 1000
LONGEST_USER = 255


class Task(Struct, frozen=True):
    """Something to do. `completed_at` is null if and only if the task is pending. Whose it is, its readers know already."""

    id: UUID
    description: str
    status: Status
    created_at: datetime
    completed_at: datetime | None


class TaskReply(Struct, frozen=True):
    """What every tool answers. `error` and `error_code` are null if and only if it is a success."""

    success: bool
    data: Task | tuple[Task, ...] | None = None
    error: str | None = None
    error_code: Code | None = None


class TaskRefusal(Exception):
    """A call that is not carried out, in words that help a model to make a better one."""

    def __init__(self, code: Code, message: str) -> None:
        super().__init__(message)
        self.reply = TaskReply(False, None, message, code)


def make_task(id: UUID, description: str, created_at: datetime, completed_at: datetime | None = None) -> Task:
    return Task(id, description, "pending" if completed_at is None else "completed", created_at, completed_at)


def utc_now() -> datetime:
    return datetime.now(UTC)
