"""`mainspring models pull`: fetches a local model that can call tools, and the question whether to, where there is none.

What was pulled is the local model from then on: `find_own_model` of `backends.py` takes the ablest one that is there.
"""

import asyncio
import hashlib
import shutil
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, TypeGuard

import typer
from anyio import to_thread
from msgspec import Struct

from mainspring.cli.console import ConsoleWriter
from mainspring.cli.options import AsJson
from mainspring.cli.output import say, write_list
from mainspring.core.errors import InvalidRequest, MainspringError, Unavailable
from mainspring.definitions.parsed_file import hint
from mainspring.features.models.backends import find_own_model
from mainspring.providers.local.catalogue import GB, CatalogueModel, load_catalogue, measure_memory, pick_model
from mainspring.providers.local.hub import PIECE, Downloaded, HubFile
from mainspring.providers.local.provider import is_available
from mainspring.providers.local.weights import SMOLLM2, fetch_weights, find_cache_folder, find_source, find_target

BAR = 24


class OfferedModel(Struct, frozen=True):
    """A model of the catalogue, as `models pull --list --json` has it."""

    name: str
    model: CatalogueModel
    fits: bool
    is_there: bool
    is_default: bool


async def pull(
    name: Annotated[
        str | None,
        typer.Argument(metavar="NAME", help="Of the list, or `hf:OWNER/REPO/FILE.gguf`. Default: the ablest for the memory."),
    ] = None,
    source: Annotated[
        str | None, typer.Option("--from", metavar="URL|FILE", help="Take it from a mirror of the hub, or from a file.")
    ] = None,
    list_only: Annotated[bool, typer.Option("--list", help="List the models there are, and pull none.")] = False,
    json: AsJson = False,
) -> None:
    """
    Downloads a model that runs on this machine and can call tools. It answers from then on where no other is named.

        mainspring models pull --list
        mainspring models pull
        mainspring models pull qwen3-4b --from https://hub.example.com

    A download that breaks off is resumed by the same command. It is used only if it has the SHA-256 sum that the hub tells.
    """
    if list_only or json:
        write_list(_list_offered(), ("name", "download", "memory", "licence", "good for", ""), _make_cells, as_json=json)
        return
    if not is_available():
        say("what is pulled here can be asked once its runtime is installed: pip install 'mainspring[local]'")
    chosen = name or (_recognize(source) if _is_file(source) else _choose().name)
    path = await fetch(chosen, source)
    say(f"{path} is complete")
    say(f"try it with: mainspring run 'Hello' --model local:{chosen}; what it can do: mainspring doctor --model local:{chosen}")


def offer_model() -> bool:
    """Asks a person at the terminal, once, whether to download a model where the only one is too small to be of use. Returns
    whether that was done."""
    asked = find_cache_folder() / "asked"
    if find_own_model() != SMOLLM2 or asked.exists() or not (sys.stdin.isatty() and sys.stderr.isatty() and is_available()):
        return False
    if (model := pick_model(measure_memory())) is None:
        return False
    say(f"the model that comes along ({SMOLLM2}, 135 million parameters) can say hello, and little else")
    try:
        said = input(f"Download one that can call tools ({model.tell()})? [y/N] ")
    except EOFError:
        return False
    asked.parent.mkdir(parents=True, exist_ok=True)
    asked.touch()
    if said.strip().lower() not in ("y", "yes"):
        say("a model can be downloaded at any time: `mainspring models pull`")
        return False
    try:
        asyncio.run(fetch(model.name, None))
    except MainspringError as error:
        say(f"{error.message}; going on without it. Try again: mainspring models pull")
        return False
    return True


