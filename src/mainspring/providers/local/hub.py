"""Downloads files of the Hugging Face hub: with progress, resumed where they broke off, and checked.

`HF_ENDPOINT` names another hub, `HF_TOKEN` gives access to private files. The hub tells the SHA-256 sum of a large file before
sending it; a partial download is kept under that sum, so it is only ever resumed by more of the same file.
"""

import hashlib
import os
import re
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, closing
from pathlib import Path
from shutil import disk_usage
from time import monotonic
from typing import IO

import anyio
from anyio import to_thread
from msgspec import Struct
from yarl import URL

from mainspring.core.backoff import backoff
from mainspring.core.errors import ProviderError, Unavailable
from mainspring.net.client import HttpClient, encode_headers, make_endpoint
from mainspring.net.connection import Answer, HttpError
from mainspring.providers.http_failures import Complaint, build_error

HUB = "https://huggingface.co"
SILENCE_SECONDS = 60.0
PROGRESS_SECONDS = 0.5
TRIES = 5
MOST_REDIRECTS = 10
PIECE = 1 << 20


class HubFile(Struct, frozen=True):
    """A file of a hub: of `mirror`, or of the one that the environment names."""

    repo: str
    file: str
    mirror: str | None = None

    @property
    def url(self) -> URL:
        hub = URL((self.mirror or os.environ.get("HF_ENDPOINT") or HUB).rstrip("/"))
        return hub.joinpath(*self.repo.split("/"), "resolve", "main", *self.file.split("/"))


class Downloaded(Struct, frozen=True):
    """How much of a file is there, in bytes."""

    file: str
    size: int
    total: int

    def tell(self) -> str:
        return f"downloading {self.file}: {100 * self.size // max(self.total, 1)} % of {self.total / 1e6:.0f} MB"


Gauge = Callable[[Downloaded], None]


async def download(source: HubFile, target: Path, progress: Gauge) -> None:
    """Downloads the file to `target`, which only ever appears whole. Raises a `ProviderError`; the next call resumes.

    A connection that breaks is resumed, as long as every few attempts make progress.
    """
    async with HttpClient(seconds=SILENCE_SECONDS) as client:
        try:
            known = await _fetch_info(client, source)
        except HttpError as error:
            raise Unavailable(f"{source.url} cannot be reached ({error}); check the network or HF_ENDPOINT") from error
        part = await to_thread.run_sync(_PartialFile, target.with_name(f"{target.name}.{known.sha256[:16]}.part"), known)
        with closing(part):
            if (free := disk_usage(target.parent).free) < known.size - part.size:
                needed = f"{(known.size - part.size) / 1e6:.0f} MB"
                raise Unavailable(
                    f"{target.parent} has {free / 1e6:.0f} MB left, and {needed} are needed; make room or set XDG_CACHE_HOME"
                )
            await _complete(client, source, part, progress)
        await to_thread.run_sync(part.become, target, str(source.url))


@asynccontextmanager
async def _ask(client: HttpClient, method: str, url: URL, headers: Mapping[str, str] | None = None) -> AsyncIterator[Answer]:
    """The answer, of GET after all redirects. The token is for the hub, and not for where that sends us."""
    token = os.environ.get("HF_TOKEN", "").strip()
    sent = {"User-Agent": "Mainspring", "Accept-Encoding": "identity", **(headers or {})}
    private = {"Authorization": f"Bearer {token}"} if token else {}
    for _ in range(MOST_REDIRECTS):
        reply = await client.request(method, make_endpoint(url), encode_headers({**sent, **private}.items()))
        with closing(reply):
            location = reply.headers.get("Location")
            if method == "HEAD" or location is None or reply.status not in (301, 302, 303, 307, 308):
                yield reply
                return
        target = url.join(URL(location))
        private = private if target.origin() == url.origin() else {}
        url = target
    raise HttpError(f"more than {MOST_REDIRECTS} redirects")


class _HubInfo(Struct, frozen=True):
    """What the hub says of a file beforehand."""

    sha256: str
    size: int


