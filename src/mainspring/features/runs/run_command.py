"""`mainspring run` and `mainspring resume`: from options to an engine, and the run on the screen."""

import asyncio
import os
import sys
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from mainspring.app.build import composed
from mainspring.app.engine import Engine
from mainspring.app.settings import Settings, load
from mainspring.cli.follow import View, follow, launch
from mainspring.cli.json_lines import Lines
from mainspring.cli.open_database import found, how_to_list, reader
from mainspring.cli.plain import say
from mainspring.cli.screen import Screen
from mainspring.core.delegation import TOOL_PREFIX
from mainspring.core.errors import CallerError, InvalidRequest, MainspringError
from mainspring.core.items import ToolDefinition
from mainspring.core.run import Run
from mainspring.core.spec import PresetName, ToolChoice
from mainspring.features.memory.settings import MemorySettings
from mainspring.features.models import backends
from mainspring.ports import Provider


class Setup(Struct, frozen=True):
    """Who answers, how, and with which tools. With `settings` they say what there is; without, mainspring.toml only governs what
    the options name."""

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
    settings: Settings | None = None
    config: Path | None = None

    def engine(self, database: Path | None, model: str | None = None) -> Engine:
        """An engine set up like this, with `model` if none is named, governed as a server would be.

        Raises `InvalidRequest` for what cannot be had.
        """
        settings = self._settings()
        provider, name = self._answering(self.model or model or settings.model, settings)
        try:
            return composed(settings, provider, name, database=database, instructions=self.instructions, preset=self.preset)
        except ValueError as error:
            raise InvalidRequest(str(error)) from error

    def _settings(self) -> Settings:
        found = self.settings or replace(
            load({}, file=self.config),
            tools=self.tools,
            builtins=self.builtins,
            agents=self.agents,
            skills=self.skills,
            workflows=(),
            mcp={},
            memory=MemorySettings(),
        )
        return found if found.working_dir is not None else replace(found, working_dir=str(Path.cwd()))

    def _answering(self, model: str | None, settings: Settings) -> tuple[Provider, str]:
        if self.record is not None or self.replay is not None:
            return self._taped(model), model or ""
        base_url, api_key, is_named = self.base_url, self.api_key, self.base_url is not None or self.api_key is not None
        if settings.providers and not is_named and not (model or "").startswith(("scripted:", "local:")):
            answering = backends.configured_answering(replace(settings, model=model), progress=say)
            return answering.provider, answering.model
        if self.settings is not None and not is_named:
            base_url, api_key = settings.base_url, settings.backend_key
        if model:
            return backends.provider_for(model, base_url, api_key, progress=say), model
        if base_url is not None:
            raise InvalidRequest(f"no model is named; pass --model with a name that {base_url} knows")
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
        check_governed(engine, left)
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
    known = {tool.name for tool in engine.definitions} | {f"{TOOL_PREFIX}{name}" for name in engine.agents.registry.definitions}
    needed = [tool for tool in run.spec.tools if isinstance(tool, ToolDefinition) and tool.kind != "function"]
    if run.spec.step_call is not None:  # steps have a tool that no model is told of
        needed = [tool for tool in needed if not engine.core.can_perform(tool)]
    if missing := [tool.name for tool in needed if tool.name not in known]:
        names = ", ".join([f"`{name}`" for name in missing])
        raise InvalidRequest(f"run `{run.spec.id}` uses the tools {names}; pass them with --tool MODULE:FUNCTION, as to `run`")


def check_governed(engine: Engine, run: Run) -> None:
    """Raises `InvalidRequest` unless the settings in force are those that the run began under, or it began under none."""
    if run.spec.governed not in ("", engine.core.governed):
        raise InvalidRequest(
            f"run `{run.spec.id}` began under other settings of governance or budget than those in force here; name the ones it "
            "began under with --config FILE, from the folder that it began in, or leave it to its server"
        )


def _prompt(given: str) -> str:
    """The prompt, from standard input if it is `-`. Bytes that are no text become replacement characters."""
    data = sys.stdin.buffer.read() if given == "-" else os.fsencode(given)
    text = data.decode("utf-8", "replace").strip()
    if not text:
        raise InvalidRequest("the prompt is empty; say what to do, or pass `-` and write it to standard input")
    return text