async def fetch(name: str, source: str | None) -> Path:
    """The file of that model, from the hub, a mirror of it, or a file. Raises `InvalidRequest` or `Unavailable`."""
    wanted = find_source(name) if name in load_catalogue() or name.startswith("hf:") else None
    if not isinstance(wanted, HubFile):
        names = [*load_catalogue()]
        raise InvalidRequest(
            f"there is no model `{name}` to pull; {hint(name, names)}, or `hf:OWNER/REPO/FILE.gguf`", param="name"
        )
    if source is None or not _is_file(source):
        mirrored = HubFile(wanted.repo, wanted.file, source)
        return await fetch_weights(mirrored, find_cache_folder(), say, _Bar().show if sys.stdout.isatty() else None)
    return await to_thread.run_sync(_take_file, source, find_target(wanted, find_cache_folder()))


def _is_file(source: str | None) -> TypeGuard[str]:
    """Whether `--from` is a file, and not the address of a mirror."""
    return source is not None and "://" not in source


def _recognize(file: str) -> str:
    """The model that a file is, by its name. Raises `InvalidRequest` where that tells nothing."""
    for model in load_catalogue().values():
        if Path(file).name.lower() == Path(model.file).name.lower():
            return model.name
    told = f"which model `{file}` is cannot be told from its name; say it, as in `mainspring models pull NAME --from {file}`"
    raise InvalidRequest(f"{told}, or ask the file itself with `--model local:{file}`", param="name")


def _take_file(name: str, target: Path) -> Path:
    """Copies a model that was brought by other means. Nobody but the hub could tell its sum, so that is shown."""
    file = Path(name).expanduser()
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(dir=target.parent) as folder, file.open("rb") as read:
            if read.read(4) != b"GGUF":
                raise InvalidRequest(f"`{file}` is not a GGUF file; name one, or the address of a hub", param="from")
            read.seek(0)
            with (copy := Path(folder) / target.name).open("wb") as write:
                shutil.copyfileobj(read, write, PIECE)
            read.seek(0)
            digest = hashlib.file_digest(read, "sha256").hexdigest()
            copy.replace(target)
    except OSError as error:
        raise Unavailable(f"`{file}` cannot be taken: {error.strerror}; name a file that you can read") from error
    say(f"its SHA-256 sum is {digest}; compare it with the hub's")
    return target


def _choose() -> CatalogueModel:
    memory = measure_memory()
    if (model := pick_model(memory)) is not None:
        say(f"{model.tell()}: the ablest for the {memory / GB:.0f} GB of memory here")
        return model
    least = next(iter(load_catalogue().values()))
    advice = f"name one if you want it all the same, as in `mainspring models pull {least.name}`, or use a model behind an API"
    raise InvalidRequest(f"every model of the list needs more memory than the {memory / GB:.1f} GB here; {advice}", param="name")


def _list_offered() -> list[OfferedModel]:
    memory, cache = measure_memory(), find_cache_folder()
    best = pick_model(memory)
    return [
        OfferedModel(model.name, model, model.fits(memory), _is_there(model, cache), model == best)
        for model in load_catalogue().values()
    ]


def _is_there(model: CatalogueModel, cache: Path) -> bool:
    return find_target(model.source, cache).exists()


def _make_cells(offered: OfferedModel) -> tuple[str, ...]:
    model = offered.model
    state = "pulled" if offered.is_there else "" if offered.fits else "too large for this machine"
    state = "the one for this machine" if offered.is_default and not state else state
    return (model.name, f"{model.megabytes / 1000:.1f} GB", f"{model.memory_gb} GB", model.licence, model.good_for, state)


class _Bar:
    """A download, drawn on one line of the terminal."""

    def __init__(self) -> None:
        self._writer = ConsoleWriter()

    def show(self, state: Downloaded) -> None:
        done = BAR * state.size // max(state.total, 1)
        bar = "█" * done + "░" * (BAR - done)
        told = f"{bar} {100 * state.size // max(state.total, 1):3} %  {state.size / 1e6:,.0f} of {state.total / 1e6:,.0f} MB"
        self._writer.status(told)
        if state.size >= state.total:
            with self._writer:
                self._writer.put(f"{told}\n")