class _PartialFile:
    """The beginning of a file, and the sum over it."""

    def __init__(self, path: Path, known: _HubInfo) -> None:
        self.path = path
        self.known = known
        self.size = 0
        self._digest = hashlib.sha256()
        self._file: IO[bytes] = path.open("a+b")
        self._file.seek(0)
        while piece := self._file.read(PIECE):
            self._count(piece)

    def close(self) -> None:
        self._file.close()

    @property
    def is_whole(self) -> bool:
        return self.size >= self.known.size

    def add(self, piece: bytes) -> None:
        """Takes the piece, but for what is beyond the file's size."""
        piece = piece[: self.known.size - self.size]
        self._file.write(piece)
        self._count(piece)

    def restart(self) -> None:
        self._file.truncate(0)
        self.size = 0
        self._digest = hashlib.sha256()

    def become(self, target: Path, url: str) -> None:
        """Gives the file its name, if it is what it should be; else it goes."""
        if (found := self._digest.hexdigest()) == self.known.sha256:
            self.path.replace(target)
            return
        self.path.unlink()
        raise Unavailable(f"{url} arrived with the SHA-256 sum {found}, not {self.known.sha256}; it is not used; try again")

    def _count(self, piece: bytes) -> None:
        self._digest.update(piece)
        self.size += len(piece)


async def _fetch_info(client: HttpClient, source: HubFile) -> _HubInfo:
    """Asks for the head of the file, not of where it is sent from: only the hub itself knows the sum."""
    async with _ask(client, "HEAD", source.url) as reply:
        if reply.status >= 400:
            raise _refusal(reply.status, source)
        sha256 = reply.headers.get("X-Linked-ETag", "").removeprefix("W/").strip('"').lower()
        size = reply.headers.get("X-Linked-Size", "")
    if not re.fullmatch("[0-9a-f]{64}", sha256) or not size.isdecimal():
        raise Unavailable(f"{source.url} has no SHA-256 sum and size on the hub, so it cannot be checked; download it by hand")
    return _HubInfo(sha256, int(size))


async def _complete(client: HttpClient, source: HubFile, part: _PartialFile, progress: Gauge) -> None:
    tries, reached = 0, part.size
    while not part.is_whole:
        try:
            await _continue(client, source, part, progress)
            problem = "the connection was closed"
        except HttpError as error:
            problem = str(error)
        tries, reached = (0 if part.size > reached else tries + 1), max(reached, part.size)
        if tries >= TRIES:
            where = f"at {part.size / 1e6:.0f} MB ({problem})"
            raise Unavailable(f"the download of {source.url} broke off {where}; try again, and it goes on from there")
        if not part.is_whole:
            await anyio.sleep(backoff(tries, base=0.2))


async def _continue(client: HttpClient, source: HubFile, part: _PartialFile, progress: Gauge) -> None:
    async with _ask(client, "GET", source.url, {"Range": f"bytes={part.size}-"} if part.size else None) as reply:
        if reply.status >= 500 or reply.status == 429:
            raise HttpError(f"HTTP {reply.status}")
        if reply.status >= 400:
            raise _refusal(reply.status, source)
        if part.size and reply.status != 206:
            part.restart()
        due, total = 0.0, part.known.size
        while piece := await reply.read():
            await to_thread.run_sync(part.add, piece)
            if part.is_whole or monotonic() >= due:
                due = monotonic() + PROGRESS_SECONDS
                progress(Downloaded(source.file, part.size, total))
            if part.is_whole:
                return


def _refusal(status: int, source: HubFile) -> ProviderError:
    said = Complaint(_ADVICE.get(status, ""), ("model_not_found",) if status == 404 else ())
    return build_error(status, said, f"{source.url} answered HTTP {status}")


_NOT_READABLE = "it does not exist, or needs an HF_TOKEN that may read it"
_ADVICE = {401: _NOT_READABLE, 403: _NOT_READABLE, 404: "the hub has no such repository or file"}
