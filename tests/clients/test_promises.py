"""What the source systems promise, from one end to the other: a real server between a client and a Chat Completions backend.

Tests of the loop and of the adapters prove these promises in every detail. Here they are held where users are: what a client
gets over HTTP, and what the backend was asked.
"""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.agents.world import written
from tests.clients.process import Served, served
from tests.clients.upstream import Model, Reply, Upstream, calls, hangs, is_cut, says
from tests.kit.waiting import PATIENCE
from tests.server.process import Script, serving

Json = dict[str, Any]

TOOLS = '''
import asyncio
from mainspring import tool

MET = asyncio.Event()
SEEN = []

@tool(effects=("read",))
async def look(at: int) -> str:
    """Looks at something."""
    SEEN.append(at)
    return f"saw {at}"

@tool(effects=("read",))
async def seen() -> list[int]:
    """What was looked at."""
    return SEEN

@tool(effects=("read",))
async def meet(who: str, first: bool) -> str:
    """Waits for the other one."""
    if first:
        await MET.wait()
    MET.set()
    return f"{who} met"

@tool(effects=("read",))
async def dawdle() -> str:
    """Never comes back."""
    await asyncio.Event().wait()

@tool(effects=("read",))
async def fail() -> str:
    """Never works."""
    raise RuntimeError("it is broken")
'''
SETTINGS = """
tools = ["doortools"]
agents = ["agents"]
builtins = ["shell"]
sandbox = "unsafe"
requires_action = true
allow_hosts = ["127.0.0.1"]
"""
WEATHER: Json = {"type": "function", "name": "weather", "parameters": {"type": "object", "properties": {}}}
PLAIN = {"OpenResponses-Version": "1"}
"""Calls and outputs as items of their own."""


