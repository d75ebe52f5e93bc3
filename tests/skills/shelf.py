"""Skills on disk, as their authors write them."""

from collections.abc import Sequence
from pathlib import Path

from mainspring.features.skills.skill_definition import Skill
from mainspring.features.skills.skill_scope import find_refusal


def put(folder: Path, name: str, front: str = "", body: str = "Do it well.", **files: str) -> Path:
    """A folder with a `SKILL.md` of this name; `front` is more front matter, `files` are beside it (`__` for `/`)."""
    place = folder / name
    place.mkdir(parents=True, exist_ok=True)
    (place / "SKILL.md").write_text(f"---\nname: {name}\ndescription: Knows {name}.\n{front}---\n{body}\n")
    for path, text in files.items():
        file = place / path.replace("__", "/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return place


def list_left(active: Sequence[Skill], tools: Sequence[str]) -> tuple[str, ...]:
    """The tools of which the skills leave something: all of it, or an operation that one of them names."""
    operations = ["", *[pattern.partition(":")[2] for each in active for pattern in each.allowed_tools or () if ":" in pattern]]
    return tuple([tool for tool in tools if any(find_refusal(active, tool, each) is None for each in operations if each != "*")])


def skill(name: str, allowed: tuple[str, ...] | None = None, disallowed: tuple[str, ...] = ()) -> Skill:
    return Skill(name, f"Knows {name}.", "Do it well.", Path(name), allowed_tools=allowed, disallowed_tools=disallowed)
