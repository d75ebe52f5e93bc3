"""The operator's word on limits: those that runs have unless told otherwise, and the most that anybody may ask for."""

from collections.abc import Mapping
from typing import Final

from msgspec import Struct
from msgspec.structs import asdict, replace

from mainspring.core.errors import InvalidRequest
from mainspring.core.spec import Limits, pick_least

LIMIT_EXCEEDED: Final = "limit_exceeded"


class OperatorLimits(Struct, frozen=True):
    """By the names of `Limits`. `defaults` replace those of a preset, None being no limit. `resumes` is how often a run is
    taken up again whose process has died."""

    defaults: dict[str, float | None] = {}
    most: dict[str, float] = {}
    resumes: int | None = 3

    def apply(self, preset: Limits) -> Limits:
        """The limits of a preset on this server. Nobody has asked for them, so what is beyond `most` is lowered."""
        return self.hold(replace(preset, **self.defaults) if self.defaults else preset)

    def hold(self, limits: Limits) -> Limits:
        if not self.most:
            return limits
        given = asdict(limits)
        return replace(limits, **{name: pick_least(given[name], most) for name, most in self.most.items()})

    def refuse(self, asked: Mapping[str, float | None], names: Mapping[str, str] | None = None, whose: str = "") -> None:
        """Raises `InvalidRequest` for what is beyond `most`. `names` are those that limits have where they were asked for;
        `whose` says who asks if it is not the request."""
        for name, most in self.most.items():
            if (value := asked.get(name)) is not None and value > most:
                told = (names or {}).get(name, name)
                raise InvalidRequest(
                    f"{told}{whose} is {value:g}, and this server allows at most {most:g}; lower it, or have the operator raise "
                    f"`{name}` in `[limits.most]`",
                    param=told,
                    code=LIMIT_EXCEEDED,
                )


NO_LIMITS: Final = OperatorLimits()
