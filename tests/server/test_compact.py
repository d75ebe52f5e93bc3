"""Compaction: a conversation made short, by request and inside a response, and what the model sees of it later."""

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest
from openai import AsyncOpenAI, BadRequestError
from openai.types.responses import CompactedResponse
from tests.server.hosting import hosted
from tests.server.linter import Json, events_of, linted
from websockets.asyncio.client import connect

from mainspring.app.engine import Engine
from mainspring.app.server import server
from mainspring.core.compaction import HEADING, SUMMARIZE
from mainspring.core.items import FunctionCall, FunctionCallOutput, Message, assistant, user
from mainspring.core.model_request import ModelRequest
from mainspring.providers.scripted import Call, Scripted, Turn, call, fail, prompt, refuse, say

WEATHER: Json = {"type": "function", "name": "weather", "parameters": {"type": "object"}}
SUMMARY = "Alice asked about the weather in Paris."


class World:
    def __init__(self, engine: Engine, script: Scripted, url: str) -> None:
        self.engine, self.script, self.url = engine, script, url

    async def post(self, path: str, body: Json) -> tuple[int, Json]:
        async with aiohttp.ClientSession() as session, session.post(f"{self.url}{path}", json=body) as answer:
            return answer.status, await answer.json()

    async def compacted(self, **body: object) -> Json:
        status, made = await self.post("/responses/compact", {"model": "m", **body})
        assert status == 200, made
        return made

    async def created(self, **body: object) -> Json:
        status, made = await self.post("/responses", {"model": "m", **body})
        assert status == 200, made
        return made

    async def failed(self, **body: object) -> str:
        """How a response failed, told in its stream."""
        async with (
            aiohttp.ClientSession() as session,
            session.post(f"{self.url}/responses", json={"model": "m", "stream": True, **body}) as answer,
        ):
            made = linted(events_of(await answer.read()))
        assert made["status"] == "failed"
        reason: str = made["error"]["reason"]
        return reason

    def seen(self, number: int = -1) -> list[str]:
        """What the model was shown, a line per item."""
        return prompt(self.script.requests[number]).split("\n[")


@asynccontextmanager
async def world(*turns: Turn | Call, database: Path | None = None) -> AsyncIterator[World]:
    script = Scripted(*turns, chunk=4)
    engine = Engine(script, database=database)
    async with hosted(server(engine)) as url:
        yield World(engine, script, url)
    script.assert_done()


def is_asked_to_sum_up(request: ModelRequest) -> bool:
    last = request.items[-1]
    return isinstance(last, Message) and last.text == SUMMARIZE and not request.tools


SUMS_UP = say(SUMMARY, expect=is_asked_to_sum_up)
TALK: list[Json] = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "I am Alice."},
    {"role": "assistant", "content": [{"type": "output_text", "text": "Hello Alice."}]},
    {"role": "user", "content": "How is the weather in Paris?"},
]


async def test_compaction_returns_the_users_messages_under_new_ids_and_one_compaction_item() -> None:
    async with world(SUMS_UP) as here:
        made = await here.compacted(input=[{"id": "msg_mine", **item} for item in TALK], prompt_cache_key="key")
        assert set(made) == {"id", "object", "created_at", "output", "usage"}
        assert made["object"] == "response.compaction"
        assert made["id"].startswith("resp_")
        *messages, compaction = made["output"]
        assert [(item["role"], item["content"][0]["text"]) for item in messages] == [
            ("user", "I am Alice."),
            ("user", "How is the weather in Paris?"),
        ]
        assert len({item["id"] for item in [*messages, {"id": "msg_mine"}]}) == 3
        assert all(item["id"].startswith("msg_") and item["status"] == "completed" for item in messages)
        assert set(compaction) == {"type", "id", "encrypted_content"}
        assert (compaction["type"], compaction["id"][:4]) == ("compaction", "cmp_")
        assert SUMMARY not in compaction["encrypted_content"]
        usage = made["usage"]
        assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"] > 0
        assert (await here.engine.store.list()).runs == (), "it is no response that could be continued"


