"""Approvals over HTTP: what waits is listed, is answered once and in time by its own tenant, and then runs exactly once."""

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from anyio import to_thread
from msgspec.structs import replace
from tests.kit.databases import database_in
from tests.kit.processes import DEVNULL, Process, start
from tests.server.asking import asking
from tests.server.hosting import hosted
from tests.server.process import Script, serving

from mainspring.app.engine import Engine
from mainspring.app.server import server
from mainspring.core.events import RunStarted
from mainspring.core.items import ApprovalRequest, Json, ServerTool, ToolDefinition, decode, encode
from mainspring.engine.approvals import GIVEN, ApprovalAnswer, continuing_id
from mainspring.features.approvals.pending import Approvals
from mainspring.http.auth import Keys
from mainspring.http.endpoints import KeyScope
from mainspring.ports import Document

pytestmark = pytest.mark.usefixtures("each_database")

ASKING = Path(__file__).with_name("asking.py")
SECONDS = 30.0


class Client:
    """Whoever sends requests, with one key or without."""

    def __init__(self, session: aiohttp.ClientSession, url: str, key: str = "") -> None:
        self._session, self._url = session, url
        self._headers = {"authorization": f"Bearer {key}"} if key else {}

    async def get(self, path: str) -> tuple[int, Json]:
        async with self._session.get(self._url + path, headers=self._headers) as answer:
            return answer.status, await answer.json()

    async def post(self, path: str, **body: Any) -> tuple[int, Json]:
        async with self._session.post(self._url + path, json=body, headers=self._headers) as answer:
            return answer.status, await answer.json()

    async def asked(self, *disks: str, **more: Any) -> list[Json]:
        """Has disks wiped, and returns the approvals that wait for that, in the order of the calls."""
        status, response = await self.post("/responses", input=f"Wipe {' '.join(disks)}", **more)
        assert status == 200, response
        found = [await self.get(f"/approvals/{item['id']}") for item in response["output"] if item["type"] == APPROVAL]
        assert [status for status, _ in found] == [200] * len(disks)
        return [approval for _, approval in found]

    async def ended(self, response_id: str) -> Json:
        """The response once it has ended: a stream of it ends then."""
        async with asyncio.timeout(SECONDS), self._session.get(f"{self._url}/responses/{response_id}?stream=true") as stream:
            await stream.read()
        return (await self.get(f"/responses/{response_id}"))[1]


APPROVAL = "mcp_approval_request"


class House:
    def __init__(self, engine: Engine, tally: Path, url: str, session: aiohttp.ClientSession) -> None:
        self.engine, self._tally, self._url, self._session = engine, tally, url, session

    def client(self, key: str = "") -> Client:
        return Client(self._session, self._url, key)

    async def key(self, tenant: str = "", *scopes: KeyScope) -> Client:
        return self.client(await Keys(self.engine.store).create(tenant=tenant, scopes=scopes or ("*",)))

    @property
    def done(self) -> list[str]:
        """What the tool has done so far."""
        return self._tally.read_text().splitlines()


@asynccontextmanager
async def house(folder: Path, **options: float) -> AsyncIterator[House]:
    engine = asking(database_in(folder), folder / "tally", **options)
    async with hosted(server(engine)) as url, aiohttp.ClientSession() as session:
        yield House(engine, folder / "tally", url, session)


def text(response: Json) -> str:
    return "".join([part["text"] for item in response["output"] if item["type"] == "message" for part in item["content"]])


@pytest.mark.requirement("D67")
async def test_what_waits_is_shown_with_its_arguments_digest_and_rule_and_runs_once_when_it_is_approved(tmp_path: Path) -> None:
    async with house(tmp_path) as at:
        client = at.client()
        [approval] = await client.asked("sda")
        assert approval == {
            "id": approval["id"],
            "object": "approval",
            "response_id": approval["response_id"],
            "tool": "wipe",
            "server_label": "",
            "arguments": '{"disk":"sda"}',
            "digest": sha256(b'{"disk":"sda"}').hexdigest(),
            "policy": "asks_first",
            "question": "May I wipe this disk?",
            "asked_at": approval["asked_at"],
            "expires_at": approval["asked_at"] + 3600,
            "state": "pending",
            "continued_by": None,
        }
        assert at.done == []
        status, begun = await client.post(f"/approvals/{approval['id']}", approve=True, digest=approval["digest"])
        assert (status, begun["background"], begun["previous_response_id"]) == (200, True, approval["response_id"])
        assert text(await client.ended(begun["id"])) == "It says: wiped sda"
        assert at.done == ["begin sda", "end sda"]
        _, later = await client.get(f"/approvals/{approval['id']}")
        assert (later["state"], later["continued_by"]) == ("approved", begun["id"])


