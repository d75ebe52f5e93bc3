"""`mainspring doctor`: what every configured model can really do, and which habits its backend has."""

from typing import Annotated

import typer
from msgspec import Struct

from mainspring.cli.console import ConsoleWriter
from mainspring.cli.options import ApiKey, AsJson, BaseUrl, Config, Model
from mainspring.cli.output import say, write_lines
from mainspring.core.errors import MainspringError
from mainspring.features.models import commands, model_choice
from mainspring.features.models.probes import ProbeResult, Verdict, examine
from mainspring.features.models.quirks import Quirk, find_quirks
from mainspring.features.models.settings import ModelSettings
from mainspring.ports import Provider
from mainspring.providers.cassette import Listener
from mainspring.tools.builtin.builtins import BuiltinTools

MARKS: dict[Verdict, tuple[str, str]] = {"ok": ("✓", "green"), "weak": ("·", "yellow"), "failed": ("✗", "red")}


class Examined(Struct, frozen=True):
    """What `doctor --json` says of one question to one model."""

    model: str
    finding: ProbeResult


class HabitFound(Struct, frozen=True):
    """What `doctor --json` says of one habit of a backend."""

    model: str
    quirk: Quirk


class Patient(Struct, frozen=True):
    """A backend that is examined: what it is called, the model it is asked for, and what is heard of it."""

    title: str
    model: str
    provider: Provider
    heard: Listener


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

    Whether it answers, streams, counts tokens and thinks; calls tools, one and several, without arguments and by rich schemas;
    uses what they say; keeps to a JSON schema; takes a conversation that another model began; reads a long prompt; answers again
    after it was stopped. Each failure comes with what to do about it. Then come the habits of its backend, and what is done about
    each. The exit code is 1 if a question fails.

        mainspring doctor
        mainspring doctor --model anthropic/claude-sonnet-5-5
        mainspring doctor --base-url http://127.0.0.1:8000/v1 --model qwen3
    """
    settings = commands.load(model, base_url, api_key, config)
    if model is None or not settings.providers:
        return await check_models(settings, seconds=seconds, as_json=json)
    heard = Listener()
    chosen = model_choice.choose_configured(settings, progress=say, tape=heard)
    return await _examine(ConsoleWriter(), Patient(model, model, chosen.provider, heard), seconds, as_json=json)


async def check_models(settings: ModelSettings, *, seconds: float = 120.0, as_json: bool = False) -> int:
    """Examines whatever the settings name, or else what is found; 0 if nothing fails."""
    heard, writer, model = Listener(), ConsoleWriter(), settings.model
    if model is not None and not settings.providers and settings.base_url is None:
        asked = model_choice.resolve_provider(model, api_key=settings.backend_key, progress=say, tape=heard)
        return await _examine(writer, Patient(model, model, asked, heard), seconds, as_json=as_json)
    found = await commands.find_backends(settings)
    if not found:
        return commands.report_none()
    code = 0
    for name, entry in found.items():
        heard = Listener()
        if (provider := commands.make_provider(name, entry, heard)) is None:
            code = 1
            continue
        own = entry.backend.model or ""
        title = own if own == name else f"{name}/{own or '(no model)'}"
        code |= await _examine(writer, Patient(title, own, provider, heard), seconds, as_json=as_json)
    _write_finding(writer, "sandbox", await _examine_sandbox(), as_json=as_json, with_title=True)
    return code


async def _examine(writer: ConsoleWriter, patient: Patient, seconds: float, *, as_json: bool) -> int:
    is_well, model = True, patient.model
    if not as_json:
        writer.put(f"{patient.title}\n", "bold")
    try:
        if not model:
            offered = await patient.provider.models()
            model = offered[0].id if offered else ""
        async for finding in examine(patient.provider, model, seconds=seconds):
            is_well = is_well and finding.verdict != "failed"
            _write_finding(writer, patient.title, finding, as_json=as_json)
    except MainspringError as error:
        is_well = False
        _write_finding(writer, patient.title, ProbeResult("answers", "failed", error.message), as_json=as_json)
    finally:
        await patient.provider.close()
    _write_habits(writer, patient.title, find_quirks(patient.heard.exchanges), as_json=as_json)
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
        writer.put(f"{finding.question:<24}")
        writer.put(f"{finding.detail}\n", "dim" if finding.verdict == "ok" else "")
        if finding.advice:
            writer.put(f"    {'':<24}{finding.advice}\n", colour)


def _write_habits(writer: ConsoleWriter, title: str, habits: list[Quirk], *, as_json: bool) -> None:
    if as_json:
        write_lines([HabitFound(title, quirk) for quirk in habits])
        return
    with writer:
        for quirk in habits:
            writer.put(f"  ~ {quirk.name:<24}")
            writer.put(f"{quirk.does} {quirk.remedy}\n", "dim")
