"""A model that goes round in circles, seen from outside: a real server, a real client, each rung of the ladder."""

from pathlib import Path
from typing import Any

import aiohttp
import anyio
import pytest
from openai import OpenAI
from tests.kit.waiting import PATIENCE
from tests.server.linter import events_of, linted
from tests.server.process import Script, Served, serving

TOOLS = '''
from pathlib import Path

from mainspring import tool


def mark(name: str) -> int:
    with Path("marks").open("a") as file:
        file.write(f"{name}\\n")
    return Path("marks").read_text().count(f"{name}\\n")


@tool(repeatable=True)
def look(at: str = "") -> str:
    """Looks."""
    mark("look")
    return f"nothing at {at}"


@tool
def save() -> str:
    """Saves."""
    mark("save")
    return "saved"


@tool(effects=("read",))
def clock() -> str:
    """Never says the same twice."""
    return f"it is {mark('clock')}"


@tool(polls=True)
def wait() -> str:
    """Whether it is done."""
    mark("wait")
    return "not yet"
'''


def made(*names: str, expect: str | None = None, **arguments: object) -> dict[str, object]:
    turn: dict[str, object] = {"calls": [{"name": name, "arguments": arguments} for name in names]}
    return turn if expect is None else {**turn, "expect": expect}


LOOK = made("look", at="a")
DONE: dict[str, object] = {"say": "All I know."}


def marks(folder: Path) -> list[str]:
    return (folder / "marks").read_text().split()


async def ask(folder: Path, turns: Script, **body: Any) -> dict[str, Any]:
    """The Response that a stream rebuilds, each event of it checked."""
    (folder / "mytools.py").write_text(TOOLS)
    with serving(folder, turns, "--tool", "mytools") as served:
        return await stream_from(served, **body)


async def stream_from(served: Served, **body: Any) -> dict[str, Any]:
    with anyio.fail_after(PATIENCE):
        async with (
            aiohttp.ClientSession() as http,
            http.post(f"{served.url}/responses", json={"model": "m", "input": "go", "stream": True, **body}) as answer,
        ):
            return linted(events_of(await answer.read()))


def outputs(told: dict[str, Any]) -> list[Any]:
    return [item["output"] for item in told["output"] if item["type"] == "mcp_call"]


async def test_the_model_is_nudged_with_the_name_of_what_it_repeats(tmp_path: Path) -> None:
    expected = {**DONE, "expect": 'the same calls in 3 turns in a row: `look` with {"at":"a"}'}
    told = await ask(tmp_path, [LOOK, LOOK, LOOK, expected])
    assert (told["status"], marks(tmp_path)) == ("completed", ["look"] * 3)


async def test_a_known_result_is_given_back_and_the_tool_is_not_run(tmp_path: Path) -> None:
    told = await ask(tmp_path, [LOOK, LOOK, LOOK, LOOK, {**DONE, "expect": "nothing at a"}])
    assert outputs(told) == ["nothing at a"] * 4
    assert (told["status"], marks(tmp_path)) == ("completed", ["look"] * 3)


async def test_a_tool_that_may_not_be_repeated_is_withheld_and_the_run_goes_on(tmp_path: Path) -> None:
    told = await ask(tmp_path, [*[made("save")] * 4, made("look", expect="is withheld for the rest of this run"), DONE])
    assert (told["status"], marks(tmp_path)) == ("completed", [*["save"] * 3, "look"])
    assert outputs(told)[3] is None


async def test_who_goes_on_is_asked_for_a_last_answer_and_the_response_says_why(tmp_path: Path) -> None:
    told = await ask(tmp_path, [*[LOOK] * 6, {**DONE, "expect": "tools are switched off"}])
    rungs = ["nudged", "reused", "withheld"]
    assert (told["status"], told["incomplete_details"]) == ("incomplete", {"reason": "loop_detected", "rungs": rungs})
    assert told["output"][-1]["content"][0]["text"] == "All I know."
    assert marks(tmp_path) == ["look"] * 3


async def test_a_run_that_another_limit_ends_tells_what_was_done_before(tmp_path: Path) -> None:
    told = await ask(tmp_path, [*[LOOK] * 4, DONE], max_turns=4)
    assert (told["status"], told["incomplete_details"]) == ("incomplete", {"reason": "max_turns", "rungs": ["nudged", "reused"]})


