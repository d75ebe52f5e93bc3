"""The browser behind a real server: asked for over HTTP, governed like any tool, and gone with it."""

import json
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import anyio
import pytest
from tests.browser.site import Site, opened_site
from tests.sandbox.test_death import has_ended
from tests.sandbox.traces import ancestors, command, everything
from tests.server.process import Script, Served, serving

from mainspring.tools.sandbox.probe import open_sandbox

pytestmark = [pytest.mark.slow, pytest.mark.requirement("C17")]


@pytest.fixture(scope="module")
async def held(chromium: None) -> None:
    async with open_sandbox("auto", warm=0) as sandbox:
        if (await sandbox.health()).backend != "bwrap":
            pytest.skip("no sandbox holds a browser here")


@pytest.fixture
async def local() -> AsyncIterator[Site]:
    async with opened_site() as site:
        site.url = f"http://127.0.0.1:{site.port}"
        yield site


def browse(operation: str, expect: str = "", **arguments: object) -> dict[str, object]:
    call: dict[str, object] = {"calls": [{"name": "browser", "arguments": {"operation": operation, **arguments}}]}
    return call | ({"expect": expect} if expect else {})


async def answered(served: Served, **body: Any) -> dict[str, Any]:
    timeout = aiohttp.ClientTimeout(total=120)
    headers = {"OpenResponses-Version": "latest"}  # it shows the output of every call
    order = {"model": "m", "input": "shop", **body}
    async with (
        aiohttp.ClientSession(timeout=timeout, headers=headers) as http,
        http.post(f"{served.url}/responses", json=order) as answer,
    ):
        found: dict[str, Any] = json.loads(await answer.read())
        assert answer.status == 200, found
        return found


def browsers(served: Served) -> list[int]:
    return [pid for pid in everything() if served.process.pid in ancestors(pid) and "chromium" in command(pid)]


async def test_a_model_opens_clicks_reads_and_looks(held: None, local: Site, tmp_path: Path) -> None:
    turns: Script = [
        browse("open", url=f"{local.url}/"),
        browse("click", "[1] link", number=1),
        browse("text", "The next page for nobody"),
        browse("screenshot", "# Next"),
        {"say": "Seen.", "expect": {"regex": "The next page"}},
        browse("links", "Seen."),
        {"say": "Still there.", "expect": f'[1] link "Home" {local.url}/'},
    ]
    with serving(tmp_path, turns, "--builtin", "browser", "--allow-host", "127.0.0.1") as served:
        first = await answered(served)
        assert first["status"] == "completed", first
        assert first["output"][-1]["content"][0]["text"] == "Seen.", first["output"][-2:]
        outputs = [item["output"] for item in first["output"] if item["type"] == "function_call_output"]
        assert [part["type"] for part in outputs[-1]] == ["input_text", "input_image"]
        assert outputs[-1][1]["image_url"].startswith("data:image/jpeg;base64,")
        second = await answered(served, previous_response_id=first["id"])
        assert second["output"][-1]["content"][0]["text"] == "Still there.", "the page stays for the conversation"
        running = browsers(served)
        assert running
        assert served.stop() == 0
        assert [pid for pid in running if not await anyio.to_thread.run_sync(has_ended, pid)] == []


async def test_a_server_that_is_killed_takes_its_browser_along(held: None, local: Site, tmp_path: Path) -> None:
    scratch = tmp_path / "tmp"
    scratch.mkdir(mode=0o711)
    for folder in (tmp_path, *tmp_path.parents[:3]):
        folder.chmod(folder.stat().st_mode | 0o011)
    turns: Script = [browse("open", url=f"{local.url}/"), {"say": "Seen.", "expect": "The shop"}]
    options = ("--builtin", "browser", "--allow-host", "127.0.0.1")
    with serving(tmp_path, turns, *options, env={"TMPDIR": str(scratch)}) as served:
        assert (await answered(served))["status"] == "completed"
        started = [pid for pid in everything() if served.process.pid in ancestors(pid)]
        assert browsers(served)
        assert os.listdir(scratch), "it works there"
        served.kill()
    assert [pid for pid in started if not await anyio.to_thread.run_sync(has_ended, pid)] == []
    assert os.listdir(scratch) == []


async def test_the_operators_rules_hold_for_the_browser(held: None, local: Site, tmp_path: Path) -> None:
    (tmp_path / "mainspring.toml").write_text(
        '[governance]\nlevel = "read-only"\nnetwork_reads = true\n[governance.domains]\ndenied = ["denied.test"]\n'
    )
    turns: Script = [
        browse("open", url="http://denied.test/"),
        browse("open", "`denied.test` is denied", url="http://localhost/"),
        browse("open", "host `localhost` is not public", url=f"{local.url}/"),
        browse("click", "The shop", number=1),
        browse("type", "does not allow `browser`", number=3, text="x"),
        browse("text", "does not allow `browser`"),
        {"say": "Read.", "expect": "Welcome"},
    ]
    with serving(tmp_path, turns, "--builtin", "browser", "--allow-host", "127.0.0.1") as served:
        answer = await answered(served)
    assert answer["status"] == "completed", answer
    assert local.orders == []
