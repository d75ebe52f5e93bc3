"""Plain words on the standard streams, without any library."""

import os
import re
import sys
from contextlib import suppress

# Everything a terminal could take as a command: C0 and C1, but for newline and tab. Without its ESC a sequence is inert.
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def clean(text: str) -> str:
    """The text without control characters, but for newlines and tabs."""
    return _CONTROLS.sub("", text)


def say(message: str) -> None:
    """A message on standard error."""
    with suppress(OSError):
        print("mainspring:", clean(message), file=sys.stderr, flush=True)


def is_debug() -> bool:
    return os.environ.get("MAINSPRING_DEBUG", "") not in ("", "0")


def accept_any_text() -> None:
    """What the encoding of standard output or error lacks becomes a question mark from now on, not an error."""
    for stream in (sys.stdout, sys.stderr):
        if (reconfigure := getattr(stream, "reconfigure", None)) is not None:
            reconfigure(errors="replace")


def silence() -> None:
    """Standard output leads nowhere from now on, so that nothing is left to be flushed when the process ends."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)
