"""Definitions of every kind are read again by a running engine: changed, broken, mended, removed."""

from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from msgspec import Struct
from tests.skills.shelf import put

from mainspring import Engine, tool
from mainspring.core.errors import NotFound
from mainspring.core.items import ToolDefinition
from mainspring.definitions.folder import KEPT
from mainspring.providers.scripted import Scripted, say
from mainspring.tools.registry import Registry


@tool
def look() -> str:
    """As the code says."""
    return "nothing"


class Kind(Struct, frozen=True):
    """`write` writes a definition that says so; `tell` finds out what the engine goes by."""

    file: str
    write: Callable[[Path, str], object]
    tell: Callable[[Engine, Scripted], Awaitable[str]]


async def tell_agent(engine: Engine, script: Scripted) -> str:
    await engine.agents.invoke("bee", {})
    return str(script.requests[-1].instructions)


async def tell_skill(engine: Engine, script: Scripted) -> str:
    await engine.run("Hello.")
    return str(script.requests[-1].instructions)


async def tell_workflow(engine: Engine, script: Scripted) -> str:
    return str((await (await engine.workflows.start("flow", {})).wait()).outputs)


async def tell_tool(engine: Engine, script: Scripted) -> str:
    await engine.run("Hello.")
    return " ".join([each.description for each in script.requests[-1].tools if isinstance(each, ToolDefinition)])


def write_agent(file: Path, text: str) -> None:
    file.write_text(f"name: bee\nversion: 1.0.0\nrole: qa\ndescription: {text}\n")


def write_workflow(file: Path, text: str) -> None:
    file.write_text(f"name: flow\nsteps: [{{id: a, action: transform, value: 1}}]\noutputs:\n  text: {text}\n")


def write_tool(file: Path, text: str) -> None:
    file.write_text(f"name: look\ndescription: {text}\n")


def write_skill(file: Path, text: str) -> None:
    put(file.parent.parent, "style")
    file.write_text(f"---\nname: style\ndescription: {text}\n---\n")


KINDS = {
    "agents": Kind("bee.yaml", write_agent, tell_agent),
    "skills": Kind("style/SKILL.md", write_skill, tell_skill),
    "workflows": Kind("flow.yml", write_workflow, tell_workflow),
    "tools": Kind("look.yaml", write_tool, tell_tool),
}


@pytest.mark.parametrize("name", KINDS)
async def test_a_running_engine_goes_by_the_last_version_that_is_right(
    name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    kind, registry = KINDS[name], Registry([look])
    file = tmp_path / kind.file
    kind.write(file, "first")
    folders = {} if name == "tools" else {name: [tmp_path]}
    if name == "tools":
        registry.load_definitions(tmp_path)
    script = Scripted(*[say("Done.") for _ in range(8)], chunk=0)
    async with Engine(script, tools=registry, **folders) as engine:  # type: ignore[arg-type]
        assert "first" in await kind.tell(engine, script)
        kind.write(file, "the second one")
        assert "the second one" in await kind.tell(engine, script)
        assert caplog.messages == []
        kind.write(file, "x\nname: twice")
        for _ in range(2):
            assert "the second one" in await kind.tell(engine, script)
        [told] = [message for message in caplog.messages if message.endswith(KEPT)]
        assert f"{file}:" in told
        assert "`name` is there twice" in told
        kind.write(file, "mended")
        assert "mended" in await kind.tell(engine, script)
        file.unlink()
        try:
            assert "mended" not in await kind.tell(engine, script)
        except NotFound:
            assert name in ("agents", "workflows")


async def test_a_skill_that_comes_later_is_offered(tmp_path: Path) -> None:
    script = Scripted(say("Done."), say("Done."), chunk=0)
    async with Engine(script, skills=[tmp_path]) as engine:
        await engine.run("Hello.")
        put(tmp_path, "style")
        await engine.run("Hello.")
    assert [len(request.tools) for request in script.requests] == [0, 2]


async def test_a_tool_blocked_while_the_engine_runs_is_not_performed(tmp_path: Path) -> None:
    registry = Registry([look])
    registry.load_definitions(tmp_path)
    script = Scripted(say("Done."), say("Done."), chunk=0)
    async with Engine(script, tools=registry) as engine:
        await engine.run("Hello.")
        (tmp_path / "look.yaml").write_text("name: look\nstatus: blocked\n")
        await engine.run("Hello.")
    assert [len(request.tools) for request in script.requests] == [1, 0]
    assert registry.status("look") == "blocked"


@pytest.mark.parametrize("kind", ["agent", "workflow"])
async def test_the_file_of_a_definition_is_told_as_it_was_written_but_for_secrets(tmp_path: Path, kind: str) -> None:
    folder = tmp_path / "made"
    folder.mkdir()
    write, name = (write_agent, "bee") if kind == "agent" else (write_workflow, "flow")
    file = folder / "made.yaml"
    write(file, "new # sk-proj-abcdefghijklmnopqrst0123456789")
    async with Engine(Scripted(), agents=[folder] * (kind == "agent"), workflows=[folder] * (kind == "workflow")) as engine:
        read_source = engine.agents.registry.read_source if kind == "agent" else engine.workflows.folders.read_source
        source = read_source(name)
        assert (source.file, "# [redacted]" in source.text, "sk-proj" in source.text) == ("made.yaml", True, False)
        file.write_text(file.read_text().replace("new", "newer"))
        assert "newer" in read_source(name).text
        with pytest.raises(NotFound):
            read_source("other")
