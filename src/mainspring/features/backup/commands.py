"""`mainspring backup`, `restore` and `migrate`: all that a deployment keeps, copied while it works, and checked."""

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from pkgutil import resolve_name
from typing import Annotated

import typer
from msgspec.structs import asdict

from mainspring.cli import options
from mainspring.cli.context import PRODUCT
from mainspring.cli.database import check_database
from mainspring.cli.output import say, write_lines
from mainspring.core.errors import InvalidRequest
from mainspring.parts import Part
from mainspring.storage.choose_store import open_store
from mainspring.storage.location import Location, parse_location
from mainspring.storage.transfer.archive import open_archive
from mainspring.storage.transfer.content import Placed
from mainspring.storage.transfer.copy_rows import CopiedTable
from mainspring.storage.transfer.deployment import back_up, bring_up_to_date, check_archive, move
from mainspring.storage.transfer.deployment import restore as fill
from mainspring.tools.mcp.sign_in import ACCOUNT
from mainspring.tools.mcp.token_cipher import KEY_FILE, find_key_file

BackupFile = Annotated[Path, typer.Argument(metavar="FILE", help="The file of the backup.", show_default=False)]


async def backup(
    file: BackupFile,
    database: options.DatabaseOfSettings = None,
    config: options.Config = None,
    json: options.AsJson = False,
) -> None:
    """
    Writes all that is kept into one new file: runs, conversations, approvals, budgets, keys, the audit, the memory with its
    vectors, the decision log and the tasks, each as it is at one moment.

    It can be run while servers work. The file has secrets in it: it is readable for its owner alone, keep it so.
    """
    source, tables = check_database(options.choose_database(database, config)), _read_tables(config)
    copied = await back_up(_place_contents(source, tables), file, Progress())
    _report(copied, f"{file} is complete", as_json=json)
    with open_archive(file) as archive:  # not the database, which is only read: it may be a replica, or of an older version
        has_sign_ins = archive.has_document(ACCOUNT)
    key = "`secret_key`" if source.file is None else str(find_key_file(source.file))
    _tell_of_sign_ins(tables, f"{key}, which is not in the backup: keep it, too", has_sign_ins=has_sign_ins)


async def restore(
    file: BackupFile,
    database: options.DatabaseOfSettings = None,
    config: options.Config = None,
    check: Annotated[bool, typer.Option("--check", help="Only check that the backup is whole.")] = False,
    json: options.AsJson = False,
) -> None:
    """
    Fills a database, which is empty or not there, from a backup of either kind of database.

    The backup is checked first. What was written is read again and compared, and the audit's hashes are checked; only then the
    database can be used. A restore that was interrupted is taken up by the same command.
    """
    target, tables = options.choose_database(database, config), _read_tables(config)
    places = _place_contents(target, tables)
    if check:
        _report(await check_archive(file, [each.content for each in places], Progress()), f"{file} is whole", as_json=json)
        return
    _report(await fill(file, places, Progress()), f"{target} is complete", as_json=json)
    _tell_of_sign_ins(tables, _name_old_key(target), has_sign_ins=await _has_sign_ins(target))


async def migrate(
    source: Annotated[
        Location, typer.Argument(parser=parse_location, metavar="FROM", help="Database file or URL.", show_default=False)
    ],
    target: Annotated[
        Location, typer.Argument(parser=parse_location, metavar="TO", help="Database file or URL, empty.", show_default=False)
    ],
    config: options.Config = None,
    json: options.AsJson = False,
) -> None:
    """
    Copies all that is kept from a file to PostgreSQL, or back.

    Stop the servers first; what they work on is not moved. A move that was interrupted is taken up by the same command.
    What was written is read again and compared, and the audit's hashes are checked; only then the new database can be used. The
    old one is left as it is.

    Example:

        mainspring migrate mainspring.db postgresql://mainspring@db.example/mainspring
    """
    if source == target:
        raise InvalidRequest("FROM and TO are the same database", param="to")
    tables = _read_tables(config)
    sources = [each for each in _place_contents(check_database(source), tables) if not _stays(each, source)]
    copied = await move(sources, _place_contents(target, {}), Progress())
    _report(copied, f"{target} is complete; have the setting `database` name it", as_json=json)
    _tell_of_sign_ins(tables, _name_old_key(target), has_sign_ins=await _has_sign_ins(target))


async def upgrade(database: options.DatabaseOfSettings = None, config: options.Config = None) -> None:
    """
    Brings the tables of the database up to date, and ends.

    Servers do this themselves when they start. By this command it is done once before many of them do, and by a user of
    PostgreSQL who may make tables where theirs may not. An older Mainspring refuses a database that a newer one has changed:
    back up first.
    """
    found = check_database(options.choose_database(database, config))
    await bring_up_to_date(_place_contents(found, _read_tables(config)))
    say(f"{found} is up to date")


class Progress:
    """Says how far a copy is: nothing in its first second, and then a line each second."""

    def __init__(self) -> None:
        self._next = time.monotonic() + 1

    def __call__(self, what: str, done: int, total: int) -> None:
        if (now := time.monotonic()) >= self._next:
            self._next = now + 1
            say(f"{what}: {done:,} of {max(done, total):,} rows")


def _read_tables(config: Path | None) -> dict[str, object]:
    return asdict(PRODUCT.get().load_settings({}, config))


def _place_contents(database: Location, tables: dict[str, object]) -> list[Placed]:
    """All that the installed parts keep, and where these tables of the settings say that it is."""
    parts: Sequence[Part] = [*PRODUCT.get().parts, *PRODUCT.get().find_installed()]
    return [
        each for part in parts if part.contents for each in resolve_name(part.contents)(tables.get(part.table_name), database)
    ]


def _stays(placed: Placed, source: Location) -> bool:
    """Whether the settings have it on a server that is not the one that is left."""
    return placed.location.file is None and placed.location != source


def _tell_of_sign_ins(tables: dict[str, object], key: str, *, has_sign_ins: bool) -> None:
    """Says by which key sign-ins are encrypted: it is nowhere in a database, so nothing copies it."""
    if has_sign_ins and not tables.get("secret_key"):
        say(f"there are sign-ins to MCP servers in it, encrypted by {key}")


async def _has_sign_ins(database: Location) -> bool:
    async with open_store(database) as store:
        return bool(await store.documents(ACCOUNT, limit=1))


def _name_old_key(target: Location) -> str:
    given = f"with `secret_key = \"{KEY_FILE}...\"` and the digits that `od -An -tx1 OLD.db.key | tr -d ' \\n'` prints"
    brought = given if target.file is None else f"as {find_key_file(target.file)}"
    return f"the key of the old database, which is not copied: set the same `secret_key`, or bring its key file, {brought}"


def _report(copied: Sequence[CopiedTable], what: str, *, as_json: bool) -> None:
    if as_json:
        write_lines(copied)
        return
    for table in copied:
        if table.count:
            print(f"{table.count:>12,}  {table.name}")
    sys.stdout.flush()
    say(what)
