"""Budgets of a real server: what was spent stays spent, whoever dies when, and no request gets more than is left."""

import json
import os
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest
from tests.kit.databases import database_in
from tests.kit.processes import run
from tests.kit.waiting import PATIENCE
from tests.server.process import Served, serving

from mainspring.core.items import Json

pytestmark = pytest.mark.usefixtures("each_database")

TOOLS = """
import asyncio, os
from mainspring import tool

@tool(effects=("read",))
async def count(n: int = 0, holds: bool = False) -> str:
    with open("tally", "a") as tally:
        tally.write(f"{n}\\n")
    while holds and not os.path.exists("go"):
        await asyncio.sleep(0.01)
    return "counted"
"""


def prepared(folder: Path, settings: str) -> None:
    (folder / "counting.py").write_text(TOOLS)
    (folder / "mainspring.toml").write_text(f'tools = ["counting"]\n{settings}')


def turn(*numbers: int, holds: bool = False) -> Json:
    return {"calls": [{"name": "count", "arguments": {"n": number, "holds": holds}} for number in numbers]}


def asked(served: Served, path: str, body: Json | None = None, key: str = "") -> tuple[int, Json]:
    headers = {"content-type": "application/json", **({"authorization": f"Bearer {key}"} if key else {})}
    request = Request(served.url + path, None if body is None else json.dumps(body).encode(), headers)
    try:
        with urlopen(request, timeout=60) as answer:
            return answer.status, json.loads(answer.read())
    except HTTPError as error:
        return error.code, json.loads(error.read())


def lines(served: Served, id: str = "default", key: str = "") -> dict[str, Json]:
    status, budget = asked(served, f"/budgets/{id}", key=key)
    assert status == 200, budget
    return {line["measure"]: line for line in budget["lines"]}


def command(folder: Path, *arguments: str) -> str:
    done = run([sys.executable, "-m", "mainspring", *arguments, "--database", database_in(folder, "served.db")], cwd=folder)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@contextmanager
def running(folder: Path, *turns: Json) -> Iterator[Served]:
    """A server whose model plays these turns in every run."""
    (folder / "turns.json").write_text(json.dumps({"turns": turns, "repeat": True}))
    with serving(folder, [], "--model", "scripted:turns.json", env={"PYTHONPATH": str(folder)}) as served:
        yield served


def tally(folder: Path) -> int:
    path = folder / "tally"
    return len(path.read_text().splitlines()) if path.exists() else 0


SHARED = '[budget]\nper = "tenant"\nshare = 1.0\nlimits = { max_tool_calls = 5 }\n'


@pytest.mark.requirement("C25")
@pytest.mark.slow
def test_what_was_spent_stays_spent_when_the_server_is_killed_and_what_was_reserved_is_settled(tmp_path: Path) -> None:
    prepared(tmp_path, SHARED)
    script: list[Json] = [turn(1, 2), turn(3, holds=True), {"say": "Done."}]
    with running(tmp_path, *script) as served:
        status, begun = asked(served, "/responses", {"input": "Count.", "background": True})
        assert status == 200, begun
        while tally(tmp_path) < 3:
            os.sched_yield()
        assert lines(served)["calls"] == {"measure": "calls", "used": 0, "held": 5, "left": 0, "limit": 5}
        served.kill()
    (tmp_path / "go").touch()
    with running(tmp_path, *script) as served:
        # A stream of it ends when it does: the call that was under way is not repeated, the model goes on.
        with urlopen(f"{served.url}/responses/{begun['id']}?stream=true", timeout=60) as stream:
            assert b"response.completed" in stream.read()
        assert asked(served, "/responses", {"input": "Go on."})[0] == 200
    assert tally(tmp_path) == 5
    assert "calls       5" in command(tmp_path, "budgets", "show", "default")


@pytest.mark.slow
def test_parallel_requests_get_no_more_than_there_is(tmp_path: Path) -> None:
    prepared(tmp_path, SHARED.replace("share = 1.0", "share = 0.4"))
    script: list[Json] = [turn(1, 2, 3), turn(4, 5), {"say": "Done."}]
    with running(tmp_path, *script) as served, ThreadPoolExecutor(12) as pool:
        answers = list(pool.map(lambda number: asked(served, "/responses", {"input": f"Go {number}."}), range(24)))
        until = time.monotonic() + PATIENCE
        while (account := lines(served)["calls"])["used"] < 5 and time.monotonic() < until:
            time.sleep(0.02)  # the share of a run is settled after its answer was sent
    assert {status for status, _ in answers} <= {200, 400}
    assert tally(tmp_path) == account["used"] == 5
    assert account["left"] == 0