async def test_a_refusal_is_told_to_the_model_with_its_reason(tmp_path: Path) -> None:
    async with house(tmp_path) as at:
        [approval] = await at.client().asked("sda")
        body = {"approve": False, "reason": "It is in use", "background": False}
        status, response = await at.client().post(f"/approvals/{approval['id']}", **body)
        assert (status, text(response)) == (200, "It says: A person refused this call: It is in use.")
        assert at.done == []
        assert (await at.client().get(f"/approvals/{approval['id']}"))[1]["state"] == "refused"


async def test_an_answer_counts_once_whichever_door_it_comes_by(tmp_path: Path) -> None:
    async with house(tmp_path) as at:
        client = at.client()
        [approval] = await client.asked("sda")
        path = f"/approvals/{approval['id']}"
        said = {"type": "mcp_approval_response", "approval_request_id": approval["id"], "approve": True}
        same = {"input": [said], "previous_response_id": approval["response_id"]}
        answers = await asyncio.gather(
            *[client.post(path, approve=True, background=False) for _ in range(5)], client.post("/responses", **same)
        )
        assert sorted([status for status, _ in answers])[0] == 200
        codes = [answer["error"]["code"] for status, answer in answers if status != 200]
        assert codes == ["approval_already_given"] * 5, answers
        for _ in range(2):
            status, again = await client.post(path, approve=False)
            assert (status, again["error"]["code"]) == (409, "approval_already_given")
        status, again = await client.post("/responses", **same)
        assert (status, again["error"]["code"]) == (400, "approval_already_given")
        assert at.done == ["begin sda", "end sda"]


async def test_an_answer_by_the_responses_api_shows_in_the_list(tmp_path: Path) -> None:
    async with house(tmp_path) as at:
        [approval] = await at.client().asked("sda")
        said = {"type": "mcp_approval_response", "approval_request_id": approval["id"], "approve": True}
        _, response = await at.client().post("/responses", input=[said], previous_response_id=approval["response_id"])
        assert text(response) == "It says: wiped sda"
        _, page = await at.client().get("/approvals?state=approved")
        assert [(found["id"], found["continued_by"]) for found in page["data"]] == [(approval["id"], response["id"])]
        assert (await at.client().get("/approvals?state=pending"))[1]["data"] == []


async def test_deleting_the_response_that_acted_does_not_make_the_approval_good_again(tmp_path: Path) -> None:
    async with house(tmp_path) as at:
        [approval] = await at.client().asked("sda")
        path = f"/approvals/{approval['id']}"
        _, response = await at.client().post(path, approve=True, background=False)
        await at.engine.forget(response["id"])
        status, again = await at.client().post(path, approve=True)
        assert (status, again["error"]["code"]) == (409, "approval_already_given")
        assert at.done == ["begin sda", "end sda"]


async def test_arguments_that_are_not_those_that_were_seen_are_not_approved(tmp_path: Path) -> None:
    async with house(tmp_path) as at:
        [first] = await at.client().asked("sda")
        [second] = await at.client().asked("sdb")
        status, answer = await at.client().post(f"/approvals/{second['id']}", approve=True, digest=first["digest"])
        assert (status, answer["error"]["code"], answer["error"]["param"]) == (400, "digest_mismatch", "digest")
        status, answer = await at.client().post(f"/approvals/{second['id']}", approve=True, sha256=first["digest"])
        assert (status, answer["error"]["code"], answer["error"]["param"]) == (400, "unknown_parameter", "sha256")
        assert at.done == []
        assert (await at.client().get(f"/approvals/{second['id']}"))[1]["state"] == "pending"


async def test_an_expired_approval_cannot_be_given_through_any_door_but_can_be_refused(tmp_path: Path) -> None:
    async with house(tmp_path, approval_seconds=1e-6) as at:
        client = at.client()
        [approval] = await client.asked("sda")
        assert approval["state"] == "expired"
        status, late = await client.post(f"/approvals/{approval['id']}", approve=True)
        assert (status, late["error"]["code"]) == (410, "approval_expired")
        said = {"type": "mcp_approval_response", "approval_request_id": approval["id"], "approve": True}
        status, late = await client.post("/responses", input=[said], previous_response_id=approval["response_id"])
        assert (status, late["error"]["code"]) == (400, "approval_expired")
        status, refused = await client.post(f"/approvals/{approval['id']}", approve=False, background=False)
        assert (status, text(refused)) == (200, "It says: A person refused this call.")
        assert at.done == []


