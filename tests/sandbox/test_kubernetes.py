"""The sandbox in a cluster: what is made there, what is refused in one line, and what survives faults."""

import asyncio
import base64
import json
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import httpx2
import pytest
import yaml
from msgspec.structs import replace
from openai import AsyncOpenAI
from tests.kit.waiting import PATIENCE
from tests.sandbox.kube.cluster import POOL, World, build_template, open_cluster
from tests.sandbox.kube.schemas import find_flaw
from tests.server.hosting import hosted

from mainspring.app.engine import Engine
from mainspring.app.server import server
from mainspring.core.errors import SandboxError
from mainspring.core.sandbox import DEFAULT_SPEC, ProgramExit, SandboxLimits, SandboxSpec
from mainspring.features.models.doctor import SandboxChoice, examine_sandbox
from mainspring.providers.scripted import Scripted, call, say
from mainspring.tools.builtin.builtins import BuiltinTools
from mainspring.tools.sandbox.kubernetes.cluster import find_cluster
from mainspring.tools.sandbox.kubernetes.kubernetes_sandbox import CLAIM_RIGHTS, RIGHTS
from mainspring.tools.sandbox.kubernetes.settings import KubernetesSettings

NAMED = replace(DEFAULT_SPEC, name="tenant/cntr_1")


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with open_cluster(tmp_path) as entered:
        yield entered


async def refusal(world: World, **given: Any) -> str:
    async with world.open(**given) as sandbox:
        health = await sandbox.health()
        with pytest.raises(SandboxError) as caught:
            async with sandbox.acquire():
                pass
        if not health.is_ok:
            assert health.refused == (caught.value.message,)
    assert world.cluster.list_names("pods") == []
    assert "\n" not in caught.value.message
    return caught.value.message


async def test_a_pod_is_confined_and_gone_afterwards(world: World) -> None:
    async with world.open(runtime_class="gvisor", pull_secrets=("key",)) as sandbox:
        async with sandbox.acquire(NAMED) as lease:
            (pod,) = [found for (kind, _), found in world.cluster.objects.items() if kind == "pods"]
            assert (await lease.execute("print(1)")).stdout == "1\n"
        spec, container = pod["spec"], pod["spec"]["containers"][0]
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["automountServiceAccountToken"] is False
        assert (spec["runtimeClassName"], spec["imagePullSecrets"]) == ("gvisor", [{"name": "key"}])
        assert container["securityContext"]["readOnlyRootFilesystem"] is True
        assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
        assert container["resources"]["limits"]["memory"] == str(SandboxLimits().memory)
        assert pod["metadata"]["labels"]["mainspring.dev/network"] == "none"
    assert world.cluster.list_names("pods") == []
    policies = [found["spec"] for (kind, _), found in world.cluster.objects.items() if kind == "networkpolicies"]
    assert {(*each["policyTypes"], each.get("egress"), each.get("ingress")) for each in policies} == {
        ("Ingress", None, None),
        ("Egress", None, None),
    }


async def test_a_container_has_one_claim_whose_name_follows_from_its_id(world: World) -> None:
    names = []
    for _ in range(2):
        async with world.open("claims") as sandbox, sandbox.acquire(NAMED):
            names += world.cluster.list_names("sandboxclaims")
            (claim,) = [found for (kind, _), found in world.cluster.objects.items() if kind == "sandboxclaims"]
            assert claim["spec"]["warmPoolRef"] == {"name": POOL}
            assert claim["spec"]["lifecycle"]["shutdownPolicy"] == "Delete"
            (pod,) = world.cluster.list_names("pods")
            assert pod.startswith("warm-"), "the pod of the pool, by the name that its Sandbox tells"
    assert len(set(names)) == 1
    assert world.cluster.list_names("sandboxclaims") == world.cluster.list_names("pods") == []


async def test_a_name_that_another_server_holds_is_left_alone(world: World) -> None:
    async with world.open() as one, world.open() as other, one.acquire(NAMED) as first:
        await first.put("mine", b"1")
        async with other.acquire(NAMED) as second:
            assert (await second.list()).entries == ()
            assert len(world.cluster.list_names("pods")) == 2
        await other.__aexit__(None, None, None)
        assert await first.get("mine") == b"1"


