"""The setting `keep_days`: after how many days things are deleted."""

from typing import Annotated, TypeAlias

from msgspec import Meta, Struct

Days: TypeAlias = Annotated[float, Meta(gt=0)]


class KeepDays(Struct, frozen=True, forbid_unknown_fields=True):
    """After how many days the server deletes what is in its database; what is not named here is kept for ever. See
    docs/storage.md."""

    runs: Days | None = None
    """Runs, after their end, with their logs and answers. What a kept run continues is kept with it."""
    workflows: Days | None = None
    """Runs of workflows, after their end. The agents of their steps have runs of their own."""
    conversations: Days | None = None
    """Conversations, once nothing was added to them for so long; chats with the task agent, too."""
    files: Days | None = None
    """Uploaded files, after their upload, with what vector stores have of them. One that expires earlier goes earlier."""


def read_keep_days(setting: float | KeepDays | None) -> KeepDays:
    """A number alone is for runs."""
    return setting if isinstance(setting, KeepDays) else KeepDays(runs=setting)
