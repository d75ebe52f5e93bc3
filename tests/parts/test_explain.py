"""`mainspring config explain` prints the lists that a run goes through, as these settings make them."""

from pathlib import Path

import pytest

from mainspring.app.process import run_command


def explain(folder: Path, text: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.chdir(folder)
    (folder / "mainspring.toml").write_text(text)
    assert run_command(["config", "explain"]) == 0
    return [line.split(maxsplit=1)[1] for line in capsys.readouterr().out.splitlines() if line.startswith("  ")]


def test_what_is_not_configured_is_not_in_the_lists(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    bare = explain(tmp_path, "", capsys, monkeypatch)
    assert {"approval deadline", "budget", "known_tool", "traces"} <= set(bare)
    assert not {"injection flags", "rate", "tool_rules", "memory"} & set(bare)
    full = "[governance]\nper_minute = 5\nscan_inputs = true\nrules = {shell = 'deny'}\n[memory]\nenabled = true\n"
    assert {"injection flags", "rate", "tool_rules", "memory"} <= set(explain(tmp_path, full, capsys, monkeypatch))
