"""`mainspring mcp`: servers are added to the settings, listed, tried, and their tools shown."""

import json
import re
import sys
import tomllib
from pathlib import Path

import pytest
from tests.cli.command import Shell

from mainspring.definitions.toml import write_toml
from mainspring.tools.sandbox.bwrap import is_fixed, read_version
from mainspring.tools.sandbox.probe import list_candidates

CLOCK = (sys.executable, "-m", "mcp_server_time", "--local-timezone", "UTC")


def test_a_server_is_added_listed_and_tried(shell: Shell) -> None:
    added = shell.run("mcp", "add", "clock", "--env", "MODE=test", "--", *CLOCK)
    assert added.code == 0, added.err
    assert "try it: mainspring mcp test clock" in added.err
    written = tomllib.loads((shell.folder / "mainspring.toml").read_text())
    assert written["mcp"]["clock"] == {"command": CLOCK[0], "args": list(CLOCK[1:]), "env": {"MODE": "test"}}
    where, how = shell.run("mcp", "list").out.splitlines()
    assert where == f"clock  stdio, sandboxed  {' '.join(CLOCK)}"
    assert re.fullmatch(r"  ready, 2 tools, \S+ \S+, MCP 20\d\d-\d\d-\d\d, \d+ ms", how), how
    assert shell.run("mcp", "test").out.startswith("clock  answers, with 2 tools, ")
    [listed] = [json.loads(line) for line in shell.run("mcp", "list", "--json").out.splitlines()]
    assert (listed["state"], listed["error"], listed["protocol"][:2]) == ("ready", None, "20")
    assert listed["latency_ms"] > 0
    tools = shell.run("mcp", "tools", "clock").out.splitlines()
    assert [line.split("  ")[0] for line in tools] == ["get_current_time", "convert_time"]


@pytest.mark.slow
def test_a_script_of_the_folder_is_found_in_the_sandbox(shell: Shell) -> None:
    """Beside the settings, of which it sees nothing else."""
    (shell.folder / "clock.py").write_text("import runpy\nrunpy.run_module('mcp_server_time', run_name='__main__')\n")
    assert shell.run("mcp", "add", "clock", "--", sys.executable, "clock.py", *CLOCK[3:]).code == 0
    tried = shell.run("mcp", "test")
    assert (tried.code, tried.out.partition(",")[0]) == (0, "clock  answers"), tried.err


@pytest.mark.slow
def test_a_server_runs_in_the_sandbox_with_what_it_is_granted(shell: Shell) -> None:
    (shell.folder / "notes").mkdir()
    code = "open('note').read(); import runpy; runpy.run_module('mcp_server_time', run_name='__main__')"
    peeking = (sys.executable, "-c", code.replace("note'", f"{shell.folder / 'notes' / 'note'}'"), *CLOCK[3:])
    (shell.folder / "notes" / "note").write_text("tick")
    (shell.folder / "notes").chmod(0o755)
    assert shell.run("mcp", "add", "held", "--", *peeking).code == 0
    assert shell.run("mcp", "add", "granted", "--network", "--read", "notes", "--", *peeking).code == 0
    assert shell.run("mcp", "add", "free", "--no-sandbox", "--", *peeking).code == 0
    written = tomllib.loads((shell.folder / "mainspring.toml").read_text())["mcp"]
    assert written["granted"] | {"args": []} == {
        "command": sys.executable,
        "args": [],
        "network": True,
        "reads": [str(shell.folder / "notes")],
    }
    assert written["free"]["sandboxed"] is False
    tried = shell.run("mcp", "test")
    assert tried.code == 1
    assert [line.split(", ")[:2] for line in tried.out.splitlines()] == [
        ["granted  answers", "with 2 tools"],
        ["free  answers", "with 2 tools"],
    ]
    assert "held: MCP server `held` cannot be used" in tried.err
    assert "in [mcp.held]" in tried.err
    listed = shell.run("mcp", "list").out.splitlines()
    assert listed[1].startswith("  down: MCP server `held` cannot be used")
    assert [line[: len("  ready, 2 tools")] for line in listed[3::2]] == ["  ready, 2 tools"] * 2
    assert [line.split("  ")[:2] for line in listed[::2]] == [
        ["held", "stdio, sandboxed"],
        ["granted", "stdio, sandboxed, network"],
        ["free", "stdio"],
    ]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("add", "clock"), "say where the server is"),
        (("add", "web", "http://127.0.0.1/mcp"), "mainspring mcp add web --url http://127.0.0.1/mcp"),
        (("add", "not a label", "--url", "http://x/mcp"), "must be 1 to 64 letters"),
        (("add", "clock", "--url", "ftp://x"), "no HTTP URL"),
        (("add", "clock", "--url", "http://x/mcp", "--header", "nonsense"), "must be NAME:VALUE"),
        (("tools", "clock"), "there is no MCP server `clock`"),
        (("test",), "mainspring mcp add"),
    ],
)
def test_what_cannot_be_is_told_in_one_line(shell: Shell, arguments: tuple[str, ...], words: str) -> None:
    result = shell.run("mcp", *arguments)
    assert (result.code, result.out) == (2, "")
    assert words in result.err
    assert not (shell.folder / "mainspring.toml").exists()


