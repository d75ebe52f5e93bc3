"""`mainspring serve` and `mainspring worker`: reads the settings, then replaces this process by one that only serves.

The libraries of the command line would take up memory for as long as the server runs. The options go through a file without a
name whose number is the argument: they may hold keys, which nobody else shall see.
"""

import os
import sys
from collections.abc import Coroutine, Mapping
from contextlib import suppress
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn, TypeAlias

import msgspec
import typer

from mainspring.app.server_processes import make_shared_file
from mainspring.app.settings import Settings, load
from mainspring.app.shared_listener import bind_listener
from mainspring.cli.options import BackendKey, BaseUrl, Builtins, Config, Tools, as_texts
from mainspring.late_module import LateModule
from mainspring.storage.location import parse_location

# A server has no use for the one, and starts the other by itself.
if TYPE_CHECKING:
    from mainspring.app import assembly, build
    from mainspring.features.models import doctor
else:
    assembly = LateModule("mainspring.app.assembly")
    build = LateModule("mainspring.app.build")
    doctor = LateModule("mainspring.features.models.doctor")

BACKLOG = 2048  # as uvicorn has it
LARGE_BYTES = 1024 * 1024


DatabaseName: TypeAlias = Annotated[
    str | None, typer.Option("--database", metavar="FILE", help="Database file or URL. Default: mainspring.db.")
]
ModelName: TypeAlias = Annotated[
    str | None, typer.Option("--model", metavar="NAME", help="Model for requests that name none, or `scripted:FILE`.")
]
AllowedHosts: TypeAlias = Annotated[
    list[str] | None,
    typer.Option("--allow-host", metavar="HOST", help="Private host that requests may name, as for MCP. Repeatable."),
]
Workers: TypeAlias = Annotated[
    str | None, typer.Option("--workers", metavar="N", help="Processes; `auto` is one for each core. Default: 1.")
]


Dispatchers: TypeAlias = Annotated[
    str | None, typer.Option("--dispatcher", metavar="NAME", help="`lease`, or `temporal`: what brings runs to workers.")
]


