"""`mainspring policy`: a user's own table of calls and verdicts, held against the settings without performing anything."""

import json
from pathlib import Path

import pytest
from tests.cli.command import Shell

SETTINGS = """
tools = ["mytools"]
tool_definitions = "definitions"
working_dir = "."

[governance]
level = "supervised"
per_minute = 1
rules = { "file_ops:list" = "deny", "pay" = "deny" }

[governance.commands]
allowed = ["ls"]
denied = ["rm"]

[budget]
level = 2
"""
TABLE = """
calls:
- {tool: shell, arguments: {command: ls}, expect: allow}
- {tool: shell, arguments: {command: ls && rm -r .}, expect: deny, rule: commands}
- {tool: shell, arguments: {command: make}, expect: ask, rule: commands}
- {tool: file_ops, operation: list, arguments: {path: .}, expect: deny, rule: tool_rules}
- {tool: file_ops, operation: read, arguments: {path: notes.txt}, expect: allow}
- {tool: file_ops, operation: read, arguments: {path: .env}, expect: deny, rule: budget}
- {tool: file_ops, operation: read, arguments: {path: 1}, expect: deny, rule: valid_arguments}
- {tool: add, arguments: {a: 1, b: 2}, expect: deny, rule: tool_status}
- {tool: pay, effects: [network], expect: deny, rule: tool_rules}
- {tool: mail, effects: [network], expect: ask, rule: autonomy_level}
- {tool: view, effects: [read], purposes: {file: path}, arguments: {file: a}, expect: allow}
- {tool: view, effects: [read], caller: {subject: ada, scopes: [responses]}, expect: deny, rule: caller_scopes}
- {tool: view, effects: [read], caller: {subject: ada, scopes: ["tools:execute:view"]}, expect: allow}
- {tool: run, effects: [execute], metadata: {mainspring_autonomy_level: "0"}, expect: deny, rule: budget}
- {tool: tracker__close, expect: deny, rule: tool_status}
"""


@pytest.fixture
def settled(shell: Shell) -> Shell:
    (shell.folder / "mainspring.toml").write_text(SETTINGS)
    (shell.folder / "definitions").mkdir()
    for name in ("add", "tracker__close"):
        (shell.folder / "definitions" / f"{name}.yaml").write_text(f"name: {name}\nstatus: blocked\n")
    return shell


def table(shell: Shell, text: str) -> Path:
    file = shell.folder / "calls.yaml"
    file.write_text(text)
    return file


def test_a_table_that_fits_passes_and_nothing_is_performed(settled: Shell) -> None:
    table(settled, TABLE)
    done = settled.run("policy", "test", "calls.yaml")
    assert (done.code, "WRONG" in done.out) == (0, False), done.out + done.err
    assert "15 calls, 0 judged otherwise" in done.err
    assert "deny by commands" in done.out
    assert not (settled.folder / "tally").exists()


@pytest.mark.parametrize(
    ("line", "judged"),
    [
        ("{tool: shell, arguments: {command: rm x}, expect: allow}", "deny by commands"),
        ("{tool: shell, arguments: {command: rm x}, expect: deny, rule: paths}", "deny by commands"),
        ("{tool: shell, arguments: {command: ls}, expect: ask}", "allow by gate"),
        ("{tool: shell, arguments: {comand: rm x}, expect: deny}", "deny by valid_arguments"),
    ],
)
def test_a_verdict_that_differs_fails_and_says_which_rule_decided(settled: Shell, line: str, judged: str) -> None:
    table(settled, f"calls:\n- {{tool: shell, arguments: {{command: ls}}, expect: allow}}\n- {line}\n")
    done = settled.run("policy", "test", "calls.yaml")
    assert done.code == 1
    [wrong] = [row for row in done.out.splitlines() if "WRONG" in row]
    assert wrong.startswith("2 ")
    assert judged in wrong


