"""`mainspring doctor`: what every configured model can really do, and which habits its backend has."""

import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Annotated

import msgspec
import typer
from msgspec import Struct
from msgspec.structs import replace

from mainspring.cli.console import ConsoleWriter
from mainspring.cli.context import load_settings
from mainspring.cli.options import AsJson, BackendKey, BaseUrl, Config, DatabaseOfSettings, DatabaseSettings, Model
from mainspring.cli.output import fold_cell, measure_room, say, write_lines
from mainspring.core.errors import MainspringError, SandboxError
from mainspring.features.models import commands, model_choice
from mainspring.features.models.model_choice import ABILITIES
from mainspring.features.models.probes import ProbeResult, Verdict, examine
from mainspring.features.models.quirks import Quirk, find_quirks
from mainspring.features.models.settings import ModelSettings
from mainspring.ports import DocumentStore, KnownProfile, Provider
from mainspring.providers.cassette import ExchangeRecorder
from mainspring.providers.profile_documents import KIND, StoredProfiles
from mainspring.providers.scripted import ScriptError
from mainspring.providers.wrapper import explain_profiles, keep_profiles, learn_profile, write_profiles
from mainspring.storage.choose_store import open_store
from mainspring.storage.location import Location, parse_location
from mainspring.storage.memory_runs import MemoryStore
from mainspring.tools.builtin.builtins import BuiltinTools, Mode
from mainspring.tools.sandbox.kubernetes.settings import KubernetesSettings

MARKS: dict[Verdict, tuple[str, str]] = {"ok": ("✓", "green"), "weak": ("·", "yellow"), "failed": ("✗", "red")}


class Examined(Struct, frozen=True):
    """What `doctor --json` says of one question to one model."""

    model: str
    finding: ProbeResult


class HabitFound(Struct, frozen=True):
    """What `doctor --json` says of one habit of a backend."""

    model: str
    quirk: Quirk


class ModelReport(Struct, frozen=True):
    """What `doctor --export` writes of one model, for a report or a contribution: nothing of it is a key."""

    model: str
    profiles: Sequence[KnownProfile]
    quirks: list[Quirk]
    findings: list[ProbeResult]


class Examination(Struct, frozen=True):
    """How models are examined. `store` has what was learned before, and is given what is learned now."""

    store: DocumentStore
    seconds: float = 120.0
    as_json: bool = False
    exports: bool = False
    writer: ConsoleWriter = msgspec.field(default_factory=ConsoleWriter)

    @property
    def is_quiet(self) -> bool:
        return self.as_json or self.exports

    async def examine(self, title: str, model: str, provider: Provider, heard: ExchangeRecorder) -> int:
        """Says what is found; 0 if nothing fails."""
        findings: list[ProbeResult] = []
        if not self.is_quiet:
            self.writer.put(f"{title}\n", "bold")
        keep_profiles(provider, self.store)
        try:
            if not model:
                offered = await provider.models()
                model = offered[0].id if offered else ""
            async for finding in examine(provider, model, seconds=self.seconds):
                findings.append(finding)
                self.tell(title, finding)
        except (MainspringError, ScriptError) as error:  # a script says what it was written for, and nothing else
            findings.append(ProbeResult("answers", "failed", str(error)))
            self.tell(title, findings[-1])
        await _keep_findings(provider, model, findings)
        profiles = await explain_profiles(provider, model)
        await write_profiles(provider)
        await provider.close()
        quirks = find_quirks(heard.exchanges, profiles)
        if self.exports:
            write_lines([ModelReport(model, profiles, quirks, findings)])
        self._tell_quirks(title, quirks)
        return 1 if any(finding.verdict == "failed" for finding in findings) else 0

    def tell(self, title: str, finding: ProbeResult, *, with_title: bool = False) -> None:
        if self.as_json:
            write_lines([Examined(title, finding)])
        if self.is_quiet:
            return
        if with_title:
            self.writer.put(f"{title}\n", "bold")
        mark, colour = MARKS[finding.verdict]
        writer = self.writer
        with writer:
            writer.put(f"  {mark} ", f"bold {colour}")
            writer.put(f"{finding.question:<24}")
            writer.put(f"{_fold(finding.detail).lstrip()}\n", "dim" if finding.verdict == "ok" else "")
            if finding.advice:
                writer.put(f"{_fold(finding.advice)}\n", colour)

    def _tell_quirks(self, title: str, quirks: list[Quirk]) -> None:
        if self.as_json:
            write_lines([HabitFound(title, quirk) for quirk in quirks])
        if self.is_quiet:
            return
        writer = self.writer
        with writer:
            for quirk in quirks:
                writer.put(f"  ~ {quirk.name:<24}")
                writer.put(f"{_fold(f'{quirk.does} {quirk.remedy}').lstrip()}\n", "dim")


async def _keep_findings(provider: Provider, model: str, findings: Sequence[ProbeResult]) -> None:
    """Remembers what the model was found to be unable to do, and forgets what it has turned out to be able to."""
    known = await explain_profiles(provider, model)
    for ability in ABILITIES:
        field = ability.fields[0]
        for finding in [each for each in findings if each.question == ability.question and not each.is_outage]:
            is_able = finding.verdict != "failed"
            if any(each.values.get(field) != is_able for each in known):
                await learn_profile(provider, model, {field: is_able}, f"the doctor has seen: {finding.question}")


