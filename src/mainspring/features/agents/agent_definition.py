"""An agent as its file defines it: YAML or JSON, one agent each.

    name: code-review
    version: 1.0.0
    role: reviewer
    description: Reads a change and says what is wrong with it.
    inputs:
      path: {type: string, required: true}
    outputs:
      findings: {type: array}
    tools: [file_ops]
    autonomy_level: read-only

Every mistake is reported with file and line. What a definition says about tools, commands, hosts and files is binding:
`make_charter` turns it into data that the order for a run carries.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from msgspec import UNSET, Meta, Struct
from msgspec.structs import force_setattr

from mainspring.core.autonomy import Autonomy, Level
from mainspring.core.delegation import TOOL_PREFIX
from mainspring.core.errors import InvalidRequest
from mainspring.core.items import Json
from mainspring.core.spec import Charter
from mainspring.definitions.json_schema import build_schema
from mainspring.definitions.parameters import InputParameter, find_flaw, is_of_type
from mainspring.definitions.parsed_file import ParsedFile, hint
from mainspring.definitions.reader import parse_yaml, read_text
from mainspring.features.governance.rule_policy import Rules
from mainspring.features.prompts.prompt_template import SLOT, fill_text, list_misspelt
from mainspring.features.prompts.prompts import Prompt, check_filled
from mainspring.tools.scope import normalize_domain

Role = Literal[
    "orchestrator", "director", "implementer", "qa", "reviewer", "researcher", "documentation", "security", "architect",
    "test-engineer",
]  # fmt: skip
Alias = Literal["worker", "validator"]
Capability = Literal[
    "file-read", "file-write", "code-execution", "web-search", "api-calls", "orchestration", "validation", "code-analysis",
    "research", "refinement",
]  # fmt: skip
Choice = Literal["allow", "ask", "deny"]

ALIASES: Final[dict[str, Role]] = {"worker": "implementer", "validator": "qa"}
SPEC_CAPABILITIES: Final = {
    "P-01": "decomposing tasks", "P-02": "allocating resources", "P-03": "scheduling", "P-04": "assessing risks",
    "P-05": "designing workflows",
    "I-01": "generating code", "I-02": "modifying code", "I-03": "configuring", "I-04": "transforming data",
    "I-05": "integrating systems",
    "V-01": "unit testing", "V-02": "integration testing", "V-03": "validating output", "V-04": "scanning for security flaws",
    "V-05": "checking compliance",
    "R-01": "reviewing code", "R-02": "reviewing architecture", "R-03": "reviewing documentation",
    "R-04": "reviewing performance", "R-05": "reviewing security",
    "X-01": "searching the web", "X-02": "analysing code bases", "X-03": "surveying literature", "X-04": "comparing competitors",
    "X-05": "synthesising findings",
}  # fmt: skip
CAPABILITY_NAMES: Final = {name.replace(" ", "-"): code for code, name in SPEC_CAPABILITIES.items()}
"""What a capability may be called in a file, in place of its code."""
GROUPS: Final = {"P": "planning", "I": "implementation", "V": "verification", "R": "review", "X": "research"}
MOST_TOOL_NAME: Final = 64 - len(TOOL_PREFIX)
EVERYTHING: Final = "*"

_FIELD = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,63}")


AgentName = Annotated[
    str,
    Meta(pattern=r"^[a-z][a-z0-9-]{1,63}$(?!\n)", description="2 to 64 lower-case letters, digits and hyphens, a letter first"),
]
Version = Annotated[
    str,
    Meta(
        pattern=r"^(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)(-[0-9A-Za-z-]+(\.[0-9A-Za-z-]+)*)?(\+[0-9A-Za-z-]+(\.[0-9A-Za-z-]+)*)?$(?!\n)",
        description="three numbers, as in `1.0.0`",
    ),
]
Count = Annotated[int, Meta(ge=1, le=1000)]
AgentId = Annotated[str, Meta(pattern=r"^AGT-\d{3}$(?!\n)", description="one like `AGT-001`")]


class Dependency(Struct, frozen=True):
    """An agent that this one may call as a tool. One that is not optional must be defined."""

    agent: str
    optional: bool = False
    purpose: str = ""


class Example(Struct, frozen=True):
    input: Any
    output: Any


class Prompts(Struct, frozen=True):
    """Words of the author's own. In `user`, `{{ name }}` stands for an input; without it, the inputs are sent as JSON.
    `confirmation` is the question after a first answer, in place of the usual one."""

    system: str = ""
    user: str = ""
    examples: tuple[Example, ...] = ()
    confirmation: str = ""


class Constraints(Struct, frozen=True):
    """`max_tokens` bounds each answer of the model, `timeout_seconds` the whole run; `max_retries` is for failed model calls.

    `max_turns`, `max_errors_in_row`, `max_tool_calls_per_turn` and `tool_seconds` (for each call) are as the server has them
    unless they are said here; a request may ask for others. `concurrency` is how many calls of a turn run at once. Without
    `parallel_allowed` the agent's calls are made one by one, and it never works beside other agents of one caller.

    `compact_threshold` is the number of tokens beyond which the model sums up what is old; `truncation: auto` leaves out the
    oldest of what does not fit."""

    max_tokens: Annotated[int, Meta(ge=100, le=200_000)] = 4096
    timeout_seconds: Annotated[float, Meta(ge=10, le=3600)] = 120
    max_retries: Annotated[int, Meta(ge=0, le=10)] = 2
    parallel_allowed: bool = True
    max_turns: Count | None = None
    max_errors_in_row: Count | None = None
    max_tool_calls_per_turn: Count | None = None
    tool_seconds: Annotated[float, Meta(gt=0, le=86_400)] | None = None
    concurrency: Annotated[int, Meta(ge=1, le=64)] | None = None
    truncation: Literal["auto", "disabled"] | None = None
    compact_threshold: Annotated[int, Meta(ge=1, le=2**31 - 1)] | None = None


class Metadata(Struct, frozen=True):
    author: str = ""
    created: str = ""
    updated: str = ""
    tags: tuple[str, ...] = ()


class Governance(Struct, frozen=True):
    """What the agent may do, whatever else would allow more. What is left out is not narrowed.

    `scope` are the paths it may touch, `commands` the programs it may run, `network` the hosts it may reach; lists, or texts with
    commas between. `network` may also be `none` or `all`. `approval_required` and `tool_policies` name tools, as
    `tool` or `tool:operation`, with `*` for any text.
    """

    scope: str | tuple[str, ...] | None = None
    commands: str | tuple[str, ...] | None = None
    network: bool | str | tuple[str, ...] | None = None
    approval_required: tuple[str, ...] = ()
    tool_policies: dict[str, Choice] = {}


class Ownership(Struct, frozen=True):
    owner: str = ""
    escalation_target: str = ""


class AgentDefinition(Struct, frozen=True):
    """What the file of an agent holds."""

    name: AgentName
    version: Version
    role: Role | Alias
    description: Annotated[str, Meta(max_length=500)] = ""
    model: Annotated[str, Meta(min_length=1, max_length=256)] | None = None
    """The model for runs whose request names none. Default: the server's."""
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    """The temperature where the request names none."""
    effort: Literal["low", "medium", "high"] | None = None
    """How hard the model thinks where the request says nothing of it."""
    tools: tuple[str, ...] | None = None
    """The tools that it has, of those that the settings name (`tools`, `builtins`). Default: all of them."""
    mcp: tuple[str, ...] | None = None
    """The MCP servers whose tools it has, of those that the settings name. Default: all of them."""
    capabilities: tuple[Capability, ...] = ()
    inputs: dict[str, InputParameter] = {}
    outputs: dict[str, InputParameter] = {}
    dependencies: tuple[Dependency, ...] = ()
    prompts: Prompts = Prompts()
    constraints: Constraints = Constraints()
    metadata: Metadata = Metadata()
    agent_id: AgentId | None = None
    spec_capabilities: tuple[str, ...] = ()
    governance: Governance = Governance()
    ownership: Ownership = Ownership()
    status: Literal["active", "deprecated", "experimental"] = "active"
    autonomy_level: Level = "supervised"
    skills: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        force_setattr(self, "role", ALIASES.get(self.role, self.role))
        codes = tuple([CAPABILITY_NAMES.get(name, name) for name in self.spec_capabilities])
        force_setattr(self, "spec_capabilities", codes)