def test_a_label_is_not_used_twice(shell: Shell) -> None:
    assert shell.run("mcp", "add", "docs", "--url", "https://example.com/mcp", "--header", "Authorization: Bearer x").code == 0
    again = shell.run("mcp", "add", "docs", "--url", "https://example.com/other")
    assert again.code == 2
    assert "has a server `docs` already" in again.err


def test_a_server_that_does_not_answer_is_an_error_with_its_name(shell: Shell) -> None:
    assert shell.run("mcp", "add", "gone", "--", sys.executable, "-c", "raise SystemExit(3)").code == 0
    result = shell.run("mcp", "test")
    assert result.code == 1
    assert "gone: " in result.err


def test_a_program_that_is_not_there_is_named_when_it_is_added(shell: Shell) -> None:
    added = shell.run("mcp", "add", "x", "--", "nosuchprogram")
    assert (added.code, "there is no program `nosuchprogram` here" in added.err) == (0, True)


def test_each_example_has_a_line_of_its_own(shell: Shell) -> None:
    lines = [line.strip() for line in shell.run("mcp", "add", "--help").out.splitlines()]
    assert [line.split()[3] for line in lines if line.startswith("mainspring mcp add ")] == [
        "time",
        "files",
        "docs",
        "wiki",
        "weather",
    ]


def test_of_a_server_that_fails_the_line_with_the_error_is_shown(shell: Shell) -> None:
    shell.run(
        "mcp", "add", "broken", "--no-sandbox", "--", sys.executable, "-c", "def wind(): raise OSError('no spring')\nwind()"
    )
    listed = shell.run("mcp", "list").out
    assert "down: " in listed
    assert "OSError: no spring" in listed
    assert "Traceback" not in listed


@pytest.mark.slow
def test_a_grant_inside_of_a_writable_one_is_refused_where_bubblewrap_follows_links(shell: Shell) -> None:
    (shell.folder / "notes" / "kept").mkdir(parents=True)
    (shell.folder / "notes").chmod(0o777)
    assert shell.run("mcp", "add", "clock", "--folder", "notes", "--read", "notes/kept", "--", *CLOCK).code == 0
    version = read_version(next(list_candidates("bwrap")).bwrap or Path("bwrap"))
    tried = shell.run("mcp", "test")
    if is_fixed(version):
        assert tried.code == 0
    else:
        assert tried.code == 1
        assert "CVE-2026-87766" in tried.err
        assert version in tried.err


def test_a_server_is_removed_and_everything_else_stays(shell: Shell) -> None:
    settings = shell.folder / "mainspring.toml"
    settings.write_text(
        'port = 1  # mine\n\n[mcp.one]\ncommand = "a"\n[mcp.one.env]\nX = "1"\n\n[mcp.one-more]\nurl = "http://b"\n'
    )
    removed = shell.run("mcp", "remove", "one")
    assert removed.code == 0, removed.err
    assert settings.read_text() == 'port = 1  # mine\n\n[mcp.one-more]\nurl = "http://b"\n'
    again = shell.run("mcp", "remove", "one")
    assert (again.code, "it has: `one-more`" in again.err) == (2, True)


def test_a_server_that_is_written_in_another_way_is_not_removed_by_guessing(shell: Shell) -> None:
    settings = shell.folder / "mainspring.toml"
    settings.write_text(text := '[mcp]\none = {command = "a"}\n')
    refused = shell.run("mcp", "remove", "one")
    assert (refused.code, "edited by hand" in refused.err, settings.read_text()) == (2, True, text)


