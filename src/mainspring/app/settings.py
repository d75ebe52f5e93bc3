"""Settings of the server: defaults, then `mainspring.toml`, then the environment, then the command line.

Every option is a field below; its comment is its documentation. Unknown keys are errors, and all errors are told at once.
"""

import os
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Literal, cast

import msgspec
from msgspec import Meta, defstruct, field
from msgspec.structs import asdict, fields, replace

from mainspring.app.keep_days import Days, KeepDays
from mainspring.app.product_parts import find_parts
from mainspring.core.errors import InvalidRequest
from mainspring.definitions.parsed_file import Node, ParsedFile, Place, Problem, tell_misfit, tell_problems
from mainspring.definitions.reader import read_text
from mainspring.definitions.toml import parse_toml
from mainspring.engine.temporal.settings import TemporalSettings
from mainspring.features.budgets.limits import LimitSettings
from mainspring.features.budgets.settings import BudgetSettings
from mainspring.features.files.settings import UploadSettings
from mainspring.features.governance.settings import GovernanceSettings
from mainspring.features.mcp.settings import McpServerSettings
from mainspring.features.mcp_server.settings import OfferSettings
from mainspring.features.memory.settings import MemorySettings
from mainspring.features.models.settings import ModelSettings
from mainspring.features.traces.settings import OtelSettings
from mainspring.features.vector_stores.settings import VectorStoreSettings
from mainspring.features.web_search.settings import WebSearchSettings
from mainspring.http.ignored import find_meant
from mainspring.http.settings import HttpSettings
from mainspring.late_module import LateModule
from mainspring.parts import Part, PartContents, blame_part
from mainspring.tools.sandbox.kubernetes.settings import KubernetesSettings

# Needs all that an engine is made of.
if TYPE_CHECKING:
    from mainspring.app import mistakes as app_mistakes
else:
    app_mistakes = LateModule("mainspring.app.mistakes")

FILE = "mainspring.toml"
PREFIX: Final = "MAINSPRING_"
_SERVICE_LINK: Final = "; Kubernetes sets it for a service called `mainspring`, so give the pod `enableServiceLinks: false`"


