"""`mainspring memory`: finds, shows and deletes what runs have said and done."""

import math
import sys
from typing import Annotated

import typer

from mainspring.cli.database import check_database
from mainspring.cli.options import AsJson, Database, Tenant
from mainspring.cli.output import say, write_lines, write_text
from mainspring.core.errors import InvalidRequest
from mainspring.features.memory.memory import Memory
from mainspring.features.memory.recall import LEVELS, render_observation
from mainspring.storage.location import Location

app = typer.Typer()


@app.command()
async def search(
    query: Annotated[str, typer.Argument(metavar="QUERY", help="Words to find; an empty text finds the newest.")],
    database: Database,
    tenant: Tenant = "",
    level: Annotated[str, typer.Option(metavar="LEVEL", help="`index`, `timeline` or `full`.")] = "index",
    top_k: Annotated[int, typer.Option(min=1, max=100, metavar="N", help="Print at most N.")] = 10,
    agent: Annotated[str | None, typer.Option(metavar="NAME", help="Only of this agent.")] = None,
    session: Annotated[str | None, typer.Option(metavar="ID", help="Only of this session.")] = None,
    json: AsJson = False,
) -> None:
    """Finds observations by their words, best first."""
    chosen = next((known for known in LEVELS if known == level), None)
    if chosen is None:
        raise InvalidRequest(f"there is no level `{level}`; known: {', '.join(LEVELS)}")
    async with _open_memory(database) as memory:
        results = await memory.search(query, tenant=tenant, level=chosen, top_k=top_k, agent=agent, session=session)
    if json:
        write_lines(results)
        return
    if not results:
        say(
            f"nothing is remembered of `{query}`" if query else "nothing is remembered; `[memory]` in the settings has runs do so"
        )
    for result in results:
        write_text(f"{result.citation}  {result.text}")


@app.command()
async def show(
    observation_id: Annotated[str, typer.Argument(metavar="OBSERVATION_ID", help="Observation, as `search` names it.")],
    database: Database,
    tenant: Tenant = "",
    json: AsJson = False,
) -> None:
    """Shows a whole observation."""
    async with _open_memory(database) as memory:
        seen = await memory.get(observation_id, tenant=tenant)
    if json:
        write_lines([seen])
    else:
        write_text(f"session {seen.session_id}\n{render_observation(seen, 'full')}")


@app.command()
async def forget(
    database: Database,
    session: Annotated[str | None, typer.Option(metavar="ID", help="Session to delete.", show_default=False)] = None,
    everything: Annotated[bool, typer.Option("--all", help="Delete all observations of the tenant.")] = False,
    tenant: Tenant = "",
) -> None:
    """Deletes the observations of a session, or all of a tenant."""
    if everything is (session is not None):
        raise InvalidRequest("name a --session to forget, or --all")
    async with _open_memory(database) as memory:
        count = await memory.forget(tenant=tenant, session=session)
    print(f"{count} observations are forgotten")


def _open_memory(database: Location) -> Memory:
    """A memory that prunes nothing: how much is kept is for the settings to say. Raises `InvalidRequest` if there is no file."""
    return Memory(check_database(database), keep_days=math.inf, keep_observations=sys.maxsize)
