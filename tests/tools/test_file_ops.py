"""Files are touched inside the working directory only, whole or not at all, and what a model is shown of them fits."""

import errno
import os
import stat
import threading
from difflib import unified_diff
from pathlib import Path
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.kit.waiting import PATIENCE

from mainspring.app.engine import Engine
from mainspring.core.errors import InvalidRequest
from mainspring.core.items import FunctionCallOutput, Json
from mainspring.core.redact import REDACTED
from mainspring.features.governance.scope_policies import PathPolicy
from mainspring.providers.scripted import Scripted, call, calls, say
from mainspring.tools.builtin import file_ops
from mainspring.tools.builtin.file_ops import MARK, FileOps, locate
from mainspring.tools.builtin.patching import apply_diff
from mainspring.tools.contract import ToolContext, ToolResult
from mainspring.tools.registry import Registry
from mainspring.tools.safe_open import open_folder

SECRET = "the secret of the house"


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """A folder beside the working directory whose name begins like it."""
    folder = tmp_path / "work-evil"
    folder.mkdir()
    (folder / "secret.txt").write_text(SECRET)
    return folder


@pytest.fixture
def work(tmp_path: Path, outside: Path) -> Path:
    folder = tmp_path / "work"
    (folder / "src" / "deep").mkdir(parents=True)
    (folder / "readme.md").write_text("# Title\n\nSome words.\nMore words.\n")
    (folder / "src" / "main.py").write_text("def main():\n    return 1\n")
    (folder / "src" / "deep" / "other.txt").write_text("words (a+b)\n")
    (folder / "inside").symlink_to("src/main.py")
    (folder / "out").symlink_to(outside)
    (folder / "secret").symlink_to(outside / "secret.txt")
    (folder / "round").symlink_to("round")
    return folder


async def done(
    work: Path, operation: str, path: str = ".", /, *, allowed: tuple[str, ...] | None = None, **more: Any
) -> ToolResult:
    context = ToolContext(working_dir=work, path_allowlist=allowed)
    return await Registry([FileOps()]).validated_execute("file_ops", {"operation": operation, "path": path, **more}, context)


async def output(work: Path, operation: str, path: str = ".", /, **more: Any) -> str:
    result = await done(work, operation, path, **more)
    assert result.success, result.error
    assert isinstance(result.output, str)
    return result.output


async def error(work: Path, operation: str, path: str = ".", /, **more: Any) -> str:
    result = await done(work, operation, path, **more)
    assert not result.success, result.output
    return result.error


async def test_a_file_is_read(work: Path) -> None:
    assert await output(work, "read", "readme.md") == "# Title\n\nSome words.\nMore words.\n"
    assert await output(work, "read", "inside") == "def main():\n    return 1\n", "a link that stays inside is followed"
    assert await output(work, "read", str(work / "src" / "main.py")) == "def main():\n    return 1\n"


async def test_a_range_of_lines_is_read_and_says_how_to_go_on(work: Path) -> None:
    text = await output(work, "read", "readme.md", start_line=2, end_line=3)
    assert text == "\nSome words.\n[lines 2 to 3 of 4; go on with start_line=4]"
    assert await output(work, "read", "readme.md", start_line=4) == "More words.\n[lines 4 to 4 of 4]"
    assert await error(work, "read", "readme.md", start_line=5) == "`readme.md` has 4 lines; there is no line 5"
    assert "end_line=2 is before start_line=3" in await error(work, "read", "readme.md", start_line=3, end_line=2)


async def test_a_long_file_comes_in_pages_that_lose_nothing(work: Path) -> None:
    lines = [f"line {number} {'x' * (number % 90)}" for number in range(1, 1001)]
    (work / "long.txt").write_text("\n".join(lines))
    seen: list[str] = []
    while len(seen) < len(lines):
        page = (await output(work, "read", "long.txt", start_line=len(seen) + 1)).split("\n")
        assert len("\n".join(page)) <= file_ops.PAGE_CHARS + 100
        seen += page[:-1]
    assert seen == lines


