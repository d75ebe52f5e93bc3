"""`mainspring tasks`: a task list as an MCP server."""

import asyncio
import logging
import os
import time
from pathlib import Path
from typing import Annotated

import typer

from mainspring.cli.context import load_settings
from mainspring.cli.options import AsJson, Expires
from mainspring.cli.output import write_list
from mainspring.core.errors import InvalidRequest, NotFound
from mainspring_tasks.decision_settings import TaskTables
from mainspring_tasks.server.identity import Identity, fix_user, read_secret, verify_tokens
from mainspring_tasks.server.identity import issue_token as sign_token
from mainspring_tasks.server.serve_tasks import Address, parse_address, serve_http, serve_stdio
from mainspring_tasks.server.task_store import choose_task_store

app = typer.Typer()

SecretFile = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE", help="What signs and checks tokens; `serve` makes it if missing.", envvar="MAINSPRING_TASKS_SECRET_FILE"
    ),
]


@app.command()
def serve(
    http: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="Listen there. Default: standard input and output.", show_default=False),
    ] = None,
    database: Annotated[
        str | None,
        typer.Option(
            metavar="FILE|URL",
            help="What keeps the tasks: a file, or postgresql://... Default: tasks.db in your data folder.",
            envvar="MAINSPRING_TASKS_DATABASE",
            show_default=False,
        ),
    ] = None,
    user: Annotated[
        str | None, typer.Option(metavar="NAME", help="Whose tasks they are.", envvar="MAINSPRING_TASKS_USER")
    ] = None,
    secret_file: SecretFile = None,
    allow_host: Annotated[
        list[str] | None, typer.Option(metavar="HOST", help="A name that clients may call this server by. Repeatable.")
    ] = None,
) -> int:
    """Serves the tools add_task, list_tasks, update_task, complete_task and delete_task.

    Examples:

        mainspring mcp add tasks -- mainspring tasks serve --user alice
        mainspring tasks serve --http 127.0.0.1:8100 --secret-file tasks.key
        mainspring tasks token alice --secret-file tasks.key
    """
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    at = None if http is None else parse_address(http, allow_host or ())
    identity = _identity(user, secret_file, at)
    store = choose_task_store(database or str(data_folder() / "tasks.db"))
    return asyncio.run(serve_stdio(store, identity) if at is None else serve_http(store, identity, at))


@app.command("list")
async def list_tasks(
    user: Annotated[str, typer.Option(metavar="NAME", help="Whose tasks they are.")] = "local",
    database: Annotated[
        str | None,
        typer.Option(
            metavar="FILE|URL",
            help="What keeps the tasks. Default: those of `mainspring chat`.",
            envvar="MAINSPRING_TASKS_DATABASE",
            show_default=False,
        ),
    ] = None,
    json: AsJson = False,
) -> None:
    """
    Lists the tasks of a user, those of `mainspring chat` by default.

        mainspring tasks list
        mainspring tasks list --user alice --json
    """
    where = database or load_settings(TaskTables).decisions.tasks or str(data_folder() / "tasks.db")
    if "://" not in where and not os.path.exists(where):  # noqa: ASYNC240 (nothing else is under way)
        raise NotFound(f"there are no tasks in {where} yet; `mainspring chat` begins them, or name others with --database")
    store = choose_task_store(where)
    await store.open()
    try:
        tasks = await store.list(user)
    finally:
        await store.close()
    titles = ("task", "state", "added", "description")
    write_list(
        tasks,
        titles,
        lambda task: (str(task.id), task.status, f"{task.created_at:%Y-%m-%d}", task.description),
        as_json=json,
        none="there are no tasks; tell `mainspring chat` what there is to do",
    )


@app.command()
def token(
    user: Annotated[str, typer.Argument(metavar="USER", help="Whose tasks it opens.")],
    secret_file: SecretFile = None,
    expires: Expires = None,
) -> int:
    """Prints a token for a user of a server that has the same secret."""
    if secret_file is None:
        raise InvalidRequest("say which secret signs the token: --secret-file FILE, the same as for `mainspring tasks serve`")
    expires_at = 0 if expires is None else int(time.time() + expires)
    print(sign_token(read_secret(secret_file), user, expires_at=expires_at))
    return 0


def _identity(user: str | None, secret_file: Path | None, at: Address | None) -> Identity:
    """Who the user is, by the options. Where that is not clear, the server does not start."""
    if user is not None and secret_file is not None:
        raise InvalidRequest("--user NAME and --secret-file FILE exclude each other: give one of them")
    if secret_file is not None:
        if at is None:
            raise InvalidRequest("tokens are for servers on the network: give --http HOST:PORT as well, or --user NAME instead")
        return verify_tokens(read_secret(secret_file, make=True))
    if user is None:
        other = "" if at is None else ", or let tokens say so with --secret-file FILE"
        raise InvalidRequest(f"say whose tasks they are with --user NAME or MAINSPRING_TASKS_USER{other}", param="user")
    if at is not None and not at.is_local:
        told = f"{at.host} can be reached by others, who would all be `{user}`"
        raise InvalidRequest(f"{told}: give --secret-file FILE instead of --user, or listen at 127.0.0.1", param="http")
    return fix_user(user)


def data_folder() -> Path:
    """Where a person's own files are, unless they say so."""
    base = os.environ.get("XDG_DATA_HOME", "")
    return (Path(base) if os.path.isabs(base) else Path.home() / ".local" / "share") / "mainspring"
