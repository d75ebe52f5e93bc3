"""Runs become observations: one for each answer and each call, whatever happens to the process, and no secret among them."""

import asyncio
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from tests.memory.world import NOW, a_memory, seen

from mainspring import Engine, tool
from mainspring.core.errors import InvalidRequest, StoreError, Unavailable
from mainspring.core.events import TextDelta
from mainspring.core.ids import counting
from mainspring.core.items import ApprovalRequest, ApprovalResponse
from mainspring.core.run import Call, Run
from mainspring.features.memory.capture import MOST_PENDING, MOST_PRIVATE, ObservationCapture
from mainspring.features.memory.memory import Memory
from mainspring.features.memory.observation import Observation
from mainspring.ports import Ask, Verdict
from mainspring.providers.scripted import Scripted, call, calls, empty, fail, refuse, say, turn
from mainspring.storage.memory_runs import MemoryStore
from mainspring.storage.sql import SqlConnection


@tool
def look(city: str, password: str = "") -> str:
    """Looks at the sky."""
    if city == "Atlantis":
        raise ValueError("there is no such city")
    return f"It is sunny in {city}."


@tool
def note(text: str, password: str = "") -> str:
    """Takes a note."""
    return "Noted."


async def everything(memory: Memory) -> list[Observation]:
    """All observations of the default tenant, oldest first."""
    found = await memory.search("", tenant="", top_k=100)
    return [await memory.get(each.citation, tenant="") for each in found][::-1]


async def observed(script: Scripted, **options: Any) -> list[Observation]:
    """What is remembered of one run."""
    async with a_memory() as memory:
        async with Engine(script, tools=[look], sinks=memory.sinks, new_id=counting()) as engine:
            await engine.run("Go.", **options)
        return await everything(memory)


@pytest.mark.requirement("C9", "C35", "C60", "C-T17")
async def test_each_answer_and_each_call_is_observed_once() -> None:
    script = Scripted(
        turn(say="Let me see.", calls=[call("look", city="Paris"), call("look", city="Atlantis")]),
        calls(call("look", city="Rome")),
        say("Sunny, but for Atlantis."),
    )
    found = await observed(script)
    told = [(each.event_type, each.content, each.metadata.get("tool"), each.metadata.get("is_error")) for each in found]
    assert sorted(told, key=str) == sorted(
        [
            ("llm_response", "Let me see.", None, None),
            ("tool_call", "It is sunny in Paris.", "look", False),
            ("tool_call", "The tool `look` failed: ValueError: there is no such city", "look", True),
            ("llm_response", "calls look", None, None),
            ("tool_call", "It is sunny in Rome.", "look", False),
            ("llm_response", "Sunny, but for Atlantis.", None, None),
        ],
        key=str,
    )
    first = next(each for each in found if each.content == "Let me see.")
    assert first.metadata == {"run": "resp_2", "turn": 1, "model": "scripted", "calls": ["look", "look"]}
    rome = next(each for each in found if each.content == "It is sunny in Rome.")
    assert rome.metadata["arguments"] == '{"city":"Rome"}'
    assert rome.metadata["turn"] == 2
    assert {each.session_id for each in found} == {"resp_2"}
    assert {each.agent_name for each in found} == {"assistant"}
    assert len({each.id for each in found}) == 6
    times = [each.timestamp for each in found]
    assert times == sorted(times)
    assert times[0] > 0


async def test_a_refusal_is_an_answer_and_an_empty_or_failed_turn_is_none() -> None:
    script = Scripted(fail(Unavailable("down")), refuse("I would rather not."))
    found = await observed(script, retry_model_errors=True)
    assert [each.content for each in found] == ["I would rather not."]
    assert await observed(Scripted(empty())) == []


async def test_a_denied_call_is_observed_with_the_reason() -> None:
    found = await observed(Scripted(calls(call("look", town="Paris")), say("No luck.")))
    denied = next(each for each in found if each.event_type == "tool_call")
    assert denied.metadata["is_error"] is True
    assert denied.metadata["seconds"] == 0
    assert "city" in denied.content


