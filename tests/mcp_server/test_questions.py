"""Approvals as forms, in both eras: a yes counts for the call that was shown, once, and from whoever may give it."""

from contextlib import aclosing
from pathlib import Path

import aiohttp
import anyio
import pytest
from tests.kit.waiting import PATIENCE
from tests.mcp.asking_web import FORM as ROOMS
from tests.mcp.asking_web import LINK, Hotel
from tests.mcp.wild_web import serve
from tests.mcp_server.world import ALL, FORMS, Json, Wire, list_wiped, make_engine, text_of
from tests.server.hosting import hosted

from mainspring import Engine
from mainspring.app.server import server
from mainspring.features.mcp_server.mcp_door import FORM
from mainspring.http.auth import Keys
from mainspring.providers.scripted import call, calls, say, turn
from mainspring.tools.mcp.executor import McpTools
from mainspring.tools.mcp.server_specs import ServerSpec

WIPE = {"name": "wipe", "arguments": {"disk": "sda"}}
HELP = {"name": "agent_helper", "arguments": {"job": "wipe sda"}}


def choices(form: Json) -> list[str]:
    found: list[str] = form["requestedSchema"]["properties"]["answer"]["enum"]
    return found


def accept(answer: str) -> Json:
    return {"action": "accept", "content": {"answer": answer}}


async def test_a_question_goes_out_as_a_result_and_the_answer_comes_with_the_call(
    tmp_path: Path, http: aiohttp.ClientSession
) -> None:
    async with hosted(server(make_engine(tmp_path, say("Done.")), offer=ALL)) as url:
        wire = Wire(http, url)
        asked = (await wire.ask("tools/call", WIPE, FORMS))["result"]
        assert asked["resultType"] == "input_required"
        [(id, question)] = asked["inputRequests"].items()
        deny, approve = choices(question["params"])
        assert (deny, question["method"]) == ("deny", "elicitation/create")
        assert "sda" in question["params"]["message"]
        assert approve.removeprefix("approve ") in question["params"]["message"]
        again = {**WIPE, "requestState": asked["requestState"]}
        # A form that is accepted without the digest that was shown approves nothing.
        for empty in ({"action": "accept", "content": {}}, {"action": "accept"}, accept("approve"), accept(approve[:-1] + "x")):
            left = (await wire.ask("tools/call", {**again, "inputResponses": {id: empty}}, FORMS))["result"]
            assert left["isError"]
        assert list_wiped(tmp_path) == []
        done = (await wire.ask("tools/call", {**again, "inputResponses": {id: accept(approve)}}, FORMS))["result"]
        assert (done["resultType"], text_of(done)) == ("complete", "wiped sda")
        # Sent once more, it is the same run, and not another one.
        once = (await wire.ask("tools/call", {**again, "inputResponses": {id: accept(approve)}}, FORMS))["result"]
        assert once == done
        assert list_wiped(tmp_path) == ["sda"]


async def test_who_declines_has_the_call_refused(tmp_path: Path, http: aiohttp.ClientSession) -> None:
    engine = make_engine(tmp_path, calls(call("wipe", disk="sda")), say("It was refused."), say("It was refused."))
    async with hosted(server(engine, offer=ALL)) as url:
        wire = Wire(http, url)
        asked = (await wire.ask("tools/call", HELP, FORMS))["result"]
        [id] = asked["inputRequests"]
        again = {**HELP, "requestState": asked["requestState"], "inputResponses": {id: {"action": "decline"}}}
        assert text_of((await wire.ask("tools/call", again, FORMS))["result"]) == "It was refused."
        assert list_wiped(tmp_path) == []


async def test_responses_that_are_none_and_runs_of_others_are_refused(tmp_path: Path, http: aiohttp.ClientSession) -> None:
    async with hosted(server(make_engine(tmp_path, say("Done.")), offer=ALL)) as url:
        wire = Wire(http, url)
        asked = (await wire.ask("tools/call", WIPE, FORMS))["result"]
        [id] = asked["inputRequests"]
        again = {**WIPE, "requestState": asked["requestState"]}
        wrongs: list[object] = [None, [], {id: 1}, {id: {"action": "perhaps"}}]
        for wrong in wrongs:
            told = await wire.ask("tools/call", {**again, "inputResponses": wrong}, FORMS)
            assert (wire.status, told["error"]["code"]) == (400, -32602)
        told = await wire.ask("tools/call", {**again, "requestState": asked["requestState"] + "x", "inputResponses": {}}, FORMS)
        assert told["error"]["code"] == -32602