class Settings(ModelSettings, frozen=True, kw_only=True):
    """What a server needs to know. In the environment a field is `MAINSPRING_` and its name in capitals."""

    host: str = "127.0.0.1"
    """The address to listen at. Anything but loopback needs an API key."""
    port: Annotated[int, Meta(ge=0, le=65_535)] = 8080
    """The port to listen at; 0 picks a free one."""
    workers: Annotated[int, Meta(ge=1, le=512)] | Literal["auto"] = 1
    """How many processes serve this address; `auto` is one for each core. See docs/scale-out.md."""
    role: Literal["all", "gateway", "worker"] = "all"
    """`all` serves and drives runs; `gateway` serves, and leaves runs to others on its database; `worker` drives runs and serves
    nothing, as `mainspring worker` does. See docs/scale-out.md."""
    dispatcher: Literal["lease", "temporal"] = "lease"
    """What brings runs to workers: `lease` is the database alone, `temporal` a Temporal cluster; see docs/scale-out.md. The same
    for all processes of a deployment."""
    temporal: TemporalSettings = TemporalSettings()
    """Where the cluster of `dispatcher = "temporal"` is: a table `[temporal]`."""
    health_port: Annotated[int, Meta(ge=0, le=65_535)] | None = None
    """Where a worker listens for `/healthz`, `/readyz` and `/metrics`; nowhere if not given."""
    runs_at_once: Annotated[int, Meta(ge=1)] | None = None
    """The most runs that a process takes up at a time; no limit if not given. Those that it is asked for itself come on top."""
    database: str = "mainspring.db"
    """The file that keeps everything, or the `postgresql://` URL of a database that does; see docs/storage.md."""
    keep_days: Days | KeepDays | None = None
    """How many days a run is kept after its end, with its log and its answer; for ever if not given. A table `[keep_days]` says
    so for runs of workflows, conversations and files, too. `[memory]` and `[decisions]` have a `keep_days` of their own; the
    audit stays."""
    files: str | None = None
    """Where uploaded files and those of containers are kept, so that they outlive a process and are found by all: a folder that
    the processes share, or `s3://BUCKET/PREFIX`, `gs://` or `az://`; see docs/storage.md. Without it, uploaded files are in a
    folder beside a database that is a file, and a container lives and ends with the process that made it; but several `workers`,
    and a gateway with its workers, have containers in that folder, too."""
    uploads: UploadSettings = UploadSettings()
    """How much clients may upload: a table `[uploads]`."""
    vector_stores: VectorStoreSettings = VectorStoreSettings()
    """How passages of files are found by meaning: a table `[vector_stores]`."""
    web_search: WebSearchSettings = WebSearchSettings()
    """The service that searches the web for the hosted tool `web_search`: a table `[web_search]`."""
    api_key: str | None = None
    """A key that every client must send. `mainspring keys` makes more, with tenants and scopes."""
    http: HttpSettings = HttpSettings()
    """Limits on connections and on the heads of requests: a table `[http]`."""
    mcp: dict[str, McpServerSettings] = field(default_factory=dict)
    """MCP servers whose tools every request may use, each a table `[mcp.LABEL]` with `command` and `args`, or `url`."""
    public_url: str = ""
    """Where browsers reach this server, such as https://agents.example.com: people come back there after signing in to an MCP
    server. Default: the address that a browser on this machine uses."""
    secret_key: str = ""
    """Encrypts what is kept of sign-ins to MCP servers: at least 16 characters, the same for all processes on a database.
    `key:` and the hexadecimal digits of a key file stand for that file. Default: a key file beside a database that is a file."""
    mcp_lock: str = "mainspring.mcp.lock"
    """The file in which `mainspring mcp lock` pins the MCP servers. If it is there, what it does not approve is refused; see
    docs/mcp.md."""
    mcp_start_seconds: Annotated[float, Meta(gt=0)] = 5.0
    """How long a request waits for a configured MCP server that is starting; later ones have its tools when it is ready."""
    mcp_server: OfferSettings = OfferSettings()
    """What this server offers to MCP clients itself, at `/mcp`: a table `[mcp_server]`."""
    allow_hosts: tuple[str, ...] = ()
    """Hosts that MCP servers and web pages named by a request may have although they are private, such as 127.0.0.1."""
    context_tokens: int | None = None
    """How many tokens the model takes; what does not fit is cut off or refused, as a request's `truncation` says."""
    tools: tuple[str, ...] = ()
    """Python functions to offer to every request: `module:function`, or `module` for all `@tool` in it."""
    discover: bool = False
    """Offer the tools of installed packages, too: those under the entry point group `mainspring.tools`."""
    approval_seconds: Annotated[float, Meta(gt=0)] = 86_400.0
    """How long a call waits for a person to approve it; after that it can only be refused."""
    audit: bool = True
    """Keep a record of every verdict and every call in the database, hash-chained; see `mainspring audit`."""
    builtins: tuple[str, ...] = ()
    """Built-in tools to offer to all requests: `shell`, `code_interpreter`, `browser`, in a sandbox, `file_ops`, `web_fetch`."""
    sandbox_packages: bool | str = False
    """Python packages for `code_interpreter` and `shell`: `true` is numpy, pandas, matplotlib and openpyxl, a path is that of a
    file of requirements. They are installed once, for the sandbox alone, which cannot change them."""
    sandbox: Literal["auto", "bwrap", "landlock", "unsafe", "kubernetes"] = "auto"
    """`auto` takes the strongest that holds; `bwrap` or `landlock` insist on one; `unsafe` isolates nothing; `kubernetes` runs
    code in pods."""
    kubernetes: KubernetesSettings = KubernetesSettings()
    """Where the pods of `sandbox = "kubernetes"` run, and what they are: a table `[kubernetes]`."""
    working_dir: str | None = None
    """The folder that `file_ops` works in, for all tenants the same one."""
    skills: tuple[str, ...] = ()
    """Folders of skills, each a folder with a SKILL.md, that every request may load."""
    agents: tuple[str, ...] = ()
    """Folders of agents, each a file of YAML or JSON; see docs/agents.md."""
    governance: GovernanceSettings = GovernanceSettings()
    """What calls may do: a table `[governance]`."""
    workflows: tuple[str, ...] = ()
    """Folders of workflows, each a file of YAML or JSON; see docs/workflows.md."""
    schedules: tuple[str, ...] = ()
    """Folders of schedules, each a file of YAML or JSON; see docs/triggers.md. The same for all processes of a deployment."""
    budget: BudgetSettings = BudgetSettings()
    """How far runs may go on their own, and how much they may use: a table `[budget]`."""
    limits: LimitSettings = LimitSettings()
    """How far every run may go, and how far requests and agents may move that: a table `[limits]`."""
    tool_definitions: str | None = None
    """A folder of YAML files that say more about tools: their status (active, deprecated, blocked), effects, timeout."""
    otel: OtelSettings = OtelSettings()
    """Where to send spans and metrics: a table `[otel]`."""
    metrics_by_tenant: bool = False
    """Label runs and tokens of `/metrics` with their tenant: the first hundred by name, the rest as `_other`."""
    log_level: Literal["debug", "info", "warning", "error"] | None = None
    """From which level on the server logs to standard error, with times and the names of modules. Default: warnings alone."""
    memory: MemorySettings = MemorySettings()
    """Whether and how runs are remembered: a table `[memory]`."""
    drain_seconds: Annotated[float, Meta(ge=0, le=86_400)] = 10.0
    """How long a stopping server lets runs finish before it leaves them to be resumed."""
    requires_action: bool = False
    """Show the status `requires_action` instead of `completed` when a run waits for its client."""
    server_calls: Literal["mcp_call", "function_call"] = "mcp_call"
    """What calls look like that the server performs: `mcp_call` items, which no SDK takes for its own, or `function_call` and
    `function_call_output`, as Open Responses has them. The header `OpenResponses-Version` asks for the latter."""
    reasoning_events: Literal["reasoning_text", "reasoning"] = "reasoning_text"
    """`reasoning_text` as OpenAI names the events of raw reasoning, or `reasoning` as Open Responses does."""
    extension_events: bool = False
    """Send events of our own, such as tool progress, to every client; some refuse unknown events."""
    error_event: bool = True
    """Announce a failure by an `error` event before `response.failed`."""


