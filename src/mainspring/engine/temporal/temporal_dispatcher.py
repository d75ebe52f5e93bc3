"""Runs find their drivers by Temporal: a workflow for each run, whose one activity drives it.

Theory of operation. Temporal is told the id of a run and nothing else. It chooses a worker, notices by missing heartbeats that
one is gone, and chooses another. What a run does, and who may write to its log, is in our store as always: an activity drives its
run by a claim on it, waits while another driver still has that, and ends when the run has. So an activity that Temporal starts
twice does nothing twice.

A cancel goes to the store, which reaches the driver at once, and as a signal to the workflow. One that somebody sends by
Temporal's own tools arrives with a heartbeat, and goes to the store from there. Workers also look for runs that nobody drives and
hand them to Temporal: those of a server that died with what it drove itself, and those that could not be handed over at the time.
"""

import asyncio
import os
import re
from collections.abc import Awaitable, Callable
from datetime import timedelta
from logging import getLogger
from textwrap import shorten
from typing import Final

from temporalio import activity
from temporalio.client import Client
from temporalio.common import VersioningBehavior, WorkerDeploymentVersion, WorkflowIDConflictPolicy, WorkflowIDReusePolicy
from temporalio.service import RPCError, RPCStatusCode
from temporalio.worker import UnsandboxedWorkflowRunner, Worker, WorkerDeploymentConfig

from mainspring.core.errors import DispatcherUnavailable, NotFound, StoreError
from mainspring.core.lru_cache import LRUCache
from mainspring.engine.temporal.run_workflow import ACTIVITY, CANCEL, WORKFLOW, RunWorkflow
from mainspring.engine.temporal.settings import TemporalSettings
from mainspring.ports import DispatchedRuns, Store

log = getLogger(__name__)

CONNECT_SECONDS: Final = 5.0
RPC_SECONDS: Final = timedelta(seconds=5)
# How often workers try to reach Temporal, and look for runs that it does not know of.
AGAIN_SECONDS: Final = 5.0
LOOK_SECONDS: Final = 0.5
# How long a run that nobody drives is left to Temporal before it is handed over again.
HANDED_SECONDS: Final = 30.0
# How long an activity waits for a run that another driver has, growing.
FIRST_PAUSE, LONGEST_PAUSE = 0.1, 2.0
MOST_AT_ONCE: Final = 1000
REMEMBERED: Final = 10_000
_REASON: Final = re.compile(r'(?:message|error): "([^"]+)"')
# Nothing that is asked for a second time within a heartbeat helps.
BEATS: Final = 3


def say_why(error: Exception) -> str:
    """The reason in one line. Temporal's library nests it in what its own parts are called."""
    told = str(error)
    if nested := _REASON.findall(told):
        return str(nested[-1])
    return shorten(told.partition("\n")[0], 200, placeholder=" ...")


