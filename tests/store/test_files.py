"""Every storage of files keeps the same promises, and says in one line what to do when it cannot be used."""

import os
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import anyio
import pytest
from tests.kit.s3 import S3, running_s3

from mainspring.core.errors import FilesUnavailable, InvalidRequest, NotFound
from mainspring.ports import FileStorage
from mainspring.storage.choose_files import choose_files

BYTES = bytes(range(256)) * 1000


@pytest.fixture(scope="module")
def server() -> Iterator[S3]:
    with running_s3() as s3:
        yield s3


@pytest.fixture
def s3(server: S3, monkeypatch: pytest.MonkeyPatch) -> S3:
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    return server


@pytest.fixture(params=["folder", "memory", "s3"])
async def storage(request: pytest.FixtureRequest, s3: S3, tmp_path: Path) -> FileStorage:
    places = {"folder": str(tmp_path / "a" / "b"), "memory": "memory://", "s3": f"s3://files/some place/{os.urandom(4).hex()}"}
    made = choose_files(places[request.param])
    await made.open()
    assert await made.list_keys("") == [], "trying it out leaves nothing behind"
    return made


async def test_what_is_put_is_found_listed_and_removed(storage: FileStorage) -> None:
    await storage.put("c/one/1.1", BYTES)
    await storage.put("c/one/1.2", b"")
    await storage.put("c/two/1.1", b"other")
    assert await storage.get("c/one/1.1") == BYTES
    assert await storage.get("c/one/1.2") == b""
    assert sorted(await storage.list_keys("c/one")) == ["c/one/1.1", "c/one/1.2"]
    assert sorted(await storage.list_folders("c")) == ["one", "two"]
    await storage.put("c/one/1.2", b"replaced")
    assert await storage.get("c/one/1.2") == b"replaced"
    await storage.remove(["c/one/1.1", "c/one/never", "c/one/1.2"])
    assert (await storage.list_keys("c/one"), await storage.list_folders("c")) == ([], ["two"])
    assert await storage.get("c/two/1.1") == b"other"


async def test_files_in_a_folder_are_for_their_owner_alone(tmp_path: Path) -> None:
    made = choose_files(str(tmp_path / "files"))
    await made.open()
    before = os.umask(0)
    try:
        await made.put("c/one", BYTES)
    finally:
        os.umask(before)
    assert {oct(found.stat().st_mode & 0o777) for found in (tmp_path / "files").rglob("*")} == {"0o600", "0o700"}


async def test_what_is_not_there_is_not_found(storage: FileStorage) -> None:
    with pytest.raises(NotFound):
        await storage.get("c/none")
    assert (await storage.list_keys("c"), await storage.list_folders("c")) == ([], [])
    await storage.remove([])


async def in_pieces(count: int, size: int = 1_000_000) -> AsyncIterator[bytes]:
    for number in range(count):
        yield bytes([number]) * size


@pytest.mark.parametrize("count", [0, 1, 20])
async def test_a_file_of_any_size_goes_in_and_comes_out_in_pieces(storage: FileStorage, count: int) -> None:
    await storage.put_pieces("c/large", in_pieces(count))
    found = [piece async for piece in storage.read_pieces("c/large")]
    assert b"".join(found) == b"".join([piece async for piece in in_pieces(count)])
    # What is in memory is in one piece anyway.
    assert str(storage).startswith("memory:") or all(len(piece) <= 8 << 20 for piece in found)
    assert await storage.list_keys("c") == ["c/large"]
    with pytest.raises(NotFound):
        await anext(storage.read_pieces("c/none"))


async def test_pieces_that_break_off_leave_no_file(storage: FileStorage) -> None:
    async def break_off() -> AsyncIterator[bytes]:
        async for piece in in_pieces(12):
            yield piece
        raise InvalidRequest("that is too much")

    with pytest.raises(InvalidRequest, match="too much"):
        await storage.put_pieces("c/broken", break_off())
    assert await storage.list_keys("c") == []


async def test_pieces_that_break_off_leave_no_parts_in_a_bucket(s3: S3) -> None:
    async def break_off() -> AsyncIterator[bytes]:
        async for piece in in_pieces(20):
            yield piece
        raise InvalidRequest("that is too much")

    storage = choose_files("s3://files/parts")
    await storage.open()
    with pytest.raises(InvalidRequest, match="too much"):
        await storage.put_pieces("c/broken", break_off())
    assert b"<Upload>" not in await anyio.to_thread.run_sync(s3.send, "GET", "/files?uploads")


