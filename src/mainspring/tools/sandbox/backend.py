"""What a backend on this machine has to say: how a worker is started so that it cannot get out."""

import shutil
from pathlib import Path
from typing import Protocol

from msgspec import Struct

from mainspring.tools.sandbox.places import SYSTEM_PATH, Python
from mainspring.tools.sandbox.processes import Confine, Launch, library_path
from mainspring.tools.sandbox.sandbox_port import Language, Limits
from mainspring.tools.sandbox.workspace_files import Owner

WORKER = Path(__file__).with_name("worker.py").read_text()
OPEN_FILES = 1024
# What name look-ups and encrypted connections read.
NETWORK_FILES = ("/etc/resolv.conf", "/etc/hosts", "/etc/nsswitch.conf", "/etc/ssl", "/etc/pki", "/etc/ca-certificates")
LOADER_FILES = ("/etc/ld.so.cache", "/etc/alternatives", "/etc/ssl/openssl.cnf")


class Place(Struct, frozen=True):
    """The folders of one lease on the host."""

    workspace: Path
    home: Path
    scratch: Path


class Backend(Protocol):
    """Starts workers. `is_namespaced` says that all processes of a worker end with it and are counted apart from others."""

    name: str
    version: str
    isolates: tuple[str, ...]
    is_namespaced: bool
    python: Python
    owner: Owner

    def launch(self, place: Place, joins: tuple[str, ...], *, network: bool) -> Launch: ...

    def extra(self, *, network: bool) -> bytes:
        """What the launcher reads as file 4; nothing if empty."""
        ...


def worker_argv(python: Python) -> tuple[str, ...]:
    return (python.executable, "-I", "-c", WORKER)


def environment(python: Python, home: str, scratch: str) -> dict[str, str]:
    """All the variables there are: none of the engine's."""
    return {
        "PATH": ":".join((*python.path, *SYSTEM_PATH)),
        "HOME": home,
        "TMPDIR": scratch,
        "USER": "sandbox",
        "LANG": "C.UTF-8",
        "PYTHONDONTWRITEBYTECODE": "1",
        **library_path(),
    }


def bare_launch(python: Python, owner: Owner, place: Place, joins: tuple[str, ...], confine: Confine | None = None) -> Launch:
    """A worker without namespaces: it sees the host's paths, whatever it may do with them."""
    return Launch(
        argv=worker_argv(python),
        env=environment(python, str(place.home), str(place.scratch)),
        folder=str(place.workspace),
        uid=owner.uid,
        gid=owner.gid,
        joins=joins,
        tree=True,
        confine=confine,
    )


def languages(python: Python) -> dict[Language, str]:
    """Where the languages are found in the sandbox; the programs have the same names there as here."""
    path = ":".join((*python.path, *SYSTEM_PATH))
    found: dict[Language, str] = {"python": python.executable}
    shell, node = shutil.which("bash", path=path) or shutil.which("sh", path=path), shutil.which("node", path=path)
    if shell:
        found["shell"] = shell
    if node:
        found["node"] = node
    return found


def process_limits(limits: Limits, language: Language, *, has_totals: bool, others: int | None) -> dict[str, int]:
    """What each process is held to. `others` are processes the kernel counts as well; None if a control group counts.

    Node reserves far more address space than it uses, so only what can be written to is limited there.
    """
    held = {
        "RLIMIT_CORE": 0,
        "RLIMIT_FSIZE": limits.file,
        "RLIMIT_NOFILE": OPEN_FILES,
        "RLIMIT_DATA": limits.memory,
    }
    if others is not None:
        held["RLIMIT_NPROC"] = limits.processes + others
    if not has_totals and language != "node":
        held["RLIMIT_AS"] = limits.memory
    return held


class Unsafe:
    """No isolation: programs run on the host, with a clean environment and per-process limits. Only on explicit request."""

    name = "unsafe"
    version = ""
    is_namespaced = False
    isolates: tuple[str, ...] = ()

    def __init__(self, python: Python, owner: Owner) -> None:
        self.python = python
        self.owner = owner

    def launch(self, place: Place, joins: tuple[str, ...], *, network: bool) -> Launch:
        return bare_launch(self.python, self.owner, place, joins)

    def extra(self, *, network: bool) -> bytes:
        return b""
