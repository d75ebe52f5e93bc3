"""What every reader of a model's reply shares: bytes in, events out, no I/O.

`LineSplitter` and `EventSplitter` split a stream into chunks and give the same chunks however the bytes were cut. `ReplyReader`
is the skeleton around them: it reports errors inside the stream, decides when an answer is complete, and checks that the stream
did not end before. A wire format adds what its chunks mean.
"""

import re
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from typing import ClassVar, Final, Generic, TypeVar

import msgspec

from mainspring.core.errors import BadOutput, ProviderError, Unavailable
from mainspring.core.events import Finish, ModelEvent
from mainspring.core.items import Adaptation, Usage
from mainspring.core.json_values import SMALL_BYTES
from mainspring.providers.http_client import EVENT_BYTES, Http, check_values
from mainspring.providers.http_failures import build_stream_error, parse_complaint
from mainspring.providers.json_text import parse_count, repair
from mainspring.providers.turn import TurnEvents

T = TypeVar("T")
TurnT = TypeVar("TurnT", bound=TurnEvents)

NULL = msgspec.Raw(b"null")
_MADE_NO_CALL: Final = re.compile("malformed|unexpected_tool|too_many_tool")
_FILTERED: Final = re.compile(
    "filter|safety|language|toxic|sensitive|prohibit|block|recitation|guardrail|violat|refus|moderat|spii"
)
_TOO_LONG: Final = re.compile(
    "(?<!time_)(?<!timeout_)(?<!deadline_)(?<!rate_)(?<!quota_)(?:limit|exceed)|length|max|truncat|too_long|incomplete"
)
_GAVE_UP: Final = re.compile(
    r"error|abort|cancel|time|deadline|rate_|quota|insufficient|fail|interrupt|disconnect|exception|overload|unavailable"
    r"|(?:\A|_)other\Z"
)


class LineSplitter:
    """Splits a stream of JSON lines into (no name, line), without empty lines. Reads each byte a fixed number of times.

    Raises `BadOutput` for a line of more than `limit` bytes.
    """

    __slots__ = ("_limit", "_size", "_tail")

    def __init__(self, limit: int = EVENT_BYTES) -> None:
        self._tail: list[bytes] = []
        self._size = 0
        self._limit = limit

    def feed(self, data: bytes) -> Iterator[tuple[bytes, bytes]]:
        """The chunks that `data` completes."""
        lines = self._split(data)
        self._size = self._size + len(data) if not lines else len(self._tail[0]) if self._tail else 0
        self._check_size()
        for line in lines:
            if line := line.strip():
                yield b"", line

    def split_one(self, data: bytes) -> bytes | None:
        """The chunk without a name that the data is, if it certainly is one; else it is to be fed."""
        return None

    def end(self) -> Iterator[tuple[bytes, bytes]]:
        """The chunk that the end of the stream completes."""
        yield from self.feed(b"\n\n")

    def _split(self, data: bytes) -> list[bytes]:
        cut = data.rfind(b"\n")
        if cut < 0:
            self._tail.append(data)
            return []
        whole, rest = data[:cut], data[cut + 1 :]
        if self._tail:
            whole = b"".join([*self._tail, whole])
        self._tail = [rest] if rest else []
        return whole.split(b"\n")

    def _check_size(self) -> None:
        if self._size > self._limit:
            raise BadOutput(f"the backend sent a chunk of more than {self._limit} bytes; no answer is that long")


