"""Recall in steps: first an index that costs few tokens, then a timeline, then everything, each with ids to go on from."""

from typing import Final, Literal, assert_never, get_args

from msgspec import Struct

from mainspring.core.tokens import tokens_of_text
from mainspring.features.memory.observation import Observation

Level = Literal["index", "timeline", "full"]
LEVELS: Final[tuple[Level, ...]] = get_args(Level)

TOP_K: Final = 10
MOST_RESULTS: Final = 100
INDEX_CHARS: Final = 80
INDEX_TAGS: Final = 3
TIMELINE_CHARS: Final = 300


class Recalled(Struct, frozen=True):
    """Something remembered: its text at the level asked for, the observations behind it, and about how many tokens it has."""

    text: str
    citations: tuple[str, ...]
    tokens: int
    score: float = 0.0

    @property
    def citation(self) -> str:
        return self.citations[0]


def render_recalled(seen: Observation, level: Level, score: float) -> Recalled:
    text = render_observation(seen, level)
    return Recalled(text, (seen.id,), tokens_of_text(text), round(score, 6))


def render_observation(seen: Observation, level: Level) -> str:
    """The observation in so many words."""
    what = f"{seen.agent_name}/{seen.event_type}"
    match level:
        case "index":
            tags = f" [{', '.join(seen.tags[:INDEX_TAGS])}]" if seen.tags else ""
            return f"{what}{tags} {_line(seen.said, INDEX_CHARS)}"
        case "timeline":
            return f"{seen.moment} {seen.agent_name} {_line(seen.said, TIMELINE_CHARS)}"
        case "full":
            tags = f" [{', '.join(seen.tags)}]" if seen.tags else ""
            return f"{seen.moment} {what}{tags}\n{seen.said}"
        case _:
            assert_never(level)


def _line(text: str, most: int) -> str:
    """The beginning of a text, on one line."""
    line = " ".join(text[: 4 * most].split())
    return line if len(line) <= most else line[: most - 3] + "..."
