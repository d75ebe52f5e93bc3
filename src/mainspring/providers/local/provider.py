"""A model on this machine: a GGUF file run by llama.cpp, without key or server of anybody's.

Theory of operation. The first request fetches the weights if need be and starts a child process (`model_process`), in which
llama.cpp serves the model on a loopback port under a fresh key. `Chat` speaks to it, and `Constrained` makes tool calls of it,
since small models make none of their own accord. The child holds a pipe from us, so it ends with us, whatever ends us. If it
dies, the request at hand fails and the next one starts another, after a pause that grows with the failures in a row.
"""

import importlib.util
import os
import signal
import sys
import tempfile
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import ExitStack, aclosing, suppress
from logging import getLogger
from pathlib import Path
from secrets import token_urlsafe
from subprocess import PIPE
from typing import IO

import anyio
import msgspec
from anyio import CancelScope, Lock
from anyio.abc import Process
from anyio.streams.buffered import BufferedByteReceiveStream
from msgspec.structs import replace

from mainspring.core.backoff import backoff
from mainspring.core.errors import InvalidRequest, ModelNotFound, Refused, Unavailable
from mainspring.core.events import ModelEvent
from mainspring.core.ids import NewId, random_id
from mainspring.core.items import FunctionCallOutput, InputFile, InputImage, Message
from mainspring.core.model_request import ModelRequest
from mainspring.ports import DocumentStore, KnownProfile, ModelInfo, ProfileValue
from mainspring.providers.chat.provider import Chat
from mainspring.providers.constrained.provider import Constrained
from mainspring.providers.local.model_process import ModelOrder
from mainspring.providers.local.weights import (
    SMOLLM2,
    STYLES,
    AnswerStyle,
    Progress,
    end_process,
    fetch_weights,
    find_cache_folder,
    find_source,
)
from mainspring.providers.profile_book import Pins, ProfileBook
from mainspring.providers.profile_documents import StoredProfiles

log = getLogger(__name__)

RUNTIME = "xllamacpp"
# A small model may not find the end of its answer; without a bound it would go on for minutes, and all others wait.
ANSWER_TOKENS = 2048
# How many answers are made at once, so that a long one does not hold the others up. They share the context.
SLOTS = 2
LOAD_SECONDS = 600.0
DEATH_SECONDS = 2.0
LONGEST_PAUSE = 8.0


def is_available() -> bool:
    """Whether the runtime is installed. Does not import it."""
    return importlib.util.find_spec(RUNTIME) is not None


class Local:
    """A `Provider` that runs the model itself. `model` is `smollm2`, the path of a `.gguf` file, or `hf:OWNER/REPO/FILE.gguf`.

    `progress` is told in lines what takes long: downloading and loading. `cache` is where weights are kept, by default the
    user's cache folder. `profiles` are fields of its profile that hold, by model. `slots` answers are made at once, and share the
    context; who sets no `max_output_tokens` gets at most `ANSWER_TOKENS`, and fewer of the smallest model.
    Raises `InvalidRequest` if the runtime is not installed or the model cannot be one.
    """

    name = "local"
    runs_in_place = True

    def __init__(
        self,
        model: str = SMOLLM2,
        *,
        progress: Callable[[str], None] | None = None,
        cache: Path | None = None,
        context_tokens: int = 8192,
        threads: int | None = None,
        slots: int = SLOTS,
        profiles: Pins | None = None,
        new_id: NewId = random_id,
    ) -> None:
        if not is_available():
            raise InvalidRequest(
                f"model `{model}` needs the local runtime, which is not installed (or has no wheel for this machine): "
                "pip install 'mainspring[local]', or use a model behind an API",
                param="model",
            )
        self._model = model
        self._source = find_source(model)
        self._style = STYLES.get(model, AnswerStyle())
        self._progress: Progress = progress or (lambda _: None)
        self._cache = cache or find_cache_folder()
        self._context_tokens = context_tokens
        self._threads = threads or min(_cores(), 8)
        self._slots = slots
        self._new_id = new_id
        self._child: _Child | None = None
        self._starting = Lock()
        self._failures = 0
        self._book = ProfileBook("local", "local", profiles)

    @property
    def pid(self) -> int | None:
        """The process the model runs in, while there is one."""
        return self._child.pid if self._child is not None and self._child.is_alive else None

    @property
    def address(self) -> str | None:
        """Where that process listens: on loopback, to nobody without its key."""
        return self._child.address if self._child is not None and self._child.is_alive else None

    async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
        names = ("local", self._model, f"local:{self._model}", Path(self._model).name, Path(self._model).stem)
        if request.model not in names:
            raise ModelNotFound(f"there is no model `{request.model[:80]}` here; the only one is `local` ({names[-1]})")
        _check_readable(request)
        child = await self._start()
        if request.max_output_tokens is None:
            request = replace(request, max_output_tokens=self._style.most_tokens or ANSWER_TOKENS)
        try:
            async with aclosing(child.provider.stream(request)) as events:
                async for event in events:
                    yield event
        except Unavailable as error:
            if (ending := await child.wait_for_end()) is None:
                raise
            self._failures += 1
            what = f"the local model's process {ending} while it answered"
            raise Unavailable(f"{what}; ask again, and it is started anew") from error
        self._failures = 0

    async def models(self) -> Sequence[ModelInfo]:
        """The one model. Does not start it."""
        return (ModelInfo(self._model, "local"),)

    def keep_profiles(self, store: DocumentStore) -> None:
        self._book.open(StoredProfiles(store))

    async def write_profiles(self) -> None:
        await self._book.close()

    async def explain_profiles(self, model: str) -> Sequence[KnownProfile]:
        await self._book.load()
        return (self._book.explain(self._model),)

    async def find_window(self, model: str) -> int | None:
        return self._context_tokens

    async def learn_profile(self, model: str, values: Mapping[str, ProfileValue], evidence: str) -> None:
        await self._book.load()
        self._book.learn(self._model, values, evidence)

    async def forget_profiles(self, model: str) -> int:
        await self._book.load()
        return self._book.forget(self._model)

    async def close(self) -> None:
        """Ends the child and whatever it is answering."""
        async with self._starting:
            await self._stop()

    async def _stop(self) -> None:
        child, self._child = self._child, None
        if child is not None:
            await child.close()

    async def _start(self) -> "_Child":
        async with self._starting:
            if self._child is not None and self._child.is_alive:
                return self._child
            await self._stop()
            weights = await fetch_weights(self._source, self._cache, self._progress)
            if self._failures > 1:
                await anyio.sleep(backoff(self._failures, base=0.5, cap=LONGEST_PAUSE))
            size = (await anyio.Path(weights).stat()).st_size
            self._progress(f"loading {weights.name} ({size / 1e6:.0f} MB) ...")
            order = ModelOrder(
                str(weights),
                self._context_tokens,
                self._threads,
                token_urlsafe(24),
                self._model,
                self._slots,
                self._style.temperature,
                self._style.top_p,
            )
            try:
                self._child = await _Child.start(order, self._new_id)
            except Unavailable:
                self._failures += 1
                raise
            self._progress(f"{self._model} is ready{_HINT if self._model == SMOLLM2 else ''}")
            return self._child


