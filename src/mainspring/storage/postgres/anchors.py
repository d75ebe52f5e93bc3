"""Which ends of other chains of the audit a writer is to vouch for.

It does so with its first notes, and then with those that follow after a minute. A chain whose writer is gone and whose end has an
anchor needs no other: it is looked at no more.
"""

from collections.abc import Sequence
from time import monotonic
from typing import Final, NamedTuple

from mainspring.storage.audit_chain import Anchor
from mainspring.storage.postgres.postgres_server import Connection

ANCHOR_SECONDS: Final = 60.0
MOST_ENDS: Final = 1_000
_ENDS: Final = f"""
    SELECT known.chain, last.place, encode(last.hash, 'hex'),
        NOT EXISTS (SELECT FROM mainspring_writers WHERE encode(id, 'hex') = known.chain)
    FROM mainspring_audit_chains known CROSS JOIN LATERAL (
        SELECT coalesce(place, number) AS place, hash FROM mainspring_audit
        WHERE chain = known.chain ORDER BY coalesce(place, number) DESC LIMIT 1
    ) last WHERE known.chain <> $1 LIMIT {MOST_ENDS}
"""


class End(NamedTuple):
    anchor: Anchor
    is_final: bool


class Anchors:
    """What one writer has vouched for."""

    def __init__(self) -> None:
        self._looked_at: float | None = None
        self._known: dict[str, int] = {}

    async def find(self, connection: Connection, own: str) -> list[End]:
        """The ends that are not vouched for yet; none if it was looked for them just before."""
        if self._looked_at is not None and monotonic() < self._looked_at + ANCHOR_SECONDS:
            return []
        rows = await connection.fetch(_ENDS, own)
        self._looked_at = monotonic()
        ends = [End(Anchor(chain, place, hash), is_final) for chain, place, hash, is_final in rows]
        return [end for end in ends if self._known.get(end.anchor.chain) != end.anchor.place]

    async def keep(self, connection: Connection, ends: Sequence[End]) -> None:
        """These are in the audit now."""
        self._known |= {end.anchor.chain: end.anchor.place for end in ends}
        if final := [end.anchor.chain for end in ends if end.is_final]:
            await connection.execute("DELETE FROM mainspring_audit_chains WHERE chain = ANY($1::text[])", final)
