"""Files that come in parts, in any order and several at once: an upload is made, gets its parts, and is completed to a file.

The file's id follows from that of the upload, so an upload that is completed twice is one file.
"""

from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterable, Sequence
from contextlib import suppress
from typing import Annotated, Final, Literal
from weakref import WeakValueDictionary

import anyio
from msgspec import Meta, Struct
from msgspec.structs import replace

from mainspring.core.errors import InvalidRequest, NotFound
from mainspring.core.items import decode, encode
from mainspring.features.files.files import DUE, UPLOAD, Due, Files
from mainspring.features.files.stored_file import HOUR, PREFIX, FileExpiry, FileObject, Purpose, StoredFile, render_file
from mainspring.ports import Document

PART: Final = "upload_part"
PART_BYTES: Final = 64 << 20
MOST_PARTS: Final = 10_000
KEPT_SECONDS: Final = 86_400.0


class CreateUpload(Struct):
    """The body of `POST /v1/uploads`."""

    bytes: Annotated[int, Meta(ge=0)]
    filename: Annotated[str, Meta(max_length=512)]
    mime_type: Annotated[str, Meta(max_length=256)]
    purpose: Purpose
    expires_after: FileExpiry | None = None


class CompleteUpload(Struct):
    """The body of `POST /v1/uploads/{upload_id}/complete`."""

    part_ids: Annotated[tuple[str, ...], Meta(max_length=MOST_PARTS)]
    md5: str | None = None


class UploadObject(Struct, frozen=True):
    """An upload as clients see it."""

    id: str
    bytes: int
    created_at: int
    expires_at: int
    filename: str
    purpose: str
    status: Literal["pending", "completed", "cancelled", "expired"]
    file: FileObject | None = None
    object: str = "upload"


class UploadPart(Struct, frozen=True):
    id: str
    created_at: int
    upload_id: str
    object: str = "upload.part"


class StoredUpload(Struct, frozen=True):
    """An upload as it is kept."""

    order: CreateUpload
    created_at: float
    status: Literal["pending", "completed", "cancelled"] = "pending"


class StoredPart(Struct, frozen=True):
    key: str
    size: int


