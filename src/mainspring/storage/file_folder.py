"""Files in a folder, on this machine or on a disk that several machines share."""

import asyncio
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import NamedTemporaryFile

from mainspring.core.errors import FilesUnavailable, NotFound

# Never a key: see `ports.FileStorage`.
_HALF = "~"


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

    async def get(self, key: str) -> bytes:
        try:
            return await asyncio.to_thread((self._folder / key).read_bytes)
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
            while True:
                file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                # Whoever empties a folder removes it: it may have gone by now.
                with suppress(FileNotFoundError), half.open("xb") as opened:
                    opened.write(data)
                    opened.flush()
                    os.fsync(opened.fileno())
                    half.replace(file)
                    return
        except OSError as error:
            with suppress(OSError):
                half.unlink(missing_ok=True)
            raise self._explain(error) from error

    def _remove(self, keys: Sequence[str]) -> None:
        try:
            for key in keys:
                (self._folder / key).unlink(missing_ok=True)
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
