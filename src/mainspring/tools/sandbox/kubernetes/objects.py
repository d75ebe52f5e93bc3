"""The objects that the sandbox makes in a cluster, and what their status says."""

from datetime import UTC, datetime
from hashlib import sha256
from typing import Final

from mainspring.core.errors import SandboxError
from mainspring.core.items import Json
from mainspring.core.sandbox import SandboxSpec
from mainspring.tools.sandbox.kubernetes.api import EXTENSIONS, VERSION
from mainspring.tools.sandbox.kubernetes.settings import KubernetesSettings

MANAGED_BY: Final = "app.kubernetes.io/managed-by"
DEPLOYMENT: Final = "mainspring.dev/deployment"
NETWORK: Final = "mainspring.dev/network"
HOLDER: Final = "mainspring.dev/holder"
EXPIRES: Final = "mainspring.dev/expires"
POD_NAME: Final = "agents.x-k8s.io/pod-name"
CONTAINER: Final = "sandbox"
WORKSPACE: Final = "/workspace"
# While a pod has one of these, it will not start by waiting.
_HOPELESS: Final = (
    "ErrImagePull", "ImagePullBackOff", "InvalidImageName", "CreateContainerConfigError", "CreateContainerError",
    "RunContainerError",
)  # fmt: skip
_TERMINAL: Final = (
    "InvalidMetadata", "EnvVarsInjectionRejected", "VolumeClaimTemplatesError", "ClaimExpired", "SandboxExpired",
    "InvalidConfiguration", "PodFailed", "PodSucceeded", "TemplateNotFound", "WarmPoolNotFound",
)  # fmt: skip


def derive_name(deployment: str, name: str) -> str:
    """The name of the claim or pod of a container, the same in every process."""
    return f"mainspring-{sha256(f'{deployment}/{name}'.encode()).hexdigest()[:24]}"


def format_time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def build_labels(settings: KubernetesSettings) -> dict[str, str]:
    return {MANAGED_BY: "mainspring", DEPLOYMENT: settings.deployment}


def build_policies(settings: KubernetesSettings) -> tuple[Json, ...]:
    """Nothing reaches our pods, and they reach nothing unless they were granted the network."""
    labels = build_labels(settings)
    kinds = (("ingress", "Ingress", labels), ("egress", "Egress", {**labels, NETWORK: "none"}))
    return tuple(
        {
            "apiVersion": "networking.k8s.io/v1",
            "kind": "NetworkPolicy",
            "metadata": {"name": f"{settings.deployment.lower()}-sandbox-{name}", "labels": labels},
            "spec": {"podSelector": {"matchLabels": selected}, "policyTypes": [kind]},
        }
        for name, kind, selected in kinds
    )


def build_claim(settings: KubernetesSettings, name: str, holder: str, until: float) -> Json:
    labels = build_labels(settings)
    return {
        "apiVersion": f"{EXTENSIONS}/{VERSION}",
        "kind": "SandboxClaim",
        "metadata": {"name": name, "labels": labels, "annotations": {HOLDER: holder, EXPIRES: format_time(until)}},
        "spec": {
            "warmPoolRef": {"name": settings.warm_pool},
            "lifecycle": {"shutdownTime": format_time(until), "shutdownPolicy": "Delete"},
            "additionalPodMetadata": {"labels": {**labels, NETWORK: "none"}},
        },
    }


def build_pod(settings: KubernetesSettings, name: str, holder: str, until: float, spec: SandboxSpec) -> Json:
    """A pod that waits to be used: not root, nothing of its image writable, no token, no capabilities, within limits."""
    room = {"memory": str(spec.limits.memory), "cpu": settings.cpu, "ephemeral-storage": str(spec.limits.disk * 2)}
    labels = {**build_labels(settings), NETWORK: "open" if spec.network else "none"}
    container: Json = {
        "name": CONTAINER,
        "image": settings.image,
        "command": ["sleep", "infinity"],
        "workingDir": WORKSPACE,
        "resources": {"limits": room, "requests": {**room, "cpu": "50m"}},
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": [{"name": "workspace", "mountPath": WORKSPACE}, {"name": "scratch", "mountPath": "/tmp"}],
    }
    pod: Json = {
        "containers": [container],
        "restartPolicy": "Never",
        "activeDeadlineSeconds": settings.longest_seconds,
        "terminationGracePeriodSeconds": 1,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": settings.user,
            "runAsGroup": settings.user,
            "fsGroup": settings.user,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "volumes": [{"name": each, "emptyDir": {"sizeLimit": room["ephemeral-storage"]}} for each in ("workspace", "scratch")],
    }
    if settings.runtime_class is not None:
        pod["runtimeClassName"] = settings.runtime_class
    if settings.pull_secrets:
        pod["imagePullSecrets"] = [{"name": each} for each in settings.pull_secrets]
    about = {"name": name, "labels": labels, "annotations": {HOLDER: holder, EXPIRES: format_time(until)}}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": about, "spec": pod}


