"""The limits of runs, as operators, definitions and requests set them: real servers with settings files, asked over HTTP."""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.agents.world import written
from tests.cli.command import Shell
from tests.kit.waiting import PATIENCE
from tests.server.process import serving

import mainspring

Json = dict[str, Any]

SOURCE = Path(mainspring.__file__).parents[1]
ZOO = Path(__file__).parents[1] / "mcp" / "zoo.py"
TOOLS = '''
from mainspring import tool

BOX = []

@tool(effects=("read",))
async def look(at: int) -> str:
    """Looks at something."""
    return f"nothing at {at}"

@tool(effects=("read",))
def fail(at: int) -> str:
    """Never works."""
    raise RuntimeError("broken")

@tool(effects=("read",))
async def read_page(number: int) -> str:
    """Reads a page."""
    return f"page {number} " + "words and words " * 150

@tool(effects=("read",))
async def dawdle() -> str:
    """Never comes back."""
    import asyncio
    await asyncio.Event().wait()

MET = []

@tool(effects=("read",))
async def meet(first: bool) -> str:
    """Waits for the other one."""
    import asyncio
    while first and not MET:
        await asyncio.sleep(0.01)
    MET.append(first)
    return "met"

@tool(effects=("write",))
async def put(what: str) -> str:
    """Puts something into the box, in its own time."""
    import asyncio
    await asyncio.sleep(0.2)
    BOX.append(what)
    return "ok"

@tool(effects=("read",))
async def get() -> str:
    """What is in the box."""
    return BOX[-1] if BOX else "EMPTY"
'''


class Door:
    """A client of one server."""

    def __init__(self, http: httpx.Client) -> None:
        self._http = http

    def post(self, path: str, **body: object) -> Json:
        answer = self._http.post(path, json=body)
        told: Json = answer.json()
        return {"status_code": answer.status_code, **told}

    def respond(self, what: str, **body: object) -> Json:
        return self.post("/responses", input=what, **body)

    def invoke(self, agent: str, what: str, **body: object) -> Json:
        return self.post(f"/agents/{agent}/invoke-iterative", inputs={"what": what}, enable_double_confirmation=False, **body)

    def outputs(self, run_id: str) -> list[str]:
        """What the calls of a run came to."""
        return [item["output"] or json.dumps(item["error"]) for item in self.items(run_id) if "output" in item]

    def items(self, run_id: str) -> list[Json]:
        found: list[Json] = self._http.get(f"/responses/{run_id}").json()["output"]
        return found

    def stream(self, agent: str, what: str) -> list[Json]:
        body = {"inputs": {"what": what}}
        lines = self._http.post(f"/agents/{agent}/invoke-iterative/stream", json=body).text.splitlines()
        return [json.loads(line.removeprefix("data: ")) for line in lines if line]


@contextmanager
def door(folder: Path, settings: str, *turns: Json) -> Iterator[Door]:
    (folder / "boxes.py").write_text(TOOLS)
    head = 'tools = ["boxes"]\nagents = ["agents"]\n'
    (folder / "mainspring.toml").write_text(head + settings)
    (folder / "agents").mkdir(exist_ok=True)
    with (
        serving(folder, list(turns), env={"PYTHONPATH": str(folder)}) as served,
        httpx.Client(base_url=served.url, timeout=PATIENCE) as http,
    ):
        yield Door(http)


def asks(*names: str, **arguments: object) -> Json:
    return {"calls": [{"name": name, "arguments": arguments} for name in names]}


def script(when: str, *turns: Json) -> list[Json]:
    """Turns for every run that is told `when`."""
    return [{**turn, "when": when} for turn in turns]


WORLD = (
    *script("Look", *[asks("look", at=number) for number in range(14)], {"say": "Seen."}),
    *script("Fail", *[asks("fail", at=number) for number in range(5)], {"say": "It is broken."}),
    *script("Wait", asks("dawdle"), {"say": "Waited."}),
    *script("Crowd", asks("look", "look", "look", at=1), {"say": "Crowded."}),
)


def refusal(told: Json) -> tuple[object, ...]:
    return told["status_code"], told["error"]["code"], told["error"]["param"]


