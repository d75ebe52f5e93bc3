"""Lists of very many responses: what a filter takes, and what a request takes while such a list is read.

A few dozen responses of every kind are made by the server itself and then multiplied in the file, with ids of their own.
"""

import asyncio
import json
import os
import shutil
import sqlite3
import time
from contextlib import closing, suppress
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from bench.scenarios import Context, Row
from bench.targets import Target, mainspring

from mainspring.storage.recent_deltas import SEQ_BITS

BYTES_EACH = 4000
# Names of columns whose values must be new in a copy, and how a copy number makes them so.
_FRESH = {
    "number": "number + copy * :count",
    "run": "run + copy * :count",
    "place": f"place + ((copy * :count) << {SEQ_BITS})",
    "id": "id || '_' || copy",
    "parent": "parent || '_' || copy",
    "created_at": "created_at - copy * 7",
}


async def measure_tables(context: Context) -> list[Row]:
    with TemporaryDirectory(prefix="mainspring-tables-") as folder:
        free = shutil.disk_usage(folder).free
        if free < 2 * context.big * BYTES_EACH:
            raise RuntimeError(f"{context.big:,} responses need some {2 * context.big * BYTES_EACH / 1e9:.0f} GB in {folder}")
        file = Path(folder, "big.db")
        with mainspring(context.ports, file) as server:
            names = await make_some(context, server)
        print(await asyncio.to_thread(multiply, file, context.big), flush=True)
        with mainspring(context.ports, file) as server:
            await context.load.ask(server, "small")
            return await ask_lists(context, server, names)


async def make_some(context: Context, server: Target) -> dict[str, str]:
    """Responses of several kinds; most stand alone. Returns what filters can ask for."""
    load = context.load
    for _ in range(70):
        await load.ask(server, "small")
    first = json.loads(await load.ask(server, "small"))["id"]
    for _ in range(10):
        await load.ask(server, "small", previous_response_id=first)
    for _ in range(10):
        await load.ask(server, "small", model="other")
    for _ in range(9):  # streamed, so that they have ended when they are multiplied
        await load.ask(server, "small", background=True, stream=True)
    return {"first": first}


def multiply(file: Path, wanted: int) -> str:
    """Makes so many responses of those in the file. Returns what that took, in words."""
    began = time.perf_counter()
    with closing(sqlite3.connect(file, isolation_level=None)) as connection:
        for setting in ("journal_mode = OFF", "synchronous = OFF", "cache_size = -500000"):
            connection.execute(f"PRAGMA {setting}")
        [[count, last]] = connection.execute("SELECT count(*), max(number) FROM runs").fetchall()
        values = {"count": last, "copies": wanted // count}
        tables = [name for [name] in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")]
        connection.execute("BEGIN")
        for name in tables:
            columns = list_columns(connection, name)
            key = next((key for key in ("run", "place") if key in columns), "number" if name == "runs" else None)
            if key is not None:
                made = ", ".join(_FRESH.get(column, column) for column in columns)
                copies = "WITH RECURSIVE copies (copy) AS (VALUES (1) UNION ALL SELECT copy + 1 FROM copies WHERE copy < :copies)"
                of_some = f"SELECT {made} FROM copies, {name} WHERE {f'place >> {SEQ_BITS}' if key == 'place' else key} <= :count"
                connection.execute(f"{copies} INSERT INTO {name} ({', '.join(columns)}) {of_some}", values)
        connection.execute("COMMIT")
        connection.execute("PRAGMA journal_mode = WAL")
    with file.open("rb") as written:  # else the server's first checkpoint waits until all this is on the disk
        os.fsync(written.fileno())
    size = file.stat().st_size / 1e6
    return f"{wanted:,} responses, {size:,.0f} MB, made in {time.perf_counter() - began:.0f} s"


def list_columns(connection: sqlite3.Connection, table: str) -> list[str]:
    return [row[1] for row in connection.execute(f"PRAGMA table_info({table})")]


async def ask_lists(context: Context, server: Target, names: dict[str, str]) -> list[Row]:
    now = int(time.time())
    filters = {
        "nothing asked": "",
        "status that none has": "status=cancelled",
        "status of all": "status=completed",
        "model that none has": "model=none",
        "model of some": "model=other",
        "background": "background=true",
        "background, model that none has": "background=true&model=none",
        "parent that none has": "previous_response_id=resp_none",
        "parent of some": f"previous_response_id={names['first']}",
        "conversation that none has": "conversation=conv_none",
        "of a time": f"created_after={now - 5000}&created_before={now - 4000}",
        "of the future": f"created_after={now + 5000}",
        "of a time, model that none has": f"created_after=1000&created_before={now}&model=none",
    }
    rows, slowest, longest = [], "", 0.0
    for name, query in filters.items():
        url = f"{server.base}/responses?limit=20&{query}"
        times = []
        for _ in range(5):
            began = time.perf_counter()
            await context.load.get(url)
            times.append(time.perf_counter() - began)
        if median(times) > longest:
            slowest, longest = url, median(times)
        rows.append(Row(f"list of {context.big:,}: {name}", "ms", {"mainspring": median(times) * 1e3}, aim="5 ms"))
    alone, beside = await ask_meanwhile(context, server, None), await ask_meanwhile(context, server, slowest)
    note = f"alone {alone[0] * 1e3:.1f} and {alone[1] * 1e3:.1f} ms"
    figures = {"mainspring": beside[0] * 1e3}
    rows.append(Row("request while the slowest list is read, median", "ms", figures, aim="as alone", note=note))
    rows.append(Row("request while the slowest list is read, longest", "ms", {"mainspring": beside[1] * 1e3}, aim="as alone"))
    return rows


async def ask_meanwhile(context: Context, server: Target, url: str | None) -> tuple[float, float]:
    """Seconds of a small request, the median and the longest of many, with lists under way all the time."""

    async def keep_asking() -> None:
        while url is not None:
            await context.load.get(url)

    task = asyncio.create_task(keep_asking())
    times = []
    try:
        for _ in range(60):
            began = time.perf_counter()
            await context.load.ask(server, "small")
            times.append(time.perf_counter() - began)
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
    return median(times), max(times)
