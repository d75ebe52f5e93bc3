"""Files over HTTP, as the official client knows them: sent whole and in parts, listed, read, shown to models, and deleted."""

import asyncio
import hashlib
import os
from base64 import b64encode
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import httpx2
import openai
import pytest
from openai import AsyncOpenAI
from openai.types import FileObject
from tests.kit.waiting import PATIENCE
from tests.server.hosting import hosted
from tests.tools.test_documents import make_docx, make_pdf

from mainspring.app.engine import Engine
from mainspring.app.server import server
from mainspring.core.errors import InvalidRequest, NotFound, Refused
from mainspring.core.items import InputFile, InputImage, InputText, Message, encode
from mainspring.core.memory_quota import MemoryQuota
from mainspring.features.files.files import CONTENT, DUE, FILE, READ_AT_ONCE, Files
from mainspring.features.files.settings import UploadSettings
from mainspring.features.files.stored_file import StoredFile
from mainspring.features.files.uploads import PART, CompleteUpload, CreateUpload, Uploads
from mainspring.http.auth import Keys
from mainspring.ports import Document
from mainspring.providers.scripted import Scripted, fail, say
from mainspring.storage.choose_store import open_store
from mainspring.storage.file_folder import FileFolder
from mainspring.storage.location import Location
from mainspring.storage.memory_runs import MemoryStore

PNG = b"\x89PNG\r\n\x1a\n" + bytes(100)


@asynccontextmanager
async def serving(*turns: Any, **options: Any) -> AsyncIterator[tuple[AsyncOpenAI, Scripted, Engine]]:
    model = Scripted(*turns)
    engine = Engine(model, **options)
    async with hosted(server(engine)) as url, AsyncOpenAI(base_url=url, api_key="unused", max_retries=0) as client:
        yield client, model, engine


def list_stored(folder: Path) -> list[Path]:
    """The files that are in the storage."""
    return [file for file in folder.rglob("*") if file.is_file()]


async def test_a_file_is_sent_listed_read_and_deleted(tmp_path: Path) -> None:
    content = os.urandom(3_000_000)
    async with serving(database=tmp_path / "runs.db") as (client, _, _):
        sent = await client.files.create(file=("numbers ü.bin", content), purpose="user_data")
        assert FileObject.model_validate(sent.model_dump(), strict=True) == sent
        assert (sent.bytes, sent.filename, sent.purpose, sent.object) == (len(content), "numbers ü.bin", "user_data", "file")
        assert (sent.id[:5], sent.status, sent.expires_at) == ("file-", "processed", None)
        assert await client.files.retrieve(sent.id) == sent
        assert (await client.files.content(sent.id)).content == content
        other = await client.files.create(file=("a.txt", b"a"), purpose="assistants")
        assert [file.id async for file in await client.files.list()] == [other.id, sent.id]
        assert [file.id async for file in await client.files.list(limit=1, order="asc")] == [sent.id, other.id]
        assert [file.id async for file in await client.files.list(purpose="assistants")] == [other.id]
        gone = await client.files.delete(sent.id)
        assert (gone.id, gone.deleted, gone.object) == (sent.id, True, "file")
        for asked in (client.files.retrieve(sent.id), client.files.content(sent.id), client.files.delete(sent.id)):
            with pytest.raises(openai.NotFoundError) as raised:
                await asked
            assert raised.value.param == "file_id"
    [kept] = list_stored(tmp_path / "runs.db.files")
    assert kept.read_bytes() == b"a", "what was deleted is gone from the disk"


async def test_a_file_outlives_its_process(tmp_path: Path) -> None:
    async with serving(database=tmp_path / "runs.db") as (client, _, _):
        sent = await client.files.create(file=("a.txt", b"still here"), purpose="user_data")
    async with serving(database=tmp_path / "runs.db") as (client, _, _):
        assert (await client.files.content(sent.id)).content == b"still here"


