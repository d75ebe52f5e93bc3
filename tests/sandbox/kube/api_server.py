"""A stand-in for the API server of a cluster and what stands behind it: real HTTP and WebSockets, with TLS and tokens.

It takes only what the published schemas allow, keeps objects and their versions, and answers watches. Pods are folders; what is
executed in them are processes of this machine, held by bubblewrap as their securityContext asks. It refuses, loses answers, cuts
connections and loses pods as a test tells it to.
"""

import asyncio
import json
import os
import ssl
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from email.utils import formatdate
from itertools import count
from pathlib import Path
from shutil import rmtree
from time import time
from typing import Any

from aiohttp import WSMsgType, web
from tests.sandbox.kube.schemas import find_flaw

Object = dict[str, Any]
TOKEN = "token-of-a-test"
NAMESPACE = "agents"
PLURALS = ("pods", "networkpolicies", "sandboxclaims", "sandboxwarmpools", "sandboxtemplates", "sandboxes")
VERBS = {"POST": "create", "GET": "get", "PATCH": "patch", "DELETE": "delete"}


class StandIn:
    """What the cluster has, and how it misbehaves."""

    def __init__(self, folder: Path, bwrap: Path) -> None:
        self.folder, self.bwrap = folder, bwrap
        self.objects: dict[tuple[str, str], Object] = {}
        self.asked: list[str] = []
        self.forbidden: set[tuple[str, str]] = set()
        """Verbs and resources that RBAC does not allow, as far as the answer to a review goes and beyond."""
        self.silent_about: set[tuple[str, str]] = set()
        """Those that are refused though a review allowed them."""
        self.versions = ["v1beta1"]
        self.namespace, self.quota = NAMESPACE, 1_000
        self.is_pullable = self.is_walled = self.is_scheduled = True
        self.lost_answers = self.overloads = self.cut_watches = 0
        self.clock_ahead = 0.0
        self.port = 0
        self._versions, self._numbers = count(100), count(1)
        self._changed = asyncio.Condition()
        self._events: list[tuple[int, str, str, Object]] = []
        self._running: dict[str, list[asyncio.subprocess.Process]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def list_names(self, plural: str) -> list[str]:
        return [name for kind, name in self.objects if kind == plural]

    def list_running(self) -> list[str]:
        """The pods in which something runs."""
        return [name for name, found in self._running.items() if any(each.returncode is None for each in found)]

    async def store(self, plural: str, found: Object, event: str = "MODIFIED") -> Object:
        version = next(self._versions)
        meta = found["metadata"] | {"resourceVersion": str(version), "namespace": self.namespace}
        found = found | {"metadata": {"uid": f"uid-{version}"} | meta}
        if event == "DELETED":
            self.objects.pop((plural, meta["name"]), None)
        else:
            self.objects[plural, meta["name"]] = found
        async with self._changed:
            self._events.append((version, plural, event, found))
            self._changed.notify_all()
        return found

    async def remove(self, plural: str, name: str) -> None:
        """Deletes an object and what belongs to it. A pod's processes are killed, and its folder is gone."""
        found = self.objects.get((plural, name))
        if found is None:
            return
        if plural == "sandboxclaims" and (sandbox := found.get("status", {}).get("sandbox")):
            await self.remove("pods", f"{sandbox['name']}-pod")
            await self.remove("sandboxes", sandbox["name"])
        if plural == "pods":
            for process in self._running.pop(name, ()):
                with suppress(ProcessLookupError):
                    process.kill()
                await process.wait()
            rmtree(self.folder / name, ignore_errors=True)
        await self.store(plural, found, "DELETED")

    async def start_pod(self, pod: Object) -> None:
        name = pod["metadata"]["name"]
        image = pod["spec"]["containers"][0]["image"]
        status: Object = {"phase": "Pending", "conditions": []}
        if not self.is_scheduled:
            why = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes are available"}
            await self.store("pods", pod | {"status": status | {"conditions": [why]}})
            return
        container: Object = {"name": "sandbox", "image": image, "ready": self.is_pullable, "state": {"running": {}}}
        if not self.is_pullable:
            container["state"] = {"waiting": {"reason": "ErrImagePull", "message": "not found"}}
        for part in ("workspace", "tmp"):
            (self.folder / name / part).mkdir(parents=True)
        phase = "Running" if self.is_pullable else "Pending"
        await self.store("pods", pod | {"status": {"phase": phase, "containerStatuses": [container]}})

    async def start_claim(self, claim: Object) -> None:
        pool = self.objects.get(("sandboxwarmpools", claim["spec"]["warmPoolRef"]["name"]))
        name = f"warm-{next(self._numbers)}"
        ready: Object = {"type": "Ready", "status": "False", "reason": "WarmPoolNotFound", "message": "no such pool"}
        status: Object = {"conditions": [ready]}
        if pool is not None:
            template = self.objects["sandboxtemplates", pool["spec"]["sandboxTemplateRef"]["name"]]["spec"]
            meta = {"name": name, "annotations": {"agents.x-k8s.io/pod-name": f"{name}-pod"}}
            await self.store("sandboxes", {"metadata": meta, "spec": {"podTemplate": template["podTemplate"]}})
            labels = claim["spec"].get("additionalPodMetadata", {}).get("labels", {})
            pod = {"metadata": {"name": f"{name}-pod", "labels": labels}, "spec": template["podTemplate"]["spec"]}
            await self.start_pod(await self.store("pods", pod, "ADDED"))
            status = {"conditions": [ready | {"status": "True", "reason": "DependenciesReady"}], "sandbox": {"name": name}}
        await self.store("sandboxclaims", claim | {"status": status})

    async def handle(self, request: web.Request) -> web.StreamResponse:
        if request.headers.get("Authorization") != f"Bearer {TOKEN}":
            return self.refuse(401, "Unauthorized", "Unauthorized")
        self.asked.append(f"{request.method} {request.path_qs}")
        if self.overloads:
            self.overloads -= 1
            return self.refuse(429, "TooManyRequests", "too many requests")
        parts = [part for part in request.path.split("/") if part]
        if parts[-1] == "selfsubjectaccessreviews":
            return await self.review(request)
        if parts[:1] == ["apis"] and len(parts) == 2:
            if not self.versions:
                return self.refuse(404, "NotFound", "the server could not find the requested resource")
            return self.answer({"kind": "APIGroup", "versions": [{"version": each} for each in self.versions]})
        space, plural, name, *rest = [*parts[parts.index("namespaces") + 1 :], ""]
        verb = "list" if not name and request.method == "GET" else VERBS[request.method]
        assert plural in PLURALS, request.path
        resource = f"{plural}/exec" if rest[:1] == ["exec"] else plural
        if (verb, resource) in self.forbidden | self.silent_about:
            told = f'{resource} is forbidden: "u" cannot {verb} resource "{resource}" in API group "" in the namespace "{space}"'
            return self.refuse(403, "Forbidden", told)
        if space != self.namespace and request.method in ("POST", "PATCH"):
            return self.refuse(404, "NotFound", f'namespaces "{space}" not found', {"kind": "namespaces", "name": space})
        if resource == "pods/exec":
            return await self.execute(request, name)
        answer = await self.serve(request, verb, plural, name)
        if self.lost_answers and verb in ("create", "delete"):
            self.lost_answers -= 1
            assert request.transport is not None
            request.transport.abort()
        return answer

    async def serve(self, request: web.Request, verb: str, plural: str, name: str) -> web.StreamResponse:
        found = self.objects.get((plural, name))
        if verb == "list":
            if "watch" in request.query:
                return await self.watch(request, plural)
            wanted = dict(pair.split("=") for pair in request.query["labelSelector"].split(","))
            kept = [each for (kind, _), each in self.objects.items() if kind == plural]
            chosen = [each for each in kept if wanted.items() <= each["metadata"].get("labels", {}).items()]
            return self.answer({"kind": "List", "items": chosen})
        if verb == "create":
            return await self.create(plural, await request.json(), "dryRun" in request.query)
        if request.content_type == "application/apply-patch+yaml":
            given = await request.json()
            if flaw := find_flaw(plural, given):
                return self.refuse(400, "BadRequest", f"strict decoding error: {flaw}")
            return self.answer(await self.store(plural, given, "MODIFIED" if found else "ADDED"))
        if found is None:
            return self.refuse(404, "NotFound", f'{plural} "{name}" not found', {"kind": plural, "name": name})
        if verb == "patch":
            assert request.content_type == "application/merge-patch+json"
            merged = merge(found, await request.json())
            if flaw := find_flaw(plural, merged):
                return self.refuse(422, "Invalid", flaw)
            return self.answer(await self.store(plural, merged))
        if verb == "delete":
            given = await request.json()
            assert set(given) <= {"propagationPolicy", "gracePeriodSeconds", "preconditions"}
            if not given["preconditions"].items() <= found["metadata"].items():
                return self.refuse(409, "Conflict", "the precondition does not hold")
            self._spawn(self.remove(plural, name))
        return self.answer(found)

    async def create(self, plural: str, given: Object, is_dry: bool) -> web.Response:
        if flaw := find_flaw(plural, given):
            return self.refuse(422, "Invalid", flaw)
        name = given["metadata"]["name"]
        if (plural, name) in self.objects:
            return self.refuse(409, "AlreadyExists", f'{plural} "{name}" already exists')
        if plural == "pods" and len(self.list_names("pods")) >= self.quota:
            told = f'pods "{name}" is forbidden: exceeded quota: pods, requested: pods=1, used: pods=9, limited: pods=9'
            return self.refuse(403, "Forbidden", told)
        if is_dry:
            return self.answer(given, 201)
        found = await self.store(plural, given, "ADDED")
        if plural in ("pods", "sandboxclaims"):
            self._spawn(self.start_pod(found) if plural == "pods" else self.start_claim(found))
        return self.answer(found, 201)

    async def review(self, request: web.Request) -> web.Response:
        given = await request.json()
        assert (flaw := find_flaw("selfsubjectaccessreviews", given)) is None, flaw
        asked = given["spec"]["resourceAttributes"]
        resource = "/".join(part for part in (asked["resource"], asked["subresource"]) if part)
        return self.answer(given | {"status": {"allowed": (asked["verb"], resource) not in self.forbidden}}, 201)

    async def watch(self, request: web.Request, plural: str) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "application/json", "Date": self.tell_time()})
        await response.prepare(request)
        name, seen = request.query["fieldSelector"].partition("=")[2], int(request.query["resourceVersion"])
        if self.cut_watches:
            self.cut_watches -= 1
            gone = {"type": "ERROR", "object": {"kind": "Status", "code": 410, "reason": "Expired"}}
            await response.write(json.dumps(gone).encode() + b"\n")
            return response
        with suppress(TimeoutError, ConnectionError):
            async with asyncio.timeout(float(request.query["timeoutSeconds"])):
                while True:
                    new = [each for each in self._events if each[0] > seen]
                    for version, kind, event, found in new:
                        seen = version
                        if kind == plural and found["metadata"]["name"] == name:
                            await response.write(json.dumps({"type": event, "object": found}).encode() + b"\n")
                    async with self._changed:
                        if self._events[-1][0] <= seen:
                            await self._changed.wait()
        return response

    async def execute(self, request: web.Request, name: str) -> web.StreamResponse:
        pod = self.objects.get(("pods", name))
        if pod is None:
            return self.refuse(404, "NotFound", f'pods "{name}" not found', {"kind": "pods", "name": name})
        assert request.query["container"] == pod["spec"]["containers"][0]["name"]
        assert len(request.path_qs) < 2_000, "some proxies take no longer ones"
        socket = web.WebSocketResponse(protocols=("v5.channel.k8s.io", "v4.channel.k8s.io"), max_msg_size=1 << 20)
        await socket.prepare(request)
        assert socket.ws_protocol == "v5.channel.k8s.io"
        pipe = asyncio.subprocess.PIPE
        command = self.hold(pod, request.query.getall("command"))
        process = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe, stderr=pipe, env={})
        self._running.setdefault(name, []).append(process)
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        pumps = [asyncio.create_task(pump(process.stdout, 1, socket)), asyncio.create_task(pump(process.stderr, 2, socket))]
        ending = asyncio.create_task(self.tell_end(process, pumps, socket))
        async for message in socket:
            if message.type != WSMsgType.BINARY:
                break
            assert message.data[0] == 0, "only standard input is sent"
            with suppress(ConnectionError):
                process.stdin.write(message.data[1:])
                await process.stdin.drain()
        # As a kubelet does: the program is not killed, but finds its input at its end.
        process.stdin.close()
        await asyncio.wait([ending])
        return socket

    async def tell_end(self, process: asyncio.subprocess.Process, pumps: list[asyncio.Task[None]], socket: Any) -> None:
        code = await process.wait()
        await asyncio.wait(pumps)
        status = {"status": "Success"} if code == 0 else {"status": "Failure", "reason": "NonZeroExitCode", "message": str(code)}
        with suppress(ConnectionError, RuntimeError):
            await socket.send_bytes(b"\x03" + json.dumps(status).encode())
            await socket.close()

    def hold(self, pod: Object, command: list[str]) -> list[str]:
        spec, folder = pod["spec"], self.folder / pod["metadata"]["name"]
        user = spec["securityContext"]["runAsUser"]
        prefixes = [each for each in (sys.prefix, sys.base_prefix) if not each.startswith("/usr")]
        shown = ["/usr", "/bin", "/lib", "/lib64", "/etc/alternatives", *dict.fromkeys(prefixes)]
        mounts = [word for each in shown if os.path.exists(each) for word in ("--ro-bind", each, each)]
        is_read_only = spec["containers"][0]["securityContext"]["readOnlyRootFilesystem"]
        own = ["--bind", f"{folder}/workspace", "/workspace", "--bind", f"{folder}/tmp", "/tmp"]
        variables = {
            "PATH": f"{sys.prefix}/bin:/usr/local/bin:/usr/bin:/bin",
            "KUBERNETES_SERVICE_HOST": "127.0.0.1",
            "KUBERNETES_SERVICE_PORT": str(self.port),
        }
        return [
            *(str(self.bwrap), "--unshare-all", "--unshare-user", "--die-with-parent", "--cap-drop", "ALL"),
            *("--uid", str(user), "--gid", str(user), "--tmpfs", "/", *mounts, "--dev", "/dev", "--proc", "/proc", *own),
            *(["--remount-ro", "/"] if is_read_only else []),
            *([] if self.is_walled else ["--share-net"]),
            *(word for name, value in variables.items() for word in ("--setenv", name, value)),
            *("--chdir", spec["containers"][0]["workingDir"], *command),
        ]

    def tell_time(self) -> str:
        return formatdate(time() + self.clock_ahead, usegmt=True)

    def answer(self, found: Object, status: int = 200) -> web.Response:
        return web.json_response(found, status=status, headers={"Date": self.tell_time()})

    def refuse(self, status: int, reason: str, message: str, details: Object | None = None) -> web.Response:
        told = {
            "kind": "Status",
            "status": "Failure",
            "message": message,
            "reason": reason,
            "details": details or {},
            "code": status,
        }
        return web.json_response(told, status=status)

    def _spawn(self, work: Any) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        for name in self.list_names("pods"):
            await self.remove("pods", name)


def merge(found: Object, patch: Object) -> Object:
    merged = dict(found)
    for name, value in patch.items():
        merged[name] = merge(merged.get(name, {}), value) if isinstance(value, dict) else value
    return merged


async def pump(reader: asyncio.StreamReader, channel: int, socket: web.WebSocketResponse) -> None:
    while data := await reader.read(8_192):
        with suppress(ConnectionError, RuntimeError):
            await socket.send_bytes(bytes([channel]) + data)


@asynccontextmanager
async def serve_cluster(folder: Path, tls: ssl.SSLContext, bwrap: Path) -> AsyncIterator[StandIn]:
    stand_in = StandIn(folder, bwrap)
    app = web.Application(client_max_size=1 << 24)
    app.router.add_route("*", "/{path:.*}", stand_in.handle)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls)
    await site.start()
    stand_in.port = runner.addresses[0][1]
    try:
        yield stand_in
    finally:
        await stand_in.close()
        await runner.cleanup()