async def test_compaction_of_an_earlier_response_takes_all_of_its_conversation() -> None:
    async with world(say("Hello Alice."), SUMS_UP) as here:
        first = await here.created(input="I am Alice.")
        made = await here.compacted(previous_response_id=first["id"], input="And the weather?", instructions="Be exact.")
        assert [item["content"][0]["text"] for item in made["output"][:-1]] == ["I am Alice.", "And the weather?"]
        assert here.seen()[:4] == [
            "[instructions] Be exact.",
            "user] I am Alice.",
            "assistant] Hello Alice.",
            "user] And the weather?",
        ]


async def test_compaction_of_an_earlier_response_alone_is_possible() -> None:
    async with world(say("Hello Alice."), SUMS_UP) as here:
        first = await here.created(input="I am Alice.")
        made = await here.compacted(previous_response_id=first["id"])
        assert [item["type"] for item in made["output"]] == ["message", "compaction"]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"input": "x"}, "model"),
        ({"model": "", "input": "x"}, "model"),
        ({"model": "m"}, "input"),
        ({"model": "m", "input": []}, "input"),
        ({"model": "m", "input": "x", "previous_response_id": "resp_nope"}, "previous_response_id"),
        ({"model": "m", "input": [{"type": "function_call_output", "call_id": "c", "output": "x"}]}, "input"),
    ],
)
async def test_compaction_that_cannot_be_made_is_refused_with_the_field_at_fault(body: Json, param: str) -> None:
    async with world() as here:
        status, refused = await here.post("/responses/compact", body)
        assert (status, refused["error"]["param"], refused["error"]["type"]) == (400, param, "invalid_request_error")


@pytest.mark.parametrize(
    ("turn", "status", "code"),
    [
        (fail("provider_unavailable"), 502, "provider_unavailable"),
        (fail("rate_limit_exceeded"), 429, "rate_limit_exceeded"),
        (refuse("I would rather not."), 502, "model_error"),
        (say("Half a sum", finish="length"), 502, "model_error"),
    ],
)
async def test_a_model_that_does_not_sum_up_makes_an_error_and_no_empty_summary(turn: Turn, status: int, code: str) -> None:
    async with world(turn) as here:
        got, refused = await here.post("/responses/compact", {"model": "m", "input": "hello"})
        assert (got, refused["error"]["code"]) == (status, code)


async def test_a_conversation_too_long_to_be_summed_up_is_summed_up_without_its_oldest_part() -> None:
    async with world(fail("context_length_exceeded"), SUMS_UP) as here:
        made = await here.compacted(input=[{"role": "user", "content": "Long ago. " * 50}, *TALK])
        assert len(made["output"]) == 4, "what the user said is returned all the same"
        assert "Long ago." in "".join(here.seen(0))
        assert "Long ago." not in "".join(here.seen(1))


async def test_w17_what_compaction_returned_begins_a_new_chain_and_the_model_reads_the_summary() -> None:
    async with world(SUMS_UP, say("Sunny."), say("As I said.")) as here:
        base = (await here.compacted(input=TALK))["output"]
        first = await here.created(input=[*base, {"role": "user", "content": "Well?"}])
        told = [
            "[user] I am Alice.",
            "user] How is the weather in Paris?",
            f"user] {HEADING}\n\n{SUMMARY}",
            "user] Well?",
        ]
        assert here.seen() == told
        await here.created(input="Again?", previous_response_id=first["id"])
        assert here.seen() == [*told, "assistant] Sunny.", "user] Again?"], "and so in all that follows"


