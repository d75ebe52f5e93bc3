"""`mainspring approvals`, `audit` and `explain`: a person at the command line, on the database of a server or a run."""

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from tests.cli.command import Result, Shell

from mainspring.app.engine import Engine
from mainspring.core.items import ApprovalRequest, Json
from mainspring.core.run import Call, Run
from mainspring.features.governance.governance_settings import build_policies
from mainspring.features.governance.settings import GovernanceSettings
from mainspring.ports import Ask, Verdict
from mainspring.providers.scripted import Scripted, call, calls
from mainspring.tools.addresses import AddressGuard
from mainspring.tools.functions import tool

THERE = ("--database", "runs.db")


class AsksFirst:
    name = "asks_first"

    async def judge(self, call: Call, run: Run) -> Verdict:
        return Ask("May I add?")


@tool
def add(a: int, b: int) -> int:
    """Adds two numbers. Only its definition is wanted here: `mytools` performs it."""
    raise AssertionError


async def paused(shell: Shell, *sums: tuple[int, int], seconds: float = 3600.0, audit: bool = True) -> list[str]:
    """A run that a server left waiting for a person; the ids of what it asks."""
    script = Scripted(calls(*[call("add", a=a, b=b) for a, b in sums]))
    options = {"policies": [AsksFirst()], "database": shell.folder / "runs.db"}
    async with Engine(script, tools=[add], audit=audit, approval_seconds=seconds, **options) as engine:  # type: ignore[arg-type]
        run = await engine.run("Add.")
    return [item.id for item in run.output if isinstance(item, ApprovalRequest)]


def answered(shell: Shell, what: str, id: str, *options: str, says: str = "Three.") -> Result:
    model = shell.script({"say": says})
    return shell.run("approvals", what, id, *THERE, "--model", model, "--tool", "mytools", *options)


def shown(shell: Shell, id: str) -> Json:
    found: Json = json.loads(shell.run("approvals", "show", id, *THERE, "--json").out)
    return found


def tally(shell: Shell) -> list[str]:
    path = shell.folder / "tally"
    return path.read_text().splitlines() if path.exists() else []


async def test_what_waits_is_listed_shown_approved_and_runs_once(shell: Shell) -> None:
    [id] = await paused(shell, (1, 2))
    listed = shell.run("approvals", "list", *THERE)
    assert listed.code == 0
    assert f"{id}  pending" in listed.out
    assert "add(a=1, b=2)" in listed.out
    look = shell.run("approvals", "show", id, *THERE)
    assert "May I add? (policy `asks_first`)" in look.out
    done = answered(shell, "approve", id, "--digest", shown(shell, id)["digest"])
    assert (done.code, tally(shell)) == (0, ["1 + 2"])
    assert "Three." in done.out
    assert shown(shell, id)["state"] == "approved"
    nothing = shell.run("approvals", "list", *THERE)
    assert (nothing.out, "no call waits" in nothing.err) == ("", True)
    again = answered(shell, "approve", id)
    assert (again.code, tally(shell)) == (2, ["1 + 2"])
    assert "has been given already" in again.err


async def test_an_approval_is_named_by_the_beginning_of_its_id_or_as_last(shell: Shell) -> None:
    first, second = await paused(shell, (1, 2), (3, 4))
    for given in (second[:-1], "last"):
        assert shown(shell, given)["id"] == second
    assert f"`{first[:5]}` is the beginning of 2 approvals" in shell.run("approvals", "show", first[:5], *THERE).err
    waits = answered(shell, "deny", first[:-1])
    assert (waits.code, f"`{first}` is refused" in waits.err) == (0, True)
    done = answered(shell, "approve", "last")
    assert (done.code, tally(shell)) == (0, ["3 + 4"])
    unknown = shell.run("approvals", "show", "nope", *THERE, "--tenant", "acme")
    assert unknown.err.endswith("list them with: mainspring approvals list --state all --tenant acme\n")


