"""What is asked of the audit in PostgreSQL."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from mainspring.ports import Link, Note
from mainspring.storage.audit_chain import ANCHOR
from mainspring.storage.postgres.postgres_server import Row
from mainspring.storage.postgres.run_tables import make_key, unescape

Fetch = Callable[..., Awaitable[Sequence[Row]]]

_LINK: Final = "SELECT number, call, body, hash, chain, coalesce(place, number) FROM mainspring_audit"
# Found one by one, in the order of their names: there are few of them, and many records.
_CHAINS: Final = """
    WITH RECURSIVE named AS (
        SELECT min(chain) AS chain FROM mainspring_audit
        UNION ALL SELECT (SELECT min(chain) FROM mainspring_audit WHERE chain > named.chain) FROM named WHERE chain IS NOT NULL
    ) SELECT chain FROM named WHERE chain IS NOT NULL
"""


async def list_audit(fetch: Fetch, *, after: int | None, limit: int | None, newest_first: bool, call: str | None) -> list[Link]:
    if call == "":
        return []
    key = None if call is None else make_key(call)
    conditions = [f"substring(body FOR {len(ANCHOR)}) <> $1::bytea"]
    conditions.append("$2::bytea IS NULL" if call is None else "call_key = $2")
    conditions.append("$3::bigint IS NULL" if after is None else f"number {'<' if newest_first else '>'} $3")
    order = "DESC" if newest_first else "ASC"
    query = f"{_LINK} WHERE {' AND '.join(conditions)} ORDER BY number {order} LIMIT $4"
    return [_read_link(row) for row in await fetch(query, ANCHOR, key, after, limit)]


async def read_chain(fetch: Fetch, chain: str, after: int | None, limit: int) -> list[Link]:
    behind = "$2::bigint IS NULL" if after is None else "coalesce(place, number) > $2"
    query = f"{_LINK} WHERE chain = $1 AND {behind} ORDER BY coalesce(place, number) LIMIT $3"
    return [_read_link(row) for row in await fetch(query, chain, after, limit)]


async def list_chains(fetch: Fetch) -> list[str]:
    return [chain for [chain] in await fetch(_CHAINS)]


def _read_link(row: Row) -> Link:
    number, call, body, hash, chain, place = row
    return Link(number, Note(body, unescape(call)), hash, chain, place)
