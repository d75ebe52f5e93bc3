"""Ids, names and cursors that no database has, and some that a database cannot even be asked for."""

from itertools import product
from pathlib import Path

import pytest
from tests.server.process import serving
from tests.server.test_connections import create_key
from tests.server.test_memory_quota import Client

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("each_database")]

PATHS = (
    "responses/{id}",
    "responses/{id}?stream=true",
    "responses/{id}/input_items",
    "responses?after={id}",
    "chat/completions/{id}",
    "chat/completions?after={id}",
    "files/{id}",
    "files/{id}/content",
    "files?after={id}",
    "vector_stores/{id}",
    "vector_stores/{id}/files",
    "vector_stores?after={id}",
    "conversations/{id}",
    "conversations/{id}/items",
    "traces/{id}",
    "traces?after={id}",
    "approvals/{id}",
    "approvals?after={id}",
    "containers/{id}",
    "budgets/{id}",
    "workflows/{id}/runs",
    "models/{id}",
)
LISTS = (
    "responses?model={id}",
    "responses?previous_response_id={id}",
    "responses?conversation={id}",
    "chat/completions?model={id}",
)


IDS = ("%00", "a%00b", "%ff%fe", "%ed%a0%80", "%F0%9F%98%80", "x" * 5000, "%27%20OR%201=1--", "%25", "_")


def test_an_id_that_cannot_be_is_not_found(tmp_path: Path) -> None:
    key = create_key(tmp_path, "one")
    with serving(tmp_path, [{"when": "", "say": "Hello."}]) as served:
        client = Client(served, key)
        client.tell(10)
        for id, path in product(IDS, PATHS):
            assert client.ask(path.format(id=id), method="GET")[0] in (400, 404), (path, id)
        for id, path in product(IDS, LISTS):
            status, page = client.ask(path.format(id=id), method="GET")
            assert (status, page.get("data")) in ((200, []), (400, None)), (path, id, page)
        for body in (
            {"previous_response_id": "a\x00b"},
            {"conversation": "a\x00b"},
            {"model": "a\x00b"},
            {"metadata": {"a\x00": "b\x00"}},
        ):
            assert client.ask("responses", {"input": "a\x00b", **body})[0] in (200, 400, 404), body
        said = {"messages": [{"role": "user", "content": "a\x00b"}], "max_tokens": 9}
        thread = {"type": "continue", "previous_message_id": "a\x00b"}
        for path, body in (("chat/completions", {}), ("messages", {}), ("messages", {"thread": thread})):
            assert client.ask(path, {**said, **body})[0] in (200, 400, 404), (path, body)
        assert client.ask("conversations", {"metadata": {"\x00": "\x00"}, "items": [{"role": "user", "content": "\x00"}]})[0] in (
            200,
            400,
        )