async def test_a_compaction_item_comes_back_untouched() -> None:
    async with world(SUMS_UP, say("Sunny.")) as here:
        item = (await here.compacted(input=TALK))["output"][-1]
        sent = {**item, "created_by": "somebody"}
        made = await here.created(input=[{"role": "user", "content": "Before."}, sent, {"role": "user", "content": "After."}])
        async with (
            aiohttp.ClientSession() as session,
            session.get(f"{here.url}/responses/{made['id']}/input_items?order=asc") as answer,
        ):
            items = (await answer.json())["data"]
        assert items[1] == sent
        assert here.seen()[1] == f"user] {HEADING}\n\n{SUMMARY}"


async def test_a_conversation_that_was_compacted_is_compacted_again_with_its_summary_in_it() -> None:
    async with world(SUMS_UP, say("Shorter still.", expect=SUMMARY), say("Yes.")) as here:
        once = (await here.compacted(input=TALK))["output"]
        twice = (await here.compacted(input=once))["output"]
        assert [item["type"] for item in twice] == ["message", "message", "compaction"]
        await here.created(input=[*twice, {"role": "user", "content": "Well?"}])
        assert f"user] {HEADING}\n\nShorter still." in here.seen()


async def test_a_summary_can_be_read_after_a_restart_on_the_same_store(tmp_path: Path) -> None:
    async with world(SUMS_UP, database=tmp_path / "runs.db") as here:
        base = (await here.compacted(input=TALK))["output"]
    async with world(say("Sunny."), database=tmp_path / "runs.db") as here:
        await here.created(input=[*base, {"role": "user", "content": "Well?"}])
        assert f"user] {HEADING}\n\n{SUMMARY}" in here.seen()


def spoiled(content: str) -> Sequence[object]:
    version, payload, seal = content.split(".")
    return (
        f"{version}.{payload}.{seal[::-1]}",
        f"{version}.{payload[:-4]}.{seal}",
        f"ms2.{payload}.{seal}",
        f"{version}.{payload}",
        f"{version}.{payload}.",
        "gAAAAABopaque",
        "",
        None,
        7,
    )


async def test_a_summary_that_was_changed_or_is_foreign_is_refused_and_says_where() -> None:
    async with world(SUMS_UP) as here:
        item = (await here.compacted(input=TALK))["output"][-1]
        for content in spoiled(item["encrypted_content"]):
            sent = [{"role": "user", "content": "x"}, {**item, "encrypted_content": content}]
            status, refused = await here.post("/responses", {"model": "m", "input": sent})
            assert (status, refused["error"]["param"]) == (400, "input[1].encrypted_content"), content
            assert "cannot be read" in refused["error"]["message"]


async def test_a_summary_of_another_store_is_refused() -> None:
    async with world(SUMS_UP) as here:
        base = (await here.compacted(input=TALK))["output"]
    async with world() as here:
        status, _ = await here.post("/responses", {"model": "m", "input": base})
        assert status == 400


async def test_w17_a_compacted_conversation_goes_on_over_a_socket_without_storing() -> None:
    async with world(SUMS_UP, say("Sunny.", expect=SUMMARY)) as here:
        base = (await here.compacted(input=TALK))["output"]
        async with connect(f"{here.url.replace('http', 'ws')}/responses") as socket:
            items = [*base, {"role": "user", "content": "Well?"}]
            await socket.send(json.dumps({"type": "response.create", "model": "m", "store": False, "input": items}))
            events = [json.loads(await socket.recv())]
            while not events[-1]["type"].endswith((".completed", ".failed", "error")):
                events.append(json.loads(await socket.recv()))
            assert linted(events)["status"] == "completed"


TRIGGER: Json = {"type": "compaction_trigger"}


