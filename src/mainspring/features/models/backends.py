"""Which models can be asked: those of the settings, of the keys in the environment, of servers on this machine, or our own.

`found` looks for them, in that order of trust; `provider_of` makes one provider of them all. Adapters are imported when a
backend of their kind is made, and not before.
"""

import os
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from anyio import create_task_group, fail_after
from msgspec import Struct
from msgspec.structs import replace

from mainspring.core.errors import InvalidRequest, ProviderError
from mainspring.core.items import Json
from mainspring.features.models.settings import Kind, ModelSettings, ProviderSettings
from mainspring.ports import ModelInfo, Provider, Tape
from mainspring.providers.compose import BackendOptions, compose
from mainspring.providers.router import Router
from mainspring.providers.scripted import Scripted

Progress = Callable[[str], None]

PROBE_SECONDS = 0.5
_NOT_FOR_TALK = re.compile(r"embed|rerank|whisper|tts|moderation|\bbge\b|\bclip\b", re.IGNORECASE)
OPENAI = "https://api.openai.com/v1"


class Known(Struct, frozen=True):
    """What is the same for everybody: where a vendor's key is, which wire format it speaks, which model it is tried with."""

    kind: Kind
    keys: tuple[str, ...]
    model: str
    base_url: str | None = None


VENDORS: dict[str, Known] = {
    "openai": Known("responses", ("OPENAI_API_KEY",), "gpt-5.4-mini", OPENAI),
    "anthropic": Known("anthropic", ("ANTHROPIC_API_KEY",), "claude-sonnet-5-5"),
    "gemini": Known("gemini", ("GEMINI_API_KEY", "GOOGLE_API_KEY"), "gemini-2.5-flash"),
}


class Server(Struct, frozen=True):
    """A model server as it is usually found on this machine. `owner` is what it calls itself, where others share its port."""

    kind: Kind
    base_url: str
    owner: str | None = None


SERVERS: dict[str, Server] = {
    "ollama": Server("ollama", "http://127.0.0.1:11434"),
    "lmstudio": Server("chat", "http://127.0.0.1:1234/v1"),
    "vllm": Server("chat", "http://127.0.0.1:8000/v1", "vllm"),
    "llamacpp": Server("chat", "http://127.0.0.1:8080/v1", "llamacpp"),
}


class Found(Struct, frozen=True):
    """A backend, and where it was found, in words."""

    backend: ProviderSettings
    origin: str


def configured(providers: Mapping[str, ProviderSettings]) -> dict[str, Found]:
    """The backends of the settings, with what is known of vendors."""
    return {name: Found(_complete(name, backend), "configured") for name, backend in providers.items()}


def _complete(name: str, backend: ProviderSettings) -> ProviderSettings:
    known = VENDORS.get(name)
    kind = backend.kind or ("chat" if known is None else known.kind)
    if known is None or known.kind != kind:
        return replace(backend, kind=kind)
    return replace(backend, kind=kind, base_url=backend.base_url or known.base_url, model=backend.model or known.model)


def in_environment(environment: Mapping[str, str]) -> dict[str, Found]:
    """The vendors whose keys are set. A base URL for OpenAI's key means a backend that only speaks like OpenAI."""
    found: dict[str, Found] = {}
    for name, known in VENDORS.items():
        variable = next((key for key in known.keys if environment.get(key)), None)
        base_url = environment.get("OPENAI_BASE_URL") if name == "openai" else None
        if base_url and base_url.rstrip("/") != OPENAI:
            backend = ProviderSettings(kind="chat", base_url=base_url, key_env=variable)
            found[name] = Found(backend, "OPENAI_BASE_URL is set")
        elif variable is not None:
            backend = ProviderSettings(kind=known.kind, base_url=known.base_url, key_env=variable, model=known.model)
            found[name] = Found(backend, f"{variable} is set")
    return found


async def on_this_machine(environment: Mapping[str, str], servers: Mapping[str, Server] = SERVERS) -> dict[str, Found]:
    """The model servers that answer on their usual ports, each with its first model."""
    found: dict[str, Found] = {}

    async def look(name: str, server: Server) -> None:
        base_url = _address(name, server, environment)
        provider = made(name, ProviderSettings(kind=server.kind, base_url=base_url, attempts=1, failures=None), environment)
        try:
            with fail_after(PROBE_SECONDS):
                models = await provider.models()
        except (ProviderError, TimeoutError):
            return
        finally:
            await provider.close()
        if (model := _chatty(models)) and (server.owner is None or models[0].owned_by == server.owner):
            backend = ProviderSettings(kind=server.kind, base_url=base_url, model=model)
            found[name] = Found(backend, f"it answers at {base_url}")

    async with create_task_group() as tasks:
        for name, server in servers.items():
            tasks.start_soon(look, name, server)
    return {name: found[name] for name in servers if name in found}


def _chatty(models: Sequence[ModelInfo]) -> str | None:
    """The first model that one can talk to, by its name."""
    return next((model.id for model in models if not _NOT_FOR_TALK.search(model.id)), None)


