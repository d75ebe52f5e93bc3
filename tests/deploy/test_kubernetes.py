"""The manifests: valid by the published schemas, consistent with each other, and with what our server is."""

import json
import shutil
import subprocess
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
import yaml
from tests.deploy.shipped import (
    DEPLOY,
    ROOT,
    check_command,
    check_settings,
    check_variables,
    find_metrics,
    list_known_metrics,
    read_yaml,
)
from tests.kit.waiting import PATIENCE

BASE = DEPLOY / "kubernetes/base"
EXAMPLE = DEPLOY / "kubernetes/example"
VERSIONS = ("v1.29.0", "v1.34.0", "v1.37.0")
[KUSTOMIZATION] = read_yaml(BASE / "kustomization.yaml")
RESOURCES = [resource for name in KUSTOMIZATION["resources"] for resource in read_yaml(BASE / name)]
PODS = [resource for resource in RESOURCES if resource["kind"] in ("Deployment", "Job")]


def name_of(resource: dict[str, Any]) -> str:
    return f"{resource['kind']} {resource['metadata']['name']}"


@cache
def find_validator(version: str, kind: str, api: str) -> jsonschema_rs.Validator:
    folder = Path(str(files("kubernetes_validate"))) / "kubernetes-json-schema" / f"{version}-local-strict"
    group, _, number = api.rpartition("/")
    name = "-".join([part for part in (kind.lower(), group.split(".")[0], number) if part])
    schema = json.loads((folder / f"{name}.json").read_text())
    shared = json.loads((folder / "_definitions.json").read_text())
    return jsonschema_rs.validator_for(schema, registry=jsonschema_rs.Registry([(shared["$id"], shared)]))


def check(resource: dict[str, Any], version: str) -> None:
    validator = find_validator(version, resource["kind"], resource["apiVersion"])
    errors = [f"{'.'.join(map(str, error.instance_path))}: {error.message}" for error in validator.iter_errors(resource)]
    assert errors == []


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("resource", RESOURCES, ids=name_of)
def test_every_resource_is_valid(resource: dict[str, Any], version: str) -> None:
    check(resource, version)


def test_a_field_that_does_not_exist_is_noticed() -> None:
    deployment = next(resource for resource in PODS if resource["kind"] == "Deployment")
    wrong = json.loads(json.dumps(deployment))
    wrong["spec"]["template"]["spec"]["containers"][0]["imagePullPolice"] = "Always"
    with pytest.raises(AssertionError, match="imagePullPolice"):
        check(wrong, VERSIONS[0])


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not on this machine")
def test_kustomize_builds_the_example(tmp_path: Path) -> None:
    shutil.copytree(DEPLOY / "kubernetes", tmp_path / "kubernetes")
    build = ["kubectl", "kustomize", str(tmp_path / "kubernetes/example")]
    done = subprocess.run(build, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert done.returncode == 0, done.stderr
    built = [resource for resource in yaml.safe_load_all(done.stdout) if resource]
    for resource in built:
        check(resource, VERSIONS[-1])
    [secret] = [resource["metadata"]["name"] for resource in built if resource["kind"] == "Secret"]
    [deployment] = [resource for resource in built if name_of(resource) == "Deployment mainspring-server"]
    [container] = deployment["spec"]["template"]["spec"]["containers"]
    assert container["envFrom"] == [{"secretRef": {"name": secret}}]
    assert container["image"] == "mainspring:0.1.0"
    assert container["resources"]["requests"]["cpu"] == "1"


@pytest.mark.parametrize("resource", PODS, ids=name_of)
def test_pods_run_real_commands_and_may_do_nothing_else(resource: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    pod = resource["spec"]["template"]["spec"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["automountServiceAccountToken"] is False
    # The service is called as our variables begin: its port would be taken for ours.
    assert pod["enableServiceLinks"] is False
    [container] = pod["containers"]
    check_command(container["args"], capsys)
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert {mount["name"] for mount in container["volumeMounts"]} == {volume["name"] for volume in pod["volumes"]}
    assert {"/data", "/tmp"} <= {mount["mountPath"] for mount in container["volumeMounts"]}
    assert "memory" in container["resources"]["limits"]
    check_settings(BASE / "mainspring.toml", capsys)


def test_the_secret_names_settings_that_exist() -> None:
    check_variables([line.partition("=")[0] for line in (EXAMPLE / "secret.env").read_text().splitlines()])


def test_selectors_find_the_pods_that_they_mean() -> None:
    labels = [resource["spec"]["template"]["metadata"]["labels"] for resource in PODS]
    for resource in RESOURCES:
        spec = resource.get("spec", {})
        selector = spec.get("selector") or {}
        wanted = selector.get("matchLabels", selector)
        if wanted:
            assert any(wanted.items() <= each.items() for each in labels), name_of(resource)
        if resource["kind"] == "HorizontalPodAutoscaler":
            target = spec["scaleTargetRef"]
            assert any((each["kind"], each["metadata"]["name"]) == (target["kind"], target["name"]) for each in PODS)


def test_the_autoscaler_goes_by_metrics_that_exist() -> None:
    scalers = [resource for resource in RESOURCES if resource["kind"] == "HorizontalPodAutoscaler"]
    metrics = [metric for scaler in scalers for metric in scaler["spec"]["metrics"]]
    names = {metric["pods"]["metric"]["name"] for metric in metrics if metric["type"] == "Pods"}
    assert names
    assert find_metrics(" ".join(names)) == names <= list_known_metrics()


def test_pods_have_the_time_to_drain_and_a_port_that_is_asked() -> None:
    drain = float((BASE / "mainspring.toml").read_text().partition("drain_seconds = ")[2].split()[0])
    for deployment in [resource for resource in PODS if resource["kind"] == "Deployment"]:
        pod = deployment["spec"]["template"]["spec"]
        [container] = pod["containers"]
        pause = int(container["lifecycle"]["preStop"]["exec"]["command"][1]) if "lifecycle" in container else 0
        assert pod["terminationGracePeriodSeconds"] >= pause + drain + 20
        assert container["ports"] == [{"name": "http", "containerPort": 8080}]
        probes = [container[name]["httpGet"] for name in ("startupProbe", "livenessProbe", "readinessProbe")]
        assert [probe["path"] for probe in probes] == ["/healthz", "/healthz", "/readyz"]
        assert {probe["port"] for probe in probes} == {"http"}


def test_the_role_is_the_one_that_the_docs_explain() -> None:
    page = (ROOT / "docs/kubernetes.md").read_text()
    block = page.partition("kind: Role\n")[2].partition("```")[0]
    explained = yaml.safe_load(block)["rules"]
    [role] = [resource for resource in RESOURCES if resource["kind"] == "Role"]
    assert role["rules"] == explained
