"""The TypeScript SDK's client, at `/mcp`: tools, progress, a form, a prompt, and the end of its session."""

import json
import subprocess
from pathlib import Path

import anyio
import pytest
from tests.clients import node
from tests.clients.process import environment
from tests.kit.waiting import PATIENCE
from tests.mcp.conformance_suite import FOLDER
from tests.mcp_server.world import ALL, list_wiped, make_engine, text_of
from tests.server.hosting import hosted

from mainspring.app.server import server
from mainspring.providers.scripted import say

pytestmark = pytest.mark.slow


async def test_the_typescript_client_calls_and_answers(tmp_path: Path) -> None:
    await anyio.to_thread.run_sync(node.install, FOLDER)
    async with hosted(server(make_engine(tmp_path, say("Done.")), offer=ALL)) as url:
        command = ["node", "ask_mainspring.mjs", url.replace("/v1", "/mcp")]
        with anyio.fail_after(PATIENCE):
            done = await anyio.run_process(command, cwd=FOLDER, env=environment(), stdin=subprocess.DEVNULL, check=False)
    assert done.returncode == 0, done.stderr.decode()
    told = json.loads(done.stdout)
    assert told["tools"] == ["agent_helper", "workflow_shout", "add", "wipe", "hang"]
    assert text_of(told["helped"]) == "Done."
    assert told["progress"]
    assert len(told["asked"]) == 1
    assert text_of(told["wiped"]) == "wiped sda"
    assert list_wiped(tmp_path) == ["sda"]
    assert told["prompt"]["messages"][0]["content"]["text"] == "Do this: tidy"
