"""Files without a name: unlinked, but still open or mapped in a sandbox. They take up room, and no walk finds them."""

import os
import re
import stat
from collections.abc import Iterator
from contextlib import suppress

_DELETED = re.compile(r"^(?P<start>[0-9a-f]+)-(?P<end>[0-9a-f]+) .* \(deleted\)$", re.MULTILINE)


def held_bytes(pid: int, device: int) -> int:
    """What nameless files on this device occupy that the process, or one below it, holds on to."""
    found: dict[int, int] = {}
    for each in _tree(pid):
        for about in (*_opened(each), *_mapped(each)):
            if stat.S_ISREG(about.st_mode) and about.st_nlink == 0 and about.st_dev == device:
                found[about.st_ino] = about.st_blocks * 512
    return sum(found.values())


def _tree(pid: int) -> list[int]:
    found = [pid]
    for each in found:
        with suppress(OSError):
            for thread in os.listdir(f"/proc/{each}/task"):
                with suppress(OSError), open(f"/proc/{each}/task/{thread}/children") as children:
                    found += [int(child) for child in children.read().split()]
    return found


def _opened(pid: int) -> Iterator[os.stat_result]:
    with suppress(OSError):
        for file in os.listdir(f"/proc/{pid}/fd"):
            with suppress(OSError):
                yield os.stat(f"/proc/{pid}/fd/{file}")


def _mapped(pid: int) -> Iterator[os.stat_result]:
    """Only root may ask what is mapped."""
    with suppress(OSError):
        with open(f"/proc/{pid}/maps") as file:
            ranges = [f"{int(found['start'], 16):x}-{int(found['end'], 16):x}" for found in _DELETED.finditer(file.read())]
        for name in ranges:
            with suppress(OSError):
                yield os.stat(f"/proc/{pid}/map_files/{name}")
