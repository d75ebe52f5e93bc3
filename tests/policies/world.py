"""A place with every policy on: tools of all kinds, a folder with traps, names with scripted addresses, hands that remember."""

import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.kit.engine import RecordingExecutor, make_engine, make_order

from mainspring.core.autonomy import Level
from mainspring.core.events import CallJudged
from mainspring.core.items import Json, ToolDefinition
from mainspring.core.run import Run
from mainspring.core.spec import Caller, RunSpec
from mainspring.engine.policy_order import PolicySlots, order_policies
from mainspring.features.governance.limit_policies import LevelPolicy, RatePolicy
from mainspring.features.governance.rule_policy import RulePolicy, Rules
from mainspring.features.governance.scope_policies import CommandPolicy, DomainPolicy, PathPolicy
from mainspring.features.governance.settings import AccessList
from mainspring.features.governance.tool_policies import ToolStatus
from mainspring.features.skills.skill_definition import Skill
from mainspring.features.skills.skill_scope import SkillScopePolicy
from mainspring.ports import CallPolicy
from mainspring.providers.script import Call
from mainspring.providers.scripted import Scripted, say, turn
from mainspring.tools.addresses import AddressGuard

TEXT: Json = {"type": "string"}
HOSTS = {
    "docs.example": ["93.184.216.34"],
    "twice.example": ["93.184.216.34", "2606:4700::1111"],
    "notevil.example": ["93.184.216.35"],
    "evil.example": ["93.184.216.36"],
    "localhost": ["127.0.0.1", "::1"],
    "inward.example": ["10.1.2.3"],
    "mixed.example": ["93.184.216.34", "10.1.2.3"],
    "mapped.example": ["::ffff:127.0.0.1"],
}


def schema(**properties: Json) -> Json:
    return {"type": "object", "properties": properties}


def reading(name: str) -> ToolDefinition:
    return ToolDefinition(name, kind="builtin", effects=("read",))


SHELL = ToolDefinition(
    "shell", parameters=schema(command=TEXT), kind="builtin", effects=("execute",), purposes={"command": "command"}
)
LOOSE = ToolDefinition("loose_shell", kind="builtin", effects=("execute",), purposes={"command": "command"})
SPAWN = ToolDefinition(
    "spawn",
    parameters=schema(argv={"type": "array", "items": TEXT}),
    kind="builtin",
    effects=("execute",),
    purposes={"argv": "command"},
)
FILES = ToolDefinition(
    "file_ops",
    parameters=schema(operation=TEXT, path={"anyOf": [TEXT, {"type": "array", "items": TEXT}]}),
    kind="builtin",
    effects=("read", "write", "destructive"),
    operations={"read": ("read",), "list": ("read",), "write": ("write",), "delete": ("destructive",)},
    purposes={"path": "path"},
)
FETCH = ToolDefinition(
    "web_fetch",
    parameters=schema(url=TEXT, proxy=TEXT),
    kind="builtin",
    effects=("read", "network"),
    purposes={"url": "url", "proxy": "url"},
)
POST = ToolDefinition("post", kind="builtin", effects=("network",), purposes={"url": "url"})
TOOLS = (
    SHELL, LOOSE, SPAWN, FILES, FETCH, POST,
    *[reading(name) for name in ("notes", "secret_keys", "secretary", "blocked", "deprecated", "unskilled", "unscoped")],
    ToolDefinition("get_status", kind="builtin", effects=("destructive",)),
    reading("delete_nothing"),
    ToolDefinition("silent", kind="builtin"),
)  # fmt: skip
SCOPES = tuple([f"tools:execute:{tool.name}" for tool in TOOLS if tool.name != "unscoped"])
PROGRAMS = AccessList(
    allowed=(
        *("ls", "cat", "grep", "wc", "sort", "head", "find", "sed", "awk", "tar", "git", "python3"),
        "python3 -m pytest",
    ),
    denied=("rm", "curl", "git push"),
)


async def lookup(host: str, port: int) -> Sequence[str]:
    """What a system's resolver would find: odd spellings of addresses are addresses to it."""
    try:
        return [socket.inet_ntoa(socket.inet_aton(host))]
    except OSError:
        found = HOSTS.get(host.rstrip("."), HOSTS["docs.example"] if host.rstrip(".").endswith(".docs.example") else None)
    if found is None:
        raise OSError(f"no address for {host}")
    return found


def folder(place: Path) -> Path:
    """A working directory with links that lead out of it, and one beside it whose name begins alike."""
    root, beside = place / "root", place / "root-evil"
    for made in (root / "src", root / "secrets", beside):
        made.mkdir(parents=True)
    for file in (root / "notes.txt", root / "src/main.py", root / ".env", root / "secrets/key", beside / "x"):
        file.write_text("text")
    links = {"inner": "src", "etc": "/etc", "beside": str(beside), "dangling": "/nowhere/yet", "harmless": ".env"}
    for name, target in links.items():
        (root / name).symlink_to(target)
    return root


SHY = Skill("shy", "Leaves one tool alone.", "", Path("shy"), disallowed_tools=("unskilled",))


def every_slot(root: Path, level: Level = "supervised") -> PolicySlots:
    return {
        "domains": (DomainPolicy(AddressGuard(lookup=lookup).check, denied=["evil.example"]),),
        "rules": (RulePolicy(Rules.of({"*": "allow", "file_ops:delete": "deny", "secret_*": "deny"})),),
        "status": (ToolStatus(lambda name: name if name in ("blocked", "deprecated") else "active"),),
        "skill scope": (SkillScopePolicy(lambda: {"shy": SHY}, lambda run: ("shy",)),),
        "rate": (RatePolicy(),),
        "level": (LevelPolicy(level, commands_judged=True),),
        "commands": (CommandPolicy(PROGRAMS.allowed, PROGRAMS.denied),),
        "paths": (PathPolicy([root], denied=[".env", "**/*.pem", "secrets/**"]),),
    }


def every_policy(root: Path, level: Level = "supervised") -> tuple[CallPolicy, ...]:
    return order_policies(every_slot(root, level))


class Outcome:
    """What became of a run: how each call was judged, and which were performed."""

    def __init__(self, run: Run, judged: list[CallJudged], done: list[tuple[str, Json]]) -> None:
        self.run, self.judged, self.done = run, judged, done

    @property
    def only(self) -> CallJudged:
        [judged] = self.judged
        return judged


def order(calls: int, **options: Any) -> RunSpec:
    options.setdefault("caller", Caller("ada", SCOPES if "tools" not in options else None))
    options.setdefault("tools", TOOLS)
    options.setdefault("max_turns", calls + 1)
    return make_order(**options)


async def tried(policies: Sequence[CallPolicy], *made: tuple[str, str], **options: object) -> Outcome:
    """One run of the real engine in which the model makes these calls, one after the other, and then says something."""
    hands = RecordingExecutor()
    script = Scripted(*[turn(calls=[Call(name, arguments)]) for name, arguments in made], say("Well."), chunk=0)
    async with make_engine(script, executor=hands, policies=policies) as engine:
        handle = await engine.start(order(len(made), **options))
        judged = [record.event async for record in handle.events() if isinstance(record.event, CallJudged)]
        return Outcome(handle.run, judged, hands.done)
