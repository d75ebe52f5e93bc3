"""A log as it is kept: lines of JSON, so that one can be continued in place.

A line is a list of records. Deltas that go on with the one before them stand beside it: their texts, each with the time since the
one before if there was any. A line that begins with a text goes on with the last delta of the line above. Logs of older versions
are one line with every delta by itself. The time of a record that follows another in its line is the time since that one, if it
is a whole number.

An item that is among the entries of the run is kept there, and the log has its place. Once a run has ended, so are the texts of
its deltas: `shrink_log` leaves a character for the length of each, and one for the time since the one before.
"""

from collections.abc import Iterator, Sequence
from math import floor
from typing import Final, cast

import msgspec
from msgspec import UNSET, Struct
from msgspec.structs import replace

from mainspring.core.compact_json import omit_usual
from mainspring.core.events import (
    OTHER_DELTAS,
    PARTS_OF_SECOND,
    Event,
    ItemDone,
    Recorded,
    RunEnded,
    RunStarted,
    TextDelta,
    TurnEnded,
    continues,
)  # fmt: skip
from mainspring.core.items import Item, Message, OutputText, ToolDefinition, Usage, from_wire, to_wire
from mainspring.core.spec import Caller, Completion, Limits, RunSpec, Sampling, ToolChoice, Window

Texts = Sequence[str | int | float]


class _EnteredItem(Struct, frozen=True, tag_field="type", tag="entered_item"):
    """`ItemDone`, of an item that is kept elsewhere."""

    place: int


class _EnteredText(Struct, frozen=True, tag_field="type", tag="entered_text"):
    """Deltas of a message that is kept elsewhere: `lengths` and `times` have a character for each. They begin at `start` of the
    part with that index."""

    place: int
    index: int
    start: int
    lengths: str
    times: str


ENTERED: Final = b'{"type":"entered_'
"""How what is kept elsewhere begins in a log."""


class _Stored(Struct, frozen=True, array_like=True):
    seq: int
    at: int | float
    event: Event | _EnteredItem | _EnteredText
    texts: Texts = ()


class _Unread(Struct, array_like=True):
    """The same with its event as it is written."""

    seq: int
    at: int | float
    event: msgspec.Raw
    texts: list[str | int | float] = []


def encode_log(records: Sequence[Recorded], after: Recorded | None = None, entered: Sequence[Item] = ()) -> bytes:
    """Records as they are kept. With `after`, they are to be added to what was kept so far, which ends with that one.

    `entered` are items that are kept elsewhere, and are to be given to `decode_log`.
    """
    start = 0
    lines: list[bytes] = []
    if after is not None:
        start = find_texts(after, records, 0)
        lines = [b"", _encoder.encode(_list_texts(after.at, records[:start]))[1:-1]] if start else [b""]
    stored: list[object] = []
    places = {id(item): place for place, item in enumerate(entered)}
    last: float | None = None
    while start < len(records):
        first = records[start]
        event: object = first.event
        kind, at = type(event), float(first.at) if last is None else _tell_time(last, first.at)
        start += 1
        last = first.at
        if kind is TextDelta or kind in OTHER_DELTAS:
            stop = find_texts(first, records, start)
            if stop > start:
                stored.append((first.seq, at, event, _list_texts(first.at, records[start:stop])))
                start, last = stop, records[stop - 1].at
                continue
        elif type(event) is ItemDone:
            place = places.get(id(event.item))
            event = event if place is None else _EnteredItem(place)
        elif kind in _COMPACT:
            event = _make_compact(first.event)
        stored.append((first.seq, at, event))
    if stored:
        lines.append(_encoder.encode(stored))
    return b"\n".join(lines)


def encode_texts(records: Sequence[Recorded], after: Recorded) -> bytes:
    """What `encode_log` makes of deltas that all go on with `after`; nothing if one does not."""
    # Streams that speak slowly have one at a time.
    goes_on = continues(after.event, records[0].event) if len(records) == 1 else find_texts(after, records, 0) == len(records)
    if not goes_on:
        return b""
    return b"\n" + _encoder.encode(_list_texts(after.at, records))[1:-1]


def _make_compact(event: Event) -> Struct:
    if isinstance(event, RunStarted) and event.spec.tools:
        tools = tuple([omit_usual(tool) if isinstance(tool, ToolDefinition) else tool for tool in event.spec.tools])
        event = replace(event, spec=replace(event.spec, tools=tools))
    return omit_usual(event, _COMPACT)