async def test_the_parts_of_an_upload_become_a_file() -> None:
    content = os.urandom(300_000)
    async with serving() as (client, _, _):
        upload = await client.uploads.create(bytes=len(content), filename="b.bin", mime_type="text/plain", purpose="assistants")
        assert (upload.status, upload.object, upload.expires_at - upload.created_at) == ("pending", "upload", 3600)
        pieces = [content[:100_000], content[100_000:250_000], content[250_000:]]
        parts = await asyncio.gather(*[client.uploads.parts.create(upload.id, data=piece) for piece in reversed(pieces)])
        ids = [part.id for part in reversed(parts)]
        for named, code in ((ids[:2], "upload_size_mismatch"), ([*ids, ids[0]], "invalid_part_id"), (["x"], "invalid_part_id")):
            with pytest.raises(openai.BadRequestError) as raised:
                await client.uploads.complete(upload.id, part_ids=named)
            assert (raised.value.code, raised.value.param) == (code, "part_ids")
        with pytest.raises(openai.BadRequestError, match="md5"):
            await client.uploads.complete(upload.id, part_ids=ids, md5="0" * 32)
        done = await client.uploads.complete(upload.id, part_ids=ids, md5=hashlib.md5(content).hexdigest())
        assert (done.status, done.file and done.file.bytes) == ("completed", len(content))
        assert done.file is not None
        assert (await client.files.content(done.file.id)).content == content
        with pytest.raises(openai.BadRequestError, match="is completed"):
            await client.uploads.complete(upload.id, part_ids=ids)


class Copying(FileFolder):
    """Counts how many files are written at once."""

    now = most = 0

    async def put_pieces(self, key: str, pieces: AsyncIterable[bytes]) -> None:
        self.now += 1
        self.most = max(self.most, self.now)
        await super().put_pieces(key, pieces)
        self.now -= 1


async def test_an_upload_that_many_complete_at_once_is_copied_once_at_a_time(tmp_path: Path) -> None:
    content, files = os.urandom(3_000_000), Copying(tmp_path)
    async with serving(files=files) as (client, _, _):
        upload = await client.uploads.create(bytes=len(content), filename="b", mime_type="text/plain", purpose="user_data")
        part = await client.uploads.parts.create(upload.id, data=content)
        asked = [client.uploads.complete(upload.id, part_ids=[part.id]) for _ in range(10)]
        ended = await asyncio.gather(*asked, return_exceptions=True)
        assert sorted([getattr(each, "code", "completed") for each in ended]) == ["completed", *["upload_over"] * 9]
        [file] = [file async for file in await client.files.list()]
        assert (await client.files.content(file.id)).content == content
    assert files.most == 1
    assert len(list_stored(tmp_path)) == 1


class Watched(MemoryStore):
    """Notes how many files are read at once, and how many read them."""

    most = readers = most_readers = 0

    async def documents(self, kind: str, **asked: Any) -> Sequence[Document]:
        if kind != FILE:
            return await super().documents(kind, **asked)
        self.readers += 1
        self.most_readers = max(self.most_readers, self.readers)
        await asyncio.sleep(0)
        found = await super().documents(kind, **asked)
        self.most, self.readers = max(self.most, len(found)), self.readers - 1
        return found


async def test_very_many_files_of_a_tenant_are_counted_some_at_a_time_and_by_one_reader(tmp_path: Path) -> None:
    store = Watched()
    files = Files(store, FileFolder(tmp_path), UploadSettings(tenant_bytes=1_300))
    for number in range(1_200):
        made = StoredFile(f"file-{number}", "a", "user_data", 1, "", "", 0.0)
        await store.put([Document(FILE, made.id, encode(made), "busy")])

    async def add(number: int) -> None:
        await files.claim_room("busy", f"file-new-{number}", 25)

    async with anyio.create_task_group() as group:
        for number in range(4):
            group.start_soon(add, number)
    assert (store.most, store.most_readers) == (READ_AT_ONCE, 1)
    with pytest.raises(InvalidRequest):
        await add(4)


class Interrupted(MemoryStore):
    """A store that does something else before the next swap."""

    before: list[Callable[[], Awaitable[object]]]

    async def swap(self, document: Document, known: bytes) -> bool:
        while self.before:
            await self.before.pop()()
        return await super().swap(document, known)


async def test_an_upload_that_is_cancelled_while_it_is_completed_is_no_file(tmp_path: Path) -> None:
    store = Interrupted()
    store.before = []
    async with serving(store=store, files=FileFolder(tmp_path)) as (client, _, _):
        upload = await client.uploads.create(bytes=3, filename="b", mime_type="text/plain", purpose="user_data")
        part = await client.uploads.parts.create(upload.id, data=b"abc")
        store.before.append(lambda: client.uploads.cancel(upload.id))
        with pytest.raises(openai.BadRequestError) as raised:
            await client.uploads.complete(upload.id, part_ids=[part.id])
        assert raised.value.code == "upload_over"
        assert [file.id async for file in await client.files.list()] == []
    assert list_stored(tmp_path) == []


