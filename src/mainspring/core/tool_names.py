"""Names by which models know tools: valid for every backend, and each for one tool only.

Backends take letters, digits, `_` and `-`, and no more than 64 of them. A name that is too long, or taken, ends in a hash of what
the tool really is, so that the same tool has the same name every time.
"""

import re
from collections.abc import Iterator
from hashlib import sha256

LONGEST_NAME = 64
_HASH_CHARS = 8


def clean_name(name: str) -> str:
    return re.sub(r"[^a-zA-Z0-9_-]", "_", name)


def fit_name(name: str, whole: str) -> str:
    """The name, shortened if it must be; `whole` tells apart what is shortened to the same."""
    return name if 0 < len(name) <= LONGEST_NAME else _append_hash(name, whole)


def propose_names(preferred: str, whole: str) -> Iterator[str]:
    """The preferred name, fitted, and then others for as long as the one before is taken."""
    yield fit_name(preferred, whole)
    number = 0
    while True:
        number += 1
        yield _append_hash(preferred, f"{whole}\0{number}")


def _append_hash(name: str, whole: str) -> str:
    return f"{name[: LONGEST_NAME - _HASH_CHARS - 1]}_{sha256(whole.encode()).hexdigest()[:_HASH_CHARS]}"