def _tell_time(before: float, now: float) -> int | float:
    """The time between, in parts of which every moment that a clock tells from 2004 to 2038 is a whole number; or the moment."""
    time = int((now - before) * _FINE)
    return time if before + time / _FINE == now else float(now)


def find_texts(first: Recorded, records: Sequence[Recorded], start: int) -> int:
    """Where the deltas end that go on with the first one."""
    event, stop, length = first.event, start, len(records)
    kind = type(event)
    if kind is TextDelta:
        item_id, index = event.item_id, event.index  # type: ignore[union-attr]
        while stop < length:
            delta = records[stop].event
            if type(delta) is not kind or delta.item_id != item_id or delta.index != index or delta.logprobs is not UNSET:
                break
            stop += 1
    elif kind in OTHER_DELTAS:
        while stop < length and continues(event, records[stop].event):
            stop += 1
    return stop


def _list_texts(at: float, deltas: Sequence[Recorded]) -> Texts:
    texts: list[str | int | float] = []
    for delta in deltas:
        texts.append(delta.event.delta)  # type: ignore[union-attr]
        if delta.at != at:
            texts.append(_measure(at, delta.at))
            at = delta.at
    return texts


def _measure(before: float, now: float) -> int | float:
    """The time between, or if that is not exact the moment itself."""
    begun = floor(before * PARTS_OF_SECOND)
    time = int((now - begun / PARTS_OF_SECOND) * PARTS_OF_SECOND)
    # As `_add_time` reads it.
    return time if (begun + time) / PARTS_OF_SECOND == now else float(now)


def _add_time(before: float, time: int | float) -> float:
    return before // _PART * _PART + time * _PART if isinstance(time, int) else time


def decode_log(data: bytes, entered: Sequence[Item] = ()) -> list[Recorded]:
    records: list[Recorded] = []
    for line in data.split(b"\n"):
        if line.startswith(b'"'):
            _add_texts(records, _texts_decoder.decode(b"[%b]" % line))
            continue
        for stored in _decoder.decode(line):
            if isinstance(stored.event, _EnteredText):
                at = records[-1].at + stored.at / _FINE if isinstance(stored.at, int) else stored.at
                records += _list_entered(stored.seq, at, stored.event, entered)
                continue
            event = ItemDone(entered[stored.event.place]) if isinstance(stored.event, _EnteredItem) else stored.event
            at = records[-1].at + stored.at / _FINE if isinstance(stored.at, int) else stored.at
            records.append(Recorded(stored.seq, at, event))
            if stored.texts:
                _add_texts(records, stored.texts)
    return records


def _list_entered(seq: int, at: float, told: _EnteredText, entered: Sequence[Item]) -> Iterator[Recorded]:
    message, place = entered[told.place], told.start
    assert isinstance(message, Message)
    text = _read_part(message, told.index)
    for number, (length, time) in enumerate(zip(told.lengths, told.times, strict=True)):
        if time != _ZERO:
            at = _add_time(at, ord(time) - ord(_ZERO))
        end = place + ord(length) - ord(_ZERO)
        yield Recorded(seq + number, at, TextDelta(message.id, text[place:end], told.index))
        place = end


def shrink_log(data: bytes, entered: Sequence[Item]) -> bytes:
    """The log of a run that has ended, without the texts of deltas that these items have; `decode_log` makes the same of it."""
    places = {item.id: place for place, item in enumerate(entered) if isinstance(item, Message) and item.id}
    told: dict[tuple[int, int], int] = {}
    stored: list[object] = []
    for record, delta in _read_stretches(data):
        place = None if delta is None else places.get(delta.item_id)
        if delta is not None and place is not None and (shrunk := _shrink(delta, record.texts, place, entered, told)):
            stored.append((record.seq, record.at, shrunk))
        else:
            stored.append(
                (record.seq, record.at, record.event, record.texts) if record.texts else (record.seq, record.at, record.event)
            )
    return _encoder.encode(stored)


