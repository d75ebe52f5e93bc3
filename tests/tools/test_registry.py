"""The registry: what is known of a tool, who says it, and the one way in which it is performed."""

import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import anyio
import msgspec
import pytest
from tests.kit.waiting import GROWING, PATIENCE

from mainspring import tool
from mainspring.app.build import compose_engine
from mainspring.app.engine import Engine
from mainspring.app.settings import Settings
from mainspring.core.errors import DelegateToClient, InvalidRequest, NotFound
from mainspring.core.items import Effect, FunctionCallOutput, InputText, Json, ToolDefinition
from mainspring.core.run import Run
from mainspring.ports import CallContext, ToolCall, ToolExecutor
from mainspring.ports import ToolResult as CallResult
from mainspring.providers.scripted import Scripted, call, calls, say
from mainspring.tools.contract import SchemaAwareTool, Tool, ToolContext, ToolResult
from mainspring.tools.entries import ToolEntry
from mainspring.tools.registry import Registry

CITY: Json = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer", "maximum": 7}},
    "required": ["city"],
}
HERE = ToolContext()


class Plain:
    """A tool with nothing but what every tool has."""

    name = "plain"
    description = "Answers."

    async def execute(self, params: Json, context: ToolContext) -> ToolResult:
        return ToolResult.ok(f"got {msgspec.json.encode(params).decode()}")


class Weather:
    name = "weather"
    description = "Tells the weather."
    parameters_schema = CITY
    effects: tuple[Effect, ...] = ("network",)
    operation_effects: dict[str, tuple[Effect, ...]] = {"peek": ("read",)}  # noqa: RUF012
    repeatable = True
    timeout = 30.0
    result_limit = 20

    def __init__(self) -> None:
        self.asked: list[Json] = []

    async def execute(self, params: Json, context: ToolContext) -> ToolResult:
        self.asked.append(params)
        context.progress("looking")
        return ToolResult.ok(f"sunny in {params['city']}")


@pytest.mark.requirement("C13")
def test_a_tool_is_what_has_a_name_a_description_and_execute() -> None:
    assert isinstance(Plain(), Tool)
    assert not isinstance(Plain(), SchemaAwareTool)
    assert isinstance(Weather(), SchemaAwareTool)
    assert not isinstance(print, Tool)


@pytest.mark.requirement("C14")
def test_a_result_is_success_with_output_or_failure_with_an_error() -> None:
    assert ToolResult.ok("fine") == ToolResult(success=True, output="fine", error="")
    assert ToolResult.fail("broken") == ToolResult(success=False, output="", error="broken")
    assert ToolResult.ok((InputText("fine"),)).output == (InputText("fine"),)
    with pytest.raises(AttributeError):
        ToolResult.ok("fine").output = "other"  # type: ignore[misc]


@pytest.mark.requirement("C15")
async def test_a_tool_is_told_its_scopes_its_allowlists_and_its_directory(tmp_path: Path) -> None:
    told: list[ToolContext] = []

    class Curious(Plain):
        async def execute(self, params: Json, context: ToolContext) -> ToolResult:
            told.append(context)
            return ToolResult.ok()

    context = ToolContext(
        user_scopes=("tools:execute",),
        command_allowlist=("ls",),
        path_allowlist=("src",),
        domain_allowlist=("example.org",),
        working_dir=tmp_path,
    )
    registry = Registry([Curious()], context=context)
    assert (await registry.validated_execute("plain", {}, context)).success
    heard: list[str] = []
    await registry.execute(ToolCall("call_1", "plain", "{}"), CallContext("resp_1", ToolDefinition("plain"), heard.append))
    direct, through_engine = told
    assert direct == context
    assert (through_engine.run_id, through_engine.working_dir) == ("resp_1", tmp_path)
    assert through_engine.path_allowlist == ("src",)
    through_engine.progress("hello")
    assert heard == ["hello"]
    with pytest.raises(AttributeError):
        direct.working_dir = Path("/")  # type: ignore[misc]


@pytest.mark.requirement("C15")
@pytest.mark.parametrize(
    ("scopes", "is_permitted"),
    [
        (None, True),
        (("tools:execute",), True),
        (("*",), True),
        (("tools:execute:plain",), True),
        ((), False),
        (("tools:execute:other",), False),
        (("responses",), False),
    ],
)
async def test_the_scopes_of_a_context_hold(scopes: tuple[str, ...] | None, is_permitted: bool) -> None:
    result = await Registry([Plain()]).validated_execute("plain", {}, ToolContext(user_scopes=scopes))
    assert result.success == is_permitted


