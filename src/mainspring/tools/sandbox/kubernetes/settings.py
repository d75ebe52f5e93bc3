"""Settings of the table `[kubernetes]`."""

from typing import Annotated

from msgspec import Meta, Struct

_LABEL = r"^[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?$"


class KubernetesSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """Where the pods of `sandbox = "kubernetes"` run and what they are; see docs/kubernetes.md."""

    namespace: str | None = None
    """The namespace of the pods; that of the service account or of the kubeconfig's context if not given."""
    image: str = "python:3.13-slim"
    """The image of plain pods. It needs `python3`; `bash` and `node` are used if they are there."""
    warm_pool: str | None = None
    """The `SandboxWarmPool` that containers are claimed from. Without it, or without agent-sandbox, each is a plain pod."""
    runtime_class: str | None = None
    """The RuntimeClass of plain pods, such as `gvisor`. The template of a warm pool names its own."""
    cpu: str = "1"
    """The CPU limit of plain pods, as Kubernetes writes it. Their memory and disk follow from the limits of a container."""
    user: Annotated[int, Meta(ge=1)] = 65_532
    """The user and group that plain pods run as."""
    pull_secrets: tuple[str, ...] = ()
    """Secrets of the namespace that the image of plain pods is pulled with."""
    deployment: Annotated[str, Meta(pattern=_LABEL)] = "mainspring"
    """Labels what is ours: servers with the same name remove each other's orphans, and nobody else's."""
    kubeconfig: str | None = None
    """A kubeconfig file; the service account of this pod, `KUBECONFIG` or `~/.kube/config` if not given."""
    context: str | None = None
    """The context of the kubeconfig, its current one if not given."""
    start_seconds: Annotated[float, Meta(gt=0)] = 50.0
    """How long a pod may take to start."""
    shutdown_seconds: Annotated[float, Meta(ge=30)] = 300.0
    """After how long a claim ends that no server renews."""
    longest_seconds: Annotated[int, Meta(ge=60)] = 86_400
    """How long a plain pod lives at most, in use or not."""
