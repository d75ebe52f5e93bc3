"""What Claude models differ in, family by family: what one asks for, another refuses."""

from typing import Literal

from msgspec import Struct

Effort = Literal["low", "medium", "high", "xhigh", "max"]

EFFORTS: tuple[Effort, ...] = ("low", "medium", "high", "xhigh", "max")
_TO_HIGH: tuple[Effort, ...] = ("low", "medium", "high")
_TO_MAX: tuple[Effort, ...] = ("low", "medium", "high", "max")


class Family(Struct, frozen=True):
    """The models whose names hold `mark`. The defaults are those of the newest.

    `most` is the largest answer they can be asked for, `usual` the one they are asked for if nobody says. `thinking` is how they
    are told to think and `rest` how they are told not to, None where they cannot be. `samples` says that they know a temperature,
    `forces` that a call can be forced, `structures` that their answer can be held to a schema.
    """

    mark: str
    most: int | None = 128_000
    usual: int = 128_000
    thinking: Literal["adaptive", "budget"] | None = "adaptive"
    efforts: tuple[Effort, ...] = EFFORTS
    rest: Literal["disabled", "between_tools"] | None = "disabled"
    samples: bool = False
    forces: bool = True
    structures: bool = True

    def room(self, wanted: int | None) -> int:
        """How long an answer may be: the vendor wants a number, and none beyond what the model can do."""
        if wanted is None:
            return self.usual
        return max(1, wanted if self.most is None else min(wanted, self.most))

    def effort(self, wanted: str | None) -> Effort | None:
        """The effort that is nearest to what is wanted without exceeding it; a model that cannot rest is told to go easy."""
        if wanted in ("none", "minimal"):
            return "low" if self.efforts and (wanted == "minimal" or self.rest is None) else None
        if wanted not in EFFORTS or not self.efforts:
            return None
        return [known for known in self.efforts if EFFORTS.index(known) <= EFFORTS.index(wanted)][-1]


def find_family(model: str) -> Family:
    """The family of a model, whatever a reseller has put around its name. A Claude that is not known is taken for the newest, any
    other model for one that knows the format as it was when others began to copy it."""
    name = model.lower().replace(".", "-")
    return next(family for family in _FAMILIES if family.mark in name)


# The first that fits counts, so what is more special stands above.
_FAMILIES = (
    Family("claude-3-7", 64_000, 16_384, "budget", efforts=(), rest=None, samples=True, structures=False),
    Family("claude-3-5", 8_192, 8_192, None, efforts=(), rest=None, samples=True, structures=False),
    Family("claude-3", 4_096, 4_096, None, efforts=(), rest=None, samples=True, structures=False),
    Family("claude-haiku-4-5", 64_000, 64_000, "budget", efforts=(), rest=None, samples=True),
    Family("claude-sonnet-4-5", 64_000, 64_000, "budget", efforts=(), rest=None, samples=True),
    Family("claude-opus-4-5", 64_000, 64_000, "budget", efforts=_TO_HIGH, rest=None, samples=True),
    Family("claude-sonnet-4-6", efforts=_TO_MAX, samples=True),
    Family("claude-opus-4-6", efforts=_TO_MAX, samples=True),
    Family("claude-opus-4-7"),
    Family("claude-opus-4-8"),
    # Older ones count the room for the answer as used, so a long conversation would not fit beside their longest answer.
    Family("claude-opus-4", 32_000, 16_384, "budget", efforts=(), rest=None, samples=True, structures=False),
    Family("claude-sonnet-4", 64_000, 16_384, "budget", efforts=(), rest=None, samples=True, structures=False),
    Family("claude-opus-5-5", rest=None, forces=False),
    Family("claude-opus-5"),
    Family("claude-sonnet-5-5", rest="between_tools", forces=False),
    Family("claude-sonnet-5"),
    Family("claude-haiku-5"),
    Family("claude-fable-5-1", rest=None, forces=False),
    Family("claude-fable-5-2", rest=None, forces=False),
    Family("claude-fable-5", rest=None),
    Family("claude-mythos-5-1", rest=None, forces=False),
    Family("claude-mythos-5-2", rest=None, forces=False),
    Family("claude-mythos-5", rest=None),
    Family("claude-mythos-preview", efforts=(), rest=None),
    Family("claude", rest=None, forces=False),
    Family("", None, 8_192, "budget", efforts=(), rest=None, samples=True),
)