async def test_a_line_longer_than_a_page_is_cut(work: Path) -> None:
    (work / "line.txt").write_text("x" * 20_000)
    assert await output(work, "read", "line.txt") == f"{'x' * 12_000} [... 8000 more characters]"


async def test_only_the_beginning_of_a_huge_file_is_read(work: Path) -> None:
    # The limit falls into the middle of a character.
    (work / "huge.txt").write_bytes(b"a\n" + "é".encode() * file_ops.MOST_BYTES)
    assert "only the first 8,388,608 bytes of the file were read" in await output(work, "read", "huge.txt", end_line=1)
    assert "too many to patch" in await error(work, "patch", "huge.txt", old="a", new="b")


@pytest.mark.parametrize("data", [b"\x89PNG\0\0", b"caf\xe9", b"x" * 9000 + b"\0"])
async def test_a_binary_file_is_described_and_not_shown(work: Path, data: bytes) -> None:
    (work / "logo.png").write_bytes(data)
    told = f"`logo.png` is binary (image/png, {len(data):,} bytes); only UTF-8 text can be used"
    assert await error(work, "read", "logo.png") == told
    assert await error(work, "patch", "logo.png", old="a", new="b") == told


async def test_an_empty_file_and_an_empty_folder_say_so(work: Path) -> None:
    (work / "empty.txt").touch()
    (work / "nothing").mkdir()
    assert await output(work, "read", "empty.txt") == "`empty.txt` is empty."
    assert await output(work, "list", "nothing") == "`nothing` is empty."


async def test_what_is_no_file_is_refused_in_words(work: Path) -> None:
    os.mkfifo(work / "pipe")
    with anyio.fail_after(PATIENCE):
        assert await error(work, "read", "pipe") == "`pipe` is no regular file; name a file, as `list` shows them"
        assert "no regular file" in await error(work, "write", "pipe", content="x")
    assert await error(work, "read", "src") == "`src` is a folder; name a file, as `list` shows them"
    assert "there is no file `nowhere.txt`" in await error(work, "read", "nowhere.txt")
    assert "is no file" in await error(work, "read", ".")
    assert "Not a directory" in await error(work, "list", "readme.md")
    assert "Not a directory" in await error(work, "write", "readme.md/x", content="x")
    assert "cannot be used: File name too long" in await error(work, "read", "x" * 300)


OUTSIDE = [
    "../work-evil/secret.txt", "src/../../work-evil/secret.txt", "/etc/passwd", "out/secret.txt", "secret", "out", "..", "src/..",
    "readme.md\0", "\0", "/proc/self/environ", "//etc/passwd", "./../work-evil", "src/deep/../../../work-evil/secret.txt",
    "\ud800",
]  # fmt: skip


@pytest.mark.parametrize("path", OUTSIDE)
async def test_nothing_outside_the_working_directory_is_touched(work: Path, outside: Path, path: str) -> None:
    before = os.listdir(outside)
    for operation in ("read", "write", "list", "search", "patch"):
        result = await done(work, operation, path, content="mine", pattern="secret", old="secret", new="mine")
        assert not result.success
        assert SECRET not in result.error
    assert os.listdir(outside) == before
    assert (outside / "secret.txt").read_text() == SECRET


async def test_a_path_that_only_begins_like_the_working_directory_is_outside(work: Path, outside: Path) -> None:
    told = await error(work, "read", str(outside / "secret.txt"))
    assert told.endswith("leads out of the working directory; only files inside it are touched")


async def test_a_link_in_circles_is_refused(work: Path) -> None:
    assert "`round`" in await error(work, "read", "round")


PARTS = st.one_of(
    st.sampled_from(
        ["..", ".", "", "/", "out", "inside", "secret", "round", "src", "deep", "main.py", "~", "\0", "a\nb", "work-evil"]
    ),
    st.text(max_size=8),
)


