"""The files of tenants: what is known of each is a document of the store, its bytes are in the storage of files.

Theory of operation. Bytes come in under a new key, before it is known what they are; then a document says that they are a file.
A tenant's files that have the same bytes share them, and a document counts how many do. Whoever takes the last one away marks
that document as dead, and nobody brings it back to life: a file that comes in meanwhile keeps its bytes to itself.

What has to be removed some day (what came in and was never made a file, what expires) is noted beforehand, in a document without
a tenant. So a crash costs room until the next sweep, and loses nothing; one between a file and the count of its bytes keeps those
for good.
"""

import re
from collections.abc import AsyncGenerator, AsyncIterable, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing, suppress
from hashlib import md5, sha256
from logging import getLogger
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final
from weakref import WeakValueDictionary

import anyio
from msgspec import Struct
from msgspec.structs import replace

from mainspring.core.errors import FilesUnavailable, InvalidRequest, MainspringError, NotFound, StoreError
from mainspring.core.ids import NewId, random_id
from mainspring.core.items import decode, encode
from mainspring.features.files.settings import UploadSettings
from mainspring.features.files.stored_file import PREFIX, Purpose, StoredFile
from mainspring.ports import Document, DocumentStore, FileStorage, NamedFile
from mainspring.storage.choose_files import choose_files
from mainspring.storage.file_folder import FileFolder
from mainspring.storage.location import Location

log = getLogger(__name__)

FILE: Final = "file"
CONTENT: Final = "file_content"
DUE: Final = "file_due"
ROOM: Final = "file_room"
UPLOAD: Final = "upload"
SPACE: Final = "files"
_MIME: Final = re.compile(r"[\w.+-]{1,80}/[\w.+-]{1,120}", re.ASCII)
# How long bytes may take to come in, and to become a file.
INCOMING_SECONDS: Final = 86_400.0
SWEEP_SECONDS: Final = 300.0
# How long the room for a file is kept for whoever is about to add it.
ROOM_SECONDS: Final = 60.0
READ_AT_ONCE: Final = 500


class Content(Struct, frozen=True):
    """Bytes that came in. Their `key` is removed some day, unless `Files.add` makes a file of them."""

    key: str
    size: int
    sha256: str
    md5: str


class SharedContent(Struct, frozen=True):
    """Bytes that files of a tenant share, and how many do; 0 if they are being removed."""

    key: str
    count: int


class Due(Struct, frozen=True, omit_defaults=True):
    """What is to be removed at a time: a key of the storage, or a document with what belongs to it."""

    at: float
    key: str = ""
    tenant: str = ""
    file: str = ""
    upload: str = ""


class ClaimedRoom(Struct, frozen=True):
    """Bytes of a file that is about to be there, counted until then."""

    size: int
    until: float


class TenantRoom(Struct, frozen=True):
    """Who is about to add files of a tenant, by the ids of those. Whoever counts its files writes here, so that of two that count
    at once one counts again; `version` counts the changes, since one may be undone while another counts."""

    claims: dict[str, ClaimedRoom] = {}
    version: int = 0


