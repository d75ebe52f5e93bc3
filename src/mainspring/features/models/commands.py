"""`mainspring models`: which models there are."""

from pathlib import Path

from msgspec import Struct

from mainspring.cli.console import ConsoleWriter
from mainspring.cli.context import load_settings
from mainspring.cli.options import ApiKey, AsJson, BaseUrl, Config
from mainspring.cli.output import say, write_lines
from mainspring.core.errors import InvalidRequest, MainspringError
from mainspring.features.models import backends, discovery
from mainspring.features.models.backends import FoundBackend
from mainspring.features.models.settings import ModelSettings, ProviderSettings
from mainspring.ports import Provider, Tape


class ModelSummary(Struct, frozen=True):
    """A model as `models --json` lists it."""

    id: str
    provider: str


async def models(base_url: BaseUrl = None, api_key: ApiKey = None, config: Config = None, json: AsJson = False) -> int:
    """Lists the models that can be asked: configured, or found by keys in the environment and servers on this machine."""
    found = await find_backends(load(None, base_url, api_key, config))
    writer, status = ConsoleWriter(), 0
    for name, entry in found.items():
        if (provider := make_provider(name, entry)) is None:
            status = 1
            continue
        try:
            offered = [model.id for model in await provider.models()]
        except MainspringError as error:
            say(f"{name}: {error.message}")
            status = 1
            continue
        finally:
            await provider.close()
        if json:
            write_lines([ModelSummary(f"{name}/{model}", name) for model in offered])
            continue
        with writer:
            writer.put(f"{name}", "bold")
            writer.put(f"  {entry.backend.kind}, {entry.origin}\n", "dim")
            for model in offered:
                mark = "  (for requests that name none)" if model == entry.backend.model else ""
                writer.put(f"  {name}/{model}{mark}\n")
    return status if found else report_none()


def load(model: str | None, base_url: str | None, api_key: str | None, config: Path | None) -> ModelSettings:
    return load_settings(ModelSettings, config, model=model, base_url=base_url, backend_key=api_key)


async def find_backends(settings: ModelSettings) -> dict[str, FoundBackend]:
    """The backends in question: those configured, or named, or else found. Raises `InvalidRequest`."""
    if settings.providers:
        return backends.list_configured(settings.providers)
    if settings.base_url is not None:
        backend = ProviderSettings(kind="chat", base_url=settings.base_url, key=settings.backend_key, model=settings.model)
        return {"default": FoundBackend(backend, "named")}
    return await discovery.find_backends()


def report_none() -> int:
    say("no models; set a vendor's key, start Ollama, or pip install 'mainspring[local]'")
    return 1


def make_provider(name: str, entry: FoundBackend, tape: Tape | None = None) -> Provider | None:
    """The provider, or None, with the reason said: one that cannot be had hides no other."""
    try:
        return backends.make_provider(name, entry.backend, progress=say, tape=tape)
    except InvalidRequest as error:
        say(error.message)
        return None
