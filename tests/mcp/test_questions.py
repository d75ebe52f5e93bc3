"""What an MCP server asks becomes a question to a person, by the one record of approvals, and survives what dies meanwhile."""

import asyncio
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from tests.agents.world import written as write_agent
from tests.kit.waiting import PATIENCE, until
from tests.mcp.asking_web import FORM, LINK, Hotel
from tests.mcp.wild_web import Json, result, serve
from tests.mcp.wild_web import say as answer
from tests.mcp_server.world import FORMS
from tests.mcp_server.world import Wire as McpWire
from tests.server.linter import events_of, linted
from tests.server.process import Script, serving, working

from mainspring import Engine
from mainspring.core.elicitation import fill_defaults, list_flaws, parse_field, read_elicitation
from mainspring.core.errors import InvalidRequest
from mainspring.core.items import ApprovalRequest, ApprovalResponse, FunctionCallOutput
from mainspring.core.run import Run
from mainspring.features.approvals.pending import Approvals, cancel_with_questions
from mainspring.http.frame_log import DONE
from mainspring.http.wire import Dialect, Wire
from mainspring.providers.scripted import Scripted, call, say, turn
from mainspring.storage.location import Location
from mainspring.tools.mcp.call_limits import CallLimits
from mainspring.tools.mcp.executor import McpTools
from mainspring.tools.mcp.server_specs import ServerSpec

pytestmark = pytest.mark.slow

ERAS = pytest.mark.parametrize("is_modern", [True, False], ids=["stateless", "sessions"])
YES: Json = {"room": "red", "nights": 2}
SCRIPT: Script = [
    {"when": "Book", "calls": [{"name": "book", "arguments": {}}]},
    {"when": "Book", "say": "Done."},
    {"when": "counts as finished", "say": "Done."},
]


def spec(hotel: Hotel, **more: Any) -> ServerSpec:
    return ServerSpec("hotel", url=hotel.url, trusted=True, **{"require_approval": "never", **more})


def engine_of(hotel: Hotel, *turns: Any, **more: Any) -> Engine:
    return Engine(Scripted(*turns or (call("book"), say("Done."))), mcp=McpTools([spec(hotel, **more)]))


def find_question(run: Run) -> ApprovalRequest:
    assert run.status == "requires_action", run.output
    [asked] = [item for item in run.output if isinstance(item, ApprovalRequest)]
    return asked


@ERAS
async def test_a_form_is_shown_with_who_asks_and_its_answer_reaches_the_server(is_modern: bool) -> None:
    async with serve(Hotel(is_modern=is_modern)) as hotel, engine_of(hotel) as engine:
        asked = find_question(first := await engine.run("Book."))
        assert asked.elicitation == {
            "server": "hotel",
            "mode": "form",
            "message": "Which room?",
            "requested_schema": FORM["requestedSchema"],
        }
        assert hotel.bookings == []
        for wrong in ({}, {"room": "green"}, {"room": "red", "nights": 0}, {"room": "red", "more": 1}, None):
            with pytest.raises(InvalidRequest) as raised:
                await engine.run((ApprovalResponse(asked.id, True, content=wrong),), previous=first.spec.id)
            assert raised.value.code == "answer_content_invalid"
        second = await engine.run((ApprovalResponse(asked.id, True, content=YES),), previous=first.spec.id)
        assert (second.text, hotel.bookings) == ("Done.", [[{"action": "accept", "content": YES}]])
        assert hotel.asked == 1
        with pytest.raises(InvalidRequest) as raised:
            await engine.run((ApprovalResponse(asked.id, True, content=YES),), previous=first.spec.id)
        assert raised.value.code == "approval_already_given"


@ERAS
async def test_a_server_is_told_of_a_no_and_its_answer_reaches_the_model(is_modern: bool) -> None:
    async with serve(Hotel(is_modern=is_modern)) as hotel, engine_of(hotel) as engine:
        asked = find_question(first := await engine.run("Book."))
        second = await engine.run((ApprovalResponse(asked.id, False),), previous=first.spec.id)
        assert (second.text, hotel.bookings) == ("Done.", [[{"action": "decline"}]])


