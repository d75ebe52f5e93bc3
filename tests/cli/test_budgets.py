"""`[budget]` as a run at the command line meets it: every point of enforcement, every outcome, and stop conditions."""

import json

import pytest
from tests.cli.command import Shell

from mainspring.core.items import Json

SETTINGS = """
working_dir = "."

[budget]
level = 3
allowed_commands = ["ls"]

[budget.files]
read = ["ok/**"]
write = ["ok/**"]

[budget.network]
enabled = false

[budget.limits]
max_iterations = 9
max_files_modified = 1
max_lines_changed = 3
"""


def calls(*made: tuple[str, Json]) -> Json:
    return {"calls": [{"name": name, "arguments": arguments} for name, arguments in made]}


def judged(shell: Shell, *turns: Json, tools: tuple[str, ...] = ()) -> tuple[list[tuple[str, str]], Json]:
    """The verdicts of a run with their reasons, and its end."""
    builtins = ("--builtin", "file_ops", "--builtin", "shell", "--builtin", "web_fetch")
    done = shell.run(
        "run", "Go.", "--model", shell.script(*turns), "--json", *builtins, *tools, env={"MAINSPRING_SANDBOX": "unsafe"}
    )
    events = [json.loads(line)["event"] for line in done.out.splitlines()]
    verdicts = [(event["verdict"], event.get("reason", "")) for event in events if event["type"] == "call_judged"]
    return verdicts, events[-1]


@pytest.mark.requirement("C26")
def test_every_enforcement_point_holds_and_a_blocked_call_does_not_end_the_run(shell: Shell) -> None:
    (shell.folder / "mainspring.toml").write_text(SETTINGS)
    (shell.folder / "ok").mkdir()

    def write(path: str, text: str) -> tuple[str, Json]:
        return "file_ops", {"operation": "write", "path": path, "content": text}

    turn = calls(
        ("file_ops", {"operation": "read", "path": "secret"}),
        write("secret", "x"),
        ("shell", {"command": "rm -r ok"}),
        ("web_fetch", {"url": "https://example.com/"}),
        write("ok/a", "1\n2\n3\n4\n"),
        write("ok/a", "1\n"),
        write("ok/b", "1\n"),
    )
    verdicts, ended = judged(shell, turn, {"say": "Done."})
    reasons = [
        "(EF-01, files read)",
        "(EF-02, files written)",
        "(EF-03, commands)",
        "(EF-04, network)",
        "3 lines changed",
        "",
        "1 files modified",
    ]
    assert [verdict for verdict, _ in verdicts] == ["deny"] * 5 + ["allow", "deny"]
    assert [why for why, (_, told) in zip(reasons, verdicts, strict=True) if why not in told] == []
    assert ended["status"] == "completed"
    assert (shell.folder / "ok" / "a").read_text() == "1\n"


@pytest.mark.requirement("C26", "C-T5", "S17")
@pytest.mark.parametrize(("limit", "reason"), [("max_iterations = 2", "budget"), ("max_duration_minutes = 0.005", "deadline")])
def test_iterations_and_time_end_the_run(shell: Shell, limit: str, reason: str) -> None:
    (shell.folder / "mainspring.toml").write_text(f"[budget.limits]\n{limit}\n")
    slow = ("shell", {"command": "sleep 0.4"})
    _, ended = judged(shell, *[calls(("shell", {"command": f"sleep 0.{number}"})) for number in range(4)], calls(slow))
    assert (ended["status"], ended["reason"]) == ("incomplete", reason)


@pytest.mark.requirement("C27", "C29")
@pytest.mark.parametrize(
    ("action", "verdict", "reason"),
    [("stop", "deny", "budget"), ("escalate", "ask", "approval_needed"), ("warn", "allow", "final_answer")],
)
def test_a_stop_condition_blocks_asks_or_warns(shell: Shell, action: str, verdict: str, reason: str) -> None:
    condition = f'{{ id = "SC-05", description = "half of it", action = "{action}", at = 0.5 }}'
    (shell.folder / "mainspring.toml").write_text(
        f"[budget]\nstop_conditions = [{condition}]\nlimits = {{ max_iterations = 4 }}\n"
    )
    turns = [calls(("shell", {"command": f"echo {number}"})) for number in range(3)]
    verdicts, ended = judged(shell, *turns, {"say": "Done."})
    assert [each for each, _ in verdicts] == ["allow", "allow", verdict]
    assert ("SC-05" in verdicts[2][1], "half of it" in verdicts[2][1]) == (True, True)
    assert ended["reason"] == reason


@pytest.mark.requirement("C28")
def test_a_budget_that_names_no_limits_has_those_of_the_documents(shell: Shell) -> None:
    overlay = '{ budget_id = "own", state = "active", in_scope = ["this"], approved_by = "me" }'
    (shell.folder / "mainspring.toml").write_text(f"[budget]\noverlays = [{overlay}]\n")
    done = shell.run("run", "Go.", "--model", shell.script({"say": "Done."}), "--json")
    [own] = json.loads(done.out.splitlines()[0])["event"]["spec"]["budget"]["overlays"]
    limits = own["limits"]
    assert (limits["max_iterations"], limits["max_duration_minutes"], limits["max_tool_calls"]) == (100, 60, 200)
    assert (limits["max_files_modified"], limits["max_lines_changed"]) == (50, 5000)
