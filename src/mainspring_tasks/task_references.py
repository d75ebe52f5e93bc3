"""Do the user's words contradict what a model is about to do? Words are held against the user's own tasks, in any language.

Which task is meant is the model's to say: it knows synonyms, grammar and languages, and we do not. What we can tell without is
whether the words name another task: they have a telling part of its description, and nothing of the one that is to be changed
that the other has not too. Words match by their letters; in scripts without spaces, by pairs of characters. The short lists of
English words decide nothing about other languages: a message that has any word beside them is none of theirs.
"""

import re
import unicodedata
from collections.abc import Sequence
from functools import lru_cache
from typing import Final

from msgspec import Struct

from mainspring.core.normal_form import normalize


class ListedTask(Struct, frozen=True):
    """A task as a list tells it. `number` is its place in that list, counted from 1; 0 if it is in none."""

    id: str
    description: str
    number: int = 0
    status: str = "pending"
    created_at: str = ""
    completed_at: str | None = None


class Seen(Struct, frozen=True):
    """What the person has before their eyes: the tasks shown last, in order, and the one that was changed last."""

    shown: tuple[str, ...] = ()
    recent: str | None = None


class Naming(Struct, frozen=True):
    """How a text names a task: which of its words do, by their places, and how much of the description they are.

    `touched` has also words that are too little of the description to name it.
    """

    touched: frozenset[int] = frozenset()
    places: frozenset[int] = frozenset()
    share: float = 0.0
    is_telling: bool = False


NOTHING_SEEN: Final = Seen()
# Of what somebody writes at length, the beginning says which tasks they mean.
MOST_WORDS: Final = 200

# These name no task, whatever its description is.
_COMMON: Final = frozenset(
    {
        "a", "an", "and", "as", "at", "be", "do", "done", "for", "from", "i", "in", "is", "it", "its", "my", "of", "on",
        "one", "or", "so", "that", "the", "this", "to", "with",
    }
)  # fmt: skip
_SMALL: Final = frozenset(
    {
        "a", "afternoon", "again", "and", "are", "bye", "cheers", "cool", "day", "evening", "fine", "good", "goodbye",
        "great", "have", "hello", "hey", "hi", "how", "it", "lot", "lovely", "morning", "much", "nice", "night", "s", "see",
        "so", "thank", "thanks", "that", "there", "today", "tomorrow", "very", "welcome", "well", "wow", "you",
    }
)  # fmt: skip
_SHOWS: Final = _SMALL.union(
    {
        "all", "display", "do", "list", "me", "my", "of", "on", "please", "show", "task", "tasks", "the", "to", "todo",
        "todos",
    }
)  # fmt: skip
# With these, a message orders something and says nothing else about which task is meant.
_ORDERS: Final = _COMMON.union(
    {
        "can", "change", "check", "complete", "could", "delete", "edit", "finish", "finished", "item", "m", "mark", "now", "off",
        "please", "remove", "rename", "task", "thing", "tick", "update", "ve", "you",
    }
)  # fmt: skip
_QUESTION: Final = re.compile(
    r"\s*(?:what|which|when|where|who|how many|is|are|was|were|do i|did i|have i)\b(?!\s+(?:about|if|it|you|there))"
    r"[^,;.!\n]*\?\s*",
    re.IGNORECASE,
)
_EVERYTHING: Final = re.compile(
    r"\b(?:everything|every (?:single )?(?:task|item|one|thing)|all (?:of )?(?:it|them|these|those|my|the|tasks|items|todos)"
    r"|(?:them|these|those) all)\b",
    re.IGNORECASE,
)
_FORBIDS: Final = re.compile(
    r"\b(?:don['\u2019]?t|do not|never)\s+(?:complete|finish|mark|tick|check|change|rename|update|edit|touch)\b([^,;.!?\n]*)",
    re.IGNORECASE,
)
_QUOTED: Final = re.compile('["\u201c\u201e\u00ab\u300c]([^"\u201c\u201d\u00bb\u300d]+)["\u201c\u201d\u00bb\u300d]')
# A quotation that long is what somebody says; a shorter one may be the name of a task.
_SPEECH_WORDS: Final = 6
_ORDINAL: Final = re.compile(
    r"\b(first|second|third|fourth|fifth|sixth|seventh|eighth|ninth|tenth)\s+(?:one|task|item)\b", re.IGNORECASE
)
_ORDINALS: Final = ["first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth", "tenth"]
# Han, kana and Hangul, where a character says more than a letter does; then the other scripts that write no spaces.
_DENSE: Final = re.compile("[\u30a0-\u30ff\u3400-\u9fff\uac00-\ud7af]")
_UNSPACED: Final = re.compile("[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]+")


def find_conflict(task_id: str, message: str, tasks: Sequence[ListedTask], seen: Seen = NOTHING_SEEN) -> ListedTask | None:
    """The task that the message names instead of this one, or no less; None if it names this one, no other, or nothing."""
    named = {task.id: name_task(message, task.description) for task in tasks}
    own = named.get(task_id, Naming())
    # Where no word is left that only a model could understand, two tasks that fit the same words fit equally well.
    is_all = own.share != 1 and all(at in own.touched or word in _ORDERS for at, word in enumerate(_read_words(message)))
    for task in tasks:
        other = named[task.id]
        # A short word of it is enough if no other task has that: "the dog one".
        is_alone = other.share >= 0.4 and not any(named[each.id].touched & other.places for each in tasks if each != task)
        is_better = (other.is_telling or is_alone) and own.places < other.places
        is_better = is_better or (own.places <= other.places and own.share < other.share == 1)
        is_alike = is_all and own.touched == other.touched
        if task.id != task_id and other.touched and (is_better or is_alike):
            return task
    if own.places or any(naming.is_telling for naming in named.values()):
        return None
    counted = find_counted(message, tasks, seen)
    return counted[0] if counted and all(task.id != task_id for task in counted) else None


