"""The sandbox in a cluster: claims or pods, one for each lease, renewed while they are lent out.

Theory of operation. Nothing is asked of the cluster before the first lease, or the first look at the health; then what is missing
(permissions, namespace, quota, agent-sandbox, warm pool) is told at once, and asked again the next time. A lease's name follows
from what it is for, so that it is found by whoever looks. A process that dies leaves it to expire: claims by their
`shutdownTime`, pods because other servers of the same deployment remove what nobody renews.
"""

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager, suppress
from logging import getLogger
from secrets import token_hex
from types import TracebackType
from typing import Final, Self, cast

from mainspring.core.errors import SandboxError
from mainspring.core.items import Json
from mainspring.core.sandbox import DEFAULT_SPEC, Language, SandboxHealth, SandboxSpec
from mainspring.tools.sandbox.kubernetes import objects
from mainspring.tools.sandbox.kubernetes.api import (
    CLAIMS,
    EXTENSIONS,
    PODS,
    POLICIES,
    REVIEWS,
    SANDBOXES,
    TEMPLATES,
    VERSION,
    WARM_POOLS,
    ApiRefused,
    ClusterApi,
    Resource,
    Verb,
)
from mainspring.tools.sandbox.kubernetes.cluster import find_cluster
from mainspring.tools.sandbox.kubernetes.pod_lease import COMMAND, Held, PodConnection, PodLease
from mainspring.tools.sandbox.kubernetes.settings import KubernetesSettings

log = getLogger(__name__)

OBJECT_VERBS: Final[tuple[Verb, ...]] = ("create", "get", "list", "watch", "patch", "delete")
RIGHTS: Final = (
    *((verb, PODS) for verb in OBJECT_VERBS),
    *((verb, Resource("pods/exec")) for verb in ("create", "get")),
    *((verb, POLICIES) for verb in ("create", "patch")),
)
CLAIM_RIGHTS: Final = (
    *((verb, CLAIMS) for verb in OBJECT_VERBS),
    *(("get", resource) for resource in (WARM_POOLS, TEMPLATES, SANDBOXES)),
)
ISOLATES: Final = ("processes", "file system", "network", "users")
CHECK_AGAIN_SECONDS: Final = 10.0


