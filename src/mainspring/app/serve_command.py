"""`mainspring serve`: reads the settings, then replaces this process by one that only serves.

The libraries of the command line would take up memory for as long as the server runs. The options go through a file without a
name whose number is the argument: they may hold keys, which nobody else shall see.
"""

import os
import sys
from collections.abc import Coroutine, Mapping
from contextlib import suppress
from math import ceil
from pathlib import Path
from typing import Annotated, NoReturn

import msgspec
import typer

from mainspring.app.server_processes import make_shared_file
from mainspring.app.settings import Settings, load
from mainspring.app.shared_listener import bind_listener
from mainspring.cli.options import ApiKey, BaseUrl, Builtins, Config, Tools, as_texts

BACKLOG = 2048  # as uvicorn has it


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
    workers: Annotated[
        str | None, typer.Option(metavar="N", help="Processes that serve this address; `auto` is one for each core. Default: 1.")
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
        mainspring serve --workers auto

    Without a model it takes what it finds: a key in the environment, a model server on this machine, or else a small model of
    its own. Settings come from mainspring.toml, the environment (MAINSPRING_PORT and so on) and these options; later ones win.
    Ctrl-C stops it: runs may finish for a while, and the next start resumes the rest.
    """
    named = {"host": host, "port": port, "database": database, "model": model, "base_url": base_url}
    named["workers"] = int(workers) if workers is not None and workers.isdecimal() else workers
    secrets = {"backend_key": backend_key, "api_key": api_key}
    lists = {"tools": as_texts(tool), "builtins": as_texts(builtin), "allow_hosts": as_texts(allow_host)}
    given: dict[str, object] = {**named, **secrets, **lists}
    settings = load(given, file=config)
    if not check:
        become_server(given, settings, config)
    from mainspring.features.models.doctor import SandboxChoice, check_models  # a server has no use for it

    return check_models(settings, SandboxChoice(settings.sandbox, settings.kubernetes))


def become_server(given: Mapping[str, object], settings: Settings, file: Path | None = None) -> NoReturn:
    """Replaces this process by one that only serves, or looks after several that do. What was `given` on the command line goes
    there; `file` is where the other settings are from. Raises `InvalidRequest` if the address cannot be had."""
    count = count_cores() if settings.workers == "auto" else settings.workers
    # Not a pipe, which holds no more than 64 KiB that nobody reads.
    kept = make_shared_file("settings")
    os.pwrite(kept, msgspec.json.encode(given), 0)
    command = ["mainspring.app.serve", str(kept), "" if file is None else str(file)]
    if count > 1:
        listener = bind_listener(settings)
        listener.listen(BACKLOG)
        listener.set_inheritable(True)
        command = [
            "mainspring.app.server_processes",
            *command[1:],
            str(listener.detach()),
            str(count),
            str(settings.drain_seconds),
        ]
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(sys.executable, [sys.executable, "-P", "-m", *command])


def count_cores() -> int:
    """How many cores this process may use: those it is bound to, or fewer if its control group has less time."""
    if sys.platform != "linux":
        return os.cpu_count() or 1
    cores = len(os.sched_getaffinity(0))
    with suppress(OSError, ValueError):
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        cores = min(cores, max(ceil(int(quota) / int(period)), 1))
    return cores