class TemporalDispatcher:
    """See `ports.Dispatcher`. `at_once` is the most runs that a worker takes up at a time."""

    def __init__(self, store: Store, settings: TemporalSettings, at_once: int | None = None) -> None:
        self._store, self._settings = store, settings
        self._at_once = at_once or MOST_AT_ONCE
        self._client: Client | None = None
        self._connecting = asyncio.Lock()
        self._handed: LRUCache[str, float] = LRUCache(REMEMBERED)
        self._signalled: LRUCache[str, bool] = LRUCache(REMEMBERED)
        self._runs: DispatchedRuns | None = None

    async def submit(self, run_id: str) -> None:
        """Raises `DispatcherUnavailable`."""
        client = await self._connect()
        try:
            await client.start_workflow(
                WORKFLOW,
                args=[run_id, self._settings.heartbeat_seconds],
                id=run_id,
                task_queue=self._settings.task_queue,
                id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
                id_reuse_policy=WorkflowIDReusePolicy.ALLOW_DUPLICATE,
                rpc_timeout=RPC_SECONDS,
            )
        except RPCError as error:
            raise self._explain(error) from error
        self._handed[run_id] = asyncio.get_running_loop().time()

    async def cancel(self, run_id: str) -> None:
        await self._store.leases.request_cancel(run_id)
        if self._signalled.get(run_id):
            return
        self._signalled[run_id] = True
        try:
            await (await self._connect()).get_workflow_handle(run_id).signal(CANCEL, rpc_timeout=RPC_SECONDS)
        except (RPCError, DispatcherUnavailable) as error:
            # The store has it. A run that no workflow drives needs no more.
            if not (isinstance(error, RPCError) and error.status == RPCStatusCode.NOT_FOUND):
                log.warning("Temporal was not told that run %s is cancelled; its driver is: %s", run_id, error)

    async def work(self, runs: DispatchedRuns) -> None:
        self._runs = runs
        client = await self._connect_patiently()
        version = self._version()
        worker = Worker(
            client,
            task_queue=self._settings.task_queue,
            workflows=[RunWorkflow],
            activities=[self._drive],
            workflow_runner=UnsandboxedWorkflowRunner(),
            max_concurrent_activities=self._at_once,
            max_heartbeat_throttle_interval=timedelta(seconds=self._settings.heartbeat_seconds / BEATS),
            deployment_config=version,
            # Without one it hashes the sources of all modules, for seconds in which leases would not be renewed.
            build_id=None if version is not None else self._settings.build_id or "unversioned",
        )
        async with worker:
            await self._hand_over(runs.tend)

    @activity.defn(name=ACTIVITY)
    async def _drive(self, run_id: str) -> None:
        assert self._runs is not None
        driving = asyncio.get_running_loop().create_task(self._drive_to_end(run_id, self._runs.drive))
        try:
            while not driving.done():
                activity.heartbeat()
                try:
                    await asyncio.wait([driving], timeout=self._settings.heartbeat_seconds / BEATS)
                except asyncio.CancelledError:
                    why = activity.cancellation_details()
                    if why is None or not why.cancel_requested:
                        raise  # Another worker has it now, or this one stops.
                    await self._request_cancel(run_id)
            await driving
        finally:
            driving.cancel()

    async def _drive_to_end(self, run_id: str, drive: Callable[[str], Awaitable[None]]) -> None:
        """Returns when the run has ended, whoever has driven it."""
        pause = FIRST_PAUSE
        while not await self._has_ended(run_id):
            await drive(run_id)
            if await self._has_ended(run_id):
                return
            await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)

    async def _has_ended(self, run_id: str) -> bool:
        try:
            return (await self._store.load(run_id)).response is not None
        except NotFound:
            return True  # It was deleted.

    async def _request_cancel(self, run_id: str) -> None:
        try:
            await self._store.leases.request_cancel(run_id)
        except NotFound:
            return

    async def _hand_over(self, tend: Callable[[], Awaitable[None]]) -> None:
        """Hands runs over that nobody drives for longer than it takes to find a worker, until it is cancelled."""
        seen: frozenset[str] = frozenset()
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            now = asyncio.get_running_loop().time()
            try:
                await tend()
                found = frozenset(await self._store.leases.list_claimable())
                for run_id in found & seen:
                    if now - (self._handed.get(run_id) or -HANDED_SECONDS) >= HANDED_SECONDS:
                        await self.submit(run_id)
                seen = found
            except (StoreError, DispatcherUnavailable) as error:
                log.warning("runs that nobody drives are not handed to Temporal now: %s", error)
                await asyncio.sleep(AGAIN_SECONDS)

    async def _connect_patiently(self) -> Client:
        is_told = False
        while True:
            try:
                return await self._connect()
            except DispatcherUnavailable as error:
                if not is_told:
                    log.warning("%s; it is tried again until it answers", error.message)
                    is_told = True
                await asyncio.sleep(AGAIN_SECONDS)

    async def _connect(self) -> Client:
        async with self._connecting:
            if self._client is None:
                told = self._settings
                api_key = told.api_key or os.environ.get("TEMPORAL_API_KEY")
                try:
                    self._client = await Client.connect(
                        told.address,
                        namespace=told.namespace,
                        api_key=api_key,
                        tls=bool(api_key) or told.tls,
                        connect_timeout=timedelta(seconds=CONNECT_SECONDS),
                    )
                except (RuntimeError, ValueError) as error:
                    raise self._explain(error) from error
            return self._client

    def _explain(self, error: Exception) -> DispatcherUnavailable:
        return DispatcherUnavailable(
            f"Temporal at {self._settings.address} cannot be used: {say_why(error)}; check `address` and `namespace` in "
            "`[temporal]`, and that the cluster runs"
        )

    def _version(self) -> WorkerDeploymentConfig | None:
        if self._settings.deployment is None or self._settings.build_id is None:
            return None
        version = WorkerDeploymentVersion(self._settings.deployment, self._settings.build_id)
        # A run is not bound to the version that it began with: its log is read by any.
        return WorkerDeploymentConfig(version, True, VersioningBehavior.AUTO_UPGRADE)