def test_a_slip_in_the_arguments_can_be_what_is_expected(settled: Shell) -> None:
    table(settled, "calls:\n- {tool: shell, arguments: {comand: ls}, expect: deny, rule: valid_arguments}\n")
    assert settled.run("policy", "test", "calls.yaml").code == 0


def test_what_may_be_a_slip_in_the_settings_is_told(settled: Shell) -> None:
    (settled.folder / "slips.toml").write_text('[governance]\nrules = { "file-ops:write" = "deny" }\n')
    assert (
        "mind: governance.rules: `file-ops:write` fits none of the tools"
        in settled.run("policy", "show", "--config", "slips.toml").err
    )


def test_programs_get_lines_of_json(settled: Shell) -> None:
    table(settled, "calls:\n- {tool: shell, arguments: {command: rm x}, expect: deny}\n")
    [line] = settled.run("policy", "test", "calls.yaml", "--json").out.splitlines()
    told = json.loads(line)
    assert (told["fits"], told["judged"]["verdict"], told["judged"]["policy"]) == (True, "deny", "commands")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("calls: [{tool: shell}]", "calls.yaml:1: `expect` is missing"),
        ("calls: [{tool: shell, expect: maybe}]", "calls.yaml:1: `expect`: it cannot be `maybe`"),
        ("calls: [{tool: shell, expect: deny, reason: x}]", "calls.yaml:1: unknown key `reason`; known: `tool`"),
        ("calls: [{tool: hammer, expect: deny}]", "nobody knows what the tool `hammer` does; say its `effects`"),
        ("calls: [", "this is not YAML"),
        ("calls: []", "it must have at least 1 entries"),
        ("calls: [{tool: shell, expect: deny, expect: allow}]", "calls.yaml:1: `expect` is there twice"),
        (
            "calls: [{tool: file_ops, operation: write, arguments: {operation: read, path: x}, expect: deny}]",
            "`operation` is `write`, and `arguments` say `read`; say it once",
        ),
    ],
)
def test_a_mistake_in_the_table_is_told(settled: Shell, text: str, words: str) -> None:
    table(settled, text)
    done = settled.run("policy", "test", "calls.yaml")
    assert (done.code, words in done.err) == (2, True), done.err


def test_without_settings_every_call_of_a_known_tool_passes(shell: Shell) -> None:
    table(shell, "calls:\n- {tool: shell, arguments: {command: rm -rf /}, expect: allow}\n")
    assert shell.run("policy", "test", "calls.yaml").code == 0


def test_the_policies_in_force_are_shown_in_their_order(settled: Shell) -> None:
    shown = settled.run("policy", "show").out.splitlines()
    assert [line.split()[0] for line in shown[1:]] == [
        "limits", "known_tool", "allowed_tools", "valid_arguments", "caller_scopes", "tool_status", "agent", "tool_rules",
        "rate", "autonomy_level", "commands", "budget", "approval", "hand_off",
    ]  # fmt: skip


@pytest.mark.parametrize(
    "command", [("policy", "show"), ("run", "--model", "scripted:script.json", "hello"), ("serve", "--port", "0")]
)
def test_a_status_given_twice_is_refused_with_its_line(settled: Shell, command: tuple[str, ...]) -> None:
    settled.script({"say": "hello"})
    (settled.folder / "definitions" / "add.yaml").write_text("name: add\nstatus: blocked\nstatus: active\n")
    done = settled.run(*command)
    assert done.code == 2
    assert "add.yaml:3: `status` is there twice" in done.err


GUARDED = """
tools = ["mytools"]
working_dir = "."

[governance]
level = "supervised"
per_minute = 60

[governance.commands]
allowed = ["ls"]

[governance.paths]
allowed = ["data"]
denied = ["**/.env"]

[governance.domains]
allowed = ["docs.example"]
"""


@pytest.mark.requirement("C18")
def test_a_call_is_judged_by_scope_rate_level_command_path_and_domain_in_this_order(shell: Shell) -> None:
    (shell.folder / "mainspring.toml").write_text(GUARDED)
    shown = [line.split()[0] for line in shell.run("policy", "show").out.splitlines()[1:]]
    rules = ["caller_scopes", "rate", "autonomy_level", "commands", "paths", "domains"]
    assert [name for name in shown if name in rules] == rules


