"""The API of a cluster, as far as the sandbox needs it: objects of one namespace, watches, and connections into pods.

Every refusal becomes one line that says what to do. What a server may have done although its answer was lost is asked again:
all requests here can be repeated, creation included, because whoever creates knows its own objects.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping
from email.utils import parsedate_to_datetime
from types import TracebackType
from typing import Final, Literal, Self

import msgspec
from msgspec import Struct
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import InvalidHandshake, InvalidStatus
from websockets.typing import Subprotocol
from yarl import URL

from mainspring.core.errors import SandboxError
from mainspring.core.items import Json
from mainspring.net.client import HttpClient, encode_headers, make_endpoint
from mainspring.net.connection import Answer, HttpError
from mainspring.tools.sandbox.kubernetes.cluster import Cluster

Verb = Literal["create", "get", "list", "watch", "patch", "delete"]

SILENCE_SECONDS: Final = 30.0
WATCH_SECONDS: Final = 20
TRIES: Final = 4
MOST_BYTES: Final = 16 << 20
CHANNELS: Final = (Subprotocol("v5.channel.k8s.io"), Subprotocol("v4.channel.k8s.io"))
_METHODS: Final = {"create": "POST", "get": "GET", "list": "GET", "watch": "GET", "patch": "PATCH", "delete": "DELETE"}


class Resource(Struct, frozen=True):
    """A kind of object in the namespace, or with `is_global` of the cluster."""

    plural: str
    group: str = ""
    version: str = "v1"
    is_global: bool = False

    def __str__(self) -> str:
        return f"{self.plural}.{self.group}" if self.group else self.plural


PODS: Final = Resource("pods")
POLICIES: Final = Resource("networkpolicies", "networking.k8s.io")
REVIEWS: Final = Resource("selfsubjectaccessreviews", "authorization.k8s.io", is_global=True)
EXTENSIONS: Final = "extensions.agents.x-k8s.io"
VERSION: Final = "v1beta1"
CLAIMS: Final = Resource("sandboxclaims", EXTENSIONS, VERSION)
WARM_POOLS: Final = Resource("sandboxwarmpools", EXTENSIONS, VERSION)
TEMPLATES: Final = Resource("sandboxtemplates", EXTENSIONS, VERSION)
SANDBOXES: Final = Resource("sandboxes", "agents.x-k8s.io", VERSION)


class Status(Struct):
    """What the server says of a request that it refuses."""

    message: str = ""
    reason: str = ""
    details: dict[str, object] = {}


class ApiRefused(SandboxError):
    """The server refused a request, with this HTTP status."""

    def __init__(self, message: str, http_status: int, reason: str) -> None:
        super().__init__(message)
        self.http_status, self.reason = http_status, reason


class ClusterApi:
    """Use as `async with`."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self._clock_ahead = 0.0
        """How far the server's clock is ahead of the event loop's."""
        self._loop = asyncio.get_running_loop()
        self._client = HttpClient(seconds=SILENCE_SECONDS, proxy="", tls=cluster.tls)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self._client.close()

    def read_clock(self) -> float:
        """Seconds since 1970 as the server has them, who judges when something is over."""
        return self._loop.time() + self._clock_ahead

    async def call(
        self, verb: Verb, resource: Resource, name: str = "", body: Json | None = None, query: Mapping[str, str] | None = None
    ) -> Json:
        """Raises `ApiRefused` for what the server refuses, `SandboxError` if it cannot be reached."""
        answer = await self._send(verb, resource, name, body, query)
        try:
            found: Json = msgspec.json.decode(await _read_all(answer))
            return found
        except (HttpError, msgspec.DecodeError) as error:
            raise SandboxError(f"the API server {self.cluster.server} broke off its answer: {error}") from error
        finally:
            answer.close()

    async def list_versions(self, group: str) -> tuple[str, ...]:
        """The versions of an API group that are served, none if it is not installed."""
        try:
            found = await self.call("get", Resource("", group, "", is_global=True))
        except ApiRefused as error:
            if error.http_status == 404:
                return ()
            raise
        return tuple([str(each["version"]) for each in found["versions"]])

    async def watch(self, resource: Resource, found: Json) -> AsyncIterator[Json]:
        """The object as it was found, then each time it has changed; ends after a while, and when it is to be looked up again."""
        meta = found["metadata"]
        query = {"watch": "1", "fieldSelector": f"metadata.name={meta['name']}", "timeoutSeconds": str(WATCH_SECONDS)}
        answer = await self._send("watch", resource, "", None, {**query, "resourceVersion": meta["resourceVersion"]})
        lines = b""
        try:
            while data := await answer.read():
                *whole, lines = (lines + data).split(b"\n")
                for line in whole:
                    event: Json = msgspec.json.decode(line)
                    if event["type"] not in ("ADDED", "MODIFIED"):
                        return
                    yield event["object"]
        except (HttpError, msgspec.DecodeError):
            return
        finally:
            answer.close()

    async def open_exec(self, pod: str, container: str, command: tuple[str, ...]) -> ClientConnection:
        """Starts a program in a pod. Raises as `call` does."""
        words = [("command", word) for word in command]
        wanted = [("container", container), *[(each, "true") for each in ("stdin", "stdout", "stderr")]]
        server = self._locate(PODS, f"{pod}/exec").with_query([*words, *wanted])
        try:
            return await connect(
                str(server.with_scheme("wss" if server.scheme == "https" else "ws")),
                ssl=self.cluster.tls,
                subprotocols=CHANNELS,
                additional_headers=dict(self._list_headers()),
                compression=None,
                proxy=None,
                max_size=MOST_BYTES,
                open_timeout=SILENCE_SECONDS,
                ping_timeout=SILENCE_SECONDS * 2,
            )
        except InvalidStatus as error:
            said = bytes(error.response.body or b"")
            raise self._explain("create", Resource("pods/exec"), error.response.status_code, said) from error
        except (OSError, InvalidHandshake, TimeoutError) as error:
            raise SandboxError(f"the API server {self.cluster.server} gives no connection into a pod: {error}") from error

    async def _send(
        self, verb: Verb, resource: Resource, name: str, body: Json | None, query: Mapping[str, str] | None
    ) -> Answer:
        url = self._locate(resource, name).with_query(query or {})
        kind = {"create": "json", "delete": "json", "patch": "merge-patch+json"}.get(verb, "json")
        if query and "fieldManager" in query:
            kind = "apply-patch+yaml"  # JSON is YAML.
        data = None if body is None else msgspec.json.encode(body)
        told = "nothing"
        for attempt in range(TRIES):
            headers = encode_headers([*self._list_headers(), ("Content-Type", f"application/{kind}")])
            try:
                answer = await self._client.request(_METHODS[verb], make_endpoint(url), headers, data)
                self._set_clock(answer)
                if answer.status < 300:
                    return answer
                try:
                    said = await _read_all(answer)
                finally:
                    answer.close()
                refused = self._explain(verb, resource, answer.status, said)
                if answer.status != 429 and answer.status < 500:
                    raise refused
                told = refused.message
            except HttpError as error:
                told = f"the API server {self.cluster.server} cannot be reached: {error}; check its address"
            if attempt < TRIES - 1:
                await asyncio.sleep(0.1 * 4**attempt)
        raise SandboxError(told)

    def _locate(self, resource: Resource, name: str) -> URL:
        start = ("apis", resource.group, resource.version) if resource.group else ("api", resource.version)
        space = () if resource.is_global else ("namespaces", self.cluster.namespace)
        parts = [part for part in (*start, *space, resource.plural, *name.split("/")) if part]
        return self.cluster.server.joinpath(*parts)

    def _list_headers(self) -> list[tuple[str, str]]:
        token = self.cluster.read_token()
        return [("Authorization", f"Bearer {token}")] if token else []

    def _set_clock(self, answer: Answer) -> None:
        try:
            self._clock_ahead = parsedate_to_datetime(answer.headers.get("Date", "")).timestamp() - self._loop.time()
        except ValueError:
            return

    def _explain(self, verb: Verb, resource: Resource, status: int, body: bytes) -> ApiRefused:
        """What the refusal means here. What Kubernetes has no field for is told apart by its words."""
        try:
            said = msgspec.json.decode(body, type=Status)
        except msgspec.DecodeError:
            said = Status(body[:200].decode(errors="replace"))
        space, whole = self.cluster.namespace, " ".join(said.message.split())[:500]
        match status:
            case 401:
                told = "the cluster does not know us; renew the token or the certificate"
            case 403 if "exceeded quota" in whole:
                told = f"the quota of namespace `{space}` is used up: {whole}; raise it, or end other pods"
            case 403 if f"cannot {verb} resource" in whole or "cannot get resource" in whole:
                told = f"RBAC lets us not `{verb}` `{resource}` in namespace `{space}`; add it to our Role"
            case 403:
                told = f"the cluster refuses `{resource}` in namespace `{space}`: {whole}"
            case 404 if said.details.get("kind") == "namespaces":
                told = f"there is no namespace `{space}`; make it, or set `namespace` in the table [kubernetes]"
            case _:
                told = f"the API server refuses to {verb} `{resource}` in namespace `{space}`: HTTP {status} {whole}"
        return ApiRefused(told, status, said.reason)


async def _read_all(answer: Answer) -> bytes:
    data = bytearray()
    while piece := await answer.read():
        data += piece
        if len(data) > MOST_BYTES:
            raise HttpError(f"it has more than {MOST_BYTES} bytes")
    return bytes(data)
