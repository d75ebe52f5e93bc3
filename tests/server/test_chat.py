"""`/v1/chat` and `/v1/decisions` on a real server, with a real task server behind them."""

import sqlite3
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, closing, suppress
from hashlib import sha256
from pathlib import Path

import anyio
import msgspec
import pytest
from aiohttp import ClientError, ClientSession
from msgspec.structs import replace
from tests.decisions.world import Actor, Cue, answer, heard, last_output, on
from tests.kit.databases import database_in
from tests.kit.processes import run
from tests.kit.waiting import PATIENCE
from tests.server.hosting import hosted
from tests.server.process import Script, serving

from mainspring.app.engine import Engine
from mainspring.app.server import server
from mainspring.core.conversation_items import ITEM
from mainspring.core.errors import InvalidRequest
from mainspring.core.events import Recorded
from mainspring.core.history import ASKED
from mainspring.core.items import Json, decode, encode
from mainspring.core.items import Message as MessageItem
from mainspring.core.model_request import ModelRequest
from mainspring.core.run import Run
from mainspring.engine.approvals import ApprovalQuestion
from mainspring.features.traces.otel import Exporter
from mainspring.features.traces.trace_record import TraceRecord
from mainspring.http.auth import ApiCaller, Keys
from mainspring.http.idempotency import GRACE, REPLY_KEY, Reservation
from mainspring.parts import PartContents
from mainspring.ports import Document
from mainspring.providers.scripted import Turn, call
from mainspring.storage.sqlite_runs import SqliteStore
from mainspring_tasks import words
from mainspring_tasks.decision_log import DecisionLogs
from mainspring_tasks.decision_settings import DecisionSettings, check_constitution
from mainspring_tasks.part import build
from mainspring_tasks.reports import DecisionReport
from mainspring_tasks.routes import identify_person, serve_chat
from mainspring_tasks.server.identity import verify_tokens
from mainspring_tasks.server.serve_tasks import Address, build_application
from mainspring_tasks.server.sqlite_tasks import SqliteTasks

LIST = call("list_tasks")


class Door:
    """A server, the model behind it, and whoever comes with a key."""

    def __init__(self, url: str, actor: Actor, engine: Engine, client: ClientSession) -> None:
        self.url, self.actor, self.engine, self.client = url, actor, engine, client
        self.keys = Keys(engine.store)

    async def post(self, path: str, body: object, *, key: str | None = None, status: int = 200) -> Json:
        headers = {} if key is None else {"authorization": f"Bearer {key}"}
        async with self.client.post(self.url + path, json=body, headers=headers) as reply:
            found: Json = await reply.json()
            assert reply.status == status, found
            return found

    async def get(self, path: str, *, key: str | None = None, status: int = 200) -> Json:
        headers = {} if key is None else {"authorization": f"Bearer {key}"}
        async with self.client.get(self.url + path, headers=headers) as reply:
            assert reply.status == status, await reply.text()
            found: Json = await reply.json()
            return found

    async def chat(self, content: str, *cues: Cue, conversation: str | None = None, key: str | None = None) -> Json:
        self.actor.then(*cues)
        body = {"content": content} | ({} if conversation is None else {"conversation_id": conversation})
        reply = await self.post("/chat", body, key=key)
        self.actor.assert_done()
        return reply


@asynccontextmanager
async def door(folder: Path, settings: DecisionSettings | None = None) -> AsyncIterator[Door]:
    actor = Actor()
    chat = PartContents(serve=lambda host: serve_chat(host, settings or DecisionSettings()))
    engine = Engine(actor, database=database_in(folder), parts=[chat])
    async with hosted(server(engine)) as url, ClientSession() as client:
        yield Door(url, actor, engine, client)