def build_renewal(is_claim: bool, until: float) -> Json:
    patch: Json = {"metadata": {"annotations": {EXPIRES: format_time(until)}}}
    return patch | ({"spec": {"lifecycle": {"shutdownTime": format_time(until)}}} if is_claim else {})


def build_deletion(meta: Json, *only: str) -> Json:
    """Deletes an object, with what belongs to it, if these fields of it are still the same."""
    return {"propagationPolicy": "Foreground", "preconditions": {name: meta[name] for name in only}}


def is_expired(found: Json, now: float) -> bool:
    """Whether nobody has renewed it. What has no time that can be read is not ours to judge."""
    told = found["metadata"].get("annotations", {}).get(EXPIRES)
    return isinstance(told, str) and told < format_time(now)


def is_pod_ready(pod: Json) -> bool:
    """Raises `SandboxError` if it never will be."""
    status = pod.get("status", {})
    for container in status.get("containerStatuses", ()):
        waiting = container.get("state", {}).get("waiting") or {}
        if (reason := waiting.get("reason")) in _HOPELESS:
            said = f"{reason}: {waiting.get('message', '')[:300]}".rstrip(": ")
            if "Image" in reason:
                raise SandboxError(f"the image `{container.get('image')}` cannot be pulled: {said}; check `image`")
            raise SandboxError(f"the pod `{pod['metadata']['name']}` cannot start: {said}")
    if status.get("phase") in ("Failed", "Succeeded"):
        said = status.get("message") or status.get("reason") or "its program ended"
        raise SandboxError(f"the pod `{pod['metadata']['name']}` ended before it was used: {said}")
    return status.get("phase") == "Running" and all(each.get("ready") for each in status.get("containerStatuses", ()))


def is_claim_ready(claim: Json) -> bool:
    """Raises `SandboxError` if it never will be."""
    for condition in claim.get("status", {}).get("conditions", ()):
        if condition["type"] == "Ready" and condition["status"] == "True":
            return bool(claim["status"].get("sandbox", {}).get("name"))
        if condition.get("reason") in _TERMINAL:
            told = f"{condition['reason']}: {condition.get('message', '')[:300]}"
            raise SandboxError(f"the claim `{claim['metadata']['name']}` is refused: {told}; check the warm pool")
    return False


def tell_waiting(found: Json) -> str:
    """Why it is not ready, as far as it says."""
    conditions = found.get("status", {}).get("conditions", ())
    said = [f"{each.get('reason', '')}: {each.get('message', '')[:300]}" for each in conditions if each["status"] != "True"]
    return "; ".join(said) or "it does not say why"


def check_template(template: Json) -> None:
    """Raises `SandboxError` if pods of the template get to the network. Policies add up, so ours could not forbid it."""
    spec = template["spec"]
    is_ours = spec.get("networkPolicyManagement") == "Unmanaged"
    if not is_ours and (spec.get("networkPolicy") is None or spec["networkPolicy"].get("egress")):
        raise SandboxError(
            f"the SandboxTemplate `{template['metadata']['name']}` lets its pods into the network; give it `networkPolicy: {{}}` "
            "or `networkPolicyManagement: Unmanaged`, so that our own policies hold"
        )


def check_pod(pod: Json) -> str:
    """The container to work in. Raises `SandboxError` if it has no limits."""
    container = pod["spec"]["containers"][0]
    missing = {"memory", "cpu"} - set(container.get("resources", {}).get("limits", {}))
    if missing:
        told = " and ".join(sorted(missing))
        raise SandboxError(f"the pod `{pod['metadata']['name']}` has no limit of {told}; set `resources.limits` in its template")
    return str(container["name"])
