"""Skills on disk, as their authors write them."""

from pathlib import Path

from mainspring.features.skills.skill_definition import Skill


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


def skill(name: str, allowed: tuple[str, ...] | None = None, disallowed: tuple[str, ...] = ()) -> Skill:
    return Skill(name, f"Knows {name}.", "Do it well.", Path(name), allowed_tools=allowed, disallowed_tools=disallowed)