@pytest.mark.usefixtures("each_database")
async def test_a_conversation_is_kept_and_told_to_the_model(tmp_path: Path) -> None:
    async with door(tmp_path) as d:
        first = await d.chat("Add buy milk", call("add_task", description="Buy milk"), answer("Added.", "CREATE_TASK"))
        assert first["decision"]["decision_type"] == "INVOKE_TOOL"
        assert (first["message"]["role"], first["message"]["content"]) == ("assistant", "Added.")
        assert first["messages"][-1] == first["message"]
        assert first["message"]["created_at"].endswith("Z")

        def remembers(request: ModelRequest) -> Turn:
            said = [(item.role, item.text) for item in request.items if isinstance(item, MessageItem)]
            assert said == [("user", "Add buy milk"), ("assistant", "Added."), ("user", "Thanks!")]
            return answer("You're welcome.")

        second = await d.chat("Thanks!", remembers, conversation=first["conversation_id"])
        assert [message["content"] for message in second["messages"]] == ["Add buy milk", "Added.", "Thanks!", "You're welcome."]
        # Whoever comes back finds it by what was said first, and reads it again.
        other = await d.chat("Hello", answer("Hi!"))
        listed = await d.get("/chat/conversations?limit=1")
        (newest,) = listed["data"]
        assert (newest["id"], newest["title"], listed["has_more"]) == (other["conversation_id"], "Hello", True)
        further = await d.get(f"/chat/conversations?after={listed['last_id']}")
        assert ([each["title"] for each in further["data"]], further["has_more"]) == (["Add buy milk"], False)
        read = await d.get(f"/chat/conversations/{first['conversation_id']}")
        assert read == {"conversation_id": first["conversation_id"], "messages": second["messages"]}
        await d.get("/chat/conversations/conv_none", status=404)
        await d.get("/chat/conversations?after=conv_none", status=404)
    if "://" in database_in(tmp_path):
        assert [path async for path in anyio.Path(tmp_path).iterdir()] == [], "nothing is left in a file"


@pytest.mark.requirement("D40")
@pytest.mark.usefixtures("each_database")
async def test_deleting_asks_in_one_request_and_is_done_in_the_next(tmp_path: Path) -> None:
    async with door(tmp_path) as d:
        said = await d.chat("add tea", call("add_task", description="Tea"), answer("Added.", "CREATE_TASK"))
        conversation = said["conversation_id"]
        asked = await d.chat("delete tea", LIST, on("delete_task", "Tea"), conversation=conversation)
        assert asked["decision"]["decision_type"] == "REQUEST_CONFIRMATION"
        assert asked["message"]["content"] == words.CONFIRM.format(task="Tea")
        given = await d.chat("yes", answer("Gone.", "DELETE_TASK"), conversation=conversation)
        assert given["decision"]["decision_type"] == "EXECUTE_PENDING"
        left = await d.chat("list", LIST, answer("Nothing.", "LIST_TASKS"), conversation=conversation)
        assert left["decision"]["tool_calls"] == [{"tool_name": "list_tasks", "parameters": {"user_id": "local"}, "sequence": 1}]


async def test_a_change_is_undone_by_the_same_person_in_the_same_conversation_once(tmp_path: Path) -> None:
    async with door(tmp_path) as d:
        ada, bob = await d.keys.create(tenant="ada"), await d.keys.create(tenant="bob")
        said = await d.chat("add tea", call("add_task", description="Tea"), answer("Added.", "CREATE_TASK"), key=ada)
        conversation = said["conversation_id"]
        await d.post("/chat", {"content": "undo", "conversation_id": conversation}, key=bob, status=404)
        # A model that is fooled, or not sure, undoes nothing.
        for message, sure in (
            ("thanks", 1),
            ("what is on my list?", 1),
            ("show my tasks", 1),
            ("don't undo that", 1),
            ("hm", 0.4),
        ):
            cue = answer("Gern.", "DELETE_TASK", "undo", sure=sure)
            kept = await d.chat(message, cue, conversation=conversation, key=ada)
            assert kept["decision"]["tool_calls"] == []
        elsewhere = await d.chat("undo", key=ada)
        assert elsewhere["message"]["content"] == words.NOTHING_TO_UNDO
        undone = await d.chat("zurück damit", answer("Gern.", "DELETE_TASK", "undo"), conversation=conversation, key=ada)
        assert undone["message"]["content"] == 'I\'ve undone that: "Tea" is off your list again.'
        assert [each["tool_name"] for each in undone["decision"]["tool_calls"]] == ["delete_task"]
        again = await d.chat("undo", conversation=conversation, key=ada)
        assert again["message"]["content"] == words.NOTHING_TO_UNDO

        def empty(request: ModelRequest) -> Turn:
            assert last_output(request)["data"] == []
            return answer("Nothing.", "LIST_TASKS")

        await d.chat("list", LIST, empty, conversation=conversation, key=ada)


