"""Taking files out is an escape of its own: the sandbox leaves a link, and it is the engine that follows it."""

import os
import time
from contextlib import chdir
from pathlib import Path

import pytest

from mainspring.core.errors import InvalidRequest, MainspringError
from mainspring.tools.sandbox import workspace_files as files
from mainspring.tools.sandbox.local import LocalSandbox
from mainspring.tools.sandbox.workspace_files import Owner

NOBODY = Owner()
MOST = 1 << 20


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    """A workspace beside something that is none of its business."""
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "secret").write_text("belongs to the host")
    folder = tmp_path / "workspace"
    folder.mkdir()
    return folder


@pytest.fixture
def outside(workspace: Path) -> Path:
    return workspace.parent / "outside"


def test_what_lies_deep_is_counted_and_nothing_is_put_there(workspace: Path) -> None:
    with chdir(workspace):
        for _ in range(1_000):
            os.mkdir("folder")
            os.chdir("folder")
        Path("file").write_bytes(b"x" * 100_000)
    used = files.measure_usage(workspace, 2_000)
    assert (used.entries, used.is_whole) == (1_001, True)
    assert used.size >= 100_000
    assert files.list_files(workspace, 2_000).is_complete is False
    assert files.measure_usage(workspace, 500).entries == 501
    with pytest.raises(InvalidRequest, match="in at most 64 folders"):
        files.write(workspace, "d/" * 66 + "f", b"x", NOBODY, MOST)
    assert os.listdir(workspace) == ["folder"]
    files.remove_tree(workspace)


def test_folders_too_many_and_too_long_to_be_looked_into_are_told(workspace: Path) -> None:
    with chdir(workspace):
        for _ in range(1_000):
            os.mkdir("f" * 250)
            os.chdir("f" * 250)
    assert files.measure_usage(workspace, 2_000).is_whole is False
    files.remove_tree(workspace)


@pytest.mark.parametrize("target", ["absolute", "relative"])
def test_a_link_is_not_followed(workspace: Path, outside: Path, target: str) -> None:
    (workspace / "link").symlink_to(outside / "secret" if target == "absolute" else "../outside/secret")
    assert (workspace / "link").read_text() == "belongs to the host", "which an ordinary open would give away"
    with pytest.raises(InvalidRequest, match="leads over a link"):
        files.read(workspace, "link", MOST)
    with pytest.raises(InvalidRequest, match="leads over a link"):
        files.write(workspace, "link", b"overwritten", NOBODY, MOST)
    assert (outside / "secret").read_text() == "belongs to the host"


def test_a_linked_folder_on_the_way_is_not_followed(workspace: Path, outside: Path) -> None:
    (workspace / "folder").symlink_to(outside)
    opened = os.open(workspace / "folder" / "secret", os.O_RDONLY | os.O_NOFOLLOW)
    assert os.read(opened, 100) == b"belongs to the host", "which guarding the last part alone would give away"
    os.close(opened)
    with pytest.raises(InvalidRequest, match="leads over a link"):
        files.read(workspace, "folder/secret", MOST)
    with pytest.raises(InvalidRequest, match="leads over a link"):
        files.write(workspace, "folder/made/file", b"x", NOBODY, MOST)
    assert os.listdir(outside) == ["secret"]


def test_links_are_neither_listed_nor_counted_through(workspace: Path, outside: Path) -> None:
    (workspace / "folder").symlink_to(outside)
    (workspace / "own").write_text("x")
    assert [entry.path for entry in files.list_files(workspace, 100).entries] == ["own"]
    assert files.measure_usage(workspace, 100).entries == 2


def test_removing_a_workspace_leaves_what_its_links_point_to(workspace: Path, outside: Path) -> None:
    (workspace / "deep" / "er").mkdir(parents=True)
    (workspace / "deep" / "er" / "folder").symlink_to(outside)
    (workspace / "link").symlink_to(outside / "secret")
    os.link(outside / "secret", workspace / "hard")
    files.remove_tree(workspace)
    assert not workspace.exists()
    assert (outside / "secret").read_text() == "belongs to the host"


def test_a_pipe_is_neither_waited_for_nor_read(workspace: Path) -> None:
    os.mkfifo(workspace / "pipe")
    with pytest.raises(InvalidRequest, match="not a regular file"):
        files.read(workspace, "pipe", MOST)
    with pytest.raises(InvalidRequest):
        files.write(workspace, "pipe", b"x", NOBODY, MOST)
    assert files.list_files(workspace, 100).entries == ()


def test_a_folder_is_no_file(workspace: Path) -> None:
    (workspace / "folder").mkdir()
    with pytest.raises(InvalidRequest, match="not a regular file"):
        files.read(workspace, "folder", MOST)
    with pytest.raises(InvalidRequest, match="Is a directory"):
        files.write(workspace, "folder", b"x", NOBODY, MOST)
    (workspace / "file").write_text("x")
    with pytest.raises(InvalidRequest, match="Not a directory"):
        files.write(workspace, "file/below", b"x", NOBODY, MOST)


def test_a_shorter_file_replaces_a_longer_one_whole(workspace: Path) -> None:
    files.write(workspace, "a/b", b"long content", NOBODY, MOST)
    files.write(workspace, "a/b", b"short", NOBODY, MOST)
    assert files.read(workspace, "a/b", MOST) == b"short"


def test_a_file_that_grows_while_it_is_read_is_cut_off_by_an_error(workspace: Path) -> None:
    (workspace / "large").write_bytes(b"x" * 11)
    with pytest.raises(InvalidRequest, match="has 11 bytes, more than the 10"):
        files.read(workspace, "large", 10)


def test_a_list_is_cut_and_says_so(workspace: Path) -> None:
    for number in range(20):
        (workspace / str(number)).touch()
    cut, whole = files.list_files(workspace, 19), files.list_files(workspace, 20)
    assert (len(cut.entries), cut.is_complete) == (19, False)
    assert (len(whole.entries), whole.is_complete) == (20, True)


def test_holes_in_files_do_not_count_as_used(workspace: Path) -> None:
    with (workspace / "sparse").open("wb") as file:
        file.truncate(1 << 30)
    assert files.measure_usage(workspace, 100).size < 1 << 20


async def test_folders_swapped_for_links_all_the_time_never_give_anything_away(sandbox: LocalSandbox, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "file").write_text("belongs to the host")
    code = f"""
import os
os.mkdir('folder'); open('folder/file', 'w').write('own'); os.symlink({str(outside)!r}, 'link')
print('swapping', flush=True)
while True:
    os.rename('folder', 'kept'); os.rename('link', 'folder'); os.rename('folder', 'link'); os.rename('kept', 'folder')
"""
    seen: set[str] = set()
    async with sandbox.acquire() as lease:
        output = lease.run(code)
        await anext(output)
        # On a busy machine it may take a while until both have had their turns.
        deadline, tries = time.monotonic() + 60, 0
        while (tries < 1500 or len(seen) < 2 or "own" not in seen) and time.monotonic() < deadline:
            tries += 1
            try:
                seen.add(files.read(lease._slot.place.workspace, "folder/file", MOST).decode())
            except MainspringError as error:
                seen.add(type(error).__name__)
        await output.aclose()
    assert "own" in seen
    assert seen - {"own"}, "the link was met at least once"
    assert seen <= {"own", "InvalidRequest", "NotFound"}