async def test_what_is_denied_does_not_run_and_the_model_is_told_why(shell: Shell) -> None:
    [id] = await paused(shell, (1, 2))
    model = shell.script({"say": "A pity.", "expect": "A person refused this call: too early."})
    done = shell.run("approvals", "deny", id, *THERE, "--reason", "too early", "--model", model, "--tool", "mytools")
    assert (done.code, tally(shell)) == (0, [])
    assert "A pity." in done.out
    assert shown(shell, id)["state"] == "refused"


async def test_what_has_expired_by_the_asking_servers_settings_cannot_be_approved_here(shell: Shell) -> None:
    [id] = await paused(shell, (1, 2), seconds=1e-6)
    assert id not in shell.run("approvals", "list", *THERE).out
    assert id in shell.run("approvals", "list", *THERE, "--state", "expired").out
    late = answered(shell, "approve", id)
    assert (late.code, tally(shell)) == (2, [])
    assert "has expired" in late.err


async def test_another_digest_another_tenant_and_missing_tools_are_refused_and_nothing_is_lost(shell: Shell) -> None:
    [id] = await paused(shell, (1, 2))
    assert "look at the call again" in answered(shell, "approve", id, "--digest", "0" * 64).err
    assert "not found" in answered(shell, "approve", id, "--tenant", "acme").err
    without = shell.run("approvals", "approve", id, *THERE, "--model", shell.script({"say": "Three."}))
    assert (without.code, tally(shell)) == (2, [])
    assert "uses the tools `add`; pass them with --tool" in without.err
    assert answered(shell, "approve", id).code == 0
    assert tally(shell) == ["1 + 2"]


async def test_a_run_that_asks_twice_goes_on_with_the_second_answer(shell: Shell) -> None:
    first, second = await paused(shell, (1, 2), (3, 4))
    waits = answered(shell, "deny", first)
    assert (waits.code, tally(shell)) == (0, [])
    assert "when its other calls are answered" in waits.err
    assert answered(shell, "approve", second).code == 0
    assert tally(shell) == ["3 + 4"]


async def test_an_approved_run_that_is_killed_in_its_tool_is_resumed_and_the_outcome_reported_unknown(shell: Shell) -> None:
    script = Scripted(call("hang"))

    @tool
    async def hang() -> str:
        """Never ends."""
        raise AssertionError

    async with Engine(script, tools=[hang], policies=[AsksFirst()], database=shell.folder / "runs.db") as engine:
        run = await engine.run("Hang.")
    [id] = [item.id for item in run.output if isinstance(item, ApprovalRequest)]
    model = shell.script({"say": "Who knows.", "expect": "outcome is unknown"})
    options = ("--model", model, "--tool", "mytools")
    with shell.started("approvals", "approve", id, *THERE, *options) as live:
        live.wait_for("hanging")
        live.process.kill()
    resumed = shell.run("resume", "--all", *THERE, *options)
    assert resumed.code == 0
    assert "Who knows." in resumed.out
    assert shell.run("approvals", "approve", id, *THERE, *options).code == 2


async def test_the_audit_is_verified_listed_and_found_broken_at_the_record_that_was_changed(shell: Shell) -> None:
    [id] = await paused(shell, (1, 2))
    before = shell.run("audit", "verify", *THERE)
    assert before.code == 0
    first = before.out.split()[-1]
    answered(shell, "approve", id, "--reason", "go ahead")
    after = shell.run("audit", "verify", *THERE, "--head", first)
    assert (after.code, after.out.splitlines()[0]) == (0, "7 records, all whole; the head that was given is record 2")
    listed = shell.run("audit", "list", *THERE)
    assert "`add` a person is to be asked, the rule `asks_first` decided: May I add?" in listed.out
    assert "approved by user:" in listed.out
    lines = [json.loads(line) for line in shell.run("audit", "list", *THERE, "--json").out.splitlines()]
    assert [line["number"] for line in lines] == list(range(1, 8))
    assert lines[-1]["hash"] == after.out.split()[-1]
    tamper(shell.folder / "runs.db", "UPDATE audit SET body = replace(body, 'asks_first', 'nobody') WHERE number = 1")
    broken = shell.run("audit", "verify", *THERE)
    assert (broken.code, broken.out) == (1, "")
    assert "is broken: record 1 was changed" in broken.err
    tamper(shell.folder / "runs.db", "UPDATE audit SET body = 'nonsense' WHERE number = 1")
    assert "see `mainspring audit verify`" in shell.run("audit", "list", *THERE).err


