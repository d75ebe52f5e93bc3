"""Opening a database to look into it."""

import shlex
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from msgspec import Struct

from mainspring.cli.context import load_settings
from mainspring.core.errors import InvalidRequest, NotFound
from mainspring.engine.engine import Engine
from mainspring.engine.handle import Handle
from mainspring.providers.scripted import Scripted
from mainspring.storage.choose_store import open_store
from mainspring.storage.location import Location, parse_location


class DatabaseSettings(Struct, frozen=True):
    database: str


def check_database(database: Location) -> Location:
    """Raises `InvalidRequest` if there is no such file."""
    if database.file is not None and not database.file.exists():
        raise InvalidRequest(f"there is no database `{database}`; check --database, or make one with `mainspring run --database`")
    return database


def choose_database(database: Location | None) -> Location:
    """The database that an option names, else that of the settings."""
    return database if database is not None else parse_location(load_settings(DatabaseSettings).database)


@asynccontextmanager
async def open_database(database: Location) -> AsyncIterator[Engine]:
    """An engine that reads runs and has no model to start one. Raises `InvalidRequest` if there is no such file."""
    async with open_store(check_database(database)) as store, Engine(Scripted(), store) as engine:
        yield engine


async def find_run(engine: Engine, run_id: str, database: Location) -> Handle:
    """The run as far as the database has it. Raises `NotFound` that says how to list the runs."""
    try:
        return await engine.attach(run_id)
    except NotFound as error:
        raise NotFound(f"{error.message}; {how_to_list(database)}") from error


def how_to_list(database: Location) -> str:
    return f"list the runs with: mainspring runs {database_option(database)}"


def database_option(database: Location) -> str:
    """`--database FILE`, quoted for a shell."""
    return f"--database {shlex.quote(str(database))}"
