"""Files that go into the sandbox of a run at the command line, and those that come out of it.

What code in a sandbox calls its files is not to be trusted: they are written into a folder that was empty, and nowhere else.
"""

from collections.abc import Sequence
from pathlib import Path, PurePosixPath

from anyio import to_thread
from msgspec import Struct

from mainspring.cli.context import Assembly
from mainspring.cli.output import say, spell_out
from mainspring.core.errors import InvalidRequest, MainspringError, NotFound
from mainspring.core.ids import derive_id
from mainspring.core.spec import RunSpec
from mainspring.tools.builtin.containers import Containers

SHOWN = 5


class WorkspaceFiles(Struct, frozen=True):
    """The files that a run is given, and the folder that its files are written to, if any."""

    given: Sequence[Path] = ()
    target: Path | None = None

    def check(self) -> None:
        """Raises `InvalidRequest` for what cannot be read or written, before anything is asked."""
        for file in self.given:
            if not file.is_file():
                raise InvalidRequest(f"there is no file `{file}`; --file names one that the code may read", param="file")
        names = [file.name for file in self.given]
        if twice := next((name for name in names if names.count(name) > 1), None):
            raise InvalidRequest(f"two files are called `{twice}`; rename one of them", param="file")
        if self.target is None:
            return
        if self.target.exists() and (not self.target.is_dir() or any(self.target.iterdir())):
            told = f"`{self.target}` is there already, and is no empty folder; --save-files takes an empty or a new one"
            raise InvalidRequest(told, param="save_files")

    async def put(self, assembly: Assembly, order: RunSpec) -> None:
        """Puts the given files into the workspace of the run. Raises `InvalidRequest` if it has none."""
        if not self.given and self.target is None:
            return
        containers = _find_containers(assembly)
        if self.given:
            await containers.create(order.tenant, find_container(order))
        for file in self.given:
            data = await to_thread.run_sync(file.read_bytes)
            await containers.put(order.tenant, find_container(order), file.name, data)

    async def save(self, assembly: Assembly, order: RunSpec) -> None:
        """Writes what is in the workspace, but for what was given and is as it was, into the folder."""
        if self.target is None:
            return
        containers, id = _find_containers(assembly), find_container(order)
        try:
            entries = (await containers.list(order.tenant, id)).entries
        except NotFound:
            entries = ()
        saved = []
        for entry in entries:
            try:
                data = await containers.get(order.tenant, id, entry.path)
            except MainspringError as error:
                say(f"`{spell_out(entry.path)}` is not saved: {error.message}")
                continue
            if not self._is_given(entry.path, data):
                await to_thread.run_sync(_write, self.target, entry.path, data)
                saved.append(spell_out(entry.path))
        more = f" and {len(saved) - SHOWN} more" if len(saved) > SHOWN else ""
        said = f"{', '.join(saved[:SHOWN])}{more} saved in {self.target}" if saved else "the run has left no files to save"
        say(said)

    def _is_given(self, path: str, data: bytes) -> bool:
        return any(file.name == path and file.is_file() and file.read_bytes() == data for file in self.given)


def find_container(order: RunSpec) -> str:
    """The id of the container that the calls of a run work in."""
    return derive_id("cntr", order.scope or order.id)


def _find_containers(assembly: Assembly) -> Containers:
    found = next((service for service in assembly.services if isinstance(service, Containers)), None)
    if found is None:
        raise InvalidRequest(
            "--file and --save-files are for code in the sandbox; add `--builtin code_interpreter` or `--builtin shell`"
        )
    return found


def _write(folder: Path, path: str, data: bytes) -> None:
    parts = PurePosixPath(path).parts
    if PurePosixPath(path).is_absolute() or ".." in parts or not parts:
        raise InvalidRequest(f"`{spell_out(path)}` would be outside of {folder}")
    file = folder.joinpath(*parts)
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("xb") as new:
        new.write(data)