@pytest.fixture(scope="module")
def running(upstream: Upstream, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("promises")
    (folder / "doortools.py").write_text(TOOLS)
    (folder / "mainspring.toml").write_text(SETTINGS)
    written(folder / "agents", "bee", outputs={"honey": {}}, description="Busy.", capabilities=["research"])
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        with served(folder, upstream.url) as server:
            yield server
    assert "Traceback" not in server.complaints()


class Door:
    def __init__(self, http: httpx.Client, model: Model) -> None:
        self.http, self.model = http, model

    def respond(self, what: object, **body: object) -> Json:
        answer = self.http.post("/responses", json={"model": self.model.name, "input": what, **body}, headers=PLAIN)
        told: Json = answer.json()
        return told

    def get(self, id: str) -> Json:
        told: Json = self.http.get(f"/responses/{id}", headers=PLAIN).json()
        return told

    def wait(self, id: str, *statuses: str) -> Json:
        deadline = time.monotonic() + PATIENCE
        while (told := self.get(id))["status"] not in statuses:
            assert time.monotonic() < deadline, told
            time.sleep(0.02)
        return told

    def invoke(self, what: str, how: str = "invoke-iterative", **body: object) -> Json:
        body = {"inputs": {"what": what}, "model": self.model.name, **body}
        told: Json = self.http.post(f"/agents/bee/{how}", json=body).json()
        return told


@pytest.fixture
def door(running: Served, model: Model) -> Iterator[Door]:
    with httpx.Client(base_url=running.url, timeout=PATIENCE) as http:
        yield Door(http, model)


def kinds(told: Json) -> list[str]:
    return [item["type"] for item in told["output"]]


@pytest.mark.requirement(
    "A3", "A4", "A5", "A6", "A17", "A29", "A36", "C12", "C21", "C22", "C38", "C39", "C40", "C41", "C43", "C81", "C-T6", "C-T22",
    "C-T24", "C-T25", "C-T26", "C-T27", "C-T29",
)  # fmt: skip
def test_a_call_goes_from_the_model_to_a_tool_and_its_result_back(door: Door, model: Model) -> None:
    model.hears("Look", calls(("look", {"at": 7}), saying="Let me see."))
    model.hears("saw 7", says("Seven."))
    told = door.respond("Look", temperature=0.25, max_output_tokens=500)
    said, call, output, answer = told["output"]
    assert (said["content"][0]["text"], answer["content"][0]["text"]) == ("Let me see.", "Seven.")
    assert (call["type"], call["name"], json.loads(call["arguments"])) == ("function_call", "look", {"at": 7})
    assert output == {**output, "type": "function_call_output", "call_id": call["call_id"], "output": "saw 7"}
    assert (told["status"], told["usage"]["input_tokens"]) == ("completed", 22)
    first, second = model.asked
    assert (first["temperature"], first["max_tokens"], first["model"]) == (0.25, 500, model.name)
    declared = next(tool for tool in first["tools"] if tool["function"]["name"] == "look")
    assert (declared["type"], declared["function"]["description"]) == ("function", "Looks at something.")
    assert set(declared["function"]["parameters"]["properties"]) == {"at"}
    made = {"id": call["call_id"], "type": "function", "function": {"name": "look", "arguments": call["arguments"]}}
    assert second["messages"] == [
        {"role": "user", "content": "Look"},
        {"role": "assistant", "content": "Let me see.", "tool_calls": [made]},
        {"role": "tool", "tool_call_id": call["call_id"], "name": "look", "content": "saw 7"},
    ]


@pytest.mark.requirement("A5", "C11", "C14", "C-T7", "C-T10", "S4", "S12", "D65")
def test_whatever_goes_wrong_with_a_call_is_told_to_the_model_and_on_it_goes(door: Door, model: Model) -> None:
    model.hears("Go", calls(("fail", {}), ("none_such", {}), ("look", {"at": "there"}), ("look", {})))
    model.hears("at", says("All wrong."))
    told = door.respond("Go")
    outputs = [item["output"] for item in told["output"] if item["type"] == "function_call_output"]
    assert (told["status"], len(outputs)) == ("completed", 4)
    wrong_type, missing = 'at: "there" is not of type "integer"', '"at" is a required property'
    for words, output in zip(("it is broken", "There is no tool `none_such`", wrong_type, missing), outputs, strict=True):
        assert words in output
    assert [message["role"] for message in model.messages()] == ["user", "assistant", "tool", "tool", "tool", "tool"]


@pytest.mark.requirement("A2", "A15", "A16", "A25", "A35", "A37")
def test_a_clients_function_is_nobody_elses_and_waits_for_its_client(door: Door, model: Model, sums: str) -> None:
    adds = {"type": "mcp", "server_label": "sums", "server_url": sums, "require_approval": "never"}
    model.hears(
        "Oslo", calls(("look", {"at": 1}), ("weather", {}), ("add", {"a": 2, "b": 3}), ("shell", {"command": "echo inside"}))
    )
    model.hears("inside", says("Rain."))
    told = door.respond("Oslo", tools=[WEATHER, adds])
    assert told["status"] == "requires_action"
    call = next(item for item in told["output"] if item.get("name") == "weather")
    assert [item["call_id"] for item in told["output"] if item["type"] == "function_call_output"].count(call["call_id"]) == 0
    assert told["required_input"] == [{"type": "function_call_output", "call_id": call["call_id"], "name": "weather"}]
    assert (door.get(told["id"])["output"], len(model.asked)) == (told["output"], 1)
    given = {"type": "function_call_output", "call_id": call["call_id"], "output": "rain"}
    after = door.respond([given], tools=[WEATHER, adds], previous_response_id=told["id"])
    assert (after["status"], after["previous_response_id"]) == ("completed", told["id"])
    assert door.get(told["id"])["status"] == "requires_action"
    outputs = [message["content"] for message in model.messages() if message["role"] == "tool"]
    assert (outputs[:3], "inside" in outputs[3]) == (["saw 1", "rain", "5"], True)


@pytest.mark.requirement("A12", "A38")
def test_the_calls_of_a_turn_run_at_once_and_are_answered_in_their_order(door: Door, model: Model) -> None:
    model.hears("Meet", calls(("meet", {"who": "Ann", "first": True}), ("meet", {"who": "Bob", "first": False})))
    model.hears("Bob met", says("Met."))
    told = door.respond("Meet")
    assert [item["output"] for item in told["output"] if item["type"] == "function_call_output"] == ["Ann met", "Bob met"]
    model.hears("Wait", calls(("dawdle", {})))
    model.hears("longer than 0.2 s", says("Gave up."))
    assert door.respond("Wait", tool_seconds=0.2)["status"] == "completed"


@pytest.mark.requirement("A18", "A19", "A26")
def test_tool_choice_means_what_it_says(door: Door, model: Model) -> None:
    model.hears("Off", calls(("look", {"at": 404})))
    off = door.respond("Off", tool_choice="none")
    assert (off["status"], kinds(off)[:1]) == ("completed", ["function_call"])
    assert model.asked[0]["tool_choice"] == "none"
    assert "look" in [tool["function"]["name"] for tool in model.asked[0]["tools"]]
    model.hears("Must", says("I would rather not."))
    must = door.respond("Must", tool_choice="required")
    assert (must["status"], model.asked[1]["tool_choice"]) == ("completed", "required")
    model.hears("Seen", calls(("seen", {})))
    model.hears("[", says("Not that one."))
    forced = door.respond("Seen", tool_choice={"type": "function", "name": "seen"})
    assert model.asked[2]["tool_choice"] == {"type": "function", "function": {"name": "seen"}}
    assert "404" not in next(item["output"] for item in forced["output"] if item["type"] == "function_call_output")
    refused = door.respond("Seen", tool_choice={"type": "function", "name": "none_such"})
    assert refused["error"]["param"] == "tool_choice"


@pytest.mark.requirement("A28")
def test_what_is_not_allowed_is_seen_by_the_model_and_refused_by_us(door: Door, model: Model) -> None:
    model.hears("Look", calls(("look", {"at": 405}), ("seen", {})))
    model.hears("[", says("Only one of them."))
    allowed = {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "seen"}]}
    told = door.respond("Look", tool_choice=allowed)
    refused, seen = [item["output"] for item in told["output"] if item["type"] == "function_call_output"]
    assert ("not allowed" in refused, "405" in seen) == (True, False)
    assert {"look", "seen"} <= {tool["function"]["name"] for tool in model.asked[0]["tools"]}


