"""`mainspring init`: a small project that works, to be changed into one's own."""

import os
import sys
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from shlex import quote
from shutil import which
from typing import Annotated, Final

import typer

from mainspring.cli.output import name_program
from mainspring.core.errors import InvalidRequest

SUFFIX: Final = ".template"
RUN: Final = """\
  mainspring agents run order-desk --input question='Where is A-17?' \\
    --model scripted:order-desk.json
  # With a real model:
  mainspring agents run order-desk --input question='Where is A-17?'"""


def init(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Where to; made if need be. Default: here.")] = Path(),
) -> None:
    """
    Writes a small project that works: settings, an agent, a tool, and a test with a scripted model. No file is overwritten.

        mainspring init my-project

    Three things make an agent: the settings (`mainspring.toml`), the agent (`agents/order-desk.yaml`) and its tool
    (`shop_tools.py`). Change them to your own.
    """
    found = _list_files(files("mainspring.features.agents") / "first_project")
    taken = [name for name in found if (folder / name).exists()]
    if taken:
        raise InvalidRequest(
            f"`{folder / taken[0]}` is there already; name another folder: mainspring init FOLDER", param="folder"
        )
    try:
        for name, file in found.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(file.read_bytes())
    except OSError as error:
        raise InvalidRequest(
            f"`{folder}` cannot be written: {error.strerror}; name a folder of your own", param="folder"
        ) from None
    for name in found:
        print(f"  {folder / name}")
    enter = "" if folder == Path() else f"cd {quote(str(folder))} && "
    print(f"\nTry it:\n  {enter}{find_python()} -m unittest\n{name_program(RUN)}")


def find_python() -> str:
    """What starts a Python that has Mainspring: `python` is another one where it was installed by pipx or the like."""
    found = which("python")
    is_ours = found is not None and os.path.realpath(os.path.dirname(found)) == os.path.realpath(os.path.dirname(sys.executable))
    return "python" if is_ours else quote(sys.executable)


def _list_files(folder: Traversable, prefix: str = "") -> dict[str, Traversable]:
    listed: dict[str, Traversable] = {}
    for entry in sorted(folder.iterdir(), key=lambda each: each.name):
        if entry.is_dir():
            listed |= _list_files(entry, f"{prefix}{entry.name}/")
        elif entry.name.endswith(SUFFIX):
            listed[f"{prefix}{entry.name.removesuffix(SUFFIX)}"] = entry
    return listed
