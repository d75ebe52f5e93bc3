"""`mainspring serve`: reads the settings, then replaces this process by one that only serves.

The libraries of the command line would take up memory for as long as the server runs. The settings go through a file without a
name whose number is the argument: they may hold keys, which nobody else shall see.
"""

import os
import sys
from collections.abc import Coroutine
from pathlib import Path
from tempfile import TemporaryFile
from typing import Annotated, NoReturn

import msgspec
import typer

from mainspring.app.settings import Settings, load
from mainspring.cli.options import ApiKey, BaseUrl, Builtins, Config, Tools, as_texts


def serve(
    host: Annotated[str | None, typer.Option(metavar="HOST", help="Address to listen at. Default: 127.0.0.1.")] = None,
    port: Annotated[int | None, typer.Option(min=0, max=65535, metavar="PORT", help="Default: 8080; 0 picks one.")] = None,
    database: Annotated[str | None, typer.Option(metavar="FILE", help="Database file or URL. Default: mainspring.db.")] = None,
    model: Annotated[
        str | None, typer.Option(metavar="NAME", help="Model for requests that name none, or `scripted:FILE`.")
    ] = None,
    base_url: BaseUrl = None,
    backend_key: ApiKey = None,
    api_key: Annotated[
        str | None, typer.Option(metavar="KEY", help="Key that every client must send. Better export MAINSPRING_API_KEY.")
    ] = None,
    tool: Tools = None,
    builtin: Builtins = None,
    allow_host: Annotated[
        list[str] | None, typer.Option(metavar="HOST", help="Private host that requests may name, as for MCP. Repeatable.")
    ] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Examine every configured model as `mainspring doctor` does, and do not serve.")
    ] = False,
    config: Config = None,
) -> Coroutine[object, object, int]:
    """
    Serves the OpenAI Responses API, with the tool loop behind it.

    Examples:

        mainspring serve --base-url http://127.0.0.1:11434/v1
        mainspring serve --model scripted:script.json --port 0
        mainspring serve --base-url https://example.com/v1 --tool mytools --database /var/lib/mainspring.db

    Without a model it takes what it finds: a key in the environment, a model server on this machine, or else a small model of
    its own. Settings come from mainspring.toml, the environment (MAINSPRING_PORT and so on) and these options; later ones win.
    Ctrl-C stops it: runs may finish for a while, and the next start resumes the rest.
    """
    given = {"host": host, "port": port, "database": database, "model": model, "base_url": base_url}
    secrets = {"backend_key": backend_key, "api_key": api_key}
    lists = {"tools": as_texts(tool), "builtins": as_texts(builtin), "allow_hosts": as_texts(allow_host)}
    settings = load({**given, **secrets, **lists}, file=config)
    if not check:
        become_server(settings, config)
    from mainspring.features.models.doctor import SandboxChoice, check_models  # a server has no use for it

    return check_models(settings, SandboxChoice(settings.sandbox, settings.kubernetes))


def become_server(settings: Settings, file: Path | None = None) -> NoReturn:
    """Replaces this process by one that only serves. `file` is where the settings are from, for messages about them."""
    # Not a pipe, which holds no more than 64 KiB that nobody reads.
    kept = os.memfd_create("settings") if sys.platform == "linux" else _make_nameless_file()
    with os.fdopen(kept, "wb", closefd=False) as written:
        written.write(msgspec.json.encode(settings))
    os.lseek(kept, 0, os.SEEK_SET)
    os.set_inheritable(kept, True)
    sys.stdout.flush()
    sys.stderr.flush()
    where = [] if file is None else [str(file)]
    os.execv(sys.executable, [sys.executable, "-P", "-m", "mainspring.app.serve", str(kept), *where])


def _make_nameless_file() -> int:
    with TemporaryFile() as file:
        return os.dup(file.fileno())
