"""The fallback where namespaces are not permitted, as in most containers: Landlock, a seccomp filter and per-process limits.

The filter closes what Landlock leaves open: no sockets at all without a network, since Landlock covers neither UDP nor unix
sockets with a path; no signals before ABI version 6; no System V memory and no limits or priorities of other processes; and,
where sandboxed code runs as the user of something else, no change to the mode, owner, times or attributes of a file by name,
which Landlock does not guard. Where we are root each lease has a user of its own instead, so that programs may change their own
files. What remains is that code can find out whether a file of the host exists and how large it is.
"""

from itertools import count
from pathlib import Path
from random import randrange

from msgspec.structs import replace

from mainspring.core.errors import SandboxError
from mainspring.tools.sandbox.backend import LOADER_FILES, NETWORK_FILES, Backend, LeaseFolders
from mainspring.tools.sandbox.places import SYSTEM, PythonInstall
from mainspring.tools.sandbox.seccomp import AF_INET, AF_INET6, AF_NETLINK, Profile, build_filter
from mainspring.tools.sandbox.supervisor import read_landlock_version
from mainspring.tools.sandbox.supervisor_client import Confine, Launch
from mainspring.tools.sandbox.workspace_files import Owner

DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")
# Before it, files anywhere could be emptied by their name.
OLDEST = 3
SCOPES_SIGNALS = 6
# Nobody has these: distributions give people smaller numbers and services others, and containers seldom have larger ones.
USERS = range(30_000, 60_000)


class Landlock(Backend):
    name = "landlock"
    isolates: tuple[str, ...] = ("files", "network", "signals", "system calls")

    def __init__(self, python: PythonInstall, owner: Owner, *, own_users: bool = False, version: int | None = None) -> None:
        """Raises `SandboxError` if this kernel's Landlock is too old; `version` is for trying what an older one would do. With
        `own_users` each lease gets one, if we are root and there are so many."""
        found = read_landlock_version() if version is None else version
        if found < OLDEST:
            raise SandboxError(
                f"Landlock has version {found} here and {OLDEST} is needed; use Linux 6.2 or newer with it switched on"
            )
        super().__init__(python, owner)
        self.version = f"Landlock ABI {found}"
        self._has_signals = found >= SCOPES_SIGNALS
        # From anywhere on, so that two servers seldom have the same.
        self._users = count(randrange(len(USERS))) if own_users and owner.uid is not None and _has_users() else None
        self._may_change_files = owner.uid is not None and own_users == (self._users is not None)

    def choose_owner(self) -> Owner:
        if self._users is None:
            return self.owner
        uid = USERS[next(self._users) % len(USERS)]
        return Owner(uid, uid)

    def launch(self, place: LeaseFolders, joins: tuple[str, ...], *, network: bool) -> Launch:
        sources = tuple(source for _, source in self.python.parts)
        confine = Confine(
            read=(*SYSTEM, *sources, *LOADER_FILES, *(NETWORK_FILES if network else ())),
            write=(str(place.workspace), str(place.home), str(place.scratch)),
            devices=DEVICES,
            network=network,
            filter=self._build_filter(network).hex(),
        )
        return replace(super().launch(place, joins, network=network), confine=confine)

    def _build_filter(self, network: bool) -> bytes:
        families = (AF_INET, AF_INET6, AF_NETLINK) if network else ()
        return build_filter(Profile(families, signals=self._has_signals, metadata=self._may_change_files, others=False))


def _has_users() -> bool:
    """Whether the users are there in our own namespace, too."""
    return all(
        any(first <= USERS.start and USERS.stop <= first + size for first, size in _read_map(name)) for name in ("uid", "gid")
    )


def _read_map(name: str) -> list[tuple[int, int]]:
    lines = Path(f"/proc/self/{name}_map").read_text().splitlines()
    return [(int(first), int(size)) for first, _, size in map(str.split, lines)]
