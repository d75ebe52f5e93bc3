"""`mainspring keys`: the API keys that a server accepts."""

from datetime import datetime
from typing import Annotated

import typer

from mainspring.cli.database import open_database
from mainspring.cli.options import AsJson, Database, EveryTenant, Expires, OneTenant
from mainspring.cli.output import format_moment, say, write_lines, write_table
from mainspring.cli.tenant_choice import choose_tenant
from mainspring.core.errors import InvalidRequest
from mainspring.http.auth import Key, Keys, check_scope
from mainspring.http.key_limits import KeyLimits
from mainspring.storage.choose_store import open_store

app = typer.Typer()


def parse_scope(name: str) -> str:
    try:
        check_scope(name)
    except InvalidRequest as error:
        raise typer.BadParameter(error.message) from None
    return name


@app.command()
async def create(
    database: Database,
    name: Annotated[str, typer.Option(metavar="TEXT", help="What it is for.", show_default=False)] = "",
    tenant: Annotated[
        str, typer.Option(metavar="NAME", help="Tenant; tenants do not see each other. Default: the default tenant.")
    ] = "",
    scope: Annotated[
        list[str] | None,
        typer.Option(
            parser=parse_scope,
            metavar="NAME",
            help="Area, such as `responses`, `approvals` or `decisions`; `tools:execute`, or `tools:execute:NAME`. "
            "Repeatable. Default: all.",
        ),
    ] = None,
    expires: Expires = None,
    requests_per_minute: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Requests in a minute. Default: the settings'.")
    ] = None,
    tokens_per_minute: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Tokens of its runs in a minute. Default: the settings'.")
    ] = None,
    requests_at_once: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Requests and streams at a time. Default: the settings'.")
    ] = None,
) -> None:
    """
    Creates a key and prints it, this once: only its hash is stored.

        mainspring keys create --name ci --tenant search --scope responses --requests-per-minute 60
    """
    limits = KeyLimits(requests_per_minute, tokens_per_minute, requests_at_once)
    async with open_store(database) as store:
        scopes = tuple(dict.fromkeys(scope or ["*"]))
        print(await Keys(store).create(name=name, tenant=tenant, scopes=scopes, seconds=expires, limits=limits))
    say("store this key now; it cannot be shown again")


@app.command("list")
async def list_keys(database: Database, tenant: OneTenant = None, all_tenants: EveryTenant = False, json: AsJson = False) -> None:
    """Lists the keys, without their secrets."""
    tenant = choose_tenant(tenant, all_tenants=all_tenants)
    async with open_database(database) as engine:
        keys = [key for key in await Keys(engine.store).list() if tenant in (None, key.tenant)]
    if json:
        write_lines([{name: getattr(key, name) for name in key.__struct_fields__ if name != "digest"} for key in keys])
        return
    titles = ("key", "name", "tenant", "scopes", "created", "state")
    write_table([titles, *map(_cells, keys)], none="there are no keys; make one with `mainspring keys create`")


@app.command()
async def revoke(
    key_id: Annotated[str, typer.Argument(metavar="KEY_ID", help="Key, as `list` names it.")], database: Database
) -> None:
    """Revokes a key; running servers notice within seconds."""
    async with open_database(database) as engine:
        await Keys(engine.store).revoke(key_id)
    print(f"key {key_id} is revoked")


def _cells(key: Key) -> tuple[str, ...]:
    state = "good" if key.expires_at is None else f"until {format_moment(key.expires_at)}"
    if key.revoked_at is not None:
        state = f"revoked {format_moment(key.revoked_at)}"
    elif key.expires_at is not None and key.expires_at <= datetime.now().timestamp():
        state = f"expired {format_moment(key.expires_at)}"
    return key.id, key.name or "-", key.tenant or "-", ",".join(key.scopes), format_moment(key.created_at), state