@pytest.mark.requirement("A10", "A30")
def test_without_settings_a_response_has_ten_turns_and_any_number_of_failed_ones(tmp_path: Path) -> None:
    written(tmp_path / "agents", "bee")
    with door(tmp_path, "", *WORLD) as it:
        cut, more, failing = it.respond("Look."), it.respond("Look.", max_turns=15), it.respond("Fail.")
        strict, agent = it.respond("Fail.", max_errors_in_row=2), it.invoke("bee", "Fail.")
    assert (cut["status"], cut["incomplete_details"]) == ("incomplete", {"reason": "max_turns"})
    assert len([item for item in cut["output"] if item["type"] == "mcp_call"]) == 10
    assert (more["status"], failing["status"]) == ("completed", "completed")
    assert (strict["status"], "2 turns in a row" in strict["error"]["message"]) == ("failed", True)
    assert (agent["termination_reason"], agent["iterations"]) == ("error", 3)


@pytest.mark.requirement("C44", "C-T3", "C57", "C64", "C73", "S18")
def test_an_agent_that_is_told_nothing_has_the_limits_of_the_iterative_runtime(tmp_path: Path) -> None:
    written(tmp_path / "agents", "bee")
    turns = (
        *script("Look", *[asks("look", at=number) for number in range(21)]),
        *script("Crowd", asks(*["look"] * 6, at=1), {"say": "Crowded."}),
        *script("is every part", {"say": "Yes, crowded."}),
    )
    with door(tmp_path, "", *turns) as it:
        long = it.post("/agents/bee/invoke-iterative", inputs={"what": "Look"})
        crowd = it.post("/agents/bee/invoke-iterative", inputs={"what": "Crowd"})
        outputs = it.outputs(crowd["run_id"])
    assert (long["termination_reason"], long["iterations"], long["tool_calls_made"]) == ("max_iterations", 20, 20)
    assert (crowd["termination_reason"], crowd["iterations"], crowd["raw_response"]) == ("completed", 3, "Yes, crowded.")
    assert [("at most 5" in text) for text in outputs] == [False] * 5 + [True]
    command = ("agents", "run", "bee", "--input", "what=Crowd", "--model", "scripted:script.json", "--json")
    first = Shell(tmp_path).run(*command, env={"PYTHONPATH": f"{SOURCE}:{tmp_path}"}).out.splitlines()[0]
    limits = json.loads(first)["event"]["spec"]["limits"]
    assert (limits["tool_seconds"], limits["max_errors_in_row"], limits["concurrency"]) == (60, 3, 1)


def test_the_settings_hold_for_commands_too(tmp_path: Path) -> None:
    shell = Shell(tmp_path)
    written(shell.folder / "agents", "bee")
    (shell.folder / "boxes.py").write_text(TOOLS)
    (shell.folder / "mainspring.toml").write_text('agents = ["agents"]\n[limits]\nmax_turns = 2\n[limits.most]\nmax_turns = 3\n')
    (shell.folder / "script.json").write_text(json.dumps({"turns": WORLD}))
    given = ("--model", "scripted:script.json", "--tool", "boxes:look")
    for command in (("run", "Look."), ("agents", "run", "bee", "--input", "what=Look.")):
        done = shell.run(*command, *given, "--json")
        assert done.out.count('"tool_ended"') == 2, done
        assert done.out.splitlines()[-1].count('"max_turns"') == 1
    assert "allows at most 3" in shell.run("run", "Look.", *given, "--max-turns", "4").err