async def test_a_cancelled_upload_takes_nothing_more(tmp_path: Path) -> None:
    async with serving(files=FileFolder(tmp_path)) as (client, _, engine):
        upload = await client.uploads.create(bytes=5, filename="b", mime_type="text/plain", purpose="user_data")
        await client.uploads.parts.create(upload.id, data=b"abc")
        with pytest.raises(openai.BadRequestError) as raised:
            await client.uploads.parts.create(upload.id, data=b"more than announced")
        assert raised.value.code == "file_too_large"
        assert (await client.uploads.cancel(upload.id)).status == "cancelled"
        with pytest.raises(openai.BadRequestError, match="is cancelled"):
            await client.uploads.parts.create(upload.id, data=b"abc")
        assert list_stored(tmp_path) == []
        assert [document.id.partition("/")[2] for document in await engine.store.documents(DUE)] == [upload.id]


def form_with(parameters: str, filename: str) -> dict[str, Any]:
    """A form in its own words. To find the end of what is quoted, Python reads all of it once for each semicolon in it."""
    parts = ['name="purpose"\r\n\r\nuser_data', f'name="file"; filename="{filename}"\r\n\r\nx']
    body = "".join([f"--x\r\ncontent-disposition: form-data; {part}\r\n" for part in parts])
    return {"content": f"{body}--x--".encode(), "headers": {"content-type": f"multipart/form-data; {parameters}"}}


@pytest.mark.parametrize(
    ("form", "status", "code", "param"),
    [
        ({"files": {"file": ("a", b"x" * 1001)}, "data": {"purpose": "user_data"}}, 400, "file_too_large", "file"),
        ({"files": {"file": ("a", b"x")}}, 400, "missing_required_parameter", "purpose"),
        ({"files": {"file": ("a", b"x")}, "data": {"purpose": "fun"}}, 400, "invalid_value", "purpose"),
        ({"files": {"file": ("x" * 600, b"x")}, "data": {"purpose": "user_data"}}, 400, "invalid_value", "filename"),
        ({"files": {"other": ("a", b"x")}, "data": {"purpose": "user_data"}}, 400, "invalid_form", "body"),
        ({"json": {"purpose": "user_data"}}, 400, "invalid_form", "body"),
        (form_with(f'boundary=x; y="{";" * 50}"', "a"), 400, "invalid_form", "body"),
        (form_with("boundary=x", ";" * 50), 400, "invalid_form", "body"),
        (
            {"files": {"file": ("a", b"x")}, "data": {"purpose": "user_data", "expires_after[seconds]": "5"}},
            400,
            "invalid_value",
            "expires_after",
        ),
        (
            {"files": {"file": ("a", b"x")}, "data": {"purpose": "user_data", "expires_after[seconds]": "9" * 5_000}},
            400,
            "invalid_value",
            "expires_after",
        ),
        (
            {"files": {"file": ("a", b"x")}, "data": {"purpose": "user_data", "expires_after": '{"seconds": 5}'}},
            400,
            "invalid_value",
            "expires_after",
        ),
        (
            {"files": {"file": ("a", b"x")}, "data": {"purpose": "user_data", "expire_after": "{}"}},
            400,
            "unknown_parameter",
            "expire_after",
        ),
        ({"files": [("file", ("a", b"x")), ("file", ("b", b"y"))], "data": {"purpose": "evals"}}, 400, "invalid_form", "body"),
        ({"files": {"file": ("a", b"x" * 3_000_000)}, "data": {"purpose": "user_data"}}, 413, "request_too_large", "body"),
    ],
)
async def test_what_cannot_be_kept_is_refused_and_leaves_nothing(
    form: dict[str, Any], status: int, code: str, param: str, tmp_path: Path
) -> None:
    async with serving(files=FileFolder(tmp_path), uploads=UploadSettings(file_bytes=1000)) as (client, _, engine):
        async with httpx2.AsyncClient() as http:
            told = await http.post(f"{client.base_url}files", **form)
        assert (told.status_code, told.json()["error"]["code"], told.json()["error"]["param"]) == (status, code, param)
        assert list_stored(tmp_path) == []
        assert (await engine.store.documents(FILE), await engine.store.documents(DUE)) == ([], [])


async def test_an_expiry_may_be_json_and_what_is_ignored_is_told() -> None:
    async with serving() as (client, _, _), httpx2.AsyncClient() as http:
        form = {"purpose": "user_data", "expires_after": '{"anchor": "created_at", "seconds": 3600}', "colour": "red"}
        told = await http.post(f"{client.base_url}files", files={"file": ("a", b"x")}, data=form)
        assert told.json()["expires_at"] - told.json()["created_at"] == 3600
        assert told.headers["mainspring-ignored"] == "colour"


