"""Which task does a person mean? Their words are held against their own tasks, by rules that a reader can follow.

The order is: the whole description, words of it, a position ("the second one"), a number ("task 2"), and last "it", which is the
task that was spoken of before. The first rule that fits any task decides; where it fits several, nobody picks one of them. A word
that says something counts: a task without it is not meant. A question names nothing, and neither does a message that says what
not to do, unless it is a description as it stands.

Positions count in the list that the person has seen last, if they have seen one.
"""

import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import islice
from typing import Final, Literal

from msgspec import Struct

How = Literal["exact", "partial", "position", "number", "it"]


class ListedTask(Struct, frozen=True):
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

    tasks: tuple[ListedTask, ...] = ()
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
        "a", "about", "actually", "already", "also", "am", "an", "and", "are", "as", "be", "been", "can", "change", "check",
        "complete", "completed", "could", "delete", "do", "done", "edit", "erase", "finally", "finish", "finished", "for", "from",
        "get", "got", "had", "has", "have", "hey", "hi", "i", "i'd", "i'm", "i've", "into", "is", "item", "it's", "just",
        "kindly", "let's", "like", "list", "make", "mark", "me", "my", "now", "number", "of", "off", "ok", "okay", "on",
        "one", "our", "out", "please", "put", "reminder", "remove", "rename", "rid", "set", "so", "task",
        "thank", "thanks", "that", "the", "then", "thing", "this", "tick", "to", "todo", "too", "update", "want", "was", "we",
        "well", "with", "would", "yes", "you",
    }
)  # fmt: skip
_SMALL: Final = frozenset(
    {
        "a", "afternoon", "again", "and", "are", "bye", "cheers", "cool", "day", "evening", "fine", "good", "goodbye", "great",
        "have", "hello", "hey", "hi", "how", "it's", "lot", "lovely", "morning", "much", "nice", "night", "see", "so", "thank",
        "thanks", "that's", "there", "today", "tomorrow", "very", "welcome", "well", "wow", "you",
    }
)  # fmt: skip
# What people have done, as a list would have it.
_DONE: Final = {
    "bought": "buy", "paid": "pay", "sent": "send", "wrote": "write", "made": "make", "took": "take", "met": "meet",
    "told": "tell", "went": "go", "brought": "bring", "did": "do",
}  # fmt: skip
_IT: Final = frozenset({"it", "this", "that", "this one", "that one", "this task", "that task", "the same", "same one"})
_WORD: Final = re.compile(r"[^\W_]+(?:['\u2019][^\W_]+)*")
_NUMBER: Final = re.compile(r"(?:^|\b(?:task|number|no|item|nr)\b\.?\s*|#\s*)(\d{1,4})(?:\.|\b)(?!\s*\w)")
_NOT: Final = re.compile(
    r"\b(?:not|never|except|excepting|besides|but|without|unless|instead|cannot|dont|\w+n['\u2019]t)\b", re.IGNORECASE
)
_QUOTED: Final = re.compile(r"[\"“”«»]([^\"“”«»]+)[\"“”«»]|(?<!\w)['\u2018]([^'\u2019]+)['\u2019](?!\w)")
_CLAUSES: Final = re.compile(r"[,;.!\n]+|(?<=[?\uff1f\u061f])|\band\b|\bthen\b", re.IGNORECASE)
_ASKS: Final = re.compile(
    r".*[?\uff1f\u061f]\s*$|\s*(?:is|are|was|were|did|does|do i|have i|should|shall|what|which|when|where|who|why|how)\b",
    re.IGNORECASE | re.DOTALL,
)
# A question in form, an order in fact.
_ORDERS: Final = re.compile(r"\s*(?:please|ok(?:ay)?|hey|hi|so)?[\s,]*(?:can|could|would|will)\s+you\b", re.IGNORECASE)
_MOMENT: Final = re.compile(r"\b(?:a|one) second\b(?! one| task)", re.IGNORECASE)
_BEFORE: Final = re.compile(r"\b(?:to|into|as|with)\b|:|->|=>")


def resolve(reference: str, tasks: Sequence[ListedTask], seen: Seen = NOTHING_SEEN) -> Match:
    """The tasks that a reference such as `the grocery one`, `buy milk`, `the second` or `2` fits."""
    wanted = _normalize(reference)
    if exact := [task for task in tasks if _normalize_description(task.description) == wanted]:
        return Match(tuple(exact), "exact")
    said = _words(wanted)
    telling = list(islice(dict.fromkeys([word for word in said if word not in _IDLE and word not in _IT]), MOST_WORDS))
    order = _count_tasks(tasks, seen)
    match telling:
        case []:
            is_it = wanted in _IT or any(word in _IT for word in said)
            return Match(tuple([task for task in tasks if task.id == seen.recent]), "it") if is_it else Match()
        case [word] if word in _POSITIONS:
            return _at(_POSITIONS[word], order, "position")
        case [word] if word.isdigit() or word == "no":
            found = _NUMBER.search(wanted)
            return _at(int(found[1]) - 1, order, "number") if found is not None and int(found[1]) else Match()
        case ["no", number] if number.isdigit():
            return _at(int(number) - 1, order, "number") if len(number) <= 4 and int(number) else Match()
        case _:
            partial = [task for task in tasks if all(_has(task, word) for word in telling)]
            return Match(tuple(partial), "partial") if partial else Match()


