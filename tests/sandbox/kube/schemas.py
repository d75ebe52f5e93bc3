"""The published schemas of what the sandbox sends, cut down to the fields that exist in it or near it; nothing else is taken."""

from typing import Any

from jsonschema_rs import Draft202012Validator

Schema = dict[str, Any]

TEXT: Schema = {"type": "string"}
COUNT: Schema = {"type": "integer", "minimum": 0}
FLAG: Schema = {"type": "boolean"}
NAME: Schema = {"type": "string", "pattern": r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$", "maxLength": 253}
TIME: Schema = {"type": "string", "pattern": r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ$"}
QUANTITY: Schema = {"type": "string", "pattern": r"^[0-9]+(\.[0-9]+)?(m|k|Ki|M|Mi|G|Gi)?$"}
LABELS: Schema = {
    "type": "object",
    "additionalProperties": {"type": "string", "pattern": r"^([A-Za-z0-9][\w.-]{0,61}[A-Za-z0-9])?$"},
}


def struct(*required: str, **fields: Schema) -> Schema:
    return {"type": "object", "properties": fields, "required": list(required), "additionalProperties": False}


def several(item: Schema) -> Schema:
    return {"type": "array", "items": item}


def one_of(*values: str) -> Schema:
    return {"enum": list(values)}


META = struct(
    "name",
    name=NAME,
    labels=LABELS,
    annotations={"type": "object", "additionalProperties": TEXT},
    **dict.fromkeys(("namespace", "uid", "resourceVersion", "creationTimestamp"), TEXT),
)
ROOM = {"type": "object", "additionalProperties": QUANTITY}
CONTAINER = struct(
    "name",
    name=NAME,
    image=TEXT,
    command=several(TEXT),
    workingDir=TEXT,
    resources=struct(limits=ROOM, requests=ROOM),
    securityContext=struct(
        allowPrivilegeEscalation=FLAG, readOnlyRootFilesystem=FLAG, capabilities=struct(drop=several(TEXT), add=several(TEXT))
    ),
    volumeMounts=several(struct("name", "mountPath", name=NAME, mountPath=TEXT)),
)
POD_SPEC = struct(
    "containers",
    containers=several(CONTAINER) | {"minItems": 1},
    restartPolicy=one_of("Always", "OnFailure", "Never"),
    activeDeadlineSeconds=COUNT,
    terminationGracePeriodSeconds=COUNT,
    automountServiceAccountToken=FLAG,
    enableServiceLinks=FLAG,
    runtimeClassName=NAME,
    imagePullSecrets=several(struct(name=NAME)),
    securityContext=struct(
        runAsNonRoot=FLAG,
        runAsUser=COUNT,
        runAsGroup=COUNT,
        fsGroup=COUNT,
        seccompProfile=struct("type", type=one_of("RuntimeDefault", "Unconfined", "Localhost")),
    ),
    volumes=several(struct("name", name=NAME, emptyDir=struct(sizeLimit=QUANTITY, medium=TEXT))),
)
RULES = several({"type": "object"})
BLUEPRINT = {"podTemplate": struct("spec", spec=POD_SPEC, metadata=struct(labels=LABELS)), "service": FLAG}
SCHEMAS: dict[str, tuple[str, str, Schema]] = {
    "pods": ("v1", "Pod", POD_SPEC),
    "networkpolicies": (
        "networking.k8s.io/v1",
        "NetworkPolicy",
        struct(
            "podSelector",
            podSelector=struct(matchLabels=LABELS),
            policyTypes=several(one_of("Ingress", "Egress")),
            ingress=RULES,
            egress=RULES,
        ),
    ),
    "selfsubjectaccessreviews": (
        "authorization.k8s.io/v1",
        "SelfSubjectAccessReview",
        struct(
            resourceAttributes=struct(**dict.fromkeys(("namespace", "verb", "group", "resource", "subresource", "name"), TEXT))
        ),
    ),
    "sandboxclaims": (
        "extensions.agents.x-k8s.io/v1beta1",
        "SandboxClaim",
        struct(
            "warmPoolRef",
            warmPoolRef=struct("name", name=TEXT),
            lifecycle=struct(
                shutdownTime=TIME, shutdownPolicy=one_of("Delete", "DeleteForeground", "Retain"), ttlSecondsAfterFinished=COUNT
            ),
            additionalPodMetadata=struct(labels=LABELS, annotations=LABELS),
        ),
    ),
    "sandboxwarmpools": (
        "extensions.agents.x-k8s.io/v1beta1",
        "SandboxWarmPool",
        struct(
            "sandboxTemplateRef",
            replicas=COUNT,
            sandboxTemplateRef=struct("name", name=TEXT),
            updateStrategy=struct(type=one_of("Recreate", "OnReplenish")),
        ),
    ),
    "sandboxtemplates": (
        "extensions.agents.x-k8s.io/v1beta1",
        "SandboxTemplate",
        struct(
            "podTemplate",
            **BLUEPRINT,
            networkPolicy=struct(ingress=RULES, egress=RULES),
            networkPolicyManagement=one_of("Managed", "Unmanaged"),
        ),
    ),
    "sandboxes": ("agents.x-k8s.io/v1beta1", "Sandbox", struct("podTemplate", **BLUEPRINT)),
}


def find_flaw(plural: str, found: Schema) -> str | None:
    """What is wrong with an object."""
    version, kind, spec = SCHEMAS[plural]
    # A review has no name.
    meta = {} if kind.endswith("Review") else {"metadata": META}
    schema = struct(
        *("apiVersion", "kind", "spec", *meta),
        **{"apiVersion": one_of(version), "kind": one_of(kind), "spec": spec, "status": {"type": "object"}, **meta},
    )
    error = next(Draft202012Validator(schema).iter_errors(found), None)
    return None if error is None else f"{'.'.join(map(str, error.instance_path))}: {error.message}"