async def test_a_tenant_has_no_more_than_it_may() -> None:
    async with serving(uploads=UploadSettings(tenant_bytes=10)) as (client, _, _):
        first = await client.files.create(file=("a", b"123456"), purpose="user_data")
        with pytest.raises(openai.BadRequestError) as raised:
            await client.files.create(file=("b", b"123456"), purpose="user_data")
        assert raised.value.code == "storage_limit_exceeded"
        for head, body in (
            (b"content-length: 90000000", b""),
            (b"transfer-encoding: chunked", b"%x\r\n%b\r\n" % (len(FORM), FORM)),
        ):
            answer = await send_part(client, head, body)
            assert b"storage_limit_exceeded" in answer, answer
        await client.files.delete(first.id)
        await client.files.create(file=("b", b"123456"), purpose="user_data")


FORM = b'--x\r\ncontent-disposition: form-data; name="file"; filename="b"\r\n\r\n' + bytes(70_000)


async def send_part(client: AsyncOpenAI, head: bytes, body: bytes) -> bytes:
    """What the server answers to an upload of which it has had only this much."""
    url = client.base_url
    reader, writer = await asyncio.open_connection(url.host, url.port)
    form = b"content-type: multipart/form-data; boundary=x"
    host = b"host: 127.0.0.1:%d" % (url.port or 80)
    writer.write(b"\r\n".join([b"POST /v1/files HTTP/1.1", host, form, head, b"connection: close", b"", body]))
    try:
        async with asyncio.timeout(PATIENCE):
            return await reader.read()
    finally:
        writer.close()


async def test_an_upload_in_parts_has_room_kept_for_it_until_it_is_over() -> None:
    async with serving(uploads=UploadSettings(tenant_bytes=10)) as (client, _, _):

        async def begin() -> str:
            made = await client.uploads.create(bytes=6, filename="a", mime_type="text/plain", purpose="user_data")
            return made.id

        first = await begin()
        for refused in (begin(), client.files.create(file=("b", b"123456"), purpose="user_data")):
            with pytest.raises(openai.BadRequestError) as raised:
                await refused
            assert raised.value.code == "storage_limit_exceeded"
        await client.uploads.cancel(first)
        second = await begin()
        parts = [await client.uploads.parts.create(second, data=b"123456") for _ in range(2)]
        with pytest.raises(openai.BadRequestError) as raised:
            await client.uploads.parts.create(second, data=b"1")
        assert raised.value.code == "file_too_large"
        done = await client.uploads.complete(second, part_ids=[parts[1].id])
        assert done.file is not None
        await client.files.delete(done.file.id)
        await begin()


async def test_uploads_at_once_get_no_more_room_than_there_is(location: Location, tmp_path: Path) -> None:
    async with open_store(location) as one, open_store(location) as other:
        places = [Files(store, FileFolder(tmp_path / "files"), UploadSettings(tenant_bytes=20)) for store in (one, other)]

        async def upload(files: Files, name: str) -> bool:
            content = await files.receive(in_pieces(name.encode() * 6))
            try:
                await files.add("acme", content, name, "user_data")
            except InvalidRequest:
                return False
            return True

        added = await asyncio.gather(*[upload(places[number % 2], "abcdefgh"[number]) for number in range(8)])
        assert sum(added) == 3, "all that fit, and no more"
        kept, _ = await places[0].list("acme", limit=10, after=None, newest_first=True)
        await places[1].remove("acme", kept[0].id)
        assert await upload(places[1], "z"), "nothing is kept for a file that is there"


class InterruptedStore(MemoryStore):
    """Does something else once, right after files were listed."""

    def __init__(self) -> None:
        super().__init__()
        self.meanwhile: Callable[[], Awaitable[object]] | None = None

    async def documents(self, kind: str, **options: Any) -> Any:
        found = await super().documents(kind, **options)
        if kind == FILE and (meanwhile := self.meanwhile) is not None:
            self.meanwhile = None
            await meanwhile()
        return found


async def test_a_file_that_is_added_while_another_counts_is_counted(tmp_path: Path) -> None:
    store = InterruptedStore()
    here, elsewhere = [Files(store, FileFolder(tmp_path / "files"), UploadSettings(tenant_bytes=10)) for _ in range(2)]

    async def add(files: Files, name: str) -> str:
        return (await files.add("acme", await files.receive(in_pieces(name.encode() * 6)), name, "user_data")).id

    await here.remove("acme", await add(here, "a"))
    store.meanwhile = lambda: add(elsewhere, "b")
    with pytest.raises(InvalidRequest):
        await add(here, "c")


