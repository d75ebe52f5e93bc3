"""What a trigger starts: an agent or a workflow, as the key that made the trigger may.

The id of what is started follows from a word that the trigger gives, so that the same word starts one run, however often and in
whichever process it is tried.
"""

from collections.abc import Collection, Mapping
from hashlib import sha256
from typing import Annotated, Final
from weakref import WeakValueDictionary

from anyio import Lock
from msgspec import Meta, Struct

from mainspring.core.errors import InvalidInputs, InvalidRequest, NotFound, Superseded
from mainspring.core.items import Json, encode
from mainspring.definitions import parameters
from mainspring.definitions.parameters import InputParameter
from mainspring.definitions.parsed_file import hint
from mainspring.engine.approvals import continuing_id
from mainspring.features.agents.agent_result import ToolLoopConfig
from mainspring.features.agents.agent_runtime import AgentRuntime
from mainspring.features.workflows.workflow_definition import complete_inputs
from mainspring.features.workflows.workflows import Workflows, derive_id
from mainspring.http.auth import INVOKE, ApiCaller, Keys
from mainspring.http.endpoints import KeyScope
from mainspring.http.faults import Fault
from mainspring.ports import Filter, Store

KEY: Final = "key:"
WORKFLOW_RUN: Final = "wfr_"
MOST_DEFINITION: Final = 65_536

TargetName = Annotated[str, Meta(max_length=128)]


class Target(Struct, frozen=True):
    """Either an agent or a workflow, by name."""

    agent: str = ""
    workflow: str = ""

    @property
    def scope(self) -> KeyScope:
        return INVOKE if self.agent else "workflows:run"


class KeyLost(Exception):
    """The key that made a trigger is good no more."""