def test_servers_are_listed_as_json(shell: Shell) -> None:
    assert shell.run("mcp", "add", "clock", "--", *CLOCK).code == 0
    (line,) = shell.run("mcp", "list", "--json").out.splitlines()
    told = {"label": "clock", "transport": "stdio", "tools": 2, "error": None, "state": "ready"}
    assert json.loads(line).items() >= told.items()


OTHERS = {
    "mcpServers": {
        "the clock": {"command": CLOCK[0], "args": list(CLOCK[1:]), "env": {"MODE": "test"}},
        "docs": {"type": "http", "url": "https://example.com/mcp", "headers": {"X-Key": "k"}},
        "off": {"command": "nothing", "disabled": True},
        "asks": {"command": "npx", "args": ["-y", "some-server"], "env": {"KEY": "${input:key}"}},
        "some": {"httpUrl": "https://example.com/some", "timeout": 30_000, "includeTools": ["read"], "trust": False},
        "sure": {"type": "local", "command": CLOCK[0], "tools": ["*"], "timeout": 60, "autoApprove": ["read"]},
        "most": {"url": "https://example.com/most", "disabledTools": ["write"]},
        # As Claude Code, Gemini CLI and Cursor have it.
        "corp": {
            "type": "http",
            "url": "https://corp.example/mcp",
            "oauth": {"clientId": "c", "callbackPort": 8080, "scopes": "a b"},
        },
        "open": {"httpUrl": "https://open.example/mcp", "oauth": {"enabled": True}},
        "shut": {"httpUrl": "https://shut.example/mcp", "oauth": {"enabled": False}},
        "ours": {"url": "https://ours.example/mcp", "auth": {"CLIENT_ID": "o", "CLIENT_SECRET": "s", "scopes": ["a"]}},
        "moved": {"url": "https://moved.example/mcp", "oauth": {"authServerMetadataUrl": "https://auth.example"}},
        "helped": {"url": "https://helped.example/mcp", "headersHelper": "/bin/token", "alwaysLoad": True},
    }
}


def test_servers_of_other_programs_are_imported_and_what_is_left_out_is_told(shell: Shell) -> None:
    (shell.folder / "other.json").write_text(json.dumps(OTHERS))
    done = shell.run("mcp", "import", "other.json", "--network")
    assert done.code == 0, done.err
    written = tomllib.loads((shell.folder / "mainspring.toml").read_text())["mcp"]
    assert written == {
        "the-clock": {"command": CLOCK[0], "args": list(CLOCK[1:]), "env": {"MODE": "test"}, "network": True},
        "docs": {"url": "https://example.com/mcp", "headers": {"X-Key": "k"}},
        "some": {"url": "https://example.com/some", "allowed_tools": ["read"], "timeout": 30.0},
        "sure": {"command": CLOCK[0], "timeout": 60, "network": True},
        "corp": {"url": "https://corp.example/mcp", "oauth": {"client_id": "c", "scopes": ["a", "b"]}},
        "open": {"url": "https://open.example/mcp", "oauth": {}},
        "shut": {"url": "https://shut.example/mcp"},
        "ours": {"url": "https://ours.example/mcp", "oauth": {"client_id": "o", "client_secret": "s", "scopes": ["a"]}},
    }
    assert "skipped `off`" in done.err
    assert "skipped `most`: it leaves tools out" in done.err
    assert "skipped `moved`: it needs `authServerMetadataUrl`" in done.err
    assert "skipped `helped`: it needs `headersHelper`" in done.err
    assert "skipped `asks`: it needs a value for ${input:key}" in done.err
    again = shell.run("mcp", "import", "other.json")
    assert again.code == 0
    assert "skipped `docs`" in again.err
    assert tomllib.loads((shell.folder / "mainspring.toml").read_text())["mcp"] == written


COMMENTED = """\ufeff{
  // Asked for once; "quoted".
  "servers": {
    "docs": {"url": "https://docs.example/mcp", "headers": {"X-Key": "a // b, } \\\" /* c */"}}, /* the
    second */
    "time": {"type": "stdio", "command": "PYTHON", "args": ["-m", "time",],},
  },
}
"""


def test_comments_and_last_commas_of_an_editor_s_settings_are_no_hindrance(shell: Shell) -> None:
    (shell.folder / "mcp.json").write_text(COMMENTED.replace("PYTHON", sys.executable), "utf-8")
    done = shell.run("mcp", "import", "mcp.json")
    assert done.code == 0, done.err
    assert tomllib.loads((shell.folder / "mainspring.toml").read_text())["mcp"] == {
        "docs": {"url": "https://docs.example/mcp", "headers": {"X-Key": 'a // b, } " /* c */'}},
        "time": {"command": sys.executable, "args": ["-m", "time"]},
    }


