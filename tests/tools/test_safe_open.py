"""What is opened lies beneath the root, in one step or from folder to folder."""

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from mainspring.tools.safe_open import FILE, FOLDER, open_beneath, open_folder, open_stepwise

Opening = Callable[[int, str, int], int]


@pytest.fixture(params=[open_beneath, open_stepwise])
def opening(request: pytest.FixtureRequest) -> Opening:
    opening: Opening = request.param
    return opening


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "secret").write_text("secret")
    (tmp_path / "root" / "a" / "b").mkdir(parents=True)
    (tmp_path / "root" / "a" / "b" / "file").write_text("text")
    (tmp_path / "root" / "a" / "link").symlink_to(tmp_path / "outside" / "secret")
    (tmp_path / "root" / "a" / "folder").symlink_to(tmp_path / "outside")
    os.mkfifo(tmp_path / "root" / "pipe")
    return tmp_path / "root"


def code_of(opening: Opening, root: Path, path: str, flags: int = FILE) -> int | None:
    with open_folder(root) as folder:
        try:
            os.close(opening(folder, path, flags))
        except OSError as error:
            return error.errno
    return None


@pytest.mark.parametrize("path", ["a/b/file", "./a//b/./file", "pipe", "a"])
def test_what_lies_beneath_is_opened_and_nothing_is_waited_for(opening: Opening, root: Path, path: str) -> None:
    assert code_of(opening, root, path) is None


@pytest.mark.parametrize(
    ("path", "flags", "code"),
    [
        ("a/link", FILE, errno.ELOOP),
        ("a/folder", FOLDER, errno.ELOOP),
        ("a/folder/secret", FILE, errno.ELOOP),
        ("a/../../outside/secret", FILE, errno.EXDEV),
        ("/etc/passwd", FILE, errno.EXDEV),
        ("a/b/file/below", FILE, errno.ENOTDIR),
        ("a/b/file", FOLDER, errno.ENOTDIR),
        ("missing", FILE, errno.ENOENT),
    ],
)
def test_what_leads_elsewhere_is_not_opened(opening: Opening, root: Path, path: str, flags: int, code: int) -> None:
    assert code_of(opening, root, path, flags) == code


def test_no_descriptor_is_left_open(opening: Opening, root: Path) -> None:
    before = os.listdir("/proc/self/fd")
    for path in ("a/b/file", "a/folder/secret", "missing", "../x"):
        code_of(opening, root, path)
    assert os.listdir("/proc/self/fd") == before


def test_a_root_that_is_a_link_is_refused(root: Path) -> None:
    with pytest.raises(OSError, match=os.strerror(errno.ELOOP)), open_folder(root / "a" / "folder"):
        pass