@pytest.mark.requirement("C15")
async def test_a_tool_that_runs_programs_out_of_sight_is_not_permitted_where_only_some_are() -> None:
    class Runner(Plain):
        effects = ("execute",)

    context = ToolContext(command_allowlist=("ls",))
    assert not (await Registry([Runner()]).validated_execute("plain", {}, context)).success
    assert (await Registry([Plain()]).validated_execute("plain", {}, context)).success


@pytest.mark.requirement("C12")
def test_a_tool_is_described_in_openai_form_and_only_once() -> None:
    registry = Registry([Weather(), Plain()])
    assert registry.describe("weather") == {"name": "weather", "description": "Tells the weather.", "parameters": CITY}
    assert registry.describe("weather") is registry.describe("weather")
    assert registry.definitions[0] is registry.definitions[0]
    assert registry.describe("plain")["parameters"] == {"type": "object", "properties": {}}
    with pytest.raises(NotFound, match=r"There is no tool `other`\. Available: `weather`, `plain`\."):
        registry.describe("other")


def test_a_definition_says_what_the_tool_does() -> None:
    assert Registry([Weather()]).definitions == (
        ToolDefinition(
            "weather",
            "Tells the weather.",
            CITY,
            kind="builtin",
            repeatable=True,
            effects=("network",),
            timeout=30.0,
            operations={"peek": ("read",)},
        ),
    )


@pytest.mark.requirement("C16")
def test_the_schema_of_the_entry_goes_before_that_of_the_tool_and_that_before_none() -> None:
    other: Json = {"type": "object", "properties": {"town": {"type": "string"}}}
    registry = Registry([Plain()])
    registry.register(Weather(), ToolEntry(name="weather", schema=other))
    assert [definition.parameters for definition in registry.definitions] == [None, other]
    assert Registry([Weather()]).definitions[0].parameters == CITY


@pytest.mark.requirement("C16")
async def test_a_call_is_held_against_the_schema_in_force() -> None:
    strict: Json = {"type": "object", "properties": {"city": {"enum": ["Paris"]}}}
    registry = Registry()
    registry.register(Weather(), ToolEntry(name="weather", schema=strict))
    assert (await registry.validated_execute("weather", {"city": "Paris"}, HERE)).success
    assert (await registry.validated_execute("weather", {"city": "Rome"}, HERE)).error == (
        'Invalid arguments for `weather`: city: "Rome" is not one of "Paris".'
    )


@pytest.mark.requirement("C11")
async def test_invalid_arguments_fail_with_every_error_and_reach_no_code() -> None:
    weather = Weather()
    result = await Registry([weather]).validated_execute("weather", {"days": 9, "city": 3}, HERE)
    assert not result.success
    assert result.error.startswith("Invalid arguments for `weather`: ")
    assert {problem.partition(":")[0] for problem in result.error.partition(": ")[2].split("; ")} == {"city", "days"}
    assert weather.asked == []


@pytest.mark.requirement("C11")
async def test_a_missing_tool_is_a_failure_that_names_those_there_are() -> None:
    result = await Registry([Plain()]).validated_execute("plane", {}, HERE)
    assert result == ToolResult.fail("There is no tool `plane`. Available: `plain`.")


async def test_whatever_a_tool_raises_is_a_failure_of_its_call() -> None:
    def divide() -> float:
        return 1 / 0

    async def pass_on() -> None:
        raise DelegateToClient("yours")

    class Odd(Plain):
        async def execute(self, params: Json, context: ToolContext) -> ToolResult:
            return "text"  # type: ignore[return-value]

    registry = Registry([divide, pass_on, Odd()])
    assert (await registry.validated_execute("divide", {}, HERE)).error == (
        "The tool `divide` failed: ZeroDivisionError: division by zero"
    )
    assert "wants the client" in (await registry.validated_execute("pass_on", {}, HERE)).error
    assert (await registry.validated_execute("plain", {}, HERE)).error == ("The tool `plain` returned str instead of a result.")


async def test_a_blocking_function_is_abandoned_when_its_time_is_up() -> None:
    begun, go_on, ended = threading.Event(), threading.Event(), threading.Event()

    def block() -> None:
        begun.set()
        go_on.wait(PATIENCE)
        ended.set()

    for seconds in GROWING:
        registry = Registry()
        registry.register(block, ToolEntry(name="block", timeout=seconds))
        result = await registry.validated_execute("block", {}, HERE)
        assert result.error == f"The tool `block` was stopped: it took longer than {seconds:g} s."
        if begun.is_set():
            break
    assert not ended.is_set()
    go_on.set()
    assert await anyio.to_thread.run_sync(ended.wait, PATIENCE)