async def test_what_a_crash_has_left_of_a_file_in_a_folder_is_removed_with_it(tmp_path: Path) -> None:
    code = (
        "import asyncio, os\nfrom pathlib import Path\nfrom mainspring.storage.file_folder import FileFolder\n"
        "async def crash():\n    yield b'x' * 100_000\n    os._exit(7)\n"
        f"asyncio.run(FileFolder(Path({str(tmp_path)!r})).put_pieces('c/large', crash()))"
    )
    done = await anyio.to_thread.run_sync(lambda: subprocess.run([sys.executable, "-c", code], check=False))
    assert done.returncode == 7
    storage = choose_files(str(tmp_path))
    assert await storage.list_keys("c") == []
    await storage.remove(["c/large"])
    assert os.listdir(tmp_path) == []


async def test_many_files_come_and_go_at_once(storage: FileStorage) -> None:
    async def work(number: int) -> None:
        for turn in range(5):
            key = f"c/{number % 3}/{number}.{turn}"
            await storage.put(key, key.encode())
            assert await storage.get(key) == key.encode()
            await storage.remove([key])

    async with anyio.create_task_group() as group:
        for number in range(12):
            group.start_soon(work, number)
    assert await storage.list_keys("c") == []


async def test_a_folder_that_goes_while_it_is_made_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make, errors = os.mkdir, [FileExistsError(17, "File exists"), FileNotFoundError(2, "No such file or directory")]

    def lose_a_race(path: Path, mode: int = 0o777) -> None:
        if errors:  # Another has made it, and removed it since.
            raise errors.pop(0)
        make(path, mode)

    storage = choose_files(str(tmp_path))
    monkeypatch.setattr(os, "mkdir", lose_a_race)
    await storage.put("c/one", b"1")
    assert (errors, await storage.get("c/one")) == ([], b"1")


async def test_a_file_in_the_place_of_a_folder_is_told(tmp_path: Path) -> None:
    (tmp_path / "c").write_text("")
    with pytest.raises(FilesUnavailable, match="File exists"):
        await choose_files(str(tmp_path)).put("c/one", b"1")


async def test_a_bucket_that_is_not_there_is_told(s3: S3) -> None:
    with pytest.raises(FilesUnavailable, match=r"s3://other/x: there is no such bucket; create it") as raised:
        await choose_files("s3://other/x").open()
    assert "\n" not in raised.value.message


async def test_missing_rights_are_told_and_nothing_is_lost(s3: S3) -> None:
    storage = choose_files("s3://files/rights")
    await storage.put("c/kept", b"kept")
    with s3.strict():
        for attempt in (storage.open(), storage.get("c/kept"), storage.put("c/new", b""), storage.remove(["c/kept"])):
            with pytest.raises(FilesUnavailable, match="access is denied; give the credentials") as raised:
                await attempt
            assert "\n" not in raised.value.message
        with pytest.raises(FilesUnavailable):
            await storage.list_keys("c")
    assert await storage.get("c/kept") == b"kept"


async def test_a_server_that_does_not_answer_is_told(s3: S3, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    with pytest.raises(FilesUnavailable, match="check the endpoint, the network and the credentials") as raised:
        await choose_files("s3://files").open()
    assert "\n" not in raised.value.message
    assert "anything" not in raised.value.message, "which is the secret"


async def test_a_folder_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(FilesUnavailable, match="cannot be used: Not a directory; give this process the right"):
        await choose_files(str(tmp_path / "file" / "folder")).open()


@pytest.mark.parametrize(
    "place", ["", " ", "ftp://host/x", "s3://", "s3:///x", "s3://key:SECRET@bucket/x", "gs://bucket/x?key=SECRET", "memory://x"]
)
def test_what_names_no_storage_is_refused_without_its_secrets(place: str) -> None:
    with pytest.raises(InvalidRequest) as raised:
        choose_files(place)
    assert raised.value.param == "files"
    assert "SECRET" not in raised.value.message


def test_an_account_that_is_missing_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("AZURE_"):
            monkeypatch.delenv(name)
    with pytest.raises(InvalidRequest, match="Account must be specified"):
        choose_files("az://container/x")


def test_without_the_package_it_is_named_and_a_folder_needs_none() -> None:
    code = (
        "import sys; sys.modules['obstore'] = None\n"
        "from mainspring.storage.choose_files import choose_files\n"
        "choose_files('folder')\n"
        "try: choose_files('s3://bucket')\n"
        "except Exception as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "object storage needs another package: pip install 'mainspring[objects]'\n"
