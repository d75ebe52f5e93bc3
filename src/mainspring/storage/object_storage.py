"""Files in object storage: S3 and what speaks like it, Google Cloud Storage, Azure.

Where it is and who asks is said in the environment, by the variables that the tools of the vendors read, such as
`AWS_ENDPOINT_URL` and `AWS_ACCESS_KEY_ID`. A failed request is repeated for a few seconds before it counts.
"""

import os
from collections.abc import AsyncGenerator, AsyncIterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Final

import obstore
from obstore import exceptions
from obstore.store import from_url

from mainspring.core.errors import FilesUnavailable, InvalidRequest, NotFound

if TYPE_CHECKING:
    from obstore.store import ClientConfig, RetryConfig

# Who names an endpoint without TLS wants that.
CLIENT: "Final[ClientConfig]" = {"connect_timeout": "5s", "timeout": "60s", "allow_http": True}
RETRIES: "Final[RetryConfig]" = {"max_retries": 4, "retry_timeout": timedelta(seconds=15)}
_TRIAL: Final = "trial"
# What is held of a file that is written; a file of ten thousand such pieces is as large as S3 takes it.
PIECE_BYTES: Final = 8 << 20


class ObjectStorage:
    """See `ports.FileStorage`."""

    def __init__(self, url: str) -> None:
        """Raises `InvalidRequest` if the environment says too little to reach it."""
        self._url = url
        try:
            if url.startswith("memory:"):
                self._objects = from_url("memory:///")
            else:
                self._objects = from_url(url, client_options=CLIENT, retry_config=RETRIES)
        except exceptions.BaseError as error:
            raise InvalidRequest(
                f"`files` names {url}, which cannot be reached: {_read_first_line(error)}; say what is missing in the "
                "environment, as for the tools of the vendor",
                param="files",
            ) from error

    def __str__(self) -> str:
        return self._url

    async def open(self) -> None:
        key = f"{_TRIAL}/{os.urandom(8).hex()}"
        with self._explain():
            await self.put(key, b"Mainspring may write here.")
            await self.get(key)
            await self.list_keys(_TRIAL)
            await self.remove([key])

    async def put(self, key: str, data: bytes) -> None:
        with self._explain():
            await obstore.put_async(self._objects, key, data)

    async def put_pieces(self, key: str, pieces: AsyncIterable[bytes]) -> None:
        # It is there once it is whole. Of what breaks off, a writer would leave parts that nobody sees, and that are paid for.
        with self._explain():
            await obstore.put_async(self._objects, key, pieces, chunk_size=PIECE_BYTES, max_concurrency=2)

    async def get(self, key: str) -> bytes:
        with self._explain():
            try:
                return bytes(await (await obstore.get_async(self._objects, key)).bytes_async())
            except FileNotFoundError:
                raise NotFound(f"there is no file `{key}`") from None

    async def read_pieces(self, key: str) -> AsyncGenerator[bytes, None]:
        with self._explain():
            try:
                found = await obstore.get_async(self._objects, key)
            except FileNotFoundError:
                raise NotFound(f"there is no file `{key}`") from None
            async for piece in found.stream(min_chunk_size=1 << 20):
                yield bytes(piece)

    async def remove(self, keys: Sequence[str]) -> None:
        with self._explain():
            try:
                if keys:
                    await obstore.delete_async(self._objects, keys)
            except FileNotFoundError:
                # Some vendors refuse to remove what is not there.
                for key in keys:
                    with suppress(FileNotFoundError):
                        await obstore.delete_async(self._objects, key)

    async def list_keys(self, prefix: str) -> Sequence[str]:
        with self._explain():
            return [found["path"] async for page in obstore.list(self._objects, prefix) for found in page]

    async def list_folders(self, prefix: str) -> Sequence[str]:
        with self._explain():
            found = await obstore.list_with_delimiter_async(self._objects, prefix)
            return [folder.rstrip("/").rpartition("/")[2] for folder in found["common_prefixes"]]

    @contextmanager
    def _explain(self) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError:
            told = "there is no such bucket; create it, or name another one in `files`"
            raise FilesUnavailable(f"files cannot be kept in {self._url}: {told}") from None
        except (exceptions.PermissionDeniedError, exceptions.UnauthenticatedError) as error:
            told = "give the credentials of this process the right to write, read, list and delete objects there"
            raise FilesUnavailable(f"files cannot be kept in {self._url}: access is denied; {told}") from error
        except (exceptions.BaseError, OSError) as error:
            told = "check the endpoint, the network and the credentials that the environment names"
            raise FilesUnavailable(f"files cannot be kept in {self._url}: {_read_first_line(error)}; {told}") from error


def _read_first_line(error: Exception) -> str:
    """What happened, without the internals that the library shows behind it."""
    return str(error).partition("\n")[0].strip()[:300]
