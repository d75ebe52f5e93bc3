"""The splitting of event streams, and the reading of complaints."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainspring.core.errors import BadOutput
from mainspring.providers.http_failures import Complaint, parse_complaint
from mainspring.providers.reply import EventSplitter

Events = list[tuple[bytes, bytes]]


def split(*pieces: bytes, limit: int = 2**26) -> Events:
    reader = EventSplitter(limit)
    events = [event for piece in pieces for event in reader.feed(piece)]
    return events + list(reader.end())


@pytest.mark.parametrize(
    ("raw", "events"),
    [
        (b"data: a\n\ndata: b\n\n", [(b"", b"a"), (b"", b"b")]),
        (b"data: a\r\n\r\ndata: b\r\n\r\n", [(b"", b"a"), (b"", b"b")]),
        (b"data:a\n\ndata:  b\n\n", [(b"", b"a"), (b"", b" b")]),
        (b"data: a\ndata\ndata: c\n\n", [(b"", b"a\n\nc")]),
        (b": keep\n\n:\n\ndata: a\n: alive\n\n", [(b"", b"a")]),
        (b"event: error\nid: 7\nretry: 5\ndata: a\n\ndata: b\n\n", [(b"error", b"a"), (b"", b"b")]),
        (b"event: ping\n\ndata: a\n\n", [(b"", b"a")]),
        (b"\xef\xbb\xbfdata: a\n\n", [(b"", b"a")]),
        (b"data: a", [(b"", b"a")]),
        (b"data: a\n", [(b"", b"a")]),
        (b"data:\n\ndata: a\n\n", [(b"", b"a")]),
        (b'{"x": 1}\n{"x": 2}\n', [(b"", b'{"x": 1}'), (b"", b'{"x": 2}')]),
        (b'error: {"x": 1}\n\n', [(b"error", b'{"x": 1}')]),
        (b"\n\n\r\n", []),
        (b"", []),
    ],
)
def test_a_stream_is_split_into_events(raw: bytes, events: Events) -> None:
    assert split(raw) == events
    assert split(*[raw[at : at + 1] for at in range(len(raw))]) == events


SAID = [b"data: a", b"data: \xc3\xa9\xf0\x9f\x95\x9b", b"data", b"event: error", b": hm", b"", b"", b"{}", b"error: x"]
lines = st.tuples(st.sampled_from(SAID), st.sampled_from([b"\n", b"\r\n"]))
streams = st.lists(lines).map(lambda parts: b"".join([line + end for line, end in parts]))


@given(streams, st.lists(st.integers(0, 200)))
def test_however_a_stream_is_cut_its_events_are_the_same(raw: bytes, cuts: list[int]) -> None:
    places = [0, *sorted(cuts), len(raw)]
    assert split(*[raw[a:b] for a, b in pairwise(places)]) == split(raw)


def test_a_line_of_many_megabytes_in_small_pieces_is_one_event() -> None:
    long = b"x" * 8_000_000
    raw = b"data: " + long + b"\n\n"
    assert split(*[raw[at : at + 500] for at in range(0, len(raw), 500)]) == [(b"", long)]


@pytest.mark.parametrize("endless", [b"x" * 100, b"data: x\n" * 10, b": x\n" * 20])
def test_an_event_without_end_is_not_kept_for_ever(endless: bytes) -> None:
    with pytest.raises(BadOutput, match="more than 1000 bytes"):
        split(*[endless] * 100, limit=1000)


def test_many_small_events_never_reach_the_limit() -> None:
    assert len(split(*[b"data: tick\n\n: tock\n\n"] * 1000, limit=100)) == 1000


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b'{"error": {"message": "no", "type": "t", "code": 429}}', Complaint("no", ("429", "t"))),
        (b'{"error": "no"}', Complaint("no")),
        (b'{"message": "no", "code": "c"}', Complaint("no", ("c",))),
        (b'{"detail": "no"}', Complaint("no")),
        (b'{"detail": [{"loc": ["body", 0], "msg": "no"}, "never"]}', Complaint("body.0: no; never")),
        (b'[{"error": {"message": "no"}}]', Complaint("no")),
        (b'{"error": {"why": 1, "code": 5}}', Complaint('{"error": {"why": 1, "code": 5}}', ("5",))),
        (b'{"error": null, "message": "no"}', Complaint("no")),
        (b"[]", Complaint("[]")),
        (b"<html>", Complaint("an HTML page")),
        (b"", Complaint("")),
        (b"no \xff\n way" + b"." * 2000, Complaint("no \ufffd way" + "." * 489 + "...")),
        (b'{"detail": [[1], 2]}', Complaint('{"detail": [[1], 2]}')),
        (b"[" * 900 + b"]" * 900, Complaint("[" * 497 + "...")),
        (b'{"error": {"message": ' + b"[" * 900 + b"]" * 900 + b"}}", Complaint('{"error": {"message": ' + "[" * 475 + "...")),
        (b"[" * 9000, Complaint("[" * 497 + "...")),
    ],
)
def test_a_complaint_is_found_in_every_shape(body: bytes, said: Complaint) -> None:
    assert parse_complaint(body) == said
