"""The page of the console over HTTP: who gets it, what it forbids browsers, and what it says where it is not built."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest
from multidict import CIMultiDictProxy
from starlette.applications import Starlette
from tests.kit.engine import make_engine
from tests.server.hosting import hosted
from tests.server.process import serving

from mainspring.features.console.demo.demo_run import DEMO_MODEL
from mainspring.features.console.routes import BUILD_COMMAND, ConsoleRoutes
from mainspring.http.app import build_app
from mainspring.http.auth import Keys
from mainspring.providers.scripted import Scripted
from mainspring.storage.sqlite_runs import SqliteStore

BROWSER = {"accept": "text/html,application/xhtml+xml,*/*;q=0.8"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "files").mkdir()
    return tmp_path / "files"


@pytest.fixture
async def address(folder: Path) -> AsyncIterator[str]:
    engine = make_engine(Scripted())

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        async with engine:
            yield

    routes = ConsoleRoutes(engine, folder)
    app = build_app(routes.endpoints(), keys=Keys(engine.store), is_local=True, version="0", lifespan=lifespan)
    async with hosted(app) as url:
        yield url.removesuffix("/v1")


async def fetch(url: str, headers: dict[str, str] | None = None) -> tuple[int, CIMultiDictProxy[str], str]:
    async with aiohttp.ClientSession() as client, client.get(url, headers=headers or {}) as answer:
        return answer.status, answer.headers, await answer.text()


async def test_without_built_files_the_page_says_which_command_makes_them(address: str) -> None:
    status, headers, text = await fetch(f"{address}/", BROWSER)
    assert (status, headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert BUILD_COMMAND in text


async def test_browsers_get_the_page_and_programs_what_the_server_is(address: str, folder: Path) -> None:
    (folder / "index.html").write_text("<!doctype html><title>built</title>")
    _, headers, text = await fetch(f"{address}/", BROWSER)
    assert text == "<!doctype html><title>built</title>"
    policy = headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "require-trusted-types-for 'script'" in policy
    assert "unsafe" not in policy
    async with aiohttp.ClientSession() as client, client.get(f"{address}/") as answer:
        assert await answer.json() == {"name": "mainspring", "api": "v1"}


async def test_files_are_kept_by_browsers_and_nothing_beside_them_is_sent(address: str, folder: Path) -> None:
    (folder / "index-abc.js").write_text("1")
    (folder / ".stamp").write_text("secret")
    (folder.parent / "outside.js").write_text("secret")
    status, headers, text = await fetch(f"{address}/console/files/index-abc.js")
    assert (status, text, headers["content-type"]) == (200, "1", "text/javascript; charset=utf-8")
    assert "immutable" in headers["cache-control"]
    for name in (".stamp", "missing.js", "..%2Foutside.js", "%2e%2e/outside.js", "index.html", f"{'a' * 5000}.js"):
        status, _, text = await fetch(f"{address}/console/files/{name}")
        assert status in (401, 404), name
        assert "secret" not in text


async def test_the_demo_is_a_run_of_the_server_and_its_model_plays_nothing_else(tmp_path: Path) -> None:
    with serving(tmp_path, [{"say": "Hello."}]) as served:
        async with aiohttp.ClientSession() as client:
            async with client.post(f"{served.url}/demo") as answer:
                started = await answer.json()
            async with client.get(f"{served.url}/responses/{started['id']}") as answer:
                response = await answer.json()
            async with client.post(f"{served.url}/responses/{started['id']}/cancel") as answer:
                cancelled = await answer.json()
            asked = {"model": DEMO_MODEL, "input": "Hello"}
            async with client.post(f"{served.url}/responses", json=asked) as answer:
                refused = await answer.json()
    assert (response["model"], response["background"]) == (DEMO_MODEL, True)
    assert cancelled["status"] == "cancelled"
    assert "POST /v1/demo" in refused["error"]["message"]


@pytest.mark.parametrize(
    ("scopes", "status"),
    [(("responses",), 403), (("responses", "tools:execute:calculate"), 403), (("responses", "tools:execute"), 200)],
)
async def test_the_demo_is_for_keys_that_may_use_its_tools(tmp_path: Path, scopes: tuple[str, ...], status: int) -> None:
    async with SqliteStore(tmp_path / "served.db") as store:
        key = await Keys(store).create(scopes=scopes)
    with serving(tmp_path, [{"say": "Hello."}]) as served:
        headers = {"authorization": f"Bearer {key}"}
        async with aiohttp.ClientSession(headers=headers) as client, client.post(f"{served.url}/demo") as answer:
            told = await answer.json()
    assert (answer.status, told.get("error", {}).get("code")) == (status, "insufficient_scope" if status == 403 else None)