async def test_a_head_that_is_gone_or_none_is_told(shell: Shell) -> None:
    await paused(shell, (1, 2))
    gone = shell.run("audit", "verify", *THERE, "--head", "ab" * 32)
    assert (gone.code, gone.out) == (1, "")
    assert "cut off" in gone.err
    assert shell.run("audit", "verify", *THERE, "--head", "ab").code == 2
    assert shell.run("audit", "verify", "--database", "none.db").code == 2


def tamper(path: Path, statement: str) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(f"DROP TRIGGER IF EXISTS audit_stays; {statement};")


@pytest.mark.parametrize("audit", [True, False])
async def test_a_call_is_explained_in_words_from_the_audit_or_else_from_the_log(shell: Shell, audit: bool) -> None:
    [id] = await paused(shell, (1, 2), audit=audit)
    [run] = await shell.stored()
    call_id = next(
        str(item.call_id) for item in (run.response.output if run.response else ()) if isinstance(item, ApprovalRequest)
    )
    told = shell.run("explain", call_id, *THERE)
    assert told.code == 0
    head, asked = told.out.splitlines()
    assert head.startswith(f"{call_id}: add(a=1, b=2), arguments sha256 ")
    assert "a person is to be asked, the rule `asks_first` decided: May I add?" in asked
    assert f"[{run.id}, event " in asked
    if audit:
        answered(shell, "approve", id, "--reason", "go ahead")
        lines = shell.run("explain", call_id, *THERE).out.splitlines()[2:]
        for line, words in zip(lines, ("approved by user:", "allowed, no rule", "started", "ended, without error"), strict=True):
            assert words in line
        for given in (call_id[:-1], "last"):
            assert shell.run("explain", given, *THERE).out.startswith(f"{call_id}: add(a=1, b=2)")
    missing = shell.run("explain", "call_none", *THERE)
    assert missing.code == 2
    assert "has a call `call_none`" in missing.err


RULED = '[governance]\nlevel = "supervised"\n'


async def supervised(shell: Shell) -> str:
    """A run that a server with a supervised level left waiting; `add` declares no effect, so it may do anything."""
    script = Scripted(calls(call("add", a=1, b=2)))
    policies = build_policies(GovernanceSettings(level="supervised"), AddressGuard())
    async with Engine(script, tools=[add], policies=policies, database=shell.folder / "runs.db") as engine:
        run = await engine.run("Add.")
    [asked] = [item.id for item in run.output if isinstance(item, ApprovalRequest)]
    return asked


async def test_an_answer_is_refused_where_the_rule_that_asks_is_not_in_force(shell: Shell) -> None:
    id = await supervised(shell)
    refused = answered(shell, "approve", id)
    assert (refused.code, tally(shell)) == (2, [])
    assert "the rule `autonomy_level` asks about this call, and these settings do not have it; pass those" in refused.err
    assert shown(shell, id)["state"] == "pending"
    (shell.folder / "server.toml").write_text(RULED)
    assert answered(shell, "approve", id, "--config", "server.toml").code == 0
    assert tally(shell) == ["1 + 2"]


async def test_what_goes_on_is_judged_by_the_settings_of_the_server(shell: Shell) -> None:
    """The approved call runs; the next one, which the model makes then, is asked about, and does not."""
    id = await supervised(shell)
    (shell.folder / "mainspring.toml").write_text(RULED)
    model = shell.script({"calls": [{"name": "add", "arguments": {"a": 3, "b": 4}}]}, {"say": "Never said."})
    done = shell.run("approvals", "approve", id, *THERE, "--model", model, "--tool", "mytools")
    assert (done.code, tally(shell)) == (0, ["1 + 2"])
    assert shell.run("approvals", "list", *THERE).out.count("pending") == 1