async def test_two_tenants_have_two_lists_and_no_conversation_in_common(tmp_path: Path) -> None:
    async with door(tmp_path) as d:
        ada = await d.keys.create(tenant="ada")
        bob = await d.keys.create(tenant="bob")
        said = await d.chat("add plan", call("add_task", description="Secret plan"), answer("Added.", "CREATE_TASK"), key=ada)

        def empty(request: ModelRequest) -> Turn:
            assert "Secret" not in str(request.items)
            return answer("Nothing.", "LIST_TASKS")

        await d.chat("list", LIST, empty, key=bob)
        lost = await d.post("/chat", {"content": "hi", "conversation_id": said["conversation_id"]}, key=bob, status=404)
        assert lost["error"]["param"] == "conversation_id"
        await d.get(f"/chat/conversations/{said['conversation_id']}", key=bob, status=404)
        assert [each["title"] for each in (await d.get("/chat/conversations", key=bob))["data"]] == ["list"]
        plain = [await d.keys.create(), await d.keys.create()]
        own = await d.chat("hi", answer("Hi!"), key=plain[0])
        await d.post("/chat", {"content": "hi", "conversation_id": own["conversation_id"]}, key=plain[1], status=404)


async def test_no_other_door_leads_to_what_somebody_said(tmp_path: Path) -> None:
    """Two keys of one tenant: neither the list of responses, nor conversations, nor approvals show what is between others."""
    async with door(tmp_path) as d:
        ada, bob = await d.keys.create(), await d.keys.create()
        said = await d.chat("add plan", call("add_task", description="Secret plan"), answer("Added.", "CREATE_TASK"), key=ada)
        conversation = said["conversation_id"]
        asked = await d.chat("delete the plan", LIST, on("delete_task", "Secret plan"), conversation=conversation, key=ada)
        assert asked["decision"]["decision_type"] == "REQUEST_CONFIRMATION"
        (own,) = [tenant for tenant in await tenants(d) if "\x1f" in tenant]
        (approval,) = await d.engine.store.documents(ASKED, tenant=own)
        for path in ("/responses", "/approvals", "/approvals?state=pending"):
            assert (await d.get(path, key=bob))["data"] == []
        for path in (f"/conversations/{conversation}", f"/conversations/{conversation}/items", f"/approvals/{approval.id}"):
            await d.get(path, key=bob, status=404)
        await d.post(f"/conversations/{conversation}", {"metadata": {"user": "bob"}}, key=bob, status=404)
        await d.post("/chat", {"content": "hi", "conversation_id": conversation}, key=bob, status=404)
        refusal = {"type": "mcp_approval_response", "approval_request_id": approval.id, "approve": False}
        run_id = decode(approval.body, ApprovalQuestion).run
        await d.post("/responses", {"input": [refusal], "previous_response_id": run_id}, key=bob, status=400)
        async with d.client.delete(f"{d.url}/responses/{run_id}", headers={"authorization": f"Bearer {bob}"}) as reply:
            assert reply.status == 404
        given = await d.chat("yes", answer("Gone."), conversation=conversation, key=ada)
        assert given["decision"]["decision_type"] == "EXECUTE_PENDING"


async def tenants(d: Door) -> set[str]:
    runs = (await d.engine.store.list(limit=100)).runs
    return {(await d.engine.attach(run.id)).run.spec.tenant for run in runs}


async def test_no_tenant_has_the_name_of_somebody_else(tmp_path: Path) -> None:
    async with door(tmp_path) as d:
        ada = await d.keys.create()
        id = ada.split("_")[1]
        names = [
            ApiCaller(subject=f"key:{id}"),
            ApiCaller(f"key:{id}"),
            ApiCaller(f"tenant:key:{id}"),
            ApiCaller(),
            ApiCaller("local"),
        ]
        assert len({identify_person(caller) for caller in names}) == len(names)
        await d.chat("add plan", call("add_task", description="Secret plan"), answer("Added.", "CREATE_TASK"), key=ada)
        same = await d.keys.create(tenant=f"key:{id}")

        def empty(request: ModelRequest) -> Turn:
            assert "Secret" not in str(request.items)
            return answer("Nothing.", "LIST_TASKS")

        await d.chat("list", LIST, empty, key=same)
        with pytest.raises(InvalidRequest, match="printable"):
            await d.keys.create(tenant=f"\x1fkey:{id}")