@cache
def find_settings_type() -> type[Settings]:
    """All settings: our own, and the tables of the parts that have one."""
    parts = [(part.table_name, part.settings) for part in find_parts() if part.settings is not None]
    tables = [(name, kind, field(default_factory=kind)) for name, kind in parts]
    if taken := [name for name, *_ in tables if name in Settings.__struct_fields__]:
        raise InvalidRequest(f"a part has the table `[{taken[0]}]`, which is a setting of Mainspring; name it otherwise")
    kind = defstruct("AllSettings", tables, bases=(Settings,), frozen=True, kw_only=True, module=__name__)
    return cast(type[Settings], kind)


def build_parts(settings: Settings) -> tuple[PartContents, ...]:
    """What the parts bring under these settings."""
    return tuple([build_part(part, table) for part, table in list_part_tables(settings)])


def list_part_tables(settings: Settings) -> list[tuple[Part, object]]:
    """The parts, each with its table of these settings."""
    tables = asdict(settings)
    defaults = {part.table_name: part.settings() for part in find_parts() if part.settings is not None}
    return [(part, (defaults | tables).get(part.table_name)) for part in find_parts()]


def build_part(part: Part, table: object) -> PartContents:
    """What a part brings. Raises `InvalidRequest` that names the part, whatever its code does."""
    if part.build is None:
        return PartContents()
    with blame_part(part.name, "be built"):
        contents: object = part.build(table)
    if not isinstance(contents, PartContents):
        raise InvalidRequest(f"the part `{part.name}` built {contents!r:.80}, not a `PartContents`")
    return replace(contents, name=part.name)


def load(given: Mapping[str, object], *, file: Path | None = None, environment: Mapping[str, str] = os.environ) -> Settings:
    """The settings in force; `given` are those of the command line, None meaning not given. Raises `InvalidRequest` with
    everything that is wrong."""
    problems: list[str] = []
    overrides = _from_environment(environment, problems) | _from_command_line(given, problems)
    path = file or Path(FILE)
    settings = _from_file(path, overrides, problems) if file is not None or path.exists() else find_settings_type()()
    if problems:
        raise InvalidRequest(_tell(problems))
    return replace(settings, **overrides)


