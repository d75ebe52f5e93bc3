"""`/v1/policy`: which policies judge calls, in which order, and what they would say to one."""

from collections.abc import Sequence
from inspect import getdoc

from msgspec import Struct
from starlette.requests import Request
from starlette.responses import Response as HttpResponse

from mainspring.core.items import Effect, Json, Purpose
from mainspring.core.spec import Caller
from mainspring.engine.engine import Engine
from mainspring.features.governance.policy_test import Case, judge_case
from mainspring.http.auth import get_caller
from mainspring.http.bodies import Name, parse_body, read_json_body
from mainspring.http.endpoints import Endpoint
from mainspring.http.faults import json_response


class ShownPolicy(Struct, frozen=True):
    name: str
    description: str


class PolicyOrder(Struct, frozen=True):
    """The policies in the order they are asked: the first that does not allow a call decides. `steps` prepare an order before
    its run starts, `observers` are told of its end."""

    policies: Sequence[ShownPolicy]
    steps: Sequence[str]
    observers: Sequence[str]
    is_audited: bool
    object: str = "policy"


class TryCall(Struct, frozen=True, forbid_unknown_fields=True):
    """A call. `tool` is one that this server has, or any other that says what it does by `effects` and `purposes`. `scopes` are
    those of its caller; all if not given."""

    tool: Name
    arguments: Json = {}
    effects: tuple[Effect, ...] | None = None
    purposes: dict[str, Purpose] = {}
    scopes: tuple[Name, ...] | None = None


class TriedCall(Struct, frozen=True):
    """What would become of the call, by which policy, and why."""

    tool: str
    verdict: str
    policy: str
    reason: str
    object: str = "policy.verdict"


class PolicyRoutes:
    """Every endpoint under `/v1/policy`."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def endpoints(self) -> tuple[Endpoint, ...]:
        return (
            Endpoint("GET", "/v1/policy", self.show, "admin", PolicyOrder),
            Endpoint("POST", "/v1/policy/try", self.judge, "admin", TriedCall, TryCall),
        )

    async def show(self, request: Request) -> HttpResponse:
        """Lists the policies in force, in the order they are asked."""
        engine = self._engine
        told = [ShownPolicy(each.name, " ".join((getdoc(type(each)) or "").split("\n\n")[0].split())) for each in engine.policies]
        names = [step.name for step in engine.steps], [observer.name for observer in engine.observers]
        return json_response(PolicyOrder(told, *names, engine.is_audited))

    async def judge(self, request: Request) -> HttpResponse:
        """Judges a call as the policies would now, and performs nothing. Policies that count calls count this one, too."""
        body, caller = parse_body(await read_json_body(request), TryCall), get_caller(request)
        case = Case(
            tool=body.tool,
            expect="allow",
            arguments=body.arguments,
            effects=body.effects,
            purposes=body.purposes,
            caller=Caller(caller.subject, body.scopes),
            tenant=caller.tenant,
        )
        judged = (await judge_case(self._engine, case)).judged
        return json_response(TriedCall(body.tool, judged.verdict, judged.policy, judged.reason))