async def test_a_request_that_is_sent_again_is_the_same_request(tmp_path: Path) -> None:
    async with door(tmp_path) as d:
        body, key = {"content": "add tea"}, {"Idempotency-Key": "k1"}
        d.actor.then(call("add_task", description="Tea"), answer("Added.", "CREATE_TASK"))

        async def sent(path: str, body: Json, headers: dict[str, str]) -> tuple[int, Json, str | None]:
            async with d.client.post(d.url + path, json=body, headers=headers) as reply:
                return reply.status, await reply.json(), reply.headers.get("x-decision-id")

        found: list[tuple[int, Json, str | None]] = []

        async def send() -> None:
            found.append(await sent("/chat", body, key))

        async with anyio.create_task_group() as group:
            for _ in range(3):
                group.start_soon(send)
        assert found[0][0] == 200
        assert found == [found[0]] * 3
        assert await sent("/chat", body, key) == found[0]
        status, other, _ = await sent("/chat", {"content": "add rum"}, key)
        assert (status, other["error"]["code"]) == (409, "idempotency_key_reused")
        status, refused, _ = await sent("/chat", {"content": "hi", "conversation_id": "conv_nowhere"}, {"Idempotency-Key": "k2"})
        assert (status, refused["error"]["code"]) == (404, "not_found")
        d.actor.then(call("add_task", description="Rum"), answer("Added.", "CREATE_TASK"))
        context = {"message": "add rum", "conversation_id": "c"}
        once = await sent("/decisions", context, {"Idempotency-Key": "k2"})
        assert (once[0], await sent("/decisions", context, {"Idempotency-Key": "k2"})) == (200, once)
        d.actor.assert_done()


async def test_a_reply_that_nobody_saw_is_not_made_up(tmp_path: Path) -> None:
    async with door(tmp_path) as d:
        raw = b'{"content": "add tea"}'
        id = sha256(b"local\0/v1/chat\0k1").hexdigest()
        await d.engine.store.put([Document(REPLY_KEY, id, encode(Reservation(sha256(raw).hexdigest(), time.time())))])
        headers = {"Idempotency-Key": "k1", "content-type": "application/json"}
        async with d.client.post(d.url + "/chat", data=raw, headers=headers) as reply:
            assert (reply.status, (await reply.json())["error"]["code"]) == (409, "idempotency_reply_unknown")


async def lose_reply(folder: Path) -> None:
    """Leaves the key as a process does that died before it could keep its reply."""
    async with SqliteStore(folder / "runs.db") as store:
        (found,) = await store.documents(REPLY_KEY, limit=2)
        await store.put([replace(found, body=encode(replace(decode(found.body, Reservation), reply=None, headers={})))])


@pytest.mark.parametrize("path", ["/chat", "/decisions"])
async def test_a_reply_that_a_crash_cut_off_is_given_to_the_same_key(path: str, tmp_path: Path) -> None:
    body = {"content": "add tea"} if path == "/chat" else {"message": "add tea", "conversation_id": "c"}

    async def send(d: Door) -> tuple[int, Json, str | None]:
        async with d.client.post(d.url + path, json=body, headers={"Idempotency-Key": "k1"}) as reply:
            return reply.status, await reply.json(), reply.headers.get("x-decision-id")

    async with door(tmp_path) as d:
        d.actor.then(call("add_task", description="Tea"), answer("Added.", "CREATE_TASK"))
        first = await send(d)
    await lose_reply(tmp_path)
    async with door(tmp_path) as d:
        assert [await send(d), await send(d)] == [first] * 2
        assert first[0] == 200
        if path == "/chat":
            listed = await d.chat("list", LIST, answer("Tea.", "LIST_TASKS"), conversation=first[1]["conversation_id"])
            assert [said["content"] for said in listed["messages"]] == ["add tea", "Added.", "list", "Tea."]


