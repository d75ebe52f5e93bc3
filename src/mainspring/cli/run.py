"""`mainspring run` and `mainspring resume`: from options to an engine, and the run on the screen."""

import asyncio
import os
import sys
from pathlib import Path

from msgspec import Struct

from mainspring import backends
from mainspring.agents.definition import TOOL_PREFIX
from mainspring.app import Engine
from mainspring.cli.follow import View, follow, launch
from mainspring.cli.lines import Lines
from mainspring.cli.plain import say
from mainspring.cli.reading import found, how_to_list, reader
from mainspring.cli.screen import Screen
from mainspring.config import Settings, load
from mainspring.errors import CallerError, InvalidRequest, MainspringError
from mainspring.items import ToolDefinition
from mainspring.loop.run import Run
from mainspring.oversight import plan_of, policies_of
from mainspring.ports import Provider
from mainspring.spec import PresetName, ToolChoice
from mainspring.tools.addresses import AddressGuard
from mainspring.tools.functions import load as load_tools
from mainspring.workshop import Workshop


class Setup(Struct, frozen=True):
    """Who answers, how, and with which tools."""

    model: str | None
    base_url: str | None
    api_key: str | None
    tools: tuple[str, ...]
    preset: PresetName = "responses"
    instructions: str | None = None
    record: Path | None = None
    replay: Path | None = None
    builtins: tuple[str, ...] = ()
    agents: tuple[str, ...] = ()
    skills: tuple[str, ...] = ()

    def engine(self, database: Path | None, model: str | None = None) -> Engine:
        """An engine set up like this, with `model` if none is named, governed by mainspring.toml as a server would be.

        Raises `InvalidRequest` for what cannot be had.
        """
        functions = dict.fromkeys([function for reference in self.tools for function in load_tools(reference)])
        provider, name = self._answering(self.model or model)
        settings = load({})
        try:
            engine = Engine(
                provider,
                tools=tuple(functions),
                instructions=self.instructions,
                database=database,
                audit=database is not None,
                preset=self.preset,
                workshop=Workshop(self.builtins, working_dir=Path.cwd()) if self.builtins else None,
                policies=policies_of(settings.governance, AddressGuard(settings.allow_hosts)),
                budget=plan_of(settings.budget),
                agents=[Path(folder) for folder in self.agents],
                skills=[Path(folder) for folder in self.skills],
            )
        except ValueError as error:
            raise InvalidRequest(str(error)) from error
        engine.owns_provider, engine.model = True, name
        return engine

    def _answering(self, model: str | None) -> tuple[Provider, str]:
        if self.record is not None or self.replay is not None:
            return self._taped(model), model or ""
        settings = load({"model": model}) if self.base_url is None and self.api_key is None else Settings()
        if settings.providers and not (model or "").startswith(("scripted:", "local:")):
            answering = backends.configured_answering(settings, progress=say)
            return answering.provider, answering.model
        if model:
            return backends.provider_for(model, self.base_url, self.api_key, progress=say), model
        if self.base_url is not None:
            raise InvalidRequest(f"no model is named; pass --model with a name that {self.base_url} knows")
        if (found := backends.discovered(asyncio.run(backends.found()), progress=say)) is None:
            raise InvalidRequest(
                "no model is named, and none was found; pass --model NAME (with --base-url URL, unless it is a vendor's) or set "
                "MAINSPRING_MODEL; `mainspring demo` needs none"
            )
        say(f"asking {found.told}")
        return found.provider, found.model

    def _taped(self, model: str | None) -> Provider:
        """A backend that is recorded, or its recording."""
        # aiohttp is heavy; only those who talk to a network backend pay for it.
        from mainspring.providers.cassette import Player, Recorder

        if not model:
            raise InvalidRequest("name the model that is recorded or replayed: --model NAME")
        if self.record is not None and self.replay is not None:
            raise InvalidRequest("--record and --replay exclude each other; pass one of them")
        environment = os.environ if self.replay is None else backends.without_keys(os.environ)
        tape = Recorder(self.record) if self.record is not None else Player(self.replay or Path())
        return backends.provider_for(model, self.base_url, self.api_key, environment=environment, tape=tape)


class Order(Struct, frozen=True):
    """What to do, going on from where, and within which limits; None leaves a limit to the preset."""

    prompt: str
    previous: str | None
    max_turns: int | None
    max_seconds: float | None
    tool_choice: str | None = None

    @property
    def choice(self) -> ToolChoice:
        match self.tool_choice:
            case None | "auto":
                return ToolChoice()
            case "required" | "none" as mode:
                return ToolChoice(mode)
            case name:
                return ToolChoice("required", name=name)


def run(order: Order, setup: Setup, database: Path | None, *, as_json: bool) -> int:
    """Runs the order, shows it, and returns the exit code."""
    if order.previous is not None and database is None:
        raise InvalidRequest("--previous names a run of a database; say which with --database FILE")
    engine = setup.engine(database)
    prompt = _prompt(order.prompt)
    limits = {name: value for name in ("max_turns", "max_seconds") if (value := getattr(order, name)) is not None}

    async def live() -> int:
        async with engine:
            try:
                handle = await engine.ask(prompt, previous=order.previous, tool_choice=order.choice, **limits)
            except InvalidRequest as error:
                if database is None or error.param != "previous_response_id":
                    raise
                raise InvalidRequest(f"{error.message.rstrip('.')}; {how_to_list(database)}", param=error.param) from error
            return await follow(handle, view_for(as_json), database)

    return launch(live())


def resume(run_id: str | None, setup: Setup, database: Path, *, as_json: bool) -> int:
    """Takes up one run, or every unfinished one, and returns the highest exit code."""

    async def one(run_id: str) -> int:
        async with reader(database) as reading:
            left = (await found(reading, run_id, database)).run
        engine = setup.engine(database, model=left.spec.model)
        check_tools(engine, left)
        async with engine:
            return await follow(await engine.resume(run_id), view_for(as_json), database)

    async def every() -> int:
        async with reader(database) as reading:
            unfinished = await reading.store.unfinished()
        if not unfinished:
            say(f"all runs in {database} have ended")
        code = 0
        for run_id in unfinished:
            try:
                code = max(code, await one(run_id))
            except MainspringError as error:
                say(f"run `{run_id}` was not resumed: {error.message}")
                code = max(code, 2 if isinstance(error, CallerError) else 1)
            if code >= 128:
                break
        return code

    return launch(every() if run_id is None else one(run_id))


def view_for(as_json: bool) -> View:
    return Lines() if as_json else Screen()


def check_tools(engine: Engine, run: Run) -> None:
    """Raises `InvalidRequest` if the run has tools that this engine cannot perform."""
    known = {tool.name for tool in engine.definitions} | {f"{TOOL_PREFIX}{name}" for name in engine.agents.registry.agents}
    needed = [tool.name for tool in run.spec.tools if isinstance(tool, ToolDefinition) and tool.kind != "function"]
    if missing := [name for name in needed if name not in known]:
        names = ", ".join([f"`{name}`" for name in missing])
        raise InvalidRequest(f"run `{run.spec.id}` uses the tools {names}; pass them with --tool MODULE:FUNCTION, as to `run`")


def _prompt(given: str) -> str:
    """The prompt, from standard input if it is `-`. Bytes that are no text become replacement characters."""
    data = sys.stdin.buffer.read() if given == "-" else os.fsencode(given)
    text = data.decode("utf-8", "replace").strip()
    if not text:
        raise InvalidRequest("the prompt is empty; say what to do, or pass `-` and write it to standard input")
    return text
