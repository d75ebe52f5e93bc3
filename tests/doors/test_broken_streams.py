"""A stream of an API that cannot read on says that it broke off: its client would take the half for the whole."""

from pathlib import Path

import aiohttp
import anyio
import pytest
from tests.kit.waiting import PATIENCE
from tests.server.process import serving

pytestmark = pytest.mark.slow


async def test_a_server_that_stops_ends_streams_with_an_error(tmp_path: Path) -> None:
    script = [{"when": "", "say": "one two three " * 1000, "pause": 0.1}]
    body = {"messages": [{"role": "user", "content": "Count."}], "max_tokens": 5000, "stream": True}
    async with aiohttp.ClientSession() as session:
        with serving(tmp_path, script, env={"MAINSPRING_DRAIN_SECONDS": "0"}) as served:
            answers = [await session.post(f"{served.url}/{path}", json=body) for path in ("chat/completions", "messages")]
            with anyio.fail_after(PATIENCE):
                for answer in answers:
                    while b"delta" not in await answer.content.readline():
                        pass
                served.process.terminate()
                chat, message = [await answer.text() for answer in answers]
    assert '"code":"interrupted"' in chat.split("\n\n")[-2]
    assert "[DONE]" not in chat
    assert message.split("\n\n")[-2].startswith("event: error\n")