async def test_a_lease_that_was_never_made_takes_no_other_of_its_name_along(world: World) -> None:
    async with world.open() as one, one.acquire(NAMED) as first:
        await first.put("mine", b"1")
        async with world.open() as other:
            await other.check()
            world.cluster.silent_about = {("create", "pods")}
            with pytest.raises(SandboxError):
                async with other.acquire(NAMED):
                    pass
        assert await first.get("mine") == b"1"


@pytest.mark.parametrize("kind", ["pods", "claims"])
async def test_the_end_is_renewed_and_only_our_orphans_are_swept(world: World, kind: Any) -> None:
    plural = "pods" if kind == "pods" else "sandboxclaims"
    async with world.open(kind) as sandbox, sandbox.acquire(NAMED) as lease:
        (name,) = world.cluster.list_names(plural)
        mine = world.cluster.objects[plural, name]
        orphan = mine | {"metadata": mine["metadata"] | {"name": "orphan"}, "status": {}}
        foreign = orphan | {
            "metadata": orphan["metadata"] | {"name": "foreign", "labels": {"mainspring.dev/deployment": "mainspring"}}
        }
        other = orphan | {"metadata": orphan["metadata"] | {"name": "other", "labels": {**mine["metadata"]["labels"]}}}
        other["metadata"]["labels"]["mainspring.dev/deployment"] = "another"
        for each in (orphan, foreign, other):
            await world.cluster.store(plural, each, "ADDED")
        world.cluster.clock_ahead = 250
        await sandbox.sweep()
        await sandbox.renew()
        world.cluster.clock_ahead = 500
        await sandbox.sweep()
        with anyio.fail_after(PATIENCE):
            while "orphan" in world.cluster.list_names(plural):  # noqa: ASYNC110 (the stand-in sets no event)
                await asyncio.sleep(0.01)
        assert set(world.cluster.list_names(plural)) == {name, "foreign", "other"}
        assert (await lease.execute("print(1)")).stdout == "1\n"
        if kind == "claims":
            assert (
                world.cluster.objects[plural, name]["spec"]["lifecycle"]["shutdownTime"]
                > mine["spec"]["lifecycle"]["shutdownTime"]
            )


async def test_without_agent_sandbox_containers_are_plain_pods_and_health_says_so(world: World) -> None:
    world.cluster.versions = []
    async with world.open("claims") as sandbox, sandbox.acquire() as lease:
        assert (await lease.execute("print(1)")).stdout == "1\n"
        assert "agent-sandbox is not installed" in (await sandbox.health()).warnings[0]
        assert world.cluster.list_names("sandboxclaims") == []


async def test_agent_sandbox_of_another_version_is_refused(world: World) -> None:
    world.cluster.versions = ["v1alpha1"]
    assert "as v1alpha1, not v1beta1" in await refusal(world, kind="claims")


async def test_all_missing_rights_are_named_at_once(world: World) -> None:
    world.cluster.forbidden = {("create", "pods"), ("create", "pods/exec")}
    told = await refusal(world)
    assert "`create` `pods`, `create` `pods/exec` in namespace `agents`" in told


async def test_a_right_that_is_lost_later_is_named_too(world: World) -> None:
    async with world.open() as sandbox:
        await sandbox.check()
        world.cluster.silent_about = {("create", "pods")}
        with pytest.raises(SandboxError, match="RBAC lets us not `create` `pods`"):
            async with sandbox.acquire():
                pass


async def test_a_missing_namespace_pool_and_an_open_template_are_named(world: World) -> None:
    assert "there is no namespace `nowhere`" in await refusal(world, namespace="nowhere")
    assert "there is no SandboxWarmPool `gone`" in await refusal(world, kind="claims", warm_pool="gone")
    open_template = build_template(networkPolicy={"egress": [{}]})
    assert find_flaw("sandboxtemplates", open_template) is None
    await world.cluster.store("sandboxtemplates", open_template)
    assert "lets its pods into the network" in await refusal(world, kind="claims")


