"""Backends that need no settings: vendors whose keys are in the environment, servers on this machine, or a model of our own.

`find_backends` looks for them, in that order of trust.
"""

import os
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from anyio import create_task_group, fail_after
from msgspec import Struct
from msgspec.structs import replace

from mainspring.core.errors import ProviderError
from mainspring.features.models.backends import OPENAI, VENDORS, FoundBackend, find_own_model, make_provider
from mainspring.features.models.settings import Kind, ProviderSettings
from mainspring.late_module import LateModule
from mainspring.ports import ModelInfo

if TYPE_CHECKING:
    from mainspring.providers.local import provider as local_provider
else:
    local_provider = LateModule("mainspring.providers.local.provider")

# Where nobody listens the answer is no at once; a server on busy cores takes its time.
PROBE_SECONDS: Final = 2.0
_NOT_FOR_CHAT: Final = re.compile(r"embed|rerank|whisper|tts|moderation|\bbge\b|\bclip\b", re.IGNORECASE)


class ModelServer(Struct, frozen=True):
    """A model server as it is usually found on this machine. `owner` is what it calls itself, where others share its port."""

    kind: Kind
    base_url: str
    owner: str | None = None


SERVERS: dict[str, ModelServer] = {
    "ollama": ModelServer("ollama", "http://127.0.0.1:11434"),
    "lmstudio": ModelServer("chat", "http://127.0.0.1:1234/v1"),
    "vllm": ModelServer("chat", "http://127.0.0.1:8000/v1", "vllm"),
    "llamacpp": ModelServer("chat", "http://127.0.0.1:8080/v1", "llamacpp"),
}


def find_in_environment(environment: Mapping[str, str]) -> dict[str, FoundBackend]:
    """The vendors whose keys are set. A base URL for OpenAI's key means a backend that only speaks like OpenAI."""
    found: dict[str, FoundBackend] = {}
    for name, known in VENDORS.items():
        variable = next((key for key in known.keys if environment.get(key)), None)
        base_url = environment.get("OPENAI_BASE_URL") if name == "openai" else None
        if base_url and base_url.rstrip("/") != OPENAI:
            backend = ProviderSettings(kind="chat", base_url=base_url, key_env=variable)
            found[name] = FoundBackend(backend, "OPENAI_BASE_URL is set")
        elif variable is not None:
            backend = ProviderSettings(kind=known.kind, base_url=known.base_url, key_env=variable, model=known.model)
            found[name] = FoundBackend(backend, f"{variable} is set")
    return found


async def find_on_this_machine(
    environment: Mapping[str, str], servers: Mapping[str, ModelServer] = SERVERS, seconds: float = PROBE_SECONDS
) -> dict[str, FoundBackend]:
    """The model servers that answer on their usual ports within so many seconds, each with its first model."""
    found: dict[str, FoundBackend] = {}

    async def look(name: str, server: ModelServer) -> None:
        base_url = find_address(name, server, environment)
        probed = ProviderSettings(kind=server.kind, base_url=base_url, attempts=1, failures=None)
        provider = make_provider(name, probed, environment)
        try:
            with fail_after(seconds):
                models = await provider.models()
        except (ProviderError, TimeoutError):
            return
        finally:
            await provider.close()
        if (model := _pick_chat_model(models)) and (server.owner is None or models[0].owned_by == server.owner):
            backend = ProviderSettings(kind=server.kind, base_url=base_url, model=model)
            found[name] = FoundBackend(backend, f"it answers at {base_url}")

    async with create_task_group() as tasks:
        for name, server in servers.items():
            tasks.start_soon(look, name, server)
    return {name: found[name] for name in servers if name in found}


def _pick_chat_model(models: Sequence[ModelInfo]) -> str | None:
    """The first model that one can talk to, by its name."""
    return next((model.id for model in models if not _NOT_FOR_CHAT.search(model.id)), None)


def find_address(name: str, server: ModelServer, environment: Mapping[str, str]) -> str:
    """Where a server is, or should be; Ollama has a variable for it."""
    if name != "ollama" or not environment.get("OLLAMA_HOST"):
        return server.base_url
    host = environment["OLLAMA_HOST"].replace("0.0.0.0", "127.0.0.1")
    host = host if "://" in host else f"http://{host}"
    return host if host.rpartition(":")[2].rstrip("/").isdigit() else f"{host}:11434"


async def find_backends(environment: Mapping[str, str] = os.environ) -> dict[str, FoundBackend]:
    """Every backend that can be had without being configured, the most trusted first, and at last one in a process of ours."""
    known = find_in_environment(environment)
    for name, entry in known.items():
        if entry.backend.model is None:
            # An address without a model's name: it may tell which it has.
            provider = make_provider(name, replace(entry.backend, attempts=1), environment)
            with suppress(ProviderError):
                known[name] = FoundBackend(replace(entry.backend, model=_pick_chat_model(await provider.models())), entry.origin)
            await provider.close()
    found = {**known, **await find_on_this_machine(environment)}
    if local_provider.is_available():
        found["local"] = FoundBackend(ProviderSettings(kind="local", model=find_own_model()), "it runs on this machine")
    return found
