"""A workflow as its file defines it: YAML or JSON, checked as a whole, with the file and line of every mistake.

    name: digest
    inputs:
      topic: {type: string, required: true}
    steps:
      - id: research
        action: invoke-agent
        agent: researcher
        inputs: {topic: "{{ inputs.topic }}"}
      - id: write
        action: invoke-agent
        agent: writer
        inputs: {notes: "{{ steps.research.output.result }}"}
    outputs:
      text: "{{ steps.write.output.result }}"

The id of a step is unique in its workflow, also inside of groups. A step that reads the result of another one comes after it,
with or without `depends_on`.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

from msgspec import Meta, Struct, field

from mainspring.core.items import Json
from mainspring.definitions import parameters
from mainspring.definitions.json_schema import build_schema
from mainspring.definitions.parameters import InputParameter, InputType
from mainspring.definitions.reader import parse_yaml
from mainspring.late_module import LateModule

# They know workflows.
if TYPE_CHECKING:
    from mainspring.features.workflows import checks
else:
    checks = LateModule("mainspring.features.workflows.checks")

MOST_NESTING: Final = 10
MOST_STEPS: Final = 10_000
LONGEST_WAIT: Final = 300.0
NAMES: Final = ("inputs", "steps", "output", "workflow")

StepId = Annotated[
    str,
    Meta(
        pattern=r"^[a-z][a-z0-9_-]{0,63}$(?!\n)", description="up to 64 lower-case letters, digits, `_` and `-`, a letter first"
    ),
]
Name = Annotated[
    str,
    Meta(pattern=r"^[a-z][a-z0-9-]{0,63}$(?!\n)", description="up to 64 lower-case letters, digits and hyphens, a letter first"),
]
Seconds = Annotated[float, Meta(ge=0, le=LONGEST_WAIT)]
Mode = Literal["sequential", "parallel", "dependency-aware"]


class WorkflowInput(InputParameter, frozen=True):
    """An input of a workflow. One that is neither required nor given has its default."""

    type: InputType = "any"
    default: Any = None


class Retry(Struct, frozen=True):
    """How often a step is tried in all, and the seconds between."""

    max_attempts: Annotated[int, Meta(ge=1, le=10)] = 1
    delay: Annotated[float, Meta(ge=1, le=3_600)] = 1.0


class Execution(Struct, frozen=True):
    """How steps are carried out. `fail_fast` stops the steps that are under way when one fails, unless `continue_on_error`, which
    goes on with all that do not depend on it. `timeout` is in seconds that the workflow is worked on."""

    mode: Mode = "dependency-aware"
    parallel_limit: Annotated[int, Meta(ge=1, le=32)] = 4
    continue_on_error: bool = False
    fail_fast: bool = True
    timeout: Annotated[float, Meta(ge=60, le=86_400)] = 3_600.0
    dry_run: bool = False


class StepFields(Struct, frozen=True, kw_only=True, tag_field="action"):
    """What every step has. `outputs` name parts of its `output` for later steps; `timeout` is for each attempt."""

    id: StepId
    description: str = ""
    outputs: dict[str, Any] = {}
    condition: str | bool | None = None
    depends_on: tuple[StepId, ...] = ()
    retry: Retry = Retry()
    timeout: Annotated[float, Meta(ge=10, le=86_400)] | None = None


class InvokeAgent(StepFields, frozen=True, kw_only=True, tag="invoke-agent"):
    """Gives an agent the inputs; its output is the step's."""

    agent: Annotated[str, Meta(min_length=1)]
    inputs: dict[str, Any] = {}
    model: str | None = None


class RunCommand(StepFields, frozen=True, kw_only=True, tag="run-command"):
    """Runs a command line in the sandbox. Its inputs are variables of the shell, so that no value can become a command."""

    command: Annotated[str, Meta(min_length=1)]
    inputs: dict[str, Any] = {}
    working_dir: str = "."
    repeatable: bool = False


class ExecuteCode(StepFields, frozen=True, kw_only=True, tag="execute-code"):
    """Runs Python code in the sandbox. Its inputs are variables of the code, so that no value can become code."""

    code: Annotated[str, Meta(min_length=1)]
    inputs: dict[str, Any] = {}
    repeatable: bool = False


class Route(StepFields, frozen=True, kw_only=True, tag="route"):
    """Has a model choose one of several agents for a task; the first if it chooses none."""

    task: Any
    agents: Annotated[tuple[str, ...], Meta(min_length=1, max_length=50)]
    model: str | None = None