@pytest.mark.parametrize("capabilities", [{}, {"elicitation": {"url": {}}}])
async def test_who_cannot_ask_is_told_where_the_answer_is_given(
    capabilities: Json, tmp_path: Path, http: aiohttp.ClientSession
) -> None:
    async with hosted(server(make_engine(tmp_path, say("Done.")), offer=ALL)) as url:
        told = (await Wire(http, url).ask("tools/call", WIPE, capabilities))["result"]
        assert told["isError"]
        async with http.get(f"{url}/approvals") as answer:
            [approval] = (await answer.json())["data"]
        assert approval["id"] in text_of(told)


async def test_a_key_that_may_not_approve_is_not_asked(tmp_path: Path, http: aiohttp.ClientSession) -> None:
    engine = make_engine(tmp_path, say("Done."))
    keys = Keys(engine.store)
    async with hosted(server(engine, keys=keys, offer=ALL)) as url:
        wire = Wire(http, url, await keys.create(scopes=["responses", "tools:execute"]))
        told = (await wire.ask("tools/call", WIPE, FORMS))["result"]
        assert told["resultType"] == "complete"
        assert told["isError"]


async def test_in_a_session_the_question_is_a_request_on_the_stream(tmp_path: Path, http: aiohttp.ClientSession) -> None:
    engine = make_engine(tmp_path, calls(call("wipe", disk="sda")), say("It is wiped."), say("It is wiped."))
    async with hosted(server(engine, offer=ALL)) as url:
        talk = await Wire(http, url).open(FORMS)
        other = Wire(http, url)
        with anyio.fail_after(PATIENCE):
            async for message in talk.stream("tools/call", HELP, 3):
                if message.get("method") == "elicitation/create":
                    _, approve = choices(message["params"])
                    # It comes by another connection, as it may come to another process.
                    reply = {"jsonrpc": "2.0", "id": message["id"], "result": accept(approve)}
                    assert await other.send(reply, talk.headers) is None
                    assert other.status == 202
        assert (message["id"], text_of(message["result"])) == (3, "It is wiped.")
        assert list_wiped(tmp_path) == ["sda"]


async def test_a_dismissed_form_leaves_the_approval_waiting(tmp_path: Path, http: aiohttp.ClientSession) -> None:
    async with hosted(server(make_engine(tmp_path, say("Done.")), offer=ALL)) as url:
        talk = await Wire(http, url).open(FORMS)
        with anyio.fail_after(PATIENCE):
            async for message in talk.stream("tools/call", WIPE, 3):
                if message.get("method") == "elicitation/create":
                    await talk.send({"jsonrpc": "2.0", "id": message["id"], "result": {"action": "cancel"}})
        assert message["result"]["isError"]
        async with http.get(f"{url}/approvals") as answer:
            assert [approval["state"] for approval in (await answer.json())["data"]] == ["pending"]


async def test_what_was_said_of_an_earlier_form_does_not_count_for_a_later_one(
    tmp_path: Path, http: aiohttp.ClientSession
) -> None:
    engine = make_engine(tmp_path, calls(call("wipe", disk="sda")), say("It is wiped."), say("It is wiped."))
    async with hosted(server(engine, offer=ALL)) as url:
        talk = await Wire(http, url).open(FORMS)
        task = (await talk.ask("tools/call", {**HELP, "task": {}}))["result"]["task"]
        with anyio.fail_after(PATIENCE):
            async with aclosing(talk.stream("tasks/result", {"taskId": task["taskId"]})) as heard:
                form = await anext(heard)
            # Its stream has gone when the form is dismissed.
            await talk.send({"jsonrpc": "2.0", "id": form["id"], "result": {"action": "cancel"}})
            async for message in talk.stream("tasks/result", {"taskId": task["taskId"]}):
                if message.get("method") == "elicitation/create":
                    [shown] = await engine.store.documents(FORM)
                    assert shown.body == b"shown"
                    await talk.send({"jsonrpc": "2.0", "id": message["id"], "result": accept(choices(message["params"])[1])})
        assert text_of(message["result"]) == "It is wiped."


BOOK = {"name": "agent_helper", "arguments": {"job": "book"}}
ROOM: Json = {"room": "red", "nights": 2}
ERAS = pytest.mark.parametrize("is_modern", [True, False], ids=["stateless", "sessions"])


def make_booker(folder: Path, hotel: Hotel) -> Engine:
    """An engine whose agent books at a hotel, which asks first."""
    spec = ServerSpec("hotel", url=hotel.url, trusted=True, require_approval="never")
    return make_engine(folder, turn(calls=[call("book")]), *[say("Booked.")] * 5, mcp=McpTools([spec]))


