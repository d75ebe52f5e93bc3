"""`mainspring models`: which models there are, and what is known of each."""

from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from msgspec import Struct

from mainspring.cli.console import ConsoleWriter, format_count
from mainspring.cli.context import load_settings
from mainspring.cli.database import check_database
from mainspring.cli.options import AsJson, BackendKey, BaseUrl, Config, DatabaseOfSettings, choose_database
from mainspring.cli.output import format_moment, say, write_lines, write_table
from mainspring.core.errors import InvalidRequest, MainspringError
from mainspring.features.models import backends, discovery, model_choice
from mainspring.features.models.backends import FoundBackend
from mainspring.features.models.pull import pull
from mainspring.features.models.settings import ModelSettings, ProviderSettings
from mainspring.ports import KnownProfile, ProfileFact, Provider, Tape
from mainspring.providers.local.weights import SMOLLM2
from mainspring.providers.wrapper import explain_profiles, forget_profiles, keep_profiles, write_profiles
from mainspring.storage.choose_store import open_store
from mainspring.storage.location import Location

app = typer.Typer()
app.command()(pull)
Name = Annotated[str, typer.Argument(metavar="NAME", help="A model as requests name it: `PROVIDER/MODEL`, or an alias.")]


class ModelSummary(Struct, frozen=True):
    """A model as `models --json` lists it."""

    id: str
    provider: str


@app.callback(invoke_without_command=True)
def models(
    context: typer.Context, base_url: BaseUrl = None, backend_key: BackendKey = None, config: Config = None, json: AsJson = False
) -> Coroutine[Any, Any, int] | None:
    """
    Lists the models that can be asked: configured, or found by keys in the environment and servers on this machine.

        mainspring models
        mainspring models pull
        mainspring models show house/qwen3
        mainspring models forget house/qwen3
    """
    return list_models(base_url, backend_key, config, as_json=json) if context.invoked_subcommand is None else None


@app.command()
async def show(
    name: Name,
    base_url: BaseUrl = None,
    backend_key: BackendKey = None,
    config: Config = None,
    database: DatabaseOfSettings = None,
    json: AsJson = False,
) -> None:
    """Shows the profile of a model: how it is asked and its answers are read, and why."""
    async with _open_provider(name, load(None, base_url, backend_key, config), choose_database(database, config)) as provider:
        known = await explain_profiles(provider, name)
    if json:
        write_lines(known)
        return
    if not known:
        say(f"{name} has no profile: nothing is adapted for its kind of backend")
    for each in known:
        _write_profile(each)


@app.command()
async def forget(
    name: Name,
    base_url: BaseUrl = None,
    backend_key: BackendKey = None,
    config: Config = None,
    database: DatabaseOfSettings = None,
) -> None:
    """Forgets what was learned of a model. A server that is running has forgotten it within seconds."""
    location = check_database(choose_database(database, config))
    async with _open_provider(name, load(None, base_url, backend_key, config), location) as provider:
        count = await forget_profiles(provider, name)
    say(f"{format_count(count, 'field')} of the profile of {name} forgotten")


@asynccontextmanager
async def _open_provider(name: str, settings: ModelSettings, database: Location) -> AsyncIterator[Provider]:
    """Whoever answers for that name, with what was learned of it. Raises `InvalidRequest`."""
    if settings.providers:
        provider = model_choice.choose_configured(settings, progress=say).provider
    else:
        provider = model_choice.resolve_provider(name, settings.base_url, settings.backend_key, progress=say)
    try:
        if database.file is not None and not database.file.exists():
            yield provider
            return
        async with open_store(database) as store:
            keep_profiles(provider, store)
            yield provider
            await write_profiles(provider)
    finally:
        await provider.close()


def _write_profile(known: KnownProfile) -> None:
    writer, neutral = ConsoleWriter(), [field for field in known.values if field not in known.facts]
    with writer:
        writer.put(known.model, "bold")
        writer.put(f"  at {known.backend}{f' ({known.server})' if known.server else ''}\n", "dim")
        writer.line(f"as for any backend of its kind: {', '.join(neutral)}", "dim")
    if known.facts:
        write_table([("field", "value", "source", "since", "until", "why"), *map(_make_cells, known.facts.items())])


def _make_cells(entry: tuple[str, ProfileFact]) -> tuple[str, ...]:
    field, fact = entry
    moments = ["-" if moment is None else format_moment(moment) for moment in (fact.at, fact.until)]
    return (field, str(fact.value), fact.source, *moments, fact.evidence)


async def list_models(base_url: str | None, backend_key: str | None, config: Path | None, *, as_json: bool) -> int:
    settings = load(None, base_url, backend_key, config)
    found = await find_backends(settings)
    writer, status = ConsoleWriter(), 0
    if settings.model is not None and not as_json:
        writer.put(f"{settings.model}", "bold")
        writer.put("  of the settings, for requests that name none\n", "dim")
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
        if as_json:
            write_lines([ModelSummary(f"{name}/{model}", name) for model in offered])
            continue
        with writer:
            writer.put(f"{name}", "bold")
            kind = "" if entry.backend.kind == name else f"{entry.backend.kind}, "
            writer.put(f"  {kind}{entry.origin}\n", "dim")
            for model in offered:
                is_own = model == entry.backend.model and settings.model is None
                mark = "  (for requests that name none)" if is_own else ""
                writer.put(f"  {name}/{model}{mark}\n")
                if entry.backend.kind == "local" and model == SMOLLM2:
                    writer.line(
                        "    says hello, and little else; `mainspring models pull` fetches one that can call tools", indent=4
                    )
    return status if found else report_none()


def load(model: str | None, base_url: str | None, backend_key: str | None, config: Path | None) -> ModelSettings:
    return load_settings(ModelSettings, config, model=model, base_url=base_url, backend_key=backend_key)


async def find_backends(settings: ModelSettings) -> dict[str, FoundBackend]:
    """The backends in question: those configured, or named, or else found. Raises `InvalidRequest`."""
    if settings.providers:
        return backends.list_configured(settings.providers)
    if settings.base_url is not None:
        backend = ProviderSettings(kind="chat", base_url=settings.base_url, key=settings.backend_key, model=settings.model)
        return {"default": FoundBackend(backend, "named")}
    return await discovery.find_backends()


def report_none() -> int:
    say(f"no models; {backends.HOW_TO_HAVE_ONE}")
    return 1


def make_provider(name: str, entry: FoundBackend, tape: Tape | None = None) -> Provider | None:
    """The provider, or None, with the reason said: one that cannot be had hides no other."""
    try:
        return backends.make_provider(name, entry.backend, progress=say, tape=tape)
    except InvalidRequest as error:
        say(error.message)
        return None