async def test_a_rule_that_has_come_to_deny_the_call_goes_before_the_approval(shell: Shell) -> None:
    id = await supervised(shell)
    (shell.folder / "mainspring.toml").write_text(RULED + 'rules = { add = "deny" }\n')
    assert answered(shell, "approve", id).code == 0
    assert tally(shell) == []


async def test_a_run_at_the_command_line_is_governed_too(shell: Shell) -> None:
    settings = shell.folder / "mainspring.toml"
    settings.write_text(RULED)
    model = shell.script({"calls": [{"name": "add", "arguments": {"a": 3, "b": 4}}]}, {"say": "Well."})
    done = shell.run("run", "Add.", "--model", model, "--tool", "mytools", *THERE)
    assert (done.code, tally(shell)) == (0, [])
    assert shell.run("approvals", "list", *THERE).out.count("pending") == 1
    # What the budget would deny, nobody is asked about.
    settings.write_text(f"{RULED}[budget]\nlimits = {{ max_tool_calls = 0 }}\n")
    shell.run("run", "Add.", "--model", model, "--tool", "mytools", *THERE)
    assert tally(shell) == []
    assert shell.run("approvals", "list", *THERE).out.count("pending") == 1


def begun_and_killed(shell: Shell) -> None:
    """A run that was to add, and whose process was killed while its model was thinking."""
    model = shell.script({"stall": True})
    with shell.started("run", "Add.", "--model", model, "--tool", "mytools", *THERE, "--json") as it:
        it.wait_for("turn_started")
        it.process.kill()


RULES = '[governance]\nrules = { add = "deny" }\n[governance.paths]\nallowed = ["."]\n'


@pytest.mark.parametrize("here", ["", '[governance]\nrules = { add = "allow" }\n'])
async def test_a_run_is_resumed_only_under_the_settings_it_began_under(shell: Shell, here: str) -> None:
    settings = shell.folder / "mainspring.toml"
    settings.write_text(RULES)
    begun_and_killed(shell)
    settings.rename(shell.folder / "first.toml")
    settings.write_text(here)
    model = shell.script({"calls": [{"name": "add", "arguments": {"a": 1, "b": 2}}]}, {"say": "Denied, then."})
    options = (*THERE, "--model", model, "--tool", "mytools")
    refused = shell.run("resume", "--all", *options)
    assert (refused.code, tally(shell)) == (2, [])
    assert "began under other settings" in refused.err
    assert "--config FILE" in refused.err
    done = shell.run("resume", "--all", *options, "--config", "first.toml")
    assert (done.code, tally(shell)) == (0, [])
    assert "Denied, then." in done.out


async def test_a_run_that_began_under_no_settings_is_resumed_under_those_of_now(shell: Shell) -> None:
    begun_and_killed(shell)
    (shell.folder / "mainspring.toml").write_text(RULES)
    model = shell.script({"calls": [{"name": "add", "arguments": {"a": 1, "b": 2}}]}, {"say": "Denied, then."})
    done = shell.run("resume", "--all", *THERE, "--model", model, "--tool", "mytools")
    assert (done.code, tally(shell)) == (0, [])


async def test_an_answer_is_refused_under_other_settings_though_a_rule_of_that_name_is_in_force(shell: Shell) -> None:
    (shell.folder / "mainspring.toml").write_text('[governance]\nrules = { add = "ask", wipe = "deny" }\n')
    model = shell.script({"calls": [{"name": "add", "arguments": {"a": 1, "b": 2}}]})
    shell.run("run", "Add.", "--model", model, "--tool", "mytools", *THERE)
    [id] = [line.split()[0] for line in shell.run("approvals", "list", *THERE).out.splitlines()[1:]]
    (shell.folder / "other.toml").write_text('[governance]\nrules = { add = "ask" }\n')
    refused = answered(shell, "approve", id, "--config", "other.toml")
    assert (refused.code, tally(shell)) == (2, [])
    assert "began under other settings" in refused.err
    assert answered(shell, "approve", id).code == 0
    assert tally(shell) == ["1 + 2"]