@pytest.mark.requirement("A7", "A8", "A9", "S1", "S8")
def test_a_response_ends_once_and_stays_as_it_ended(door: Door, model: Model) -> None:
    model.hears("Hang", hangs("Well,", " that was it."))
    begun = door.respond("Hang", background=True)
    assert begun["status"] in ("queued", "in_progress")
    assert door.wait(begun["id"], "in_progress")["status"] == "in_progress"
    cancelled = door.http.post(f"/responses/{begun['id']}/cancel").json()
    assert cancelled["status"] == "cancelled"
    model.release()
    assert door.http.post(f"/responses/{begun['id']}/cancel").json()["status"] == "cancelled"
    model.hears("Cut", is_cut(calls(("look", {"at": 406}), saying="Half")))
    cut = door.respond("Cut")
    assert (cut["status"], cut["incomplete_details"]["reason"]) == ("incomplete", "max_output_tokens")
    model.hears("Broken", Reply((), status=400))
    assert "error" in door.respond("Broken")
    model.hears("Fine", says("Fine."))
    fine = door.respond("Fine")
    assert door.http.post(f"/responses/{fine['id']}/cancel").status_code == 400
    assert (door.get(fine["id"])["status"], door.get(cut["id"])["status"]) == ("completed", "incomplete")
    model.hears("Seen", calls(("seen", {})))
    model.hears("[", says("Never looked."))
    assert "406" not in str(door.respond("Seen")["output"][1])


@pytest.mark.requirement("C55", "C-T11", "C-T12", "C-T13", "C-T14", "C64", "S15", "D61")
def test_an_agent_is_asked_whether_it_is_done_and_again_after_more_work_only_if_wanted(tmp_path: Path) -> None:
    written(tmp_path / "agents", "bee")
    (tmp_path / "doortools.py").write_text(TOOLS)
    (tmp_path / "mainspring.toml").write_text('tools = ["doortools"]\nagents = ["agents"]\n')
    question, look = "is every part of the task done", {"name": "look", "arguments": {"at": 1}}
    script: Script = [
        {"when": "Work", "say": "Done, I think."},
        {"when": question, "calls": [look]},
        {"when": question, "say": "Now it is.", "expect": "saw 1"},
        {"when": question, "say": "Yes, it is."},
    ]
    with (
        serving(tmp_path, script, env={"PYTHONPATH": str(tmp_path)}) as it,
        httpx.Client(base_url=it.url, timeout=PATIENCE) as http,
    ):
        path = "/agents/bee/invoke-iterative"
        told = http.post(path, json={"inputs": {"what": "Work"}}).json()
        again = http.post(path, json={"inputs": {"what": "Work"}, "confirm_after_work": True}).json()
        short = http.post(path, json={"inputs": {"what": "Work"}, "enable_double_confirmation": False}).json()
    assert (told["termination_reason"], told["iterations"], told["raw_response"]) == ("completed", 3, "Now it is.")
    assert (again["iterations"], again["raw_response"]) == (4, "Yes, it is.")
    assert told["tools_used"] == ["look"]
    assert (short["iterations"], short["raw_response"]) == (1, "Done, I think.")