async def test_an_approval_in_a_conversation_expires_too(tmp_path: Path) -> None:
    async with house(tmp_path, approval_seconds=1e-6) as at:
        client = at.client()
        _, conversation = await client.post("/conversations")
        _, asked = await client.post("/responses", input="Wipe sda", conversation=conversation["id"])
        [waits] = asked["required_input"]
        answer = [{**waits, "approve": True}]
        status, late = await client.post("/responses", input=answer, conversation=conversation["id"])
        assert (status, late["error"]["code"]) == (400, "approval_expired")
        assert at.done == []


async def test_a_conversation_goes_on_with_what_was_approved(tmp_path: Path) -> None:
    async with house(tmp_path) as at:
        _, conversation = await at.client().post("/conversations")
        [approval] = await at.client().asked("sda", conversation=conversation["id"])
        _, response = await at.client().post(f"/approvals/{approval['id']}", approve=True, background=False)
        assert (text(response), response["conversation"]) == ("It says: wiped sda", {"id": conversation["id"]})


async def test_a_response_that_asks_about_two_calls_goes_on_when_both_are_answered(tmp_path: Path) -> None:
    async with house(tmp_path) as at:
        client = at.client()
        first, second = await client.asked("sda", "sdb")
        status, waits = await client.post(f"/approvals/{first['id']}", approve=True)
        assert (status, waits["id"], waits["state"], waits["continued_by"]) == (202, first["id"], "approved", None)
        status, again = await client.post(f"/approvals/{first['id']}", approve=True)
        assert (status, again["error"]["code"]) == (409, "approval_already_given")
        assert at.done == []
        status, response = await client.post(f"/approvals/{second['id']}", approve=False, reason="Not that", background=False)
        assert (status, text(response)) == (200, "It says: wiped sda; A person refused this call: Not that.")
        assert at.done == ["begin sda", "end sda"]


async def test_a_response_that_also_waits_for_its_client_is_answered_by_its_client(tmp_path: Path) -> None:
    async with house(tmp_path) as at:
        locate = {"type": "function", "name": "locate", "parameters": {"type": "object"}, "strict": False}
        _, asked = await at.client().post("/responses", input="Locate sda", tools=[locate])
        [waits] = [item for item in asked["output"] if item["type"] == APPROVAL]
        status, refused = await at.client().post(f"/approvals/{waits['id']}", approve=True)
        assert (status, refused["error"]["code"]) == (400, "answer_by_response")
        assert "output of `locate`" in refused["error"]["message"]
        assert (await at.client().get(f"/approvals/{waits['id']}"))[1]["state"] == "pending"


async def test_a_foreign_tenant_finds_nothing_and_a_key_needs_the_scope(tmp_path: Path) -> None:
    async with house(tmp_path) as at:
        ours, theirs = await at.key("acme"), await at.key("other")
        approver, reader = await at.key("acme", "approvals"), await at.key("acme", "responses")
        [approval] = await ours.asked("sda")
        path = f"/approvals/{approval['id']}"
        assert (await theirs.get("/approvals"))[1]["data"] == []
        assert (await theirs.get(path))[0] == (await theirs.post(path, approve=True))[0] == 404
        assert (await theirs.get(f"/approvals?after={approval['id']}"))[0] == 404
        assert (await reader.get(path))[1]["error"]["code"] == "insufficient_scope"
        assert (await reader.post(path, approve=True))[0] == 403
        assert (
            (await theirs.get("/approvals?tenant=acme"))[0] == (await theirs.post(f"{path}?tenant=acme", approve=True))[0] == 403
        )
        assert at.done == []
        assert (await approver.post(path, approve=True, background=False))[0] == 200
        assert at.done == ["begin sda", "end sda"]


async def test_an_operator_answers_for_a_tenant_that_is_named(tmp_path: Path) -> None:
    async with house(tmp_path) as at:
        ours, operator = await at.key("acme"), await at.key()
        [approval] = await ours.asked("sda")
        path = f"/approvals/{approval['id']}"
        assert (await operator.get("/approvals"))[1]["data"] == []
        assert [each["id"] for each in (await operator.get("/approvals?tenant=acme"))[1]["data"]] == [approval["id"]]
        assert (await operator.post(path, approve=True))[0] == 404
        status, answered = await operator.post(f"{path}?tenant=acme", approve=True, background=False)
        assert (status, at.done) == (200, ["begin sda", "end sda"])
        assert (await ours.get(f"/responses/{answered['id']}"))[0] == 200


