"""A stand-in cluster with a kubeconfig, and sandboxes that use it."""

import base64
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal

import pytest
from msgspec import Struct
from tests.net.servers import make_certificates
from tests.sandbox.kube.api_server import NAMESPACE, TOKEN, StandIn, serve_cluster
from tests.sandbox.kube.real import RealCluster

from mainspring.core.sandbox import DEFAULT_SPEC
from mainspring.tools.sandbox import bwrap
from mainspring.tools.sandbox.kubernetes.kubernetes_sandbox import KubernetesSandbox
from mainspring.tools.sandbox.kubernetes.objects import build_pod
from mainspring.tools.sandbox.kubernetes.settings import KubernetesSettings

Kind = Literal["pods", "claims"]
POOL = "python"


class PodsUnderTest(KubernetesSandbox):
    def __init__(self, settings: KubernetesSettings, cluster: StandIn | RealCluster) -> None:
        super().__init__(settings)
        self.settings, self.cluster = settings, cluster


class World(Struct):
    cluster: StandIn
    kubeconfig: Path

    def settle(self, kind: Kind = "pods", **given: Any) -> KubernetesSettings:
        own = {"kubeconfig": str(self.kubeconfig), "warm_pool": POOL if kind == "claims" else None}
        return KubernetesSettings(**(own | given))

    @asynccontextmanager
    async def open(self, kind: Kind = "pods", **given: Any) -> AsyncIterator[PodsUnderTest]:
        async with PodsUnderTest(self.settle(kind, **given), self.cluster) as sandbox:
            yield sandbox


def build_template(**spec: Any) -> dict[str, Any]:
    """A template as the docs have it."""
    pod = build_pod(KubernetesSettings(), "x", "", 0.0, DEFAULT_SPEC)["spec"]
    given = {"podTemplate": {"spec": pod}, "networkPolicy": {}} | spec
    kind = {"apiVersion": "extensions.agents.x-k8s.io/v1beta1", "kind": "SandboxTemplate"}
    return {**kind, "metadata": {"name": "python-template"}, "spec": given}


@asynccontextmanager
async def open_cluster(folder: Path) -> AsyncIterator[World]:
    program = bwrap.find_bundled() or bwrap.find_installed()
    if program is None:
        pytest.skip("pods are held by bubblewrap here, and there is none")
    authority, tls = make_certificates(folder)
    async with serve_cluster(folder / "pods", tls, program) as cluster:
        await cluster.store("sandboxtemplates", build_template(), "ADDED")
        pool = {"metadata": {"name": POOL}, "spec": {"sandboxTemplateRef": {"name": "python-template"}}}
        await cluster.store("sandboxwarmpools", pool | {"status": {"readyReplicas": 1}}, "ADDED")
        kubeconfig = folder / "kubeconfig"
        kubeconfig.write_text(json.dumps(describe(cluster.port, authority)))
        yield World(cluster, kubeconfig)


def describe(port: int, authority: Path) -> dict[str, Any]:
    cluster = {
        "server": f"https://127.0.0.1:{port}",
        "certificate-authority-data": base64.b64encode(authority.read_bytes()).decode(),
    }
    return {
        "clusters": [{"name": "c", "cluster": cluster}],
        "users": [{"name": "u", "user": {"token": TOKEN}}],
        "contexts": [{"name": "k", "context": {"cluster": "c", "user": "u", "namespace": NAMESPACE}}],
        "current-context": "k",
    }
