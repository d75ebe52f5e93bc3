"""What sandboxes leave that were killed, and whoever removed it, too."""

import os
from pathlib import Path

import pytest

from mainspring.tools.sandbox.leftovers import PREFIX, clear_leftovers, lock_folder


@pytest.mark.parametrize("gone", [(), ("data",), ("data", "views/0"), ("data", "views/0", "views")])
def test_what_is_left_is_removed_though_some_of_it_was_before(tmp_path: Path, gone: tuple[str, ...]) -> None:
    folder = tmp_path / f"{PREFIX}left"
    for name in ("data", "views/0"):
        (folder / name).mkdir(parents=True)
    for name in gone:
        (folder / name).rmdir()
    os.close(lock_folder(folder))
    clear_leftovers(tmp_path)
    assert not folder.exists()
