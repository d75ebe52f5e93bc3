"""What is known of a model: facts as data, so that no adapter has a branch for a model.

What families are known for is in a table. What a backend turns out to refuse is added to the profile of its model when it does.

Much that differs needs no fact, because it can be understood in one way only: missing, repeated or late call ids, arguments as
objects, parallel calls without an index, usage that never comes, reasoning in tags. `Turn` and the readers see to that for every
model alike.
"""

import re

from msgspec import Struct


class ModelProfile(Struct, frozen=True):
    """A model that does not `call` is never sent tools. One that `recalls` wants its reasoning back with the calls it led to. One
    that does not `sample` takes no temperature and no top_p. `refuses` are the fields of a request, or
    parts of fields, that the backend has refused or cannot answer."""

    calls: bool = True
    recalls: bool = False
    samples: bool = True
    refuses: frozenset[str] = frozenset()


PLAIN = ModelProfile()

# The first that fits counts. Names come with an owner before and a size or a quantisation behind them.
FAMILIES: tuple[tuple[str, ModelProfile], ...] = (
    (r"deepseek-(reasoner|v3\.[1-9]|v4)", ModelProfile(recalls=True)),
    (r"smollm-?2|tinyllama|llama-?2\b|phi-?[123]\b|vicuna|falcon(?!-?3)", ModelProfile(calls=False)),
    (r"(^|[/:])gemma(-?2)?(?=$|[:@]|-\d+b)", ModelProfile(calls=False)),
    (r"(^|/)(o[134](-|$)|gpt-5)", ModelProfile(samples=False)),
)
_FAMILIES = tuple([(re.compile(pattern, re.IGNORECASE), profile) for pattern, profile in FAMILIES])


def find_profile(model: str) -> ModelProfile:
    return next((profile for pattern, profile in _FAMILIES if pattern.search(model)), PLAIN)