@pytest.mark.requirement("A10")
def test_settings_definitions_and_requests_set_limits_the_later_ones_first(tmp_path: Path) -> None:
    written(tmp_path / "agents", "bee")
    written(tmp_path / "agents", "ant", constraints={"max_turns": 4, "max_tool_calls_per_turn": 1, "max_errors_in_row": 1})
    settings = """
[limits]
max_turns = 12
max_errors_in_row = 2
tool_seconds = 0.5
max_tool_calls_per_turn = 2
"""
    with door(tmp_path, settings, *WORLD) as it:
        assert len(it.outputs(it.respond("Look.")["id"])) == 12
        assert it.respond("Look.", max_turns=15)["status"] == "completed"
        assert it.invoke("bee", "Look.", loop_detection_threshold=0)["iterations"] == 12
        assert it.invoke("ant", "Look.")["iterations"] == 4
        assert it.invoke("ant", "Look.", max_iterations=15)["iterations"] == 15
        assert it.post("/responses", input="Look.", model="agent:ant")["incomplete_details"] == {"reason": "max_turns"}
        assert it.post("/responses", input="Look.", model="agent:ant", max_turns=15)["status"] == "completed"
        assert "2 turns in a row" in it.respond("Fail.")["error"]["message"]
        assert it.respond("Fail.", max_errors_in_row=9)["status"] == "completed"
        assert it.invoke("ant", "Fail.")["iterations"] == 1
        waited = it.outputs(it.respond("Wait.")["id"]), it.outputs(it.respond("Wait.", tool_seconds=0.25)["id"])
        assert ["longer than 0.5 s" in waited[0][0], "longer than 0.25 s" in waited[1][0]] == [True, True]
        crowds = [it.respond("Crowd."), it.respond("Crowd.", max_tool_calls_per_turn=3), it.invoke("ant", "Crowd.")]
        outputs = [it.outputs(told.get("run_id") or told["id"]) for told in crowds]
        assert [len([text for text in each if "at most" in text]) for each in outputs] == [1, 0, 2]
        assert it.respond("Wait.", max_seconds=1, tool_seconds=30)["incomplete_details"] == {"reason": "deadline"}


def test_what_goes_beyond_the_operators_bounds_is_refused_and_the_bound_named(tmp_path: Path) -> None:
    written(tmp_path / "agents", "bee")
    written(tmp_path / "agents", "ox", constraints={"max_turns": 900})
    settings = "[limits.most]\nmax_turns = 3\ntool_seconds = 5\nmax_errors_in_row = 2\nmax_seconds = 60\n"
    with door(tmp_path, settings, *WORLD) as it:
        beyond = it.respond("Look.", max_turns=4)
        assert refusal(beyond) == (400, "limit_exceeded", "max_turns")
        assert "at most 3" in beyond["error"]["message"]
        assert refusal(it.respond("Look.", tool_seconds=6)) == (400, "limit_exceeded", "tool_seconds")
        assert refusal(it.respond("Look.", model="agent:bee", max_seconds=61)) == (400, "limit_exceeded", "max_seconds")
        assert refusal(it.invoke("bee", "Look.", max_iterations=4)) == (400, "limit_exceeded", "max_iterations")
        assert refusal(it.invoke("ox", "Look.")) == (400, "limit_exceeded", "constraints.max_turns")
        assert len(it.outputs(it.respond("Look.", max_turns=3)["id"])) == 3
        # What nobody has asked for is lowered.
        assert len(it.outputs(it.respond("Look.")["id"])) == 3
        assert it.invoke("bee", "Look.")["iterations"] == 3
        assert "2 turns in a row" in it.respond("Fail.")["error"]["message"]


def test_an_agent_that_asks_for_more_than_its_server_allows_is_told_of_at_the_start(tmp_path: Path) -> None:
    written(tmp_path / "agents", "ox", constraints={"tool_seconds": 90})
    (tmp_path / "mainspring.toml").write_text('agents = ["agents"]\n[limits.most]\ntool_seconds = 30\n')
    script = Shell(tmp_path).script({"say": "Hi."})
    with Shell(tmp_path).started("serve", "--port", "0", "--model", script) as live:
        live.wait_for("constraints.tool_seconds of agent `ox` is 90, and this server allows at most 30", live.err)


def test_settings_may_be_larger_than_what_a_pipe_holds(tmp_path: Path) -> None:
    many = [f'[providers.p{each}]\nkind = "chat"\nbase_url = "http://127.0.0.1:9/{"x" * 500}"\n' for each in range(300)]
    (tmp_path / "mainspring.toml").write_text("".join(many))
    script = Shell(tmp_path).script({"say": "Hi."})
    with Shell(tmp_path).started("serve", "--port", "0", "--model", script) as live:
        live.wait_for("listens at")


def test_a_request_cannot_have_more_time_than_the_agents_definition_or_calls_at_once_that_it_forbids(tmp_path: Path) -> None:
    written(tmp_path / "agents", "bee", constraints={"timeout_seconds": 10, "parallel_allowed": False})
    with door(tmp_path, "", *WORLD) as it:
        assert refusal(it.invoke("bee", "Look.", max_seconds=11)) == (400, "limit_exceeded", "max_seconds")
        assert refusal(it.invoke("bee", "Look.", concurrency=2)) == (400, "limit_exceeded", "concurrency")
        assert it.invoke("bee", "Wait.", max_seconds=1)["termination_reason"] == "duration_exceeded"