@ERAS
async def test_one_call_can_be_approved_and_then_ask_twice(is_modern: bool) -> None:
    questions = (FORM, LINK)
    async with (
        serve(Hotel(is_modern=is_modern, questions=questions)) as hotel,
        engine_of(hotel, require_approval="always") as engine,
    ):
        run, ids = await engine.run("Book."), list[str]()
        for content in (None, YES, None):
            asked = find_question(run)
            ids.append(asked.id)
            shown = None if not isinstance(asked.elicitation, dict) else asked.elicitation.get("url", "form")
            assert shown == [None, "form", "https://pay.example/1"][len(ids) - 1]
            run = await engine.run((ApprovalResponse(asked.id, True, content=content),), previous=run.spec.id)
        assert len(set(ids)) == 3
        assert (run.text, hotel.bookings) == ("Done.", [[{"action": "accept", "content": YES}, {"action": "accept"}]])


async def test_a_call_whose_request_waits_no_more_is_made_anew_and_nobody_asked_again() -> None:
    async with serve(Hotel(is_modern=False)) as hotel, engine_of(hotel) as engine:
        asked = find_question(first := await engine.run("Book."))
        await engine.mcp.close()  # as if the process that held the request had ended
        second = await engine.run((ApprovalResponse(asked.id, True, content=YES),), previous=first.spec.id)
        assert second.text == "Done."
        assert hotel.bookings[-1] == [{"action": "accept", "content": YES}]


def make_form(message: str, **fields: Json) -> Json:
    return {**FORM, "message": message, "requestedSchema": {"type": "object", "properties": fields}}


TEXT: Json = {"type": "string"}


@pytest.mark.parametrize(
    ("form", "is_secret"),
    [
        (make_form("Go on?", api_key=TEXT), True),
        (make_form("Enter your password.", answer=TEXT), True),
        (make_form("Go on?", **{"p\u0430ss\u200bword": TEXT}), True),  # with a Cyrillic letter, and one that cannot be seen
        (make_form("Go on?", code={**TEXT, "title": "One-Time Code"}), True),
        (make_form("Go on?", creditCard=TEXT, name=TEXT), True),
        (make_form("Reset the password?", yes={"type": "boolean"}), False),
        (make_form("Go on?", shipping={**TEXT, "title": "Where to"}, tokens={"type": "integer"}), False),
    ],
)
async def test_a_form_that_wants_a_secret_says_so(form: Json, is_secret: bool) -> None:
    async with serve(Hotel(is_modern=True, questions=(form,))) as hotel, engine_of(hotel) as engine:
        find_question(await engine.run("Book."))
        [approval] = (await Approvals(engine.core, {"hotel"}).list()).approvals
        assert "hotel" in approval.question
        assert ("seems to want a secret" in approval.question) is is_secret


def nest(levels: int) -> Json:
    return {"type": "array", "items": nest(levels - 1)} if levels else {"type": "string", "enum": ["red"]}


@pytest.mark.parametrize("field", [{"type": "object"}, nest(2), nest(150), {**TEXT, "more": nest(6)}])
async def test_a_form_that_no_client_can_draw_is_refused_before_anybody_is_asked(field: Json) -> None:
    nested = make_form("Which?", deep=field)
    async with serve(Hotel(is_modern=True, questions=(nested,))) as hotel, engine_of(hotel) as engine:
        run = await engine.run("Book.")
        assert (run.status, hotel.bookings) == ("completed", [])


@ERAS
@pytest.mark.parametrize(
    "question",
    [
        {**LINK, "url": "https://pay.example/" + "a" * 5_000},
        {**LINK, "url": "https://bank.example@pay.example/1"},
        {**LINK, "url": "https://bank.example\n.pay.example/1"},
        {**LINK, "url": "https://b\u0430nk.example/1"},
        {**FORM, "requestedSchema": {"type": "object", "properties": {"a": {"type": "string", "title": "a" * 70_000}}}},
        {**FORM, "mode": "voice"},
    ],
    ids=["long link", "link with a name", "link with a break", "link that looks like another", "form", "neither"],
)
async def test_a_question_that_cannot_be_shown_as_it_is_is_not_asked(question: Json, is_modern: bool) -> None:
    async with serve(Hotel(is_modern=is_modern, questions=(question,))) as hotel, engine_of(hotel) as engine:
        assert (await engine.run("Book.")).status == "completed"