async def test_a_trigger_makes_exactly_one_compaction_item_and_no_answer(tmp_path: Path) -> None:
    """Also with tools, and when an answer in JSON is asked for: a summary is neither a call nor JSON."""
    sums_up = say(SUMMARY, expect=lambda request: request.tool_choice.mode == "none" and request.text is None)
    form = {"format": {"type": "json_schema", "name": "n", "schema": {"type": "object"}}}
    async with world(sums_up, say("Sunny."), database=tmp_path / "runs.db") as here:
        made = await here.created(input=[*TALK, TRIGGER], tools=[WEATHER], text=form)
        [item] = made["output"]
        assert (made["status"], item["type"], set(item)) == ("completed", "compaction", {"type", "id", "encrypted_content"})
        assert made["usage"]["total_tokens"] > 0
        # What the server keeps is short from now on, but for what the system and the user said.
        await here.created(input="And now?", previous_response_id=made["id"])
        assert here.seen() == [
            "[system] Be brief.",
            "user] I am Alice.",
            "user] How is the weather in Paris?",
            f"user] {HEADING}\n\n{SUMMARY}",
            "user] And now?",
        ]


async def test_a_trigger_over_a_socket_and_the_client_goes_on_with_what_it_keeps() -> None:
    async with world(SUMS_UP, say("Sunny.")) as here, connect(f"{here.url.replace('http', 'ws')}/responses") as socket:

        async def ask(*items: Json) -> Json:
            await socket.send(json.dumps({"type": "response.create", "model": "m", "store": False, "input": items}))
            told: list[Json] = []
            while not told or not told[-1]["type"].endswith(("completed", "error")):
                told.append(json.loads(await socket.recv()))
            return linted(told)

        [item] = (await ask(*TALK, TRIGGER))["output"]
        assert item["type"] == "compaction"
        kept = [said for said in TALK if said["role"] == "user"]
        assert (await ask(*kept, item, {"role": "user", "content": "And now?"}))["output"][0]["content"][0]["text"] == "Sunny."
        assert [line.partition("] ")[2][:12] for line in here.seen()] == ["I am Alice.", "How is the w", HEADING[:12], "And now?"]


async def test_a_conversation_too_long_for_its_trigger_loses_its_oldest_part() -> None:
    too_long = fail("context_length_exceeded")
    async with world(too_long, SUMS_UP) as here:
        [item] = (await here.created(input=[*TALK, TRIGGER]))["output"]
        assert item["type"] == "compaction"
        assert len(here.seen(1)) < len(here.seen(0))


async def test_a_trigger_adds_nothing_to_a_request_for_compaction() -> None:
    async with world(SUMS_UP) as here:
        assert (await here.compacted(input=[*TALK, TRIGGER]))["output"][-1]["type"] == "compaction"


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"input": [TRIGGER, *TALK]}, "input[0]"),
        ({"input": [*TALK, TRIGGER, TRIGGER]}, "input[4]"),
        ({"input": [TRIGGER]}, "input"),
        ({"input": [*TALK, TRIGGER], "generate": False}, "generate"),
    ],
)
async def test_a_trigger_that_makes_no_sense_is_refused(body: Json, param: str) -> None:
    async with world() as here:
        status, made = await here.post("/responses", {"model": "m", **body})
        assert (status, made["error"]["param"]) == (400, param)


async def test_openai_python_compacts_and_goes_on() -> None:
    async with (
        world(SUMS_UP, say("Sunny.", expect=SUMMARY)) as here,
        AsyncOpenAI(base_url=here.url, api_key="unused") as openai,
    ):
        made = await openai.responses.compact(model="gpt-5", input=TALK)  # type: ignore[arg-type]
        assert isinstance(made, CompactedResponse)
        assert [item.type for item in made.output] == ["message", "message", "compaction"]
        base = [item.model_dump(exclude_none=True, warnings=False) for item in made.output]
        answer = await openai.responses.create(model="m", input=[*base, {"role": "user", "content": "Well?"}])  # type: ignore[list-item]
        assert answer.output_text == "Sunny."
        with pytest.raises(BadRequestError):
            await openai.responses.compact(model="", input="x")


# Inside a response.

LONG = "The forecast goes on and on. " * 20


def weather(city: str) -> str:
    """How it is outside."""
    return f"{city}: {LONG}"


def managed(threshold: int = 300) -> Json:
    return {"context_management": [{"type": "compaction", "compact_threshold": threshold}]}


