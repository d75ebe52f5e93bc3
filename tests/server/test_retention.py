"""Runs are kept as long as the settings say, and no longer."""

import time
from functools import partial
from pathlib import Path

import httpx2
import openai
from tests.kit.waiting import until
from tests.server.process import Script, serving

from mainspring.app.retention import MARK
from mainspring.core.items import encode
from mainspring.ports import Document
from mainspring.storage.sqlite_runs import SqliteStore

TURNS: Script = [{"say": "Hello."}] * 3


async def count_runs(folder: Path) -> int:
    async with SqliteStore(folder / "served.db") as store:
        return len((await store.list()).runs)


async def test_runs_that_ended_long_ago_are_deleted_by_the_server(tmp_path: Path) -> None:
    settings = tmp_path / "mainspring.toml"
    settings.write_text("keep_days = 30\n")
    with serving(tmp_path, TURNS) as served, openai.OpenAI(base_url=served.url, api_key="none") as client:
        kept = client.responses.create(model="any", input="hi")
        assert served.stop() == 0
    with serving(tmp_path, TURNS) as served, openai.OpenAI(base_url=served.url, api_key="none") as client:
        assert client.responses.retrieve(kept.id).id == kept.id
        assert served.stop() == 0
    assert await count_runs(tmp_path) == 1
    settings.write_text("keep_days = 0.0000001\n")
    with serving(tmp_path, TURNS) as served, openai.OpenAI(base_url=served.url, api_key="none", max_retries=0) as client:

        def is_gone() -> bool:
            try:
                client.responses.retrieve(kept.id)
            except openai.NotFoundError:
                return True
            return False

        await until(is_gone)


FLOW = "name: flow\nsteps:\n  - {id: one, action: transform, value: done}\n"
FLOWS = 'workflows = ["flows"]\n'
ITEM = {"type": "message", "role": "user", "content": "Hi."}


def make(client: httpx2.Client, path: str, **given: object) -> str:
    """Makes something over HTTP; returns where it is."""
    answer = client.post(path, json=given).raise_for_status().json()
    return f"/{path.split('/')[1]}/{answer['id']}"


def list_found(client: httpx2.Client, paths: list[str]) -> list[str]:
    return [path for path in paths if client.get(path).status_code == 200]


def is_left(client: httpx2.Client, paths: list[str], count: int) -> bool:
    return len(list_found(client, paths)) <= count


async def test_each_kind_is_deleted_after_days_of_its_own(tmp_path: Path) -> None:
    settings = tmp_path / "mainspring.toml"
    settings.write_text(FLOWS)
    (tmp_path / "flows").mkdir()
    (tmp_path / "flows" / "flow.yaml").write_text(FLOW)
    with serving(tmp_path, TURNS) as served, httpx2.Client(base_url=served.url) as client:
        response, used = make(client, "/responses", input="Hi."), make(client, "/conversations", items=[ITEM])
        unused = make(client, "/conversations", items=[ITEM])
        sent = client.post("/files", files={"file": ("a.txt", b"Hello.")}, data={"purpose": "user_data"})
        file = f"/files/{sent.raise_for_status().json()['id']}"
        flow = client.post("/workflows/flow/runs", json={"inputs": {}}).raise_for_status().json()
        # The mark of a day on which the conversations were there already.
        async with SqliteStore(tmp_path / "served.db") as store:
            await store.put([Document(MARK, "0", encode(time.time()))])
        client.post(f"{used}/items", json={"items": [ITEM]}).raise_for_status()
        assert served.stop() == 0
    every = [response, used, unused, file, f"/workflows/flow/runs/{flow['id']}"]
    for kinds, left in (("workflows", [response, used, unused, file]), ("files conversations", [response, used])):
        table = "".join([f"{kind} = 0.0000001\n" for kind in kinds.split()])
        settings.write_text(f"{FLOWS}[keep_days]\n{table}")
        with serving(tmp_path, TURNS) as served, httpx2.Client(base_url=served.url) as client:
            await until(partial(is_left, client, every, len(left)))
            assert list_found(client, every) == left
            assert served.stop() == 0
    assert [path for path in (tmp_path / "served.db.files").rglob("*") if path.is_file()] == []
