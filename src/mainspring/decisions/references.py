"""Which task does a person mean? Their words are held against their own tasks, by rules that a reader can follow.

The order is: the whole description, words of it, a position ("the second one"), a number ("task 2"), and last "it", which is the
task that was spoken of before. The first rule that fits any task decides; where it fits several, nobody picks one of them.

Positions count in the list that the person has seen last, if they have seen one.
"""

import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import islice
from typing import Final, Literal

from msgspec import Struct

How = Literal["exact", "partial", "position", "number", "it"]


class Listed(Struct, frozen=True):
    """A task as far as references go. `number` is its place in its list, counted from 1; 0 if it is in none."""

    id: str
    description: str
    number: int = 0


class Seen(Struct, frozen=True):
    """What the person has before their eyes: the tasks shown last, in order, and the one that was spoken of last."""

    shown: tuple[str, ...] = ()
    recent: str | None = None


class Match(Struct, frozen=True):
    """The tasks that some words fit, and by which rule; none if no rule fits."""

    tasks: tuple[Listed, ...] = ()
    how: How | None = None


NOTHING_SEEN: Final = Seen()
# Of what somebody writes at length, the beginning says which tasks they mean.
MOST_PHRASES: Final = 24
MOST_WORDS: Final = 32

_POSITIONS: Final = {
    "first": 0, "1st": 0, "second": 1, "2nd": 1, "third": 2, "3rd": 2, "fourth": 3, "4th": 3, "fifth": 4, "5th": 4,
    "sixth": 5, "6th": 5, "seventh": 6, "7th": 6, "eighth": 7, "8th": 7, "ninth": 8, "9th": 8, "tenth": 9, "10th": 9,
    "last": -1,
}  # fmt: skip
# Words of an order that say nothing about which task is meant; a description that has them still counts as a whole.
_IDLE: Final = frozenset(
    {
        "a", "about", "actually", "an", "and", "as", "be", "can", "change", "check", "complete", "completed", "could",
        "delete", "do", "done", "edit", "erase", "finish", "finished", "for", "from", "get", "got", "have", "i", "i'd", "i'm",
        "i've", "into", "is", "item", "just", "kindly", "let's", "like", "list", "make", "mark", "my", "need", "now",
        "number", "of", "off", "ok", "okay", "on", "one", "ones", "our", "out", "please", "put", "reminder", "remove",
        "rename", "rid", "set", "task", "tasks", "that", "the", "thing", "this", "tick", "to", "todo", "update", "want",
        "was", "with", "would", "yes", "you",
    }
)  # fmt: skip
_IT: Final = frozenset({"it", "this", "that", "this one", "that one", "this task", "that task", "the same", "same one"})
_WORD: Final = re.compile(r"[^\W_]+(?:['\u2019][^\W_]+)*")
_NUMBER: Final = re.compile(r"(?:^|\b(?:task|number|no|item|nr)\b\.?\s*|#\s*)(\d{1,4})(?:\.|\b)(?!\s*\w)")
_CLAUSES: Final = re.compile(r"[,;.!?\n]+|\band\b|\bthen\b|\bbut\b")
_BEFORE: Final = re.compile(r"\b(?:to|into|as|with)\b|:|->|=>")
_QUOTED: Final = re.compile(r"[\"“”«»]([^\"“”«»]+)[\"“”«»]|(?<!\w)['\u2018]([^'\u2019]+)['\u2019](?!\w)")


def resolve(reference: str, tasks: Sequence[Listed], seen: Seen = NOTHING_SEEN) -> Match:
    """The tasks that a reference such as `the grocery one`, `buy milk`, `the second` or `2` fits."""
    wanted = _plain(reference)
    if exact := [task for task in tasks if _spelled(task.description) == wanted]:
        return Match(tuple(exact), "exact")
    words = [word for word in _words(wanted) if word not in _IDLE and word not in _POSITIONS and not word.isdigit()]
    words = list(islice(dict.fromkeys(words), MOST_WORDS))
    if partial := _with_words(words, tasks):
        return Match(tuple(partial), "partial")
    order = _order(tasks, seen)
    for word in _words(wanted):
        if word in _POSITIONS:
            return _at(_POSITIONS[word], order, "position")
    if (found := _NUMBER.search(wanted)) is not None:
        return _at(int(found[1]) - 1, order, "number") if int(found[1]) else Match()
    if wanted in _IT or _is_it(wanted):
        return Match(tuple([task for task in tasks if task.id == seen.recent]), "it")
    return Match()


