"""A real cluster, for whoever has one to try pods on: `MAINSPRING_TEST_KUBECONFIG=FILE pytest tests/sandbox/test_contract.py`.

The file's context names a namespace in which its user has the Role of docs/kubernetes.md, and in which nothing else is.
"""

import json
import os
from typing import Final
from urllib.request import Request, urlopen

from tests.kit.waiting import PATIENCE

from mainspring.tools.sandbox.kubernetes.cluster import find_cluster
from mainspring.tools.sandbox.kubernetes.settings import KubernetesSettings

KUBECONFIG: Final = os.environ.get("MAINSPRING_TEST_KUBECONFIG", "")


class RealCluster:
    """What is there, as a test asks for it."""

    def __init__(self) -> None:
        self.settings = KubernetesSettings(kubeconfig=KUBECONFIG)
        self._cluster = find_cluster(self.settings)

    @property
    def objects(self) -> dict[tuple[str, str], object]:
        """The pods that are not on their way out: whoever removes one need not wait for that."""
        return {("pods", pod["metadata"]["name"]): pod for pod in self._list() if "deletionTimestamp" not in pod["metadata"]}

    def list_running(self) -> list[str]:
        """The API server knows what runs in a pod no better than that the pod is there."""
        return []

    def _list(self) -> list[dict[str, dict[str, str]]]:
        path = f"{self._cluster.server}/api/v1/namespaces/{self._cluster.namespace}/pods".replace("//api", "/api")
        request = Request(path, headers={"Authorization": f"Bearer {self._cluster.read_token()}"})
        with urlopen(request, timeout=PATIENCE, context=self._cluster.tls) as answer:
            found: list[dict[str, dict[str, str]]] = json.load(answer)["items"]
        return found
