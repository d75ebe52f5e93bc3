"""`mainspring memory`: what runs have said and done, found again, and forgotten."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from mainspring.features.memory.memory import Memory

app = typer.Typer(name="memory", help="Searches, shows and forgets what runs have said and done.")

Database = Annotated[Path, typer.Option(metavar="FILE", help="The file that holds the runs.", show_default=False)]
Tenant = Annotated[str, typer.Option(metavar="NAME", help="Whose memory. Default: the default tenant's.", show_default=False)]
Json = Annotated[bool, typer.Option("--json", help="Print every one as a line of JSON.")]


@app.command()
def search(
    query: Annotated[str, typer.Argument(metavar="QUERY", help="Any words; none at all for the newest.")],
    database: Database,
    tenant: Tenant = "",
    level: Annotated[str, typer.Option(metavar="LEVEL", help="`index`, `timeline` or `full`.")] = "index",
    top_k: Annotated[int, typer.Option(min=1, max=100, metavar="N", help="At most so many.")] = 10,
    agent: Annotated[str | None, typer.Option(metavar="NAME", help="Only this agent's.")] = None,
    session: Annotated[str | None, typer.Option(metavar="ID", help="Only this session's.")] = None,
    json: Json = False,
) -> int:
    """Finds observations by their words, best first."""
    from mainspring.cli.follow import launch
    from mainspring.cli.json_lines import write_lines
    from mainspring.cli.plain import clean
    from mainspring.core.errors import InvalidRequest
    from mainspring.features.memory.recall import LEVELS

    chosen = next((known for known in LEVELS if known == level), None)
    if chosen is None:
        raise InvalidRequest(f"there is no level `{level}`; known: {', '.join(LEVELS)}")

    async def found() -> int:
        async with _memory(database) as memory:
            results = await memory.search(query, tenant=tenant, level=chosen, top_k=top_k, agent=agent, session=session)
        if json:
            write_lines(results)
            return 0
        for result in results:
            print(clean(f"{result.citation}  {result.text}"))
        return 0

    return launch(found())


@app.command()
def show(
    observation_id: Annotated[str, typer.Argument(metavar="OBSERVATION_ID", help="The observation, as `search` names it.")],
    database: Database,
    tenant: Tenant = "",
    json: Json = False,
) -> int:
    """Shows an observation, whole."""
    from mainspring.cli.follow import launch
    from mainspring.cli.json_lines import write_lines
    from mainspring.cli.plain import clean
    from mainspring.features.memory.recall import told

    async def shown() -> int:
        async with _memory(database) as memory:
            seen = await memory.get(observation_id, tenant=tenant)
        if json:
            write_lines([seen])
        else:
            print(clean(f"session {seen.session_id}\n{told(seen, 'full')}"))
        return 0

    return launch(shown())


@app.command()
def forget(
    database: Database,
    session: Annotated[str | None, typer.Option(metavar="ID", help="The session to forget.", show_default=False)] = None,
    everything: Annotated[bool, typer.Option("--all", help="Forget all that is remembered of the tenant.")] = False,
    tenant: Tenant = "",
) -> int:
    """Deletes the observations of a session, or all of a tenant."""
    from mainspring.cli.follow import launch
    from mainspring.core.errors import InvalidRequest

    if everything is (session is not None):
        raise InvalidRequest("name a --session to forget, or --all")

    async def forgotten() -> int:
        async with _memory(database) as memory:
            count = await memory.forget(tenant=tenant, session=session)
        print(f"{count} observations are forgotten")
        return 0

    return launch(forgotten())


def _memory(database: Path) -> "Memory":
    """Raises `InvalidRequest` if there is no such file."""
    from mainspring.app.engine import memory_for
    from mainspring.core.errors import InvalidRequest

    if not database.exists():
        raise InvalidRequest(f"there is no database `{database}`; check --database")
    return memory_for(database)