def find_other(message: str, own: ListedTask, tasks: Sequence[ListedTask]) -> ListedTask | None:
    """Another task that has any word of the message which this one has not: enough to doubt a yes."""
    said = [word for word in _read_words(message) if word not in _ORDERS and not _has(own, word)]
    return next((task for task in tasks if task.id != own.id and any(_has(task, word) for word in said)), None)


def is_forbidden(message: str, description: str) -> bool:
    """Whether the message says, in English, not to change this task: `don't complete the milk one`."""
    return any(name_task(found[1], description).places for found in _FORBIDS.finditer(message))


def is_quoted(message: str, description: str) -> bool:
    """Whether the message names the task only in what it quotes somebody as saying."""
    rest = _QUOTED.sub(lambda found: " " if len(_read_words(found[1])) >= _SPEECH_WORDS else found[0], message)
    return bool(name_task(message, description).places) and not name_task(rest, description).places


def find_counted(message: str, tasks: Sequence[ListedTask], seen: Seen = NOTHING_SEEN) -> tuple[ListedTask, ...]:
    """The tasks that the message names by their numbers or places in the list that the person has seen last."""
    known = {task.id: task for task in tasks}
    order = [known.get(id) for id in seen.shown] or [task for task in tasks if task.number]
    places = [int(word) for word in _split(message) if word.isdecimal() and len(word) <= 4]
    places += [_ORDINALS.index(found[1].lower()) + 1 for found in _ORDINAL.finditer(message)]
    return tuple([task for place in places if 0 < place <= len(order) and (task := order[place - 1]) is not None])


def find_mentioned(text: str, tasks: Sequence[ListedTask]) -> tuple[ListedTask, ...]:
    """The tasks that a text names, in the order of the words that name them."""
    found = [(min(naming.places), task) for task in tasks if (naming := name_task(text, task.description)).places]
    return tuple([task for _, task in sorted(found, key=lambda pair: pair[0])])


def name_task(text: str, description: str) -> Naming:
    """Which words of the text are words of the description."""
    every = _read_words(description)
    own = [word for word in every if word not in _ORDERS] or [word for word in every if word not in _COMMON]
    fits = {word: [at for at, other in enumerate(_read_words(text)) if _is_same(word, other)] for word in own}
    weights = [_weigh(word) for word in own if fits[word]]
    whole = sum([_weigh(word) for word in own])
    touched = frozenset([at for places in fits.values() for at in places])
    if not weights or (max(weights) < 4 and sum(weights) * 3 < whole):
        return Naming(touched=touched)
    share = sum(weights) / whole
    return Naming(touched, touched, share, max(weights) >= 5 or share >= 0.5)


def is_said(text: str, said: str) -> bool:
    """Whether a text for a task has anything of what was said."""
    is_alike = bool(name_task(said, text).places) or not set(_DENSE.findall(text)).isdisjoint(_DENSE.findall(said))
    return is_alike or text.strip().casefold() in said.casefold()


def is_small_talk(message: str) -> bool:
    """Whether there is nothing but greetings and thanks in it, in English."""
    return all(word in _SMALL for word in _read_words(message))


def is_question(message: str) -> bool:
    """Whether it is a plain English question, which orders nothing."""
    return _QUESTION.fullmatch(message) is not None


def is_everything(message: str) -> bool:
    """Whether it speaks of all tasks, in English."""
    return _EVERYTHING.search(message) is not None


def is_look(message: str) -> bool:
    """Whether it asks for nothing but to be shown the list, in English."""
    return all(word in _SHOWS for word in _read_words(message))


def _has(task: ListedTask, word: str) -> bool:
    return _weigh(word) >= 3 and any(_is_same(word, other) for other in _read_words(task.description))


def _is_same(word: str, other: str) -> bool:
    """Whether two words are forms of one: one in the other, or alike at the beginning. Three letters are in many words: they
    count where one begins with them."""
    short, long = sorted((word, other), key=len)
    if short == long:
        return True
    if len(short) < 3:
        return False
    alike = next((at for at, pair in enumerate(zip(short, long, strict=False)) if pair[0] != pair[1]), len(short))
    is_part = long.startswith(short) or (len(short) > 3 and short in long)
    return (is_part and len(short) * 2 >= len(long)) or (alike >= 4 and alike * 5 >= len(long) * 3)


def _weigh(word: str) -> float:
    return len(word) + 1.5 * len(_DENSE.findall(word))


@lru_cache(maxsize=4096)
def _read_words(text: str) -> tuple[str, ...]:
    """The words of a text; of scripts without spaces, each pair of neighbours."""
    found: list[str] = []
    for word in _split(text):
        rest = _UNSPACED.sub(" ", word).split()
        runs = _UNSPACED.findall(word)
        found += [*rest, *[run[at : at + 2] for run in runs for at in range(max(len(run) - 1, 1))]]
    return tuple(found[:MOST_WORDS])


def _split(text: str) -> list[str]:
    plain = normalize("NFKC", text).casefold()
    return "".join([sign if sign.isalnum() or unicodedata.category(sign)[0] == "M" else " " for sign in plain]).split()
