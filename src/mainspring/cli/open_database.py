"""Opening a database only to look into it."""

import shlex
from pathlib import Path

from mainspring.app.engine import Engine
from mainspring.core.errors import InvalidRequest, NotFound
from mainspring.engine.engine import Handle
from mainspring.providers.scripted import Scripted


def reader(database: Path) -> Engine:
    """An engine that shows runs and has no model to start one. Raises `InvalidRequest` if there is no such file."""
    if not database.exists():
        raise InvalidRequest(f"there is no database `{database}`; check --database, or make one with `mainspring run --database`")
    return Engine(Scripted(), database=database)


def kept_in(database: Path | None) -> Path:
    """The database that is named, else that of the settings."""
    from mainspring.app.settings import load

    return database if database is not None else Path(load({}).database)


async def found(engine: Engine, run_id: str, database: Path) -> Handle:
    """The run as far as the database has it. Raises `NotFound`, with the way to find out which there are."""
    try:
        return await engine.attach(run_id)
    except NotFound as error:
        raise NotFound(f"{error.message}; {how_to_list(database)}") from error


def how_to_list(database: Path) -> str:
    return f"list the runs with: mainspring runs {in_database(database)}"


def in_database(database: Path) -> str:
    """The option, as one would type it."""
    return f"--database {shlex.quote(str(database))}"