def _address(name: str, server: Server, environment: Mapping[str, str]) -> str:
    """Where a server is, or should be; Ollama has a variable for it."""
    if name != "ollama" or not environment.get("OLLAMA_HOST"):
        return server.base_url
    host = environment["OLLAMA_HOST"].replace("0.0.0.0", "127.0.0.1")
    host = host if "://" in host else f"http://{host}"
    return host if host.rpartition(":")[2].rstrip("/").isdigit() else f"{host}:11434"


def of_our_own() -> dict[str, Found]:
    """The model that runs in a process of ours, if its runtime is installed."""
    from mainspring.providers.local.provider import is_available

    return {"local": Found(ProviderSettings(kind="local", model="smollm2"), "it runs on this machine")} if is_available() else {}


async def found(environment: Mapping[str, str] = os.environ) -> dict[str, Found]:
    """Every backend that can be had without being configured, the most trusted first."""
    known = in_environment(environment)
    for name, entry in known.items():
        if entry.backend.model is None:
            # An address without a model's name: it may tell which it has.
            provider = made(name, replace(entry.backend, attempts=1), environment)
            with suppress(ProviderError):
                known[name] = Found(replace(entry.backend, model=_chatty(await provider.models())), entry.origin)
            await provider.close()
    return {**known, **await on_this_machine(environment), **of_our_own()}


def made(
    name: str,
    backend: ProviderSettings,
    environment: Mapping[str, str] = os.environ,
    progress: Progress | None = None,
    tape: Tape | None = None,
) -> Provider:
    """The provider of one backend, with what stands before it. Raises `InvalidRequest` for what cannot work."""
    if tape is not None and backend.kind in ("scripted", "local"):
        raise InvalidRequest(f"a {backend.kind} model is not recorded: it needs no network; name another", param="model")
    if backend.kind == "scripted":
        if backend.model is None:
            raise InvalidRequest(f"providers.{name}: a scripted provider needs its file; set `model`", param="providers")
        return Scripted.from_file(Path(backend.model))
    if backend.kind == "local":
        from mainspring.providers.local.provider import Local

        return compose(Local(backend.model or "smollm2", progress=progress), _options(backend))
    key = backend.key or (environment.get(backend.key_env) if backend.key_env else None)
    if backend.key_env and not key:
        message = f"providers.{name}: the variable {backend.key_env}, named by `key_env`, is not set"
        raise InvalidRequest(message, param="providers")
    return compose(_adapter(name, backend, key or _usual_key(backend, environment), tape), _options(backend))


def _usual_key(backend: ProviderSettings, environment: Mapping[str, str]) -> str | None:
    """The vendor's key from its usual variable, for the vendor's own address and no other."""
    for known in VENDORS.values():
        if known.kind == backend.kind and backend.base_url == known.base_url:
            return next((environment[key] for key in known.keys if environment.get(key)), None)
    return None


def _adapter(name: str, backend: ProviderSettings, key: str | None, tape: Tape | None) -> Provider:
    options: Json = {"api_key": key, "headers": backend.headers, "name": name, "timeout": backend.timeout, "tape": tape}
    if tape is not None:
        options["new_id"] = tape.new_id
    address: Json = {} if backend.base_url is None else {"base_url": backend.base_url}
    match backend.kind:
        case "ollama":
            from mainspring.providers.ollama.provider import Ollama

            return Ollama(**address, **options)
        case "gemini":
            from mainspring.providers.gemini.provider import Gemini

            return Gemini(**address, **options)
        case "anthropic":
            from mainspring.providers.anthropic.provider import Anthropic

            return Anthropic(**address, **options)
        case "responses":
            from mainspring.providers.responses.provider import Responses

            return Responses(**{"base_url": OPENAI, **address}, **options)
        case _:
            from mainspring.providers.chat.provider import Chat

            if backend.base_url is None:
                raise InvalidRequest(f"providers.{name}: a backend of kind `chat` needs a `base_url`", param="providers")
            return Chat(**address, **options)


def _options(backend: ProviderSettings) -> BackendOptions:
    return BackendOptions(**{field: getattr(backend, field) for field in BackendOptions.__struct_fields__})


def provider_of(
    backends: Mapping[str, Found],
    *,
    aliases: Mapping[str, str | Sequence[str]] | None = None,
    default: str | None = None,
    environment: Mapping[str, str] = os.environ,
    progress: Progress | None = None,
    tape: Tape | None = None,
) -> Router:
    """One provider for all of them. A name alone stands for the provider's own model; names of no provider go to `default`."""
    providers = {name: made(name, entry.backend, environment, progress, tape) for name, entry in backends.items()}
    own = {name: f"{name}/{model}" for name, entry in backends.items() if (model := _own_model(entry.backend))}
    return Router(providers, aliases={**own, **(aliases or {})}, default=default)


def default_model(backends: Mapping[str, Found]) -> str | None:
    """The model for requests that name none: the first backend's own."""
    return next((f"{name}/{model}" for name, entry in backends.items() if (model := _own_model(entry.backend))), None)


def _own_model(backend: ProviderSettings) -> str | None:
    return backend.model or ("smollm2" if backend.kind == "local" else None)


