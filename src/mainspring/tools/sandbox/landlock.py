"""The fallback where namespaces are not permitted, as in most containers: Landlock, a seccomp filter and per-process limits.

The filter closes what Landlock leaves open: no sockets at all without a network, since Landlock covers neither UDP nor unix
sockets with a path; no signals before ABI version 6; no System V memory and no limits or priorities of other processes; and,
where sandboxed code runs as the engine's own user, no change to the mode, owner or times of a file by name. What remains is that
code can find out whether a file of the host exists and how large it is.
"""

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


class Landlock(Backend):
    name = "landlock"
    isolates: tuple[str, ...] = ("files", "network", "signals", "system calls")

    def __init__(self, python: PythonInstall, owner: Owner, *, version: int | None = None) -> None:
        """Raises `SandboxError` if this kernel's Landlock is too old; `version` is for trying what an older one would do."""
        found = read_landlock_version() if version is None else version
        if found < OLDEST:
            raise SandboxError(
                f"Landlock has version {found} here and {OLDEST} is needed; use Linux 6.2 or newer with it switched on"
            )
        super().__init__(python, owner)
        self.version = f"Landlock ABI {found}"
        self._has_signals = found >= SCOPES_SIGNALS

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
        is_other = self.owner.uid is not None
        return build_filter(Profile(families, signals=self._has_signals, metadata=is_other, others=False))