async def test_parts_at_once_are_no_more_than_twice_what_was_announced(location: Location, tmp_path: Path) -> None:
    async with open_store(location) as one, open_store(location) as other:
        places = [Uploads(Files(store, FileFolder(tmp_path / "files"), UploadSettings())) for store in (one, other)]
        order = CreateUpload(bytes=6, filename="a", mime_type="text/plain", purpose="user_data")
        made = await places[0].create("", order)

        async def add(uploads: Uploads) -> bool:
            try:
                await uploads.add_part("", made.id, in_pieces(b"123456"))
            except InvalidRequest:
                return False
            return True

        added = await asyncio.gather(*[add(places[number % 2]) for number in range(8)])
        assert sum(added) <= 2
        assert len(await one.documents(PART, parent=made.id)) == sum(added)


async def test_an_upload_that_is_completed_again_after_a_crash_needs_no_more_room(tmp_path: Path) -> None:
    files = Files(MemoryStore(), FileFolder(tmp_path / "files"), UploadSettings(tenant_bytes=10))
    uploads = Uploads(files)
    made = await uploads.create("", CreateUpload(bytes=6, filename="a", mime_type="text/plain", purpose="user_data"))
    part = await uploads.add_part("", made.id, in_pieces(b"123456"))
    # A process that ended here has made the file, and has not noted that the upload is over.
    before = await files.receive(in_pieces(b"123456"))
    file = await files.add("", before, "a", "user_data", id=f"file-{made.id.partition('_')[2]}")
    done = await uploads.complete("", made.id, CompleteUpload(part_ids=(part.id,)))
    assert done.file is not None
    assert (done.status, done.file.id) == ("completed", file.id)
    assert [each.id for each in (await files.list("", limit=10, after=None, newest_first=True))[0]] == [file.id]
    with pytest.raises(InvalidRequest):
        await uploads.create("", CreateUpload(bytes=5, filename="b", mime_type="text/plain", purpose="user_data"))
    await uploads.create("", CreateUpload(bytes=4, filename="b", mime_type="text/plain", purpose="user_data"))


async def test_an_upload_that_is_cancelled_after_a_crash_leaves_no_file_and_its_room(tmp_path: Path) -> None:
    files = Files(MemoryStore(), FileFolder(tmp_path / "files"), UploadSettings(tenant_bytes=10))
    uploads, order = Uploads(files), CreateUpload(bytes=6, filename="a", mime_type="text/plain", purpose="user_data")
    made = await uploads.create("", order)
    before = await files.receive(in_pieces(b"123456"))
    await files.add("", before, "a", "user_data", id=f"file-{made.id.partition('_')[2]}")
    assert (await uploads.cancel("", made.id)).status == "cancelled"
    assert (await files.list("", limit=10, after=None, newest_first=True))[0] == []
    assert (await uploads.create("", order)).status == "pending"


class Clock(MemoryStore):
    """A store whose time is told."""

    now = 1_000_000.0

    async def read_clock(self) -> float:
        return self.now


async def in_pieces(*pieces: bytes) -> AsyncIterator[bytes]:
    for piece in pieces:
        yield piece


async def test_a_file_that_has_expired_is_gone_and_is_swept(tmp_path: Path) -> None:
    store = Clock()
    async with serving(store=store, files=FileFolder(tmp_path)) as (client, _, engine):
        sent = await client.files.create(
            file=("a", b"x"), purpose="user_data", expires_after={"anchor": "created_at", "seconds": 3600}
        )
        assert sent.expires_at == store.now + 3600
        assert await engine.files.sweep() == 0
        store.now += 3600
        with pytest.raises(openai.NotFoundError):
            await client.files.retrieve(sent.id)
        assert [file.id async for file in await client.files.list()] == []
        assert await engine.files.sweep() == 1
        assert list_stored(tmp_path) == []
        assert await store.documents(DUE) == []


async def test_bytes_that_never_became_a_file_are_swept_after_a_crash(tmp_path: Path) -> None:
    store = Clock()
    files = Files(store, FileFolder(tmp_path))
    await files.receive(in_pieces(b"lost"))
    await files.sweep()
    assert len(list_stored(tmp_path)) == 1, "it may still become a file"
    store.now += 86_401
    await files.sweep()
    assert list_stored(tmp_path) == []


