"""Files in a folder, on this machine or on a disk that several machines share."""

import asyncio
import os
from collections.abc import AsyncGenerator, AsyncIterable, Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import BinaryIO

from mainspring.core.errors import FilesUnavailable, NotFound

# Never a key: see `ports.FileStorage`.
_HALF = "~"
PIECE_BYTES = 1 << 20
_MOST_TRIES = 100


class FileFolder:
    """See `ports.FileStorage`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __str__(self) -> str:
        return str(self._folder)

    async def open(self) -> None:
        await asyncio.to_thread(self._try_out)

    async def put(self, key: str, data: bytes) -> None:
        await asyncio.to_thread(self._put, key, data)

    async def put_pieces(self, key: str, pieces: AsyncIterable[bytes]) -> None:
        file = self._folder / key
        half = _name_half(file)
        try:
            opened = await asyncio.to_thread(self._open_half, half)
            with opened:
                async for piece in pieces:
                    await asyncio.to_thread(opened.write, piece)
                await asyncio.to_thread(self._finish, opened, half, file)
        except OSError as error:
            raise self._explain(error) from error
        finally:
            with suppress(OSError):
                half.unlink(missing_ok=True)

    async def get(self, key: str) -> bytes:
        try:
            return await asyncio.to_thread((self._folder / key).read_bytes)
        except FileNotFoundError:
            raise NotFound(f"there is no file `{key}`") from None
        except OSError as error:
            raise self._explain(error) from error

    async def read_pieces(self, key: str) -> AsyncGenerator[bytes, None]:
        try:
            with await asyncio.to_thread((self._folder / key).open, "rb") as opened:
                while piece := await asyncio.to_thread(opened.read, PIECE_BYTES):
                    yield piece
        except FileNotFoundError:
            raise NotFound(f"there is no file `{key}`") from None
        except OSError as error:
            raise self._explain(error) from error

    async def remove(self, keys: Sequence[str]) -> None:
        await asyncio.to_thread(self._remove, keys)

    async def list_keys(self, prefix: str) -> Sequence[str]:
        return await asyncio.to_thread(self._list_keys, prefix)

    async def list_folders(self, prefix: str) -> Sequence[str]:
        return await asyncio.to_thread(self._list_folders, prefix)

    def _try_out(self) -> None:
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            with NamedTemporaryFile(dir=self._folder, prefix=_HALF):
                pass
        except OSError as error:
            raise self._explain(error) from error

    def _put(self, key: str, data: bytes) -> None:
        file = self._folder / key
        half = file.with_name(f"{_HALF}{os.urandom(8).hex()}")
        try:
            with self._open_half(half) as opened:
                opened.write(data)
                self._finish(opened, half, file)
        except OSError as error:
            with suppress(OSError):
                half.unlink(missing_ok=True)
            raise self._explain(error) from error

    def _open_half(self, half: Path) -> BinaryIO:
        tries = 0
        while True:
            try:
                half.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                return os.fdopen(os.open(half, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb")
            except (FileNotFoundError, FileExistsError):
                # Whoever empties a folder removes it: it may go between any two steps. While a file is in it, it stays.
                tries += 1
                if tries == _MOST_TRIES:
                    raise

    def _finish(self, opened: BinaryIO, half: Path, file: Path) -> None:
        opened.flush()
        os.fsync(opened.fileno())
        half.replace(file)

    def _remove(self, keys: Sequence[str]) -> None:
        try:
            for key in keys:
                for file in (self._folder / key, _name_half(self._folder / key)):
                    file.unlink(missing_ok=True)
            for folder in {(self._folder / key).parent for key in keys} - {self._folder}:
                with suppress(OSError):  # It is not empty, or gone.
                    folder.rmdir()
        except OSError as error:
            raise self._explain(error) from error

    def _list_keys(self, prefix: str) -> list[str]:
        found = (Path(folder, name) for folder, _, names in os.walk(self._folder / prefix) for name in names)
        return [file.relative_to(self._folder).as_posix() for file in found if not file.name.startswith(_HALF)]

    def _list_folders(self, prefix: str) -> list[str]:
        try:
            return [entry.name for entry in os.scandir(self._folder / prefix) if entry.is_dir()]
        except FileNotFoundError:
            return []
        except OSError as error:
            raise self._explain(error) from error

    def _explain(self, error: OSError) -> FilesUnavailable:
        why = error.strerror or type(error).__name__
        return FilesUnavailable(
            f"the folder of files {self._folder} cannot be used: {why}; give this process the right to write there, with room on "
            "the disk, or name another one in `files`"
        )


def _name_half(file: Path) -> Path:
    """Where the pieces of a file are until it is whole. What a crash has left of them goes when the file is removed."""
    return file.with_name(f"{_HALF}{file.name}")