async def test_a_long_output_is_cut_to_the_limit_of_the_tool() -> None:
    def talk() -> object:
        return InputText("y" * 30)

    registry = Registry([Weather()])
    registry.register(talk, ToolEntry(name="talk", result_limit=5))
    result = await registry.validated_execute("weather", {"city": "x" * 30}, HERE)
    assert result.output == f"sunny in {'x' * 11}\n[... 19 characters left out ...]"
    talked = await registry.validated_execute("talk", {}, HERE)
    assert talked.output == (InputText("yyyyy\n[... 25 characters left out ...]"),)


@pytest.mark.parametrize(
    ("tool", "told"),
    [
        (Weather, "`Weather` is a class; register an instance of it: Weather()"),
        (3, "int is neither a tool nor a function"),
        (type("Bad", (Plain,), {"name": "no good"})(), "a tool cannot be called `no good`"),
        (type("Bad", (Plain,), {"timeout": 0})(), "tool `plain`: timeout must be above 0"),
        (type("Bad", (Plain,), {"effects": ("reading",)})(), "tool `plain`: Invalid enum value 'reading'"),
    ],
)
def test_what_cannot_be_a_tool_is_refused(tool: Tool, told: str) -> None:
    registry = Registry()
    with pytest.raises((TypeError, ValueError)) as caught:
        registry.register(tool)
    assert str(caught.value).startswith(told)
    assert registry.entries == ()


def test_a_name_is_taken_once_and_an_entry_fits_its_tool() -> None:
    registry = Registry([Plain()])
    with pytest.raises(ValueError, match="two tools are called `plain`"):
        registry.register(Plain())
    with pytest.raises(ValueError, match="the entry of tool `weather` is for `wether`"):
        registry.register(Weather(), ToolEntry(name="wether"))


async def test_a_blocked_tool_is_neither_shown_nor_performed() -> None:
    weather = Weather()
    registry = Registry()
    registry.register(weather, ToolEntry(name="weather", status="blocked", reason="it lies"))
    assert registry.definitions == ()
    assert registry.status("weather") == "blocked"
    told = "The tool `weather` is not performed: its registry entry has the status `blocked`: it lies."
    assert await registry.validated_execute("weather", {"city": "Paris"}, HERE) == ToolResult.fail(told)
    # A run that began before it was blocked still has its definition.
    definition = ToolDefinition("weather", kind="builtin")
    executor: ToolExecutor = registry
    assert executor.can_execute(definition)
    made = ToolCall("call_1", "weather", "{}", {"city": "Paris"})
    assert await executor.execute(made, CallContext("resp_1", definition, print)) == CallResult("call_1", told, is_error=True)
    assert weather.asked == []


def test_a_deprecated_tool_says_so() -> None:
    registry = Registry()
    registry.register(Weather(), ToolEntry(name="weather", status="deprecated", reason="use forecast"))
    assert registry.definitions[0].description == "Deprecated: use forecast. Tells the weather."
    assert registry.describe("weather")["description"] == "Deprecated: use forecast. Tells the weather."


def write(folder: Path, **files: str) -> Path:
    for name, text in files.items():
        (folder / f"{name}.yaml").write_text(text)
    return folder


DEFINED = "name: weather\nstatus: blocked\nreason: under review\nowner: ops\neffects: [network, read]\ntimeout: 5\npolls: true\n"


@pytest.mark.parametrize("code_first", [True, False])
def test_a_definition_file_and_code_find_each_other_in_either_order(tmp_path: Path, code_first: bool) -> None:
    registry = Registry([Weather()] if code_first else [])
    assert registry.load_definitions(write(tmp_path, weather=DEFINED)) == ("weather",)
    if not code_first:
        assert registry.get("weather") is None
        assert registry.definitions == ()
        registry.register(Weather(), ToolEntry(name="weather", status="active", version="1.2", owner="dev"))
    (entry,) = registry.entries
    assert (entry.status, entry.reason, entry.owner, entry.timeout) == ("blocked", "under review", "ops", 5.0)
    assert (entry.description, entry.schema, entry.repeatable) == ("Tells the weather.", CITY, True)
    assert (entry.polls, [tool.polls for tool in Registry([Weather()]).definitions]) == (True, [False])
    assert entry.effects == ("network", "read")