@asynccontextmanager
async def working(*turns: Turn | Call, database: Path | None = None) -> AsyncIterator[World]:
    """A world whose model has a tool on the server."""
    script = Scripted(*turns, chunk=4)
    engine = Engine(script, tools=[weather], database=database)
    async with hosted(server(engine)) as url:
        yield World(engine, script, url)
    script.assert_done()


def shows_whole_pairs(request: ModelRequest) -> None:
    calls_made = [item.call_id for item in request.items if isinstance(item, FunctionCall)]
    assert calls_made == [item.call_id for item in request.items if isinstance(item, FunctionCallOutput)]


async def test_beyond_the_threshold_what_is_old_is_replaced_by_a_summary_between_turns() -> None:
    turns = (call("weather", city="Paris"), call("weather", city="Rome"), say(SUMMARY), say("Sunny in both."))
    async with working(*turns) as here:
        made = await here.created(input="Paris or Rome?", instructions="Be brief.", **managed(400))
        assert [item["type"] for item in made["output"]][-2:] == ["compaction", "message"]
        asked, after = here.script.requests[2:]
        assert isinstance(last := asked.items[-1], Message)
        assert last.text == SUMMARIZE
        assert asked.tool_choice.mode == "none"
        assert [type(item).__name__ for item in after.items] == ["Message", "Message", "FunctionCall", "FunctionCallOutput"]
        assert here.seen()[:3] == [
            "[instructions] Be brief.",
            f"user] {HEADING}\n\n{SUMMARY}",
            "user] Paris or Rome?",
        ]
        for request in here.script.requests:
            shows_whole_pairs(request)
        assert made["usage"]["output_tokens"] >= len(SUMMARY.split()), "what the summary cost counts"


async def test_a_response_that_was_compacted_is_continued_as_the_model_saw_it(tmp_path: Path) -> None:
    turns = (call("weather", city="Paris"), call("weather", city="Rome"), say(SUMMARY), say("Sunny in both."))
    async with working(*turns, database=tmp_path / "runs.db") as here:
        made = await here.created(input="Paris or Rome?", **managed(400))
    async with working(say("As I said."), database=tmp_path / "runs.db") as here:
        await here.created(input="Sure?", previous_response_id=made["id"])
        assert [line.partition(" ")[0] for line in here.seen()] == [
            "[user]", "user]", "call", "output]", "assistant]", "user]",
        ]  # fmt: skip
        assert here.seen()[0] == f"[user] {HEADING}\n\n{SUMMARY}"


async def test_a_long_history_is_compacted_before_the_first_turn_and_what_is_new_stays() -> None:
    history: list[Json] = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": LONG},
        {"role": "assistant", "content": LONG},
        {"role": "user", "content": "And now?"},
    ]
    async with world(say(SUMMARY), say("Now it rains.")) as here:
        made = await here.created(input=history, **managed())
        assert [item["type"] for item in made["output"]] == ["compaction", "message"]
        assert here.seen() == ["[system] Be brief.", f"user] {HEADING}\n\n{SUMMARY}", "user] And now?"]


async def test_what_a_client_sends_back_of_a_compacted_response_works_whole_or_from_the_item_on() -> None:
    turns = (call("weather", city="Paris"), call("weather", city="Rome"), say(SUMMARY), say("Sunny in both."))
    async with working(*turns, say("Yes."), say("Yes.")) as here:
        made = await here.created(input="Paris or Rome?", store=False, **managed(400))
        more = [{"role": "user", "content": "Sure?"}]
        whole = [{"role": "user", "content": "Paris or Rome?"}, *made["output"], *more]
        place = [item["type"] for item in made["output"]].index("compaction")
        for sent in (whole, [*made["output"][place:], *more]):
            await here.created(input=sent, store=False)
            assert here.seen()[0] == f"[user] {HEADING}\n\n{SUMMARY}"
            shows_whole_pairs(here.script.requests[-1])


