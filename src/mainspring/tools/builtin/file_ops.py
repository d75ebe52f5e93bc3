"""The tool `file_ops`: reads, writes, lists, searches and patches files inside the working directory.

A path is resolved first, links included, and must then be in the working directory, and in the allowed paths if there are any. It
is opened without following links, so that nothing swapped in meanwhile leads out. Files are replaced atomically.

What a model reads of a file is redacted: a mark replaces each secret. A text with more marks than the file it replaces was made
from redacted output and is not written, since the secrets would be lost.
"""

import os
import stat
from codecs import getincrementaldecoder
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import islice
from mimetypes import guess_type
from pathlib import Path, PurePath
from threading import Lock
from typing import Annotated, Literal

import msgspec
from anyio import to_thread
from msgspec import UNSET, Meta, Struct, UnsetType

from mainspring.core.errors import CallerError, InvalidRequest
from mainspring.core.items import Effect, Json, Purpose
from mainspring.tools.builtin.patching import apply_diff, replace_once
from mainspring.tools.builtin.subprocess_work import run_in_subprocess
from mainspring.tools.contract import ToolContext, ToolResult
from mainspring.tools.safe_open import DEEPEST, FILE, FoundEntry, open_descriptor, open_folder, walk
from mainspring.tools.safe_read import explain_errors
from mainspring.tools.schema import describe_arguments

MOST_BYTES = 8 << 20
# Below the default limit of a tool output, so that a page is not cut.
PAGE_CHARS = 12_000
MOST_LISTED = 300
MOST_MATCHES = 100
SEARCH_SECONDS = 10.0
MODULE = "mainspring.tools.builtin.search"
# As the engine puts it in the place of a secret.
MARK = "[redacted]"

# Why a path may not be seen, None if it may.
Flaw = Callable[[str], str | None]


class FileArguments(Struct, frozen=True, forbid_unknown_fields=True):
    """What the model may ask for. Which arguments an operation needs is said in words, since models follow that best."""

    operation: Annotated[
        Literal["read", "write", "list", "search", "patch"],
        Meta(
            description="read: a text file. write: a whole file, new or replaced. list: a folder. search: lines of files that "
            "match. patch: change a part of a file."
        ),
    ]
    path: Annotated[str, Meta(description="File or folder, relative to the working directory, which is `.` itself.")]
    content: Annotated[str, Meta(description="write: the whole new text of the file.")] | UnsetType = UNSET
    start_line: Annotated[int, Meta(ge=1, description="read: first line to show, counted from 1.")] | UnsetType = UNSET
    end_line: Annotated[int, Meta(ge=1, description="read: last line to show.")] | UnsetType = UNSET
    depth: Annotated[int, Meta(ge=1, le=DEEPEST, description="list: how many levels to show.")] = 1
    pattern: Annotated[str, Meta(description="search: the text to look for.")] | UnsetType = UNSET
    regex: Annotated[bool, Meta(description="search: take `pattern` as a regular expression.")] = False
    glob: Annotated[str, Meta(description="search: only files whose name or path fits, such as *.py.")] = ""
    old: Annotated[str, Meta(description="patch: the text to replace, exactly as it is, found once in the file.")] | UnsetType = (
        UNSET
    )
    new: Annotated[str, Meta(description="patch: what replaces `old`.")] | UnsetType = UNSET
    diff: Annotated[str, Meta(description="patch: a unified diff of this file, instead of `old` and `new`.")] | UnsetType = UNSET


class FilePlace(Struct, frozen=True):
    """A path as it was asked for, and where that is: these names below this root, none of them a link when it was looked up."""

    asked: str
    root: str
    parts: tuple[str, ...]


