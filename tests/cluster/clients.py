"""Clients that do not give up: whatever fails is asked again, at another server, under the same key. All that they see is written
down for the checker."""

import json
import time
from asyncio import TimeoutError as Late
from base64 import b64decode, b64encode
from collections.abc import Awaitable, Callable
from contextlib import suppress
from hashlib import sha256
from hmac import digest
from random import Random
from time import monotonic
from typing import Any

import aiohttp
import anyio
from tests.cluster.deployment import Deployment, Member
from tests.cluster.history import (
    DONE,
    ENDED,
    Accepted,
    Answered,
    Cancelled,
    Conversed,
    Indexed,
    Kept,
    Seen,
    Streamed,
    Unanswered,
    WorkflowAccepted,
    WorkflowCancelled,
)

Json = dict[str, Any]
FAILED = (aiohttp.ClientError, Late, OSError)
# How long a client waits for a server that says nothing, until it asks another.
SILENCE = aiohttp.ClientTimeout(total=None, sock_connect=3.0, sock_read=9.0)
# How long a client asks on when all is well. It is far more than anything may take.
GIVE_UP = 90.0
ABANDONED = 0.3
USED = "approval_already_given"
PING = b": ping\n\n"


class Cluster:
    """What clients share: the servers, the history, and whether faults still come. Whoever asks in vain gives up only some time
    after the last of them."""

    def __init__(self, deployment: Deployment, history: list[Seen], target: str) -> None:
        self.deployment, self.history = deployment, history
        # Where steps of workflows send their requests.
        self.target = target
        # The webhook that starts a workflow, with its secret.
        self.webhook: Json = {}
        self.calm_since = float("inf")
        self.is_over = False

    @property
    def is_patient(self) -> bool:
        return monotonic() < self.calm_since + GIVE_UP