@given(parts=st.lists(PARTS, max_size=8), is_absolute=st.booleans())
def test_every_path_is_refused_or_lies_inside(
    tmp_path_factory: pytest.TempPathFactory, parts: list[str], is_absolute: bool
) -> None:
    base = tmp_path_factory.getbasetemp() / "contained"
    root = base / "work"
    if not root.exists():
        (root / "src" / "deep").mkdir(parents=True)
        (base / "work-evil").mkdir()
        (root / "out").symlink_to(base / "work-evil")
        (root / "inside").symlink_to("src")
        (root / "secret").symlink_to("/etc/passwd")
        (root / "round").symlink_to("round")
    path = ("/" if is_absolute else "") + "/".join(parts)
    try:
        place = locate(path, ToolContext(working_dir=root))
    except InvalidRequest:
        return
    real = os.path.realpath(root)
    assert place.root == real
    assert not {"", ".", ".."} & set(place.parts)
    assert os.path.commonpath([real, os.path.realpath(os.path.join(real, *place.parts))]) == real


def test_a_folder_swapped_for_a_link_after_the_look_leads_nowhere(work: Path, outside: Path) -> None:
    place = locate("src/main.py", ToolContext(working_dir=work))
    (work / "src").rename(work / "gone")
    (work / "src").symlink_to(outside)
    with pytest.raises(OSError, match="src") as caught, open_folder(place.root, place.parts[:-1]):
        pass
    assert caught.value.errno in (errno.ENOTDIR, errno.ELOOP)


@pytest.mark.slow
async def test_links_swapped_in_all_the_time_never_lead_out(work: Path, outside: Path) -> None:
    over = threading.Event()

    def swap() -> None:
        while not over.is_set():
            (work / "src").rename(work / "kept")
            (work / "src").symlink_to(outside)
            (work / "src").unlink()
            (work / "kept").rename(work / "src")

    (work / "src" / "secret.txt").write_text("a harmless house")
    before = (outside / "secret.txt").stat()
    swapper = threading.Thread(target=swap)
    swapper.start()
    try:
        for _ in range(300):
            assert SECRET not in str(await done(work, "read", "src/secret.txt"))
            await done(work, "patch", "src/secret.txt", old="house", new="house")
    finally:
        over.set()
        await anyio.to_thread.run_sync(swapper.join)
    after = (outside / "secret.txt").stat()
    assert (after.st_ino, after.st_mtime_ns, os.listdir(outside)) == (before.st_ino, before.st_mtime_ns, ["secret.txt"])


async def test_allowed_paths_hold_by_whole_names_and_where_links_lead(work: Path) -> None:
    (work / "src-evil").mkdir()
    (work / "src-evil" / "x").write_text("x")
    (work / "src" / "away").symlink_to("../readme.md")
    assert (await done(work, "read", "src/main.py", allowed=("src",))).success
    assert (await done(work, "read", "inside", allowed=("src",))).success
    for path in ("src-evil/x", "readme.md", ".", "src/away"):
        result = await done(work, "read", path, allowed=("src",))
        assert result.error == f"`{path}` is not among the allowed paths; allowed: `src`"
    assert (await done(work, "read", "readme.md", allowed=())).error.endswith("allowed: none")


async def test_without_a_working_directory_nothing_is_touched() -> None:
    result = await FileOps().execute({"operation": "list", "path": "."}, ToolContext())
    assert result.error == "no working directory is set, so no file can be touched; the operator can set one"


async def test_a_file_is_written_with_the_folders_on_the_way(work: Path) -> None:
    assert await output(work, "write", "new/folder/a.txt", content="é\n") == "Wrote `new/folder/a.txt` (3 bytes)."
    assert (work / "new/folder/a.txt").read_bytes() == "é\n".encode()
    assert await output(work, "write", "new/folder/a.txt", content="") == "Replaced `new/folder/a.txt` (0 bytes)."
    assert os.listdir(work / "new/folder") == ["a.txt"], "nothing else is left there"


async def test_a_replaced_file_keeps_its_mode_and_a_link_to_it(work: Path) -> None:
    target = work / "src" / "main.py"
    target.chmod(0o750)
    await output(work, "write", "inside", content="new\n")
    assert (target.read_text(), stat.S_IMODE(target.stat().st_mode)) == ("new\n", 0o750)
    assert (work / "inside").is_symlink()
    await output(work, "patch", "src/main.py", old="new", new="newer")
    assert (target.read_text(), stat.S_IMODE(target.stat().st_mode)) == ("newer\n", 0o750)