async def test_the_list_has_cursors_and_filters_and_forgets_what_was_deleted(tmp_path: Path) -> None:
    async with house(tmp_path) as at:
        client = at.client()
        asked = [(await client.asked(f"sd{letter}"))[0] for letter in "abcd"]
        ids = [approval["id"] for approval in asked]
        await client.post(f"/approvals/{ids[1]}", approve=False, background=False)
        _, page = await client.get("/approvals?limit=3")
        assert ([found["id"] for found in page["data"]], page["has_more"]) == ([ids[3], ids[2], ids[1]], True)
        _, page = await client.get(f"/approvals?limit=3&after={page['last_id']}")
        assert ([found["id"] for found in page["data"]], page["has_more"]) == ([ids[0]], False)
        _, page = await client.get("/approvals?order=asc&state=pending&limit=2")
        assert ([found["id"] for found in page["data"]], page["has_more"]) == ([ids[0], ids[2]], True)
        await at.engine.forget(asked[0]["response_id"])
        assert (await client.get(f"/approvals/{ids[0]}"))[0] == 404
        assert (await client.get("/approvals?order=asc"))[1]["first_id"] == ids[1]
        status, refused = await client.get("/approvals?state=open")
        assert (status, refused["error"]["param"]) == (400, "state")


async def test_secrets_in_arguments_are_not_shown(tmp_path: Path) -> None:
    async with house(tmp_path) as at:
        [approval] = await at.client().asked("ghp_0123456789abcdefghijABCDEFGHIJ")
        assert approval["arguments"] == '{"disk":"[redacted]"}'
        assert approval["digest"] == sha256(b'{"disk":"ghp_0123456789abcdefghijABCDEFGHIJ"}').hexdigest()


@pytest.mark.parametrize("used", [False, True])
async def test_an_answer_whose_process_died_before_the_run_began_can_be_given_again(tmp_path: Path, used: bool) -> None:
    async with house(tmp_path) as at:
        [approval] = await at.client().asked("sda")
        path = f"/approvals/{approval['id']}"
        # What such a process leaves: the answer, kept for a run that is not there.
        left = ApprovalAnswer(continuing_id(approval["response_id"]), approve=True, at=time.time(), used=used)
        await at.engine.store.put([Document(GIVEN, approval["id"], encode(left))])
        if used:  # of an old one nobody knows whether its run was pruned
            await at.engine.store.put([Document(GIVEN, approval["id"], encode(replace(left, at=1.0)))])
            assert (await at.client().post(path, approve=True))[0] == 409
            await at.engine.store.put([Document(GIVEN, approval["id"], encode(left))])
        assert (await at.client().post(path, approve=False))[0] == 409
        _, response = await at.client().post(path, approve=True, background=False)
        assert (text(response), at.done) == ("It says: wiped sda", ["begin sda", "end sda"])
        found = await at.engine.store.get(GIVEN, approval["id"])
        assert found is not None
        assert decode(found.body, ApprovalAnswer).used
        assert (await at.client().post(path, approve=True))[0] == 409
        await at.engine.forget(response["id"])
        assert (await at.client().post(path, approve=True))[0] == 409, "the run that used it is gone, and the call was made"
        assert at.done == ["begin sda", "end sda"]


CLOCK = f"""
[mcp.clock]
command = {sys.executable!r}
args = ["-m", "mcp_server_time", "--local-timezone", "UTC"]
require_approval = "always"
"""


@pytest.mark.slow
async def test_a_call_of_the_operators_mcp_server_is_approved_and_performed_there(tmp_path: Path) -> None:
    (tmp_path / "mainspring.toml").write_text(CLOCK)
    turns: Script = [
        {"calls": [{"name": "get_current_time", "arguments": {"timezone": "UTC"}}]},
        {"say": "Noon.", "expect": "UTC"},
    ]
    with serving(tmp_path, turns) as served:
        async with aiohttp.ClientSession() as session:
            client = Client(session, served.url)
            _, asked = await client.post("/responses", input="What time is it?")
            [waits] = [item for item in asked["output"] if item["type"] == APPROVAL]
            _, approval = await client.get(f"/approvals/{waits['id']}")
            assert (approval["server_label"], approval["tool"]) == ("clock", "get_current_time")
            _, response = await client.post(f"/approvals/{waits['id']}", approve=True, background=False)
    performed, said = response["output"]
    assert (performed["type"], performed["status"], performed["approval_request_id"]) == ("mcp_call", "completed", waits["id"])
    assert said["content"][0]["text"] == "Noon."


