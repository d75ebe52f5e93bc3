"""Calls judged by the policies of the settings, without being performed: `mainspring policy test`."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct
from msgspec.structs import replace

from mainspring.core.errors import InvalidRequest
from mainspring.core.events import CallJudged, Recorded, RunStarted
from mainspring.core.history import History
from mainspring.core.items import Effect, FunctionCall, Json, Purpose, ToolDefinition, ToolKind, encode, user
from mainspring.core.run import Call, open_run
from mainspring.core.spec import Caller, RunSpec, spec_for
from mainspring.engine.gate import Gate
from mainspring.engine.guard import Guard
from mainspring.engine.policy_order import order_policies
from mainspring.features.agents.charter import CharterPolicy
from mainspring.features.budgets.plan import Admission, build_plan
from mainspring.features.budgets.settings import BudgetSettings
from mainspring.features.governance.governance_settings import build_policies, find_doubts
from mainspring.features.governance.settings import GovernanceSettings
from mainspring.features.governance.tool_policies import ToolStatus, fill_standard_slots
from mainspring.features.mcp.settings import McpServerSettings
from mainspring.ports import CallContext, CallPolicy, ToolCall, ToolResult
from mainspring.storage.memory_runs import MemoryStore
from mainspring.tools.addresses import AddressGuard
from mainspring.tools.builtin.builtins import NAMES, BuiltinTools
from mainspring.tools.functions import load
from mainspring.tools.registry import Registry

Expected = Literal["allow", "ask", "deny", "client"]


class Case(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A call and what should become of it.

    `tool` is a built-in one, one of the settings, or any other that says what it does: `effects`, `operations`, `purposes`.
    `operation` is short for that argument. `rule` is the policy that should decide; left out, any may.
    """

    tool: str
    expect: Expected
    arguments: dict[str, Any] = {}
    operation: str | None = None
    rule: str | None = None
    effects: tuple[Effect, ...] | None = None
    operations: dict[str, tuple[Effect, ...]] = {}
    purposes: dict[str, Purpose] = {}
    caller: Caller = Caller()
    tenant: str = ""
    metadata: dict[str, str] = {}

    def __post_init__(self) -> None:
        if self.operation is not None and self.arguments.get("operation", self.operation) != self.operation:
            raise ValueError(
                f"`operation` is `{self.operation}`, and `arguments` say `{self.arguments['operation']}`; say it once"
            )

    @property
    def given(self) -> Json:
        return self.arguments if self.operation is None else {"operation": self.operation, **self.arguments}


class Table(Struct, frozen=True, forbid_unknown_fields=True):
    """What a file holds."""

    calls: Annotated[tuple[Case, ...], Meta(min_length=1)]


class CaseResult(Struct, frozen=True):
    """A case and what the gate says to it. A slip in the arguments is no denial, unless `rule` asks for it: it proves nothing of
    the settings."""

    case: Case
    judged: CallJudged

    @property
    def fits(self) -> bool:
        is_slip = self.case.rule is None and self.judged.policy in ("valid_arguments", "known_tool")
        return self.judged.verdict == self.case.expect and self.case.rule in (None, self.judged.policy) and not is_slip


class TrialSettings(Struct, frozen=True):
    """The settings that decide about calls."""

    model: str | None
    tools: tuple[str, ...]
    tool_definitions: str | None
    working_dir: str | None
    allow_hosts: tuple[str, ...]
    mcp: dict[str, McpServerSettings]
    agents: tuple[str, ...]
    governance: GovernanceSettings
    budget: BudgetSettings


class Trial:
    """The policies of the settings as a server asks them. Each call is judged as the first one of its caller."""

    def __init__(self, settings: TrialSettings) -> None:
        self._settings = settings
        root = settings.working_dir
        builtins = BuiltinTools(NAMES, working_dir=None if root is None else Path(root))
        self._registry = Registry([function for reference in settings.tools for function in load(reference)])
        for tool in builtins.tools:
            self._registry.register(tool)
        if settings.tool_definitions is not None:
            self._registry.load_definitions(Path(settings.tool_definitions))
        self._known = {tool.name: tool for tool in self._registry.definitions}
        self._root = "" if root is None else str(Path(root).resolve())

    def doubts(self) -> list[str]:
        """What in the settings may be a slip."""
        settings = self._settings
        tools = () if settings.mcp or settings.agents else self._registry.definitions
        return find_doubts(settings.governance, build_plan(settings.budget), tools, settings.model or "")

    def policies(self) -> tuple[CallPolicy, ...]:
        """All that are in force, in their order."""
        return self._policies(self._admission())

    async def judge(self, case: Case) -> CaseResult:
        admission = self._admission()
        spec = await admission.admit(self._order(case))
        run = open_run(Recorded(0, 0.0, RunStarted(spec)), History())
        gate = Gate(self._policies(admission), Guard())
        call = Call(FunctionCall("call_1", case.tool, encode(case.given).decode()), 0)
        return CaseResult(case, await gate.judge(call, run))

    def _admission(self) -> Admission:
        return Admission(MemoryStore(), build_plan(self._settings.budget), root=self._root)

    def _policies(self, admission: Admission) -> tuple[CallPolicy, ...]:
        guard = AddressGuard(self._settings.allow_hosts)
        return order_policies(
            fill_standard_slots([_Nobody()]),
            {"status": (ToolStatus(self._registry.status, self._registry.reason),), "charter": (CharterPolicy(),)},
            build_policies(self._settings.governance, guard),
            {"budget": (admission.policy,)},
        )

    def _order(self, case: Case) -> RunSpec:
        options: Json = {"tools": (self._tool(case),), "caller": case.caller, "tenant": case.tenant, "metadata": case.metadata}
        model = self._settings.model or "model"
        return spec_for("responses", id="resp_trial", model=model, input=(user("A trial."),), **options)

    def _tool(self, case: Case) -> ToolDefinition:
        if case.effects is not None or case.operations or case.purposes:
            made = ToolDefinition(case.tool, kind="builtin", operations=case.operations, purposes=case.purposes)
            return replace(made, effects=case.effects or ())
        if case.tool in self._known:
            return self._known[case.tool]
        if case.tool in [entry.name for entry in self._registry.entries]:
            return ToolDefinition(case.tool, kind="builtin")  # it is blocked, and no model is told of it
        known = ", ".join([f"`{name}`" for name in self._known])
        raise InvalidRequest(f"nobody knows what the tool `{case.tool}` does; say its `effects`, or name one of {known}")


class _Nobody:
    """Would perform every tool, and is never asked to."""

    kind: ToolKind = "builtin"

    def can_execute(self, tool: ToolDefinition) -> bool:
        return True

    async def execute(self, call: ToolCall, context: CallContext) -> ToolResult:
        raise AssertionError("a trial performs nothing")


def list_rows(findings: Sequence[CaseResult]) -> list[tuple[str, ...]]:
    """The findings as lines of a table."""
    told: list[tuple[str, ...]] = []
    for number, finding in enumerate(findings, 1):
        case, judged = finding.case, finding.judged
        wanted = case.expect if case.rule is None else f"{case.expect} by {case.rule}"
        said = f"{judged.verdict} by {judged.policy}"
        call = f"{case.tool} {encode(case.given).decode()}"
        told.append((str(number), "ok" if finding.fits else "WRONG", call[:60], wanted, said, judged.reason[:200]))
    return told