def serve(
    host: Annotated[str | None, typer.Option(metavar="HOST", help="Address to listen at. Default: 127.0.0.1.")] = None,
    port: Annotated[int | None, typer.Option(min=0, max=65535, metavar="PORT", help="Default: 8080; 0 picks one.")] = None,
    database: DatabaseName = None,
    model: ModelName = None,
    base_url: BaseUrl = None,
    backend_key: BackendKey = None,
    api_key: Annotated[
        str | None, typer.Option(metavar="KEY", help="Key that every client must send. Better export MAINSPRING_API_KEY.")
    ] = None,
    tool: Tools = None,
    builtin: Builtins = None,
    allow_host: AllowedHosts = None,
    workers: Workers = None,
    role: Annotated[
        str | None,
        typer.Option(
            metavar="ROLE", help="`all`, or `gateway`: accept runs and leave them to `mainspring worker`. Default: all."
        ),
    ] = None,
    dispatcher: Dispatchers = None,
    log_level: Annotated[
        str | None, typer.Option("--log-level", metavar="LEVEL", help="debug, info, warning or error. Default: warning.")
    ] = None,
    check: Annotated[
        bool,
        typer.Option(
            "--check", help="Check the settings, examine every configured model as `mainspring doctor` does, and do not serve."
        ),
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
    named = {"host": host, "port": port, "database": database, "model": model, "base_url": base_url, "role": role}
    named |= {"dispatcher": dispatcher, "log_level": log_level}
    secrets = {"backend_key": backend_key, "api_key": api_key}
    lists = {"tools": as_texts(tool), "builtins": as_texts(builtin), "allow_hosts": as_texts(allow_host)}
    given: dict[str, object] = {**named, **secrets, **lists, "workers": _parse_count(workers)}
    settings = load(given, file=config)
    if not check:
        become_server(given, settings, config)
    assembly.build_server_engine(settings, config)
    return _check(settings)


async def _check(settings: Settings) -> int:
    """Examines the models, once what else the settings name has been tried out."""
    await build.check_surroundings(settings)
    choice = doctor.SandboxChoice(settings.sandbox, settings.kubernetes)
    return await doctor.check_configured(settings, choice, parse_location(settings.database))


def work(
    database: DatabaseName = None,
    model: ModelName = None,
    base_url: BaseUrl = None,
    backend_key: BackendKey = None,
    tool: Tools = None,
    builtin: Builtins = None,
    allow_host: AllowedHosts = None,
    workers: Workers = None,
    runs_at_once: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Runs that each process drives at a time. Default: no limit.")
    ] = None,
    dispatcher: Dispatchers = None,
    host: Annotated[str | None, typer.Option(metavar="HOST", help="Address of the health port. Default: 127.0.0.1.")] = None,
    health_port: Annotated[
        int | None,
        typer.Option(min=0, max=65535, metavar="PORT", help="Serve /healthz, /readyz and /metrics there. Default: no."),
    ] = None,
    config: Config = None,
) -> None:
    """
    Drives runs that servers on the same database have accepted, and serves nothing.

    Examples:

        mainspring worker --database postgresql://mainspring@db.example/mainspring
        mainspring worker --workers auto --runs-at-once 50 --health-port 9090
        mainspring worker --dispatcher temporal

    It takes up background runs and workflows that nobody drives, runs whose process has died, and everything that servers with
    `--role gateway` are asked for. Give it the settings, tools and files of the servers. Ctrl-C stops it: runs may finish for
    a while, and others take up the rest.
    """
    named = {"database": database, "model": model, "base_url": base_url, "backend_key": backend_key, "host": host}
    named["dispatcher"] = dispatcher
    lists = {"tools": as_texts(tool), "builtins": as_texts(builtin), "allow_hosts": as_texts(allow_host)}
    counts = {"workers": _parse_count(workers), "runs_at_once": runs_at_once, "health_port": health_port}
    given: dict[str, object] = {**named, **lists, **counts, "role": "worker"}
    become_server(given, load(given, file=config), config)


def _parse_count(text: str | None) -> int | str | None:
    if text is None or text == "auto":
        return text
    try:
        return int(text)
    except ValueError:
        raise typer.BadParameter(f"{text} is neither a number nor `auto`", param_hint="'--workers'") from None


def become_server(given: Mapping[str, object], settings: Settings, file: Path | None = None) -> NoReturn:
    """Replaces this process by one that only serves, or looks after several that do. What was `given` on the command line goes
    there; `file` is where the other settings are from. Raises `InvalidRequest` if the address cannot be had."""
    count = count_cores() if settings.workers == "auto" else settings.workers
    # Not a pipe, which holds no more than 64 KiB that nobody reads.
    kept = make_shared_file("settings")
    os.pwrite(kept, msgspec.json.encode(given), 0)
    command = ["mainspring.app.serve", str(kept), "" if file is None else str(file)]
    if settings.workers != 1:  # also of one core, so that SIGHUP means the same on every machine
        descriptor = -1
        if (listener := bind_listener(settings)) is not None:
            listener.listen(BACKLOG)
            listener.set_inheritable(True)
            descriptor = listener.detach()
        command = ["mainspring.app.server_processes", *command[1:], str(descriptor), str(count), str(settings.drain_seconds)]
    # The C library then gives the memory of a large body back at once; else it keeps what it once had for one of 32 MB or less.
    # With that, it would also give each smaller piece back at once and fetch it again: a long run writes one in every turn.
    os.environ.setdefault("MALLOC_MMAP_THRESHOLD_", str(LARGE_BYTES))
    os.environ.setdefault("MALLOC_TRIM_THRESHOLD_", str(LARGE_BYTES))
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