async def test_a_call_of_a_server_that_the_request_brought_is_answered_by_who_brought_it(tmp_path: Path) -> None:
    """Its credentials are kept nowhere, so only the client can give them again."""
    async with house(tmp_path) as at:
        [approval] = await at.client().asked("sda")
        log = await at.engine.store.events(approval["response_id"])
        first = log[0].event
        assert isinstance(first, RunStarted)
        theirs = ToolDefinition("add", kind="mcp", server=ServerTool("sums", "add"))
        spec = replace(first.spec, id="resp_theirs", tools=(*first.spec.tools, theirs))
        run = await (await at.engine.core._start_prepared(spec, None)).wait()
        [waits] = [item for item in run.output if isinstance(item, ApprovalRequest)]
        status, refused = await at.client().post(f"/approvals/{waits.id}", approve=True)
        assert (status, refused["error"]["code"]) == (400, "answer_by_response")
        assert "`sums`" in refused["error"]["message"]
        assert (await at.client().get(f"/approvals/{waits.id}"))[1]["state"] == "pending"
        assert at.done == []


@contextmanager
def process(folder: Path) -> Iterator[tuple[Process, str]]:
    """A server process that can be killed, and its address."""
    command = [sys.executable, str(ASKING), database_in(folder), str(folder / "tally")]
    with start(command, stderr=DEVNULL) as running:
        assert running.stdout is not None
        port = running.stdout.readline().strip()
        try:
            yield running, f"http://127.0.0.1:{port}/v1"
        finally:
            running.kill()


@pytest.mark.slow
async def test_a_server_that_is_killed_before_or_after_the_approved_tool_starts_performs_it_once(tmp_path: Path) -> None:
    """The next server takes the run up. What had begun and never ended is reported as unknown, and not begun again."""
    tally = tmp_path / "tally"
    with process(tmp_path) as (running, url):
        async with aiohttp.ClientSession() as session:
            client = Client(session, url)
            [soon], [late] = await client.asked("sda"), await client.asked("deaf")
            _, second = await client.post(f"/approvals/{late['id']}", approve=True)
            assert running.stdout is not None
            assert await to_thread.run_sync(running.stdout.readline) == "begin deaf\n"
            # Killed as soon as the answer is there: the tool may have begun or not.
            _, first = await client.post(f"/approvals/{soon['id']}", approve=True)
            running.kill()
            running.wait(SECONDS)
    with process(tmp_path) as (_, url):
        async with aiohttp.ClientSession() as session:
            client = Client(session, url)
            told = text(await client.ended(first["id"]))
            unknown = text(await client.ended(second["id"]))
            assert (await client.post(f"/approvals/{soon['id']}", approve=True))[0] == 409
            assert (await client.post(f"/approvals/{late['id']}", approve=True))[0] == 409
    lines = tally.read_text().splitlines()
    assert lines.count("begin deaf") == 1
    assert "outcome is unknown" in unknown
    assert lines.count("begin sda") == 1 or "outcome is unknown" in told
    assert lines.count("begin sda") <= 1
    assert ("wiped sda" in told) or ("outcome is unknown" in told)


async def test_a_list_ends_with_the_approval_that_makes_it_large(tmp_path: Path) -> None:
    async with asking(database_in(tmp_path), tmp_path / "tally") as engine:
        for _ in range(2):
            await engine.run(f"Wipe {' '.join(disk * 499_000 for disk in 'abcdefghij')}")
        approvals = Approvals(engine.core)
        page = await approvals.list(limit=100)
        assert (len(page.approvals), page.has_more) == (17, True)
        rest = await approvals.list(limit=100, after=page.approvals[-1].id)
        assert ([approval.arguments[9] for approval in rest.approvals], rest.has_more) == (["c", "b", "a"], False)


async def test_arguments_of_any_length_can_be_looked_at(tmp_path: Path) -> None:
    async with asking(database_in(tmp_path), tmp_path / "tally") as engine:
        await engine.run(f"Wipe {'a' * 3_000_000}")
        [approval] = (await Approvals(engine.core).list()).approvals
        assert len(approval.arguments) < 510_000
        assert "characters left out" in approval.arguments