async def test_messages_that_a_crash_cut_off_are_in_the_conversation_after_it(tmp_path: Path) -> None:
    async with door(tmp_path) as d:
        d.actor.then(call("add_task", description="Tea"), answer("Added.", "CREATE_TASK"))
        headers = {"Idempotency-Key": "k1"}
        async with d.client.post(d.url + "/chat", json={"content": "add tea"}, headers=headers) as reply:
            first = await reply.json()
    await lose_reply(tmp_path)
    with closing(sqlite3.connect(tmp_path / "runs.db")) as connection, connection:
        connection.execute("DELETE FROM documents WHERE kind = ?", (ITEM,))
    async with door(tmp_path) as d:
        async with d.client.post(d.url + "/chat", json={"content": "add tea"}, headers=headers) as reply:
            again = await reply.json()
        said = [(message["role"], message["content"]) for message in again["messages"]]
        assert said == [("user", "add tea"), ("assistant", "Added.")]
        assert (again["decision"], again["conversation_id"]) == (first["decision"], first["conversation_id"])
        assert again["message"] == again["messages"][-1]


async def test_a_message_that_nobody_began_to_decide_is_decided_for_the_same_key(tmp_path: Path) -> None:
    async with door(tmp_path) as d:
        raw = b'{"content": "add tea"}'
        id = sha256(b"local\0/v1/chat\0k1").hexdigest()
        await d.engine.store.put([Document(REPLY_KEY, id, encode(Reservation(sha256(raw).hexdigest(), time.time() - GRACE - 1)))])
        d.actor.then(call("add_task", description="Tea"), answer("Added.", "CREATE_TASK"))
        headers = {"Idempotency-Key": "k1", "content-type": "application/json"}
        async with d.client.post(d.url + "/chat", data=raw, headers=headers) as reply:
            assert (reply.status, (await reply.json())["message"]["content"]) == (200, "Added.")
        d.actor.assert_done()


@pytest.mark.requirement("D45")
@pytest.mark.parametrize(
    ("body", "status", "param"),
    [
        ({"content": ""}, 400, "content"),
        ({"content": "   "}, 400, "content"),
        ({"content": "x" * 32_001}, 400, "content"),
        ({}, 400, "content"),
        ({"content": 7}, 400, "content"),
        ({"content": "hi", "conversation_id": "../../etc"}, 400, "conversation_id"),
        ({"content": "hi", "conversation_id": "conv_nowhere"}, 404, "conversation_id"),
    ],
)
async def test_what_cannot_be_said_is_refused_by_field(body: Json, status: int, param: str, tmp_path: Path) -> None:
    async with door(tmp_path) as d:
        refused = await d.post("/chat", body, status=status)
        assert refused["error"]["param"] == param


@pytest.mark.requirement("D45")
async def test_a_long_message_is_kept_whole_and_told_in_part(tmp_path: Path) -> None:
    def short(request: ModelRequest) -> Turn:
        assert heard(request) == "x" * 4000
        return answer("That is long.")

    async with door(tmp_path) as d:
        said = await d.chat("x" * 32_000, short)
        assert len(said["messages"][0]["content"]) == 32_000