def read_definition(file: Path) -> AgentDefinition:
    """The agent in this file. Raises `InvalidRequest` with every mistake, each by file and line."""
    return parse_definition(read_text(file), file)


def parse_definition(text: str, file: Path) -> AgentDefinition:
    """The agent that this text defines. Raises as `read_definition` does; `file` is named in mistakes, and says YAML or JSON."""
    return parse_yaml(file, text).finish(AgentDefinition, _check)


def file_schema() -> Json:
    """The JSON Schema of an agent's file."""
    return build_schema(AgentDefinition, "An agent of Mainspring")


def make_charter(definition: AgentDefinition, *, root: str = "", skills: tuple[str, ...] = ()) -> Charter:
    """What the definition binds a run to. `root` is the working directory, `skills` are those that are active."""
    governance = definition.governance
    rules: dict[str, Choice] = {**dict.fromkeys(governance.approval_required, "ask")}
    for pattern, choice in governance.tool_policies.items():
        # Of two that name the same tool, the stricter holds.
        rules[pattern] = "ask" if choice == "allow" and pattern in rules else choice
    return Charter(
        agent=definition.name,
        level=Autonomy.parse(definition.autonomy_level).label,
        rules=tuple(rules.items()),
        commands=_split_list(governance.commands),
        domains=_domains(governance.network),
        files=_split_list(governance.scope),
        root=root,
        skills=skills,
        outputs=tuple(definition.outputs),
        servers=definition.mcp,
    )


