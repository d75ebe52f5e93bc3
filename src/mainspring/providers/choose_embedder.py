"""The embedding model that settings name."""

from typing import TYPE_CHECKING

from mainspring.core.errors import InvalidRequest
from mainspring.late_module import LateModule
from mainspring.ports import Embedder

# Brings along an HTTP client.
if TYPE_CHECKING:
    from mainspring.providers import openai_embedder
else:
    openai_embedder = LateModule("mainspring.providers.openai_embedder")


def choose_embedder(table: str, model: str | None, url: str | None, key: str | None) -> Embedder | None:
    """What a table of the settings names, if it does. Raises `InvalidRequest` if it does not say where that is."""
    if model is None:
        return None
    if url is None:
        raise InvalidRequest(f"{table}.embedding_model needs {table}.embedding_url, such as http://127.0.0.1:11434/v1")
    return openai_embedder.OpenAIEmbedder(model, url, key)