class Answering(Struct, frozen=True):
    """Who answers: the provider, the model for requests that name none, and both in words."""

    provider: Provider
    model: str
    told: str


def discovered(
    known: Mapping[str, Found],
    *,
    aliases: Mapping[str, str | Sequence[str]] | None = None,
    progress: Progress | None = None,
) -> Answering | None:
    """What answers when nothing is configured: the first that was found; None if there is none."""
    model = default_model(known)
    if model is None:
        return None
    first = model.partition("/")[0]
    told = f"{model}, since {known[first].origin}"
    if first == "local":
        told += "; it is very small, for a first look. A better one is one setting away:\n            set a vendor's key, "
        told += "start Ollama, or pass --model local:FILE.gguf or --base-url URL"
    elif others := [name for name in known if name != first]:
        told += f"; also {', '.join(others)}: choose with --model PROVIDER/MODEL"
    return Answering(provider_of(known, aliases=aliases, default=first, progress=progress), model, told)


def configured_answering(settings: ModelSettings, *, progress: Progress | None = None) -> Answering:
    """What answers when the settings name providers. Raises `InvalidRequest`."""
    known = configured(settings.providers)
    if settings.base_url is not None:
        known["default"] = Found(
            ProviderSettings(kind="chat", base_url=settings.base_url, key=settings.backend_key), "configured"
        )
    # A name that no provider has is refused: guessing would send what was meant for one to another.
    default = "default" if "default" in known else None
    provider = provider_of(known, aliases=settings.aliases, default=default, progress=progress)
    model = settings.model or default_model(known) or ""
    return Answering(provider, model, f"{model or 'as the request says'}, of the providers {', '.join(known)}")


def provider_for(
    model: str,
    base_url: str | None = None,
    api_key: str | None = None,
    *,
    environment: Mapping[str, str] = os.environ,
    progress: Progress | None = None,
    tape: Tape | None = None,
) -> Provider:
    """The provider that a model name stands for: `scripted:FILE`, `local`, `local:FILE`, any name for the backend at `base_url`,
    `VENDOR/MODEL` or `SERVER/MODEL`, or a name alone for whom the environment has a key or an address.

    A name with a provider in it is asked of that provider and of nobody else, and `api_key` is given to whoever is asked.
    """
    kind, _, rest = model.partition(":")
    vendor = model.partition("/")[0]
    if kind == "scripted":
        return made(kind, ProviderSettings(kind="scripted", model=rest), tape=tape)
    if base_url is not None:
        key = api_key or environment.get("OPENAI_API_KEY")
        return made("openai", ProviderSettings(kind="chat", base_url=base_url, key=key), environment, tape=tape)
    if kind == "local" or vendor == "local":
        weights = rest if kind == "local" else model.removeprefix("local/")
        backend = ProviderSettings(kind="local", model=weights or "smollm2")
        return provider_of({"local": Found(backend, "named")}, default="local", progress=progress, tape=tape)
    known = _named(model, api_key, environment)
    if not known:
        needed = " or ".join(VENDORS[vendor].keys) if vendor in VENDORS else "OPENAI_API_KEY, ANTHROPIC_API_KEY or GEMINI_API_KEY"
        raise InvalidRequest(
            f"model `{model}` needs a backend: set {needed}, or pass an address as base_url or --base-url (for example "
            "http://127.0.0.1:11434/v1), or use `local`, or `scripted:FILE`",
            param="model",
        )
    return provider_of(known, default=_likely(model, known), environment=environment, progress=progress, tape=tape)


def _named(model: str, api_key: str | None, environment: Mapping[str, str]) -> dict[str, Found]:
    """Whom a model's name leaves to be asked: its provider alone if it names one, else those of the environment."""
    vendor, slash, _ = model.partition("/")
    if slash and vendor in SERVERS:
        address = _address(vendor, SERVERS[vendor], environment)
        return {vendor: Found(ProviderSettings(kind=SERVERS[vendor].kind, base_url=address, key=api_key), "named")}
    known = in_environment(environment)
    if slash and vendor in VENDORS:
        known = {vendor: known[vendor]} if vendor in known else {}
    if api_key is None:
        return known
    asked = vendor if slash and vendor in VENDORS else _likely(model, VENDORS)
    found = known.get(asked) or Found(_complete(asked, ProviderSettings(kind=VENDORS[asked].kind)), "named")
    return {asked: Found(replace(found.backend, key=api_key, key_env=None), "named")}


def without_keys(environment: Mapping[str, str]) -> dict[str, str]:
    """An environment that has every vendor's key, for asking a recording, which looks at none."""
    # Short enough never to be taken for a secret in what was said.
    return {**{key: "none" for known in VENDORS.values() for key in known.keys[:1]}, **environment}


def _likely(model: str, known: Mapping[str, object]) -> str:
    """The provider of a model that is named without one: by its family, or else the first."""
    family = {"claude": "anthropic", "gemini": "gemini", "gpt": "openai"}.get(model.partition("-")[0])
    return family if family is not None and family in known else next(iter(known))