class AsksFirst:
    name = "asks_first"

    async def judge(self, call: Call, run: Run) -> Verdict:
        return Ask("May I look?")


async def test_a_call_that_an_earlier_run_made_is_observed_where_it_runs() -> None:
    script = Scripted(calls(call("look", city="Paris")), say("Sunny."))
    async with a_memory() as memory:
        async with Engine(script, tools=[look], policies=[AsksFirst()], sinks=memory.sinks) as engine:
            asked = await engine.run("Go.")
            [request] = [item for item in asked.output if isinstance(item, ApprovalRequest)]
            answered = await engine.run([ApprovalResponse(request.id, True)], previous=asked.spec.id)
        found = await everything(memory)
    assert [(each.event_type, each.metadata["run"]) for each in found] == [
        ("llm_response", asked.spec.id),
        ("tool_call", answered.spec.id),
        ("llm_response", answered.spec.id),
    ]
    assert found[1].said == 'look {"city":"Paris"}: It is sunny in Paris.'


async def test_agent_session_and_tags_come_from_the_order() -> None:
    options = {"agent": "weather-bot", "metadata": {"tags": "travel, , europe", "session_id": "trip-1"}}
    found = await observed(Scripted(say("Sunny.")), **options)
    assert [(each.agent_name, each.session_id, each.tags) for each in found] == [("weather-bot", "trip-1", ("travel", "europe"))]


async def test_capture_hears_no_deltas() -> None:
    heard: list[type] = []

    class Counting(ObservationCapture):
        async def __call__(self, run: Any, event: Any) -> None:
            heard.append(type(event))

    memory = a_memory()
    sink = Counting(memory._database, 1_000, lambda text, most: text, memory._after_write)
    async with Engine(Scripted(say("abc")), sinks=[sink]) as engine:
        await engine.run("Go.")
    assert len(heard) == 1
    assert TextDelta not in heard


@pytest.mark.requirement("C34")
async def test_recording_gives_an_id_and_the_same_observation_is_kept_once() -> None:
    async with a_memory() as memory:
        made = await memory.record(seen("The build is green.", event_type="decision", tags=("ci",)))
        assert made.startswith("obs_")
        again = seen("Twice.", id="obs_1", event_type="error")
        assert [await memory.record(again), await memory.record(again)] == ["obs_1", "obs_1"]
        assert [each.content for each in await everything(memory)] == ["The build is green.", "Twice."]
        kept = await memory.get(made, tenant="")
        assert (kept.event_type, kept.tags, kept.timestamp, kept.agent_name) == ("decision", ("ci",), NOW, "scout")


@pytest.mark.parametrize(
    "wrong",
    [{"metadata": {"at": object()}}, {"event_type": "gossip"}, {"tags": "ci"}, {"content": "\ud800"}],
    ids=["metadata", "event_type", "tags", "content"],
)
async def test_what_cannot_be_kept_is_refused(wrong: dict[str, object]) -> None:
    async with a_memory() as memory:
        with pytest.raises(InvalidRequest, match="an observation cannot be kept"):
            await memory.record(replace(seen("x"), **wrong))
        assert await everything(memory) == []


@pytest.mark.requirement("C34", "D80")
async def test_private_observations_stay_in_a_bounded_buffer_and_never_reach_the_file(tmp_path: Path) -> None:
    path = tmp_path / "memory.db"
    async with a_memory(path) as memory:
        for tag in ("sensitive", "pii", "secret", " PII "):
            await memory.record(seen(f"marzipan {tag}", tags=("fine", tag)))
        for number in range(MOST_PRIVATE):
            await memory.record(seen(f"marzipan {number}", tags=("pii",)))
        assert len(memory.capture.buffered) == MOST_PRIVATE
        assert memory.capture.buffered[-1].content == f"marzipan {MOST_PRIVATE - 1}"
        assert await memory.search("marzipan", tenant="") == []
        assert await memory.search("", tenant="") == []
        await memory.forget(tenant="other")
        assert len(memory.capture.buffered) == MOST_PRIVATE
        await memory.forget(tenant="", session="s")
        assert len(memory.capture.buffered) == 0
    assert b"marzipan" not in bytes_of(tmp_path)


