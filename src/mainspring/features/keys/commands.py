"""`mainspring keys`: the keys that a server takes."""

import re
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from mainspring.http.auth import Key

app = typer.Typer(name="keys", help="Makes, lists and revokes the API keys of a server.")

Database = Annotated[Path, typer.Option(metavar="FILE", help="The file that the server keeps its runs in.", show_default=False)]

UNITS = {"m": 60, "h": 3600, "d": 86400, "w": 604800}


@app.command()
def create(
    database: Database,
    name: Annotated[str, typer.Option(metavar="TEXT", help="What it is for.", show_default=False)] = "",
    tenant: Annotated[
        str, typer.Option(metavar="NAME", help="Whose it is; tenants do not see each other. Default: the default tenant.")
    ] = "",
    scope: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="An area, such as `responses`, `approvals` or `decisions`; `tools:execute`, or `tools:execute:NAME`. "
            "Repeatable. Default: all.",
        ),
    ] = None,
    expires: Annotated[
        str | None, typer.Option(metavar="TIME", help="How long it is good, as in 30d, 12h, 45m, 2w. Default: for ever.")
    ] = None,
) -> int:
    """Makes a key and prints it, this once: only a hash of it is kept."""
    from mainspring.cli.follow import launch
    from mainspring.cli.plain import say
    from mainspring.http.auth import Keys
    from mainspring.storage.sqlite_runs import SqliteStore

    seconds = None if expires is None else duration(expires)
    scopes = _checked(scope or ["*"])

    async def created() -> int:
        async with SqliteStore(database) as store:
            print(await Keys(store).create(name=name, tenant=tenant, scopes=scopes, seconds=seconds))
        say("keep this key well: it is not shown again")
        return 0

    return launch(created())


@app.command("list")
def list_keys(
    database: Database,
    json: Annotated[bool, typer.Option("--json", help="Print every key as a line of JSON.")] = False,
) -> int:
    """Lists the keys, without their secrets."""
    from mainspring.cli.follow import launch
    from mainspring.cli.json_lines import write_lines
    from mainspring.cli.open_database import reader
    from mainspring.cli.plain import clean
    from mainspring.http.auth import Keys

    async def listed() -> int:
        async with reader(database) as engine:
            keys = await Keys(engine.store).list()
        if json:
            write_lines([_shown(key) for key in keys])
            return 0
        rows = [("key", "name", "tenant", "scopes", "created", "state"), *[_cells(key) for key in keys]]
        widths = [max([len(row[column]) for row in rows]) for column in range(len(rows[0]))]
        for row in rows:
            print(clean("  ".join([f"{text:{width}}" for text, width in zip(row, widths, strict=True)]).rstrip()))
        return 0

    return launch(listed())


@app.command()
def revoke(
    key_id: Annotated[str, typer.Argument(metavar="KEY_ID", help="The key, as `list` names it.")],
    database: Database,
) -> int:
    """Makes a key useless; servers that run notice within seconds."""
    from mainspring.cli.follow import launch
    from mainspring.cli.open_database import reader
    from mainspring.http.auth import Keys

    async def revoked() -> int:
        async with reader(database) as engine:
            await Keys(engine.store).revoke(key_id)
        print(f"key {key_id} is revoked")
        return 0

    return launch(revoked())


def duration(text: str) -> float:
    """The seconds that a time such as `30d` is."""
    if (found := re.fullmatch(r"([1-9]\d{0,5})([mhdw])", text)) is None:
        raise typer.BadParameter(f"`{text}` is no time; write a number and m, h, d or w, as in 30d", param_hint="--expires")
    return float(int(found[1]) * UNITS[found[2]])


def _checked(given: Sequence[str]) -> tuple[str, ...]:
    from mainspring.core.errors import InvalidRequest
    from mainspring.http.auth import check_scope

    for name in given:
        try:
            check_scope(name)
        except InvalidRequest as error:
            raise typer.BadParameter(error.message, param_hint="--scope") from None
    return tuple(dict.fromkeys(given))


def _shown(key: "Key") -> dict[str, object]:
    return {name: getattr(key, name) for name in key.__struct_fields__ if name != "digest"}


def _cells(key: "Key") -> tuple[str, ...]:
    state = "good" if key.expires_at is None else f"until {_day(key.expires_at)}"
    if key.revoked_at is not None:
        state = f"revoked {_day(key.revoked_at)}"
    elif key.expires_at is not None and key.expires_at <= datetime.now().timestamp():
        state = f"expired {_day(key.expires_at)}"
    return key.id, key.name or "-", key.tenant or "-", ",".join(key.scopes), _day(key.created_at), state


def _day(at: float) -> str:
    return datetime.fromtimestamp(at).strftime("%Y-%m-%d %H:%M")
