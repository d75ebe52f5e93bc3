"""The table `[memory]`: what is remembered of runs, and how it is found again."""

from msgspec import Struct


class MemorySettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is remembered of runs, and how it is found again. See docs/memory.md."""

    enabled: bool = False
    """Whether what runs say and do is remembered."""
    keep_days: float = 90.0
    """How long an observation is kept."""
    keep_observations: int = 1_000_000
    """How many of each tenant's are kept at most; the oldest go first."""
    embedding_model: str | None = None
    """A model that makes embeddings: recall goes by meaning, too. Needs `pip install 'mainspring[vectors]'`."""
    embedding_url: str | None = None
    """The OpenAI-compatible backend that has it, up to `/v1`."""
    embedding_key: str | None = None
    """The backend's key."""