async def test_quota_image_schedule_and_credentials_are_told(world: World) -> None:
    world.cluster.quota = 0
    assert "the quota of namespace `agents` is used up" in await refusal(world)
    world.cluster.quota, world.cluster.is_pullable = 10, False
    assert "the image `python:3.13-slim` cannot be pulled: ErrImagePull" in await refusal(world)
    world.cluster.is_pullable, world.cluster.is_scheduled = True, False
    assert "0/3 nodes are available" in await refusal(world, start_seconds=0.5)
    config = json.loads(world.kubeconfig.read_text())
    config["users"][0]["user"]["token"] = "wrong"
    world.kubeconfig.write_text(json.dumps(config))
    assert "the cluster does not know us" in await refusal(world)


async def test_an_api_server_that_is_not_there_is_told(world: World, free_tcp_port: int) -> None:
    right = world.kubeconfig.read_text()
    world.kubeconfig.write_text(right.replace(str(world.cluster.port), str(free_tcp_port)))
    assert "cannot be reached" in await refusal(world)


async def test_what_was_missing_is_looked_for_again(world: World) -> None:
    world.cluster.quota = 0
    async with world.open() as sandbox:
        assert not (await sandbox.health()).is_ok
        world.cluster.quota = 10
        async with sandbox.acquire():
            health = await sandbox.health()
        assert (health.is_ok, health.refused) == (True, ())


async def test_a_pod_that_reaches_the_api_server_is_not_used(world: World) -> None:
    world.cluster.is_walled = False
    assert "reach the API server although network policies forbid it" in await refusal(world)


async def test_a_pod_of_a_template_without_limits_or_a_held_root_is_not_used(world: World) -> None:
    template = build_template()
    container = template["spec"]["podTemplate"]["spec"]["containers"][0]
    container["securityContext"]["readOnlyRootFilesystem"] = False
    await world.cluster.store("sandboxtemplates", template)
    assert "write to the root of their file system" in await refusal(world, kind="claims")
    del container["resources"]["limits"]["memory"]
    await world.cluster.store("sandboxtemplates", template)
    assert "no limit of memory" in await refusal(world, kind="claims")


async def test_lost_answers_overload_and_cut_watches_are_survived(world: World) -> None:
    async with world.open() as sandbox:
        await sandbox.check()
        world.cluster.lost_answers, world.cluster.overloads, world.cluster.cut_watches = 1, 2, 1
        async with sandbox.acquire(NAMED) as lease:
            assert len(world.cluster.list_names("pods")) == 1, "the pod whose making was not confirmed is found again"
            assert (await lease.execute("print(1)")).stdout == "1\n"
    assert world.cluster.list_names("pods") == []


async def test_a_pod_that_is_lost_ends_its_run_and_the_next_use_says_so(world: World) -> None:
    async with world.open() as sandbox, sandbox.acquire() as lease:
        output = lease.run("import time\nprint('on', flush=True)\ntime.sleep(600)")
        await anext(output)
        (name,) = world.cluster.list_names("pods")
        await world.cluster.remove("pods", name)
        assert [part async for part in output] == [ProgramExit(None, reason="lost")]
        with pytest.raises(SandboxError):
            await lease.put("file", b"x")
        await sandbox.renew()
        with pytest.raises(SandboxError, match="is gone, with its files"):
            await lease.put("file", b"x")


async def test_a_lease_with_the_network_is_a_pod_that_no_egress_policy_selects(world: World) -> None:
    async with world.open("claims") as sandbox, sandbox.acquire(SandboxSpec(network=True)):
        assert world.cluster.list_names("sandboxclaims") == []
        (pod,) = [found for (kind, _), found in world.cluster.objects.items() if kind == "pods"]
        assert pod["metadata"]["labels"]["mainspring.dev/network"] == "open"


async def test_a_full_disk_and_a_link_are_told(world: World) -> None:
    limits = SandboxLimits(disk=2 << 20, file=64 << 20)
    async with world.open() as sandbox, sandbox.acquire(SandboxSpec(limits=limits)) as lease:
        full = await lease.execute("import time\nopen('a', 'wb').write(bytes(8 << 20))\ntime.sleep(600)")
        assert full.exit.reason == "disk_limit"
        await lease.remove("a")
        await lease.execute("import os\nos.symlink('/etc', 'link')")
        for path in ("link/passwd", "link"):
            with pytest.raises(Exception, match="leads over a link"):
                await lease.get(path)


