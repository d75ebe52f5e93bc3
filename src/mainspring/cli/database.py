"""Opening a database to look into it."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from mainspring.cli.options import name_database
from mainspring.core.errors import InvalidRequest, NotFound
from mainspring.engine.engine import Engine
from mainspring.engine.handle import Handle
from mainspring.ports import Store
from mainspring.providers.scripted import Scripted
from mainspring.storage.choose_store import open_store
from mainspring.storage.location import Location

LAST = "last"
# A person types the beginning of an id that they have just seen.
NEWEST = 1000


def check_database(database: Location) -> Location:
    """Raises `InvalidRequest` if there is no such file."""
    if database.file is not None and not database.file.exists():
        how = "`mainspring run` and `mainspring serve` make one; or check --database, or `database` in the settings"
        raise InvalidRequest(f"there is no database `{database}`; {how}")
    return database


@asynccontextmanager
async def open_database(database: Location) -> AsyncIterator[Engine]:
    """An engine that reads runs and has no model to start one. Raises `InvalidRequest` if there is no such file."""
    async with open_store(check_database(database)) as store, Engine(Scripted(), store) as engine:
        yield engine


async def find_run(engine: Engine, given: str, database: Location) -> Handle:
    """The run as far as the database has it. Raises `NotFound` that says how to list the runs."""
    try:
        return await engine.attach(await find_run_id(engine.store, given))
    except NotFound as error:
        raise NotFound(f"{error.message}; {how_to_list(database)}") from error


async def find_run_id(store: Store, given: str) -> str:
    """The id that is meant by `last`, or by the beginning of one of the newest. Raises `InvalidRequest` if several begin so."""
    newest = (await store.list(limit=1 if given == LAST else NEWEST)).runs
    return choose_id(given, [run.id for run in newest], "runs")


def choose_id(given: str, newest: Sequence[str], kind: str) -> str:
    """The id of these, the newest first, that is meant by `last` or by its beginning; what is given if there is none. Raises
    `InvalidRequest` if several begin so."""
    if given == LAST:
        return newest[0] if newest else given
    meant = [each for each in newest if each.startswith(given)]
    if len(meant) > 1 and given not in meant:
        raise InvalidRequest(f"`{given}` is the beginning of {len(meant)} {kind}: {', '.join(meant[:3])}; write more of it")
    return meant[0] if len(meant) == 1 else given


def how_to_list(database: Location) -> str:
    return f"list the runs with: mainspring runs{name_database(database)}"
