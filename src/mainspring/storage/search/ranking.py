"""What is found, in order, and one order out of several."""

from collections.abc import Sequence
from typing import Final

from msgspec import Struct

# How much a place in one list weighs beside the same place in the other; the usual constant of reciprocal rank fusion.
FUSION: Final = 60


class Hit(Struct, frozen=True):
    """A row that fits; the higher the score, the better."""

    id: str
    score: float


def fuse_rankings(*rankings: Sequence[Hit], weights: Sequence[float] = ()) -> list[Hit]:
    """One ranking out of several, by the places that each gives."""
    scores: dict[str, float] = {}
    for ranking, weight in zip(rankings, weights or [1.0] * len(rankings), strict=True):
        for place, hit in enumerate(ranking, start=1):
            scores[hit.id] = scores.get(hit.id, 0.0) + weight / (FUSION + place)
    return [Hit(id, score) for id, score in sorted(scores.items(), key=lambda item: item[1], reverse=True)]
