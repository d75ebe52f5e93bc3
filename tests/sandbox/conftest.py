"""The sandboxes that the tests run on: every backend this machine can start, each as a user of its own."""

import os
from collections.abc import AsyncIterator, Iterator
from itertools import count

import pytest
from tests.sandbox.kube.cluster import PodsUnderTest, open_cluster
from tests.sandbox.kube.real import KUBECONFIG, RealCluster

from mainspring.core.errors import SandboxError
from mainspring.tools.sandbox.cgroup import Groups
from mainspring.tools.sandbox.local import LocalSandbox
from mainspring.tools.sandbox.probe import Mode, open_sandbox

AnySandbox = LocalSandbox | PodsUnderTest

_users = count(30_000 + os.getpid() % 500 * 60)


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    """For a whole module, so that a sandbox can serve all its tests."""
    return "asyncio"


@pytest.fixture(scope="session", autouse=True)
def secret() -> Iterator[None]:
    """The engine's environment holds something that no sandboxed program should see."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SANDBOX_TEST_SECRET", "kept-by-the-engine")
        yield


async def opened(mode: Mode, warm: int = 0, groups: Groups | None = None) -> AsyncIterator[LocalSandbox]:
    sandbox = open_sandbox(mode, uid=next(_users), warm=warm, groups=groups)
    try:
        entered = await sandbox.__aenter__()
    except SandboxError as error:
        pytest.skip(f"{mode} does not hold on this machine: {error.message}")
    try:
        yield entered
    finally:
        await sandbox.__aexit__(None, None, None)


@pytest.fixture(scope="module", params=["bwrap", "landlock"])
async def sandbox(request: pytest.FixtureRequest) -> AsyncIterator[LocalSandbox]:
    """One that holds."""
    async for entered in opened(request.param):
        yield entered


@pytest.fixture(scope="module")
async def unsafe() -> AsyncIterator[LocalSandbox]:
    """The same without isolation: what an attack does there it would do here."""
    async for entered in opened("unsafe"):
        yield entered


@pytest.fixture(scope="module", params=["bwrap", "landlock", "unsafe", "pods", "claims", *(["real pods"] if KUBECONFIG else [])])
async def runner(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[AnySandbox]:
    """One that runs programs, whether or not it holds."""
    if request.param in ("pods", "claims"):
        async with open_cluster(tmp_path_factory.mktemp("cluster")) as world, world.open(request.param) as pods:
            yield pods
        return
    if request.param == "real pods":
        real = RealCluster()
        async with PodsUnderTest(real.settings, real) as pods:
            yield pods
        return
    async for entered in opened(request.param, warm=1):
        yield entered