def tell_mistakes(mistakes: Iterable[tuple[str, Place]], settings: Settings, file: Path | None) -> str:
    """The mistakes in one text, each with its line if the value is the one of the file."""
    path = file or Path(FILE)
    try:
        parsed = parse_toml(path, read_text(path))
    except InvalidRequest:
        return _tell([message for message, _ in mistakes])
    written, in_force = asdict(_convert(parsed, [])), asdict(settings)
    tables = cast(dict[str, Node], parsed.root.value)
    from_file = {name for name in tables if written.get(name) == in_force.get(name)}
    found = sorted([Problem(parsed.find_line(at) if at[0] in from_file else 0, told) for told, at in mistakes])
    placed, others = [problem for problem in found if problem.line], [problem.message for problem in found if not problem.line]
    return _tell([*others, *([tell_problems(path, placed)] if placed else [])])


def _tell(problems: Sequence[str]) -> str:
    if len(problems) == 1:
        return f"the settings are not right: {problems[0]}"
    return "\n  ".join(["the settings are not right:", *[problem.replace("\n", "\n  ") for problem in problems]])


def _from_file(path: Path, overrides: Mapping[str, object], problems: list[str]) -> Settings:
    """The settings of a file, but for those that are overridden."""
    try:
        parsed = parse_toml(path, read_text(path))
    except InvalidRequest as error:
        problems.append(error.message)
        return find_settings_type()()
    tables = {name: node for name, node in cast(dict[str, Node], parsed.root.value).items() if name not in overrides}
    for part in find_parts():
        _rename(tables.get(part.table_name), part.former_names)
    found: list[Problem] = []
    settings = _convert(ParsedFile(path, Node(tables), parsed.problems), found)
    if found:
        whole = replace(settings, **overrides)
        found += [
            Problem(parsed.find_line(place), told)
            for told, place in app_mistakes.find_mistakes(whole)
            if place[0] not in overrides
        ]
    problems += [tell_problems(path, sorted(set(found)))] if found else []
    return settings


def _rename(table: Node | None, names: Mapping[str, str]) -> None:
    """Gives settings of a table the names of today."""
    if table is not None and isinstance(written := table.value, dict):
        for former, name in names.items():
            if former in written and name not in written:
                written[name] = written.pop(former)


def _convert(parsed: ParsedFile, problems: list[Problem]) -> Settings:
    """The settings of a file, as far as they are right in form."""
    settings = parsed.convert(find_settings_type())
    if settings is None:
        types = {setting.name: setting.type for setting in fields(find_settings_type())}
        tables = cast(dict[str, Node], parsed.root.value)
        values = {name: ParsedFile(parsed.file, tables[name]).convert(types[name]) for name in tables if name in types}
        settings = find_settings_type()(**{name: value for name, value in values.items() if value is not None})
    for label, server in settings.mcp.items():
        try:
            server.make_spec(label)
        except ValueError as error:
            parsed.add_problem(("mcp", label), str(error))
    problems += parsed.problems
    return settings


def _from_environment(environment: Mapping[str, str], problems: list[str]) -> dict[str, object]:
    values: dict[str, object] = {}
    for setting in fields(find_settings_type()):
        variable = PREFIX + setting.name.upper()
        if (text := environment.get(variable)) is not None:
            value = text.split() if setting.type == tuple[str, ...] else text
            try:
                values[setting.name] = msgspec.convert(value, setting.type, strict=False)
            except msgspec.ValidationError as error:
                advice = _SERVICE_LINK if text.startswith("tcp://") else ""
                problems.append(f"{variable}: {tell_misfit(error, setting.type, text, quotes=True)}{advice}")
    return values


def list_misspelt(environment: Mapping[str, str] = os.environ) -> list[str]:
    """The variables that are no setting and look like a slip for one. Others that begin as ours do may be somebody else's."""
    known = {setting.name.upper() for setting in fields(find_settings_type())}
    unread = [name for name in environment if name.startswith(PREFIX) and name.removeprefix(PREFIX) not in known]
    slips = [(name, find_meant(name.removeprefix(PREFIX), known)) for name in unread]
    return [f"{name}, which is no setting; did you mean {PREFIX}{meant}?" for name, meant in slips if meant]


def _from_command_line(given: Mapping[str, object], problems: list[str]) -> dict[str, object]:
    types = {setting.name: setting.type for setting in fields(find_settings_type())}
    values: dict[str, object] = {}
    for name, value in given.items():
        try:
            values |= {} if value is None else {name: msgspec.convert(value, types[name])}
        except msgspec.ValidationError as error:
            problems.append(f"`{name}`: {tell_misfit(error, types[name], value, quotes=True)}")
    return values
