"""Calls judged by the policies of the settings, without being performed: `mainspring policy test`."""

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct
from msgspec.structs import replace

from mainspring.core.errors import InvalidRequest
from mainspring.core.events import CallJudged, Recorded, RunStarted
from mainspring.core.history import History
from mainspring.core.items import Effect, FunctionCall, Json, Purpose, ToolDefinition, encode, user
from mainspring.core.run import Call, open_run
from mainspring.core.spec import Caller, spec_for
from mainspring.engine.engine import Engine
from mainspring.engine.gate import Gate
from mainspring.engine.guard import Guard
from mainspring.features.governance.tool_policies import HandOff, ToolStatus
from mainspring.ports import OrderContext

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


class PolicyTests(Struct, frozen=True, forbid_unknown_fields=True):
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


async def judge_case(engine: Engine, case: Case) -> CaseResult:
    """Judges a call as the first one of its caller if the engine is a new one. Raises `InvalidRequest`."""
    options: Json = {
        "tools": (_find_tool(engine, case),),
        "caller": case.caller,
        "tenant": case.tenant,
        "metadata": case.metadata,
    }
    order = spec_for("responses", id=engine.new_id("resp"), model=engine.model, input=(user("A trial."),), **options)
    steps = [step for step in engine.steps if step.name == "budget"]
    for step in steps:
        order = await step.prepare(order, OrderContext(engine.find_run))
    run = open_run(Recorded(0, 0.0, RunStarted(order)), History())
    # Nothing is performed, so it does not matter who would.
    gate = Gate([policy for policy in engine.policies if not isinstance(policy, HandOff)], Guard())
    try:
        judged = await gate.judge(Call(FunctionCall("call_1", case.tool, encode(case.given).decode()), 0), run)
    finally:
        for step in steps:
            await step.withdraw(order)
    return CaseResult(case, judged)


def _find_tool(engine: Engine, case: Case) -> ToolDefinition:
    made = ToolDefinition(case.tool, kind="builtin", operations=case.operations, purposes=case.purposes)
    if case.effects is not None or case.operations or case.purposes:
        return replace(made, effects=case.effects or ())
    known = {tool.name: tool for tool in engine.definitions}
    if case.tool in known:
        return known[case.tool]
    if any(isinstance(policy, ToolStatus) and policy.find_status(case.tool) is not None for policy in engine.policies):
        return made  # it is blocked, and no model is told of it
    names = ", ".join([f"`{name}`" for name in known])
    raise InvalidRequest(f"nobody knows what the tool `{case.tool}` does; say its `effects`, or name one of {names}")


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