class EventSplitter(LineSplitter):
    """Splits an event stream into (event name, data). Lines end in LF or CRLF; whole events may end in CR.

    A line that is a bare JSON object counts as an event of its own, and so does the field `error`: backends that fail in the
    middle of a stream forget its format. The limit is that of an event.
    """

    __slots__ = ("_data", "_name")

    def __init__(self, limit: int = EVENT_BYTES) -> None:
        super().__init__(limit)
        self._data: list[bytes] = []
        self._name = b""

    def split_one(self, data: bytes) -> bytes | None:
        """An event of one line, as almost all pieces of a slow stream are."""
        if data[:6] != b"data: " or data[-2:] != b"\n\n" or self._size or self._data or self._name or len(data) > self._limit:
            return None
        chunk = data[6:-2]
        return chunk if b"\n" not in chunk and b"\r" not in chunk else None

    def feed(self, data: bytes) -> Iterator[tuple[bytes, bytes]]:
        self._size += len(data)
        if self._size > self._limit:
            self._check_size()
        if data.startswith(b"data: ") and data.endswith(b"\n\n") and not (self._tail or self._data or self._name):
            # Whole events of one line each, as almost all pieces are.
            events = data[6:-2].split(b"\n\ndata: ")
            if data.count(b"\n") == 2 * len(events) and b"\r" not in data:
                self._size = 0
                for event in events:
                    if event:
                        yield b"", event
                return
        if b"\r\r" in data and b"\n" not in data:
            data = data.replace(b"\r", b"\n")
        for line in self._split(data):
            if line.endswith(b"\r"):
                line = line[:-1]
            if line.startswith(b"data:"):
                value = line[6:] if line.startswith(b" ", 5) else line[5:]
                if self._data and self._data[-1].endswith(b"}") and value.startswith((b"{", b"[DONE]")):
                    # No object goes on like this: some write no empty line between events.
                    yield self._name, b"\n".join(self._data)
                    self._data, self._size = [], len(value)
                self._data.append(value)
            elif not line:
                if self._data:
                    name, event = self._name, b"\n".join(self._data)
                    self._data = []
                    if event:
                        yield name, event
                self._name = b""
                self._size = len(self._tail[0]) if self._tail else 0
            else:
                yield from self._field(line)

    def _field(self, line: bytes) -> Iterator[tuple[bytes, bytes]]:
        name, _, value = line.removeprefix(b"\xef\xbb\xbf").partition(b":")
        value = value.removeprefix(b" ")
        if name == b"event":
            self._name = value
        elif name == b"data":
            self._data.append(value)
        elif name == b"error":
            yield b"error", value
        elif line.startswith(b"{"):
            yield self._name, line


class ReplyReader(ABC, Generic[TurnT]):
    """Reads one reply and turns it into events. It is fed bytes, cut anywhere.

    A wire format implements `_take`, which tells the turn what one chunk says. It sets `_finish` when the backend says why it
    stopped, `_usage` when it counts tokens, and `is_over` when nothing can follow.
    """

    chunk_name: ClassVar[str]
    """What the format calls a chunk, for error messages."""
    may_be_whole: ClassVar[bool] = False
    """Whether a body of type `application/json` is a whole answer, from a backend that does not stream."""

    def __init__(self, turn: TurnT, http: Http, chunks: LineSplitter | None = None) -> None:
        self._turn = turn
        self._http = http
        self._chunks = chunks or EventSplitter()
        self._finish: Finish | None = None
        self._usage: Usage | None = None
        # The first half of a character, of which the next piece has the second.
        self._half = b""
        self.is_over = False

    @abstractmethod
    def _take(self, data: bytes) -> None:
        """Tells the turn what one chunk says. Raises a `ProviderError` for an error of the backend's."""

    def _take_whole(self, data: bytes) -> None:
        """Tells the turn what a whole answer says."""
        self._take(data)

    def _take_done(self) -> None:
        """`[DONE]` has come: nothing follows."""
        self.is_over = True

    @property
    def notes(self) -> list[Adaptation]:
        """What was done so that the answer could be had and read."""
        return self._turn.notes

    @property
    def usage(self) -> Usage | None:
        """What the backend has counted so far."""
        return self._usage

    @property
    def finish(self) -> Finish | None:
        """Why the backend has stopped, if it has."""
        return self._finish

    @property
    def has_closed_thought(self) -> bool:
        return self._turn.has_closed_thought

    @property
    def has_unopened_thought(self) -> bool:
        return self._turn.has_unopened_thought

    @property
    def is_unclosed(self) -> bool:
        return self._turn.is_unclosed

    @property
    def is_worded(self) -> bool:
        return self._turn.is_worded

    @property
    def says_nothing(self) -> bool:
        """The answer has ended in good order, without words and without calls."""
        return self._finish == "stop" and self._turn.is_mute

    @property
    def is_complete(self) -> bool:
        """The backend has said why it stopped. At most the usage is still to come."""
        return self._finish is not None

    def feed(self, data: bytes) -> Iterable[ModelEvent]:
        """The events that these bytes complete; none if the answer is over."""
        if self.is_over:
            return ()
        chunk = self._chunks.split_one(data)
        return self._read_one(chunk) if chunk and chunk[:6] != b"[DONE]" else self._read(self._chunks.feed(data))

    def read_whole(self, data: bytes) -> Iterator[ModelEvent]:
        """The events of an answer that came in one piece, which may be a stream that does not say that it is one."""
        if data.lstrip().startswith((b"data:", b"event:", b":")):
            yield from self.feed(data)
            return
        check_values(data, self._http.url)
        self._take_whole(data)
        self._finish = self._finish or "stop"
        self.is_over = True
        yield from self._turn.take()

    def cut(self) -> None:
        """Ends an answer that is too long. Raises `BadOutput` if so far it says nothing."""
        if self._turn.is_silent:
            error = BadOutput(f"{self._http.url} sends and sends, and says nothing; is this a model backend?")
            error.retryable = False
            raise error
        self._finish, self.is_over = self._finish or "length", True

    def end(self) -> Iterator[ModelEvent]:
        """The last events. Raises `Unavailable` if the backend never said that it was done."""
        if not self.is_over:
            # A broken connection leaves half a chunk, which is not bad output.
            with suppress(BadOutput):
                yield from self._read(self._chunks.end())
        if self._finish is None:
            raise Unavailable(f"the stream of {self._http.url} ended before the answer was complete; try again")
        self._turn.end(self._finish, self._usage)
        yield from self._turn.take()

    def _read_one(self, chunk: bytes) -> list[ModelEvent]:
        """What `_read` makes of one chunk: the token path."""
        try:
            if len(chunk) > SMALL_BYTES:
                check_values(chunk, self._http.url)
            self._take(chunk)
        except ProviderError:
            if self._finish is None:
                raise
            self.is_over = True
            return []
        return self._turn.take()

    def _read(self, chunks: Iterator[tuple[bytes, bytes]]) -> Iterator[ModelEvent]:
        try:
            for name, data in chunks:
                if name == b"error":
                    raise self._failure(data)
                if data.startswith(b"[DONE]"):
                    self._take_done()
                else:
                    if len(data) > SMALL_BYTES:
                        check_values(data, self._http.url)
                    self._take(data)
                    yield from self._turn.take()
                if self.is_over:
                    return
        except ProviderError:
            # An error behind a complete answer takes nothing of it back.
            if self._finish is None:
                raise
            self.is_over = True

    def _decode(self, decoder: "msgspec.json.Decoder[T]", data: bytes) -> T:
        try:
            return decoder.decode(data)
        except (ValueError, RecursionError) as error:
            data = self._join_halves(data)
            with suppress(ValueError, RecursionError):
                return decoder.decode(repair(data))
            raise BadOutput(
                f"{self._http.url} sent what is no {self.chunk_name} ({error}): `{self._http.quote(data)}`; check the base URL"
            ) from error

    def _join_halves(self, data: bytes) -> bytes:
        """The piece without half a character at the end of its text, which begins that of the next."""
        data = _BEFORE_HALF.sub(lambda _: self._half, data, count=1) if self._half else data
        half = _FIRST_HALF.search(data)
        self._half = b"" if half is None else half[0]
        return data if half is None else data[: half.start()] + data[half.end() :]

    def _failure(self, data: bytes) -> ProviderError:
        """The error that the backend reports within its answer."""
        return build_stream_error(parse_complaint(data, self._http.redact), self._http.url)


