"""The table `[vector_stores]`: how passages of files are found by meaning."""

from msgspec import Struct


class VectorStoreSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How passages of files are found by meaning, beside their words. See docs/files-and-search.md."""

    embedding_model: str | None = None
    """A model that makes embeddings. Needs `pip install 'mainspring[vectors]'`, unless the database is on a server. Without it,
    that of `[memory]` is used, if there is one."""
    embedding_url: str | None = None
    """The OpenAI-compatible backend that has it, up to `/v1`."""
    embedding_key: str | None = None
    """The backend's key."""
