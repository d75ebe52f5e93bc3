"""Addresses that newcomers ask for: of a base URL without `/v1`, of one with the path of an endpoint, of another API."""

from pathlib import Path
from typing import Final

import aiohttp
from tests.server.process import serving

MISTAKES: Final = (
    ("POST", "/responses", "there is nothing at /responses; did you mean /v1/responses?"),
    ("POST", "/chat/completions", "there is nothing at /chat/completions; did you mean /v1/chat/completions?"),
    ("GET", "/models/scripted", "there is nothing at /models/scripted; did you mean /v1/models/scripted?"),
    ("POST", "/v1/response", "there is nothing at /v1/response; did you mean /v1/responses?"),
    ("POST", "/v1/completions", "there is nothing at /v1/completions; did you mean /v1/chat/completions?"),
    ("POST", "/v1/v1/responses", "there is nothing at /v1/v1/responses; did you mean /v1/responses?"),
    ("POST", "/v1/responses/responses", "POST is not possible at /v1/responses/responses; did you mean /v1/responses?"),
    ("PUT", "/v1/responses", "PUT is not possible at /v1/responses; use GET, HEAD, POST"),
    ("GET", "/v1/assistants", "there is nothing at /v1/assistants; /docs lists what there is"),
    ("GET", f"/{'x' * 500}", f"there is nothing at /{'x' * 500}; /docs lists what there is"),
)


async def test_a_wrong_path_is_answered_with_what_may_have_been_meant(tmp_path: Path) -> None:
    with serving(tmp_path, [{"say": "Hello."}]) as served:
        async with aiohttp.ClientSession() as client:
            for method, path, told in MISTAKES:
                async with client.request(method, f"{served.url.removesuffix('/v1')}{path}", json={}) as answer:
                    assert (await answer.json())["error"]["message"] == told
                    assert answer.status == (404 if told.startswith("there is") else 405)