async def test_a_private_or_unstored_run_is_not_kept(tmp_path: Path) -> None:
    path = tmp_path / "memory.db"
    for options in ({"metadata": {"tags": "team, secret"}}, {"store": False}):
        async with Engine(Scripted(say("marzipan")), store=MemoryStore(), memory=a_memory(path)) as engine:
            await engine.run("Go.", **options)
            memory = engine.memory
    assert isinstance(memory, Memory)
    assert [each.content for each in memory.capture.buffered] == ["marzipan"]
    assert b"marzipan" not in bytes_of(tmp_path)


SECRET = "hunter2-correct-horse-7"
KEY = "sk-proj-abcdefghijklmnop0123456789"


@pytest.mark.requirement("D80")
@pytest.mark.parametrize(
    "arguments",
    [
        {"text": "Paris", "password": SECRET},
        {"text": "Paris", "password": f'"{SECRET}" \\'},
        {"text": f'{{"login": {{"apiKey": "{SECRET}"}}}}'},
        {"text": f"curl -H 'Authorization: Bearer {SECRET}' https://ada:{SECRET}@example.com"},
        {"text": f'["--password", "{SECRET}"]'},
        {"text": f'[[[{{"access_token": ["{SECRET}"]}}]]]'},
        {"text": f"Paris {KEY}"},
        {"text": "[" * 40 + f'"{SECRET}"' + "]" * 40},
    ],
    ids=range(8),
)
async def test_secrets_in_arguments_never_reach_the_file(arguments: dict[str, object], tmp_path: Path) -> None:
    path = tmp_path / "memory.db"
    script = Scripted(calls(call("note", **arguments)), say(f"The password: '{SECRET}', and {KEY}."))
    async with a_memory(path) as memory:
        async with Engine(script, tools=[note], sinks=memory.sinks) as engine:
            assert (await engine.run("Go.")).status == "completed"
        found = await everything(memory)
        # While it is open the bytes are in the write-ahead log.
        written = bytes_of(tmp_path)
    assert [each.event_type for each in found] == ["llm_response", "tool_call", "llm_response"]
    for data in (written, bytes_of(tmp_path)):
        assert b"tool_call" in data
        assert SECRET.encode() not in data
        assert KEY.encode() not in data


async def test_a_secret_in_the_metadata_of_a_record_is_taken_out() -> None:
    async with a_memory() as memory:
        metadata = {
            "token": SECRET,
            "note": f"password={SECRET}",
            "max_tokens": 5,
            "is_token": True,
            "deep": [{"client_secret": [SECRET]}],
        }
        id = await memory.record(seen("x", metadata=metadata))
        kept = (await memory.get(id, tenant="")).metadata
    assert SECRET not in str(kept)
    assert kept["max_tokens"] == 5
    assert kept["is_token"] is True


async def test_endless_texts_are_shortened() -> None:
    async with a_memory() as memory:
        long = seen(
            "a" * 1_000_000, metadata={str(n): "b" * 10_000 for n in range(10)}, tags=tuple([f"t{n}" * 50 for n in range(99)])
        )
        kept = await memory.get(await memory.record(long), tenant="")
    assert len(kept.content) < 17_000
    assert len(str(kept.metadata)) < 17_000
    assert len(kept.tags) == 16