def test_effects_that_the_operator_names_are_those_of_every_operation(tmp_path: Path) -> None:
    registry = Registry([Weather()])
    registry.load_definitions(write(tmp_path, weather="name: weather\neffects: [destructive]\n"))
    (definition,) = registry.definitions
    assert (definition.effects, definition.operations) == (("destructive",), {})


async def test_a_tool_that_is_only_defined_has_no_code_to_perform(tmp_path: Path) -> None:
    registry = Registry()
    registry.load_definitions(write(tmp_path, two="name: a\n---\nname: b\nsource: elsewhere\n"))
    assert [(entry.name, entry.source) for entry in registry.entries] == [("a", str(tmp_path / "two.yaml")), ("b", "elsewhere")]
    assert not registry.can_execute(ToolDefinition("a", kind="builtin"))
    result = await registry.validated_execute("b", {}, HERE)
    assert "defined in elsewhere, but no code is registered for it" in result.error


def test_every_error_in_definition_files_is_told_with_its_line_and_nothing_is_taken(tmp_path: Path) -> None:
    write(
        tmp_path,
        a="name: good\n",
        b="name: bad\nversion: 1.0\n",
        c="# A comment.\nname: bad\neffects:\n  - read\n  - reading\n",
        d="name: bad\n\nstate: blocked\n",
        e="name: [\n",
        f="- name: list\n",
        g="name: no good\n",
        h="name: good\n",
        i="description: nameless\n",
        j="name: twice\nstatus: blocked\nreason: unsafe\nstatus: active\n---\ndescription: the second document\n",
    )
    registry = Registry()
    with pytest.raises(InvalidRequest) as caught:
        registry.load_definitions(tmp_path)
    for told in (
        "b.yaml:2: `version`: ",
        "c.yaml:5: `effects`: it cannot be `reading`; did you mean `read`?",
        "d.yaml:3: unknown key `state`; did you mean `status`?",
        "e.yaml:2: this is not YAML: ",
        "f.yaml:1: a mapping is needed here",
        "g.yaml:1: `name`: it cannot be `no good`",
        f"h.yaml:1: the tool `good` is defined at {tmp_path}/a.yaml:1",
        "i.yaml:1: `name` is missing",
        "j.yaml:4: `status` is there twice",
        "j.yaml:6: `name` is missing",
    ):
        assert told in caught.value.message
    assert registry.entries == ()


