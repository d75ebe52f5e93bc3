"""Settings of the server: defaults, then `mainspring.toml`, then the environment, then the command line.

Every option is a field below; its comment is its documentation. Unknown keys are errors, and all errors are told at once.
"""

import os
import tomllib
from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path

import msgspec
from msgspec import field
from msgspec.structs import FieldInfo, fields

from mainspring.core.errors import InvalidRequest
from mainspring.features.budgets.settings import BudgetSettings
from mainspring.features.governance.settings import GovernanceSettings
from mainspring.features.mcp.settings import McpServerSettings
from mainspring.features.memory.settings import MemorySettings
from mainspring.features.models.settings import ModelSettings
from mainspring.features.traces.settings import OtelSettings
from mainspring_tasks.decision_settings import DecisionSettings

FILE = "mainspring.toml"


class Settings(ModelSettings, frozen=True, kw_only=True):
    """What a server needs to know. In the environment a field is `MAINSPRING_` and its name in capitals."""

    host: str = "127.0.0.1"
    """The address to listen at. Anything but loopback needs an API key."""
    port: int = 8080
    """The port to listen at; 0 picks a free one."""
    database: str = "mainspring.db"
    """The file that keeps everything."""
    api_key: str | None = None
    """A key that every client must send. `mainspring keys` makes more, with tenants and scopes."""
    mcp: dict[str, McpServerSettings] = field(default_factory=dict)
    """MCP servers whose tools every request may use, each a table `[mcp.LABEL]` with `command` and `args`, or `url`."""
    allow_hosts: tuple[str, ...] = ()
    """Hosts that MCP servers and web pages named by a request may have although they are private, such as 127.0.0.1."""
    context_tokens: int | None = None
    """How many tokens the model takes; what does not fit is cut off or refused, as a request's `truncation` says."""
    tools: tuple[str, ...] = ()
    """Python functions to offer to every request: `module:function`, or `module` for all `@tool` in it."""
    discover: bool = False
    """Offer the tools of installed packages, too: those under the entry point group `mainspring.tools`."""
    approval_seconds: float = 86_400.0
    """How long a call waits for a person to approve it; after that it can only be refused."""
    audit: bool = True
    """Keep a record of every verdict and every call in the database, hash-chained; see `mainspring audit`."""
    builtins: tuple[str, ...] = ()
    """Built-in tools to offer to all requests: `shell`, `code_interpreter`, `browser`, in a sandbox, `file_ops`, `web_fetch`."""
    sandbox: str = "auto"
    """`auto` takes the strongest that holds; `bwrap` or `landlock` insist on one; `unsafe` isolates nothing."""
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
    budget: BudgetSettings = BudgetSettings()
    """How far runs may go on their own, and how much they may use: a table `[budget]`."""
    tool_definitions: str | None = None
    """A folder of YAML files that say more about tools: their status (active, deprecated, blocked), effects, timeout."""
    otel: OtelSettings = OtelSettings()
    """Where to send spans and metrics: a table `[otel]`."""
    memory: MemorySettings = MemorySettings()
    """Whether and how runs are remembered: a table `[memory]`."""
    decisions: DecisionSettings = DecisionSettings()
    """The task agent behind /v1/chat: a table `[decisions]`."""
    drain_seconds: float = 10.0
    """How long a stopping server lets runs finish before it leaves them to be resumed."""
    requires_action: bool = False
    """Show the status `requires_action` instead of `completed` when a run waits for its client."""
    reasoning_events: str = "reasoning_text"
    """`reasoning_text` as OpenAI names the events of raw reasoning, or `reasoning` as Open Responses does."""
    extension_events: bool = False
    """Send events of our own, such as tool progress, to every client; some refuse unknown events."""
    error_event: bool = True
    """Announce a failure by an `error` event before `response.failed`."""


def load(given: Mapping[str, object], *, file: Path | None = None, environment: Mapping[str, str] = os.environ) -> Settings:
    """The settings in force; `given` are those of the command line, None meaning not given. Raises `InvalidRequest`."""
    values: dict[str, object] = {}
    problems: list[str] = []
    path = file or Path(FILE)
    if file is not None or path.exists():
        values |= _from_file(path, problems)
    values |= _from_environment(environment, problems)
    values |= {name: value for name, value in given.items() if value is not None}
    settings = Settings()
    try:
        settings = msgspec.convert(values, Settings)
    except msgspec.ValidationError as error:
        problems.append(str(error).replace("`$.", "`"))
    if not 0 <= settings.port <= 65535:
        problems.append(f"port must be between 0 and 65535, not {settings.port}")
    if not 0 <= settings.drain_seconds <= 86_400:
        problems.append(f"drain_seconds must be between 0 and 86400, not {settings.drain_seconds:g}")
    if not settings.approval_seconds > 0:
        problems.append(f"approval_seconds must be above 0, not {settings.approval_seconds:g}")
    if settings.reasoning_events not in ("reasoning_text", "reasoning"):
        problems.append(f"reasoning_events must be `reasoning_text` or `reasoning`, not `{settings.reasoning_events}`")
    if settings.sandbox not in ("auto", "bwrap", "landlock", "unsafe"):
        problems.append(f"sandbox must be `auto`, `bwrap`, `landlock` or `unsafe`, not `{settings.sandbox}`")
    if problems:
        raise InvalidRequest("the settings are not right: " + "; ".join(problems))
    return settings


def _from_file(path: Path, problems: list[str]) -> dict[str, object]:
    try:
        table = tomllib.loads(path.read_text())
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        problems.append(f"{path} cannot be read: {error}")
        return {}
    return {name: value for name, value in table.items() if _is_known(name, str(path), problems)}


def _from_environment(environment: Mapping[str, str], problems: list[str]) -> dict[str, object]:
    values: dict[str, object] = {}
    for each in fields(Settings):
        text = environment.get(f"MAINSPRING_{each.name.upper()}")
        if text is not None:
            values[each.name] = _parsed(each, text, problems)
    return values


def _parsed(setting: FieldInfo, text: str, problems: list[str]) -> object:
    if setting.type == tuple[str, ...]:
        return tuple(text.split())
    try:
        return msgspec.convert(text, setting.type, strict=False)
    except msgspec.ValidationError as error:
        problems.append(f"MAINSPRING_{setting.name.upper()}: {error}")
        return setting.default


def _is_known(name: str, where: str, problems: list[str]) -> bool:
    known = [each.name for each in fields(Settings)]
    if name in known:
        return True
    close = get_close_matches(name, known, 1)
    hint = f"did you mean `{close[0]}`?" if close else f"known: {', '.join(known)}"
    problems.append(f"{where} has an unknown key `{name}`; {hint}")
    return False
