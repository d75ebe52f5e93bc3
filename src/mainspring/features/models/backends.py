"""Backends, and the provider of each: what is known of vendors, and one router for all of them.

Adapters are imported when a backend of their kind is made, and not before.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from mainspring.core.errors import InvalidRequest
from mainspring.core.items import Json
from mainspring.features.models.settings import Kind, ProviderSettings
from mainspring.late_module import LateModule
from mainspring.ports import Provider, Tape
from mainspring.providers.compose import BackendOptions, compose
from mainspring.providers.router import Router
from mainspring.providers.scripted import Scripted

Progress = Callable[[str], None]

LOCAL_QUEUE = 20
# Only who has a model in a process of our own needs these.
if TYPE_CHECKING:
    from mainspring.providers.local import catalogue, repetition_stop, weights
    from mainspring.providers.local import provider as local
else:
    catalogue = LateModule("mainspring.providers.local.catalogue")
    local = LateModule("mainspring.providers.local.provider")
    repetition_stop = LateModule("mainspring.providers.local.repetition_stop")
    weights = LateModule("mainspring.providers.local.weights")

OPENAI = "https://api.openai.com/v1"
HOW_TO_HAVE_ONE = "set a vendor's key, such as OPENAI_API_KEY, start Ollama, or pip install 'mainspring[local]'"


class Vendor(Struct, frozen=True):
    """What is the same for everybody: where a vendor's key is, which wire format it speaks, which model it is tried with."""

    kind: Kind
    keys: tuple[str, ...]
    model: str
    base_url: str | None = None


VENDORS: dict[str, Vendor] = {
    "openai": Vendor("responses", ("OPENAI_API_KEY",), "gpt-5.4-mini", OPENAI),
    "anthropic": Vendor("anthropic", ("ANTHROPIC_API_KEY",), "claude-sonnet-5-5"),
    "gemini": Vendor("gemini", ("GEMINI_API_KEY", "GOOGLE_API_KEY"), "gemini-2.5-flash"),
}


ADAPTERS: dict[Kind, str] = {
    "chat": "mainspring.providers.chat.provider:Chat",
    "responses": "mainspring.providers.responses.provider:Responses",
    "ollama": "mainspring.providers.ollama.provider:Ollama",
    "gemini": "mainspring.providers.gemini.provider:Gemini",
    "anthropic": "mainspring.providers.anthropic.provider:Anthropic",
    "azure": "mainspring.providers.azure.provider:make_azure",
    "bedrock": "mainspring.providers.bedrock.provider:make_bedrock",
    "vertex": "mainspring.providers.vertex.provider:make_vertex",
}

OWN_FIELDS: dict[Kind, tuple[str, ...]] = {
    "azure": ("api", "api_version", "deployments"),
    "bedrock": ("region", "aws_profile"),
    "vertex": ("project", "region", "credentials_file"),
}
"""The settings that only these kinds have. They look for the rest of what they need in the environment."""


def find_own_model() -> str:
    """The local model where none is named: the ablest that was pulled and fits into memory, or the one that comes along."""
    cache = weights.find_cache_folder()
    pulled = catalogue.pick_model(catalogue.measure_memory(), lambda model: weights.find_target(model.source, cache).exists())
    return weights.SMOLLM2 if pulled is None else pulled.name


class FoundBackend(Struct, frozen=True):
    """A backend, and where it was found, in words."""

    backend: ProviderSettings
    origin: str


def list_configured(providers: Mapping[str, ProviderSettings]) -> dict[str, FoundBackend]:
    """The backends of the settings, with what is known of vendors."""
    return {name: FoundBackend(complete_backend(name, backend), "configured") for name, backend in providers.items()}


def complete_backend(name: str, backend: ProviderSettings) -> ProviderSettings:
    """The backend with its kind, and, if it is a vendor's, with the vendor's address and model."""
    known = VENDORS.get(name)
    kind = backend.kind or ("chat" if known is None else known.kind)
    if known is None or known.kind != kind:
        return replace(backend, kind=kind)
    return replace(backend, kind=kind, base_url=backend.base_url or known.base_url, model=backend.model or known.model)