async def test_a_reader_of_a_file_that_is_being_replaced_sees_one_of_both(work: Path) -> None:
    target = work / "page.txt"
    old, new = "a" * 500_000, "b" * 500_000
    target.write_text(old)
    with target.open() as reading:
        await output(work, "write", "page.txt", content=new)
        assert reading.read() == old
    assert target.read_text() == new


async def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = sorted(os.listdir(work))

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    told = await error(work, "write", "readme.md", content="lost")
    assert "No space left on device" in told
    assert (work / "readme.md").read_text().startswith("# Title")
    assert sorted(os.listdir(work)) == before


async def test_a_file_that_is_too_large_is_not_written(work: Path) -> None:
    assert "more than the 8,388,608 a file may have" in await error(work, "write", "big.txt", content="x" * 8_388_609)
    assert not (work / "big.txt").exists()


async def test_a_folder_is_listed_to_the_depth_asked_for(work: Path) -> None:
    (work / ".git").mkdir()
    (work / ".git" / "config").touch()
    top = [".git/", "inside  (link)", "out  (link)", "readme.md  33 bytes", "round  (link)", "secret  (link)", "src/"]
    assert (await output(work, "list")).split("\n") == top
    assert await output(work, "list", "src") == "src/deep/\nsrc/main.py  25 bytes"
    deep = await output(work, "list", ".", depth=3)
    assert deep.split("\n") == [*top, "src/deep/", "src/deep/other.txt  12 bytes", "src/main.py  25 bytes"]
    assert await output(work, "list", ".git") == ".git/config  0 bytes"


async def test_a_long_list_is_cut(work: Path) -> None:
    for number in range(310):
        (work / "src" / "deep" / f"{number:03}").touch()
    lines = (await output(work, "list", "src/deep")).split("\n")
    assert lines[299:] == ["src/deep/299  0 bytes", "[only the first 300 are shown; list a folder of it, or a smaller depth]"]


async def test_a_name_that_is_no_text_is_shown_as_well_as_it_can_be(work: Path) -> None:
    os.mknod(os.fsencode(work / "src") + b"/caf\xe9")
    assert "src/caf\ufffd  0 bytes" in await output(work, "list", "src")
    assert await output(work, "search", "src", pattern="main") == "src/main.py:1: def main():"


async def test_text_is_searched_as_it_is_and_as_an_expression(work: Path) -> None:
    assert await output(work, "search", pattern="(a+b)") == "src/deep/other.txt:1: words (a+b)"
    assert await output(work, "search", pattern=r"\bwords", regex=True) == (
        "readme.md:3: Some words.\nreadme.md:4: More words.\nsrc/deep/other.txt:1: words (a+b)"
    )
    assert await output(work, "search", pattern="words", glob="*.txt") == "src/deep/other.txt:1: words (a+b)"
    assert await output(work, "search", "readme.md", pattern="Some") == "readme.md:3: Some words."
    assert await output(work, "search", "src", pattern="Title") == "Nothing in `src` matches."


async def test_a_search_does_not_follow_links_or_read_binaries(work: Path) -> None:
    (work / "binary").write_bytes(b"secret\0")
    assert await output(work, "search", pattern="secret") == "Nothing in `.` matches."


async def test_a_search_shows_no_more_than_fits(work: Path) -> None:
    (work / "many.txt").write_text("match\n" * 200)
    (work / "wide.txt").write_text(f"{'x' * 5000}needle{'x' * 5000}\n" * 99)
    lines = (await output(work, "search", "many.txt", pattern="match")).split("\n")
    assert lines[99:] == ["many.txt:100: match", "[there may be more; narrow `pattern`, `path` or `glob`]"]
    wide = await output(work, "search", "wide.txt", pattern="needle")
    assert len(wide) <= file_ops.PAGE_CHARS + 100
    assert wide.startswith(f"wide.txt:1: {'x' * 80}needlexxx")


async def test_a_search_that_makes_no_sense_says_why(work: Path) -> None:
    assert "is no regular expression: missing )" in await error(work, "search", pattern="(", regex=True)
    assert await error(work, "search", "nowhere", pattern="x") == "`nowhere` cannot be searched: No such file or directory"
    assert await error(work, "search") == "`search` needs `pattern`, the text to look for"