class Slow(FileFolder):
    """Has a file before it says so."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.has_it = asyncio.Event()

    async def put_pieces(self, key: str, pieces: AsyncIterable[bytes]) -> None:
        await super().put_pieces(key, pieces)
        self.has_it.set()
        await asyncio.Event().wait()


async def test_bytes_whose_request_was_cancelled_as_they_arrived_are_swept(tmp_path: Path) -> None:
    store, folder = Clock(), Slow(tmp_path)
    files = Files(store, folder)
    receiving = asyncio.create_task(files.receive(in_pieces(b"lost")))
    await folder.has_it.wait()
    receiving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await receiving
    store.now += 86_401
    await files.sweep()
    assert list_stored(tmp_path) == []


class Contended(MemoryStore):
    """A store in which others do something before shared bytes are first looked for, and before they are next counted."""

    others: list[Callable[[], Awaitable[object]]]

    async def get(self, kind: str, id: str, *, tenant: str = "", parent: str = "") -> Document | None:
        if kind == CONTENT and len(self.others) == 2:
            await self.others.pop(0)()
        return await super().get(kind, id, tenant=tenant, parent=parent)

    async def put(self, documents: Sequence[Document], *, if_absent: bool = False) -> bool:
        if len(self.others) == 1 and documents[0].kind == CONTENT:
            await self.others.pop(0)()
        return await super().put(documents, if_absent=if_absent)


async def test_a_file_is_added_although_others_with_its_bytes_come_and_go(tmp_path: Path) -> None:
    store = Contended()
    store.others = []
    files = Files(store, FileFolder(tmp_path))

    async def add() -> str:
        return (await files.add("", await files.receive(in_pieces(b"same")), "a", "user_data")).id

    first = await add()
    store.others += [lambda: files.remove("", first), add]
    assert await files.load(await files.get("", await add()), 10) == b"same"


async def test_files_with_the_same_bytes_share_them_within_a_tenant(tmp_path: Path) -> None:
    store = MemoryStore()
    files = Files(store, FileFolder(tmp_path))

    async def add(tenant: str) -> str:
        return (await files.add(tenant, await files.receive(in_pieces(b"same")), "a", "user_data")).id

    def count() -> int:
        return len(list_stored(tmp_path))

    ids = await asyncio.gather(*[add("acme") for _ in range(8)])
    theirs = await add("other")
    assert count() == 2, "one for each tenant"
    for id in ids[:-1]:
        await files.remove("acme", id)
    last = await files.get("acme", ids[-1])
    assert await files.load(last, 10) == b"same"
    with pytest.raises(NotFound):
        await files.remove("other", ids[-1])
    await asyncio.gather(files.remove("acme", ids[-1]), add("acme"))
    assert (count(), len(await store.documents(CONTENT, tenant="acme"))) in ((2, 1), (2, 0))
    await files.remove("other", theirs)
    assert count() == 1
    assert await store.documents(DUE) == []


async def test_a_model_is_shown_the_file_and_the_log_has_its_id() -> None:
    async with serving(say("A note and a picture."), say("Still there.")) as (client, model, _):
        note = await client.files.create(file=("note.txt", "Grüße".encode()), purpose="user_data")
        paper = await client.files.create(file=("p.pdf", b"%PDF-1.7"), purpose="user_data")
        picture = await client.files.create(file=("p.bin", PNG), purpose="vision")
        content: Any = [
            {"type": "input_text", "text": "What is this?"},
            {"type": "input_file", "file_id": note.id},
            {"type": "input_image", "file_id": picture.id, "detail": "high"},
            {"type": "input_file", "file_id": paper.id},
        ]
        told = await client.responses.create(model="scripted", input=[{"role": "user", "content": content}])
        assert told.output_text == "A note and a picture."
        [message] = [item for item in model.requests[0].items if isinstance(item, Message)]
        assert message.content[1] == InputText("[file note.txt]\nGrüße")
        assert message.content[2] == InputImage(f"data:image/png;base64,{b64encode(PNG).decode()}", "high")
        assert message.content[3] == InputFile("p.pdf", f"data:application/pdf;base64,{b64encode(b'%PDF-1.7').decode()}")
        [kept] = (await client.responses.input_items.list(told.id)).data
        assert [part.get("file_id") for part in kept.model_dump()["content"]] == [None, note.id, picture.id, paper.id]
        again = await client.responses.create(model="scripted", input="Look again.", previous_response_id=told.id)
        assert again.output_text == "Still there."
        assert model.requests[1].items[0] == message
        await client.files.delete(note.id)
        with pytest.raises(openai.BadRequestError, match=f"`{note.id}` is not there any more"):
            await client.responses.create(model="scripted", input="And now?", previous_response_id=again.id)


@pytest.mark.parametrize("kind", ["input_file", "input_image"])
async def test_a_file_that_is_not_there_is_shown_to_nobody(kind: str) -> None:
    async with serving(say("Never.")) as (client, model, _):
        content: Any = [{"type": kind, "file_id": "file-1"}]
        with pytest.raises(openai.NotFoundError) as raised:
            await client.responses.create(model="scripted", input=[{"role": "user", "content": content}])
        assert raised.value.param == "input"
        assert model.requests == []


async def test_a_file_that_is_no_image_is_not_shown_as_one() -> None:
    async with serving(say("Never.")) as (client, _, _):
        note = await client.files.create(file=("a.txt", b"no image"), purpose="vision")
        content: Any = [{"type": "input_image", "file_id": note.id}]
        with pytest.raises(openai.BadRequestError, match="send it as `input_file`"):
            await client.responses.create(model="scripted", input=[{"role": "user", "content": content}])


async def test_a_file_without_text_is_not_shown() -> None:
    async with serving(say("Never.")) as (client, model, _):
        program = await client.files.create(file=("a.bin", b"\0\1\2"), purpose="user_data")
        content: Any = [{"type": "input_file", "file_id": program.id}]
        with pytest.raises(openai.BadRequestError, match="cannot be shown to a model"):
            await client.responses.create(model="scripted", input=[{"role": "user", "content": content}])
        assert model.requests == []


async def test_a_model_is_shown_the_text_of_documents_that_come_along() -> None:
    def embed(data: bytes, kind: str) -> str:
        return f"data:{kind};base64,{b64encode(data).decode()}"

    letter = make_docx("<w:p><w:r><w:t>Herons wade.</w:t></w:r></w:p>")
    files: Any = [
        ("note.md", embed("Grüße".encode(), "text/markdown")),
        ("letter.docx", embed(letter, "application/octet-stream")),
        ("paper.pdf", embed(b"%PDF-1.7", "application/pdf")),
        ("program.bin", embed(b"\0\1\2", "application/octet-stream")),
    ]
    content: Any = [{"type": "input_file", "filename": name, "file_data": data} for name, data in files]
    async with serving(say("Seen."), say("Again.")) as (client, model, _):
        told = await client.responses.create(model="scripted", input=[{"role": "user", "content": content}])
        await client.responses.create(model="scripted", input="And?", previous_response_id=told.id)
        [kept] = (await client.responses.input_items.list(told.id)).data
    for request in model.requests:
        message = request.items[0]
        assert isinstance(message, Message)
        assert message.content[0] == InputText("[file note.md]\nGrüße")
        assert message.content[1] == InputText("[file letter.docx]\n[page 1]\nHerons wade.")
        # A backend reads these, or says that it does not.
        assert message.content[2:] == tuple([InputFile(name, data) for name, data in files[2:]])
    assert [part["file_data"] for part in kept.model_dump()["content"]] == [data for _, data in files]


async def test_a_backend_that_refuses_a_pdf_is_shown_its_text() -> None:
    paper = make_pdf("Herons wade.")
    url = f"data:application/pdf;base64,{b64encode(paper).decode()}"
    refusal = fail(Refused("no files here"))
    async with serving(refusal, say("They wade."), say("Still."), refusal, say("Both."), refusal) as (client, model, _):
        stored = await client.files.create(file=("p.pdf", paper), purpose="user_data")

        async def ask(*files: Any, before: str | None = None) -> Any:
            content: Any = [{"type": "input_text", "text": "Read."}, *[{"type": "input_file", **file} for file in files]]
            asked: Any = [{"role": "user", "content": content}]
            return await client.responses.create(model="scripted", input=asked, previous_response_id=before)

        told = await ask({"file_id": stored.id})
        assert told.output_text == "They wade."
        # What was refused once is not tried again.
        await ask({"filename": "p.pdf", "file_data": url}, before=told.id)
        other = f"data:application/pdf;base64,{b64encode(make_pdf('Otters swim.')).decode()}"
        assert (await ask({"file_id": stored.id}, {"filename": "r.pdf", "file_data": other})).output_text == "Both."
        # A scan has no text.
        scan = f"data:application/pdf;base64,{b64encode(b'%PDF-1.7').decode()}"
        with pytest.raises(openai.BadRequestError, match="no files here"):
            await ask({"filename": "scan.pdf", "file_data": scan})
    shown = [[part for item in request.items if isinstance(item, Message) for part in item.content] for request in model.requests]
    read = InputText("[file p.pdf]\n[page 1]\nHerons wade.")
    words = InputText("Read.")
    assert shown[0] == [words, InputFile("p.pdf", url)]
    assert shown[1] == [words, read]
    assert shown[2][:2] == [words, read]
    assert shown[2][-1] == read
    assert shown[3] == [words, read, InputFile("r.pdf", other)]
    assert shown[4] == [words, read, InputText("[file r.pdf]\n[page 1]\nOtters swim.")]
    assert shown[5] == [words, InputFile("scan.pdf", scan)]


async def test_no_more_text_of_files_is_shown_than_a_request_may_bring() -> None:
    async with serving(say("Never.")) as (client, model, _):
        book = await client.files.create(file=("a.txt", b"words " * 1_800_000), purpose="user_data")
        content: Any = [{"type": "input_file", "file_id": book.id}]
        with pytest.raises(openai.BadRequestError, match=r"more text than the 10485760 characters.*`file_search`"):
            await client.responses.create(model="scripted", input=[{"role": "user", "content": content}])
        assert model.requests == []


async def test_a_file_counts_as_often_as_it_is_named() -> None:
    async with serving(say("Seen."), say("Seen.")) as (client, model, _):
        note = await client.files.create(file=("a.txt", b"x" * 1_000_000), purpose="user_data")
        part: Any = {"type": "input_file", "file_id": note.id}
        for count in (34, 2_000):
            with pytest.raises(openai.BadRequestError, match=r"more than the 33554432 bytes|more text than|can be taken here"):
                await client.responses.create(model="scripted", input=[{"role": "user", "content": [part] * count}])
        assert model.requests == []
        assert (await client.responses.create(model="scripted", input=[{"role": "user", "content": [part] * 3}])).output_text


async def test_files_that_a_model_is_shown_count_among_what_requests_hold() -> None:
    quota = MemoryQuota(8_000_000)
    async with serving(say("Seen."), quota=quota) as (client, model, _):
        for size, is_shown in ((5_000_000, False), (3_000_000, True)):
            paper = await client.files.create(file=("p.pdf", b"%PDF-1.7" + bytes(size)), purpose="user_data")
            asked: Any = [{"role": "user", "content": [{"type": "input_file", "file_id": paper.id}]}]
            if is_shown:
                assert (await client.responses.create(model="scripted", input=asked)).output_text == "Seen."
            else:
                with pytest.raises(openai.APIStatusError, match="hold as many bytes"):
                    await client.responses.create(model="scripted", input=asked)
        assert len(model.requests) == 1
        assert quota.held == 0


async def test_a_file_of_another_tenant_does_not_exist_through_any_door(tmp_path: Path) -> None:
    engine = Engine(Scripted(say("Never.")), database=tmp_path / "runs.db")
    keys = Keys(engine.store)
    async with hosted(server(engine, keys=keys)) as url:
        ours, theirs = await keys.create(tenant="acme"), await keys.create(tenant="other")
        async with AsyncOpenAI(base_url=url, api_key=ours) as acme, AsyncOpenAI(base_url=url, api_key=theirs) as other:
            sent = await acme.files.create(file=("secret.txt", b"hush"), purpose="user_data")
            upload = await acme.uploads.create(bytes=1, filename="b", mime_type="text/plain", purpose="user_data")
            assert [file.id async for file in await other.files.list()] == []
            content: Any = [{"type": "input_file", "file_id": sent.id}]
            for asked in (
                other.files.retrieve(sent.id),
                other.files.content(sent.id),
                other.files.delete(sent.id),
                other.uploads.parts.create(upload.id, data=b"x"),
                other.uploads.complete(upload.id, part_ids=[]),
                other.uploads.cancel(upload.id),
                other.responses.create(model="scripted", input=[{"role": "user", "content": content}]),
            ):
                with pytest.raises(openai.NotFoundError):
                    await asked
            assert (await acme.files.content(sent.id)).content == b"hush"


async def test_a_server_without_a_place_for_files_says_how_to_have_one() -> None:
    class Elsewhere(MemoryStore):
        is_durable = True

    async with serving(store=Elsewhere()) as (client, _, _):
        with pytest.raises(openai.InternalServerError, match="set `files` to a folder") as raised:
            await client.files.create(file=("a", b"x"), purpose="user_data")
        assert raised.value.status_code == 503
