"""A model that can do the job: `models pull` from a hub, a mirror and a file, and the one question about it."""

import errno
import hashlib
import json
import shutil
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from anyio import to_thread
from tests.cli.command import Result, Shell, plain
from tests.providers.hub import Hub, serving_hub

from mainspring.core.errors import Unavailable
from mainspring.features.models.pull import fetch
from mainspring.providers.local.catalogue import GB, load_catalogue, measure_memory, pick_model
from mainspring.providers.local.provider import is_available

needs_runtime = pytest.mark.skipif(not is_available(), reason="the local runtime is not installed")
NAMES = [*load_catalogue()]


@pytest.fixture
async def hub() -> AsyncIterator[Hub]:
    async with serving_hub() as running:
        running.path = None
        yield running


class Newcomer:
    """A person with an empty home, to whom the hub is at another address."""

    def __init__(self, folder: Path, hub: Hub | None = None) -> None:
        self.shell = Shell(folder)
        self.env = {"HOME": str(folder), "XDG_CACHE_HOME": str(folder / "cache"), "NO_PROXY": "127.0.0.1"}
        self.env["HF_ENDPOINT"] = "http://127.0.0.1:9" if hub is None else hub.url

    async def run(self, *arguments: str) -> Result:
        return await to_thread.run_sync(partial(self.shell.run, *arguments, env=self.env))

    async def run_on_terminal(self, *arguments: str, **options: Any) -> Result:
        return await to_thread.run_sync(partial(self.shell.run_on_terminal, *arguments, env=self.env, **options))

    def find(self, name: str) -> Path:
        model = load_catalogue()[name]
        return self.shell.folder / "cache/mainspring/hf" / model.repo / model.file


@needs_runtime
async def test_a_model_is_pulled_checked_and_then_the_one_that_answers(hub: Hub, tmp_path: Path) -> None:
    person = Newcomer(tmp_path, hub)
    hub.sha256 = "0" * 64
    refused = await person.run("models", "pull", NAMES[0])
    assert (refused.code, person.find(NAMES[0]).exists()) == (1, False)
    hub.sha256 = hashlib.sha256(hub.data).hexdigest()
    pulled = await person.run_on_terminal("models", "pull", NAMES[0])
    assert pulled.code == 0, pulled.out
    assert "100 %  1 of 1 MB" in plain(pulled.out)
    assert person.find(NAMES[0]).read_bytes() == hub.data
    listed = await person.run("models", "--json")
    assert json.loads(listed.out.splitlines()[-1])["id"] == f"local/{NAMES[0]}"
    offered = [json.loads(line) for line in (await person.run("models", "pull", "--list", "--json")).out.splitlines()]
    assert [each["name"] for each in offered if each["is_there"]] == [NAMES[0]]
    best = pick_model(measure_memory())
    assert [each["name"] for each in offered if each["is_default"]] == ([] if best is None else [best.name])


async def test_a_mirror_and_a_file_serve_in_place_of_the_hub(hub: Hub, tmp_path: Path) -> None:
    person = Newcomer(tmp_path)
    assert (await person.run("models", "pull", NAMES[0])).code == 1
    (tmp_path / "some.gguf").write_bytes(b"GGUF and more")
    unnamed = await person.run("models", "pull", "--from", "some.gguf")
    assert (unnamed.code, "models pull NAME --from some.gguf" in unnamed.err) == (2, True)
    shutil.copy(tmp_path / "some.gguf", tmp_path / person.find(NAMES[2]).name)
    assert (await person.run("models", "pull", "--from", person.find(NAMES[2]).name)).code == 0
    assert person.find(NAMES[2]).read_bytes() == b"GGUF and more"
    mirrored = await person.run("models", "pull", NAMES[0], "--from", hub.url)
    assert (mirrored.code, person.find(NAMES[0]).read_bytes()) == (0, hub.data)
    (tmp_path / "page.html").write_text("<html>")
    assert (await person.run("models", "pull", NAMES[1], "--from", "page.html")).code == 2
    (tmp_path / "brought.gguf").write_bytes(b"GGUF and more")
    brought = await person.run("models", "pull", NAMES[1], "--from", "brought.gguf")
    assert (brought.code, person.find(NAMES[1]).read_bytes()) == (0, b"GGUF and more")
    assert hashlib.sha256(b"GGUF and more").hexdigest() in brought.err
    assert sorted(path.name for path in person.find(NAMES[1]).parent.iterdir()) == [person.find(NAMES[1]).name]


async def test_a_copy_for_which_there_is_no_room_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fill(read: object, write: object, size: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(shutil, "copyfileobj", fill)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "brought.gguf").write_bytes(b"GGUF and more")
    with pytest.raises(Unavailable, match="No space left"):
        await fetch(NAMES[0], str(tmp_path / "brought.gguf"))
    assert [path for path in (tmp_path / "cache").rglob("*") if path.is_file()] == []


@needs_runtime
async def test_a_person_is_asked_once_whether_to_have_a_model_that_can_do_the_job(hub: Hub, tmp_path: Path) -> None:
    person = Newcomer(tmp_path, hub)
    refused = await person.run_on_terminal("chat", typed=[("[y/N]", "n\n")])
    assert (refused.code, "cannot call tools" in refused.out, "Tell me" in refused.out) == (2, True, False), refused.out
    assert "mainspring models pull" in refused.out
    again = await person.run_on_terminal("chat", typed=[("> ", "/quit\n")])
    assert "[y/N]" not in again.out
    (tmp_path / "cache/mainspring/asked").unlink()
    agreed = await person.run_on_terminal("chat", typed=[("[y/N]", "y\n"), ("> ", "/help\n"), ("> ", "/quit\n")])
    [pulled] = [name for name in NAMES if person.find(name).exists()]
    assert f"local/{pulled}" in agreed.out
    assert "remind me to call" in agreed.out


async def test_an_unknown_model_is_refused_with_the_names_there_are(tmp_path: Path) -> None:
    result = await Newcomer(tmp_path).run("models", "pull", "qwen3-4")
    assert result.code == 2
    assert "qwen3-4b" in result.err


def test_the_memory_decides_which_model_is_taken() -> None:
    assert pick_model(1 * GB) is None
    chosen = [model.name for memory in (4, 8, 64) if (model := pick_model(memory * GB)) is not None]
    assert chosen == NAMES
    assert all(model.megabytes * 1e6 * 1.5 < model.memory_gb * GB for model in load_catalogue().values())


def test_the_list_of_the_documentation_is_the_catalogue() -> None:
    page = (Path(__file__).parents[2] / "docs/models.md").read_text()
    for model in load_catalogue().values():
        row = [f"`{model.name}`", f"{model.megabytes / 1000:.1f} GB", f"{model.memory_gb} GB", model.licence, model.good_for]
        assert f"| {' | '.join(row)} |" in page