async def test_a_decision_needs_nothing_but_its_context(tmp_path: Path) -> None:
    async with door(tmp_path) as d:

        def knows(request: ModelRequest) -> Turn:
            said = [(item.role, item.text) for item in request.items if isinstance(item, MessageItem)]
            assert said == [("user", "Hello"), ("assistant", "Hi!"), ("user", "add tea")]
            return Turn(calls=(call("add_task", description="Tea"),))

        d.actor.then(knows, answer("Added.", "CREATE_TASK"))
        history = [
            {"role": "user", "content": "Hello", "timestamp": "2026-03-02T09:00:00Z"},
            {"role": "assistant", "content": "Hi!", "timestamp": "2026-03-02T09:00:01+01:00"},
        ]
        context = {"message": "add tea", "conversation_id": "mine", "message_history": history}
        made = await d.post("/decisions", {**context, "user_id": "local"})
        assert made == {
            "decision_type": "INVOKE_TOOL",
            "tool_calls": [{"tool_name": "add_task", "parameters": {"user_id": "local", "description": "Tea"}, "sequence": 1}],
            "response_text": "Added.",
            "clarification_question": None,
            "pending_action": None,
        }
        d.actor.then(LIST, on("delete_task", "Tea"))
        asked = await d.post("/decisions", {"message": "delete tea", "conversation_id": "mine"})
        pending = asked["pending_action"]
        forged = {**pending, "task_id": "00000000-0000-4000-8000-000000000000"}
        for body in (
            {"conversation_id": "other", "pending_confirmation": pending},
            {"conversation_id": "x", "pending_confirmation": forged},
        ):
            refused = await d.post("/decisions", {"message": "yes", **body})
            assert (refused["decision_type"], refused["response_text"]) == ("CANCEL_PENDING", words.NOTHING_PENDING)
        d.actor.then(answer("Gone.", "DELETE_TASK"))
        done = await d.post("/decisions", {"message": "yes", "conversation_id": "mine", "pending_confirmation": pending})
        assert (done["decision_type"], done["response_text"]) == ("EXECUTE_PENDING", words.DELETED.format(task="Tea"))
        d.actor.assert_done()


@pytest.mark.parametrize(
    ("body", "why", "param"),
    [
        ({"message": "", "conversation_id": "c"}, "DecisionContext.message must not be empty", "message"),
        ({"message": "x" * 4001, "conversation_id": "c"}, "at most 4000 characters, not 4001", "message"),
        ({"message": "hi", "conversation_id": ""}, "DecisionContext.conversation_id must not be empty", "conversation_id"),
        ({"message": "hi", "conversation_id": "c" * 257}, "256", "conversation_id"),
        ({"message": "hi"}, "conversation_id", "conversation_id"),
        (
            {
                "message": "hi",
                "conversation_id": "c",
                "message_history": [{"role": "user", "content": "x", "timestamp": "2026-03-02T09:00:00"}],
            },
            "must say its time zone",
            "message_history",
        ),
        (
            {
                "message": "hi",
                "conversation_id": "c",
                "message_history": [{"role": "system", "content": "x", "timestamp": "2026-03-02T09:00:00Z"}],
            },
            "system",
            "message_history",
        ),
        (
            {"message": "hi", "conversation_id": "c", "pending_confirmation": {"task_id": "x"}},
            "task_description",
            "pending_confirmation",
        ),
    ],
)
async def test_a_context_that_breaks_a_rule_is_told_which(body: Json, why: str, param: str, tmp_path: Path) -> None:
    async with door(tmp_path) as d:
        refused = await d.post("/decisions", body, status=400)
        assert why in refused["error"]["message"]
        assert refused["error"]["param"] == param


async def test_a_key_speaks_for_nobody_else_and_needs_its_scope(tmp_path: Path) -> None:
    async with door(tmp_path) as d:
        ada = await d.keys.create(tenant="ada", scopes=("decisions",))
        other = await d.keys.create(tenant="ada", scopes=("responses",))
        refused = await d.post("/decisions", {"message": "hi", "conversation_id": "c", "user_id": "bob"}, key=ada, status=403)
        assert refused["error"]["param"] == "user_id"
        await d.post("/chat", {"content": "hi"}, key=other, status=403)
        await d.get("/chat/conversations", key=other, status=403)
        assert (await d.chat("hi", answer("Hi!"), key=ada))["message"]["content"] == "Hi!"


async def test_nothing_is_opened_before_it_is_used_and_all_of_it_is_logged_then(tmp_path: Path) -> None:
    async with door(tmp_path) as d:
        await d.get("/models")
        assert not (tmp_path / "tasks.db").exists()
        assert not (tmp_path / "decisions.db").exists()
        await d.chat("list", LIST, answer("Nothing.", "LIST_TASKS"))
        assert (tmp_path / "tasks.db").exists()
    logs = DecisionLogs(tmp_path / "decisions.db")
    (row,) = await logs.query_decisions()
    await logs.close()
    assert (row.message, row.user_id, row.outcome_category) == ("list", "local", "SUCCESS:TASK_COMPLETED")


