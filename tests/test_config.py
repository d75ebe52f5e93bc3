"""Settings: where they come from, which wins, and what is said when they are wrong."""

import tomllib
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest

from mainspring.app.settings import find_settings_type, list_misspelt, list_part_tables, load
from mainspring.core.errors import InvalidRequest
from mainspring.definitions.json_schema import build_schema
from mainspring.features.config.settings_page import render_page, render_settings
from mainspring_tasks.part import PART as TASKS


def test_defaults_work_without_any_configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert load({}, environment={}) == find_settings_type()()
    assert find_settings_type()().host == "127.0.0.1"


def test_the_command_line_wins_over_the_environment_and_that_over_the_file(tmp_path: Path) -> None:
    file = tmp_path / "settings.toml"
    file.write_text('port = 1\nmodel = "a"\nhost = "0.0.0.0"\ntools = ["m:f"]\n')
    settings = load(
        {"port": 3, "model": None}, file=file, environment={"MAINSPRING_PORT": "2", "MAINSPRING_MODEL": "b", "PORT": "9"}
    )
    assert settings == find_settings_type()(port=3, model="b", host="0.0.0.0", tools=("m:f",))


def test_the_environment_speaks_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    given = {"MAINSPRING_TOOLS": "a:b c", "MAINSPRING_REQUIRES_ACTION": "true", "MAINSPRING_DRAIN_SECONDS": "2.5"}
    assert load({}, environment=given) == find_settings_type()(tools=("a:b", "c"), requires_action=True, drain_seconds=2.5)


def test_variables_that_look_like_a_setting_are_told() -> None:
    given = {"MAINSPRING_PROT": "9", "MAINSPRING_DATABSE": "x", "MAINSPRING_PORT": "8", "MAINSPRING_PORT_80_TCP": "t"}
    assert list_misspelt(given | {"MAINSPRING_DEBUG": "1", "MAINSPRING_SERVICE_HOST": "10.0.0.1"}) == [
        "MAINSPRING_PROT, which is no setting; did you mean MAINSPRING_PORT?",
        "MAINSPRING_DATABSE, which is no setting; did you mean MAINSPRING_DATABASE?",
    ]


def test_all_errors_are_told_at_once_with_a_hint(tmp_path: Path) -> None:
    file = tmp_path / "mainspring.toml"
    file.write_text('prot = 1\nxyzzy = 2\nreasoning_events = "loud"\n')
    with pytest.raises(InvalidRequest) as caught:
        load({"port": 70000}, file=file, environment={"MAINSPRING_ERROR_EVENT": "perhaps"})
    for words in (
        "did you mean `port`?",
        "`xyzzy`; known: ",
        "70000",
        "line 3: `reasoning_events`",
        "MAINSPRING_ERROR_EVENT",
    ):
        assert words in caught.value.message


def test_the_port_of_a_service_that_kubernetes_tells_is_explained(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="enableServiceLinks: false"):
        load({}, file=_empty(tmp_path), environment={"MAINSPRING_PORT": "tcp://10.0.0.188:80"})


@pytest.mark.parametrize("seconds", ["inf", "nan", "-1", "-inf", "1e300"])
def test_a_time_that_is_none_is_refused_wherever_it_comes_from(tmp_path: Path, seconds: str) -> None:
    file = tmp_path / "settings.toml"
    file.write_text(f"drain_seconds = {seconds}\n")
    for where, environment in ((file, {}), (_empty(tmp_path), {"MAINSPRING_DRAIN_SECONDS": seconds})):
        with pytest.raises(InvalidRequest, match=r"(?i)drain_seconds`?: "):
            load({}, file=where, environment=environment)


@pytest.mark.parametrize("seconds", [0, 0.5, 86_400])
def test_a_server_may_drain_for_no_time_or_a_day(tmp_path: Path, seconds: float) -> None:
    environment = {"MAINSPRING_DRAIN_SECONDS": str(seconds)}
    assert load({}, file=_empty(tmp_path), environment=environment).drain_seconds == seconds