class FileOps:
    """Files inside `ToolContext.working_dir`. Its operations are told apart: `file_ops:read`, `file_ops:write`, ..."""

    name = "file_ops"
    description = "Works with the files in the working directory: read, write, list, search, patch."
    effects: tuple[Effect, ...] = ("read", "write")
    operation_effects: dict[str, tuple[Effect, ...]] = {  # noqa: RUF012 (read only, as all of these)
        "read": ("read",),
        "list": ("read",),
        "search": ("read",),
        "write": ("write",),
        "patch": ("read", "write"),
    }
    parameters_schema = describe_arguments(FileArguments)
    purposes: dict[str, Purpose] = {"path": "path"}  # noqa: RUF012
    repeatable = False
    timeout = 30.0

    def __init__(self, *, search_seconds: float = SEARCH_SECONDS, flaw: Flaw | None = None) -> None:
        self._search_seconds = search_seconds
        self._flaw = flaw or _find_no_flaw
        # Held from reading a file to replacing it.
        self._changing = Lock()

    async def execute(self, params: Json, context: ToolContext) -> ToolResult:
        try:
            asked = msgspec.convert(params, FileArguments, strict=False)
            place = await to_thread.run_sync(locate, asked.path, context)
            if asked.operation == "search":
                return ToolResult.ok(await _search(place, asked, self._search_seconds, self._flaw, context.tenant))
            return ToolResult.ok(await to_thread.run_sync(self._perform, place, asked, abandon_on_cancel=True))
        except CallerError as error:
            return ToolResult.fail(error.message)
        except msgspec.ValidationError as error:
            return ToolResult.fail(str(error))

    def _perform(self, place: FilePlace, asked: FileArguments) -> str:
        with explain_errors(place.asked, "the working directory"):
            match asked.operation:
                case "read":
                    start, end = asked.start_line or 1, asked.end_line or None
                    if end is not None and end < start:
                        raise InvalidRequest(f"end_line={end} is before start_line={start}; give a later one, or none")
                    return _render_page(place, _read_content(place), start, end)
                case "list":
                    return _render_listing(place, asked.depth, self._flaw)
                case "write" if isinstance(asked.content, str):
                    with self._changing:
                        return _write(place, asked.content)
                case "patch":
                    with self._changing:
                        return _patch(place, asked)
                case _:
                    raise InvalidRequest(f"`{asked.operation}` needs `content`; send the whole text, empty if it is to be so")


def _find_no_flaw(path: str) -> None:
    return None


def locate(path: str, context: ToolContext) -> FilePlace:
    """Resolves a path. Raises `InvalidRequest` for one that is not allowed."""
    if context.working_dir is None:
        raise InvalidRequest("no working directory is set, so no file can be touched; the operator can set one")
    if "\0" in path or ".." in PurePath(path).parts:
        raise InvalidRequest(f"`{path!r:.200}` is no path here; give one without `..` and NUL, relative to the working directory")
    try:
        root = Path(os.path.realpath(context.working_dir))
        real = Path(os.path.realpath(root / path))
        allowed = None if context.path_allowlist is None else [os.path.realpath(root / each) for each in context.path_allowlist]
    except (ValueError, OSError) as error:
        raise InvalidRequest(f"`{path!r:.200}` is no path: {error}") from error
    if not real.is_relative_to(root):
        raise InvalidRequest(f"`{path}` leads out of the working directory; only files inside it are touched")
    if allowed is not None and not any(real.is_relative_to(each) for each in allowed):
        listed = ", ".join([f"`{each}`" for each in context.path_allowlist or ()]) or "none"
        raise InvalidRequest(f"`{path}` is not among the allowed paths; allowed: {listed}")
    return FilePlace(path, str(root), real.relative_to(root).parts)


class _Text(Struct, frozen=True):
    """A file's text with newlines alone between its lines, and what stands there in the file."""

    text: str
    newline: str
    mode: int
    is_cut: bool