class Client:
    """One that does one thing after the other, until faults are over."""

    def __init__(self, cluster: Cluster, session: aiohttp.ClientSession, name: str, seed: str) -> None:
        self._cluster, self._session, self._name = cluster, session, name
        self._random = Random(f"{seed} {name}")
        self._count = 0
        self._container = self._library = ""
        self.done: list[str] = []

    async def work(self) -> None:
        deeds: list[Callable[[], Awaitable[None]]] = [
            self.wait_for_a_run,
            self.stream_a_run,
            self.read_a_background_run,
            self.cancel_a_run,
            self.cancel_a_run,
            self.approve_a_call,
            self.converse,
            self.converse_by_id,
            self.spend,
            self.run_an_errand,
            self.cancel_an_errand,
            self.keep_files,
            self.send_a_message,
            self.index_a_file,
        ]
        while not self._cluster.is_over:
            deed = self._random.choice(deeds)
            await deed()
            self.done.append(deed.__name__)
            await anyio.sleep(self._random.uniform(0, 0.5))

    def _pick(self) -> Member:
        return self._random.choice(self._cluster.deployment.servers)

    def _next_key(self) -> str:
        self._count += 1
        return f"{self._name}-{self._count}"

    def _see(self, seen: Seen) -> None:
        self._cluster.history.append(seen)

    def _headers(self, key: str = "", is_frugal: bool = False) -> dict[str, str]:
        deployment = self._cluster.deployment
        secret = deployment.frugal_key if is_frugal else deployment.key
        return {"authorization": f"Bearer {secret}", **({"idempotency-key": key} if key else {})}

    async def ask(
        self,
        method: str,
        path: str,
        body: Json | None = None,
        key: str = "",
        is_frugal: bool = False,
        make_data: Callable[[], tuple[Any, dict[str, str]]] | None = None,
    ) -> tuple[int, Json]:
        """The answer that counts: not one of a server that cannot say now. `make_data` makes another body than JSON, with its
        headers."""
        said: object = None
        while self._cluster.is_patient:
            server = self._pick()
            data, more = (None, {}) if make_data is None else make_data()
            headers = {**self._headers(key, is_frugal), **more}
            try:
                async with self._session.request(
                    method, server.url + path, json=body, data=data, headers=headers, timeout=SILENCE
                ) as answer:
                    told = await answer.json()
                    code = told.get("error", {}).get("code") if answer.status != 200 else ""
                    if answer.status < 500 and (answer.status != 409 or code == USED):
                        return answer.status, told
                    said = answer.status, told
            except (*FAILED, json.JSONDecodeError) as error:
                said = repr(error)
            await anyio.sleep(self._random.uniform(0.05, 0.5))
        self._see(Unanswered(monotonic(), f"{method} {path} {key}: {said}"))
        return 0, {}

    async def order(self, text: str, is_frugal: bool = False, **body: Any) -> Json:
        """The response to a request, which may have ended; nothing if it was refused."""
        key = self._next_key()
        status, told = await self.ask("POST", "/responses", {"model": "m", "input": text, **body}, key, is_frugal)
        if status == 200:
            self._see(Accepted(monotonic(), told["id"], key))
            return told
        if status and not is_frugal:
            self._see(Unanswered(monotonic(), f"{text}: {status} {told}"))
        return {}

    async def wait_for_a_run(self) -> None:
        await self.order("work, please")

    async def spend(self) -> None:
        await self.order("spend, please", is_frugal=True, background=self._random.random() < 0.5)

    async def read_a_background_run(self) -> None:
        if told := await self.order(self._random.choice(["work", "tell"]), background=True):
            await self.read(told["id"])

    async def stream_a_run(self) -> None:
        """One connection that is made with the request, and if it is cut, others that read on."""
        key, body = self._next_key(), {"model": "m", "input": self._random.choice(["work", "tell"]), "stream": True}
        run, last = "", -1
        while self._cluster.is_patient and not run:
            server = self._pick()
            frames = b""
            try:
                async with self._session.post(
                    f"{server.url}/responses", json=body, headers=self._headers(key), timeout=SILENCE
                ) as answer:
                    if answer.status == 200:
                        frames = await self._read_frames(answer)
            except FAILED:
                pass
            if frames.startswith(b"event: "):
                run = json.loads(frames.partition(b"data: ")[2].partition(b"\n")[0])["response"]["id"]
                self._see(Accepted(monotonic(), run, key))
                self._see(Streamed(monotonic(), run, server.name, -1, frames))
                last = find_last(frames, -1)
            else:
                await anyio.sleep(self._random.uniform(0.05, 0.5))
        if not run:
            self._see(Unanswered(monotonic(), f"a stream for {key}"))
        elif not frames.endswith(DONE):
            await self.read(run, last)

    async def read(self, run: str, last: int = -1) -> None:
        """Reads a run to its end, with as many connections as it takes, each to any server."""
        while self._cluster.is_patient:
            server, frames = self._pick(), b""
            after = "" if last < 0 else f"&starting_after={last}"
            try:
                async with self._session.get(
                    f"{server.url}/responses/{run}?stream=true{after}", headers=self._headers(), timeout=SILENCE
                ) as answer:
                    if answer.status == 200:
                        frames = await self._read_frames(answer)
            except FAILED:
                pass
            if frames:
                self._see(Streamed(monotonic(), run, server.name, last, frames))
                if frames.endswith(DONE):
                    return
                last = find_last(frames, last)
            await anyio.sleep(self._random.uniform(0.05, 0.3))
        self._see(Unanswered(monotonic(), f"the rest of the stream of {run} behind {last}"))

    async def _read_frames(self, answer: aiohttp.ClientResponse) -> bytes:
        """What comes, until it ends, or is cut, or this client has had enough: whole frames without pings."""
        read = b""
        enough = self._random.randrange(500, 20_000) if self._random.random() < ABANDONED else None
        with suppress(*FAILED):
            async for piece in answer.content.iter_any():
                read += piece
                if enough is not None and len(read) > enough:
                    break
        return b"".join([frame + b"\n\n" for frame in read.split(b"\n\n")[:-1] if frame + b"\n\n" != PING])

    async def cancel_a_run(self) -> None:
        if not (told := await self.order(self._random.choice(["wait", "wait", "work", "tell"]), background=True)):
            return
        await anyio.sleep(self._random.choice([0.0, 0.2, 0.6, 1.2]))
        status, ended = await self.ask("POST", f"/responses/{told['id']}/cancel")
        if status == 200 and ended["status"] == "cancelled":
            self._see(Cancelled(monotonic(), told["id"]))
        elif status == 200 and ended["status"] not in ENDED:
            self._see(Unanswered(monotonic(), f"a cancel of {told['id']} was answered {ended['status']}"))

    async def approve_a_call(self) -> None:
        """Two persons say yes at the same time, each at a server of their own."""
        told = await self.order("wipe", background=True)
        if not told:
            return
        asked = await self.wait_for_end(told["id"])
        for item in asked.get("output", ()):
            if item["type"] == "mcp_approval_request":
                async with anyio.create_task_group() as tasks:
                    for _ in range(2):
                        tasks.start_soon(self._approve, item["id"], told["id"])

    async def _approve(self, question: str, asker: str) -> None:
        status, told = await self.ask("POST", f"/approvals/{question}", {"approve": True})
        if status == 200:
            self._see(Answered(monotonic(), question, asker, told["id"]))
            self._see(Accepted(monotonic(), told["id"], f"continues {asker}"))
        elif told.get("error", {}).get("code") == USED:
            self._see(Answered(monotonic(), question, asker))
        elif status:
            self._see(Unanswered(monotonic(), f"{question}: {status} {told}"))

    async def converse(self) -> None:
        """Several turns, each at any server; each must have what came before."""
        previous: str | None = None
        for number in range(3):
            body: Json = {} if previous is None else {"previous_response_id": previous}
            told = await self.order(f"tell me number {number}" if number else "look", background=True, **body)
            if not told or (await self.wait_for_end(told["id"])).get("status") != "completed":
                return
            previous = told["id"]

    async def converse_by_id(self) -> None:
        """The same in a conversation, whose items are looked at in the end."""
        status, made = await self.ask("POST", "/conversations", {})
        if status != 200:
            return
        for number in range(3):
            text = f"{self._name} {self._count} says {number}"
            told = await self.order(text, background=True, conversation=made["id"])
            if not told or (await self.wait_for_end(told["id"])).get("status") != "completed":
                return
            self._see(Conversed(monotonic(), made["id"], text))

    async def start_errand(self) -> str:
        """A run of a workflow, or nothing."""
        key, inputs = self._next_key(), {"url": self._cluster.target}
        status, told = await self.ask("POST", "/workflows/errand/runs", {"inputs": inputs, "background": True}, key)
        if status != 200:
            self._see(Unanswered(monotonic(), f"a workflow: {status} {told}"))
            return ""
        self._see(WorkflowAccepted(monotonic(), told["id"], key))
        return str(told["id"])

    async def run_an_errand(self) -> None:
        await self.start_errand()

    async def cancel_an_errand(self) -> None:
        if not (run := await self.start_errand()):
            return
        await anyio.sleep(self._random.choice([0.0, 0.3, 0.6, 1.2]))
        status, ended = await self.ask("POST", f"/workflows/errand/runs/{run}/cancel")
        if status == 200 and ended["status"] == "cancelled":
            self._see(WorkflowCancelled(monotonic(), run))

    async def keep_files(self) -> None:
        """Puts two files at a time into a container, and reads one of them."""
        if not self._container:
            status, made = await self.ask("POST", "/containers", {"name": self._name})
            if status != 200:
                self._see(Unanswered(monotonic(), f"a container: {status} {made}"))
                return
            self._container = made["id"]
        async with anyio.create_task_group() as tasks:
            for _ in range(2):
                tasks.start_soon(self._keep_file, self._next_key())

    async def _keep_file(self, name: str) -> None:
        data = self._random.randbytes(2000)
        form = make_form(name, data)
        status, told = await self.ask("POST", f"/containers/{self._container}/files", make_data=form)
        if status == 200:
            self._see(Kept(monotonic(), self._container, name, sha256(data).hexdigest()))
        elif status:
            self._see(Unanswered(monotonic(), f"the file {name}: {status} {told}"))

    async def send_a_message(self) -> None:
        """The same signed message twice at once, each at any server."""
        id = self._next_key()
        async with anyio.create_task_group() as tasks:
            for _ in range(2):
                tasks.start_soon(self._send, id, json.dumps({"url": self._cluster.target}).encode())

    async def _send(self, id: str, body: bytes) -> None:
        webhook = self._cluster.webhook
        secret = b64decode(webhook["secret"].removeprefix("whsec_"))

        def sign() -> tuple[bytes, dict[str, str]]:
            now = str(int(time.time()))
            signature = b64encode(digest(secret, f"{id}.{now}.".encode() + body, "sha256")).decode()
            return body, {"webhook-id": id, "webhook-timestamp": now, "webhook-signature": f"v1,{signature}"}

        status, told = await self.ask("POST", webhook["path"].removeprefix("/v1"), make_data=sign)
        if status == 200:
            self._see(WorkflowAccepted(monotonic(), told["run_id"], f"message {id}"))
        elif status:
            self._see(Unanswered(monotonic(), f"message {id}: {status} {told}"))

    async def index_a_file(self) -> None:
        """Puts a file with a word of its own into a vector store, and waits until it is indexed."""
        if not self._library:
            _, made = await self.ask("POST", "/vector_stores", {"name": self._name})
            self._library = made.get("id", "")
        word = f"{self._name}word{self._next_key().rpartition('-')[2]}"
        text = f"The word of this file is {word}, and no other has it.".encode()
        _, uploaded = await self.ask("POST", "/files", make_data=make_form("words.txt", text, purpose="assistants"))
        files = f"/vector_stores/{self._library}/files"
        status, told = await self.ask("POST", files, {"file_id": uploaded.get("id", "")})
        while status == 200 and told["status"] == "in_progress" and self._cluster.is_patient:
            await anyio.sleep(0.2)
            status, told = await self.ask("GET", f"{files}/{uploaded['id']}")
        if status == 200 and told["status"] == "completed":
            self._see(Indexed(monotonic(), self._library, uploaded["id"], word))
        else:
            self._see(Unanswered(monotonic(), f"the file of {word}: {status} {told}"))

    async def wait_for_end(self, run: str) -> Json:
        while self._cluster.is_patient:
            status, told = await self.ask("GET", f"/responses/{run}")
            if status != 200 or told["status"] in ENDED:
                return told
            await anyio.sleep(0.1)
        self._see(Unanswered(monotonic(), f"the end of {run}"))
        return {}


def make_form(name: str, data: bytes, **fields: str) -> Callable[[], tuple[Any, dict[str, str]]]:
    """A form with a file; one that was sent cannot be sent again."""

    def make() -> tuple[Any, dict[str, str]]:
        form = aiohttp.FormData(fields)
        form.add_field("file", data, filename=name)
        return form, {}

    return make


def find_last(frames: bytes, otherwise: int) -> int:
    """The number of the last event."""
    events = [frame.partition(b"data: ")[2] for frame in frames.split(b"\n\n") if b"sequence_number" in frame]
    return int(json.loads(events[-1])["sequence_number"]) if events else otherwise