class _Child:
    """A started llama.cpp, and how to talk to it."""

    def __init__(self, process: Process, complaints: IO[bytes], address: str, provider: Constrained) -> None:
        self._process = process
        self._complaints = complaints
        self.address = address
        self.provider = provider
        self.pid = process.pid

    @classmethod
    async def start(cls, order: ModelOrder, new_id: NewId) -> "_Child":
        """A child that is ready to answer. Raises `Unavailable` if it does not come to that; on cancel it is gone."""
        with ExitStack() as stack:
            # What it complains of goes to a file without a name: nobody has to read along, and it goes with us.
            complaints = stack.enter_context(tempfile.TemporaryFile())
            # Not in our process group: a Ctrl-C is for us, and we end the child in good order.
            command = [sys.executable, "-P", "-m", "mainspring.providers.local.model_process"]
            process = await anyio.open_process(command, stdin=PIPE, stdout=PIPE, stderr=complaints, start_new_session=True)
            address = None
            try:
                address = await _address(process, order)
            finally:
                if address is None:
                    await end_process(process)
            if address is None:
                ending = _ending(process, complaints)
                advice = "is it a whole GGUF file? the log says more"
                raise Unavailable(f"`{order.path}` could not be loaded: the process {ending}; {advice}")
            stack.pop_all()
        chat = Chat(f"{address}/v1", api_key=order.api_key, name="local", new_id=new_id)
        return cls(process, complaints, address, Constrained(chat, new_id=new_id))

    @property
    def is_alive(self) -> bool:
        return self._process.returncode is None

    async def wait_for_end(self) -> str | None:
        """How the child ended, None if it is alive. A broken connection may be known a moment before the death behind it."""
        with anyio.move_on_after(DEATH_SECONDS):
            await self._process.wait()
            return _ending(self._process, self._complaints)
        return None

    async def close(self) -> None:
        with CancelScope(shield=True):
            await self.provider.close()
            await end_process(self._process)
            self._complaints.close()


async def _address(process: Process, order: ModelOrder) -> str | None:
    """Where the child listens, once it does; None if it ended before, or took too long."""
    assert process.stdin is not None
    assert process.stdout is not None
    with anyio.move_on_after(LOAD_SECONDS), suppress(anyio.EndOfStream, anyio.IncompleteRead, anyio.BrokenResourceError):
        await process.stdin.send(msgspec.json.encode(order) + b"\n")
        return (await BufferedByteReceiveStream(process.stdout).receive_until(b"\n", 4096)).decode()
    return None


def _ending(process: Process, complaints: IO[bytes]) -> str:
    """How the process ended. Its complaints may be about anybody's requests: they are for the operator, not for clients."""
    code = process.returncode or 0
    how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with status {code}"
    # Closed if another request found it dead first, and has cleared it away.
    if not complaints.closed:
        complaints.seek(0)
        words = " ".join(complaints.read().decode(errors="replace").split())
        log.warning("the local model's process %s; its last words: %s", how, words[-300:] or "none")
    return how


def _check_readable(request: ModelRequest) -> None:
    """Raises `Refused` for what the model would have to look at."""
    for item in request.items:
        parts = item.content if isinstance(item, Message) else item.output if isinstance(item, FunctionCallOutput) else ()
        for part in parts:
            if isinstance(part, InputImage | InputFile):
                what = "an image" if isinstance(part, InputImage) else "a file"
                advice = "leave it out, or use a model behind an API"
                raise Refused(f"local models read text only, and the input has {what}; {advice}")


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1


_HINT = "; it is very small, so expect little: `mainspring models pull` fetches one that can call tools"