def _read_content(place: FilePlace) -> _Text:
    with open_folder(place.root, place.parts[:-1]) as folder, open_descriptor(folder, _require_name(place), FILE) as descriptor:
        about = os.fstat(descriptor)
        _check_regular(place, about.st_mode)
        with open(descriptor, "rb", closefd=False) as file:
            data = file.read(MOST_BYTES + 1)
    is_cut = len(data) > MOST_BYTES
    try:
        if b"\0" in data:
            raise ValueError
        text = getincrementaldecoder("utf-8")().decode(data[:MOST_BYTES], final=not is_cut)
    except ValueError:
        kind = guess_type(place.asked)[0] or "unknown type"
        raise InvalidRequest(
            f"`{place.asked}` is binary ({kind}, {about.st_size:,} bytes); only UTF-8 text can be used"
        ) from None
    has_returns = "\r\n" in text and text.count("\r\n") == text.count("\n")
    return _Text(text.replace("\r\n", "\n") if has_returns else text, "\r\n" if has_returns else "\n", about.st_mode, is_cut)


def _render_page(place: FilePlace, content: _Text, first: int, last: int | None) -> str:
    """The lines asked for, as many as fit, and a note of what is missing."""
    lines = content.text.removesuffix("\n").split("\n") if content.text else []
    if not lines:
        return f"`{place.asked}` is empty."
    if first > len(lines):
        raise InvalidRequest(f"`{place.asked}` has {len(lines)} lines; there is no line {first}")
    shown: list[str] = []
    room = PAGE_CHARS
    for line in lines[first - 1 : last]:
        if shown and len(line) >= room:
            break
        shown.append(line if len(line) <= PAGE_CHARS else f"{line[:PAGE_CHARS]} [... {len(line) - PAGE_CHARS} more characters]")
        room -= len(line) + 1
    end = first - 1 + len(shown)
    if (first, end) == (1, len(lines)) and not content.is_cut:
        return content.text if len(content.text) <= PAGE_CHARS else shown[0]
    more = f"; go on with start_line={end + 1}" if end < len(lines) else ""
    cut = f"; only the first {MOST_BYTES:,} bytes of the file were read" if content.is_cut else ""
    return "\n".join([*shown, f"[lines {first} to {end} of {len(lines)}{cut}{more}]"])


def _render_listing(place: FilePlace, depth: int, flaw: Flaw) -> str:
    prefix = "".join([f"{part}/" for part in place.parts])
    with open_folder(place.root, place.parts) as folder:
        seen = (each for each in walk(folder, depth, prefix) if flaw(os.path.join(place.root, each.path)) is None)
        found = [_render_entry(each) for each in islice(seen, MOST_LISTED + 1)]
    if len(found) > MOST_LISTED:
        found[MOST_LISTED:] = [f"[only the first {MOST_LISTED} are shown; list a folder of it, or a smaller depth]"]
    return "\n".join(found) or f"`{place.asked}` is empty."


def _render_entry(found: FoundEntry) -> str:
    # A file name need not be valid UTF-8.
    path = os.fsencode(found.path).decode("utf-8", "replace")
    if found.is_folder:
        return f"{path}/"
    if found.is_file:
        return f"{path}  {found.about.st_size:,} bytes"
    return f"{path}  (link)" if stat.S_ISLNK(found.about.st_mode) else f"{path}  (special)"


async def _search(place: FilePlace, asked: FileArguments, seconds: float, flaw: Flaw, tenant: str) -> str:
    if not asked.pattern:
        raise InvalidRequest("`search` needs `pattern`, the text to look for")
    question = {
        "root": place.root,
        "parts": place.parts,
        "pattern": asked.pattern,
        "regex": asked.regex,
        "glob": asked.glob,
        "most": MOST_MATCHES,
        "seconds": seconds / 2,
    }
    answer = await run_in_subprocess(MODULE, question, seconds, tenant)
    if answer is None:
        raise InvalidRequest(f"the search did not end within {seconds:g} s; simplify the pattern, or search fewer files")
    if "error" in answer:
        raise InvalidRequest(answer["error"])
    seen = [match for match in answer["matches"] if flaw(os.path.join(place.root, match[0])) is None]
    lines = [f"{path}:{number}: {text}" for path, number, text in seen]
    fitting = _fit_lines(lines)
    if len(fitting) < len(lines) or not answer["is_complete"]:
        fitting.append("[there may be more; narrow `pattern`, `path` or `glob`]")
    return "\n".join(fitting) or f"Nothing in `{place.asked}` matches."