def make_provider(
    name: str,
    backend: ProviderSettings,
    environment: Mapping[str, str] = os.environ,
    progress: Progress | None = None,
    tape: Tape | None = None,
) -> Provider:
    """The provider of one backend, with what stands before it. Raises `InvalidRequest` for what cannot work."""
    _check_fields(name, backend)
    if tape is not None and tape.needs_all and backend.kind in ("scripted", "local"):
        raise InvalidRequest(f"a {backend.kind} model is not recorded: it needs no network; name another", param="model")
    if backend.kind == "scripted":
        if backend.model is None:
            raise InvalidRequest(f"providers.{name}: a scripted provider needs its file; set `model`", param="providers")
        return Scripted.from_file(Path(backend.model))
    if backend.kind == "local":
        slots, model = backend.concurrency or local.SLOTS, backend.model or find_own_model()
        options = replace(_pick_options(backend), concurrency=slots, queue=backend.queue or LOCAL_QUEUE)
        made = local.Local(model, progress=progress, profiles=backend.profiles, slots=slots)
        return compose(repetition_stop.RepetitionStop(made), options)
    key = backend.key or (environment.get(backend.key_env) if backend.key_env else None)
    if backend.key_env and not key:
        message = f"providers.{name}: the variable {backend.key_env}, named by `key_env`, is not set"
        raise InvalidRequest(message, param="providers")
    usual = key or _find_usual_key(backend, environment)
    return compose(_make_adapter(name, backend, usual, environment, tape), _pick_options(backend))


def _find_usual_key(backend: ProviderSettings, environment: Mapping[str, str]) -> str | None:
    """The vendor's key from its usual variable, for the vendor's own address and no other."""
    for known in VENDORS.values():
        if known.kind == backend.kind and backend.base_url == known.base_url:
            return next((environment[key] for key in known.keys if environment.get(key)), None)
    return None


def _make_adapter(
    name: str, backend: ProviderSettings, key: str | None, environment: Mapping[str, str], tape: Tape | None
) -> Provider:
    options: Json = {"api_key": key, "headers": backend.headers, "name": name, "timeout": backend.timeout, "tape": tape}
    options["profiles"] = backend.profiles
    options |= {"proxy": backend.proxy, "ca_file": backend.ca_file}
    if tape is not None:
        options["new_id"] = tape.new_id
    kind = backend.kind or "chat"
    if kind == "chat" and backend.base_url is None:
        raise InvalidRequest(f"providers.{name}: a backend of kind `chat` needs a `base_url`", param="providers")
    if own := OWN_FIELDS.get(kind):
        options |= {"environment": environment, **{field: getattr(backend, field) for field in own}}
    make: Callable[..., Provider] = resolve_name(ADAPTERS[kind])
    return make(backend.base_url, **options)


def _check_fields(name: str, backend: ProviderSettings) -> None:
    """Raises `InvalidRequest` for a setting that the kind does not have."""
    plain = ProviderSettings()
    for kind, fields in OWN_FIELDS.items():
        for field in fields if kind != backend.kind else ():
            if getattr(backend, field) != getattr(plain, field) and field not in OWN_FIELDS.get(backend.kind or "chat", ()):
                message = f"providers.{name}: `{field}` is for kind `{kind}`, not for `{backend.kind}`; take it away"
                raise InvalidRequest(message, param="providers")


def _pick_options(backend: ProviderSettings) -> BackendOptions:
    return BackendOptions(**{field: getattr(backend, field) for field in BackendOptions.__struct_fields__})


def make_router(
    backends: Mapping[str, FoundBackend],
    *,
    aliases: Mapping[str, str | Sequence[str]] | None = None,
    default: str | None = None,
    environment: Mapping[str, str] = os.environ,
    progress: Progress | None = None,
    tape: Tape | None = None,
) -> Router:
    """One provider for all of them. A name alone stands for the provider's own model; names of no provider go to `default`."""
    providers = {name: make_provider(name, entry.backend, environment, progress, tape) for name, entry in backends.items()}
    own = {name: f"{name}/{model}" for name, entry in backends.items() if (model := _own_model(entry.backend))}
    return Router(providers, aliases={**own, **(aliases or {})}, default=default)


def pick_default_model(backends: Mapping[str, FoundBackend]) -> str | None:
    """The model for requests that name none: the first backend's own."""
    return next((f"{name}/{model}" for name, entry in backends.items() if (model := _own_model(entry.backend))), None)


def _own_model(backend: ProviderSettings) -> str | None:
    return backend.model or (find_own_model() if backend.kind == "local" else None)