@pytest.mark.requirement("D80")
async def test_what_cannot_be_written_waits_in_a_bounded_buffer(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "memory.db"
    async with a_memory(path) as memory:
        await memory._database.read(lambda connection: connection.execute("PRAGMA busy_timeout = 0"))
        other = sqlite3.connect(path, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        for number in range(3 * MOST_PENDING):
            await memory.capture._keep(seen(f"fact {number}", id=f"obs_{number}"))
        assert len(memory.capture._pending) < MOST_PENDING
        assert len(memory.capture._unwritten) == MOST_PENDING
        assert "could not be written" in caplog.text
        other.execute("ROLLBACK")
        other.close()
        await memory.capture._keep(seen("the last fact", id="obs_last"))
        assert (await memory.search("last", tenant=""))[0].text.endswith("the last fact")
        assert len(await memory.search("fact", tenant="", top_k=100)) == 100


async def test_a_search_that_is_cancelled_at_any_point_loses_nothing(tmp_path: Path) -> None:
    async with a_memory(tmp_path / "memory.db") as memory:
        for steps in range(30):
            await memory.record(seen(f"fact {steps}", id=str(steps)))
            searching = asyncio.create_task(memory.search("fact", tenant=""))
            for _ in range(steps):
                await asyncio.sleep(0)
            searching.cancel()
            await asyncio.wait([searching])
        assert {each.id for each in await everything(memory)} == {str(steps) for steps in range(30)}


async def test_an_observation_that_nobody_can_write_does_not_take_others_along(caplog: pytest.LogCaptureFixture) -> None:
    async with a_memory() as memory:
        await memory.capture._keep(seen("poison", metadata={"x": object()}))
        await memory.capture.flush()
        assert "1 observations are lost" in caplog.text
        await memory.record(seen("honey", id="1"))
        assert [each.citation for each in await memory.search("honey", tenant="")] == ["1"]


async def test_a_crash_leaves_a_sign_and_a_close_does_not(tmp_path: Path) -> None:
    path = tmp_path / "memory.db"
    async with a_memory(path) as first:
        assert first.cut_off_since is None
    crashed = a_memory(path)
    await crashed.open()
    async with a_memory(path) as second:
        assert second.cut_off_since is not None
    async with a_memory(path) as third:
        assert third.cut_off_since is not None
        async with Engine(Scripted()) as engine:
            await third.catch_up(engine.core)
    async with a_memory(path) as fourth:
        assert fourth.cut_off_since is None
    await crashed.close()


def _trace(connection: SqlConnection, tell: Callable[[str], None]) -> None:
    assert isinstance(connection, sqlite3.Connection)
    connection.set_trace_callback(tell)


async def test_observations_are_written_in_few_transactions(tmp_path: Path) -> None:
    path = tmp_path / "memory.db"
    async with a_memory(path) as memory:
        statements: list[str] = []
        await memory._database.read(_trace, statements.append)
        for number in range(200):
            await memory.capture._keep(seen(f"fact {number}", id=f"obs_{number}"))
    assert statements.count("COMMIT") <= 3


async def test_a_memory_and_a_store_may_share_a_file_whoever_is_first(tmp_path: Path) -> None:
    path = tmp_path / "one.db"
    async with a_memory(path) as memory:
        await memory.record(seen("before the runs"))
    async with Engine(Scripted(say("Hello.")), database=path, memory=True) as engine:
        await engine.run("Go.")
    async with a_memory(path) as memory:
        assert [each.content for each in await everything(memory)] == ["before the runs", "Hello."]


async def test_the_file_of_another_program_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "other.db"
    with sqlite3.connect(path) as other:
        other.execute("CREATE TABLE precious (id)")
    other.close()
    before = path.read_bytes()
    with pytest.raises(StoreError, match="another program"):
        await a_memory(path).open()
    assert path.read_bytes() == before


async def test_a_memory_of_a_newer_version_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "memory.db"
    await a_memory(path).open()
    async with a_memory(path):
        pass
    with sqlite3.connect(path) as other:
        other.execute("UPDATE memory SET version = 99")
    other.close()
    with pytest.raises(StoreError, match="newer Mainspring"):
        await a_memory(path).open()


def bytes_of(folder: Path) -> bytes:
    """All that is in the files of a folder."""
    return b"".join([path.read_bytes() for path in sorted(folder.iterdir())])