def test_a_budgets_iterations_raise_no_other_limit_and_cut_nothing_to_ten(tmp_path: Path) -> None:
    settings = "[budget.limits]\nmax_iterations = 12\n"
    with door(tmp_path, settings, *WORLD) as it:
        told = [it.respond("Look."), it.respond("Look.", max_turns=11), it.respond("Look.", max_turns=15)]
        calls = [len(it.outputs(each["id"])) for each in told]
    assert [each["incomplete_details"]["reason"] for each in told] == ["max_turns", "max_turns", "budget"]
    assert calls == [10, 11, 12]


def test_settings_that_contradict_themselves_are_told_by_their_line(tmp_path: Path) -> None:
    settings = '[limits]\nmax_turns = "unlimited"\n[limits.most]\nmax_turns = 3\n'
    with pytest.raises(AssertionError, match=r"mainspring.toml:3: .*max_turns is unlimited"), door(tmp_path, settings):
        pass


BULKY = [asks("read_page", number=number) for number in range(8)]
SUMMARY = script("Write a summary of the conversation", {"say": "Pages were read."})


def test_an_agent_that_works_until_it_is_done_sums_up_before_its_window_is_full(tmp_path: Path) -> None:
    written(tmp_path / "agents", "bee")
    written(tmp_path / "agents", "boss", dependencies=[{"agent": "bee"}])
    asked = {"calls": [{"name": "agent_bee", "arguments": {"task": "Read"}}]}
    found = {"say": "Found.", "expect": "Summary of the earlier conversation"}
    turns = (*SUMMARY, *script("Read", *BULKY, found), *script("Manage", asked, {"say": "Managed.", "expect": "Found."}))
    sure = script("is every part", {"say": "Found."})
    with door(tmp_path, "context_tokens = 4000\n", *sure, *turns) as it:
        told = it.invoke("bee", "Read")
        items = it.items(told["run_id"])
        assert (told["termination_reason"], told["iterations"], told["error"]) == ("completed", 9, None), told
        assert [item["type"] for item in items].count("compaction") >= 1
        assert it.invoke("boss", "Manage")["raw_response"] == "Managed."
        off = it.invoke("bee", "Read", truncation="disabled")
    assert (off["termination_reason"], off["iterations"] < 9) == ("error", True)
    assert "the model takes 4000" in off["error"]


def test_what_is_old_is_left_out_if_the_model_calls_a_tool_where_it_should_sum_up(tmp_path: Path) -> None:
    written(tmp_path / "agents", "bee")
    without = {"say": "Found.", "expect": {"regex": r"\A(?![\s\S]*page 0 )[\s\S]*page 7 "}}
    turns = (*script("Write a summary of the conversation", BULKY[0]), *script("Read", *BULKY, without))
    with door(tmp_path, "context_tokens = 4000\n", *script("is every part", {"say": "Found."}), *turns) as it:
        told = it.invoke("bee", "Read")
        assert (told["termination_reason"], told["error"]) == ("completed", None)
        assert "compaction" not in [item["type"] for item in it.items(told["run_id"])]
        only = it.invoke("bee", "Read", truncation="disabled", compact_threshold=1500)
    assert (only["termination_reason"], "gave no summary" in only["error"]) == ("error", True)


