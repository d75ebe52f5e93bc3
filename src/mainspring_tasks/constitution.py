"""The constitution: the instructions that every decision is made under. A Markdown file; operators may use their own."""

from importlib.resources import files
from pathlib import Path
from typing import Final

from mainspring.core.errors import InvalidRequest

MOST_CHARS: Final = 50_000


def constitution(path: Path | None = None) -> str:
    """The text of the file, by default of the one that comes with Mainspring. Raises `InvalidRequest` if it cannot be used."""
    if path is None:
        return files("mainspring_tasks").joinpath("constitution.md").read_text("utf-8")
    try:
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"the constitution cannot be read from {path}: {error}", param="constitution") from None
    if not text.strip() or len(text) > MOST_CHARS:
        told = f"{path} has {len(text.strip())} characters; a constitution has 1 to {MOST_CHARS}"
        raise InvalidRequest(f"{told}, see the one in mainspring_tasks/constitution.md", param="constitution")
    return text