@ERAS
async def test_what_a_server_asks_is_asked_by_the_client_and_the_answer_goes_back(
    is_modern: bool, tmp_path: Path, http: aiohttp.ClientSession
) -> None:
    capabilities: Json = {"elicitation": {"form": {}, "url": {}}}
    async with serve(Hotel(is_modern=is_modern, questions=(ROOMS, LINK))) as hotel:
        engine = make_booker(tmp_path, hotel)
        keys = Keys(engine.store)
        async with hosted(server(engine, keys=keys)) as url:
            # What a server asks is the business of who called it, and no approval.
            wire = Wire(http, url, key := await keys.create(scopes=["agents:invoke", "tools:execute"]))
            asked = (await wire.ask("tools/call", BOOK, capabilities))["result"]
            [(id, question)] = asked["inputRequests"].items()
            assert question["params"]["requestedSchema"] == ROOMS["requestedSchema"]
            assert "`hotel` asks: Which room?" in question["params"]["message"]
            again = {**BOOK, "requestState": asked["requestState"]}
            wrong = {id: {"action": "accept", "content": {"room": "green"}}}
            told = await wire.ask("tools/call", {**again, "inputResponses": wrong}, capabilities)
            assert told["error"]["data"]["code"] == "answer_content_invalid"
            filled = {id: {"action": "accept", "content": ROOM}}
            asked = (await wire.ask("tools/call", {**again, "inputResponses": filled}, capabilities))["result"]
            [(id, question)] = asked["inputRequests"].items()
            assert (question["params"]["mode"], question["params"]["url"]) == ("url", LINK["url"])
            # A client tells the rounds apart by the state, and may send either with the last answer.
            assert asked["requestState"] != again["requestState"]
            again |= {"requestState": asked["requestState"]} if is_modern else {}
            again["inputResponses"] = {id: {"action": "accept"}}
            done = (await wire.ask("tools/call", again, capabilities))["result"]
            assert text_of(done) == "Booked."
        assert hotel.bookings == [[{"action": "accept", "content": ROOM}, {"action": "accept"}]]
        assert hotel.asked == 2
        assert key not in str((hotel.headers, hotel.heard))  # the key of a client is for us alone


async def test_what_a_server_asks_is_answered_by_the_session_that_was_asked(tmp_path: Path, http: aiohttp.ClientSession) -> None:
    """Another key of the tenant's that may do nothing else cannot answer in its place, though it knows the id."""
    async with serve(Hotel(is_modern=True, questions=(ROOMS,))) as hotel:
        engine = make_booker(tmp_path, hotel)
        keys = Keys(engine.store)
        async with hosted(server(engine, keys=keys)) as url:
            talk = await Wire(http, url, await keys.create(scopes=["agents:invoke", "tools:execute"])).open(FORMS)
            others = [
                await Wire(http, url, await keys.create(scopes=["responses", *more])).open(FORMS) for more in ((), ("approvals",))
            ]
            with anyio.fail_after(PATIENCE):
                async for message in talk.stream("tools/call", BOOK, 3):
                    if message.get("method") != "elicitation/create":
                        continue
                    reply = {"jsonrpc": "2.0", "id": message["id"], "result": {"action": "accept", "content": ROOM}}
                    for other in others:
                        await other.send({**reply, "result": {"action": "decline"}})
                    await talk.send(reply)
            assert text_of(message["result"]) == "Booked."
            assert await engine.store.documents(FORM) == []
        assert hotel.told == [{"action": "accept", "content": ROOM}]


async def test_in_a_session_what_a_server_asks_is_a_request_and_a_link_that_cannot_be_shown_waits(
    tmp_path: Path, http: aiohttp.ClientSession
) -> None:
    async with (
        serve(Hotel(is_modern=True, questions=(ROOMS, LINK))) as hotel,
        hosted(server(make_booker(tmp_path, hotel))) as url,
    ):
        talk = await Wire(http, url).open(FORMS)
        with anyio.fail_after(PATIENCE):
            async for message in talk.stream("tools/call", BOOK, 3):
                if message.get("method") == "elicitation/create":
                    assert message["params"]["requestedSchema"] == ROOMS["requestedSchema"]
                    await talk.send({"jsonrpc": "2.0", "id": message["id"], "result": {"action": "decline"}})
        assert hotel.told == [{"action": "decline"}]
        async with http.get(f"{url}/approvals?state=pending") as answer:
            [approval] = (await answer.json())["data"]
        assert approval["elicitation"]["url"] == LINK["url"]
        assert message["result"]["isError"]
        assert approval["id"] in text_of(message["result"])