def test_definitions_and_requests_say_what_becomes_of_a_conversation_that_is_too_long(tmp_path: Path) -> None:
    written(tmp_path / "agents", "ant", constraints={"truncation": "auto"})
    written(tmp_path / "agents", "bee", constraints={"compact_threshold": 1500})
    without = {"say": "Found.", "expect": {"regex": r"\A(?![\s\S]*page 0 )[\s\S]*page 7 "}}
    summed = {"say": "Found.", "expect": "Pages were read."}
    turns = (*script("Read", *BULKY, without), *script("Sum", *BULKY, summed), *SUMMARY)
    with door(tmp_path, "", *turns) as it:
        assert it.invoke("bee", "Sum")["termination_reason"] == "completed"
        assert it.invoke("ant", "Sum", compact_threshold=1500)["termination_reason"] == "completed"
        plain = it.invoke("ant", "Sum")
        assert (plain["termination_reason"], "Pages were read." in plain["error"]) == ("error", True)
    with door(tmp_path, "context_tokens = 4000\n", *turns) as it:
        told = it.invoke("ant", "Read")
        assert (told["termination_reason"], told["error"]) == ("completed", None)
        assert "compaction" not in [item["type"] for item in it.items(told["run_id"])]
        shown = it.post("/responses", input="Read", model="agent:ant", store=True)
        assert (shown["status"], shown["truncation"]) == ("completed", "auto")
        assert it.post("/responses", input="Read", model="agent:ant", truncation="disabled")["status"] == "failed"
        assert refusal(it.post("/agents/bee/invoke", inputs={"what": "long " * 4000}))[:2] == (400, "context_length_exceeded")


def test_a_run_of_an_agent_that_ends_in_error_says_why(tmp_path: Path) -> None:
    written(tmp_path / "agents", "bee")
    turns = (
        *script("Refuse", {"refuse": "I will not."}),
        *script("Filter", {"say": "Half an", "finish": "content_filter"}),
        *script("Fail", asks("fail", at=1)),
        *script("Hush", {"say": " "}),
    )
    with door(tmp_path, "", *turns) as it:
        told = {what: it.invoke("bee", what) for what in ("Refuse", "Filter", "Fail", "Hush")}
        streamed = it.stream("bee", "Fail")
    assert {each["termination_reason"] for each in told.values()} == {"error"}
    words = {"Refuse": "I will not.", "Filter": "content filter", "Fail": "3 turns in a row failed", "Hush": "said nothing"}
    assert [what for what, said in words.items() if said not in told[what]["error"]] == []
    assert "3 turns in a row failed" in streamed[-1]["data"]["error"]


@pytest.mark.requirement("C44", "D64")
def test_the_smaller_timeout_wins_for_a_shell_and_a_tool_of_an_mcp_server(tmp_path: Path) -> None:
    written(tmp_path / "agents", "bee")
    zoo = f'[mcp.zoo]\ncommand = {json.dumps(sys.executable)}\nargs = [{json.dumps(str(ZOO))}, "stall", "zoo.log"]\n'
    settings = f'builtins = ["shell"]\nsandbox = "unsafe"\n{zoo}sandboxed = false\n'
    body = {"inputs": {}, "tool_call_timeout_seconds": 1, "enable_double_confirmation": False}
    turns = (asks("shell", command="sleep 600"), asks("read", text="x"), {"say": "Gave up."})
    with door(tmp_path, settings, *turns) as it:
        told = it.post("/agents/bee/invoke-iterative", **body)
        outputs = it.outputs(told["run_id"])
    assert told["termination_reason"] == "completed", told
    assert [text for text in outputs if "longer than 1 s" not in text] == []
    assert len(outputs) == 2


@pytest.mark.requirement("C78")
@pytest.mark.parametrize("said", ["request", "definition"])
def test_calls_of_an_agent_run_at_once_where_a_request_or_its_definition_says_so(tmp_path: Path, said: str) -> None:
    asked = {"concurrency": 2}
    written(tmp_path / "agents", "bee", constraints=asked if said == "definition" else {})
    turn = {"calls": [{"name": "meet", "arguments": {"first": first}} for first in (True, False)]}
    with door(tmp_path, "", *script("Meet", turn, {"say": "Met."})) as it:
        told = it.invoke("bee", "Meet", **(asked if said == "request" else {}))
        assert it.outputs(told["run_id"]) == ["met", "met"]


@pytest.mark.requirement("C-T9", "C78")
def test_an_agent_with_dependencies_makes_ordinary_calls_one_by_one(tmp_path: Path) -> None:
    agents = tmp_path / "agents"
    written(agents, "boss", dependencies=[{"agent": "helper"}])
    written(agents, "helper")
    turn = {"calls": [{"name": "put", "arguments": {"what": "honey"}}, {"name": "get", "arguments": {}}]}
    with door(tmp_path, "", turn, {"say": "Done."}) as it:
        told = it.post("/agents/boss/invoke-iterative", inputs={}, enable_double_confirmation=False)
        outputs = it.outputs(told["run_id"])
    assert outputs == ["ok", "honey"]
