"""The audit as a chain: each record's hash is over its content and the hash before it.

There is one chain for a whole store, not one for each tenant: then one hash, kept elsewhere, vouches for everything up to it, and
nobody's records can vanish altogether. Whoever can write to the file can also make a new chain, or cut the end off this one; only
a hash that was kept elsewhere shows that.
"""

from collections.abc import Iterable, Iterator
from hashlib import sha256
from typing import Final

from msgspec import Struct

from mainspring.ports import AuditStore, Link, Note

GENESIS: Final = bytes(32)
PAGE: Final = 1_000


class Verified(Struct, frozen=True):
    """How many records are whole, and the hash of the last of them. `flaw` says what is wrong with the next, if anything is;
    `anchor` is the number of the record whose hash was looked for."""

    length: int = 0
    head: bytes = GENESIS
    flaw: str | None = None
    anchor: int | None = None


def chain_notes(last: Link | None, notes: Iterable[Note]) -> Iterator[Link]:
    """The notes as they follow the last record."""
    number, head = (0, GENESIS) if last is None else (last.number, last.hash)
    for note in notes:
        number, head = number + 1, hash_link(head, number + 1, note)
        yield Link(number, note, head)


def hash_link(head: bytes, number: int, note: Note) -> bytes:
    """The hash of a record. Lengths go in, so that nothing can move from one field to the next."""
    call = note.call.encode()
    return sha256(b"".join([head, number.to_bytes(8), len(call).to_bytes(4), call, note.body])).digest()


async def verify(store: AuditStore, head: bytes | None = None) -> Verified:
    """Walks the chain to its end or to the first break. With `head`, a chain in which no record has that hash is broken too."""
    seen = Verified(anchor=0 if head == GENESIS else None)
    while links := await store.audit(after=seen.length or None, limit=PAGE):
        for link in links:
            if (flaw := _flaw(seen, link)) is not None:
                return Verified(seen.length, seen.head, flaw, seen.anchor)
            seen = Verified(link.number, link.hash, anchor=link.number if link.hash == head else seen.anchor)
    if head is not None and seen.anchor is None:
        flaw = f"no record has the hash {head.hex()}: the end of the audit was cut off, or all of it was written anew"
        return Verified(seen.length, seen.head, flaw)
    return seen


def _flaw(seen: Verified, link: Link) -> str | None:
    wanted = seen.length + 1
    if link.number != wanted:
        return f"record {wanted} is missing: record {link.number} follows record {seen.length}"
    if link.hash != hash_link(seen.head, link.number, link.note):
        return f"record {link.number} was changed, or is not the one that followed record {seen.length}"
    return None