def named(message: str, tasks: Sequence[Listed], seen: Seen = NOTHING_SEEN) -> tuple[Match, ...]:
    """What the message names: all of it as one reference, what it quotes, and each of its clauses. Nothing comes twice."""
    whole = resolve(_without_order(message), tasks, seen)
    if whole.how == "exact":
        return (whole,)  # a part of it may be the description of another
    found: list[Match] = []
    for phrase in islice(dict.fromkeys(_phrases(message)), MOST_PHRASES):
        match = resolve(phrase, tasks, seen)
        if match.tasks and match not in found:
            found.append(match)
    return tuple(found)


def flaw(task_id: str, message: str, tasks: Sequence[Listed], seen: Seen = NOTHING_SEEN) -> Match | None:
    """None if the message names this task and no other could be meant; else the tasks that could be, which may be none."""
    matches = named(message, tasks, seen)
    if any([task.id for task in match.tasks] == [task_id] for match in matches):
        return None
    return next((match for match in matches if any(task.id == task_id for task in match.tasks)), Match())


def _phrases(message: str) -> Iterator[str]:
    yield message
    yield from [quoted[1] or quoted[2] for quoted in _QUOTED.finditer(message)]
    for clause in (message, *_CLAUSES.split(message)):
        stripped = _without_order(clause)
        yield stripped
        yield _BEFORE.split(stripped, maxsplit=1)[0]


def _without_order(clause: str) -> str:
    """The clause without the idle words that it begins and ends with, so that a whole description is left standing."""
    words = clause.strip().split()
    while words and _plain(words[0]) in _IDLE:
        words.pop(0)
    while words and _plain(words[-1]) in _IDLE:
        words.pop()
    return " ".join(words)


def _with_words(words: Sequence[str], tasks: Sequence[Listed]) -> list[Listed]:
    """The tasks that have all of the words that any task has."""
    telling = [word for word in words if any(_has(task, word) for task in tasks)]
    return [task for task in tasks if all(_has(task, word) for word in telling)] if telling else []


def _has(task: Listed, word: str) -> bool:
    """Whether a word of the description begins with it; short ones must be the same, lest `at` fit `attic`."""
    stem = word.removesuffix("s").removesuffix("ie") if len(word) > 3 else word
    return any(other == word or (len(stem) >= 3 and other.startswith(stem)) for other in _own(task.description))


@lru_cache(maxsize=4096)
def _own(description: str) -> tuple[str, ...]:
    return tuple(_words(_plain(description)))


def _order(tasks: Sequence[Listed], seen: Seen) -> tuple[Listed | None, ...]:
    """The tasks as the person counts them; None where one is gone that was shown, or is not told."""
    if seen.shown:
        known = {task.id: task for task in tasks}
        return tuple([known.get(id) for id in seen.shown])
    if not any(task.number for task in tasks):
        return tuple(tasks)
    places = {task.number: task for task in tasks if task.number}
    return tuple([places.get(number) for number in range(1, max(places) + 1)])


def _at(place: int, order: Sequence[Listed | None], how: How) -> Match:
    found = order[place] if -len(order) <= place < len(order) else None
    return Match((found,), how) if found is not None else Match()


def _is_it(wanted: str) -> bool:
    words = _words(wanted)
    return any(word in ("it", "that", "this") for word in words) and all(
        word in _IDLE or word in ("it", "this") for word in words
    )


@lru_cache(maxsize=4096)
def _spelled(description: str) -> str:
    return _plain(description)


def _plain(text: str) -> str:
    return " ".join(text.casefold().replace("\u2019", "'").strip().strip(".!?,;:\"'“”«»").split())


def _words(text: str) -> list[str]:
    return _WORD.findall(text)