class Handoff(StepFields, frozen=True, kw_only=True, tag="handoff"):
    """Hands a task over to an agent, which is told what is named here and nothing else of what was said before."""

    agent: Annotated[str, Meta(min_length=1)]
    objective: Annotated[str, Meta(min_length=1)]
    source: str = ""
    context: Any = ""
    data: dict[str, Any] = {}
    model: str | None = None


class GroupChat(StepFields, frozen=True, kw_only=True, tag="group-chat"):
    """Has agents talk about a task, one in each round, until one says the end word. Each is told the last `history` messages."""

    task: Any
    agents: Annotated[tuple[str, ...], Meta(min_length=1, max_length=20)]
    speaker: Literal["round_robin", "random", "auto", "mention"] = "round_robin"
    max_rounds: Annotated[int, Meta(ge=1, le=100)] = 10
    history: Annotated[int, Meta(ge=1, le=100)] = 20
    end_word: Annotated[str, Meta(min_length=1, max_length=100)] = "TERMINATE"
    model: str | None = None


class Validate(StepFields, frozen=True, kw_only=True, tag="validate"):
    """Fails unless the value fits the JSON Schema, and the expression is true."""

    value: Any = None
    schema: Json | None = None
    expression: str | None = None
    message: str = ""


class Transform(StepFields, frozen=True, kw_only=True, tag="transform"):
    """Its output is the value."""

    value: Any


class Conditional(StepFields, frozen=True, kw_only=True, tag="conditional"):
    """Carries out one of two groups of steps, one after the other."""

    test: str | bool = field(name="if")
    then: "tuple[Step, ...]" = ()
    otherwise: "tuple[Step, ...]" = field(name="else", default=())


class ParallelGroup(StepFields, frozen=True, kw_only=True, tag="parallel-group"):
    """Carries out steps at once, as many as its limit or the workflow's allows."""

    steps: "tuple[Step, ...]"
    parallel_limit: Annotated[int, Meta(ge=1, le=32)] | None = None


class Wait(StepFields, frozen=True, kw_only=True, tag="wait"):
    """Waits so many seconds, or until a condition holds, which is looked at every so often."""

    seconds: Seconds | None = None
    until: str | None = None
    every: Annotated[float, Meta(ge=0.1, le=60)] = 2.0
    max_seconds: Seconds = LONGEST_WAIT


class HttpRequest(StepFields, frozen=True, kw_only=True, tag="http-request"):
    """Sends a request. The status is part of the output; 400 and above fail the step."""

    url: Annotated[str, Meta(min_length=1)]
    method: Literal["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"] = "GET"
    headers: dict[str, str] = {}
    body: Any = None
    repeatable: bool = False


class SubWorkflow(StepFields, frozen=True, kw_only=True, tag="sub-workflow"):
    """Carries out another workflow with the inputs; its outputs are the step's output."""

    workflow: Name
    inputs: dict[str, Any] = {}


Group = Conditional | ParallelGroup | SubWorkflow
AgentStep = InvokeAgent | Route | Handoff | GroupChat
CallStep = RunCommand | ExecuteCode | HttpRequest
Step = AgentStep | CallStep | Validate | Transform | Wait | Group


class Workflow(Struct, frozen=True):
    """What the file of a workflow holds."""

    name: Name
    steps: tuple[Step, ...]
    version: str = "1.0.0"
    description: Annotated[str, Meta(max_length=500)] = ""
    inputs: dict[str, WorkflowInput] = {}
    outputs: dict[str, Any] = {}
    execution: Execution = Execution()


def parse_workflow(file: Path, text: str) -> Workflow:
    """The workflow that a text defines. Raises `InvalidRequest` with every mistake, each by file and line."""
    return parse_yaml(file, text).finish(Workflow, checks.check_workflow)


def file_schema() -> Json:
    """The JSON Schema of a workflow's file."""
    return build_schema(Workflow, "A workflow of Mainspring")


def list_groups(step: Step) -> tuple[tuple[str, tuple[Step, ...]], ...]:
    """The groups of steps inside of this one, by the key that they are written under."""
    match step:
        case Conditional():
            return (("then", step.then), ("else", step.otherwise))
        case ParallelGroup():
            return (("steps", step.steps),)
        case _:
            return ()


def list_steps(steps: tuple[Step, ...]) -> tuple[Step, ...]:
    """These steps and all inside of them."""
    return tuple(
        [each for step in steps for each in (step, *list_steps(tuple([s for _, group in list_groups(step) for s in group])))]
    )


def complete_inputs(workflow: Workflow, given: Json) -> Json:
    """The inputs with which the workflow runs: those given, else defaults. Raises `InvalidInputs` (422) with every mistake."""
    return parameters.complete_inputs(workflow.inputs, given, f"workflow `{workflow.name}`")