def _empty(folder: Path) -> Path:
    file = folder / "mainspring.toml"
    file.touch()
    return file


@pytest.mark.parametrize("content", ["port = ", "port = 'x'", "\udcff"])
def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path, content: str) -> None:
    file = tmp_path / "mainspring.toml"
    file.write_text(content, errors="surrogateescape")
    with pytest.raises(InvalidRequest, match="settings are not right"):
        load({}, file=file, environment={})
    with pytest.raises(InvalidRequest, match=r"missing\.toml: it cannot be read"):
        load({}, file=tmp_path / "missing.toml", environment={})


ROOT = Path(__file__).parents[1]
SECRETS = """\
api_key = "sekrit"
base_url = "https://me:sekrit@example.com/v1"
[providers.a]
key = "sekrit"
key_env = "A_KEY"
headers = { X-Team = "sekrit" }
[mcp.x]
command = "y"
args = ["--api-token", "sekrit", "--port", "1"]
env = { T = "sekrit" }
[memory]
embedding_key = "sekrit"
[web_search]
key = "sekrit"
[decisions]
tasks = "postgresql://me:sekrit@host/db"
"""


def test_the_reference_page_says_what_the_structs_say() -> None:
    assert (ROOT / "docs" / "settings.md").read_text() == render_page(find_settings_type()), (
        "mainspring config docs > docs/settings.md"
    )


def test_settings_are_shown_as_toml_without_secrets(tmp_path: Path) -> None:
    file = tmp_path / "settings.toml"
    file.write_text(SECRETS)
    shown = render_settings(load({}, file=file, environment={"MAINSPRING_PORT": "9"}))
    assert "sekrit" not in shown
    file.write_text(shown)
    settings = load({}, file=file, environment={})
    assert (settings.port, settings.providers["a"].key_env, settings.mcp["x"].args[2:]) == (9, "A_KEY", ("--port", "1"))


def test_settings_are_read_by_their_names_of_before(tmp_path: Path) -> None:
    file = tmp_path / "settings.toml"
    file.write_text("[decisions]\nretention_days = 3\nmax_iterations = 4\n")
    table: Any = next(table for part, table in list_part_tables(load({}, file=file, environment={})) if part is TASKS)
    assert (table.keep_days, table.max_turns) == (3, 4)
    file.write_text("[decisions]\nretention_days = 3\nkeep_days = 4\n")
    with pytest.raises(InvalidRequest, match=r":2: .*`retention_days`"):
        load({}, file=file, environment={})


@pytest.mark.parametrize(
    ("text", "is_right"),
    [
        ("", True),
        ('[budget.tenants.acme]\nlevel = 1\nlimits = { max_tokens = "unlimited" }\n', True),
        ('aliases = { fast = "a/b", safe = ["a/b", "c/d"] }\n', True),
        ("prot = 1\n", False),
        ("[budget.limits]\nmax_token = 1\n", False),
        ('[governance]\nlevel = "godlike"\n', False),
        ("[providers.a]\nattempts = 0\n", False),
    ],
)
def test_the_schema_for_editors_takes_what_the_settings_take(text: str, is_right: bool, tmp_path: Path) -> None:
    schema = build_schema(find_settings_type(), "Settings")
    assert jsonschema_rs.validator_for(schema).is_valid(tomllib.loads(text)) is is_right
    file = tmp_path / "settings.toml"
    file.write_text(text)
    with nullcontext() if is_right else pytest.raises(InvalidRequest):
        load({}, file=file, environment={})


def test_every_field_of_the_schema_is_described() -> None:
    tables = build_schema(find_settings_type(), "Settings")["$defs"]
    described = [name for name in tables if name.endswith("Settings") or name.startswith(("Budget", "Tenant"))]
    missing = [(name, key) for name in described for key, each in tables[name]["properties"].items() if "description" not in each]
    assert (len(described) > 10, missing) == (True, [])
