"""A model takes up skills by two tools, and reads nothing outside the skill's folder by them."""

import os
from collections.abc import Mapping
from pathlib import Path

import pytest
from tests.skills.shelf import put

from mainspring.core.items import Json
from mainspring.features.skills.skill_folder import SkillFolders
from mainspring.features.skills.skill_tools import MOST_BYTES, PAGE, SkillTools, list_files
from mainspring.ports import CallContext, ToolCall, ToolResult
from mainspring.tools.schema import Validator


@pytest.fixture
def shelf(tmp_path: Path) -> SkillFolders:
    put(tmp_path / "skills", "alpha", references__more__deep="Deep text.", scripts__run="echo hi", assets__empty="")
    put(tmp_path / "skills", "beta", body="Step. " * 3_000)
    (tmp_path / "secret.txt").write_text("secret")
    return SkillFolders([tmp_path / "skills"])


async def called(shelf: SkillFolders, tool: str, arguments: Mapping[str, object]) -> ToolResult:
    hands = SkillTools(lambda: shelf.definitions)
    [definition] = [each for each in hands.definitions() if each.name == tool]
    parsed: Json = dict(arguments)
    assert Validator(definition).errors(parsed) == []
    context = CallContext("resp_1", definition, lambda text: None)
    assert hands.can_execute(definition)
    return await hands.execute(ToolCall("call_1", tool, "", parsed), context)


async def file_of(shelf: SkillFolders, path: str, **more: object) -> ToolResult:
    return await called(shelf, "read_skill_file", {"name": "alpha", "path": path, **more})


async def refused(shelf: SkillFolders, path: str) -> str:
    result = await file_of(shelf, path)
    assert result.is_error
    assert isinstance(result.output, str)
    assert "secret" not in result.output.replace("secret.txt", "")
    return result.output


async def test_loaded_skill_is_its_instructions_and_the_names_of_its_files(shelf: SkillFolders) -> None:
    result = await called(shelf, "load_skill", {"name": "alpha"})
    assert (result.is_error, str(result.output).splitlines()) == (
        False,
        [
            '<skill name="alpha">',
            "Do it well.",
            "</skill>",
            "Files, for `read_skill_file`:",
            "assets/empty",
            "references/more/deep",
            "scripts/run",
        ],
    )


async def test_file_of_a_skill_is_read(shelf: SkillFolders) -> None:
    assert await file_of(shelf, "references/more/deep") == ToolResult("call_1", "Deep text.")
    assert await file_of(shelf, "./scripts//run") == ToolResult("call_1", "echo hi")
    assert await file_of(shelf, "assets/empty") == ToolResult("call_1", "")


async def test_long_text_comes_in_pages_that_join_without_a_gap(shelf: SkillFolders) -> None:
    first = str((await called(shelf, "load_skill", {"name": "beta"})).output)
    page, _, note = first.rpartition("\n")
    assert (len(page), note.endswith(f"characters more: read on with offset {PAGE}]")) == (PAGE, True)
    rest = str((await called(shelf, "load_skill", {"name": "beta", "offset": PAGE})).output)
    assert (page + rest).startswith('<skill name="beta">\n' + ("Step. " * 3_000).strip() + "\n</skill>")
    assert (await file_of(shelf, "scripts/run", offset=5.0)).output == "hi"
    assert (await file_of(shelf, "scripts/run", offset=500)).output == ""


@pytest.mark.parametrize(
    "path",
    [
        "../../secret.txt",
        "scripts/../../../secret.txt",
        "../beta/SKILL.md",
        "/etc/passwd",
        "//etc/passwd",
        "..",
        ".",
        "",
        "scripts/run\0.txt",
        "~/.bashrc",
        "%2e%2e/%2e%2e/secret.txt",
        "..\\..\\secret.txt",
        "a" * 5_000,
        "a/" * 3_000,
        "missing",
        "\ud800",
    ],
)
async def test_path_that_is_no_file_of_the_skill_is_refused(shelf: SkillFolders, path: str) -> None:
    assert "skill" in await refused(shelf, path)


async def test_links_lead_nowhere(shelf: SkillFolders, tmp_path: Path) -> None:
    place = shelf.definitions["alpha"].path
    (place / "file").symlink_to(tmp_path / "secret.txt")
    (place / "folder").symlink_to(tmp_path)
    (place / "inner").symlink_to("scripts/run")
    for path in ("file", "folder/secret.txt", "inner"):
        assert "leads over a link" in await refused(shelf, path)
    listed = str((await called(shelf, "load_skill", {"name": "alpha"})).output)
    assert not any(name in listed.split("Files")[1] for name in ("file\n", "folder", "inner"))


async def test_skill_folder_that_has_become_a_link_is_not_followed(shelf: SkillFolders, tmp_path: Path) -> None:
    place = shelf.definitions["alpha"].path
    place.rename(tmp_path / "moved")
    (tmp_path / "moved" / "secret.txt").write_text("secret")
    place.symlink_to(tmp_path / "moved")
    assert "leads over a link" in await refused(shelf, "secret.txt")


async def test_only_regular_text_files_of_a_sane_size_are_read(shelf: SkillFolders) -> None:
    place = shelf.definitions["alpha"].path
    os.mkfifo(place / "pipe")
    (place / "image.png").write_bytes(b"\x89PNG\r\n\x1a\n\xff")
    (place / "zeros").write_bytes(b"a\0b")
    (place / "huge").write_bytes(b"x" * (MOST_BYTES + 1))
    assert "not a regular file" in await refused(shelf, "pipe")
    assert "not a regular file" in await refused(shelf, "scripts")
    assert "binary, 9 bytes" in await refused(shelf, "image.png")
    assert "binary" in await refused(shelf, "zeros")
    assert f"more than the {MOST_BYTES}" in await refused(shelf, "huge")


async def test_skill_that_is_gone_is_an_error_that_names_the_others(shelf: SkillFolders) -> None:
    hands = SkillTools(lambda: {"beta": shelf.definitions["beta"]})
    [load, _] = hands.definitions()
    context = CallContext("resp_1", load, lambda text: None)
    result = await hands.execute(ToolCall("call_1", "load_skill", "", {"name": "alpha"}), context)
    assert result == ToolResult("call_1", "there is no skill `alpha`; there are: beta", is_error=True)


def test_tools_are_offered_for_some_skills_for_all_or_not_at_all(shelf: SkillFolders) -> None:
    hands = SkillTools(lambda: shelf.definitions)
    load, read = hands.definitions(["beta", "unknown"])
    assert [tool.name for tool in (load, read)] == ["load_skill", "read_skill_file"]
    assert {(tool.kind, tool.effects, tool.repeatable) for tool in (load, read)} == {("builtin", ("read",), True)}
    for tool in (load, read):
        assert Validator(tool).errors({"name": "alpha", "path": "x"}) != []
    assert Validator(load).errors({"name": "beta"}) == []
    assert Validator(hands.definitions()[0]).errors({"name": "alpha"}) == []
    assert hands.definitions([]) == ()
    assert SkillTools(dict).definitions() == ()


def test_listing_ends_at_its_limit_and_leaves_out_what_is_hidden(shelf: SkillFolders) -> None:
    place = shelf.definitions["alpha"].path
    (place / ".git").mkdir()
    (place / ".git" / "config").write_text("")
    (place / ".env").write_text("")
    assert list_files(place) == ("SKILL.md", "assets/empty", "references/more/deep", "scripts/run")
    assert list_files(place, 2) == ("SKILL.md", "assets/empty")