def _fit_lines(lines: list[str]) -> list[str]:
    """As many of the lines as a page has room for."""
    room = PAGE_CHARS
    for count, line in enumerate(lines):
        room -= len(line) + 1
        if room < 0:
            return lines[:count]
    return lines


def _write(place: FilePlace, text: str) -> str:
    if MARK in text:
        _check_marks(place, text, _read_existing(place))
    with open_folder(place.root, place.parts[:-1], make=True) as folder:
        name = _require_name(place)
        mode: int | None = None
        with suppress(FileNotFoundError):
            mode = os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode
            _check_regular(place, mode)
        size = _replace(place, folder, text.encode(), mode)
    return f"{'Wrote' if mode is None else 'Replaced'} `{place.asked}` ({size:,} bytes)."


def _patch(place: FilePlace, asked: FileArguments) -> str:
    content = _read_content(place)
    if content.is_cut:
        raise InvalidRequest(f"`{place.asked}` has more than {MOST_BYTES:,} bytes, too many to patch")
    match asked:
        case FileArguments(diff=str(diff)):
            with _explain_marks(diff, content.text):
                text = apply_diff(content.text, diff.replace("\r\n", "\n"))
        case FileArguments(old=str(old), new=str(new)):
            with _explain_marks(old, content.text):
                text = replace_once(content.text, old.replace("\r\n", "\n"), new.replace("\r\n", "\n"))
        case _:
            raise InvalidRequest("`patch` needs `old` and `new`, or `diff`")
    _check_marks(place, text, content.text)
    with open_folder(place.root, place.parts[:-1]) as folder:
        size = _replace(place, folder, text.replace("\n", content.newline).encode(), content.mode)
    return f"Patched `{place.asked}` ({size:,} bytes)."


def _read_existing(place: FilePlace) -> str:
    """The text of a file that is to be replaced; none if there is no such text."""
    try:
        return _read_content(place).text
    except (CallerError, OSError):
        return ""


def _check_marks(place: FilePlace, text: str, before: str) -> None:
    if text.count(MARK) > before.count(MARK):
        raise InvalidRequest(
            f"`{place.asked}` is not written: `{MARK}` stands for a secret that you are not shown, and would replace it; change "
            "the other lines with `patch`, quoting none that has the mark"
        )


@contextmanager
def _explain_marks(quoted: str, text: str) -> Iterator[None]:
    """Explains why what was quoted with a mark does not stand in the file."""
    try:
        yield
    except InvalidRequest as error:
        if MARK not in quoted or MARK in text:
            raise
        hint = f"`{MARK}` stands for a secret that you are not shown: quote only lines without it"
        raise InvalidRequest(f"{error.message}; {hint}") from error


def _replace(place: FilePlace, folder: int, data: bytes, mode: int | None) -> int:
    """Replaces the file atomically and durably."""
    if len(data) > MOST_BYTES:
        raise InvalidRequest(f"`{place.asked}` would have {len(data):,} bytes, more than the {MOST_BYTES:,} a file may have")
    made = f".mainspring-{os.urandom(8).hex()}"
    kept = None if mode is None else stat.S_IMODE(mode)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(made, flags, 0o666 if kept is None else 0o600, dir_fd=folder)
    try:
        with open(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            if kept is not None:
                os.fchmod(descriptor, kept)
            os.fsync(descriptor)
        os.replace(made, _require_name(place), src_dir_fd=folder, dst_dir_fd=folder)
    except BaseException:
        with suppress(OSError):
            os.unlink(made, dir_fd=folder)
        raise
    os.fsync(folder)
    return len(data)


def _require_name(place: FilePlace) -> str:
    if not place.parts:
        raise InvalidRequest("the working directory is no file; name one in it")
    return place.parts[-1]


def _check_regular(place: FilePlace, mode: int) -> None:
    if not stat.S_ISREG(mode):
        what = "a folder" if stat.S_ISDIR(mode) else "no regular file"
        raise InvalidRequest(f"`{place.asked}` is {what}; name a file, as `list` shows them")