async def test_an_expression_that_never_ends_is_stopped(work: Path) -> None:
    (work / "trap.txt").write_text("a" * 60 + "!\n")
    question: Json = {"operation": "search", "path": "trap.txt", "pattern": "(a+)+$", "regex": True}
    result = await FileOps(search_seconds=0.5).execute(question, ToolContext(working_dir=work))
    assert result.error == "the search did not end within 0.5 s; simplify the pattern, or search fewer files"


async def test_a_text_that_stands_there_once_is_replaced(work: Path) -> None:
    assert await output(work, "patch", "readme.md", old="Some words", new="No word") == "Patched `readme.md` (30 bytes)."
    assert (work / "readme.md").read_text() == "# Title\n\nNo word.\nMore words.\n"
    assert await error(work, "patch", "readme.md", old="missing", new="x") == (
        "`old` is not in the file; quote it exactly, spaces and line ends included"
    )
    (work / "twice").write_text("a a")
    assert (
        await error(work, "patch", "twice", old="a", new="b") == "`old` is in the file 2 times; quote more of what surrounds it"
    )
    assert await error(work, "patch", "twice", old="", new="b") == "`old` is empty; quote the text to replace"
    assert await error(work, "patch", "twice", old="a") == "`patch` needs `old` and `new`, or `diff`"
    assert (work / "twice").read_text() == "a a"


async def test_a_file_keeps_its_line_ends(work: Path) -> None:
    (work / "dos.txt").write_bytes(b"one\r\ntwo\r\nthree\r\n")
    await output(work, "patch", "dos.txt", old="one\ntwo", new="1\n2")
    await output(work, "patch", "dos.txt", diff="@@ -2,2 +2,2 @@\n 2\n-three\n+3\n")
    assert (work / "dos.txt").read_bytes() == b"1\r\n2\r\n3\r\n"
    (work / "mixed.txt").write_bytes(b"one\r\ntwo\n")
    await output(work, "patch", "mixed.txt", old="two", new="2")
    assert (work / "mixed.txt").read_bytes() == b"one\r\n2\n"


TEN = "".join([f"{number}\n" for number in range(1, 11)])


@pytest.mark.parametrize(
    ("text", "diff", "expected"),
    [
        (TEN, "--- a/x\n+++ b/x\n@@ -2,2 +2,3 @@\n 2\n-3\n+three\n+and more\n", TEN.replace("3\n", "three\nand more\n")),
        (TEN, "@@ -2 +2 @@\n-2\n+two\n@@ -9 +9 @@\n-9\n+nine\n", TEN.replace("2\n", "two\n").replace("9\n", "nine\n")),
        (TEN, "@@ -99,1 +99,1 @@\n-7\n+seven\n", TEN.replace("7\n", "seven\n")),
        (TEN, "@@ -0,0 +1,1 @@\n+first\n@@ -10,1 +11,1 @@\n-10\n+ten\n", "first\n" + TEN.replace("10\n", "ten\n")),
        (TEN, "@@ -1,3 +0,0 @@\n-1\n-2\n-3\n", TEN.removeprefix("1\n2\n3\n")),
        ("a\n\nb\n", "@@ -1,3 +1,3 @@\n a\n\n-b\n+c\n", "a\n\nc\n"),
        ("a\nb", "@@ -1,2 +1,2 @@\n-a\n+x\n b\n", "x\nb"),
        ("a\nb", "@@ -2 +2 @@\n-b\n\\ No newline at end of file\n+c\n", "a\nc\n"),
        ("a\nb\n", "@@ -2 +2 @@\n-b\n+c\n\\ No newline at end of file\n", "a\nc"),
        ("", "@@ -0,0 +1 @@\n+a\n", "a\n"),
        # The same line in several places: each hunk counts from where those before it have moved it.
        ("x\nx\nx\nx\n", "@@ -0,0 +1,2 @@\n+a\n+b\n@@ -3 +5 @@\n-x\n+y\n@@ -4 +6 @@\n-x\n+z\n", "a\nb\nx\nx\ny\nz\n"),
        ("a\n", "@@ -1 +0,0 @@\n-a\n", ""),
        ("a\n-- b\n", "@@ -1,2 +1 @@\n a\n--- b\n", "a\n"),
    ],
)
def test_a_diff_is_applied(text: str, diff: str, expected: str) -> None:
    assert apply_diff(text, diff) == expected