class Targets:
    """Starts agents and workflows on behalf of keys."""

    def __init__(self, agents: AgentRuntime, workflows: Workflows, keys: Keys) -> None:
        self._agents, self._workflows, self._keys = agents, workflows, keys
        self._store: Store = agents.engine.store
        self._starting: WeakValueDictionary[str, Lock] = WeakValueDictionary()

    async def check(self, target: Target, inputs: Json | None, caller: ApiCaller) -> None:
        """Raises `InvalidRequest`, `NotFound` and `Fault` 403 for what this caller could not start. Without `inputs`, those come
        later."""
        if bool(target.agent) == bool(target.workflow):
            raise InvalidRequest("a trigger starts either an `agent` or a `workflow`; give one of them", param="agent")
        check_maker(caller)
        self._check_scope(target, caller)
        if target.agent:
            self._agents.registry.get(target.agent)
            if inputs is not None:
                await self._agents.make_order(target.agent, inputs, tenant=caller.tenant, caller=caller.as_run_caller())
        else:
            workflow = self._workflows.folders.closure(target.workflow)[target.workflow]
            if inputs is not None:
                complete_inputs(workflow, inputs)

    def check_inputs(self, target: Target, inputs: Json, later: Collection[str]) -> None:
        """Raises `InvalidInputs` (422) for inputs that it does not take; of those that come `later`, only the names are known."""
        declared: Mapping[str, InputParameter] = (
            self._agents.registry.get(target.agent).inputs
            if target.agent
            else self._workflows.folders.get(target.workflow).inputs
        )
        if target.agent and not declared:
            return
        owner = f"agent `{target.agent}`" if target.agent else f"workflow `{target.workflow}`"
        if unknown := [name for name in later if name not in declared]:
            told = f"{owner} has no input `{unknown[0][:80]}`; {hint(unknown[0][:80], tuple(declared))}"
            raise InvalidInputs(told, param="inputs")
        parameters.complete_inputs({name: each for name, each in declared.items() if name not in later}, inputs, owner)

    async def find_caller(self, subject: str) -> ApiCaller:
        """Who acts with the key of this name. Raises `KeyLost`."""
        try:
            return await self._keys.find_caller(subject)
        except Fault as fault:
            name = subject.removeprefix(KEY)
            why = "has expired" if fault.code == "expired_api_key" else "was revoked"
            raise KeyLost(f"the API key `{name}` that made it {why}; make it again with another key") from None

    async def find_maker(self, subject: str) -> ApiCaller:
        """As `find_caller`, for a request that changes a trigger. Raises `Fault` 409."""
        try:
            return await self.find_caller(subject)
        except KeyLost as lost:
            raise Fault(409, "trigger_stopped", str(lost)) from None

    async def check_use(self, target: Target, subject: str, caller: ApiCaller) -> None:
        """Raises `Fault` 403 unless this caller is the key that made a trigger, or may do all that the trigger does with it."""
        if caller.subject == subject:
            return
        try:
            maker = await self.find_caller(subject)
        except KeyLost:  # then it starts nothing
            return
        self._check_scope(target, caller)
        if caller.tools is None or (maker.tools is not None and {*maker.tools} <= {*caller.tools}):
            return
        raise Fault(403, "insufficient_scope", "the API key that made this may use more tools; ask whoever has that key")

    async def start(self, target: Target, inputs: Json, word: str, caller: ApiCaller, metadata: dict[str, str]) -> str:
        """Starts it, unless that was done with the same word before. Returns the id of the run. Raises `MainspringError`, and
        `Fault` if the key has used up its limits."""
        run_id = self._name_run(target, word, caller.tenant)
        async with self._starting.setdefault(run_id, Lock()):
            if await self.find_started(target, word, caller.tenant) is None:
                self._check_scope(target, caller)
                await self._keys.admit_message(caller)
                await self._start(target, inputs, word, run_id, caller, metadata)
        return run_id

    async def _start(
        self, target: Target, inputs: Json, word: str, run_id: str, caller: ApiCaller, metadata: dict[str, str]
    ) -> None:
        who = caller.as_run_caller()
        if target.workflow:
            await self._workflows.start(target.workflow, inputs, tenant=caller.tenant, caller=who, key=word)
            return
        try:
            await self._agents.start(
                target.agent,
                inputs,
                ToolLoopConfig(),
                id=run_id,
                tenant=caller.tenant,
                caller=who,
                metadata=metadata,
                background=True,
            )
        except Superseded:  # another process was quicker
            if await self.find_started(target, word, caller.tenant) is None:
                raise

    async def find_started(self, target: Target, word: str, tenant: str) -> str | None:
        """The id of the run that was started with this word, None if there is none."""
        run_id = self._name_run(target, word, tenant)
        try:
            if target.workflow:
                await self._workflows.attach(run_id, tenant=tenant)
            else:
                await self._store.load(run_id)
        except NotFound:
            return None
        return run_id

    async def is_running(self, run_id: str, tenant: str, now: float) -> bool:
        """Whether the run has not ended. One that waits for a person goes on, by another run, once they have answered."""
        if run_id.startswith(WORKFLOW_RUN):
            try:
                return not (await self._workflows.attach(run_id, tenant=tenant)).run.has_ended
            except NotFound:
                return False
        while True:
            found = (await self._store.summarize(limit=1, only=Filter(ids=(run_id,)))).runs
            if not found:
                return False
            if found[0].ended_at is None or (found[0].waits_until or 0) > now:
                return True
            run_id = continuing_id(run_id)

    def _check_scope(self, target: Target, caller: ApiCaller) -> None:
        if not caller.may(target.scope):
            what = f"agent `{target.agent}`" if target.agent else f"workflow `{target.workflow}`"
            told = f"to start {what}, the API key needs the scope `{target.scope}`; it is for {', '.join(caller.scopes)}"
            raise Fault(403, "insufficient_scope", told, param="agent" if target.agent else "workflow")

    def _name_run(self, target: Target, word: str, tenant: str) -> str:
        if target.workflow:
            return derive_id(tenant, target.workflow, word)
        return f"resp_{sha256(chr(0).join((tenant, target.agent, word)).encode()).hexdigest()[:24]}"


def check_size(definition: Struct) -> None:
    """Raises `InvalidRequest` for a trigger that is too large to be listed together with others."""
    if (size := len(encode(definition))) > MOST_DEFINITION:
        told = f"a trigger may have {MOST_DEFINITION} bytes, and this one has {size}; keep large inputs in a file, and name that"
        raise InvalidRequest(told, param="inputs", code="invalid_value")


def check_maker(caller: ApiCaller) -> None:
    """Raises `Fault` 403 for whoever cannot be found again when the trigger fires."""
    if caller.subject and not caller.subject.startswith(KEY):
        raise Fault(403, "insufficient_scope", "triggers are bound to the API key that makes them; send an API key")
