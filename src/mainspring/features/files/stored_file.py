"""A file as it is kept, and as clients see it."""

from typing import Annotated, Final, Literal

from msgspec import Meta, Struct

HOUR: Final = 3_600
PREFIX: Final = "file-"
"""What the ids of our files begin with, as clients expect them to."""

Purpose = Literal["assistants", "batch", "fine-tune", "vision", "user_data", "evals"]


class FileExpiry(Struct, frozen=True):
    """When a file expires: so many seconds after it was made."""

    seconds: Annotated[int, Meta(ge=HOUR, le=30 * 24 * HOUR)]
    anchor: Literal["created_at"] = "created_at"


class StoredFile(Struct, frozen=True, omit_defaults=True):
    """What is known of a file. `key` is where its bytes are; they may be those of other files as well, which `content` counts.
    `mime` is what its client has called it."""

    id: str
    filename: str
    purpose: Purpose
    size: int
    sha256: str
    key: str
    created_at: float
    expires_at: float | None = None
    content: str = ""
    mime: str = ""


class FileObject(Struct, frozen=True):
    """A file as clients see it."""

    id: str
    bytes: int
    created_at: int
    filename: str
    purpose: str
    expires_at: int | None = None
    status: str = "processed"
    status_details: str | None = None
    object: str = "file"


def render_file(file: StoredFile) -> FileObject:
    expires = None if file.expires_at is None else int(file.expires_at)
    return FileObject(file.id, file.size, int(file.created_at), file.filename, file.purpose, expires)
