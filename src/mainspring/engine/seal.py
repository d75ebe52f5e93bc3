"""The seal on compaction items: a keyed hash, so that what was damaged or made up is not taken for a summary.

The key is made when it is first needed and kept in the store, so it lasts as long as the runs do and is shared by all who share
them. Items that were sealed with another store's key are refused.
"""

from base64 import b64encode
from hmac import compare_digest, digest
from secrets import token_bytes

import msgspec

from mainspring.core.compaction import Summary, is_compaction, payload_of, summary_of
from mainspring.core.errors import InvalidRequest
from mainspring.core.items import Item, Unknown
from mainspring.ports import Document, DocumentStore

_KIND, _ID = "secret", "compaction"


class Seal:
    def __init__(self, store: DocumentStore) -> None:
        self._store = store
        self._known: bytes | None = None

    async def close(self, summary: Summary) -> str:
        """The content of a compaction item that says this."""
        payload = payload_of(summary)
        return f"{payload}.{_hash(await self._key(), payload)}"

    async def check(self, items: tuple[Item, ...]) -> None:
        """Raises `InvalidRequest` for a compaction item among these that cannot be read, or that this store did not seal."""
        for number, item in enumerate(items):
            if not is_compaction(item):
                continue
            assert isinstance(item, Unknown)
            payload, _, seal = str(item.data.get("encrypted_content")).rpartition(".")
            if summary_of(item) is None or not compare_digest(seal.encode(), _hash(await self._key(), payload).encode()):
                message = (
                    f"input[{number}]: the encrypted_content of this compaction item cannot be read: it is damaged, or was made "
                    "by another server; send the items that it replaces, or begin anew"
                )
                raise InvalidRequest(message, param=f"input[{number}].encrypted_content")

    async def _key(self) -> bytes:
        if self._known is None:
            # Whoever comes first makes the key; all others read what was made.
            await self._store.put([Document(_KIND, _ID, msgspec.json.encode(token_bytes(32)))], if_absent=True)
            found = await self._store.get(_KIND, _ID)
            assert found is not None
            self._known = msgspec.json.decode(found.body, type=bytes)
        return self._known


def _hash(key: bytes, payload: str) -> str:
    return b64encode(digest(key, payload.encode(), "sha256")).decode()
