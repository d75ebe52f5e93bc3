"""The tenants of a database, for commands that list the things of one or of all of them."""

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

import msgspec

from mainspring.cli.output import write_lines, write_table
from mainspring.core.errors import InvalidRequest
from mainspring.http.auth import list_tenants
from mainspring.ports import OWNED, Store

T = TypeVar("T", bound=msgspec.Struct)


async def choose_tenants(store: Store, tenant: str, *, all_tenants: bool) -> list[str]:
    """The tenant of a command, or every one that has runs or keys, the default one first."""
    if not all_tenants:
        return [tenant]
    return [name for name in await list_tenants(store) if OWNED not in name]


def choose_tenant(tenant: str | None, *, all_tenants: bool) -> str | None:
    """The tenant of a command that lists those of all unless one is named; None is all. Raises `InvalidRequest` for both."""
    if tenant is not None and all_tenants:
        raise InvalidRequest("--tenant names one tenant, and --all-tenants means all; leave one of them out")
    return tenant


def write_of_tenants(
    found: Mapping[str, Sequence[T]],
    titles: tuple[str, ...],
    cells: Callable[[T], tuple[str, ...]],
    *,
    as_json: bool,
    named: bool,
    none: str = "",
) -> None:
    """Writes what each tenant has as lines of JSON, or as the rows of a table; if `named`, each says whose it is. `none` is as
    `write_table` has it."""
    if as_json:
        lines = [(tenant, value) for tenant, values in found.items() for value in values]
        write_lines([{"tenant": tenant, **msgspec.to_builtins(value)} if named else value for tenant, value in lines])
        return
    rows = [(tenant or "-", *cells(value)) for tenant, values in found.items() for value in values]
    table = [("tenant", *titles), *rows]
    write_table(table if named else [row[1:] for row in table], none=none)