def test_a_definition_is_given_once_and_must_be_one_of_a_tool(tmp_path: Path) -> None:
    registry = Registry()
    registry.load_definitions(write(tmp_path, a="name: a\n"))
    with pytest.raises(InvalidRequest, match="load each folder once"):
        registry.load_definitions(tmp_path)
    with pytest.raises(InvalidRequest, match="there is no folder"):
        registry.load_definitions(tmp_path / "missing")
    for text, told in (
        ("name: a\n", "x.yaml:1: the tool `a` is defined at"),
        ("name: c\n---\nname: c\n", "x.yaml:3: tool `c` is defined twice"),
        ("name: c\ntimeout: -1\n", "x.yaml:1: tool `c`: timeout must be above 0"),
    ):
        (tmp_path / "more").mkdir(exist_ok=True)
        with pytest.raises(InvalidRequest, match=told):
            registry.load_definitions(write(tmp_path / "more", x=text))
    assert [entry.name for entry in registry.entries] == ["a"]


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An installed package that offers tools, good and bad."""
    (tmp_path / "my_offers.py").write_text(
        "from mainspring import tool\n"
        "from mainspring.tools.contract import ToolResult\n"
        "class Clock:\n"
        "    name, description = 'clock', 'Tells the time.'\n"
        "    async def execute(self, params, context):\n"
        "        return ToolResult.ok('noon')\n"
        "ready = Clock()\n"
        "ready.name = 'ready_clock'\n"
        "@tool\n"
        "def add(a: int, b: int) -> int:\n"
        "    return a + b\n"
        "class Needy(Clock):\n"
        "    def __init__(self, key): ...\n"
    )
    info = tmp_path / "my_offers-1.2.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: my-offers\nVersion: 1.2\n")
    (info / "entry_points.txt").write_text(
        "[mainspring.tools]\nadd = my_offers:add\nclock = my_offers:Clock\ngone = my_offers:gone\n"
        "missing = my_nothing:x\nneedy = my_offers:Needy\nready = my_offers:ready\ntwice = my_offers:Clock\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    yield
    sys.modules.pop("my_offers", None)


@pytest.mark.requirement("C17")
@pytest.mark.usefixtures("package")
async def test_tools_of_installed_packages_are_found_and_broken_ones_reported() -> None:
    registry = Registry()
    discovery = registry.discover()
    assert discovery.found == ("add", "clock", "ready_clock")
    assert [problem.split(" is no tool: ")[0] for problem in discovery.problems] == [
        "entry point `gone` (my_offers:gone)",
        "entry point `missing` (my_nothing:x)",
        "entry point `needy` (my_offers:Needy)",
        "entry point `twice` (my_offers:Clock)",
    ]
    assert {(entry.source, entry.version) for entry in registry.entries} == {("my-offers", "1.2")}
    assert (await registry.validated_execute("add", {"a": 1, "b": 2}, HERE)).output == "3"
    assert (await registry.validated_execute("clock", {}, HERE)).output == "noon"
    assert registry.discover("some.other.group").found == ()


async def outputs(script: Scripted, registry: Registry) -> tuple[Run, list[tuple[bool, object]]]:
    async with Engine(script, tools=registry, preset="iterative", instructions="Go.") as engine:
        run = await engine.run("Go.", confirm=None)
    return run, [(item.is_error is True, item.output) for item in run.output if isinstance(item, FunctionCallOutput)]


@pytest.mark.requirement("C-T6", "C-T7", "C-T9", "C-T10")
async def test_the_engine_performs_registered_tools_and_goes_on_after_every_failure() -> None:
    weather = Weather()
    script = Scripted(
        calls(call("weather", city="Rome"), call("weather", city="Oslo"), call("weather", city=1), call("whether")),
        say("Done.", expect="sunny in Oslo"),
    )
    run, answers = await outputs(script, Registry([weather]))
    assert run.text == "Done."
    assert weather.asked == [{"city": "Rome"}, {"city": "Oslo"}]
    assert answers == [
        (False, "sunny in Rome"),
        (False, "sunny in Oslo"),
        (True, 'Invalid arguments for `weather`: city: 1 is not of type "string".'),
        (True, "There is no tool `whether`. Available: weather."),
    ]


def test_importing_the_registry_is_light() -> None:
    heavy = ("httptools", "yarl", "yaml", "jsonschema_rs", "mainspring.tools.builtin.web_fetch")
    code = f"import sys, mainspring.tools.registry; print([name for name in {heavy!r} if name in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


@pytest.mark.requirement("C17")
@pytest.mark.usefixtures("package")
@pytest.mark.parametrize("is_asked", [True, False])
def test_the_settings_say_whether_tools_of_installed_packages_are_offered(is_asked: bool) -> None:
    engine = compose_engine(Settings(discover=is_asked), Scripted(), "scripted", database=None)
    assert ("ready_clock" in [tool.name for tool in engine.definitions]) is is_asked


@pytest.mark.parametrize("folder", [None, "no/such/folder"])
def test_file_ops_without_its_folder_is_refused_at_the_start(folder: str | None) -> None:
    with pytest.raises(InvalidRequest, match=r"set `working_dir` in mainspring\.toml"):
        compose_engine(Settings(builtins=("file_ops",), working_dir=folder), Scripted(), "scripted", database=None)


@pytest.mark.parametrize("harm", ["folder", "empty", "comment", "link", "directory"])
async def test_a_blocked_tool_stays_blocked_when_its_definition_cannot_be_read(harm: str, tmp_path: Path) -> None:
    """Only a file that is taken away, from a folder that is there, lifts what it says."""

    @tool
    def zap() -> str:
        """Zaps."""
        return "zapped"

    folder = tmp_path / "defs"
    folder.mkdir()
    file = folder / "zap.yaml"
    file.write_text("name: zap\nstatus: blocked\n")
    registry = Registry([zap])
    registry.load_definitions(folder)
    assert registry.status("zap") == "blocked"
    match harm:
        case "folder":
            folder.rename(tmp_path / "gone")
        case "empty" | "comment":
            file.write_text("" if harm == "empty" else "# later\n")
        case _:
            file.unlink()
            if harm == "link":
                file.symlink_to(tmp_path / "nowhere")
            else:
                file.mkdir()
    assert registry.status("zap") == "blocked"
    if harm == "empty":
        file.unlink()
        assert registry.status("zap") == "active"