class KubernetesSandbox:
    """See `ports.Sandbox`. Use as `async with`."""

    def __init__(self, settings: KubernetesSettings | None = None) -> None:
        self._settings = settings or KubernetesSettings()
        self._leases: list[Held] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._checking = asyncio.Lock()
        self._is_checked = self._has_greeted = self._claims = False
        self._refused: tuple[float, str] = (0.0, "")
        self._warnings: tuple[str, ...] = ()
        self._warm, self._uid = 0, self._settings.user
        self._languages: dict[Language, str] = {}

    async def __aenter__(self) -> Self:
        """Raises `SandboxError` if there is nothing that says which cluster."""
        self._api = ClusterApi(find_cluster(self._settings))
        self._renewing = asyncio.get_running_loop().create_task(self._renew_all())
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._renewing.cancel()
        await asyncio.wait([self._renewing])
        for held in list(self._leases):
            self._begin_removal(held)
        if self._tasks:
            await asyncio.wait(self._tasks)
        await self._api.__aexit__(kind, error, trace)

    @asynccontextmanager
    async def acquire(self, spec: SandboxSpec = DEFAULT_SPEC) -> AsyncIterator[PodLease]:
        await self.check()
        held = Held("", self._claims and not spec.network, token_hex(8))
        self._leases.append(held)
        lease = PodLease(held, spec.limits, self._connect, self._remove)
        try:
            await self._start(held, spec)
            await self._greet(held, lease, spec)
            yield lease
        finally:
            self._begin_removal(held)
            self._own(lease.close())

    async def check(self) -> None:
        """Raises `SandboxError` with what is missing in the cluster. Once nothing is, it is not asked again."""
        async with self._checking:
            if self._is_checked:
                return
            try:
                self._claims = await self._find_claims()
                await self._check_rights()
                if self._claims:
                    await self._check_pool()
                for policy in objects.build_policies(self._settings):
                    query = {"fieldManager": "mainspring", "force": "true"}
                    await self._api.call("patch", POLICIES, policy["metadata"]["name"], policy, query)
                probe = objects.build_pod(self._settings, "mainspring-probe", "", self._api.read_clock(), DEFAULT_SPEC)
                await self._api.call("create", PODS, "", probe, {"dryRun": "All"})
            except SandboxError as error:
                self._refused = asyncio.get_running_loop().time(), error.message
                raise
            self._is_checked, self._refused = True, (0.0, "")

    async def health(self) -> SandboxHealth:
        is_fresh = self._refused[1] and asyncio.get_running_loop().time() < self._refused[0] + CHECK_AGAIN_SECONDS
        if not is_fresh:
            with suppress(SandboxError):
                await self.check()
        what = f"claims of {self._settings.warm_pool}" if self._claims else f"pods of {self._settings.image}"
        return SandboxHealth(
            backend="kubernetes",
            version=f"{what} in namespace {self._api.cluster.namespace}",
            totals="pod",
            isolates=ISOLATES,
            languages={str(name): path for name, path in self._languages.items()},
            uid=self._uid,
            is_ok=self._is_checked,
            warm=self._warm,
            leases=len(self._leases),
            refused=(self._refused[1],) if self._refused[1] else (),
            warnings=self._warnings,
        )

    async def _find_claims(self) -> bool:
        """Whether leases are claims. Raises `SandboxError` if agent-sandbox has another version."""
        if self._settings.warm_pool is None:
            return False
        versions = await self._api.list_versions(EXTENSIONS)
        if versions and VERSION not in versions:
            known = ", ".join(versions)
            raise SandboxError(f"agent-sandbox serves {EXTENSIONS} as {known}, not {VERSION}; upgrade it")
        self._warnings = () if versions else ("agent-sandbox is not installed, so containers are plain pods, which start slower",)
        return bool(versions)

    async def _check_rights(self) -> None:
        rights = (*RIGHTS, *CLAIM_RIGHTS) if self._claims else RIGHTS
        answers = await asyncio.gather(*[self._may(verb, resource) for verb, resource in rights])
        if missing := [f"`{verb}` `{resource}`" for (verb, resource), may in zip(rights, answers, strict=True) if not may]:
            space = self._api.cluster.namespace
            told = f"RBAC lets us not {', '.join(missing)} in namespace `{space}`; add this to our Role, see docs/kubernetes.md"
            raise SandboxError(told)

    async def _may(self, verb: str, resource: Resource) -> bool:
        plural, _, sub = resource.plural.partition("/")
        asked = {"namespace": self._api.cluster.namespace, "verb": verb, "group": resource.group, "resource": plural}
        review = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": {**asked, "subresource": sub}},
        }
        return bool((await self._api.call("create", REVIEWS, "", review))["status"]["allowed"])

    async def _check_pool(self) -> None:
        name = self._settings.warm_pool or ""
        pool = await self._get(WARM_POOLS, name, f"there is no SandboxWarmPool `{name}`; apply one, see docs/kubernetes.md")
        template = pool["spec"]["sandboxTemplateRef"]["name"]
        found = await self._get(TEMPLATES, template, f"the SandboxTemplate `{template}` of the warm pool `{name}` is missing")
        objects.check_template(found)
        self._warm = int(pool.get("status", {}).get("readyReplicas", 0))

    async def _get(self, resource: Resource, name: str, missing: str) -> Json:
        try:
            return await self._api.call("get", resource, name)
        except ApiRefused as error:
            raise SandboxError(missing) if error.http_status == 404 else error from error

    async def _start(self, held: Held, spec: SandboxSpec) -> None:
        """Makes what the lease needs and waits until it runs. Raises `SandboxError`."""
        found = await self._create(held, spec)
        try:
            async with asyncio.timeout(self._settings.start_seconds):
                found = await self._wait(held, found)
        except TimeoutError as error:
            resource = CLAIMS if held.is_claim else PODS
            why = objects.tell_waiting(await self._api.call("get", resource, held.name))
            told = f"the pod of `{held.name}` did not start within {self._settings.start_seconds:g} s: {why}"
            raise SandboxError(f"{told}; try again, or raise `start_seconds`") from error
        held.pod = held.name
        if held.is_claim:
            sandbox = await self._api.call("get", SANDBOXES, found["status"]["sandbox"]["name"])
            meta = sandbox["metadata"]
            held.pod = meta.get("annotations", {}).get(objects.POD_NAME) or meta["name"]
            found = await self._api.call("get", PODS, held.pod)
        held.container = objects.check_pod(found)

    async def _create(self, held: Held, spec: SandboxSpec) -> Json:
        """Creates the claim or pod. One of the same name that is another's is left alone, and a second name taken."""
        holder = held.holder
        name = objects.derive_name(self._settings.deployment, spec.name or holder)
        for held.name in (name, f"{name}-{holder}"):
            until = self._api.read_clock() + self._settings.shutdown_seconds
            if held.is_claim:
                resource, wanted = CLAIMS, objects.build_claim(self._settings, held.name, holder, until)
            else:
                resource, wanted = PODS, objects.build_pod(self._settings, held.name, holder, until, spec)
            try:
                return await self._api.call("create", resource, "", wanted)
            except ApiRefused as error:
                if error.reason != "AlreadyExists":
                    raise
            # It is ours if the answer to an earlier try was lost.
            with suppress(ApiRefused):
                found = await self._api.call("get", resource, held.name)
                if found["metadata"].get("annotations", {}).get(objects.HOLDER) == holder:
                    return found
        raise SandboxError(f"the name `{name}` is taken in the cluster; try again")

    async def _wait(self, held: Held, found: Json) -> Json:
        resource, is_ready = (CLAIMS, objects.is_claim_ready) if held.is_claim else (PODS, objects.is_pod_ready)
        while not is_ready(found):
            async for changed in self._api.watch(resource, found):
                if is_ready(changed):
                    return changed
            found = await self._api.call("get", resource, held.name)
        return found

    async def _greet(self, held: Held, lease: PodLease, spec: SandboxSpec) -> None:
        """Has the pod look at itself before code runs in it. The network is tried once, since that takes a while."""
        about = await lease.greet(network=spec.network or self._has_greeted)
        if flaws := about["flaws"]:
            raise SandboxError(f"the pod is not safe, so code is not run: programs in it could {', '.join(flaws)}")
        self._has_greeted = self._has_greeted or not spec.network
        self._uid, self._languages = int(about["uid"]), cast(dict[Language, str], about["languages"])
        held.languages = self._languages

    async def _connect(self, held: Held) -> PodConnection:
        if held.removal is not None:
            raise SandboxError("the lease was released; acquire another one")
        if held.is_lost:
            raise SandboxError("the pod of this container is gone, with its files; try again to get another")
        connection = PodConnection(await self._api.open_exec(held.pod, held.container, COMMAND))
        await connection.start()
        return connection

    def _begin_removal(self, held: Held) -> asyncio.Task[None]:
        if held.removal is None:
            held.removal = self._own(self._delete(held))
        return held.removal

    async def _remove(self, held: Held) -> None:
        await asyncio.shield(self._begin_removal(held))

    async def _delete(self, held: Held) -> None:
        """Deletes it and waits until it is gone. What cannot be deleted now expires, since nobody renews it."""
        self._leases.remove(held)
        resource = CLAIMS if held.is_claim else PODS
        try:
            async with asyncio.timeout(self._settings.start_seconds):
                found = await self._api.call("get", resource, held.name)
                if found["metadata"].get("annotations", {}).get(objects.HOLDER) != held.holder:
                    return
                await self._api.call("delete", resource, held.name, objects.build_deletion(found["metadata"], "uid"))
                while True:
                    async for _ in self._api.watch(resource, await self._api.call("get", resource, held.name)):
                        pass
        except ApiRefused as error:
            if error.http_status != 404:
                log.warning("`%s` is left to expire: %s", held.name, error.message)
        except (SandboxError, TimeoutError) as error:
            log.warning("`%s` is left to expire: %s", held.name, error)

    def _own(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _renew_all(self) -> None:
        while True:
            await asyncio.sleep(self._settings.shutdown_seconds / 3)
            with suppress(SandboxError):
                await self.renew()
                await self.sweep()

    async def renew(self) -> None:
        """Moves the end of every lease on; also done from time to time. A lease that is gone is marked as lost."""
        until = self._api.read_clock() + self._settings.shutdown_seconds
        for held in [held for held in self._leases if held.pod]:
            try:
                patch = objects.build_renewal(held.is_claim, until)
                await self._api.call("patch", CLAIMS if held.is_claim else PODS, held.name, patch)
            except SandboxError as error:
                held.is_lost = isinstance(error, ApiRefused) and error.http_status == 404
                log.warning("`%s` is not renewed: %s", held.name, error.message)

    async def sweep(self) -> None:
        """Removes what servers of this deployment have left behind; also done from time to time."""
        if not self._is_checked:
            return
        labels = objects.build_labels(self._settings)
        query = {"labelSelector": ",".join([f"{name}={value}" for name, value in labels.items()])}
        for resource in (CLAIMS, PODS) if self._claims else (PODS,):
            found = await self._api.call("list", resource, query=query)
            for each in found["items"]:
                # The pod of a claim has labels of ours, but goes with its claim.
                if objects.is_expired(each, self._api.read_clock()):
                    log.info("`%s` was left behind and is removed", each["metadata"]["name"])
                    # Not if it was renewed meanwhile.
                    deletion = objects.build_deletion(each["metadata"], "uid", "resourceVersion")
                    with suppress(ApiRefused):
                        await self._api.call("delete", resource, each["metadata"]["name"], deletion)