async def test_a_cycle_of_two_turns_ends_by_the_same_rungs(tmp_path: Path) -> None:
    told = await ask(tmp_path, [*[LOOK, made("save")] * 4, LOOK, DONE], max_tool_calls=50)
    assert (told["status"], told["incomplete_details"]["reason"]) == ("incomplete", "loop_detected")
    assert marks(tmp_path) == ["look", "save"] * 2


async def test_a_turn_in_which_one_call_differs_is_a_repetition_too(tmp_path: Path) -> None:
    turns: Script = [
        {"calls": [{"name": name, "arguments": {"at": at}} for name, at in (("look", "a"), ("look", "b"), ("look", str(n)))]}
        for n in range(5)
    ]
    told = await ask(tmp_path, [*turns, {**DONE, "expect": "the same calls in 5 turns in a row"}])
    assert (told["status"], len(marks(tmp_path))) == ("completed", 15)


async def test_a_result_that_changes_is_progress(tmp_path: Path) -> None:
    told = await ask(tmp_path, [*[made("clock")] * 8, DONE])
    assert (told["status"], marks(tmp_path)) == ("completed", ["clock"] * 8)
    assert outputs(told)[-1] == "it is 8"


async def test_a_tool_that_polls_may_be_called_again_and_again(tmp_path: Path) -> None:
    told = await ask(tmp_path, [*[made("wait")] * 9, DONE])
    assert (told["status"], marks(tmp_path)) == ("completed", ["wait"] * 9)


async def test_the_operator_sets_the_limit_or_none(tmp_path: Path) -> None:
    (tmp_path / "mainspring.toml").write_text('[limits]\nmax_repeats = "unlimited"\n')
    told = await ask(tmp_path, [*[made("save")] * 7, DONE])
    assert (told["status"], marks(tmp_path)) == ("completed", ["save"] * 7)


async def test_openai_reads_the_whole_of_it(tmp_path: Path) -> None:
    (tmp_path / "mytools.py").write_text(TOOLS)

    def talk() -> None:
        with serving(tmp_path, [*[LOOK] * 6, DONE], "--tool", "mytools") as served:
            client = OpenAI(base_url=served.url, api_key="unused", max_retries=0)
            with client.responses.create(model="m", input="go", stream=True) as stream:
                (*_, last) = stream
            assert last.type == "response.incomplete"
            assert (last.response.status, last.response.output_text) == ("incomplete", "All I know.")
            assert client.responses.retrieve(last.response.id) == last.response

    await anyio.to_thread.run_sync(talk)


@pytest.mark.slow
@pytest.mark.parametrize("stalls_at", [3, 4, 5, 6])
async def test_a_run_that_is_taken_up_after_a_crash_goes_on_at_its_rung(tmp_path: Path, stalls_at: int) -> None:
    (tmp_path / "mytools.py").write_text(TOOLS)
    turns: Script = [*[LOOK] * 6, DONE]
    stalled = [*turns[:stalls_at], {"say": "x", "stall": True}]
    async with aiohttp.ClientSession() as http:
        with serving(tmp_path, stalled, "--tool", "mytools") as served:
            body = {"model": "m", "input": "go", "background": True}
            async with http.post(f"{served.url}/responses", json=body) as answer:
                run_id = (await answer.json())["id"]
            with anyio.fail_after(PATIENCE):
                async with http.get(f"{served.url}/responses/{run_id}?stream=true") as stream:
                    read = b""
                    while b'"delta":"x"' not in read:
                        more = await stream.content.readany()
                        assert more, read
                        read += more
            served.kill()
        with serving(tmp_path, turns, "--tool", "mytools") as served, anyio.fail_after(PATIENCE):
            async with http.get(f"{served.url}/responses/{run_id}?stream=true") as stream:
                told = linted(events_of(await stream.read()))
    assert (told["status"], told["incomplete_details"]["reason"]) == ("incomplete", "loop_detected")
    assert told["incomplete_details"]["rungs"] == ["nudged", "reused", "withheld"]
    assert [item.get("error") is None for item in told["output"] if item["type"] == "mcp_call"] == [True] * 4 + [False] * 2
    assert marks(tmp_path) == ["look"] * 3
