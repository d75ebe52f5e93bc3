"""A package that is installed beside Mainspring adds a part: a tool, a route, a command and a setting, in files of its own."""

import json
import sys
from pathlib import Path
from urllib.request import urlopen

import pytest
from tests.kit import processes
from tests.kit.processes import Ended
from tests.server.process import serving

PART = '''
from msgspec import Struct

from mainspring.parts import Command, Part, PartContents, ServedPart


class GreeterSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """How people are greeted."""

    word: str = "Hello"
    """What is said first."""


def build(settings):
    from greeter_tool import Greet
    from greeter_routes import serve

    return PartContents(tools=(Greet(settings.word),), serve=lambda host: serve(settings.word))


PART = Part(
    name="greeter",
    settings=GreeterSettings,
    build=build,
    commands=(Command("greet", "greeter_commands:greet", "Greets somebody.", "Run"),),
)
'''
TOOL = """
from mainspring.tools.contract import ToolResult


class Greet:
    name = "greet"
    description = "Greets somebody."
    parameters_schema = {"type": "object", "properties": {"who": {"type": "string"}}, "required": ["who"]}

    def __init__(self, word):
        self._word = word

    async def execute(self, params, context):
        return ToolResult.ok(f"{self._word}, {params['who']}!")
"""
ROUTES = '''
from mainspring.http.endpoints import PUBLIC, Endpoint
from mainspring.http.faults import json_response
from mainspring.parts import ServedPart


def serve(word):
    async def show(request):
        """The word that people are greeted with."""
        return json_response({"word": word})

    return ServedPart((Endpoint("GET", "/v1/greeting", show, PUBLIC),))
'''
COMMANDS = '''
def greet(who: str) -> int:
    """Greets somebody."""
    print(f"Hello, {who}!")
    return 0
'''


@pytest.fixture
def installed(tmp_path: Path) -> dict[str, str]:
    """A package with a part, and the environment in which it is installed."""
    packages = tmp_path / "packages"
    about = packages / "greeter-1.0.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: greeter\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[mainspring.parts]\ngreeter = greeter_part:PART\n")
    files = {"greeter_part": PART, "greeter_tool": TOOL, "greeter_routes": ROUTES, "greeter_commands": COMMANDS}
    for name, text in files.items():
        (packages / f"{name}.py").write_text(text)
    return {"PYTHONPATH": str(packages)}


def run(env: dict[str, str], folder: Path, *arguments: str) -> Ended:
    command = [sys.executable, "-m", "mainspring", *arguments]
    return processes.run(command, cwd=folder, env={"PATH": "/usr/bin:/bin", **env})


def fail_to_serve(env: dict[str, str], folder: Path) -> str:
    """What is said by a server that does not start."""
    script = folder / "script.json"
    script.write_text('{"turns": [{"say": "Hi."}]}')
    done = run(env, folder, "serve", "--port", "0", "--model", f"scripted:{script}")
    assert done.returncode == 2
    assert "internal error" not in done.stderr
    assert "Traceback" not in done.stderr
    return done.stderr


def test_its_command_is_listed_and_runs(installed: dict[str, str], tmp_path: Path) -> None:
    assert "Greets somebody." in run(installed, tmp_path, "--help").stdout
    assert run(installed, tmp_path, "greet", "Ada").stdout == "Hello, Ada!\n"


def test_its_tool_route_and_setting_are_served(installed: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "mainspring.toml").write_text('[greeter]\nword = "Salve"\n')
    turns: list[dict[str, object]] = [
        {"calls": [{"name": "greet", "arguments": {"who": "Ada"}}]},
        {"say": "Done.", "expect": "Salve, Ada!"},
    ]
    with serving(tmp_path, turns, env=installed) as served:
        with urlopen(f"{served.url}/greeting", timeout=60) as reply:
            assert json.load(reply) == {"word": "Salve"}
        with urlopen(f"{served.url.removesuffix('/v1')}/openapi.json", timeout=60) as reply:
            assert "/v1/greeting" in json.load(reply)["paths"]


def test_a_mistake_in_its_table_is_told_with_its_line(installed: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "mainspring.toml").write_text('[greeter]\nwrod = "Salve"\n')
    told = fail_to_serve(installed, tmp_path)
    assert "mainspring.toml:2:" in told
    assert "did you mean `word`" in told


def test_a_part_that_cannot_be_loaded_is_named_with_its_package(installed: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "packages" / "greeter_part.py").write_text("import nowhere_to_be_found\n")
    told = fail_to_serve(installed, tmp_path)
    assert "`greeter`" in told
    assert "nowhere_to_be_found" in told


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (('word: str = "Hello"', "word: str"), "needs a default"),
        (('name="greeter"', 'name="memory"'), "[memory]"),
        (('Command("greet"', 'Command("serve"'), "`serve`"),
        (("return PartContents(", "return None and PartContents("), "not a `PartContents`"),
        (("    return PartContents(", "    1 / 0\n    return PartContents("), "ZeroDivisionError"),
        (("tools=(Greet(settings.word),), ", "tools=(Greet(settings.word), Greet(settings.word)), "), "two tools are called"),
        (("serve=lambda host: serve(settings.word)", "serve=lambda host: 1 / 0"), "the part `greeter` cannot be served"),
        (("serve=lambda host: serve(settings.word)", "lifespan=lambda host: 1 / 0"), "the part `greeter` cannot start"),
        (
            ("serve=lambda host: serve(settings.word)", "serve=lambda host: ServedPart((), lambda: 1 / 0)"),
            "the part `greeter` cannot start: ZeroDivisionError",
        ),
    ],
)
def test_a_mistake_of_a_part_is_told_in_a_sentence(
    change: tuple[str, str], told: str, installed: dict[str, str], tmp_path: Path
) -> None:
    part = tmp_path / "packages" / "greeter_part.py"
    part.write_text(PART.replace(*change))
    assert told in fail_to_serve(installed, tmp_path)


@pytest.mark.parametrize(
    ("path", "other"),
    [
        ("/v1/greeting", "the part `greeter` GET /v1/greeting"),
        ("/v1/{word}", "Mainspring GET /v1/"),
        ("/v1/{rest:path}", "Mainspring GET /v1/"),
        ("/{version}/greeting", "the part `greeter` GET /v1/greeting"),
        ("/v1/responses/{id}", "Mainspring GET /v1/responses/{response_id}"),
    ],
)
def test_a_route_that_would_hide_another_owners_is_refused(
    path: str, other: str, installed: dict[str, str], tmp_path: Path
) -> None:
    packages = tmp_path / "packages"
    points = packages / "greeter-1.0.dist-info" / "entry_points.txt"
    points.write_text(f"{points.read_text()}waver = waver_part:PART\n")
    (packages / "waver_part.py").write_text(
        f"""
from greeter_routes import PUBLIC, Endpoint, ServedPart
from mainspring.parts import Part, PartContents


async def wave(request): ...


def build(settings):
    return PartContents(serve=lambda host: ServedPart((Endpoint("GET", "{path}", wave, PUBLIC),)))


PART = Part(name="waver", build=build)
"""
    )
    assert f"the part `waver` serves GET {path}, and {other}" in fail_to_serve(installed, tmp_path)