async def test_below_the_threshold_and_for_a_lone_long_message_nothing_is_summed_up() -> None:
    async with world(say("Short."), say("Long, indeed.")) as here:
        assert len((await here.created(input="hello", **managed(300)))["output"]) == 1
        assert len((await here.created(input=LONG * 5, **managed(300)))["output"]) == 1


async def test_a_compaction_that_fails_fails_the_response_and_says_why() -> None:
    history: list[Json] = [{"role": "user", "content": LONG}, {"role": "assistant", "content": LONG}, *TALK[-1:]]
    async with world(fail("provider_unavailable"), refuse("No.")) as here:
        assert await here.failed(input=history, **managed()) == "provider_unavailable"
        assert await here.failed(input=history, **managed()) == "provider_bad_output"


async def test_a_compaction_is_streamed_as_an_item_that_comes_whole() -> None:
    turns = (call("weather", city="Paris"), call("weather", city="Rome"), say(SUMMARY), say("Sunny in both."))
    async with working(*turns) as here:
        body: Json = {"model": "m", "input": "Paris or Rome?", "stream": True, **managed(400)}
        async with aiohttp.ClientSession() as session, session.post(f"{here.url}/responses", json=body) as answer:
            events = events_of(await answer.read())
        linted(events)
        told = [event["type"] for event in events if event.get("item", {}).get("type") == "compaction"]
        assert told == ["response.output_item.added", "response.output_item.done"]


@pytest.mark.parametrize(
    "management",
    [
        [{"type": "compaction", "compact_threshold": 0}],
        [{"type": "compaction", "compact_threshold": "many"}],
        [{"type": "compaction", "compact_threshold": True}],
        [{"type": "trimming"}],
        [{"type": "compaction"}, {"type": "compaction"}],
    ],
)
async def test_context_management_that_makes_no_sense_is_refused(management: list[Json]) -> None:
    async with world() as here:
        status, refused = await here.post("/responses", {"model": "m", "input": "x", "context_management": management})
        assert (status, refused["error"]["param"]) == (400, "context_management")


async def test_w35_truncation_auto_drops_the_oldest_half_when_the_backend_says_it_is_too_much() -> None:
    history: list[Json] = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": LONG},
        {"type": "function_call", "call_id": "call_1", "name": "weather", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "call_1", "output": LONG},
        {"role": "assistant", "content": "Long."},
        {"role": "user", "content": "And now?"},
    ]
    async with world(fail("context_length_exceeded"), say("Now it rains.")) as here:
        made = await here.created(input=history, truncation="auto")
        assert made["status"] == "completed"
        assert here.seen(0)[-1] == here.seen(1)[-1] == "user] And now?"
        assert here.seen(1)[0] == "[system] Be brief."
        assert LONG not in "".join(here.seen(1)[:2])
        shows_whole_pairs(here.script.requests[1])


async def test_w35_truncation_auto_asks_only_once_more() -> None:
    async with world(fail("context_length_exceeded"), fail("context_length_exceeded")) as here:
        assert await here.failed(input="hello", truncation="auto") == "context_length_exceeded"


async def test_w35_without_truncation_too_much_fails_at_once() -> None:
    for body in ({}, {"truncation": "disabled"}):
        async with world(fail("context_length_exceeded")) as here:
            assert await here.failed(input="hello", **body) == "context_length_exceeded"


async def test_w35_a_known_window_is_kept_to_before_the_backend_is_asked() -> None:
    script = Scripted(say("Hello."))
    async with Engine(script) as engine:
        talk = (user(LONG, id="msg_1"), assistant(LONG, id="msg_2"), user("And now?", id="msg_3"))
        cut = await engine.run(talk, context_tokens=100, truncation="auto")
        assert cut.status == "completed"
        assert list(script.requests[0].items) == [talk[-1]]
        failed = await engine.run(talk, context_tokens=100)
        assert (failed.status, failed.error and failed.error.code) == ("failed", "context_length_exceeded")
        assert failed.error is not None
        assert "about" in failed.error.message
        assert len(script.requests) == 1
