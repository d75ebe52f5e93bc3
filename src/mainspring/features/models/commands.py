"""`mainspring models` and `mainspring doctor`: which models there are, and what each can really do."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer
from msgspec import Struct

from mainspring.cli.console import ConsoleWriter
from mainspring.cli.context import load_settings
from mainspring.cli.options import ApiKey, AsJson, BaseUrl, Config, Model
from mainspring.cli.output import say, write_lines
from mainspring.core.errors import InvalidRequest, MainspringError
from mainspring.features.models import backends, discovery, model_choice
from mainspring.features.models.backends import FoundBackend
from mainspring.features.models.probes import ProbeResult, Verdict, examine
from mainspring.features.models.settings import ModelSettings, ProviderSettings
from mainspring.ports import Provider
from mainspring.tools.builtin.builtins import BuiltinTools

MARKS: dict[Verdict, tuple[str, str]] = {"ok": ("✓", "green"), "weak": ("·", "yellow"), "failed": ("✗", "red")}


class ModelSummary(Struct, frozen=True):
    """A model as `models --json` lists it."""

    id: str
    provider: str


class Examined(Struct, frozen=True):
    """What `doctor --json` says of one question to one model."""

    model: str
    finding: ProbeResult


async def models(base_url: BaseUrl = None, api_key: ApiKey = None, config: Config = None, json: AsJson = False) -> int:
    """Lists the models that can be asked: configured, or found by keys in the environment and servers on this machine."""
    found = await _find_backends(_load_settings(None, base_url, api_key, config))
    writer, status = ConsoleWriter(), 0
    for name, entry in found.items():
        if (provider := _make_provider(name, entry)) is None:
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
    return status if found else _report_none()


async def doctor(
    model: Model = None,
    base_url: BaseUrl = None,
    api_key: ApiKey = None,
    config: Config = None,
    seconds: Annotated[float, typer.Option(min=1, metavar="S", help="Time limit for each question.")] = 120.0,
    json: AsJson = False,
) -> int:
    """
    Asks every configured model a few small questions, and shows what it can really do.

    Whether it answers, streams and counts tokens; calls a tool, and two at once; keeps to a JSON schema; answers again after it
    was stopped. Each failure comes with what to do about it. The exit code is 1 if a model does not answer.

        mainspring doctor
        mainspring doctor --model anthropic/claude-sonnet-5-5
        mainspring doctor --base-url http://127.0.0.1:8000/v1 --model qwen3
    """
    settings = _load_settings(model, base_url, api_key, config)
    if model is not None and settings.providers:
        answering = model_choice.choose_configured(settings, progress=say)
        return await _examine({model: answering.provider}, {model: model}, seconds, as_json=json)
    if model is not None and base_url is None:
        asked = model_choice.resolve_provider(model, api_key=api_key, progress=say)
        return await _examine({model: asked}, {model: model}, seconds, as_json=json)
    found = await _find_backends(settings)
    made = {name: _make_provider(name, entry) for name, entry in found.items()}
    providers = {name: provider for name, provider in made.items() if provider is not None}
    names = {name: entry.backend.model or "" for name, entry in found.items()}
    if not found:
        return _report_none()
    code = await _examine(providers, names, seconds, as_json=json)
    _write_finding(ConsoleWriter(), "sandbox", await _examine_sandbox(), as_json=json, with_title=True)
    return code if len(providers) == len(made) else 1


def _load_settings(model: str | None, base_url: str | None, api_key: str | None, config: Path | None) -> ModelSettings:
    return load_settings(ModelSettings, config, model=model, base_url=base_url, backend_key=api_key)


async def _find_backends(settings: ModelSettings) -> dict[str, FoundBackend]:
    """The backends in question: those configured, or named, or else found. Raises `InvalidRequest`."""
    if settings.providers:
        return backends.list_configured(settings.providers)
    if settings.base_url is not None:
        backend = ProviderSettings(kind="chat", base_url=settings.base_url, key=settings.backend_key, model=settings.model)
        return {"default": FoundBackend(backend, "named")}
    return await discovery.find_backends()


def _report_none() -> int:
    say("no models; set a vendor's key, start Ollama, or pip install 'mainspring[local]'")
    return 1


def _make_provider(name: str, entry: FoundBackend) -> Provider | None:
    """The provider, or None, with the reason said: one that cannot be had hides no other."""
    try:
        return backends.make_provider(name, entry.backend, progress=say)
    except InvalidRequest as error:
        say(error.message)
        return None


async def _examine(providers: Mapping[str, Provider], models: Mapping[str, str], seconds: float, *, as_json: bool) -> int:
    writer, is_well = ConsoleWriter(), True
    for name, provider in providers.items():
        model = models[name]
        title = model if model == name else f"{name}/{model or '(no model)'}"
        if not as_json:
            writer.put(f"{title}\n", "bold")
        try:
            if not model:
                offered = await provider.models()
                model = offered[0].id if offered else ""
            async for finding in examine(provider, model, seconds=seconds):
                is_well = is_well and (finding.verdict != "failed" or finding.question != "answers")
                _write_finding(writer, title, finding, as_json=as_json)
        except MainspringError as error:
            is_well = False
            _write_finding(writer, title, ProbeResult("answers", "failed", error.message), as_json=as_json)
        finally:
            await provider.close()
    return 0 if is_well else 1


async def _examine_sandbox() -> ProbeResult:
    """Which sandbox holds here, found out by trying to get out of it."""
    async with BuiltinTools(wraps=True) as builtins:
        health = await builtins.health()
    if health is None or not health.is_ok:
        why = "; ".join(health.refused) if health is not None else ""
        return ProbeResult("holds code", "weak", why, "`shell` and `code_interpreter` are refused; the rest works without.")
    totals = f"memory and processes in all by {health.totals}" if health.totals != "none" else "memory and processes one by one"
    return ProbeResult("holds code", "ok", f"{health.backend} ({health.version}), {totals}", "; ".join(health.warnings))


def _write_finding(writer: ConsoleWriter, title: str, finding: ProbeResult, *, as_json: bool, with_title: bool = False) -> None:
    if as_json:
        write_lines([Examined(title, finding)])
        return
    if with_title:
        writer.put(f"{title}\n", "bold")
    mark, colour = MARKS[finding.verdict]
    with writer:
        writer.put(f"  {mark} ", f"bold {colour}")
        writer.put(f"{finding.question:<18}")
        writer.put(f"{finding.detail}\n", "dim" if finding.verdict == "ok" else "")
        if finding.advice:
            writer.put(f"    {'':<18}{finding.advice}\n", colour)
