"""The long form: `./check cluster`, or `python -m tests.cluster --seed SEED --faults N --seconds N`."""

import argparse
import asyncio
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import get_args

from tests.cluster.deployment import Kind, find_faketime
from tests.cluster.suite import run_suite
from tests.kit.network import ALL, can_have_networks, enter_network, running_network
from tests.kit.postgres import running
from tests.kit.processes import ROOT


def main() -> int:
    parser = argparse.ArgumentParser(prog="./check cluster", description="Hurts a cluster, and checks what it promises.")
    parser.add_argument("--seed", default="long", help="another seed is another order of faults (default long)")
    parser.add_argument("--faults", type=int, default=500, metavar="N", help="how many faults (default 500)")
    parser.add_argument("--seconds", type=float, default=1200.0, metavar="N", help="for how long at most (default 1200)")
    parser.add_argument("--folder", type=Path, help="keeps the logs, the effects and the history in this new folder")
    told = (
        "what finds workers: the database, Temporal, or the database being a file on one machine (default lease); `network` is "
    )
    told += "`lease` with each process in a network namespace of its own, which needs root"
    parser.add_argument("--kind", choices=get_args(Kind), default="lease", help=told)
    told = "rolling restarts go to this commit and back; its tables must be those of this version"
    parser.add_argument("--other", metavar="COMMIT", help=told)
    told = "half-way all processes are brought to a version with a migration more, one by one, and none goes back"
    parser.add_argument("--upgrade", action="store_true", help=told)
    options = parser.parse_args()
    if options.kind == "network" and not can_have_networks():
        parser.error("no network namespaces here: they need root, iproute2 and util-linux")
    # However it is ended, its processes end with it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with tempfile.TemporaryDirectory(prefix="faketime") as folder:
        if not find_faketime.__wrapped__():
            os.environ["MAINSPRING_FAKETIME"] = fetch_faketime(Path(folder))
        other = unpack(options.other, Path(folder)) if options.other else None
        newer = make_newer(Path(folder)) if options.upgrade else None
        with ExitStack() as stack:
            network = postgres = None
            if options.kind == "network":
                enter_network()
                network = stack.enter_context(running_network())
            if options.kind != "file":
                postgres = stack.enter_context(running(network=ALL if network else ""))
            given = (options.seed, options.faults, options.seconds, options.folder, options.kind, other)
            suite = run_suite(postgres, *given, network=network, newer=newer)
            report = asyncio.run(suite)
    print(report)
    return 1 if report.breaches else 0


def unpack(commit: str, folder: Path) -> Path:
    """The sources of another version."""
    subprocess.run(f"git archive {commit} src | tar -x -C {folder}", shell=True, check=True)
    return folder / "src"


def make_newer(folder: Path) -> Path:
    """Sources like these that have other tables."""
    sources = shutil.copytree(ROOT / "src", folder / "newer")
    tables = sources / "mainspring" / "storage" / "postgres" / "run_tables.py"
    told, known = tables.read_text(), "migrations=_MIGRATIONS,"
    assert told.count(known) == 1
    more = 'migrations=(*_MIGRATIONS, "ALTER TABLE mainspring_runs ADD COLUMN of_later TEXT"),'
    tables.write_text(told.replace(known, more))
    return sources


def fetch_faketime(folder: Path) -> str:
    """The library out of Debian's package, which is unpacked there and not installed. Nothing where it cannot be had."""
    commands = ["apt-get download -q libfaketime", "dpkg -x libfaketime*.deb ."]
    for command in commands:
        if subprocess.run(command, shell=True, cwd=folder, capture_output=True, check=False).returncode != 0:
            return ""
    return str(next(folder.rglob("libfaketimeMT.so.1"), ""))


if __name__ == "__main__":
    sys.exit(main())
