"""`/v1/runs`: lines of runs, what becomes of them as it happens, their logs and their end; each tenant sees its own."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest
from tests.kit.waiting import PATIENCE
from tests.server.process import serving
from tests.server.test_approvals import House, house
from tests.server.test_serve import get, post

from mainspring import Engine
from mainspring.core.items import Json
from mainspring.engine.approvals import continuing_id
from mainspring.features.runs.change_feed import KEPT, ChangeFeed
from mainspring.providers.scripted import Scripted, say

pytestmark = pytest.mark.usefixtures("each_database")


async def ids(at: House, query: str = "", key: str = "") -> list[str]:
    status, page = await at.client(key).get(f"/runs?{query}")
    assert status == 200, page
    return [line["id"] for line in page["data"]]


async def test_a_run_is_a_line_with_what_was_asked_and_how_it_stands(tmp_path: Path) -> None:
    async with house(tmp_path) as at:
        [approval] = await at.client().asked("sda")
        run_id = approval["response_id"]
        _, page = await at.client().get("/runs")
        [line] = page["data"]
        assert line == {
            "id": run_id,
            "object": "run",
            "status": "requires_action",
            "reason": "approval_needed",
            "model": "obedient",
            "agent": "",
            "tenant": "",
            "created_at": line["created_at"],
            "ended_at": line["ended_at"],
            "prompt": "Wipe sda",
            "tokens": line["tokens"],
            "error": None,
            "waiting": True,
            "parent": None,
        }
        assert line["ended_at"] >= line["created_at"]
        assert page["last_id"] == run_id

        await at.client().post(f"/approvals/{approval['id']}", approve=True)
        await at.client().ended(continuing_id(run_id))
        _, page = await at.client().get("/runs")
        assert [(each["id"], each["status"], each["waiting"], each["parent"]) for each in page["data"]] == [
            (continuing_id(run_id), "completed", False, run_id),
            (run_id, "requires_action", False, None),
        ]


async def test_lines_are_found_by_status_text_wait_and_time_and_paged(tmp_path: Path) -> None:
    async with house(tmp_path) as at:
        paused = [(await at.client().asked(disk))[0]["response_id"] for disk in ("sda", "50%_off")]
        _, told = await at.client().post(
            "/responses", input="Locate", model="other", tools=[{"type": "function", "name": "locate"}]
        )
        located = told["id"]

        assert await ids(at) == [located, *paused[::-1]]
        assert await ids(at, "limit=2") == [located, paused[1]]
        assert await ids(at, f"limit=2&after={paused[1]}") == [paused[0]]
        assert await ids(at, "model=other") == [located]
        assert await ids(at, "status=requires_action&limit=1") == [located]
        assert await ids(at, "waiting=true") == paused[::-1], "a client's call is no person's"
        assert await ids(at, "q=wIpE%20SDA") == [paused[0]]
        assert await ids(at, "q=50%25_off") == [paused[1]]
        assert await ids(at, "q=%25") == [paused[1]], "no pattern of the database's"
        assert await ids(at, f"q={paused[0]}") == [paused[0]]
        assert await ids(at, "q=nothing") == []
        assert await ids(at, "agent=nobody") == []
        assert await ids(at, "created_before=1000") == []
        assert len(await ids(at, "created_after=1000")) == 3


@pytest.mark.parametrize("query", ["limit=0", "limit=x", "status=odd", "waiting=perhaps", "created_after=-1"])
async def test_a_filter_that_means_nothing_is_refused_by_name(tmp_path: Path, query: str) -> None:
    async with house(tmp_path) as at:
        status, told = await at.client().get(f"/runs?{query}")
        assert (status, told["error"]["param"]) == (400, query.partition("=")[0])
        assert (await at.client().get("/runs?after=resp_none"))[0] == 404


async def test_tenants_see_only_their_own_and_operators_choose(tmp_path: Path) -> None:
    async with house(tmp_path) as at:
        acme, zeta, operator = await at.key("acme"), await at.key("zeta"), await at.key()
        own = (await acme.asked("sda"))[0]["response_id"]
        other = (await zeta.asked("sdb"))[0]["response_id"]

        async def seen(client: object, query: str = "") -> list[str]:
            return [line["id"] for line in (await client.get(f"/runs{query}"))[1]["data"]]  # type: ignore[attr-defined]

        assert await seen(acme) == [own]
        assert await seen(operator) == [other, own]
        assert await seen(operator, "?tenant=zeta") == [other]
        assert await seen(operator, "?tenant=") == []
        status, told = await acme.get("/runs?tenant=zeta")
        assert (status, told["error"]["code"], told["error"]["param"]) == (403, "insufficient_scope", "tenant")
        for path in (f"/runs/{other}", f"/runs/{other}/events", f"/runs/{other}/events?stream=true"):
            status, told = await acme.get(path)
            assert (status, told["error"]["param"]) == (404, "run_id"), path
        assert (await acme.post(f"/runs/{other}/cancel"))[0] == 404
        assert (await acme.get(f"/runs?after={other}"))[0] == 404
        assert (await operator.get(f"/runs/{other}"))[0] == 200


async def test_runs_need_the_scope_responses_or_traces_and_cancel_needs_responses(tmp_path: Path) -> None:
    async with house(tmp_path) as at:
        whole, models, traces = await at.key(), await at.key("", "models"), await at.key("", "traces")
        run_id = (await whole.asked("sda"))[0]["response_id"]
        for path in ("/runs", "/runs/changes", f"/runs/{run_id}", f"/runs/{run_id}/events"):
            status, told = await models.get(path)
            assert (status, told["error"]["code"]) == (403, "insufficient_scope"), path
        assert (await traces.get("/runs"))[0] == 200
        assert (await traces.post(f"/runs/{run_id}/cancel"))[0] == 403


async def test_a_run_is_told_with_those_around_it_and_why_it_ended(tmp_path: Path) -> None:
    async with house(tmp_path) as at:
        [approval] = await at.client().asked("sda")
        run_id = approval["response_id"]
        _, told = await at.client().get(f"/runs/{run_id}")
        assert (told["id"], told["waiting"], told["continued_by"]) == (run_id, True, [])
        assert told["why"] == "a person must agree to `wipe` first"
        assert (told["turns"], told["children"], told["within"]) == (1, [], None)
        await at.client().post(f"/approvals/{approval['id']}", approve=True)
        await at.client().ended(continuing_id(run_id))
        _, told = await at.client().get(f"/runs/{run_id}")
        assert [line["id"] for line in told["continued_by"]] == [continuing_id(run_id)]
        assert (await at.client().get("/runs/resp_none"))[0] == 404


async def test_the_log_of_a_run_has_verdicts_and_can_be_read_on_from_any_event(tmp_path: Path) -> None:
    async with house(tmp_path) as at:
        run_id = (await at.client().asked("sda"))[0]["response_id"]
        _, page = await at.client().get(f"/runs/{run_id}/events")
        assert [event["type"] for event in page["data"]] == [
            "run_started", "turn_started", "item_started", "item_done", "turn_ended", "call_judged", "run_ended",
        ]  # fmt: skip
        first, judged = page["data"][0], page["data"][5]
        assert (first["seq"], first["spec"]["model"], first["spec"]["tools"][0]["name"]) == (0, "obedient", "wipe")
        assert (judged["verdict"], judged["policy"], judged["reason"]) == ("ask", "asks_first", "May I wipe this disk?")
        assert page["has_more"] is False

        _, part = await at.client().get(f"/runs/{run_id}/events?limit=2&deltas=true")
        assert ([event["seq"] for event in part["data"]], part["last_seq"], part["has_more"]) == ([0, 1], 1, True)
        _, rest = await at.client().get(f"/runs/{run_id}/events?after=1&deltas=true")
        assert [event["seq"] for event in rest["data"]] == list(range(2, rest["last_seq"] + 1))
        assert "arguments_delta" in [event["type"] for event in rest["data"]]
        status, told = await at.client().get(f"/runs/{run_id}/events?after=x")
        assert (status, told["error"]["param"]) == (400, "after")


async def test_who_may_not_read_responses_sees_no_secrets_in_the_log(tmp_path: Path) -> None:
    async with house(tmp_path) as at:
        whole, traces = await at.key(), await at.key("", "traces")
        run_id = (await whole.asked("sk-abcdefghijklmnopqrstuvwx0123456789ABCDEF"))[0]["response_id"]
        for client, is_seen in ((whole, True), (traces, False)):
            _, page = await client.get(f"/runs/{run_id}/events?deltas=true")
            told = [json.dumps(event) for event in page["data"] if event["type"] in ("item_done", "arguments_delta")]
            assert any("0123456789ABCDEF" in text for text in told) is is_seen


class Feed:
    """Who follows a stream of events."""

    def __init__(self, answer: aiohttp.ClientResponse) -> None:
        self._answer = answer

    async def next(self) -> tuple[str, str, Json]:
        """The next event: its id, its name and its data."""
        fields: dict[str, str] = {}
        async with asyncio.timeout(PATIENCE):
            while (line := (await self._answer.content.readline()).decode()) not in ("\n", ""):
                name, _, value = line.rstrip("\n").partition(": ")
                fields[name] = value
        return fields.get("id", ""), fields.get("event", ""), json.loads(fields.get("data", "{}"))


@asynccontextmanager
async def following(url: str, key: str = "") -> AsyncIterator[Feed]:
    headers = {"authorization": f"Bearer {key}"} if key else {}
    async with aiohttp.ClientSession() as session, session.get(url, headers=headers) as answer:
        assert answer.status == 200
        yield Feed(answer)


async def test_the_feed_tells_that_runs_begin_wait_and_go_on(tmp_path: Path) -> None:
    async with house(tmp_path) as at, following(f"{at._url}/runs/changes") as feed:
        _, name, ready = await feed.next()
        assert (name, ready["is_complete"]) == ("ready", False)
        [approval] = await at.client().asked("sda")
        seen: list[Json] = []
        while not seen or seen[-1]["status"] == "in_progress":
            _, name, line = await feed.next()
            assert (name, line["id"]) == ("run", approval["response_id"])
            seen.append(line)
        assert (seen[-1]["status"], seen[-1]["waiting"]) == ("requires_action", True)

        async with following(f"{at._url}/runs/changes?since={ready['cursor']}") as second:
            _, name, again = await second.next()
            assert (name, again["is_complete"]) == ("ready", True)
            assert (await second.next())[2] == seen[0], "what was told since is told again"

        await at.client().post(f"/approvals/{approval['id']}", approve=True)
        states: dict[str, Json] = {}
        while states.get(continuing_id(approval["response_id"]), {}).get("status") != "completed":
            _, _, line = await feed.next()
            states[line["id"]] = line
        assert states[approval["response_id"]]["waiting"] is False, "it was answered"


async def test_the_feed_of_a_tenant_has_nothing_of_another(tmp_path: Path) -> None:
    async with house(tmp_path) as at:
        acme, zeta = await at.key("acme"), await at.key("zeta")
        key = acme._headers["authorization"].partition(" ")[2]
        async with following(f"{at._url}/runs/changes", key) as feed:
            _, _, ready = await feed.next()
            await zeta.asked("sdb")
            [own] = await acme.asked("sda")
            number, _, line = await feed.next()
            assert (line["id"], line["tenant"]) == (own["response_id"], "acme")
            assert ready["cursor"].endswith(".0")
            assert number == ready["cursor"][:-1] + "1", "what others do is not counted"
            async with following(f"{at._url}/runs/changes?since={ready['cursor']}", key) as second:
                assert (await second.next())[2] == {"cursor": ready["cursor"], "is_complete": True}
                assert (await second.next())[::2] == (number, line)


async def test_who_follows_the_feed_too_slowly_learns_that_something_is_missing() -> None:
    async with Engine(Scripted(*[say("Hello.")] * (KEPT + 1))) as engine:
        feed = ChangeFeed(engine.store)
        with feed.join():
            assert await feed.find_place("", None) is None
            first = feed.make_cursor(None)
            for _ in range(KEPT + 1):
                await engine.run("hi")
            assert await feed.read(0) is None
            assert len(await feed.read(1) or ()) == KEPT
            assert await feed.find_place(first, None) is None
            assert await feed.find_place(first, "acme") == feed.last, "acme has missed nothing"


async def test_the_feed_tells_of_runs_of_another_process(tmp_path: Path) -> None:
    script: list[Json] = [{"when": "hello", "say": "Hello there."}]
    with serving(tmp_path, script) as one, serving(tmp_path, script) as two:
        async with following(f"{one.url}/runs/changes") as feed:
            await feed.next()
            _, made = await post(two, {"input": "hello"})
            line: Json = {}
            while line.get("status") != "completed":
                _, _, line = await feed.next()
            assert (line["id"], line["prompt"]) == (made["id"], "hello")
        _, page = await get(one, f"/runs/{made['id']}/events")
        assert page["data"][-1]["type"] == "run_ended"


async def test_a_run_in_the_foreground_is_followed_live_and_cancelled_from_elsewhere(tmp_path: Path) -> None:
    script: list[Json] = [{"when": "hello", "say": "Well " * 2000, "pause": 0.01}]
    with serving(tmp_path, script) as served:
        waiting = asyncio.create_task(post(served, {"input": "hello"}))
        async with following(f"{served.url}/runs/changes") as feed:
            await feed.next()
            _, page = await get(served, "/runs")
            line = page["data"][0] if page["data"] else (await feed.next())[2]
        assert line["status"] == "in_progress"
        async with following(f"{served.url}/runs/{line['id']}/events?stream=true") as log:
            _, _, event = await log.next()
            assert (event["seq"], event["type"]) == (0, "run_started")
            while event["type"] != "text_delta":
                _, _, event = await log.next()
            async with aiohttp.ClientSession() as session, session.post(f"{served.url}/runs/{line['id']}/cancel") as answer:
                told = await answer.json()
            assert (answer.status, told["status"], told["why"]) == (200, "cancelled", "the run was stopped")
            while event["type"] != "run_ended":
                _, _, event = await log.next()
            assert event["status"] == "cancelled"
        await waiting
        async with aiohttp.ClientSession() as session, session.post(f"{served.url}/runs/{line['id']}/cancel") as answer:
            assert (await answer.json())["status"] == "cancelled", "what has ended stays as it is"


async def test_a_paced_stream_tells_the_same_in_fewer_events(tmp_path: Path) -> None:
    with serving(tmp_path, [{"say": "Well, well."}]) as served:
        _, made = await post(served, {"input": "hello"})
        told: list[list[Json]] = []
        for query in ("", "&pace=20"):
            events: list[Json] = []
            async with following(f"{served.url}/runs/{made['id']}/events?stream=true{query}") as log:
                while not events or events[-1]["type"] != "run_ended":
                    events.append((await log.next())[2])
            told.append(events)
        every, [whole] = [[event for event in events if event["type"] == "text_delta"] for events in told]
        assert [piece["delta"] for piece in every] == list("Well, well.")
        assert whole == {**every[-1], "delta": "Well, well."}
        assert [event for event in told[1] if event != whole] == [event for event in told[0] if event not in every]
        status, refused = await get(served, f"/runs/{made['id']}/events?stream=true&pace=0")
        assert (status, refused["error"]["param"]) == (400, "pace")