@pytest.mark.parametrize(
    ("diff", "told"),
    [
        (
            "@@ -2 +2 @@\n-2\n+two\n@@ -5,2 +5,1 @@\n 5\n-seven\n",
            "hunk 2 of 2 (line 5) does not fit: its lines are not in the file as it is quoted; nothing was changed",
        ),
        ("@@ -9 +9 @@\n-9\n+nine\n@@ -2 +2 @@\n-2\n+two\n", "hunk 2 of 2 (line 2) does not fit"),
        ("@@ -40,0 +41 @@\n+x\n", "hunk 1 of 1 (line 40) adds behind a line that is not there"),
        ("no diff at all", "`diff` has no hunk"),
        ("@@ here @@\n-1\n", "`@@ here @@` heads no hunk"),
        ("@@ -1 +1 @@\n*1\n", "`*1` is no line of a hunk"),
        ("@@ -1 +1 @@\n-1\n+one\n--- a/y\n+++ b/y\n@@ -1 +1 @@\n-1\n+2\n", "`diff` changes more than one file"),
    ],
)
async def test_a_diff_that_does_not_fit_changes_nothing_and_names_the_hunk(work: Path, diff: str, told: str) -> None:
    (work / "ten.txt").write_text(TEN)
    assert (await error(work, "patch", "ten.txt", diff=diff)).startswith(told)
    assert (work / "ten.txt").read_text() == TEN


def test_a_hunk_that_fits_in_several_places_is_refused() -> None:
    with pytest.raises(InvalidRequest, match=r"hunk 1 of 1 \(line 9\) does not fit: its lines stand in 2 places"):
        apply_diff("a\nb\na\n", "@@ -9 +9 @@\n-a\n+x\n")


LINES = st.lists(st.sampled_from(["a", "b", "", " c", "-", "+d", "@"]), max_size=12)


@given(LINES, LINES)
def test_the_diff_of_two_texts_leads_from_one_to_the_other(before: list[str], after: list[str]) -> None:
    old, new = ("".join([f"{line}\n" for line in lines]) for lines in (before, after))
    diff = "".join(unified_diff(old.splitlines(keepends=True), new.splitlines(keepends=True)))
    if diff:
        assert apply_diff(old, diff) == new


async def test_an_operation_without_what_it_needs_says_so(work: Path) -> None:
    assert await error(work, "write", "a.txt") == "`write` needs `content`; send the whole text, empty if it is to be so"
    assert "is not one of" in await error(work, "delete", "a.txt")
    missing = await Registry([FileOps()]).validated_execute("file_ops", {"operation": "read"}, ToolContext(working_dir=work))
    assert '"path" is a required property' in missing.error


def test_each_operation_says_what_it_does() -> None:
    (definition,) = Registry([FileOps()]).definitions
    schema: Json = definition.parameters or {}
    assert set(schema["properties"]["operation"]["enum"]) == set(definition.operations)
    assert {name for name, effects in definition.operations.items() if "write" in effects} == {"write", "patch"}
    assert all("description" in described for described in schema["properties"].values())
    assert (schema["required"], schema["additionalProperties"]) == (["operation", "path"], False)


@pytest.mark.requirement("C-T6", "C-T9")
async def test_a_model_works_with_files_through_the_engine(work: Path) -> None:
    script = Scripted(
        calls(
            call("file_ops", operation="write", path="todo.txt", content="milk\n"),
            call("file_ops", operation="read", path="../work-evil/secret.txt"),
        ),
        call("file_ops", operation="patch", path="todo.txt", old="milk", new="bread"),
        say("Done.", expect="Patched `todo.txt`"),
    )
    registry = Registry([FileOps()], context=ToolContext(working_dir=work))
    async with Engine(script, tools=registry) as engine:
        run = await engine.run("Go.", concurrency=1)
    assert run.text == "Done."
    assert (work / "todo.txt").read_text() == "bread\n"
    assert [item.is_error is True for item in run.output if isinstance(item, FunctionCallOutput)] == [False, True, False]