def test_a_server_that_nobody_talks_to_imports_neither_agent_nor_sdk() -> None:
    late = ("mainspring_tasks.decision_engine", "mcp")
    code = f"import sys, mainspring.app.server; print([name for name in {late} if name in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout == b"[]\n"


async def test_tasks_may_be_elsewhere(tmp_path: Path) -> None:
    """A task server over HTTP, asked with a token for each user."""
    secret = "s" * 40
    (tmp_path / "secret").write_text(secret)
    store = SqliteTasks(tmp_path / "remote.db")
    await store.open()
    app = build_application(store, verify_tokens(secret), Address("127.0.0.1", 0))
    async with hosted(app) as url:
        remote = url.removesuffix("/v1") + "/mcp"
        settings = DecisionSettings(tasks=remote, tasks_secret_file=str(tmp_path / "secret"))
        async with door(tmp_path, settings) as d:
            ada, bob = await d.keys.create(tenant="ada"), await d.keys.create(tenant="bob")
            await d.chat("add tea", call("add_task", description="Tea"), answer("Added.", "CREATE_TASK"), key=ada)
            await d.chat("add rum", call("add_task", description="Rum"), answer("Added.", "CREATE_TASK"), key=bob)
            done = await d.chat("tea is done", LIST, on("complete_task", "Tea"), answer("Done.", "COMPLETE_TASK"), key=ada)
            assert [task.status for task in await store.list("ada")] == ["completed"]
            await d.chat("undo", conversation=done["conversation_id"], key=ada)
            assert [task.status for task in await store.list("ada")] == ["pending"]
        assert [task.description for task in await store.list("ada")] == ["Tea"]
        assert [task.description for task in await store.list("bob")] == ["Rum"]
    await store.close()


async def test_a_constitution_of_ones_own_is_what_the_model_reads(tmp_path: Path) -> None:
    (tmp_path / "mine.md").write_text("# Be kind.")

    def reads(request: ModelRequest) -> Turn:
        assert request.instructions == "# Be kind."
        return answer("Hi!")

    async with door(tmp_path, DecisionSettings(constitution=str(tmp_path / "mine.md"))) as d:
        await d.chat("hi", reads)


async def test_an_agent_that_cannot_be_opened_is_told_of_and_tried_again(tmp_path: Path) -> None:
    mine = tmp_path / "mine.md"
    mine.write_text("# Be kind.")
    settings = DecisionSettings(constitution=str(mine))
    mine.unlink()
    async with door(tmp_path, settings) as d:
        for _ in range(2):
            refused = await d.post("/chat", {"content": "hi"}, status=503)
            assert (refused["error"]["code"], "mine.md" in refused["error"]["message"]) == ("decisions_unavailable", True)
        mine.write_text("# Be kind.")
        assert (await d.chat("hi", answer("Hi!")))["message"]["content"] == "Hi!"


