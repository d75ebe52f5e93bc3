"""The triggers of an engine: its schedules and webhooks, and the work that keeps them going in this process."""

import time
from collections.abc import Sequence
from logging import getLogger
from typing import Final

from anyio import TASK_STATUS_IGNORED, create_task_group, current_time, sleep
from anyio.abc import TaskGroup, TaskStatus

from mainspring.core.errors import MainspringError, StoreError
from mainspring.core.items import encode
from mainspring.engine.audit import REASON_CHARS, AuditEntry
from mainspring.engine.engine import Engine
from mainspring.features.agents.agent_runtime import AgentRuntime
from mainspring.features.traces.metrics import Metrics
from mainspring.features.triggers.deliveries import Deliverer, FindFlaw
from mainspring.features.triggers.incoming import ReceivedMessage, Webhooks
from mainspring.features.triggers.marks import Heed, Mark, Marks
from mainspring.features.triggers.outbox import Outbox
from mainspring.features.triggers.schedule import Firing, ScheduleDefinition, ScheduleFacts, ScheduleFolders
from mainspring.features.triggers.schedules import Key, ScheduleClock, Schedules, sync_files
from mainspring.features.triggers.signatures import BadSignature, SignedHead
from mainspring.features.triggers.targets import Targets
from mainspring.features.triggers.webhook_endpoints import Endpoints
from mainspring.features.workflows.workflows import Workflows
from mainspring.http.auth import Keys
from mainspring.http.faults import Fault
from mainspring.ports import Note
from mainspring.tools.addresses import AddressGuard

log = getLogger(__name__)

# How soon a process learns what others have changed.
LOOK_SECONDS: Final = 1.0
# How often events are looked for that another process has left.
SWEEP_SECONDS: Final = 10.0


class Triggers:
    """What starts runs without a client. `run` does the work."""

    def __init__(
        self,
        engine: Engine,
        agents: AgentRuntime,
        workflows: Workflows,
        keys: Keys,
        folders: ScheduleFolders,
        metrics: Metrics,
        outbox: Outbox,
        guard: AddressGuard,
        flaw: FindFlaw | None = None,
    ) -> None:
        self._engine, self._folders, self._metrics = engine, folders, metrics
        self.targets = Targets(agents, workflows, keys)
        self.schedules = Schedules(engine.store, engine.presence, engine.new_id, self._heed_change)
        self._clock = ScheduleClock(self.schedules, self.targets, engine.store, self._tell_firing)
        self.webhooks = Webhooks(engine.store, self.targets, engine.new_id)
        self.endpoints = Endpoints(engine.store, outbox, engine.new_id)
        self._outbox = outbox
        self._deliverer = Deliverer(
            engine.store, engine.presence, outbox, self.endpoints, self.targets, guard, flaw=flaw, count=metrics.count_delivery
        )
        self._marks = Marks(engine.store)
        self._files: object = None
        self._tasks: TaskGroup | None = None

    async def run(self, *, task_status: TaskStatus[None] = TASK_STATUS_IGNORED) -> None:
        """Fires schedules and delivers events, until it is cancelled. It has started when it knows of all that there are."""
        async with create_task_group() as tasks:
            self._tasks = tasks
            tasks.start_soon(self._deliverer.run)
            tasks.start_soon(self._clock.run)
            await self._look(self._load)
            task_status.started()
            swept = 0.0
            while True:
                if current_time() > swept + SWEEP_SECONDS:
                    swept = current_time()
                    await self._sweep()
                await sleep(LOOK_SECONDS)
                await self._look(self._heed)

    async def _look(self, heed: Heed) -> None:
        """Learns what others have changed."""
        try:
            await self._marks.heed_new(heed)
            await self._sync_files()
        except StoreError as error:
            log.warning("the store could not be asked for triggers: %s", error)

    async def _load(self, marks: Sequence[Mark]) -> None:
        await self._clock.load({mark.tenant for mark in marks if mark.kind == "schedule"})
        await self._heed([mark for mark in marks if mark.kind == "endpoint"])

    async def _heed(self, marks: Sequence[Mark]) -> None:
        for mark in marks:
            if mark.kind == "schedule":
                self._clock.look_at((mark.tenant, mark.id))
            else:
                await self._outbox.learn((mark.tenant, mark.id))

    def _heed_change(self, key: Key) -> None:
        self._clock.look_at(key)

    async def _sweep(self) -> None:
        """Looks for events that a process has left which is gone, and for endpoints that another one has removed."""
        try:
            for key in self._outbox.keys:
                await self._outbox.learn(key)
                self._outbox.wake(key)
        except StoreError as error:
            log.warning("the store could not be asked for endpoints: %s", error)

    async def receive(self, tenant: str, webhook_id: str, head: SignedHead, body: bytes) -> ReceivedMessage:
        """Takes a message of a webhook; see `Webhooks.receive`."""
        subject, trigger = (await self.webhooks.get(tenant, webhook_id)).by, f"webhook:{webhook_id}"
        try:
            received = await self.webhooks.receive(tenant, webhook_id, head, body)
        except (MainspringError, Fault) as error:
            self._metrics.count_trigger("webhook", "refused")
            if not isinstance(error, BadSignature):  # anybody can send what is not signed
                self.note(trigger, "failed", tenant, subject, reason=error.message[:REASON_CHARS])
            raise
        outcome = "duplicate" if received.duplicate else "started"
        self._metrics.count_trigger("webhook", outcome)
        self.note(trigger, outcome, tenant, subject, received.run_id)
        return received

    async def _sync_files(self) -> None:
        if self._folders.folders and (found := self._folders.definitions) is not self._files:
            is_whole = await sync_files(self.schedules, list(found.values()))
            self._files = found if is_whole else None

    def _tell_firing(self, tenant: str, facts: ScheduleFacts, definition: ScheduleDefinition, firing: Firing) -> None:
        name, outcome = definition.name, firing.outcome
        log.info("schedule %s: %s %s", name, outcome, firing.run_id or firing.reason)
        self._metrics.count_trigger("schedule", outcome)
        self.note(f"schedule:{name}", outcome, tenant, facts.by, firing.run_id, firing.reason)

    def note(self, trigger: str, outcome: str, tenant: str, subject: str, run_id: str = "", reason: str = "") -> None:
        """Adds to the audit, if there is one, what a trigger has done."""
        if self._engine.is_audited and self._tasks is not None:
            entry = AuditEntry(time.time(), run_id, 0, "triggered", outcome, tenant, subject, tool=trigger, reason=reason)
            self._tasks.start_soon(self._write, Note(encode(entry)))

    async def _write(self, note: Note) -> None:
        try:
            await self._engine.store.note([note])
        except StoreError as error:
            log.warning("the audit lacks what a trigger did: %s", error)
