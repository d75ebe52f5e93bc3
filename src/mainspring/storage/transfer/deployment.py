"""All content of a deployment, copied as one: into a backup, out of one, or from one place to another.

What is not complete is for nobody to use. A file is filled under a name with `.partial` behind it, and renamed at the end; in a
server's table of schemas a row says that a copy is being made. A copy that was interrupted is taken up by the next one.
"""

import time
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from mainspring.core.errors import InvalidRequest, StoreError
from mainspring.late_module import LateModule
from mainspring.storage.audit_chain import verify
from mainspring.storage.choose_store import choose_store, open_store
from mainspring.storage.location import Location, parse_location
from mainspring.storage.sqlite import find_partial
from mainspring.storage.transfer.archive import ArchiveRows, Manifest, TableManifest, create_archive, open_archive
from mainspring.storage.transfer.content import ContentKind, Placed, RowReader, RowWriter
from mainspring.storage.transfer.copy_rows import CopiedTable, Owners, TableCopier, Tell
from mainspring.storage.transfer.file_rows import has_content, open_file

# Needs the driver of a server.
if TYPE_CHECKING:
    from mainspring.storage.transfer import server_rows
else:
    server_rows = LateModule("mainspring.storage.transfer.server_rows")

Readers = Mapping[str, RowReader]


async def back_up(placed: Sequence[Placed], path: Path, tell: Tell) -> list[CopiedTable]:
    """Writes a backup of all that is in these places. Raises `InvalidRequest` if the file is there, and `StoreError`."""
    with create_archive(path) as archive:
        async with _open_sources(placed) as sources:
            contents = [each.content for each in placed if each.content.name in sources]
            copied = await _copy(contents, sources, dict.fromkeys(sources, archive), tell)
        tables = {table.name: TableManifest(table.count, table.digest, table.mark) for table in copied}
        archive.finish(Manifest(time.time(), tuple(sources), tables))
    return copied


async def restore(path: Path, placed: Sequence[Placed], tell: Tell) -> list[CopiedTable]:
    """Fills these places, which are empty, with what is in a backup. Raises `InvalidRequest` and `StoreError`."""
    with open_archive(path) as archive:
        targets = [each for each in placed if each.content.name in archive.contents]
        await _check_tables(archive, [each.content for each in targets], tell)
        return await _fill({each.content.name: archive for each in targets}, targets, tell)


async def check_archive(path: Path, contents: Iterable[ContentKind], tell: Tell) -> list[CopiedTable]:
    """What a backup has. Raises `InvalidRequest` if it is none, and `StoreError` if it is damaged."""
    with open_archive(path) as archive:
        return await _check_tables(archive, contents, tell)


async def _check_tables(archive: ArchiveRows, contents: Iterable[ContentKind], tell: Tell) -> list[CopiedTable]:
    here = [content for content in contents if content.name in archive.contents]
    if unknown := set(archive.contents) - {content.name for content in here}:
        raise InvalidRequest(f"the backup has {min(unknown)!r}, which no installed part of Mainspring keeps; install that first")
    return [await archive.check(table, tell) for content in here for table in content.describe()]


async def move(sources: Sequence[Placed], targets: Sequence[Placed], tell: Tell) -> list[CopiedTable]:
    """Fills the targets, which are empty or were filled in part, with what the sources have. Raises `InvalidRequest` if a process
    works on those, since what it writes then would be left behind."""
    await _check_idle(sources)
    async with _open_sources(sources) as found:
        return await _fill(found, [each for each in targets if each.content.name in found], tell, sources)


async def bring_up_to_date(placed: Sequence[Placed]) -> None:
    """Makes the tables of a server, and migrates them or those of files that are there. Raises `StoreError`."""
    for location, contents in _by_location(placed):
        if location.file is None:
            await server_rows.make_tables(location, contents)
        elif here := [content for content in contents if content.open_file is None and await _is_there(location, content)]:
            async with open_file(location.file, here, is_source=True):
                pass


