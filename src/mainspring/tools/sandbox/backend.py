"""The backends of the sandbox on this machine: how each starts a worker so that it cannot get out."""

import shutil
from pathlib import Path

from msgspec import Struct

from mainspring.core.sandbox import Language, SandboxLimits
from mainspring.tools.sandbox.packages import FONTS, PLOTS
from mainspring.tools.sandbox.places import SYSTEM_PATH, PythonInstall
from mainspring.tools.sandbox.supervisor_client import Launch, read_library_path
from mainspring.tools.sandbox.workspace_files import Owner

WORKER = Path(__file__).with_name("worker.py").read_text()
OPEN_FILES = 1024
# What name look-ups and encrypted connections read.
NETWORK_FILES = ("/etc/resolv.conf", "/etc/hosts", "/etc/nsswitch.conf", "/etc/ssl", "/etc/pki", "/etc/ca-certificates")
LOADER_FILES = ("/etc/ld.so.cache", "/etc/alternatives", "/etc/ssl/openssl.cnf")


class LeaseFolders(Struct, frozen=True):
    """The folders of one lease on the host, and whose they are."""

    workspace: Path
    home: Path
    scratch: Path
    owner: Owner


def build_worker_command(python: PythonInstall) -> tuple[str, ...]:
    return (python.executable, "-I", "-c", WORKER)


def build_environment(python: PythonInstall, home: str, scratch: str) -> dict[str, str]:
    """All the variables there are: none of the engine's."""
    return {
        "PATH": ":".join((*python.path, *SYSTEM_PATH)),
        "HOME": home,
        "TMPDIR": scratch,
        "USER": "sandbox",
        "LANG": "C.UTF-8",
        "PYTHONDONTWRITEBYTECODE": "1",
        **read_library_path(),
    }


def build_worker_environment(python: PythonInstall, home: str, scratch: str) -> dict[str, str]:
    """The variables of code: as for every program, and where its packages are. It has one thread for mathematics, whose memory
    is bounded."""
    packages = {
        "PYTHONPATH": python.packages,
        "MPLBACKEND": f"module://{PLOTS}",
        "FONTCONFIG_FILE": f"{python.packages}/{FONTS}",
        "OPENBLAS_NUM_THREADS": "1",
    }
    return {**build_environment(python, home, scratch), **(packages if python.packages else {})}


class Backend:
    """Starts workers. By itself it isolates nothing: a worker sees the host's paths, with a clean environment and limits.

    `is_namespaced` says that all processes of a worker end with it and are counted apart from others.
    """

    name = ""
    version = ""
    isolates: tuple[str, ...] = ()
    is_namespaced = False

    def __init__(self, python: PythonInstall, owner: Owner) -> None:
        self.python = python
        self.owner = owner

    def choose_owner(self) -> Owner:
        """Whose a new lease is, and who its programs run as."""
        return self.owner

    def launch(self, place: LeaseFolders, joins: tuple[str, ...], *, network: bool) -> Launch:
        return Launch(
            argv=build_worker_command(self.python),
            env=build_worker_environment(self.python, str(place.home), str(place.scratch)),
            folder=str(place.workspace),
            uid=place.owner.uid,
            gid=place.owner.gid,
            joins=joins,
            tree=True,
        )

    def extra(self, *, network: bool) -> bytes:
        """What the launcher reads as file 4; nothing if empty."""
        return b""


class Unsafe(Backend):
    """No isolation. Only on explicit request."""

    name = "unsafe"


def find_languages(python: PythonInstall) -> dict[Language, str]:
    """Where the languages are found in the sandbox; the programs have the same names there as here."""
    path = ":".join((*python.path, *SYSTEM_PATH))
    found: dict[Language, str] = {"python": python.executable}
    shell, node = shutil.which("bash", path=path) or shutil.which("sh", path=path), shutil.which("node", path=path)
    if shell:
        found["shell"] = shell
    if node:
        found["node"] = node
    return found


def build_process_limits(limits: SandboxLimits, language: Language, *, has_totals: bool, others: int | None) -> dict[str, int]:
    """What each process is held to. `others` are processes the kernel counts as well; None if a control group counts.

    Node reserves far more address space than it uses, so only what can be written to is limited there.
    """
    held = {"RLIMIT_CORE": 0, "RLIMIT_FSIZE": limits.file, "RLIMIT_NOFILE": OPEN_FILES, "RLIMIT_DATA": limits.memory}
    if others is not None:
        held["RLIMIT_NPROC"] = limits.processes + others
    if not has_totals and language != "node":
        held["RLIMIT_AS"] = limits.memory
    return held