def test_a_value_that_is_no_answer_to_its_field_is_not_proposed() -> None:
    fields: Json = {
        "room": {"type": "string", "enum": ["red", "blue"], "default": "green"},
        "nights": {"type": "integer", "default": "two"},
        "extras": {"type": "array", "items": {"type": "string", "enum": ["tea"]}, "default": "tea"},
        "late": {"type": "boolean", "default": False},
    }
    asked = read_elicitation("hotel", {"message": "?", "requestedSchema": {"type": "object", "properties": fields}})
    assert fill_defaults(asked["requested_schema"]) == {"late": False}


async def test_what_is_no_name_among_the_required_fields_does_not_end_the_session() -> None:
    odd = {**FORM, "requestedSchema": {**FORM["requestedSchema"], "required": [["room"], "room", "gone"]}}
    async with serve(Hotel(is_modern=False, questions=(odd,))) as hotel, engine_of(hotel) as engine:
        asked = find_question(await engine.run("Book."))
        assert isinstance(asked.elicitation, dict)
        assert asked.elicitation["requested_schema"]["required"] == ["room"]


@ERAS
async def test_a_task_is_called_once_and_followed(is_modern: bool) -> None:
    async with serve(Hotel(is_modern=is_modern, questions=(), takes_tasks=True)) as hotel, engine_of(hotel) as engine:
        handle = await engine.start(engine.order("Book."))
        await until(lambda: hotel.polls > 2)
        hotel.done.set()
        run = await handle.wait()
        assert (run.text, hotel.count("tools/call")) == ("Done.", 1)
        [action] = (await engine.trace(run.spec.id)).actions
        assert str(action.progress).startswith("poll ")


@ERAS
@pytest.mark.parametrize("id", ["", "t" * 100_000])
async def test_a_task_whose_id_cannot_be_kept_is_not_followed(id: str, is_modern: bool) -> None:
    async def begin_task(request: web.Request, message: Json) -> web.StreamResponse:
        task = {**hotel._describe_task("working"), "taskId": id}
        return result(message, {"resultType": "task", **task} if is_modern else {"task": task})

    async with serve(Hotel(is_modern=is_modern, takes_tasks=True)) as hotel, engine_of(hotel) as engine:
        hotel.answers["tools/call"] = begin_task
        run = await engine.run("Book.")
        assert ("its task has no id, or one of more than" in str(run.output), hotel.polls) == (True, 0)


@ERAS
async def test_a_task_asks_by_the_same_record(is_modern: bool) -> None:
    async with serve(Hotel(is_modern=is_modern, takes_tasks=True)) as hotel, engine_of(hotel) as engine:
        hotel.done.set()
        asked = find_question(first := await engine.run("Book."))
        second = await engine.run((ApprovalResponse(asked.id, True, content=YES),), previous=first.spec.id)
        assert (second.text, hotel.count("tools/call")) == ("Done.", 1)
        assert (hotel.told or hotel.bookings[0]) == [{"action": "accept", "content": YES}]


@ERAS
async def test_a_task_whose_run_is_cancelled_is_cancelled_at_its_server(is_modern: bool) -> None:
    async with serve(Hotel(is_modern=is_modern, questions=(), takes_tasks=True)) as hotel, engine_of(hotel) as engine:
        handle = await engine.start(engine.order("Book."))
        await until(lambda: hotel.polls > 0)
        handle.request_cancel()
        assert (await handle.wait()).status == "cancelled"
        await until(lambda: hotel.count("tasks/cancel") == 1)


@pytest.mark.parametrize(
    ("is_modern", "takes_tasks", "told"),
    [(False, False, "notifications/cancelled"), (True, True, "tasks/cancel")],
    ids=["held", "task"],
)
async def test_what_waits_for_a_person_is_cancelled_at_its_server_with_its_run(
    is_modern: bool, takes_tasks: bool, told: str
) -> None:
    async with (
        serve(Hotel(is_modern=is_modern, takes_tasks=takes_tasks)) as hotel,
        Engine(Scripted(call("book"), say("Done.")), mcp=McpTools([spec(hotel)], look_seconds=0.01)) as engine,
    ):
        hotel.answers["tasks/cancel"] = acknowledge
        find_question(run := await engine.run("Book."))
        await cancel_with_questions(engine.core, run.spec.id, "not wanted any more")
        await until(lambda: hotel.count(told) == 1)
        if not takes_tasks:
            await asyncio.wait_for(hotel.cancelled.wait(), PATIENCE)  # its connection was closed as well