async def _fill(sources: Readers, targets: Sequence[Placed], tell: Tell, left: Sequence[Placed] = ()) -> list[CopiedTable]:
    """Fills the targets. What is `left` must not have been written to meanwhile."""
    await _check_vacant(targets)
    working = [_find_unfinished(each) for each in targets]
    contents = [each.content for each in targets]
    async with _open_targets(working) as writers:
        copied = await _copy(contents, sources, writers, tell)
    for each in working:
        if each.content.name == "runs":
            await _check_audit(each.location)
    await _check_idle(left)
    for location in {each.location for each in working if each.location.file is None}:
        await _finish_server(location)
    for before, after in reversed([*zip(working, targets, strict=True)]):
        if before.location.file is not None and after.location.file is not None and before.location.file.exists():
            before.location.file.rename(after.location.file)
    return copied


async def _copy(
    contents: Sequence[ContentKind], sources: Readers, targets: Mapping[str, RowWriter], tell: Tell
) -> list[CopiedTable]:
    tables = [(content.name, table) for content in contents for table in content.describe()]
    owners = Owners([table for _, table in tables])
    return [await TableCopier(sources[name], targets[name], tell).copy(table, owners) for name, table in tables]


async def _check_idle(places: Sequence[Placed]) -> None:
    """Raises `InvalidRequest` if a process has a lease there."""
    for place in places:
        if place.content.name == "runs":
            async with open_store(place.location) as store:
                if drivers := await store.leases.list_drivers():
                    who = ", ".join([f"{driver.pid} on {driver.place}" if driver.place else driver.id for driver in drivers[:3]])
                    raise InvalidRequest(
                        f"{place.location} is worked on by {len(drivers)} process(es) ({who}), and what they write would be left "
                        "behind; stop them, and try again; one that was killed counts for a minute"
                    )


async def _check_audit(location: Location) -> None:
    """Raises `StoreError` if the chain of the audit is broken."""
    async with open_store(location) as store:
        if (flaw := (await verify(store)).flaw) is not None:
            raise StoreError(f"the audit is broken, and so the copy is not used: {flaw}; see `mainspring audit verify`")


async def _check_vacant(targets: Sequence[Placed]) -> None:
    for location, contents in _by_location(targets):
        if location.file is None:
            if (name := await server_rows.find_filled(location, contents)) is not None:
                raise InvalidRequest(f"{location} is not empty (there are rows in {name}); name an empty database")
        elif location.file.exists():
            raise InvalidRequest(f"{location} is there already; move it away, or name another")


def _find_unfinished(place: Placed) -> Placed:
    """Where the copy is made."""
    file = place.location.file
    if file is None:
        return replace(place, location=replace(place.location, is_unfinished=True))
    return replace(place, location=parse_location(find_partial(file)))


def _by_location(placed: Sequence[Placed]) -> list[tuple[Location, list[ContentKind]]]:
    """The kinds of content by place. Raises `InvalidRequest` if one is on a server, and its driver is not installed."""
    found: dict[Location, list[ContentKind]] = {}
    for each in placed:
        choose_store(each.location)  # which says what to install
        found.setdefault(each.location, []).append(each.content)
    return list(found.items())


@asynccontextmanager
async def _open_sources(placed: Sequence[Placed]) -> AsyncIterator[Readers]:
    """What there is in these places, each as it is at one moment."""
    found: dict[str, RowReader] = {}
    async with AsyncExitStack() as stack:
        for location, contents in _by_location(placed):
            if here := [content for content in contents if await _is_there(location, content)]:
                rows = await stack.enter_async_context(_open(location, here, is_source=True))
                found |= {content.name: rows for content in here}
        yield found


@asynccontextmanager
async def _open_targets(placed: Sequence[Placed]) -> AsyncIterator[dict[str, RowWriter]]:
    found: dict[str, RowWriter] = {}
    async with AsyncExitStack() as stack:
        for location, contents in _by_location(placed):
            rows = await stack.enter_async_context(_open(location, contents, is_source=False))
            found |= {content.name: rows for content in contents}
        yield found


async def _is_there(location: Location, content: ContentKind) -> bool:
    if location.file is not None:
        return location.file.exists() and (content.open_file is not None or has_content(location.file, content))
    return await server_rows.has_served(location, content)


def _open(location: Location, contents: Sequence[ContentKind], *, is_source: bool) -> AbstractAsyncContextManager[RowWriter]:
    if location.file is None:
        return server_rows.open_server(location, contents, is_source=is_source)
    if contents[0].open_file is not None:
        return contents[0].open_file(location.file)
    return open_file(location.file, contents, is_source=is_source)


async def _finish_server(location: Location) -> None:
    await server_rows.finish_server(location)