def read_finish(reason: str, known: Mapping[str, Finish], url: str) -> Finish:
    """Why an answer has ended. A word that no table has is understood by what it speaks of: only what is certainly no end in
    good order is none. Raises `Unavailable` if the backend has given up."""
    word = reason.lower()
    if (finish := known.get(word)) is not None:
        return finish
    has_failed = _MADE_NO_CALL.search(word) is not None
    if not has_failed and _FILTERED.search(word):
        return "content_filter"
    if not has_failed and _TOO_LONG.search(word):
        return "length"
    if has_failed or _GAVE_UP.search(word):
        raise Unavailable(f"{url} gave up on the answer (`{reason}`); try again, or look at the server's log")
    return "stop"


def read_counts(usage: msgspec.Raw) -> defaultdict[str, int]:
    """The numbers in a vendor's usage by name, those of an object in it as `OBJECT.NAME`, and 0 for all that is not there.

    What cannot be read is left out: no answer is lost because of its usage.
    """
    counts: defaultdict[str, int] = defaultdict(int)
    with suppress(ValueError):
        for name, value in (_counts.decode(usage) or {}).items():
            named = {f"{name}.{inner}": count for inner, count in value.items()} if isinstance(value, dict) else {name: value}
            counts |= {path: tokens for path, count in named.items() if (tokens := parse_count(count)) is not None}
    return counts


# Of a surrogate pair in JSON: a half that ends a text, and where one begins with the other.
_FIRST_HALF: Final = re.compile(rb'\\u[dD][89abAB][0-9a-fA-F]{2}(?=")')
_BEFORE_HALF: Final = re.compile(rb'(?<=")(?=\\u[dD][c-fC-F][0-9a-fA-F]{2})')
_counts: Final = msgspec.json.Decoder(dict[str, object] | None)