async def acknowledge(request: web.Request, message: Json) -> web.StreamResponse:
    return result(message, {"resultType": "complete"})


async def test_a_server_takes_its_question_back() -> None:
    async with serve(Hotel(is_modern=False)) as hotel, engine_of(hotel) as engine:
        hotel.answers["tools/call"] = hotel.take_back
        run = await engine.run("Book.")
        assert (run.status, run.text) == ("completed", "Done.")


async def test_calls_beyond_the_rate_are_refused_and_those_beyond_the_concurrency_wait() -> None:
    both = turn(calls=[call("book"), call("book")])
    async with serve(Hotel(is_modern=True, questions=())) as hotel:
        async with engine_of(hotel, both, say("Done."), rate=1) as engine:
            run = await engine.run("Book.")
            outputs = [entry.item.output for entry in run.transcript if isinstance(entry.item, FunctionCallOutput)]
            assert [str(output)[:6] for output in outputs] == ["Booked", "MCP se"]
            assert hotel.count("tools/call") == 1
        under_way = most = 0

        async def book(request: web.Request, message: Json) -> web.StreamResponse:
            nonlocal under_way, most
            under_way += 1
            most = max(most, under_way)
            for _ in range(20):
                await asyncio.sleep(0)
            under_way -= 1
            return result(message, answer("Booked."))

        hotel.answers["tools/call"] = book
        many = turn(calls=[call("book") for _ in range(8)])
        async with engine_of(hotel, many, say("Done."), concurrency=2) as engine:
            assert (await engine.run("Book.")).text == "Done."
        assert most <= 2


async def test_tenants_take_turns_at_a_server_that_is_busy() -> None:
    limits, served = CallLimits(ServerSpec("hotel", url="http://127.0.0.1", concurrency=1)), list[str]()

    async def call_tool(tenant: str) -> None:
        async with limits.admit(tenant):
            served.append(tenant)
            await asyncio.sleep(0)

    await asyncio.gather(*[call_tool(tenant) for tenant in [*["busy"] * 6, "other"]])
    assert served.index("other") == 2


async def test_the_calls_of_all_processes_count_for_the_rate(location: Location) -> None:
    async with serve(Hotel(is_modern=True, questions=())) as hotel:
        for _ in range(2):  # each a process of its own, as far as the database knows
            async with Engine(
                Scripted(call("book"), say("Done.")), mcp=McpTools([spec(hotel, rate=1)]), database=location
            ) as engine:
                assert (await engine.run("Book.")).text == "Done."
        assert hotel.count("tools/call") == 1


@ERAS
async def test_a_call_that_goes_on_after_a_question_counts_once_for_the_rate(is_modern: bool) -> None:
    async with serve(Hotel(is_modern=is_modern)) as hotel, engine_of(hotel, rate=1) as engine:
        asked = find_question(first := await engine.run("Book."))
        await engine.run((ApprovalResponse(asked.id, True, content=YES),), previous=first.spec.id)
        assert hotel.bookings == [[{"action": "accept", "content": YES}]]


async def test_an_answer_that_is_larger_than_the_server_may_give_is_refused() -> None:
    async with serve(Hotel(is_modern=True, questions=())) as hotel:

        async def book(request: web.Request, message: Json) -> web.StreamResponse:
            return result(message, answer("x" * 3000))

        hotel.answers["tools/call"] = book
        async with engine_of(hotel, max_result_bytes=2048) as engine:
            run = await engine.run("Book.")
            [output] = [entry.item for entry in run.transcript if isinstance(entry.item, FunctionCallOutput)]
            assert output.is_error is True
            assert "2048 bytes" in str(output.output)


BOOKER: Json = {"name": "agent_booker", "arguments": {"job": "Book"}}


def write_settings(folder: Path, hotel: Hotel) -> None:
    write_agent(folder / "agents", "booker", inputs={"job": {"required": True}}, prompts={"user": "{{ job }}"})
    (folder / "mainspring.toml").write_text(f'agents = ["agents"]\n[mcp.hotel]\nurl = "{hotel.url}"\n')


