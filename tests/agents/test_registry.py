"""Agents in folders: found, reloaded when they change, and left out when they cannot be used."""

import logging
import os
from pathlib import Path

import pytest
from tests.agents.world import written

from mainspring.core.errors import NotFound
from mainspring.features.agents.agent_registry import AgentRegistry


def touched(file: Path, text: str | None = None) -> None:
    """Changes a file so that its times tell, however fast the test is."""
    if text is not None:
        file.write_text(text)
    later = file.stat().st_mtime_ns + 1_000_000_000
    os.utime(file, ns=(later, later))


def test_agents_are_found_by_name_in_every_folder(tmp_path: Path) -> None:
    written(tmp_path / "a", "one")
    written(tmp_path / "b", "two")
    (tmp_path / "a" / "notes.txt").write_text("no agent")
    (tmp_path / "a" / ".hidden.yaml").write_text("- no agent")
    registry = AgentRegistry([tmp_path / "b", tmp_path / "a", tmp_path / "a"])
    assert list(registry.definitions) == ["one", "two"]
    assert registry.problems == ()
    assert registry.get("two").name == "two"


def test_an_unknown_agent_is_not_found_and_a_close_name_is_told(tmp_path: Path) -> None:
    written(tmp_path, "reviewer")
    with pytest.raises(NotFound, match=r"there is no agent `reviever`; did you mean `reviewer`\?"):
        AgentRegistry([tmp_path]).get("reviever")


def test_a_changed_file_is_read_again_and_a_new_one_found(tmp_path: Path) -> None:
    file = written(tmp_path, "one", description="before")
    registry = AgentRegistry([tmp_path])
    assert registry.get("one").description == "before"
    written(tmp_path, "one", description="after")
    touched(file)
    written(tmp_path, "two")
    assert registry.get("one").description == "after"
    assert list(registry.definitions) == ["one", "two"]
    file.unlink()
    assert list(registry.definitions) == ["two"]


def test_unchanged_files_are_not_read_again(tmp_path: Path) -> None:
    written(tmp_path, "one")
    registry = AgentRegistry([tmp_path])
    first = registry.get("one")
    assert registry.get("one") is first
    written(tmp_path, "two")
    assert registry.get("one") is first


def test_a_broken_new_version_leaves_the_old_one_in_use_and_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = written(tmp_path, "one", description="before")
    registry = AgentRegistry([tmp_path])
    assert not registry.problems
    with caplog.at_level(logging.WARNING):
        touched(file, "{nonsense: 1}")
        assert registry.get("one").description == "before"
        assert registry.definitions["one"].description == "before"
    (problem,) = registry.problems
    assert problem.startswith(f"{file}:\n  line 1: ")
    assert problem.endswith("the last version that was right stays in use")
    assert len(caplog.records) == 1
    written(tmp_path, "one", description="mended")
    touched(file)
    assert registry.get("one").description == "mended"
    assert registry.problems == ()


def test_a_broken_definition_is_left_out_and_the_others_are_there(tmp_path: Path) -> None:
    written(tmp_path, "one")
    (tmp_path / "broken.yaml").write_text("name: two\nversion: 1\nrole: qq\n")
    registry = AgentRegistry([tmp_path])
    assert list(registry.definitions) == ["one"]
    (problem,) = registry.problems
    assert problem.startswith(f"{tmp_path}/broken.yaml:\n  line 2: ")
    assert "\n  line 3: " in problem
    with pytest.raises(NotFound, match="some definitions cannot be used"):
        registry.get("two")


def test_a_name_that_is_taken_is_reported(tmp_path: Path) -> None:
    first = written(tmp_path, "one")
    second = tmp_path / "z.json"
    second.write_bytes(first.read_bytes())
    registry = AgentRegistry([tmp_path])
    assert list(registry.definitions) == ["one"]
    assert registry.problems == (f"{second}:1: the agent `one` is defined at {first}:1; rename one",)


def test_an_agent_without_what_it_needs_is_left_out_and_so_is_who_needs_it(tmp_path: Path) -> None:
    written(tmp_path, "top", dependencies=[{"agent": "middle"}])
    written(tmp_path, "middle", dependencies=[{"agent": "gone"}])
    written(tmp_path, "easy", dependencies=[{"agent": "gone", "optional": True}])
    written(tmp_path, "skilled", skills=["style"])
    skills: list[str] = []
    registry = AgentRegistry([tmp_path], skills=lambda: skills)
    assert list(registry.definitions) == ["easy"]
    told = "\n".join(registry.problems)
    assert "agent `middle` needs the agent `gone`, which is not there" in told
    assert "agent `top` needs the agent `middle`" in told
    assert "agent `skilled` needs the skill `style`" in told
    skills.append("style")
    written(tmp_path, "gone")
    assert list(registry.definitions) == ["easy", "gone", "middle", "skilled", "top"]
    assert registry.problems == ()


def test_a_folder_that_is_not_there_is_a_problem_until_it_is(tmp_path: Path) -> None:
    registry = AgentRegistry([tmp_path / "later"])
    assert "the folder cannot be read" in registry.problems[0]
    written(tmp_path / "later", "one")
    assert list(registry.definitions) == ["one"]


def test_what_is_no_file_is_a_problem_of_its_own_and_of_no_other_agent(tmp_path: Path) -> None:
    for name in ("one", "two", "zoo"):
        written(tmp_path, name)
    registry = AgentRegistry([tmp_path])
    assert len(registry.definitions) == 3
    (tmp_path / "aa.yaml").symlink_to("aa.yaml")
    (tmp_path / "dangling.yaml").symlink_to("nowhere.yaml")
    (tmp_path / "two.json").unlink()
    (tmp_path / "two.json").symlink_to("two.json")
    os.mkfifo(tmp_path / "pipe.yaml")
    (tmp_path / "folder.yaml").mkdir()
    # What cannot be read keeps what it was.
    assert list(registry.definitions) == ["one", "two", "zoo"]
    told = [problem.removeprefix(f"{tmp_path}/") for problem in registry.problems]
    assert [problem.split(":")[0] for problem in told] == ["aa.yaml", "dangling.yaml", "folder.yaml", "pipe.yaml", "two.json"]
    assert "Too many levels of symbolic links; mend the link" in told[0]
    assert "it is no file" in told[3]