@pytest.mark.requirement("D66", "D71", "D79")
def test_a_call_is_judged_by_what_it_does_and_paths_by_their_components(shell: Shell) -> None:
    (shell.folder / "mainspring.toml").write_text(GUARDED)
    table(
        shell,
        """
calls:
- {tool: file_ops, operation: read, arguments: {path: HERE/data/a}, expect: allow}
- {tool: file_ops, operation: read, arguments: {path: HERE/data-evil/a}, expect: deny, rule: paths}
- {tool: file_ops, operation: read, arguments: {path: data/../etc/passwd}, expect: deny, rule: paths}
- {tool: file_ops, operation: read, arguments: {path: .env}, expect: deny, rule: paths}
- {tool: file_ops, operation: read, arguments: {path: data/.env}, expect: deny, rule: paths}
- {tool: web_fetch, arguments: {url: "https://evil.example/docs.example"}, expect: deny, rule: domains}
- {tool: web_fetch, arguments: {url: "https://docs.example.evil.example/"}, expect: deny, rule: domains}
- {tool: shell_like_name, effects: [read], expect: allow}
- {tool: look, effects: [destructive], expect: ask, rule: autonomy_level}
""".replace("HERE", str(shell.folder)),
    )
    done = shell.run("policy", "test", "calls.yaml")
    assert done.code == 0, done.out


@pytest.mark.requirement("S16")
@pytest.mark.parametrize(("said", "verdict"), [("ask", "ask"), ("log", "allow")])
def test_a_supervised_call_waits_for_a_person_or_is_only_logged(shell: Shell, said: str, verdict: str) -> None:
    (shell.folder / "mainspring.toml").write_text(f'[governance]\nlevel = "supervised"\nsupervised = "{said}"\n')
    turn = {"calls": [{"name": "add", "arguments": {"a": 1, "b": 2}}]}
    done = shell.run("run", "Go.", "--model", shell.script(turn, {"say": "Three."}), "--tool", "mytools:add", "--json")
    events = [json.loads(line)["event"] for line in done.out.splitlines()]
    [judged] = [event for event in events if event["type"] == "call_judged"]
    assert (judged["verdict"], "supervised" in judged["reason"]) == (verdict, True), judged
    assert (shell.folder / "tally").exists() is (verdict == "allow")


EVALUATED = """
calls:
- {tool: shell, arguments: {command: "x='a[$(rm -v victim >&2)]'; arr[x]=1"}, expect: deny, rule: commands}
- {tool: shell, arguments: {command: "x='a[$(rm -v victim >&2)]'; echo ${arr[x]}"}, expect: deny, rule: commands}
- {tool: shell, arguments: {command: "x='a[$(rm -v victim >&2)]'; echo ${!x}"}, expect: deny, rule: commands}
- {tool: shell, arguments: {command: "x='a[$(rm -v victim >&2)]'; s=abc; echo ${s:x}"}, expect: deny, rule: commands}
- {tool: shell, arguments: {command: "x='a[$(rm -v victim >&2)]'; for ((i=x;0;)); do ls; done"}, expect: deny, rule: commands}
- {tool: shell, arguments: {command: "x=2; arr[x]=1; echo ${arr[x]} $((x + 1))"}, expect: allow}
- {tool: shell, arguments: {command: "for ((i=0; i<3; i++)); do ls; done"}, expect: allow}
"""


def test_what_bash_evaluates_is_judged_at_the_command_too(shell: Shell) -> None:
    (shell.folder / "mainspring.toml").write_text('[governance.commands]\nallowed = ["*"]\ndenied = ["rm"]\n')
    judged = shell.run("policy", "test", str(table(shell, EVALUATED)))
    assert judged.code == 0, judged.out + judged.err