@pytest.mark.parametrize(
    "wrong",
    [
        {"servers": {"good": {"url": "https://example.com/mcp"}, "bad": {"type": "carrier pigeon", "url": "https://x.example"}}},
        {"servers": {"good": {"url": "https://example.com/mcp"}, "bad": {"url": "ftp://x.example"}}},
        {"servers": {"good": {"url": "https://example.com/mcp"}, "bad": {"command": "x", "wings": 2}}},
        {"mcpServers": {"good": {"url": "https://example.com/mcp"}, "bad": {"command": 7}}},
        {"something": "else"},
    ],
)
def test_a_file_that_is_not_understood_is_imported_not_at_all(wrong: object, shell: Shell) -> None:
    (shell.folder / "other.json").write_text(json.dumps(wrong))
    assert shell.run("mcp", "import", "other.json").code != 0
    assert not (shell.folder / "mainspring.toml").exists()


def test_settings_to_which_nothing_can_be_added_stay_as_they_are(shell: Shell) -> None:
    (file := shell.folder / "mainspring.toml").write_text(written := 'mcp = {one = {url = "https://one.example/mcp"}}\n')
    refused = shell.run("mcp", "add", "two", "--url", "https://two.example/mcp")
    assert (refused.code != 0, file.read_text()) == (True, written)


def test_a_server_is_added_from_the_registry_s_own_file(shell: Shell) -> None:
    package = {
        "registryType": "pypi",
        "identifier": "weather-server",
        "version": "1.2.0",
        "transport": {"type": "stdio"},
        "packageArguments": [{"type": "named", "name": "--units", "value": "metric"}],
        "environmentVariables": [{"name": "WEATHER_KEY", "isRequired": True, "isSecret": True}],
    }
    entry = {"name": "io.example/weather", "version": "1.2.0", "packages": [{"registryType": "oci", "identifier": "x"}, package]}
    (shell.folder / "server.json").write_text(json.dumps(entry))
    missing = shell.run("mcp", "add", "weather", "--from", "server.json")
    assert missing.code != 0
    assert "WEATHER_KEY" in missing.err
    # The network is granted by whoever adds it, and by no file.
    unasked = shell.run("mcp", "add", "weather", "--from", "server.json", "--env", "WEATHER_KEY=k")
    assert unasked.code != 0
    assert "--network" in unasked.err
    done = shell.run("mcp", "add", "weather", "--from", "server.json", "--network", "--env", "WEATHER_KEY=k")
    assert done.code == 0, done.err
    remote = {"name": "io.example/docs", "remotes": [{"type": "streamable-http", "url": "https://docs.example/mcp"}]}
    (shell.folder / "server.json").write_text(json.dumps(remote))
    assert shell.run("mcp", "add", "docs", "--from", "server.json", "--ask").code == 0
    assert tomllib.loads((shell.folder / "mainspring.toml").read_text())["mcp"] == {
        "weather": {
            "command": "uvx",
            "args": ["weather-server@1.2.0", "--units", "metric"],
            "env": {"WEATHER_KEY": "k"},
            "network": True,
        },
        "docs": {"url": "https://docs.example/mcp", "require_approval": "always"},
    }