@pytest.mark.parametrize(("is_modern", "each_database"), [(True, "sqlite"), (False, "postgres")], indirect=["each_database"])
async def test_kill_during_an_elicitation_loses_nothing_and_asks_nobody_twice(
    is_modern: bool, each_database: None, tmp_path: Path, http: aiohttp.ClientSession
) -> None:
    """The person answers at another server than asked, and on PostgreSQL a worker goes on with the call."""
    role = "all" if is_modern else "gateway"
    async with serve(Hotel(is_modern=is_modern)) as hotel:
        write_settings(tmp_path, hotel)
        with serving(tmp_path, SCRIPT) as first:
            told = await (await http.post(f"{first.url}/responses", json={"model": "m", "input": "Book."})).json()
            [asked] = [item for item in told["output"] if item["type"] == "mcp_approval_request"]
            assert asked["elicitation"]["message"] == "Which room?"
            # The same by way of an agent that an MCP client calls.
            passed_on = (await McpWire(http, first.url).ask("tools/call", BOOKER, FORMS))["result"]
            [form] = passed_on["inputRequests"]
            first.kill()
        # A run that goes on is another one, so its script begins with the answer.
        with (
            serving(tmp_path, SCRIPT[1:], "--role", role) as second,
            nullcontext() if is_modern else working(tmp_path, SCRIPT[1:]),
        ):
            page = await (await http.get(f"{second.url}/approvals?state=pending")).json()
            assert [each["id"] for each in page["data"]] == [form, asked["id"]]
            assert [each["elicitation"]["server"] for each in page["data"]] == ["hotel", "hotel"]
            wrong = await http.post(f"{second.url}/approvals/{asked['id']}", json={"approve": True, "content": {"room": "x"}})
            assert (wrong.status, (await wrong.json())["error"]["code"]) == (400, "answer_content_invalid")
            given = {"approve": True, "content": YES, "background": False}
            done = await (await http.post(f"{second.url}/approvals/{asked['id']}", json=given)).json()
            assert done["output"][-1]["content"][0]["text"] == "Done."
            filled = {form: {"action": "accept", "content": YES}}
            again = {**BOOKER, "requestState": passed_on["requestState"], "inputResponses": filled}
            booked = (await McpWire(http, second.url).ask("tools/call", again, FORMS))["result"]
            assert booked["content"][0]["text"] == "Done."
            page = await (await http.get(f"{second.url}/approvals?state=pending")).json()
            assert page["data"] == []
        assert [booking[-1] for booking in hotel.bookings] == 2 * [{"action": "accept", "content": YES}]


@ERAS
async def test_kill_during_a_task_follows_the_same_task_afterwards(
    is_modern: bool, tmp_path: Path, http: aiohttp.ClientSession
) -> None:
    async with serve(Hotel(is_modern=is_modern, questions=(), takes_tasks=True)) as hotel:
        write_settings(tmp_path, hotel)
        with serving(tmp_path, SCRIPT) as first:
            body = {"model": "m", "input": "Book.", "background": True}
            told = await (await http.post(f"{first.url}/responses", json=body)).json()
            await until(lambda: hotel.polls > 1)
            first.kill()
        hotel.done.set()
        with serving(tmp_path, SCRIPT) as second:
            url = f"{second.url}/responses/{told['id']}"
            async with asyncio.timeout(60):
                while (now := await (await http.get(url)).json())["status"] in ("queued", "in_progress"):
                    async with http.get(f"{url}?stream=true") as stream:
                        await stream.read()
            assert now["status"] == "completed", now
            assert now["output"][-1]["content"][0]["text"] == "Done."
        assert hotel.count("tools/call") == 1


@ERAS
async def test_a_stream_tells_of_a_call_that_asks_and_of_its_question(is_modern: bool) -> None:
    async with serve(Hotel(is_modern=is_modern)) as hotel, engine_of(hotel) as engine:
        handle = await engine.start(engine.order("Book."))
        wire = Wire(Dialect())
        handle.watch(wire)
        await handle.wait()
        told = linted(events_of(b"".join(wire.frames) + DONE))
        assert [item["type"] for item in told["output"]] == ["mcp_call", "mcp_approval_request"]
        assert told["output"][1]["elicitation"]["server"] == "hotel"


def test_a_number_without_end_is_no_answer_and_a_long_one_is() -> None:
    field = {"type": "integer"}
    schema = {"properties": {"count": field}}
    assert list_flaws(schema, {"count": parse_field(field, "inf")}) == ["`count` must be of the type integer"]
    assert list_flaws(schema, {"count": 10**400}) == []
