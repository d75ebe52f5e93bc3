"""Settings: where they come from, which wins, and what is said when they are wrong."""

from pathlib import Path

import pytest

from mainspring.app.settings import Settings, load
from mainspring.core.errors import InvalidRequest


def test_defaults_work_without_any_configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert load({}, environment={}) == Settings()
    assert Settings().host == "127.0.0.1"


def test_the_command_line_wins_over_the_environment_and_that_over_the_file(tmp_path: Path) -> None:
    file = tmp_path / "settings.toml"
    file.write_text('port = 1\nmodel = "a"\nhost = "0.0.0.0"\ntools = ["m:f"]\n')
    settings = load(
        {"port": 3, "model": None}, file=file, environment={"MAINSPRING_PORT": "2", "MAINSPRING_MODEL": "b", "PORT": "9"}
    )
    assert settings == Settings(port=3, model="b", host="0.0.0.0", tools=("m:f",))


def test_the_environment_speaks_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    given = {"MAINSPRING_TOOLS": "a:b c", "MAINSPRING_REQUIRES_ACTION": "true", "MAINSPRING_DRAIN_SECONDS": "2.5"}
    assert load({}, environment=given) == Settings(tools=("a:b", "c"), requires_action=True, drain_seconds=2.5)


def test_all_errors_are_told_at_once_with_a_hint(tmp_path: Path) -> None:
    file = tmp_path / "mainspring.toml"
    file.write_text('prot = 1\nxyzzy = 2\nreasoning_events = "loud"\n')
    with pytest.raises(InvalidRequest) as caught:
        load({"port": 70000}, file=file, environment={"MAINSPRING_ERROR_EVENT": "perhaps"})
    for words in (
        "did you mean `port`?",
        "`xyzzy`; known: ",
        "70000",
        "mainspring.toml:3: `reasoning_events`",
        "MAINSPRING_ERROR_EVENT",
    ):
        assert words in caught.value.message


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
    with pytest.raises(InvalidRequest, match=r"missing\.toml cannot be read"):
        load({}, file=tmp_path / "missing.toml", environment={})