def find_named_tasks(message: str, tasks: Sequence[ListedTask], seen: Seen = NOTHING_SEEN) -> tuple[Match, ...]:
    """What the message names: all of it as one reference, what it quotes, and each of its clauses. Nothing comes twice."""
    whole = Match() if _is_question(message) else resolve(_without_order(message), tasks, seen)
    if whole.how == "exact":
        return (whole,)  # a part of it may be the description of another
    if _NOT.search(_QUOTED.sub("", message)):
        return ()
    found: list[Match] = []
    for phrase in islice(dict.fromkeys(_phrases(_MOMENT.sub("a moment", message))), MOST_PHRASES):
        match = resolve(phrase, tasks, seen)
        if match.tasks and match not in found:
            found.append(match)
    return tuple(found)


def find_mismatch(task_id: str, message: str, tasks: Sequence[ListedTask], seen: Seen = NOTHING_SEEN) -> Match | None:
    """None if the message names this task and no other could be meant; else the tasks that could be, which may be none."""
    matches = find_named_tasks(message, tasks, seen)
    if any([task.id for task in match.tasks] == [task_id] for match in matches):
        return None
    return next((match for match in matches if any(task.id == task_id for task in match.tasks)), Match())


def is_said(text: str, message: str) -> bool:
    """Whether a text for a task has a word that says something, and that is in the message too."""
    if _normalize(text) in _normalize(message):
        return True
    own = ListedTask("", message)
    telling = [word for word in _words(_normalize(text)) if word not in _IDLE]
    return any(_has(own, word) for word in telling)


def is_small_talk(message: str) -> bool:
    """Whether there is nothing but greetings and thanks in it."""
    return all(word in _SMALL for word in _words(_normalize(message)))


def _phrases(message: str) -> Iterator[str]:
    if not _is_question(message):
        yield _without_order(message)
    for clause in _clauses(message):
        if _is_question(clause):
            continue
        yield from [quoted[1] or quoted[2] for quoted in _QUOTED.finditer(clause)]
        stripped = _without_order(clause)
        yield stripped
        yield _BEFORE.split(stripped, maxsplit=1)[0]


def _clauses(message: str) -> Iterator[str]:
    """The parts of the message, each with what it quotes whole; first all of it, for what it quotes."""
    quotes = [found.span() for found in _QUOTED.finditer(message)]
    begin = 0
    yield message
    for cut in _CLAUSES.finditer(message):
        if not any(start < cut.end() and cut.start() < end for start, end in quotes):
            yield message[begin : cut.start()]
            begin = cut.end()
    yield message[begin:]


def _is_question(clause: str) -> bool:
    return _ASKS.match(clause) is not None and _ORDERS.match(clause) is None


def _without_order(clause: str) -> str:
    """The clause without the idle words that it begins and ends with, so that a whole description is left standing."""
    words = clause.strip().split()
    while words and _normalize(words[0]) in _IDLE:
        words.pop(0)
    while words and _normalize(words[-1]) in _IDLE:
        words.pop()
    return " ".join(words)


def _has(task: ListedTask, word: str) -> bool:
    """Whether a word of the description begins with it; short ones must be the same, lest `at` fit `attic`."""
    word = _DONE.get(word, word)
    stem = word.removesuffix("s").removesuffix("ie") if len(word) > 3 else word
    return any(other == word or (len(stem) >= 3 and other.startswith(stem)) for other in _own(task.description))


@lru_cache(maxsize=4096)
def _own(description: str) -> tuple[str, ...]:
    return tuple(_words(_normalize(description)))


def _count_tasks(tasks: Sequence[ListedTask], seen: Seen) -> tuple[ListedTask | None, ...]:
    """The tasks as the person counts them; None where one is gone that was shown, or is not told."""
    if seen.shown:
        known = {task.id: task for task in tasks}
        return tuple([known.get(id) for id in seen.shown])
    if not any(task.number for task in tasks):
        return tuple(tasks)
    places = {task.number: task for task in tasks if task.number}
    return tuple([places.get(number) for number in range(1, max(places) + 1)])


def _at(place: int, order: Sequence[ListedTask | None], how: How) -> Match:
    found = order[place] if -len(order) <= place < len(order) else None
    return Match((found,), how) if found is not None else Match()


@lru_cache(maxsize=4096)
def _normalize_description(description: str) -> str:
    return _normalize(description)


def _normalize(text: str) -> str:
    return " ".join(text.casefold().replace("\u2019", "'").strip().strip(".!?,;:\"'“”«»").split())


def _words(text: str) -> list[str]:
    return _WORD.findall(text)
