"""The same test on a file and on PostgreSQL: `database_in` names the database of whichever test works in a folder.

A module whose tests are to run on both says `pytestmark = pytest.mark.usefixtures("each_database")`.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_SERVED: dict[Path, str] = {}


def find_served() -> str | None:
    """The database of a server that the running test works on, if it does."""
    return next(iter(_SERVED.values()), None)


def database_in(folder: Path, name: str = "runs.db") -> str:
    return _SERVED.get(folder) or str(folder / name)


@contextmanager
def served_database(folder: Path, url: str) -> Iterator[None]:
    """Has the tests of this folder work on this database of a server."""
    _SERVED[folder] = url
    try:
        yield
    finally:
        del _SERVED[folder]