@pytest.mark.slow
def test_each_key_has_an_account_that_no_other_tenant_sees(tmp_path: Path) -> None:
    prepared(tmp_path, '[budget]\nper = "key"\nlimits = { max_tool_calls = 9 }\n')
    keys = [command(tmp_path, "keys", "create", "--tenant", tenant) for tenant in ("acme", "acme", "globex")]
    with running(tmp_path, turn(1), {"say": "Done."}) as served:
        for key in keys:
            assert asked(served, "/responses", {"input": "Count."}, key)[0] == 200
        # What sums up is paid like any other run.
        order = {"model": "m", "input": "A long story."}
        assert asked(served, "/responses/compact", order, keys[0])[0] == 200
        seen = [[budget["id"] for budget in asked(served, "/budgets", key=key)[1]["data"]] for key in keys]
        mine = [f"default.key:{key.split('_')[1]}" for key in keys]
        assert seen == [mine[:2], mine[:2], mine[2:]]
        assert asked(served, f"/budgets/{mine[0]}", key=keys[2])[0] == 404
        narrow = command(tmp_path, "keys", "create", "--scope", "responses")
        status, told = asked(served, "/budgets", key=narrow)
    assert (status, told["error"]["code"]) == (403, "insufficient_scope")


@pytest.mark.slow
def test_a_budget_that_is_suspended_at_the_command_line_admits_nobody_until_it_is_active(tmp_path: Path) -> None:
    prepared(tmp_path, SHARED)
    with running(tmp_path, {"say": "Hello."}) as served:
        assert asked(served, "/responses", {"input": "Hi."})[0] == 200
        assert command(tmp_path, "budgets", "list").splitlines()[1].split() == ["default", "active", "0"]
        assert command(tmp_path, "budgets", "move", "default", "suspended") == "default is suspended"
        status, told = asked(served, "/responses", {"input": "Hi."})
        assert (status, "PF-02" in told["error"]["message"]) == (400, True)
        command(tmp_path, "budgets", "move", "default", "active")
        assert asked(served, "/responses", {"input": "Hi."})[0] == 200


def test_a_budget_is_suspended_and_activated_over_http_by_those_who_may(tmp_path: Path) -> None:
    prepared(tmp_path, SHARED)
    with running(tmp_path, {"say": "Hello."}) as served:
        assert asked(served, "/responses", {"input": "Hi."})[0] == 200
        status, told = asked(served, "/budgets/default/suspend", {})
        assert (status, told["id"], told["state"]) == (200, "default", "suspended")
        assert asked(served, "/responses", {"input": "Hi."})[0] == 400
        assert asked(served, "/budgets/none/suspend", {})[0] == 404
        status, told = asked(served, "/budgets/default/activate", {})
        assert (status, told["state"]) == (200, "active")
        assert asked(served, "/responses", {"input": "Hi."})[0] == 200
        assert asked(served, "/budgets/default/activate", {})[0] == 400, "it is active"


@pytest.mark.slow
def test_a_tenant_does_not_activate_the_budget_that_an_operator_has_suspended(tmp_path: Path) -> None:
    prepared(tmp_path, '[budget]\nper = "tenant"\nlimits = { max_tool_calls = 9 }\n')
    operator, tenant = command(tmp_path, "keys", "create"), command(tmp_path, "keys", "create", "--tenant", "acme")
    with running(tmp_path, {"say": "Hello."}) as served:
        assert asked(served, "/responses", {"input": "Hi."}, tenant)[0] == 200
        [budget] = asked(served, "/budgets", key=tenant)[1]["data"]
        path = f"/budgets/{budget['id']}"
        assert asked(served, f"{path}/suspend?tenant=acme", {}, operator)[1]["state"] == "suspended"
        status, told = asked(served, f"{path}/activate", {}, tenant)
        assert (status, told["error"]["code"]) == (403, "insufficient_scope")
        assert asked(served, "/responses", {"input": "Hi."}, tenant)[0] == 400
        assert asked(served, f"{path}/activate?tenant=acme", {}, operator)[1]["state"] == "active"
        assert asked(served, "/responses", {"input": "Hi."}, tenant)[0] == 200


@pytest.mark.slow
def test_a_request_may_narrow_the_budget_of_the_server_and_a_prompt_beyond_it_is_refused(tmp_path: Path) -> None:
    prepared(tmp_path, "[budget]\nlimits = { max_tokens = 500 }\n")
    with running(tmp_path, turn(1, 2, 3), {"say": "Done."}) as served:
        order = {"input": "Count.", "metadata": {"mainspring_autonomy_level": "0"}}
        status, response = asked(served, "/responses", order)
        assert (status, response["status"], tally(tmp_path)) == (200, "completed", 3)
        status, told = asked(served, "/responses", {"input": "word " * 900})
    assert (status, told["error"]["code"]) == (400, "budget_exceeded")
    assert "which is more than the budget of this run leaves" in told["error"]["message"]