async def test_changes_at_once_to_one_file_are_all_in_it(work: Path) -> None:
    (work / "list.txt").write_text("".join([f"line {number}\n" for number in range(20)]))
    tool, context = FileOps(), ToolContext(working_dir=work)

    async def change(number: int) -> None:
        params = {"operation": "patch", "path": "list.txt", "old": f"line {number}\n", "new": f"changed {number}\n"}
        assert (await tool.execute(params, context)).success

    async with anyio.create_task_group() as tasks:
        for number in range(20):
            tasks.start_soon(change, number)
    assert (work / "list.txt").read_text() == "".join([f"changed {number}\n" for number in range(20)])


async def test_what_may_not_be_seen_is_neither_listed_nor_found(work: Path) -> None:
    (work / ".env").write_text("TOKEN=abc\n")
    (work / "notes.txt").write_text("TOKEN is in .env\n")
    paths = PathPolicy([work], ["**/.env"])
    tool, context = FileOps(flaw=paths.flaw), ToolContext(working_dir=work)
    listed = await tool.execute({"operation": "list", "path": ".", "depth": 3}, context)
    found = await tool.execute({"operation": "search", "path": ".", "pattern": "TOKEN"}, context)
    assert ".env" not in str(listed.output)
    assert "notes.txt" in str(listed.output)
    assert str(found.output) == "notes.txt:1: TOKEN is in .env"


CONFIG = "host = 'a'\npassword = 'hunter2-and-more'\nport = 1\n"


async def test_a_file_that_was_read_without_its_secrets_is_not_written_back_without_them(work: Path) -> None:
    """The model does what models do: it reads the file, and writes all that it saw with one line changed."""
    (work / "config.toml").write_text(CONFIG)
    reading = call("file_ops", operation="read", path="config.toml")
    seen = CONFIG.replace("'hunter2-and-more'", MARK)
    script = Scripted(
        reading,
        call("file_ops", operation="write", path="config.toml", content=seen.replace("port = 1", "port = 2")),
        call("file_ops", operation="patch", path="config.toml", old=f"password = {MARK}\nport = 1", new="port = 2"),
        call("file_ops", operation="patch", path="config.toml", old="port = 1", new="port = 2"),
        say("Done."),
    )
    tools = Registry([FileOps()], context=ToolContext(working_dir=work))
    async with Engine(script, tools=tools) as engine:
        run = await engine.run("Set the port to 2.")
    told = [str(item.output) for item in run.output if isinstance(item, FunctionCallOutput)]
    assert told[0] == seen, "what it was shown"
    assert "`config.toml` is not written: `[redacted]` stands for a secret that you are not shown" in told[1]
    assert "quote only lines without it" in told[2]
    assert told[3].startswith("Patched")
    assert (work / "config.toml").read_text() == CONFIG.replace("port = 1", "port = 2")


def test_the_mark_is_the_one_that_the_engine_makes() -> None:
    assert MARK == REDACTED


async def test_a_file_that_has_the_mark_itself_can_be_changed(work: Path) -> None:
    (work / "log.txt").write_text(f"key {MARK}\nline 2\n")
    await output(work, "write", "log.txt", content=f"key {MARK}\nline 3\n")
    await output(work, "patch", "log.txt", old=f"key {MARK}", new=f"a key: {MARK}")
    assert (work / "log.txt").read_text() == f"a key: {MARK}\nline 3\n"
    for more in ({"content": f"{MARK}{MARK}"}, {"content": f"{MARK}\n{MARK}\n"}):
        assert "is not written" in await error(work, "write", "log.txt", **more)
    assert "is not written" in await error(work, "patch", "log.txt", diff=f"@@ -2 +2 @@\n-line 3\n+line {MARK}\n")
    assert "is not written" in await error(work, "write", "new.txt", content=f"key {MARK}")
    assert not (work / "new.txt").exists()