def test_variables_of_the_registry_s_file_are_filled_in_or_asked_for(shell: Shell) -> None:
    """As its schema has them: `{name}` in a value stands for what `variables` says."""

    def add(label: str, *more: str, **entry: object) -> tuple[int, str]:
        (shell.folder / "server.json").write_text(json.dumps({"name": "io.example/x", **entry}))
        done = shell.run("mcp", "add", label, "--from", "server.json", *(["--network"] if "packages" in entry else []), *more)
        return done.code, done.err

    folder = {"type": "positional", "value": "{folder}", "variables": {"folder": {"default": "/srv/notes"}}}
    mode = {"type": "named", "name": "--mode={mode}", "value": "{mode}", "variables": {"mode": {}}}
    level = {"name": "LOG", "value": "{level}", "variables": {"level": {"default": "info"}}}
    package = {"registryType": "npm", "identifier": "notes", "version": "1.0.2", "environmentVariables": [level]}
    assert add("notes", packages=[{**package, "packageArguments": [folder, mode]}])[0] == 0
    needed = {**folder, "variables": {"folder": {"isRequired": True}}}
    code, told = add("needy", packages=[{**package, "packageArguments": [needed]}])
    assert (code != 0, "a value for" in told) == (True, True)
    by_http = {"type": "streamable-http", "url": "http://127.0.0.1:8080/mcp"}
    code, told = add("web", packages=[{**package, "transport": by_http}])
    assert (code != 0, "reached by streamable-http" in told) == (True, True)

    for wrong in ({"runtimeHint": "bash"}, {"identifier": "--call=sh"}):
        code, told = add("shell", packages=[{**package, "runtimeArguments": [{"type": "positional", "value": "-c"}], **wrong}])
        assert (code != 0, "starts no package" in told) == (True, True)

    token = {"name": "Authorization", "value": "Bearer {token}", "variables": {"token": {"isRequired": True}}}
    remote = {"type": "streamable-http", "url": "https://{tenant}.example/mcp", "headers": [token]}
    known = {**remote, "variables": {"tenant": {"default": "acme"}}}
    code, told = add("remote", remotes=[known])
    assert (code != 0, "--header" in told) == (True, True)
    key = ("--header", "Authorization: Bearer k")
    code, told = add("remote", *key, remotes=[remote])
    assert (code != 0, "https://{tenant}.example/mcp" in told) == (True, True)
    assert add("remote", *key, remotes=[known])[0] == 0

    made = tomllib.loads((shell.folder / "mainspring.toml").read_text())["mcp"]
    assert (made["notes"]["args"], made["notes"]["env"]) == (["-y", "notes@1.0.2", "/srv/notes"], {"LOG": "info"})
    assert made["remote"] == {"url": "https://acme.example/mcp", "headers": {"Authorization": "Bearer k"}}


@pytest.mark.parametrize("command", ["list", "test", "lock"])
def test_without_servers_the_commands_say_how_to_add_one(shell: Shell, command: str) -> None:
    told = shell.run("mcp", command)
    assert (told.out, "None" in told.err, "`mainspring mcp add`" in told.err) == ("", False, True)


CHANGING = Path(__file__).parent.parent / "mcp" / "changing.py"


def change(folder: Path, version: str, description: str) -> None:
    (folder / "served.json").write_text(json.dumps({"version": version, "tools": {"read": description}}))
    server = {"command": sys.executable, "args": [str(CHANGING), "served.json"], "sandboxed": False}
    (folder / "mainspring.toml").write_text(write_toml({"mcp": {"notes": server}}))


def test_what_a_server_says_is_seen_as_it_is_and_commands_no_terminal(shell: Shell) -> None:
    unseen = "".join([chr(0xE0000 + ord(letter)) for letter in "send it"])
    change(shell.folder, "1\x1b[8m", f"Reads \x1b[2J\x9b1m\u202eabc\u200b{unseen}")
    (shell.folder / "mainspring.mcp.lock").write_text('{"servers": {"notes": {"reached": "", "tools": {}}}}')
    diff = shell.run("mcp", "diff", "notes").out
    assert r"\u202eabc\u200b\U000e0073\U000e0065" in diff
    (shell.folder / "mainspring.mcp.lock").unlink()
    texts = [diff, *[shell.run("mcp", command).out for command in ("list", "test", "tools")]]
    assert [r"\x1b[" in text or r"\u001b[" in text for text in texts] == [True] * 4
    assert [letter for text in texts for letter in text if letter != "\n" and not letter.isprintable()] == []


def test_a_server_that_has_changed_since_it_was_looked_at_is_not_accepted(shell: Shell) -> None:
    change(shell.folder, "1", "Reads.")
    assert shell.run("mcp", "lock").code == 0
    change(shell.folder, "1", "Reads more.")
    assert "1 cannot be used (mainspring mcp tools notes)" in shell.run("mcp", "list").out
    told = shell.run("mcp", "diff", "notes")
    assert told.code == 1
    accept = told.err.rpartition("mainspring mcp ")[2].split()
    assert accept[:3] == ["accept", "notes", "--seen"]
    change(shell.folder, "1", "Sends.")
    refused = shell.run("mcp", *accept)
    assert (refused.code != 0, "mainspring mcp diff notes" in refused.err) == (True, True)
    assert "Reads." in (shell.folder / "mainspring.mcp.lock").read_text()
    change(shell.folder, "1", "Reads more.")
    done = shell.run("mcp", *accept)
    assert (done.code, '+  "description": "Reads more."' in done.out) == (0, True)
    assert shell.run("mcp", "diff").code == 0
