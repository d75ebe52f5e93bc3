"""Removes what a sandbox leaves if both the engine and its supervisor were killed; done when the next one starts.

Both hold a lock on a file in the sandbox's folder while they live. A folder whose lock can be taken is abandoned. The folder of
each lease names its control groups, since frozen processes in them do not exit even when killed.
"""

import fcntl
import os
import signal
import time
from collections.abc import Sequence
from contextlib import suppress
from logging import getLogger
from pathlib import Path

from mainspring.tools.sandbox.workspace_files import remove_tree

log = getLogger(__name__)

PREFIX = "mainspring-"
LOCK = "lock"
GROUPS = "groups"
PATIENCE = 200
PAUSE = 0.01


def lock_folder(folder: Path) -> int:
    """A descriptor; the folder is in use until every copy of it is closed."""
    made = folder / f"{LOCK}.new"
    file = os.open(made, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    fcntl.flock(file, fcntl.LOCK_EX)
    # Only now is it there for others to try.
    made.rename(folder / LOCK)
    return file


def write_group_names(folder: Path, groups: Sequence[Path]) -> None:
    """Notes which control groups belong to the lease in this folder."""
    (folder / GROUPS).write_text("\n".join(map(str, groups)))


def clear_leftovers(parent: Path) -> None:
    """Ends and removes all that is nobody's any more. What cannot be removed is logged."""
    for folder in parent.glob(f"{PREFIX}*"):
        # Another user may create such a folder to trick us.
        try:
            if folder.lstat().st_uid != os.getuid() or not (file := _try_lock(folder)):
                continue
        except OSError:
            continue
        try:
            _remove(folder)
            log.warning("removed %s, which a sandbox that was killed had left", folder)
        except OSError as error:
            log.warning("a sandbox that was killed has left %s, which cannot be removed: %s", folder, error)
        finally:
            os.close(file)


def _try_lock(folder: Path) -> int | None:
    """The lock, if nobody else has it."""
    file = os.open(folder / LOCK, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(file)
        return None
    return file


def _remove(folder: Path) -> None:
    for named in (folder / "data").glob(f"*/{GROUPS}"):
        _end_groups([Path(group) for group in named.read_text().splitlines()])
    # Whoever removed some of it before may have been killed.
    if (folder / "data").exists():
        remove_tree(folder / "data")
    # Never emptied: a view that is still mounted is the original, not a copy.
    if (folder / "views").exists():
        for view in (folder / "views").iterdir():
            view.rmdir()
        (folder / "views").rmdir()
    (folder / LOCK).unlink()
    folder.rmdir()


def _end_groups(groups: Sequence[Path]) -> None:
    """Kills everything in the control groups, thaws them, since frozen processes do not exit, and removes them."""
    for _ in range(PATIENCE):
        for group in groups:
            with suppress(OSError):
                for pid in (group / "cgroup.procs").read_text().split():
                    os.kill(int(pid), signal.SIGKILL)
            for name, state in (("freezer.state", "THAWED"), ("cgroup.freeze", "0")):
                if (group / name).exists():
                    with suppress(OSError):
                        (group / name).write_text(state)
            with suppress(OSError):
                group.rmdir()
        if not any(group.exists() for group in groups):
            return
        time.sleep(PAUSE)
    log.warning("control groups of a sandbox that was killed are still in use: %s", ", ".join(map(str, groups)))
