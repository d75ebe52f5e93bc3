"""A run as programs read it: every event a line of JSON, exactly as it was recorded."""

import sys
from collections.abc import Sequence

from mainspring.cli.plain import clean
from mainspring.core.events import Recorded
from mainspring.core.items import encode
from mainspring.core.run import Run


class Lines:
    """Writes on standard output. Raises `BrokenPipeError` when nobody reads it any more."""

    def draw(self, records: Sequence[Recorded]) -> None:
        write_lines([{"seq": record.seq, "at": record.at, "event": record.event} for record in records])

    def tick(self) -> None:
        """Lines say nothing between events."""

    def end(self, run: Run) -> None:
        """The last event has said it all."""


def write_lines(values: Sequence[object]) -> None:
    """Each value as a line of JSON, all in one write."""
    sys.stdout.buffer.write(b"".join([encode(value) + b"\n" for value in values]))
    sys.stdout.buffer.flush()


def write_table(rows: Sequence[tuple[str, ...]]) -> None:
    """The rows in columns, each row on one line."""
    widths = [max([len(row[column]) for row in rows]) for column in range(len(rows[0]))]
    for row in rows:
        line = "  ".join([f"{text:{width}}" for text, width in zip(row, widths, strict=True)])
        print(clean(line).replace("\n", " ").rstrip())