@pytest.mark.requirement("C-T20", "C65", "C79")
def test_an_empty_list_of_calls_and_words_about_a_call_are_text_and_a_call_left_in_text_is_one(door: Door, model: Model) -> None:
    put = '<tool_call>{"name": "look", "arguments": {"at": 1}}</tool_call>'
    speaks = f"To look, a model writes `{put}`, and waits."
    model.hears("Explain", Reply(({"content": speaks, "tool_calls": []},)))
    told = door.respond("Explain")
    assert (told["status"], kinds(told), told["output"][0]["content"][0]["text"]) == ("completed", ["message"], speaks)
    model.hears("Pretend", Reply(({"content": put, "tool_calls": []},)))
    model.hears("saw 1", says("Seen."))
    told = door.respond("Pretend")
    assert (told["status"], kinds(told)) == ("completed", ["function_call", "function_call_output", "message"])


@pytest.mark.requirement("C2", "C5", "C6", "C7", "C62")
def test_an_agent_is_told_its_definition_and_its_answer_is_parsed(door: Door, model: Model) -> None:
    for said, output in (
        ('```json\n{"honey": 3}\n```', {"honey": 3}),
        ('{"wax": 1}', {"wax": 1}),
        ("Sweet.", {"honey": "Sweet."}),
    ):
        model.hears("Fly", says(said))
        assert door.invoke("Fly", "invoke")["output"] == output
    system, user = model.messages()
    assert (system["role"], json.loads(user["content"])) == ("system", {"what": "Fly"})
    for part in ("`bee`", "Busy.", "research", "honey"):
        assert part in system["content"]


@pytest.mark.requirement("C-T30", "D72")
def test_an_agent_does_a_task_of_several_steps_in_a_shell(door: Door, model: Model) -> None:
    model.hears("Count", calls(("shell", {"command": "printf 'b\\na\\nb\\n' | sort -u > letters"})))
    model.hears("[exit code 0]", calls(("shell", {"command": "wc -l < letters; cat letters"})))
    model.hears("2\na\nb\n[exit code 0]", says("Two letters."))
    told = door.invoke("Count", enable_double_confirmation=False)
    assert (told["termination_reason"], told["iterations"], told["raw_response"]) == ("completed", 3, "Two letters."), told


@pytest.mark.requirement("B7", "B15", "B16", "B17")
def test_a_decision_is_asked_for_cold_and_short_and_given_up_after_five_turns(
    upstream: Upstream, model: Model, tmp_path: Path
) -> None:
    for heard, added in (("Add Tea, Jam", "Tea"), ("Tea", "Jam"), ("Jam", "Rye"), ("Rye", "Oil"), ("Oil", "Ham")):
        model.hears(heard, calls(("add_task", {"description": added})))
    with served(tmp_path, upstream.url, ["--model", model.name]) as it, httpx.Client(base_url=it.url, timeout=PATIENCE) as http:
        answer = http.post("/decisions", json={"message": "Add Tea, Jam, Rye, Oil and Ham", "conversation_id": "c"})
    assert (answer.status_code, answer.json()["decision_type"]) == (200, "INVOKE_TOOL"), answer.text
    assert len(model.asked) == 5
    assert {(body["temperature"], body["max_tokens"]) for body in model.asked} == {(0, 1024)}


@pytest.mark.requirement("C51", "C-T8")
def test_a_server_has_the_tools_and_the_rules_that_its_settings_name(upstream: Upstream, model: Model, tmp_path: Path) -> None:
    settings = 'builtins = ["shell", "file_ops", "web_fetch"]\nsandbox = "unsafe"\nworking_dir = "."\n'
    (tmp_path / "mainspring.toml").write_text(f'{settings}[governance]\nrules = {{ "file_ops:write" = "deny" }}\n')
    model.hears("Write", calls(("file_ops", {"operation": "write", "path": "a", "content": "x"})))
    model.hears("rule", says("I may not."))
    with served(tmp_path, upstream.url) as it, httpx.Client(base_url=it.url, timeout=PATIENCE) as http:
        told = http.post("/responses", json={"model": model.name, "input": "Write"}).json()
    assert [tool["function"]["name"] for tool in model.asked[0]["tools"]] == ["shell", "file_ops", "web_fetch"]
    assert (told["status"], told["output"][-1]["content"][0]["text"]) == ("completed", "I may not.")
    assert not (tmp_path / "a").exists()