@pytest.mark.requirement("A2", "A29")
async def test_a_client_of_a_server_has_its_code_run_in_a_pod(world: World) -> None:
    builtins = BuiltinTools(["code_interpreter"], sandbox="kubernetes", kubernetes=world.settle("claims"))
    script = (call("code_interpreter", code="6 * 7"), say("Done.", expect="42"))
    engine = Engine(Scripted(*script), builtins=builtins)
    async with hosted(server(engine)) as url, AsyncOpenAI(base_url=url, api_key="unused", max_retries=0) as client:
        response = await client.responses.create(
            model="m", input="Go.", tools=[{"type": "code_interpreter", "container": {"type": "auto"}}]
        )
        assert response.output_text == "Done."
        assert len(world.cluster.list_names("sandboxclaims")) == 1
        async with httpx2.AsyncClient() as http:
            health = (await http.get(url.removesuffix("/v1") + "/health")).json()
        assert (health["status"], health["sandbox"]["backend"], health["sandbox"]["leases"]) == ("ok", "kubernetes", 1)
    assert world.cluster.list_names("sandboxclaims") == world.cluster.list_names("pods") == []


async def test_the_doctor_says_which_pods_hold_and_why_not(world: World) -> None:
    choice = SandboxChoice("kubernetes", world.settle("claims"))
    found = await examine_sandbox(choice)
    assert (found.verdict, "kubernetes (claims of python" in found.detail) == ("ok", True)
    world.cluster.is_walled = False
    assert "reach the API server" in (await examine_sandbox(choice)).detail


@pytest.mark.parametrize(
    ("where", "given", "told"),
    [
        ("user", {"exec": {"command": "aws"}}, "a program that fetches credentials"),
        ("user", {"username": "admin"}, "a password"),
        ("cluster", {"insecure-skip-tls-verify": True}, "insecure-skip-tls-verify"),
        ("cluster", {"server": "http://example.org"}, "without TLS"),
    ],
)
async def test_what_a_kubeconfig_may_not_have_is_refused_in_words(
    world: World, where: str, given: dict[str, Any], told: str
) -> None:
    config = json.loads(world.kubeconfig.read_text())
    config[f"{where}s"][0][where] |= given
    world.kubeconfig.write_text(json.dumps(config))
    with pytest.raises(SandboxError, match=told):
        find_cluster(world.settle())


async def test_the_service_account_of_a_pod_is_used_and_its_token_read_again(tmp_path: Path, world: World) -> None:
    account = tmp_path / "account"
    entry = json.loads(world.kubeconfig.read_text())["clusters"][0]["cluster"]
    account.mkdir()
    (account / "token").write_text("first\n")
    (account / "namespace").write_text("own")
    (account / "ca.crt").write_bytes(base64.b64decode(entry["certificate-authority-data"]))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
        cluster = find_cluster(KubernetesSettings(), account)
    assert (str(cluster.server), cluster.namespace, cluster.read_token()) == ("https://10.0.0.1", "own", "first")
    (account / "token").write_text("second")
    assert cluster.read_token() == "second"


async def test_a_missing_kubeconfig_is_told(tmp_path: Path) -> None:
    with pytest.raises(SandboxError, match="there is no kubeconfig"):
        find_cluster(KubernetesSettings(kubeconfig=str(tmp_path / "none")))


async def test_the_role_of_the_docs_has_all_rights_and_its_pool_works(world: World) -> None:
    page = (Path(__file__).parents[2] / "docs" / "kubernetes.md").read_text()
    role, *pool = [
        yaml.safe_load(part) for block in re.findall(r"```yaml\n(.*?)```", page, re.DOTALL) for part in block.split("---\n")
    ]
    granted = {
        (verb, f"{name}.{group}" if group else name)
        for rule in role["rules"]
        for verb in rule["verbs"]
        for name in rule["resources"]
        for group in rule["apiGroups"]
    }
    assert granted == {(verb, str(resource)) for verb, resource in (*RIGHTS, *CLAIM_RIGHTS)}
    for found, plural in zip(pool, ("sandboxtemplates", "sandboxwarmpools"), strict=True):
        assert find_flaw(plural, found | {"metadata": {"name": "python"}}) is None
        await world.cluster.store(plural, found)
    async with world.open("claims") as sandbox, sandbox.acquire() as lease:
        assert (await lease.execute("print(1)")).stdout == "1\n"
