"""Folders of skills: what is whole is there, what is broken is reported, and changes are seen when somebody asks."""

from pathlib import Path

import pytest
from tests.skills.shelf import put

from mainspring.definitions.folder import KEPT
from mainspring.features.skills.skill_folder import SkillFolders


def test_broken_skill_is_reported_by_line_and_the_others_are_there(tmp_path: Path) -> None:
    put(tmp_path, "alpha")
    put(tmp_path, "broken", "colour: red\n")
    put(tmp_path, "gamma")
    folders = SkillFolders([tmp_path])
    assert list(folders.definitions) == ["alpha", "gamma"]
    [problem] = folders.problems
    assert problem.startswith(f"{tmp_path}/broken/SKILL.md:4: unknown key `colour`")


def test_problem_is_logged_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    put(tmp_path, "broken", "colour: red\n")
    folders = SkillFolders([tmp_path])
    assert len(folders.problems) == len(folders.problems) == 1
    assert [record.levelname for record in caplog.records] == ["WARNING"]


def test_second_skill_of_a_name_is_refused(tmp_path: Path) -> None:
    first, second = put(tmp_path / "ours", "alpha", body="Ours."), put(tmp_path / "theirs", "alpha", body="Theirs.")
    folders = SkillFolders([tmp_path / "ours", tmp_path / "theirs"])
    assert folders.definitions["alpha"].body == "Ours."
    assert folders.problems == (f"{second}/SKILL.md:1: the skill `alpha` is defined at {first}/SKILL.md:1; rename one",)


def test_folder_named_twice_is_read_once(tmp_path: Path) -> None:
    put(tmp_path, "alpha")
    assert SkillFolders([tmp_path, tmp_path / "alpha" / ".."]).problems == ()


def test_what_is_no_skill_is_passed_over(tmp_path: Path) -> None:
    put(tmp_path, ".hidden", "colour: red\n")
    (tmp_path / "notes").mkdir()
    (tmp_path / "README.md").write_text("Skills of ours.")
    assert (dict(SkillFolders([tmp_path]).definitions), SkillFolders([tmp_path]).problems) == ({}, ())


def test_folder_that_is_missing_is_a_problem(tmp_path: Path) -> None:
    [problem] = SkillFolders([tmp_path / "nowhere"]).problems
    assert "nowhere: the folder cannot be read" in problem


def test_skill_named_instead_of_the_folder_above_is_a_problem(tmp_path: Path) -> None:
    [problem] = SkillFolders([put(tmp_path, "alpha")]).problems
    assert "name the folder above it" in problem


def test_file_in_small_letters_is_a_problem(tmp_path: Path) -> None:
    place = put(tmp_path, "alpha")
    (place / "SKILL.md").rename(place / "skill.md")
    [problem] = SkillFolders([tmp_path]).problems
    assert problem == f"{place}/skill.md:1: the file of a skill is called SKILL.md; rename it"


def test_neither_a_folder_nor_a_file_may_be_a_link(tmp_path: Path) -> None:
    outside = put(tmp_path / "elsewhere", "linked")
    skills = tmp_path / "skills"
    (skills / "inner").mkdir(parents=True)
    (skills / "linked").symlink_to(outside)
    (skills / "inner" / "SKILL.md").symlink_to(outside / "SKILL.md")
    folders = SkillFolders([skills])
    assert dict(folders.definitions) == {}
    assert [("link" in problem) for problem in folders.problems] == [True, True]


def test_changes_are_seen_when_asked_for(tmp_path: Path) -> None:
    place = put(tmp_path, "alpha", body="Old.")
    kept = put(tmp_path, "beta")
    folders = SkillFolders([tmp_path])
    before, beta = folders.definitions, folders.definitions["beta"]
    assert folders.definitions is before
    put(tmp_path, "alpha", body="New and longer.")
    put(tmp_path, "delta")
    assert (folders.definitions["alpha"].body, "delta" in folders.definitions) == ("New and longer.", True)
    assert folders.definitions["beta"] is beta, "what has not changed is not read again"
    assert before["alpha"].body == "Old.", "whoever holds the old skills keeps them"
    (kept / "SKILL.md").unlink()
    (place / "SKILL.md").write_text("---\n")
    assert list(folders.definitions) == ["alpha", "delta"]
    assert folders.definitions["alpha"].body == "New and longer.", "a broken version does not replace the one before"
    [problem] = folders.problems
    assert problem.startswith(f"{place}/SKILL.md:1: ")
    assert problem.endswith(KEPT)