async def doctor(
    model: Model = None,
    base_url: BaseUrl = None,
    backend_key: BackendKey = None,
    config: Config = None,
    database: DatabaseOfSettings = None,
    seconds: Annotated[float, typer.Option(min=1, metavar="S", help="Time limit for each question.")] = 120.0,
    learn: Annotated[bool, typer.Option("--learn", help="Keep the habits of the backends, too, for the server to heed.")] = False,
    export: Annotated[
        bool, typer.Option("--export", help="Write all that was found as one line of JSON for each model.")
    ] = False,
    json: AsJson = False,
) -> int:
    """
    Asks every configured model a few small questions, and shows what it can really do.

    Whether it answers, streams, counts tokens and thinks; calls tools, one and several, without arguments and by rich schemas;
    uses what they say; keeps to a JSON schema; takes a conversation that another model began; reads a long prompt; answers again
    after it was stopped. Each failure comes with what to do about it. Then come the habits of its backend, and what is done about
    each. The exit code is 1 if a question fails.

    What a model cannot do (call tools, keep to a schema, end its answers) is kept in the database of the settings, if there is
    one, and what needs it refuses the model. `mainspring models forget NAME` forgets it.

        mainspring doctor
        mainspring doctor --model anthropic/claude-sonnet-5-5
        mainspring doctor --base-url http://127.0.0.1:8000/v1 --model qwen3 --learn
    """
    settings = commands.load(model, base_url, backend_key, config)
    where = database or parse_location(load_settings(DatabaseSettings, config).database)
    async with _open_profiles(where, learns=learn) as store:
        examination = Examination(store, seconds, as_json=json, exports=export)
        if model is None or not settings.providers:
            return await check_models(settings, load_settings(SandboxChoice, config), examination)
        heard = ExchangeRecorder()
        chosen = model_choice.choose_configured(settings, progress=say, tape=heard)
        return await examination.examine(model, model, chosen.provider, heard)


class SandboxChoice(Struct, frozen=True):
    """The settings of the sandbox."""

    sandbox: Mode
    kubernetes: KubernetesSettings


async def check_configured(settings: ModelSettings, sandbox: SandboxChoice, database: Location) -> int:
    """Examines the models as a server on this database would ask them, and keeps nothing; 0 if nothing fails."""
    async with _open_profiles(database, learns=False) as store:
        return await check_models(settings, sandbox, Examination(store))


async def check_models(settings: ModelSettings, sandbox: SandboxChoice, examination: Examination) -> int:
    """Examines whatever the settings name, or else what is found, and the sandbox; 0 if nothing fails."""
    code = await _examine_models(settings, examination)
    examination.tell("sandbox", await examine_sandbox(sandbox), with_title=True)
    return code


async def _examine_models(settings: ModelSettings, examination: Examination) -> int:
    heard, model = ExchangeRecorder(), settings.model
    if model is not None and not settings.providers and settings.base_url is None:
        asked = model_choice.resolve_provider(model, api_key=settings.backend_key, progress=say, tape=heard)
        return await examination.examine(model, model, asked, heard)
    found = await commands.find_backends(settings)
    if not found:
        return commands.report_none()
    code = 0
    for name, entry in found.items():
        heard = ExchangeRecorder()
        if (provider := commands.make_provider(name, entry, heard)) is None:
            code = 1
            continue
        own = entry.backend.model or ""
        code |= await examination.examine(own if own == name else f"{name}/{own or '(no model)'}", own, provider, heard)
    return code


@asynccontextmanager
async def _open_profiles(database: Location, *, learns: bool) -> AsyncIterator[DocumentStore]:
    """The database, or a copy of what it has learned. Of that, only what models are able to do gets back to the database, if
    there is one."""
    if learns:
        async with open_store(database) as store:
            yield store
        return
    copy, is_there = MemoryStore(), database.file is None or database.file.exists()
    if is_there:
        async with open_store(database) as store:
            await copy.put(await store.documents(KIND))
    yield copy
    if is_there:
        async with open_store(database) as store:
            kept, fields = StoredProfiles(store), {ability.fields[0] for ability in ABILITIES}
            for learned in await StoredProfiles(copy).load() or ():
                if facts := {field: fact for field, fact in learned.facts.items() if field in fields}:
                    kept.save(replace(learned, facts=facts))
            await kept.close()


async def examine_sandbox(choice: SandboxChoice) -> ProbeResult:
    """Which sandbox holds here, found out by trying to get out of it."""
    async with BuiltinTools(("shell",), sandbox=choice.sandbox, kubernetes=choice.kubernetes) as builtins:
        health, trouble = await builtins.health(), ""
        if health is not None and health.is_ok and builtins.containers is not None:
            try:
                # A pod looks at itself once it is there.
                await builtins.containers.create("", "doctor")
            except SandboxError as error:
                trouble = error.message
    if trouble:
        return ProbeResult("holds code", "weak", trouble, "`shell` and `code_interpreter` are refused; the rest works without.")
    if health is None or not health.is_ok:
        why = "; ".join(health.refused) if health is not None else ""
        return ProbeResult("holds code", "weak", why, "`shell` and `code_interpreter` are refused; the rest works without.")
    totals = f"memory and processes in all by {health.totals}" if health.totals != "none" else "memory and processes one by one"
    return ProbeResult("holds code", "ok", f"{health.backend} ({health.version}), {totals}", "; ".join(health.warnings))


def _fold(text: str) -> str:
    """What stands beside a question."""
    return fold_cell(" " * 28, text, measure_room(sys.stdout))
