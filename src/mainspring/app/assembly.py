"""From settings and the options of a command to an engine with a model: for the server, and for every command that runs one."""

import asyncio
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import asdict, replace

from mainspring.app.build import compose_engine, is_one_of_several
from mainspring.app.engine import Engine
from mainspring.app.mcp_services import make_mcp_services
from mainspring.app.mistakes import explain_refusals
from mainspring.app.settings import Settings, find_settings_type, load
from mainspring.cli.context import Assembly, EngineOptions, PersonsAnswer, WaitingCall
from mainspring.cli.operator import name_operator
from mainspring.cli.output import say
from mainspring.core.delegation import TOOL_PREFIX
from mainspring.core.errors import InvalidRequest
from mainspring.core.items import ServerTool, ToolDefinition
from mainspring.core.memory_quota import MemoryQuota
from mainspring.core.run import Run
from mainspring.core.spec import STEP_MODEL
from mainspring.engine.approvals import list_questions
from mainspring.engine.handle import Handle
from mainspring.engine.policy_order import order_policies
from mainspring.features.agents.agent_limits import find_excess
from mainspring.features.approvals.pending import Approvals
from mainspring.features.budgets.plan import find_plan_doubts
from mainspring.features.governance.governance_settings import find_rule_doubts
from mainspring.features.mcp_server.settings import OfferSettings, find_offer_doubts
from mainspring.features.memory.no_memory import NoMemory
from mainspring.features.models import backends, discovery, model_choice
from mainspring.features.models.backends import FoundBackend
from mainspring.features.models.model_choice import ModelChoice
from mainspring.http.settings import find_most_bytes
from mainspring.late_module import LateModule
from mainspring.ports import Provider
from mainspring.providers.scripted import Scripted
from mainspring.providers.scripted import say as reply
from mainspring.storage.location import parse_location
from mainspring.tools.builtin.builtins import NAMES

# The HTTP client is heavy; only those who talk to a network backend pay for it.
if TYPE_CHECKING:
    from mainspring.features.models import pull
    from mainspring.providers import cassette
else:
    cassette = LateModule("mainspring.providers.cassette")
    pull = LateModule("mainspring.features.models.pull")

WELCOME = (
    "Hello! I am only a scripted stand-in, because this server has no model yet. Install one with `pip install "
    "'mainspring[local]'`, or start it with `mainspring serve --base-url http://127.0.0.1:11434/v1 --model NAME`, and a real one "
    "will answer you here."
)


class ServerEngine(Struct, frozen=True):
    """The engine that the settings describe, and its model in words."""

    engine: Engine
    model: str


def assemble(options: EngineOptions) -> Assembly:
    """Builds an engine and lists its services. Raises `InvalidRequest`."""
    engine = build_engine(options)
    labels = frozenset([server.label for server in engine.mcp.servers])
    approvals = Approvals(engine.core, labels)

    async def list_waiting(run: Run) -> list[WaitingCall]:
        found = [await approvals.get(question.id, tenant=run.spec.tenant) for question in list_questions(run)]
        return [
            WaitingCall(each.id, each.tool, each.arguments, each.digest, each.policy, each.question, each.elicitation)
            for each in found
        ]

    async def answer(call: WaitingCall, said: PersonsAnswer) -> Handle | None:
        done = await approvals.answer(
            call.id, approve=said.approves, content=said.content, digest=call.digest, by=name_operator(), background=False
        )
        return done.handle

    offered = make_mcp_services(engine, OfferSettings())
    services = (offered, engine.agents, engine.workflows, engine.host, engine.builtins.containers)
    return Assembly(
        engine.core,
        engine,
        tuple([service for service in services if service is not None]),
        frozenset([policy.name for policy in order_policies(*engine.operator_policies)]),
        labels,
        lambda run: check_run(engine, run),
        lambda: find_doubts(engine, load(options.settings, file=options.config)),
        list_waiting,
        answer,
    )


