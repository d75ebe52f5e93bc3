"""Opening a database to look into it."""

import shlex
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from msgspec import Struct

from mainspring.cli.context import load_settings
from mainspring.core.errors import InvalidRequest, NotFound
from mainspring.engine.engine import Engine, Handle
from mainspring.providers.scripted import Scripted
from mainspring.storage.sqlite_runs import SqliteStore


class DatabaseSettings(Struct, frozen=True):
    database: str


def check_database(database: Path) -> Path:
    """Raises `InvalidRequest` if there is no such file."""
    if not database.exists():
        raise InvalidRequest(f"there is no database `{database}`; check --database, or make one with `mainspring run --database`")
    return database


def choose_database(database: Path | None) -> Path:
    """The database that an option names, else that of the settings."""
    return database if database is not None else Path(load_settings(DatabaseSettings).database)


@asynccontextmanager
async def open_database(database: Path) -> AsyncIterator[Engine]:
    """An engine that reads runs and has no model to start one. Raises `InvalidRequest` if there is no such file."""
    async with SqliteStore(check_database(database)) as store, Engine(Scripted(), store) as engine:
        yield engine


async def find_run(engine: Engine, run_id: str, database: Path) -> Handle:
    """The run as far as the database has it. Raises `NotFound` that says how to list the runs."""
    try:
        return await engine.attach(run_id)
    except NotFound as error:
        raise NotFound(f"{error.message}; {how_to_list(database)}") from error


def how_to_list(database: Path) -> str:
    return f"list the runs with: mainspring runs {database_option(database)}"


def database_option(database: Path) -> str:
    """`--database FILE`, quoted for a shell."""
    return f"--database {shlex.quote(str(database))}"
