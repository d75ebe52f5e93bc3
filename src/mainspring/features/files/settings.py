"""The table `[uploads]`: how much clients may upload."""

from typing import Annotated

from msgspec import Meta, Struct

MEGABYTE = 1 << 20


class UploadSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How much clients may upload. Where it is kept says `files`. See docs/files-and-search.md."""

    file_bytes: Annotated[int, Meta(ge=1)] = 512 * MEGABYTE
    """The most bytes of a file."""
    tenant_bytes: Annotated[int, Meta(ge=1)] | None = None
    """The most bytes of all files of a tenant together; no limit if not given."""
    input_bytes: Annotated[int, Meta(ge=1)] = 32 * MEGABYTE
    """The most bytes of all files that a model is shown in one turn."""
