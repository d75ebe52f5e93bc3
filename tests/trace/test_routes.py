"""`/v1/traces` over HTTP: what a tenant may see, whole, and while it happens."""

from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import anyio
import pytest
from tests.kit.waiting import PATIENCE
from tests.server.hosting import hosted

from mainspring import Engine, tool
from mainspring.app.server import server
from mainspring.core.items import decode
from mainspring.features.traces.trace_record import TraceRecord
from mainspring.http.auth import Keys
from mainspring.providers.scripted import Scripted, call, say, turn


@pytest.fixture
async def http() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as session:
        yield session


@tool
async def add(a: int, b: int) -> int:
    """Adds."""
    return a + b


async def got(http: aiohttp.ClientSession, url: str, key: str | None = None) -> tuple[int, Any]:
    headers = {} if key is None else {"authorization": f"Bearer {key}"}
    async with http.get(url, headers=headers) as answer:
        return answer.status, await answer.json()


@pytest.mark.requirement("C36")
async def test_a_trace_tells_what_its_response_tells(http: aiohttp.ClientSession) -> None:
    engine = Engine(Scripted(turn(calls=[call("add", a=1, b=2)], when="sum"), say("Three.", when="sum")), tools=[add])
    async with hosted(server(engine)) as url:
        async with http.post(f"{url}/responses", json={"model": "m", "input": "sum"}) as answer:
            response = await answer.json()
        async with http.get(f"{url}/traces/{response['id']}") as answer:
            trace = decode(await answer.read(), TraceRecord)
        status, page = await got(http, f"{url}/traces")
    assert (status, trace.run_id, trace.outcome.status) == (200, response["id"], "completed")
    assert (trace.usage.input_tokens, trace.usage.output_tokens) == (
        response["usage"]["input_tokens"],
        response["usage"]["output_tokens"],
    )
    assert [(action.tool, action.output) for action in trace.actions] == [("add", "3")]
    assert (page["object"], page["first_id"], page["has_more"]) == ("list", response["id"], False)
    assert page["data"][0]["trace_id"] == trace.trace_id


async def test_traces_are_paged_and_a_missing_one_is_named(http: aiohttp.ClientSession) -> None:
    engine = Engine(Scripted(say("Hi."), repeat=True))
    async with hosted(server(engine)) as url:
        ids = [(await engine.run("go")).spec.id for _ in range(3)]
        _, page = await got(http, f"{url}/traces?limit=2&order=asc")
        _, rest = await got(http, f"{url}/traces?limit=2&order=asc&after={page['last_id']}")
        status, fault = await got(http, f"{url}/traces/resp_nobody")
        wrong, _ = await got(http, f"{url}/traces?limit=0")
    assert [trace["run_id"] for trace in page["data"] + rest["data"]] == ids
    assert (page["has_more"], rest["has_more"]) == (True, False)
    assert (status, fault["error"]["param"]) == (404, "run_id")
    assert "resp_nobody" in fault["error"]["message"]
    assert wrong == 400


async def test_a_run_under_way_can_be_looked_at(http: aiohttp.ClientSession) -> None:
    engine = Engine(Scripted(turn(say="I begin", stall=True)))
    async with hosted(server(engine)) as url:
        handle = await engine.ask("go", background=True)
        with anyio.fail_after(PATIENCE):
            async for record in handle.events():
                if record.seq == 3:
                    break
        _, trace = await got(http, f"{url}/traces/{handle.id}")
        await handle.cancel()
        _, after = await got(http, f"{url}/traces/{handle.id}")
    assert (trace["outcome"]["status"], after["outcome"]["status"]) == ("running", "cancelled")
    assert trace["execution"][0]["first_token_at"] is not None


async def test_no_tenant_sees_the_traces_of_another_and_a_key_needs_the_scope(http: aiohttp.ClientSession) -> None:
    engine = Engine(Scripted(say("Hi."), repeat=True))
    keys = Keys(engine.store)
    async with hosted(server(engine, keys=keys)) as url:
        ours = await keys.create(tenant="a", scopes=("traces",))
        theirs = await keys.create(tenant="b", scopes=("traces",))
        other = await keys.create(tenant="a", scopes=("responses",))
        run = await engine.run("go", tenant="a")
        answers = [await got(http, f"{url}/traces/{run.spec.id}", key) for key in (ours, theirs, other)]
        assert [status for status, _ in answers] == [200, 404, 403]
        lists = [(await got(http, f"{url}/traces", key))[1]["data"] for key in (ours, theirs)]
    assert [len(traces) for traces in lists] == [1, 0]


@tool
async def sign_in(user: str, password: str) -> str:
    """Signs in."""
    return "in"


async def test_secrets_in_arguments_are_for_keys_that_may_read_the_response(http: aiohttp.ClientSession) -> None:
    asking = turn(calls=[call("sign_in", user="ada", password="zorkmid")])
    engine = Engine(Scripted(asking, say("Done.")), tools=[sign_in])
    keys = Keys(engine.store)
    async with hosted(server(engine, keys=keys)) as url:
        run = await engine.run("go")
        shown = {}
        for scope in ("traces", "*"):
            key = await keys.create(scopes=(scope,))
            for path in (f"{url}/traces/{run.spec.id}", f"{url}/traces"):
                status, body = await got(http, path, key)
                assert status == 200
                trace = body if "execution" in body else body["data"][0]
                shown[scope, path] = [action["input"] for step in trace["execution"] for action in step["actions"]]
    assert all("zorkmid" not in given[0] and "ada" in given[0] for (scope, _), given in shown.items() if scope == "traces")
    assert all("zorkmid" in given[0] for (scope, _), given in shown.items() if scope == "*")