def _read_stretches(data: bytes) -> list[tuple[_Unread, TextDelta | None]]:
    """The records, and those read that are deltas of text. Deltas that go on with one before stand beside it, also where a row of
    the log begins with one."""
    found: list[tuple[_Unread, TextDelta | None]] = []
    at = 0.0
    behind: list[str | int | float] = []  # what came since that moment: its times are added when they are asked for
    for line in data.split(b"\n"):
        if line.startswith(b'"'):
            texts = _texts_decoder.decode(b"[%b]" % line)
            found[-1][0].texts += texts
            behind += texts
            continue
        for record in _unread_decoder.decode(line):
            is_text = bytes(record.event).startswith(_TEXT_DELTA)
            delta = msgspec.json.decode(record.event, type=TextDelta) if is_text else None
            last = found[-1][1] if found else None
            goes_on = delta is not None and last is not None and continues(last, delta)
            before = _add_times(at, behind) if goes_on or isinstance(record.at, int) else at
            at = before + record.at / _FINE if isinstance(record.at, int) else record.at
            behind = list(record.texts)
            if delta is not None and goes_on:
                time = [_measure(before, at)] if at != before else []
                found[-1][0].texts += [delta.delta, *time, *record.texts]
            else:
                found.append((record, delta))
    return found


def _add_times(at: float, texts: Texts) -> float:
    for text in texts:
        if not isinstance(text, str):
            at = _add_time(at, text)
    return at


def _shrink(
    delta: TextDelta, texts: Texts, place: int, entered: Sequence[Item], told: dict[tuple[int, int], int]
) -> _EnteredText | None:
    """The delta and those that go on with it, if the item has their texts behind those that were `told`."""
    said, times = _split_texts(texts)
    said.insert(0, delta.delta)
    times.insert(0, 0)
    if min(times) < 0:
        return None
    message, words, start = entered[place], "".join(said), told.get((place, delta.index), 0)
    assert isinstance(message, Message)
    lengths = list(map(len, said))
    if delta.logprobs is not UNSET or max(lengths) > _MOST or not _read_part(message, delta.index).startswith(words, start):
        return None
    told[place, delta.index] = start + len(words)
    return _EnteredText(place, delta.index, start, _write_numbers(lengths), _write_numbers(times))


def _split_texts(texts: Texts) -> tuple[list[str], list[int]]:
    """The texts, and the time since the one before for each; -1 if one is no number that can be written."""
    if len(texts) % 2 == 0 and {*map(type, texts[::2])} <= {str} and {*map(type, texts[1::2])} <= {int}:
        said, times = cast(list[str], list(texts[::2])), cast(list[int], list(texts[1::2]))
        if times and 0 < min(times) <= max(times) <= _MOST:
            return said, times  # as those of a slow stream are
    told, since = list[str](), list[int]()
    for text in texts:
        if isinstance(text, str):
            told.append(text)
            since.append(0)
        elif since:
            since[-1] = text if isinstance(text, int) and 0 < text <= _MOST else -1
        else:
            return [""], [-1]
    return told, since


def _write_numbers(numbers: Sequence[int]) -> str:
    zero = ord(_ZERO)
    return "".join([chr(number + zero) for number in numbers])


def _read_part(message: Message, index: int) -> str:
    part = message.content[index] if index < len(message.content) else None
    return part.text if isinstance(part, OutputText) else ""


def _add_texts(records: list[Recorded], texts: Texts) -> None:
    seq, at, event = records[-1].seq, records[-1].at, records[-1].event
    if isinstance(event, TextDelta):
        event = replace(event, logprobs=UNSET)
    for text in texts:
        if isinstance(text, str):
            seq += 1
            records.append(Recorded(seq, at, replace(event, delta=text)))
        else:
            at = _add_time(at, text)
            records[-1] = Recorded(seq, at, records[-1].event)


_COMPACT: Final = frozenset(
    {RunStarted, TurnEnded, RunEnded, RunSpec, Limits, Completion, Sampling, Window, ToolChoice, Caller, Usage}
)
_FINE: Final = 4_194_304
# Numbers are written as the characters from this one on, which JSON has as they are, up to those that are no characters.
_ZERO: Final = "#"
_MOST: Final = 0xD000
_TEXT_DELTA: Final = b'{"type":"text_delta",'
_PART: Final = 1 / PARTS_OF_SECOND
_encoder = msgspec.json.Encoder(enc_hook=to_wire)
_decoder = msgspec.json.Decoder(list[_Stored], dec_hook=from_wire)
_unread_decoder = msgspec.json.Decoder(list[_Unread])
_texts_decoder = msgspec.json.Decoder(list[str | int | float])
