"""What of a question is to be searched for: `rewrite_query` of a search."""

import re
from typing import Final

_APOSTROPHE: Final = "\u2019"
_WORD: Final = re.compile(rf"[^\W_](?:['.{_APOSTROPHE}-]?[^\W_])*")
# They make a question of what is asked for, and say nothing about it.
_QUESTION: Final = """
a about am an and any anyone anything are be been being can could did do does explain find for from get give had has have hello
help hi how i i'd i'm in is it its kindly know like list look me mean means my of on or our please search should show so some tell
than thank thanks that the their them then there these they this those to us want was we were what what's when where where's
which who whom whose why will with would you your
"""
_NEEDLESS: Final = frozenset(_QUESTION.split())


def cut_question(query: str) -> str:
    """The words of a question that say what it is about, as they are written; all of it if there are none."""
    words = [word for word in _WORD.findall(query) if word.lower().replace(_APOSTROPHE, "'") not in _NEEDLESS]
    return " ".join(words) or query