def make_prompt_agent(prompt: Prompt, inputs: Mapping[str, object]) -> AgentDefinition:
    """A prompt as an agent. Its instructions have the inputs that are given. Raises `InvalidRequest` if they get too long."""
    content = prompt.content
    check_filled(content, inputs, "inputs")
    return AgentDefinition(
        name=prompt.id,
        version=f"{prompt.number}.0.0",
        role="implementer",
        description=content.description,
        model=content.model,
        temperature=content.temperature,
        inputs={name: InputParameter(required=True) for name in content.variables},
        prompts=Prompts(system=fill_text(content.instructions, inputs), user=content.prompt),
    )


def _split_list(given: str | tuple[str, ...] | None) -> tuple[str, ...] | None:
    if given is None:
        return None
    parts = given.split(",") if isinstance(given, str) else given
    return tuple([part.strip() for part in parts if part.strip() not in ("", "none")])


def _domains(given: bool | str | tuple[str, ...] | None) -> tuple[str, ...] | None:
    if isinstance(given, bool):
        return (EVERYTHING,) if given else ()
    listed = _split_list(given)
    return (EVERYTHING,) if listed is not None and {"all", EVERYTHING} & set(listed) else listed


def _check(definition: AgentDefinition, parsed: ParsedFile) -> None:
    """Finds what types alone do not tell."""
    for index, capability in enumerate(definition.spec_capabilities):
        if capability not in SPEC_CAPABILITIES:
            told = hint(capability, (*CAPABILITY_NAMES, *SPEC_CAPABILITIES))
            parsed.add_problem(("spec_capabilities", index), f"there is no spec capability `{capability}`; {told}")
    for group in ("inputs", "outputs"):
        for name, parameter in getattr(definition, group).items():
            _check_parameter(group, name, parameter, parsed)
    for index, dependency in enumerate(definition.dependencies):
        if dependency.agent == definition.name:
            parsed.add_problem(("dependencies", index), "an agent cannot call itself; take this dependency out")
        if dependency.agent in [each.agent for each in definition.dependencies[:index]]:
            parsed.add_problem(("dependencies", index), f"`{dependency.agent}` is there twice; keep one of them")
        if len(dependency.agent) > MOST_TOOL_NAME:
            told = f"`{dependency.agent}` has more than {MOST_TOOL_NAME} characters, so it cannot be called; rename it"
            parsed.add_problem(("dependencies", index), told)
    for name in SLOT.findall(definition.prompts.user):
        if name not in definition.inputs:
            told = f"`{{{{ {name} }}}}` stands for no input; {hint(name, tuple(definition.inputs))}"
            parsed.add_problem(("prompts", "user"), told)
    for other in list_misspelt(definition.prompts.user):
        told = f"`{other[:80]}` is nothing that could be filled in; write `{{{{ name }}}}` with the name of an input"
        parsed.add_problem(("prompts", "user"), told)
    if (definition.constraints.concurrency or 1) > 1 and not definition.constraints.parallel_allowed:
        told = "calls are made one by one without `parallel_allowed`; drop `concurrency`, or allow it"
        parsed.add_problem(("constraints", "concurrency"), told)
    _check_governance(definition.governance, parsed)


def _check_parameter(group: str, name: str, parameter: InputParameter, parsed: ParsedFile) -> None:
    place = (group, name)
    if not _FIELD.fullmatch(name):
        parsed.add_problem(place, f"`{name}` cannot name a field; use up to 64 letters, digits, `_` and `-`")
    for value in parameter.enum or ():
        if not is_of_type(value, parameter.type):
            parsed.add_problem((*place, "enum"), f"`{value}` in the enum of `{name}` is no {parameter.type}")
    if parameter.enum == ():
        parsed.add_problem((*place, "enum"), f"the enum of `{name}` allows nothing; name values, or leave it out")
    if parameter.default is UNSET:
        return
    if parameter.required:
        parsed.add_problem((*place, "default"), f"`{name}` is required, so its default is never used; drop one of the two")
    if (flaw := find_flaw(parameter, parameter.default)) is not None:
        parsed.add_problem((*place, "default"), f"the default of `{name}` {flaw}")


def _check_governance(governance: Governance, parsed: ParsedFile) -> None:
    for path in _split_list(governance.scope) or ():
        if any(sign.isspace() for sign in path) or path.startswith("~") or ".." in path.split("/"):
            told = f"`{path[:80]}` is no path; name files and folders, as in `src/**`, and put words into `description`"
            parsed.add_problem(("governance", "scope"), told)
    for domain in _domains(governance.network) or ():
        try:
            normalize_domain(domain if domain != EVERYTHING else "example.com")
        except InvalidRequest as error:
            parsed.add_problem(("governance", "network"), f"{error.message}; or write `none` or `all`")
    for field, choices in (
        ("approval_required", dict.fromkeys(governance.approval_required, "ask")),
        ("tool_policies", governance.tool_policies),
    ):
        try:
            Rules.of(choices)  # type: ignore[arg-type]
        except InvalidRequest as error:
            parsed.add_problem(("governance", field), error.message)