def build_engine(options: EngineOptions) -> Engine:
    """The engine that a command asked for. Raises `InvalidRequest`."""
    if options.kind == "bare":
        named = {"tools", "builtins", "agents", "skills", "workflows", "mcp", "memory"}
        defaults = {name: value for name, value in asdict(find_settings_type()()).items() if name in named}
        return _build(replace(load({}, file=options.config), **defaults), options)
    settings = load(options.settings, file=options.config)
    if options.kind == "server":
        return build_server_engine(settings, options.config).engine
    given = [name for name, value in {**options.settings, "model": options.model}.items() if value is not None]
    with explain_refusals(settings, options.config, given):
        if options.kind == "steps":
            return compose_engine(settings, Scripted(), STEP_MODEL, database=parse_location(settings.database))
        if options.kind == "trial":
            settings = replace(settings, builtins=NAMES, working_dir=settings.working_dir or str(Path.cwd()))
            return compose_engine(settings, Scripted(), settings.model or "model", database=None, is_trial=True)
        return _build(settings, options)


def build_server_engine(settings: Settings, file: Path | None = None, *, count: int = 1, is_quiet: bool = False) -> ServerEngine:
    """The engine of a server, one of `count` that share the memory. What in the settings may be a mistake is told on standard
    error unless it `is_quiet`. Raises `InvalidRequest` with everything that is wrong with them; `file` is where they are from."""
    note = _say_nothing if is_quiet else say
    with explain_refusals(settings, file):
        answering = _choose_server_model(settings, note)
        database, seconds = parse_location(settings.database), settings.mcp_start_seconds
        quota = MemoryQuota(find_most_bytes(settings.http) // count)
        engine = compose_engine(
            settings, answering.provider, answering.model, database=database, start_seconds=seconds, quota=quota
        )
    for folders in (engine.agents.registry, engine.skills, engine.workflows.folders):
        _ = folders.problems  # what is wrong with a definition is logged now, not at the first request
    for doubt in find_doubts(engine, settings):
        note(doubt)
    return ServerEngine(engine, answering.told)


def find_doubts(engine: Engine, settings: Settings) -> list[str]:
    """What in these settings, which are right in form, may be a mistake."""
    # What MCP servers and agents bring is not known yet.
    tools, plan = () if settings.mcp or settings.agents else engine.definitions, engine.admission.plan
    doubts = [
        *find_rule_doubts(settings.governance, tools),
        *([] if plan is None else find_plan_doubts(plan, tools, engine.model)),
        *find_excess(engine.agents.registry.definitions.values(), engine.core.defaults.limits),
        *find_offer_doubts(
            settings.mcp_server,
            agents=engine.agents.registry.definitions,
            workflows=engine.workflows.folders.definitions,
            tools=[tool.name for tool in engine.definitions],
            remembers=not isinstance(engine.memory, NoMemory),
        ),
    ]
    return [*doubts, *_find_exposed_folders(settings), *_find_lone_containers(settings)]


def _find_lone_containers(settings: Settings) -> list[str]:
    """A container is wherever its calls come to, or it is lost."""
    if settings.files is not None or parse_location(settings.database).file is not None or not is_one_of_several(settings):
        return []
    if not {"shell", "code_interpreter"} & set(settings.builtins):
        return []
    return ["files: containers are kept in each process, so calls that come to another one do not find them; set `files`"]


def _find_exposed_folders(settings: Settings) -> list[str]:
    """Whoever may write a definition may have it do what only the operator should decide."""
    writable = [settings.working_dir] if settings.working_dir is not None and "file_ops" in settings.builtins else []
    writable += [folder for server in settings.mcp.values() if server.sandboxed for folder in server.folders]
    defining = [
        *[("agents", folder) for folder in settings.agents],
        *[("skills", folder) for folder in settings.skills],
        *[("workflows", folder) for folder in settings.workflows],
        *([("tool_definitions", settings.tool_definitions)] if settings.tool_definitions is not None else []),
    ]
    return [
        f"{name}: the folder {folder} is inside of {outer}, where tools may write; whoever may use them can define {name} there: "
        "move one of the two"
        for name, folder in defining
        for outer in writable
        if Path(folder).resolve().is_relative_to(Path(outer).resolve())
    ]


def check_run(engine: Engine, run: Run) -> None:
    """Raises `InvalidRequest` if the run has tools that this engine lacks, or began under other settings than those in force."""
    id, labels = run.spec.id, {server.label for server in engine.mcp.servers}
    needed = [tool for tool in run.spec.tools if isinstance(tool, ToolDefinition) and tool.kind != "function"]
    served = [tool for tool in needed if tool.kind == "mcp"]
    if any(not isinstance(tool.server, ServerTool) or tool.server.label not in labels for tool in served):
        raise InvalidRequest(f"run `{id}` uses MCP servers that these settings lack; pass --config FILE, or go on at its server")
    if run.spec.step_call is not None:  # steps have a tool that no model is told of
        needed = [tool for tool in needed if not engine.core.can_perform(tool)]
    known = {tool.name for tool in engine.definitions} | {f"{TOOL_PREFIX}{name}" for name in engine.agents.registry.definitions}
    if missing := [f"`{tool.name}`" for tool in needed if tool not in served and tool.name not in known]:
        raise InvalidRequest(
            f"run `{id}` uses the tools {', '.join(missing)}; pass them with --tool MODULE:FUNCTION, as to `run`"
        )
    if run.spec.governed not in ("", engine.core.governed):
        raise InvalidRequest(
            f"run `{id}` began under other settings of governance or budget than those in force here; name the ones it "
            "began under with --config FILE, from the folder that it began in, or leave it to its server"
        )


def _build(settings: Settings, options: EngineOptions) -> Engine:
    settings = settings if settings.working_dir is not None else replace(settings, working_dir=str(Path.cwd()))
    provider, model = _choose_model(options, settings)
    return compose_engine(
        settings, provider, model, database=options.database, instructions=options.instructions, preset=options.preset
    )


def _choose_model(options: EngineOptions, settings: Settings) -> tuple[Provider, str]:
    """The model of the options, else of the settings, else what is found on this machine."""
    model, base_url, key = options.model or settings.model, options.base_url, options.backend_key
    if options.record is not None or options.replay is not None:
        return _choose_cassette(options, model), model or ""
    is_named = base_url is not None or key is not None
    if settings.providers and not is_named and not (model or "").startswith(("scripted:", "local:")):
        answering = model_choice.choose_configured(replace(settings, model=model), progress=say)
        return answering.provider, answering.model
    if not is_named:
        base_url, key = settings.base_url, settings.backend_key
    if model:
        return model_choice.resolve_provider(model, base_url, key, progress=say), model
    if base_url is not None:
        raise InvalidRequest(f"no model is named; pass --model with a name that {base_url} knows")
    if (found := model_choice.choose_discovered(_find_backends(), progress=say)) is None:
        raise InvalidRequest(
            f"no model is named, and none was found; {backends.HOW_TO_HAVE_ONE}, or pass --model NAME with --base-url URL; "
            "`mainspring demo` needs none"
        )
    say(f"asking {found.told}")
    return found.provider, found.model


def _choose_cassette(options: EngineOptions, model: str | None) -> Provider:
    """A backend that is recorded, or its recording."""
    if not model:
        raise InvalidRequest("name the model that is recorded or replayed: --model NAME")
    if options.record is not None and options.replay is not None:
        raise InvalidRequest("--record and --replay exclude each other; pass one of them")
    environment = os.environ if options.replay is None else model_choice.add_missing_keys(os.environ)
    tape = cassette.Recorder(options.record) if options.record is not None else cassette.Player(options.replay or Path())
    return model_choice.resolve_provider(model, options.base_url, options.backend_key, environment=environment, tape=tape)


def _choose_server_model(settings: Settings, note: Callable[[str], None]) -> ModelChoice:
    if settings.providers:
        return model_choice.choose_configured(settings, progress=note)
    if settings.model is not None or settings.base_url is not None or settings.backend_key is not None:
        model = settings.model or ""
        provider = model_choice.resolve_provider(model, settings.base_url, settings.backend_key, progress=note)
        told = settings.model or f"every model of {settings.base_url or backends.OPENAI}"
        return ModelChoice(provider, model, told)
    found = _find_backends(may_ask=settings.workers == 1 and note is say)
    if (answering := model_choice.choose_discovered(found, aliases=settings.aliases, progress=note)) is not None:
        return answering
    return ModelChoice(Scripted(reply(WELCOME), repeat=True, chunk=4), "scripted", "a scripted stand-in, since there is no other")


def _find_backends(may_ask: bool = True) -> dict[str, FoundBackend]:
    """What can be asked without being configured. Where that is a local model alone, a person is asked about a better one."""
    found = asyncio.run(discovery.find_backends())
    if may_ask and [*found] == ["local"] and sys.stdin.isatty():
        found = asyncio.run(discovery.find_backends()) if pull.offer_model() else found
    return found


def _say_nothing(line: str) -> None:
    """Another process has said it."""