async def test_a_log_in_the_database_of_another_program_is_refused(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    foreign = tmp_path / "decisions.db"
    with closing(sqlite3.connect(foreign)) as connection:
        connection.execute("CREATE TABLE precious (id)")
    before = foreign.read_bytes()
    async with door(tmp_path, DecisionSettings()) as d:
        assert ["decisions.db" in record.getMessage() for record in caplog.records] == [True]  # told before anybody asks
        refused = await d.post("/chat", {"content": "hi"}, status=503)
    assert refused["error"]["code"] == "decisions_unavailable"
    assert foreign.read_bytes() == before


@pytest.mark.parametrize(
    "table",
    [{"taks": "x"}, {"confirm_seconds": 0}, {"model_seconds": 0}, {"history": -1}, {"tasks": "https://tasks.example/mcp"}],
)
def test_settings_that_are_not_right_are_refused(table: Json) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(table, DecisionSettings)


def test_a_constitution_that_is_not_there_is_told_at_the_start() -> None:
    with pytest.raises(InvalidRequest, match=r"the constitution cannot be read from /nowhere\.md"):
        check_constitution(DecisionSettings(constitution="/nowhere.md"))


def test_a_server_with_wrong_settings_does_not_start(tmp_path: Path) -> None:
    (tmp_path / "mainspring.toml").write_text("[decisions]\nconfirm_seconds = 0\n")
    command = [sys.executable, "-m", "mainspring", "serve", "--model", "scripted:none.json", "--port", "0"]
    done = run(command, cwd=tmp_path)
    assert (done.returncode, "mainspring.toml:2: `confirm_seconds`" in done.stderr) == (2, True)


async def test_runs_of_the_chat_are_counted_and_exported_like_any_other(tmp_path: Path) -> None:
    exported: list[TraceRecord] = []

    class Exports(Exporter):
        def __init__(self) -> None:
            pass

        def add(self, trace: TraceRecord) -> None:
            exported.append(trace)

        async def close(self, seconds: float = 0) -> None:
            pass

    actor = Actor()
    engine = Engine(actor, database=tmp_path / "runs.db", exporter=Exports(), parts=[build(DecisionSettings())])
    async with hosted(server(engine)) as url, ClientSession() as client:
        d = Door(url, actor, engine, client)
        await d.chat("Add milk", call("add_task", description="Milk"), answer("Added.", "CREATE_TASK"))
        async with client.get(url.removesuffix("/v1") + "/metrics") as reply:
            told = await reply.text()
    assert 'mainspring_runs_total{preset="decision",status="completed",reason="final_answer"} 1' in told
    assert 'mainspring_tool_calls_total{tool="add_task",outcome="success"} 1' in told
    assert [action.tool for trace in exported for action in trace.actions] == ["add_task"]


async def test_a_defect_of_ours_is_an_error_and_what_was_done_is_on_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(run: Run, log: Sequence[Recorded]) -> DecisionReport:
        raise ZeroDivisionError("a defect")

    async with door(tmp_path) as d:
        d.actor.then(call("add_task", description="Milk"), answer("Added.", "CREATE_TASK"))
        monkeypatch.setattr("mainspring_tasks.decision_engine.project_decision", broken)
        fault = await d.post("/chat", {"content": "Add milk"}, status=500)
        assert fault["error"]["code"] == "server_error"
        assert any(record.exc_info and record.exc_info[0] is ZeroDivisionError for record in caplog.records)
        logs = DecisionLogs(tmp_path / "decisions.db")
        (row,) = await logs.query_decisions()
        trace = await logs.get_decision_trace(row.decision_id)
        assert [tool.tool_name for tool in trace.tools] == ["add_task"]
        await logs.close()


@pytest.mark.slow
async def test_a_killed_server_is_followed_by_one_that_knows_what_came_of_the_message(tmp_path: Path) -> None:
    turns: Script = [{"calls": [{"name": "add_task", "arguments": {"description": "Tea"}}]}, {"say": "x", "stall": True}]
    body, headers = {"content": "add tea"}, {"Idempotency-Key": "k1"}

    async def wait_for_task() -> None:
        while not (tmp_path / "tasks.db").exists() or not await anyio.to_thread.run_sync(count_tasks, tmp_path / "tasks.db"):  # noqa: ASYNC110
            await anyio.sleep(0.02)

    async with ClientSession() as client:
        with serving(tmp_path, turns) as served, anyio.fail_after(PATIENCE):
            async with anyio.create_task_group() as group:

                async def send() -> None:
                    with suppress(ClientError):
                        await client.post(f"{served.url}/chat", json=body, headers=headers)

                group.start_soon(send)
                await wait_for_task()
                served.kill()
        with serving(tmp_path, [{"say": "unasked"}]) as served, anyio.fail_after(PATIENCE):
            found = []
            for _ in range(2):
                async with client.post(f"{served.url}/chat", json=body, headers=headers) as reply:
                    found.append((reply.status, await reply.json()))
    assert found[0] == found[1]
    assert (found[0][0], found[0][1]["messages"][0]["content"]) == (200, "add tea")
    assert count_tasks(tmp_path / "tasks.db") == 1


def count_tasks(path: Path) -> int:
    with closing(sqlite3.connect(path)) as connection, suppress(sqlite3.OperationalError):
        return int(connection.execute("SELECT count(*) FROM tasks").fetchone()[0])
    return 0
