"""The audit as chains: each record's hash is over its content and the hash before it.

A chain has one writer, so that nobody waits for another to add to it: each process on a server has its own, while whoever writes
to a file goes on with the last. There is none for each tenant: nobody's records can vanish altogether. Now and then a writer adds
a record with the ends of the other chains (an anchor): so what comes later vouches for them, and to cut one off, or to take one
away, all that followed must be written anew.

Whoever can write to the database can also do that, or cut off what no anchor has yet; only hashes that were kept elsewhere show
it. `heads` of `Verified` are those to keep: the ends of all chains that no other vouches for, in one chain its last.
"""

from collections.abc import Iterable, Iterator, Sequence
from hashlib import sha256
from typing import Final

import msgspec
from anyio import sleep
from msgspec import Struct
from msgspec.structs import replace

from mainspring.ports import AuditStore, Link, Note

GENESIS: Final = bytes(32)
PAGE: Final = 1_000
ANCHOR: Final = b'{"anchors":'
"""What the body of an anchor begins with."""


class Anchor(Struct, frozen=True, array_like=True):
    """The end of a chain at some time."""

    chain: str
    place: int
    hash: str


class _Anchors(Struct, frozen=True):
    anchors: tuple[Anchor, ...]


class Verified(Struct, frozen=True):
    """How many records are whole, and the hash of the last of them. `flaw` says what is wrong with the next, if anything is;
    `anchor` is the number of the record whose hash was looked for."""

    length: int = 0
    head: bytes = GENESIS
    flaw: str | None = None
    anchor: int | None = None
    heads: tuple[bytes, ...] = ()


def begin_chain(chain: str) -> bytes:
    """What the hash of its first record goes on from. The oldest chain has no name."""
    return sha256(chain.encode()).digest() if chain else GENESIS


def chain_notes(last: Link | None, notes: Iterable[Note]) -> Iterator[Link]:
    """The notes as they follow the last record."""
    last = last or Link(0, Note(b""), GENESIS)
    for note in notes:
        place = last.place + 1
        last = Link(last.number + 1, note, hash_link(last.hash, place, note), last.chain, place)
        yield last


def hash_link(head: bytes, place: int, note: Note) -> bytes:
    """The hash of a record. Lengths go in, so that nothing can move from one field to the next."""
    call = note.call.encode()
    return sha256(b"".join([head, place.to_bytes(8), len(call).to_bytes(4), call, note.body])).digest()


def make_anchor(ends: Iterable[Anchor]) -> Note:
    return Note(msgspec.json.encode(_Anchors(tuple(ends))))


def read_anchors(note: Note) -> tuple[Anchor, ...]:
    """The ends that a record vouches for, if it is an anchor."""
    if note.call or not note.body.startswith(ANCHOR):
        return ()
    try:
        return msgspec.json.decode(note.body, type=_Anchors).anchors
    except msgspec.DecodeError:
        return ()


async def verify(store: AuditStore, *heads: bytes, pause: float = 0.0) -> Verified:
    """Walks every chain to its end or to the first break, then looks for what the anchors name. With `heads`, an audit in which
    no record has one of these hashes is broken, too. It pauses for so many seconds after each page."""
    walk = _Walk(heads, pause)
    for chain in await store.list_chains():
        if (flaw := await walk.follow(store, chain)) is not None:
            return walk.tell(flaw)
    for named in walk.named.values():
        if (flaw := await _check_anchor(store, named)) is not None:
            return walk.tell(flaw)
    for head in set(heads) - walk.found - {GENESIS}:
        return walk.tell(f"no record has the hash {head.hex()}: the end of the audit was cut off, or all of it was written anew")
    return walk.tell(None)


class _Walk:
    """What was seen so far: the ends of the chains, the last that anchors name of each, and which heads were found."""

    def __init__(self, heads: Sequence[bytes], pause: float) -> None:
        self._heads, self._pause = heads, pause
        self._length = 0
        self._anchor: int | None = 0 if GENESIS in heads else None
        self._ends: dict[str, Link] = {}
        self.named: dict[str, Anchor] = {}
        self.found: set[bytes] = set()

    async def follow(self, store: AuditStore, chain: str) -> str | None:
        """Walks a chain. Returns what is wrong with it, if anything is."""
        last = Link(0, Note(b""), begin_chain(chain), chain)
        after: int | None = None
        while links := await store.read_chain(chain, after=after, limit=PAGE):
            after = links[-1].place
            for link in links:
                if (flaw := _find_flaw(last, link)) is not None:
                    return flaw
                self._take(link)
                last = link
            await sleep(self._pause)
        return None

    def _take(self, link: Link) -> None:
        self._length += 1
        self._ends[link.chain] = link
        if link.hash in self._heads:
            self.found.add(link.hash)
            self._anchor = link.number
        for named in read_anchors(link.note):
            if named.place > self.named.get(named.chain, replace(named, place=0)).place:
                self.named[named.chain] = named

    def tell(self, flaw: str | None) -> Verified:
        ends = sorted(self._ends.values(), key=lambda end: -end.number)
        heads = [end.hash for end in ends if end.chain not in self.named or self.named[end.chain].place < end.place]
        return Verified(self._length, ends[0].hash if ends else GENESIS, flaw, self._anchor, tuple(heads) or (GENESIS,))


async def _check_anchor(store: AuditStore, named: Anchor) -> str | None:
    links = await store.read_chain(named.chain, after=named.place - 1, limit=1)
    if links and links[0].place == named.place and links[0].hash.hex() == named.hash:
        return None
    what = "was changed" if links else "is missing: the end of its chain was cut off"
    return f"record {_name(named.chain, named.place)}, which others vouch for, {what}"


def _find_flaw(last: Link, link: Link) -> str | None:
    wanted = last.place + 1
    if link.place != wanted:
        return f"record {_name(link.chain, wanted)} is missing: record {link.place} follows record {last.place}"
    if link.hash != hash_link(last.hash, link.place, link.note):
        return f"record {_name(link.chain, link.place)} was changed, or is not the one that followed record {last.place}"
    return None


def _name(chain: str, place: int) -> str:
    return f"{place} of chain `{chain}`" if chain else f"{place}"
