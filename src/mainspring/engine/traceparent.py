"""The W3C header `traceparent`, and the ids of spans. Ids follow from run ids, so every exporter gives a run the same spans."""

import re
from hashlib import sha256
from typing import Final

from msgspec import Struct

from mainspring.core.spec import RunSpec

TRACEPARENT: Final = re.compile(r"(?!ff)[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")


class ParentSpan(Struct, frozen=True):
    """A span of others, as the header `traceparent` names it."""

    trace_id: str
    span_id: str
    is_sampled: bool = True


def parse_traceparent(header: str) -> ParentSpan | None:
    """What the header says; None if it says nothing that can be used."""
    found = TRACEPARENT.fullmatch(header.strip().lower())
    if found is None or (found[4] is not None and header.startswith("00")):
        return None
    return ParentSpan(found[1], found[2], bool(int(found[3], 16) & 1))


def clean_traceparent(header: str) -> str:
    """A header that somebody sent, empty if it cannot be used."""
    return header.strip() if parse_traceparent(header) is not None else ""


def make_traceparent(spec: RunSpec) -> str:
    """The header for what a run starts, another run above all: its spans are then inside those of this one."""
    found = parse_traceparent(spec.traceparent)
    flags = "00" if found is not None and not found.is_sampled else "01"
    return f"00-{derive_trace_id(spec.within or spec.id, spec.traceparent)}-{derive_span_id(spec.id)}-{flags}"


def derive_trace_id(run_id: str, traceparent: str) -> str:
    """The id that all spans of a run share: that of the span it belongs to, if there is one."""
    found = parse_traceparent(traceparent)
    return sha256(run_id.encode()).hexdigest()[:32] if found is None else found.trace_id


def derive_span_id(*names: str) -> str:
    return sha256("/".join(names).encode()).hexdigest()[-16:]
