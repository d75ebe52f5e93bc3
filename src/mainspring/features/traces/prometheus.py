"""Counters and histograms in the text format of Prometheus, in as little as that takes."""

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from typing import Final

SECONDS: Final = (0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)
MOST_NAMES: Final = 100
LONGEST_NAME: Final = 64
OTHER: Final = "_other"

Labels = tuple[str, ...]


class LabelNames:
    """Names that others choose, such as those of models: the first hundred stand for themselves, further ones for `_other`.

    Without that, whoever sends requests could make up labels without end. Those that are `reserved` come on top.
    """

    def __init__(self, *reserved: str, most: int = MOST_NAMES) -> None:
        self._reserved = frozenset(reserved)
        self._known: set[str] = set()
        self._most = most

    def register(self, name: str) -> str:
        if name not in self._reserved and len(self._known) < self._most and len(name) <= LONGEST_NAME:
            self._known.add(name)
        return self.find_label(name)

    def find_label(self, name: str) -> str:
        """The same, but that a new name stays unknown."""
        return name if name in self._known or name in self._reserved else OTHER


class Counter:
    """Counts, by the values of its labels."""

    kind = "counter"

    def __init__(self, name: str, help: str, *labels: str) -> None:
        self.name, self.help, self._labels = name, help, labels
        self._counts: dict[Labels, float] = {}

    def add(self, *values: str, by: float = 1) -> None:
        self._counts[values] = self._counts.get(values, 0) + by

    def lines(self) -> Iterator[str]:
        for values, count in self._counts.items():
            yield f"{self.name}{_render_labels(zip(self._labels, values, strict=True))} {_number(count)}"


class Gauge(Counter):
    """A level, which goes up and down."""

    kind = "gauge"

    def set(self, level: float) -> None:
        self._counts[()] = level


class Histogram:
    """How observed values are spread, by the values of its labels; `bounds` are inclusive upper ones."""

    kind = "histogram"

    def __init__(self, name: str, help: str, *labels: str, bounds: tuple[float, ...] = SECONDS) -> None:
        self.name, self.help, self._labels, self._bounds = name, help, labels, bounds
        self._counts: dict[Labels, list[int]] = {}
        self._sums: dict[Labels, float] = {}

    def observe(self, value: float, *values: str) -> None:
        if (counts := self._counts.get(values)) is None:
            counts = self._counts[values] = [0] * (len(self._bounds) + 1)
        counts[bisect_left(self._bounds, value)] += 1
        self._sums[values] = self._sums.get(values, 0.0) + value

    def lines(self) -> Iterator[str]:
        bounds = [*[_number(bound) for bound in self._bounds], "+Inf"]
        for values, counts in self._counts.items():
            labels, total = tuple(zip(self._labels, values, strict=True)), 0
            for bound, count in zip(bounds, counts, strict=True):
                total += count
                yield f"{self.name}_bucket{_render_labels((*labels, ('le', bound)))} {total}"
            yield f"{self.name}_sum{_render_labels(labels)} {_number(self._sums[values])}"
            yield f"{self.name}_count{_render_labels(labels)} {total}"


def render_exposition(families: Iterable[Counter | Histogram]) -> str:
    """What a scraper reads: of every family what it is, then its samples."""
    lines: list[str] = []
    for family in families:
        lines += [f"# HELP {family.name} {family.help}", f"# TYPE {family.name} {family.kind}", *family.lines()]
    return "\n".join([*lines, ""])


def _render_labels(labels: Iterable[tuple[str, str]]) -> str:
    inside = ",".join([f'{name}="{value.translate(_ESCAPES)}"' for name, value in labels])
    return f"{{{inside}}}" if inside else ""


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(value)


_ESCAPES: Final = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n"})