class Files:
    """The files of all tenants. `storage` is where their bytes are. Without one, those of a store in memory are in a folder that
    goes with the process; with any other store there is no place for them."""

    def __init__(
        self,
        store: DocumentStore,
        storage: FileStorage | None,
        settings: UploadSettings | None = None,
        new_id: NewId = random_id,
        forget: Callable[[str, str], Awaitable[None]] | None = None,
    ) -> None:
        """`forget` is told the tenant and the id of each file that is removed."""
        self.store, self.settings, self.new_id = store, settings or UploadSettings(), new_id
        self._storage, self._folder, self._forget = storage, "", forget
        self._counting: WeakValueDictionary[str, anyio.Lock] = WeakValueDictionary()
        self._temporary: TemporaryDirectory[str] | None = None

    async def open_storage(self) -> FileStorage:
        """The storage, tried out when it is first asked for. Raises `FilesUnavailable`."""
        if self._storage is None and not self.store.is_durable:
            self._temporary = TemporaryDirectory(prefix="mainspring-files-")
            self._storage = FileFolder(Path(self._temporary.name))
        if self._storage is None:
            raise FilesUnavailable(
                "this server has no place for files: set `files` to a folder that all its processes share, or to a bucket such "
                "as s3://BUCKET/PREFIX"
            )
        if not self._folder:
            await self._storage.open()
            # Several deployments may share a storage, and none is to remove the files of another.
            await self.store.put([Document("file_space", SPACE, random_id("space").encode())], if_absent=True)
            space = await self.store.get("file_space", SPACE)
            assert space is not None
            self._folder = f"{SPACE}/{space.body.decode()}"
        return self._storage

    def close(self) -> None:
        if self._temporary is not None:
            self._temporary.cleanup()

    async def receive(self, pieces: AsyncIterable[bytes], most: int | None = None, room: int | None = None) -> Content:
        """Keeps bytes as they come in. Raises `InvalidRequest` for more than `most`, else for more than a file may have, and for
        more than the tenant has `room` for."""
        storage = await self.open_storage()
        name = random_id("b").partition("_")[2]
        key = f"{self._folder}/{name[:2]}/{name}"
        limit = self.settings.file_bytes if most is None else most
        due = Due(await self.store.read_clock() + INCOMING_SECONDS, key=key)
        await self.store.put([Document(DUE, key, encode(due))])
        size, long, short = 0, sha256(), md5(usedforsecurity=False)

        async def count() -> AsyncGenerator[bytes, None]:
            nonlocal size
            async for piece in pieces:
                size += len(piece)
                if room is not None and size > room:
                    raise self._refuse_more(room)
                if size > limit:
                    told = f"the file has more than {limit} bytes, the most that it may have here; send a smaller one"
                    raise InvalidRequest(told, param="file", code="file_too_large")
                long.update(piece)
                short.update(piece)
                yield piece

        try:
            await storage.put_pieces(key, count())
        except Exception:  # Whoever is cancelled cannot know whether it is there: it stays noted.
            with anyio.CancelScope(shield=True), suppress(MainspringError):
                await self.store.remove(DUE, key)
            raise
        return Content(key, size, long.hexdigest(), short.hexdigest())

    async def add(
        self,
        tenant: str,
        content: Content,
        filename: str,
        purpose: Purpose,
        seconds: float | None = None,
        id: str | None = None,
        mime: str = "",
    ) -> StoredFile:
        """Makes a file of bytes that came in. With an `id` that is there already, nothing happens but that they go."""
        id = id or PREFIX + self.new_id("file").partition("_")[2]
        await self._claim_room(tenant, id, content)
        try:
            return await self._add(tenant, content, filename, purpose, seconds, id, mime)
        finally:
            await self._change_claim(tenant, id, None)

    async def _add(
        self, tenant: str, content: Content, filename: str, purpose: Purpose, seconds: float | None, id: str, mime: str
    ) -> StoredFile:
        now = await self.store.read_clock()
        made = StoredFile(
            id,
            filename,
            purpose,
            content.size,
            content.sha256,
            content.key,
            now,
            None if seconds is None else now + seconds,
            content.sha256,
            kind if _MIME.fullmatch(kind := mime.partition(";")[0].strip()) else "",
        )
        if not (await self._add_alone(tenant, made) or await self._add_shared(tenant, made)):
            await self.drop(content.key)
            return await self.get(tenant, made.id)
        kept = await self.get(tenant, made.id)
        if kept.key == content.key:
            await self.store.remove(DUE, content.key)
        else:
            await self.drop(content.key)
        return kept

    async def _add_alone(self, tenant: str, file: StoredFile) -> bool:
        """Adds the first file of this tenant's that has these bytes."""
        counted = Document(CONTENT, file.content, encode(SharedContent(file.key, 1)), tenant)
        return await self.store.put([counted, *_documents(tenant, file)], if_absent=True)

    async def _add_shared(self, tenant: str, file: StoredFile) -> bool:
        """Adds one more, with the bytes that are there; with its own if those are about to go."""
        while True:
            if (found := await self.store.get(CONTENT, file.content, tenant=tenant)) is None:
                if await self._add_alone(tenant, file):
                    return True
                if await self.store.get(FILE, file.id, tenant=tenant) is not None:
                    return False
                continue
            shared = decode(found.body, SharedContent)
            if shared.count == 0:
                return await self.store.put(_documents(tenant, replace(file, content="")), if_absent=True)
            if await self._count(tenant, file.content, found.body, 1):
                if await self.store.put(_documents(tenant, replace(file, key=shared.key)), if_absent=True):
                    return True
                await self._release(tenant, file.content)
                return False

    async def _count(self, tenant: str, content: str, known: bytes, change: int) -> bool:
        shared = decode(known, SharedContent)
        changed = encode(SharedContent(shared.key, shared.count + change))
        return await self.store.swap(Document(CONTENT, content, changed, tenant), known)

    async def _release(self, tenant: str, content: str) -> None:
        """One file less has these bytes. They go with the last one."""
        while (found := await self.store.get(CONTENT, content, tenant=tenant)) is not None:
            shared = decode(found.body, SharedContent)
            if shared.count == 0 or await self._count(tenant, content, found.body, -1):
                if shared.count <= 1:
                    await self.drop(shared.key)
                    await self.store.remove(CONTENT, content, tenant=tenant, number=found.number)
                return

    async def drop(self, key: str) -> None:
        """Removes bytes that no file has."""
        await self.store.put([Document(DUE, key, encode(Due(0.0, key=key)))])
        await (await self.open_storage()).remove([key])
        await self.store.remove(DUE, key)

    async def get(self, tenant: str, id: str) -> StoredFile:
        """Raises `NotFound`, also for another tenant's, and for one that has expired."""
        found = await self.store.get(FILE, id, tenant=tenant)
        if found is None or self._is_over(file := decode(found.body, StoredFile), await self.store.read_clock()):
            raise NotFound(f"No such File object: {id[:80]}", param="file_id")
        return file

    @staticmethod
    def _is_over(file: StoredFile, now: float) -> bool:
        return file.expires_at is not None and file.expires_at <= now

    async def list(
        self, tenant: str, *, limit: int, after: str | None, newest_first: bool, purpose: str | None = None
    ) -> tuple[Sequence[StoredFile], bool]:
        """Some of a tenant's files, and whether there are more. Raises `NotFound` for an unknown `after`."""
        number = None
        if after is not None:
            if (last := await self.store.get(FILE, after, tenant=tenant)) is None:
                raise NotFound(f"No item with id '{after[:80]}'.", param="after")
            number = last.number
        found: list[StoredFile] = []
        now = await self.store.read_clock()
        while True:
            page = await self.store.documents(FILE, tenant=tenant, after=number, limit=limit + 1, newest_first=newest_first)
            for document in page:
                file = decode(document.body, StoredFile)
                if purpose in (None, file.purpose) and not self._is_over(file, now):
                    found.append(file)
            if len(found) > limit or len(page) <= limit:
                return found[:limit], len(found) > limit
            number = page[-1].number

    async def _claim_room(self, tenant: str, id: str, content: Content) -> None:
        """Raises `InvalidRequest` if a tenant would have more than it may."""
        try:
            await self.claim_room(tenant, id, content.size)
        except InvalidRequest:
            await self.drop(content.key)
            raise

    async def find_room(self, tenant: str, announced: int) -> int | None:
        """How many bytes a tenant may add, None for any number. Raises `InvalidRequest` if that is less than is announced."""
        if (most := self.settings.tenant_bytes) is None:
            return None
        found = await self.store.get(ROOM, ROOM, tenant=tenant)
        claims = {} if found is None else decode(found.body, TenantRoom).claims
        room = most - (await self._count_used(tenant, "", claims))[0]
        if announced > room:
            raise self._refuse_more(room)
        return room

    def _refuse_more(self, room: int) -> InvalidRequest:
        told = f"your files may have {self.settings.tenant_bytes} bytes together, and {max(room, 0)} are left; delete some first"
        return InvalidRequest(told, param="file", code="storage_limit_exceeded")

    async def claim_room(self, tenant: str, id: str, size: int | None, seconds: float = ROOM_SECONDS) -> None:
        """Has room kept for the file of this id, for None no longer. Raises `InvalidRequest` if there is not as much."""
        if (used := await self._change_claim(tenant, id, size, seconds)) is not None:
            raise self._refuse_more((self.settings.tenant_bytes or 0) - used)

    async def _change_claim(self, tenant: str, id: str, size: int | None, seconds: float = ROOM_SECONDS) -> int | None:
        """Has so much room kept for a file, or for None no longer. Returns how much is used if there is not as much."""
        while (most := self.settings.tenant_bytes) is not None:
            found = await self.store.get(ROOM, ROOM, tenant=tenant)  # first: what is no claim any more by then is a file
            now, known = await self.store.read_clock(), TenantRoom() if found is None else decode(found.body, TenantRoom)
            claims = {name: claim for name, claim in known.claims.items() if name != id}
            if size is not None:
                used, claims = await self._count_used(tenant, id, claims)
                if used + size > most:
                    return used
                claims[id] = ClaimedRoom(size, now + seconds)
            changed = Document(ROOM, ROOM, encode(TenantRoom(claims, known.version + 1)), tenant)
            if await (self.store.put([changed], if_absent=True) if found is None else self.store.swap(changed, found.body)):
                break
        return None

    async def _count_used(self, tenant: str, id: str, claims: Mapping[str, ClaimedRoom]) -> tuple[int, dict[str, ClaimedRoom]]:
        """The bytes of a tenant's files but this one, with those of the claims that still count, and these."""
        # One after the other: it takes the longer the more files there are, and is to hold up nobody else.
        async with self._counting.setdefault(tenant, anyio.Lock()):
            now, there, used = await self.store.read_clock(), set[str](), 0
            async for document in self._read_all(FILE, tenant):
                file = decode(document.body, StoredFile)
                there.add(file.id)
                # Its own file is there if it was added before a crash, or by another request at once.
                used += 0 if file.id == id else file.size
        left = {name: claim for name, claim in claims.items() if claim.until > now and name not in there}
        return used + sum([claim.size for claim in left.values()]), left

    async def _read_all(self, kind: str, tenant: str = "") -> AsyncGenerator[Document, None]:
        """Some at a time: there may be very many."""
        number = None
        while page := await self.store.documents(kind, tenant=tenant, after=number, limit=READ_AT_ONCE):
            for document in page:
                yield document
            number = page[-1].number

    async def read(self, file: StoredFile) -> AsyncGenerator[bytes, None]:
        """The bytes of a file, a piece at a time. Raises `NotFound` if it was deleted, `FilesUnavailable`."""
        storage = await self.open_storage()
        async with aclosing(storage.read_pieces(file.key)) as pieces:
            async for piece in pieces:
                yield piece

    async def load(self, file: StoredFile, most: int) -> bytes:
        """All of a small file. Raises `InvalidRequest` for one with more than so many bytes."""
        if file.size > most:
            told = f"the file `{file.id}` has {file.size} bytes, more than the {most} that can be taken here"
            raise InvalidRequest(told, param="file_id", code="file_too_large")
        return b"".join([piece async for piece in self.read(file)])

    async def load_named(self, tenant: str, id: str, most: int) -> NamedFile:
        """See `ports.FileLoader`."""
        file = await self.get(tenant, id)
        return NamedFile(file.filename, await self.load(file, most))

    async def remove(self, tenant: str, id: str) -> None:
        """Deletes a file. Raises `NotFound`."""
        await self.delete(tenant, await self.get(tenant, id))

    async def delete(self, tenant: str, file: StoredFile) -> None:
        """Deletes a file that may have expired, or be gone already."""
        # Noted first: a crash must not leave bytes behind that nobody has.
        if not file.content:
            await self.store.put([Document(DUE, file.key, encode(Due(0.0, key=file.key)))])
        if self._forget is not None:
            await self._forget(tenant, file.id)
        if not await self.store.remove(FILE, file.id, tenant=tenant):
            return
        await self.store.remove(DUE, _name_due(tenant, file.id))
        if file.content:
            await self._release(tenant, file.content)
        else:
            await self.drop(file.key)

    async def sweep(self) -> int:
        """Removes what is due. Returns how many things that were."""
        now, count = await self.store.read_clock(), 0
        async for document in self._read_all(DUE):
            due = decode(document.body, Due)
            if due.at > now:
                continue
            count += 1
            if due.file and (found := await self.store.get(FILE, due.file, tenant=due.tenant)) is not None:
                await self.delete(due.tenant, decode(found.body, StoredFile))
            elif due.upload:
                await self.store.remove(UPLOAD, due.upload, tenant=due.tenant)
            elif due.key:
                await (await self.open_storage()).remove([due.key])
            await self.store.remove(DUE, document.id)
        return count

    async def watch_over(self) -> None:
        """Sweeps now and then, until it is cancelled."""
        while True:
            try:
                await self.sweep()
            except (StoreError, FilesUnavailable) as error:
                log.warning("files that have expired cannot be removed: %s", error)
            await anyio.sleep(SWEEP_SECONDS)


def _name_due(tenant: str, id: str) -> str:
    return f"{tenant}/{id}"


def _documents(tenant: str, file: StoredFile) -> list[Document]:
    made = [Document(FILE, file.id, encode(file), tenant)]
    if file.expires_at is not None:
        due = Due(file.expires_at, tenant=tenant, file=file.id)
        made.append(Document(DUE, _name_due(tenant, file.id), encode(due)))
    return made


def choose_file_storage(files: str | None, database: Location | None) -> FileStorage | None:
    """Where the bytes of uploaded files go: where the settings say, else beside a database that is a file; None if that is
    none."""
    if files is not None:
        return choose_files(files)
    return None if database is None or database.file is None else choose_files(f"{database.file}.files")