class Uploads:
    def __init__(self, files: Files) -> None:
        self._files, self._store = files, files.store
        self._coming: Counter[str] = Counter()
        self._completing: WeakValueDictionary[str, anyio.Lock] = WeakValueDictionary()

    async def create(self, tenant: str, order: CreateUpload) -> UploadObject:
        """Keeps room for the file. Raises `InvalidRequest` for one that would be too large."""
        if order.bytes > self._files.settings.file_bytes:
            told = f"a file may have {self._files.settings.file_bytes} bytes here; {order.bytes} are announced"
            raise InvalidRequest(told, param="bytes", code="file_too_large")
        await self._files.open_storage()
        id, made = self._files.new_id("upload"), StoredUpload(order, await self._store.read_clock())
        await self._files.claim_room(tenant, _name_file(id), order.bytes, HOUR)
        due = Due(made.created_at + KEPT_SECONDS, tenant=tenant, upload=id)
        await self._store.put([Document(UPLOAD, id, encode(made), tenant), Document(DUE, f"{tenant}/{id}", encode(due))])
        return _render(id, made, made.created_at)

    async def add_part(self, tenant: str, id: str, pieces: AsyncIterable[bytes]) -> UploadPart:
        """Raises `NotFound`, and `InvalidRequest` for an upload that is over, or more bytes than were announced."""
        upload, _ = await self._get_pending(tenant, id)
        # A part may be sent twice, because its answer was lost.
        most, there, size = 2 * upload.order.bytes, await self._measure_parts(tenant, id), 0

        async def count() -> AsyncGenerator[bytes, None]:
            nonlocal size
            async for piece in pieces:
                size += len(piece)
                self._coming[id] += len(piece)
                if there + self._coming[id] > most:
                    raise _too_much(most)
                yield piece

        try:
            content = await self._files.receive(count(), min(PART_BYTES, upload.order.bytes))
            made = Document(PART, self._files.new_id("part"), encode(StoredPart(content.key, content.size)), tenant, id)
            if not await self._store.put([made]):
                raise _not_found(id)
            if await self._measure_parts(tenant, id) > most:  # others came meanwhile, perhaps to another process
                await self._drop_part(made)
                raise _too_much(most)
        finally:
            self._coming[id] -= size
            self._coming += Counter()  # leaves out what has come to nothing
        return UploadPart(made.id, int(await self._store.read_clock()), id)

    async def _measure_parts(self, tenant: str, id: str) -> int:
        """Raises `InvalidRequest` for more parts than one request can name."""
        parts = await self._store.documents(PART, tenant=tenant, parent=id, limit=MOST_PARTS)
        if len(parts) == MOST_PARTS:
            told = f"an upload has at most {MOST_PARTS} parts; complete it, or cancel it and send larger ones"
            raise InvalidRequest(told, param="data", code="file_too_large")
        return sum([decode(each.body, StoredPart).size for each in parts])

    async def cancel(self, tenant: str, id: str) -> UploadObject:
        """Raises `NotFound`, and `InvalidRequest` for an upload that is over."""
        upload, known = await self._get_pending(tenant, id)
        over = replace(upload, status="cancelled")
        if not await self._store.swap(Document(UPLOAD, id, encode(over), tenant), known):
            return await self.cancel(tenant, id)
        await self._remove_file(tenant, id)  # one that was made before a crash
        await self._drop_parts(tenant, id)
        await self._files.claim_room(tenant, _name_file(id), None)
        return _render(id, over, upload.created_at)

    async def complete(self, tenant: str, id: str, order: CompleteUpload) -> UploadObject:
        """Makes a file of the parts in the order in which they are named. Raises `NotFound`, and `InvalidRequest` for an unknown
        part, or if they are not what was announced."""
        # One after the other, since each makes a copy of all parts, however many ask at once.
        async with self._completing.setdefault(id, anyio.Lock()):
            return await self._complete(tenant, id, order)

    async def _complete(self, tenant: str, id: str, order: CompleteUpload) -> UploadObject:
        upload, known = await self._get_pending(tenant, id)
        parts = await self._find_parts(tenant, id, order.part_ids)
        if (size := sum([part.size for part in parts])) != upload.order.bytes:
            told = f"the parts have {size} bytes, and {upload.order.bytes} were announced; name all parts, each once"
            raise InvalidRequest(told, param="part_ids", code="upload_size_mismatch")
        content = await self._files.receive(self._read(parts))
        if order.md5 is not None and order.md5.lower() != content.md5:
            await self._files.drop(content.key)
            raise InvalidRequest(f"the parts have the md5 {content.md5}, not {order.md5[:80]}", param="md5", code="invalid_value")
        given, expires = upload.order, upload.order.expires_after
        seconds = None if expires is None else float(expires.seconds)
        named = _name_file(id)
        file = await self._files.add(tenant, content, given.filename, given.purpose, seconds, named, given.mime_type)
        over = replace(upload, status="completed")
        if not await self._store.swap(Document(UPLOAD, id, encode(over), tenant), known):
            found = await self._store.get(UPLOAD, id, tenant=tenant)
            if found is None or decode(found.body, StoredUpload).status == "cancelled":
                await self._remove_file(tenant, id)
                await self._get_pending(tenant, id)
        await self._drop_parts(tenant, id)
        return _render(id, over, upload.created_at, file)

    async def _find_parts(self, tenant: str, id: str, names: Sequence[str]) -> list[StoredPart]:
        documents = await self._store.documents(PART, tenant=tenant, parent=id)
        parts = {document.id: decode(document.body, StoredPart) for document in documents}
        for name in names:
            if name not in parts:
                raise InvalidRequest(f"the upload `{id}` has no part `{name[:80]}`", param="part_ids", code="invalid_part_id")
        if len(set(names)) < len(names):
            raise InvalidRequest("a part is named twice; name each once", param="part_ids", code="invalid_part_id")
        return [parts[name] for name in names]

    async def _read(self, parts: Sequence[StoredPart]) -> AsyncGenerator[bytes, None]:
        storage = await self._files.open_storage()
        for part in parts:
            async for piece in storage.read_pieces(part.key):
                yield piece

    async def _remove_file(self, tenant: str, id: str) -> None:
        """Removes the file of an upload that is cancelled, if it is there."""
        with suppress(NotFound):
            await self._files.remove(tenant, _name_file(id))

    async def _drop_parts(self, tenant: str, id: str) -> None:
        for document in await self._store.documents(PART, tenant=tenant, parent=id):
            await self._drop_part(document)

    async def _drop_part(self, document: Document) -> None:
        await self._files.drop(decode(document.body, StoredPart).key)
        await self._store.remove(PART, document.id, tenant=document.tenant, parent=document.parent)

    async def _get_pending(self, tenant: str, id: str) -> tuple[StoredUpload, bytes]:
        """The upload, and its document as it is kept."""
        if (found := await self._store.get(UPLOAD, id, tenant=tenant)) is None:
            raise _not_found(id)
        upload = decode(found.body, StoredUpload)
        status = _render(id, upload, await self._store.read_clock()).status
        if status != "pending":
            raise InvalidRequest(f"the upload `{id}` is {status}; make another one", param="upload_id", code="upload_over")
        return upload, found.body


def _name_file(id: str) -> str:
    """The id of the file that an upload becomes."""
    return PREFIX + id.partition("_")[2]


def _too_much(most: int) -> InvalidRequest:
    told = f"the parts of this upload have more than {most} bytes, twice what was announced; cancel it, and announce more"
    return InvalidRequest(told, param="data", code="file_too_large")


def _not_found(id: str) -> NotFound:
    return NotFound(f"No such Upload object: {id[:80]}", param="upload_id")


def _render(id: str, upload: StoredUpload, now: float, file: StoredFile | None = None) -> UploadObject:
    order, expires = upload.order, int(upload.created_at) + HOUR
    is_late = upload.status == "pending" and now >= expires
    return UploadObject(
        id,
        order.bytes,
        int(upload.created_at),
        expires,
        order.filename,
        order.purpose,
        "expired" if is_late else upload.status,
        None if file is None else render_file(file),
    )
