"""What a database may be called, and that no password is ever shown."""

from pathlib import Path

import pytest

from mainspring.core.errors import InvalidRequest
from mainspring.storage.location import hide_password, parse_location

SECRET = "hunter2"


@pytest.mark.parametrize("name", ["runs.db", "/var/lib/mainspring.db", "a b/c.db", "postgres", "postgresql.db", "C:\\runs.db"])
def test_a_name_is_a_file(name: str) -> None:
    found = parse_location(name)
    assert (found.file, str(found), found.given) == (Path(name), name, name)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        (f"postgresql://app:{SECRET}@db.example:5433/runs", "postgresql://app:***@db.example:5433/runs"),
        (f"postgres://app:{SECRET}@h1,h2:5433/runs?sslmode=require", "postgres://app:***@h1,h2:5433/runs?sslmode=require"),
        (f"postgresql://app:{SECRET}@h1:5432,h2:5433/runs", "postgresql://app:***@h1:5432,h2:5433/runs"),
        (f"postgresql:///runs?host=/tmp/pg&user=a&password={SECRET}", "postgresql:///runs?host=/tmp/pg&user=a&password=***"),
        (f"postgresql:///runs?PASSWORD={SECRET}", "postgresql:///runs?PASSWORD=***"),
        (f"POSTGRESQL://app:{SECRET}@[::1]/runs", "postgresql://app:***@[::1]/runs"),
        ("postgresql://db/runs", "postgresql://db/runs"),
    ],
)
def test_a_url_of_postgresql_is_shown_without_its_password(url: str, shown: str) -> None:
    found = parse_location(url)
    assert found.file is None
    assert found.given == url
    assert str(found) == hide_password(url) == shown
    assert SECRET not in f"{found} {found!r}"


@pytest.mark.parametrize(
    "url",
    [
        f"postgresql://app:{SECRET}/@h/runs",
        f"postgresql://app:x@{SECRET}@h/runs",
        f"postgresql://app:#{SECRET}@h/runs",
        f"postgresql:app:{SECRET}@h/runs",
        f"postgresql//app:{SECRET}@h/runs",
        f"postgresql:/app:{SECRET}@h/runs",
        f"postgresql://app:{SECRET}@h:port/runs",
        f"postgresql://app:{SECRET}@h:5432,h:port/runs",
        f"postgresql://app:{SECRET}@[h/runs",
        f"postgresql://h/runs?{SECRET}",
        f" postgresql://app:{SECRET}@h/runs",
        f'"postgresql://app:{SECRET}@h/runs"',
        f"jdbc:postgresql://h/runs?password={SECRET}",
        f"host=h dbname=runs password={SECRET}",
        f"mysql://app:{SECRET}@h/runs",
        f"postgresql+asyncpg://app:{SECRET}@h/runs",
        "sqlite:///runs.db",
    ],
)
def test_any_other_url_is_refused_in_one_line_that_shows_no_password(url: str) -> None:
    with pytest.raises(InvalidRequest, match="postgresql://USER:PASSWORD@HOST") as refused:
        parse_location(url)
    assert refused.value.param == "database"
    assert SECRET not in refused.value.message
    assert "\n" not in refused.value.message
    assert SECRET not in hide_password(url) or not url.startswith("postgresql:")
