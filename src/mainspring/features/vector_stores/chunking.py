"""Cuts the text of a file into passages: as long as asked for, overlapping, each on one page, and with the line it begins at."""

import re
from collections.abc import Iterator, Sequence
from typing import Annotated, Final, Literal

from msgspec import Meta, Struct

from mainspring.core.errors import InvalidRequest
from mainspring.tools.documents.document_reader import DocumentPage

# About how many characters a token has.
TOKEN_CHARS: Final = 4
_WORD = re.compile(r"\S")
# Up to the last of its kind.
_SENTENCES = re.compile(r".*[.!?]\s", re.DOTALL)
_WORDS = re.compile(r".*\s", re.DOTALL)


class StaticChunking(Struct, frozen=True):
    """How long passages are, and how much of one is in the next."""

    max_chunk_size_tokens: Annotated[int, Meta(ge=100, le=4096)] = 800
    chunk_overlap_tokens: Annotated[int, Meta(ge=0)] = 400


class AutoStrategy(Struct, frozen=True, tag_field="type", tag="auto"):
    """The default."""


class StaticStrategy(Struct, frozen=True, tag_field="type", tag="static"):
    static: StaticChunking


ChunkingStrategy = AutoStrategy | StaticStrategy


class ShownStrategy(Struct, frozen=True):
    """A strategy as clients are told of it: there is but one kind."""

    static: StaticChunking
    type: Literal["static"] = "static"


def resolve_chunking(strategy: ChunkingStrategy | None, param: str = "chunking_strategy") -> StaticChunking:
    """Raises `InvalidRequest` for an overlap of more than half."""
    chosen = strategy.static if isinstance(strategy, StaticStrategy) else StaticChunking()
    if chosen.chunk_overlap_tokens > chosen.max_chunk_size_tokens // 2:
        told = "chunk_overlap_tokens must be at most half of max_chunk_size_tokens"
        raise InvalidRequest(told, param=f"{param}.static.chunk_overlap_tokens", code="integer_above_max_value")
    return chosen


class Passage(Struct, frozen=True):
    """A piece of a file: where it is, counting from 1, and what it says."""

    text: str
    line: int
    page: int | None = None


def cut_passages(pages: Sequence[DocumentPage], chunking: StaticChunking) -> Iterator[Passage]:
    """The passages of a file, in order; pages without text have none."""
    size, overlap = chunking.max_chunk_size_tokens * TOKEN_CHARS, chunking.chunk_overlap_tokens * TOKEN_CHARS
    for page in pages:
        for line, text in _cut(page.text, size, overlap):
            if text.strip():
                yield Passage(text, line, page.number)


def _cut(text: str, size: int, overlap: int) -> Iterator[tuple[int, str]]:
    """Pieces of at most so many characters, with the lines at which they begin. They end at lines, else sentences, else words."""
    start, line = 0, 1
    while (word := _WORD.search(text, start)) is not None:
        if word.start() - start >= size:
            # Of what is blank only the last line is part of a passage.
            place = max(start, text.rfind("\n", start, word.start()) + 1, word.start() - size // 2)
            line += text.count("\n", start, place)
            start = place
        end = _find_end(text, start, size)
        yield line, text[start:end]
        if end >= len(text):
            return
        # The next one begins where a line does, or at least a word, within the overlap.
        wanted = max(end - overlap, start + 1)
        place = text.find("\n", wanted, end) + 1 or text.find(" ", wanted, end) + 1 or end
        line += text.count("\n", start, place)
        start = place


def _find_end(text: str, start: int, size: int) -> int:
    if len(text) - start <= size:
        return len(text)
    latest, earliest = start + size, start + size // 2
    for mark in ("\n\n", "\n"):
        if (place := text.rfind(mark, earliest, latest)) >= 0:
            return place + len(mark)
    found = _SENTENCES.match(text, earliest, latest) or _WORDS.match(text, earliest, latest)
    return latest if found is None else found.end()
