"""Output as progress: whole lines, and those that come within a moment together.

A program may print a hundred thousand lines in a second, and each piece of progress is an event that is stored. Lines are not
cut, so that a secret in one can be recognised by whoever hides it.
"""

import asyncio
from codecs import getincrementaldecoder
from collections.abc import Callable
from types import TracebackType
from typing import Self

from mainspring.tools.sandbox.sandbox_port import Chunk, Stream

MOMENT = 0.1
LONGEST = 2_000


class Lines:
    """Passes output on to `show`, the last of it when the `with` block is left."""

    def __init__(self, show: Callable[[str], None]) -> None:
        self._show = show
        self._streams: dict[Stream, _Stream] = {"stdout": _Stream(), "stderr": _Stream()}
        self._whole = ""
        self._timer: asyncio.TimerHandle | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._whole += "".join([stream.end() for stream in self._streams.values()])
        self._flush()

    def add(self, chunk: Chunk) -> None:
        self._whole += self._streams[chunk.stream].lines(chunk.data)
        if self._whole and self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(MOMENT, self._flush)

    def _flush(self) -> None:
        self._timer = None
        if self._whole:
            self._show(self._whole.rstrip("\n"))
        self._whole = ""


class _Stream:
    """One of the two streams, cut into lines. A progress bar ends its lines by going back to their start."""

    def __init__(self) -> None:
        self._decoder = getincrementaldecoder("utf-8")(errors="replace")
        self._rest = ""

    def lines(self, data: bytes) -> str:
        """All whole lines there are by now."""
        text = self._rest + self._decoder.decode(data)
        end = max(text.rfind("\n"), text.rfind("\r")) + 1
        # What does not end will not be shown whole in any case.
        if len(text) - end > LONGEST:
            end = len(text)
        self._rest = text[end:]
        return text[:end]

    def end(self) -> str:
        return self._rest + self._decoder.decode(b"", final=True)
