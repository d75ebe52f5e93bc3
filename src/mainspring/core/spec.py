"""The whole order for a run, as data that can be stored: what to ask, with which tools, within which limits.

The three presets are the three ways Mainspring is used: `responses` (the Responses API), `iterative` (an agent that works
until it is done and is asked once whether it really is) and `decision` (few turns, deterministic, short history).
"""

from collections.abc import MutableMapping
from typing import Annotated, Any, Final, Literal, TypeVar

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import astuple, replace

from mainspring.core.autonomy import LevelName
from mainspring.core.delegation import is_delegation
from mainspring.core.errors import InvalidRequest
from mainspring.core.items import FunctionCall, Item, Json, Tool, ToolDefinition, Usage, flaw
from mainspring.core.plain_items import is_plain

PresetName = Literal["responses", "iterative", "decision"]
Goal = Literal["answer", "compaction", "nothing"]
Amount = Annotated[float, Meta(ge=0)]
N = TypeVar("N", int, float)

MILLION: Final = 1_000_000

STEP_MODEL: Final = "mainspring/step"
"""Named as the model of runs that are steps of workflows, for which no model is asked: see `RunSpec.step_call`."""

CONFIRM = (
    "Before this counts as finished: is every part of the task done, and have you checked the results, for example by reading "
    "back what you wrote? If anything is missing, go on working. If all is done, state your final answer once more."
)
CLOSE = "A limit of this run is reached and tools are switched off. Give your best final answer now, with what you know so far."
REPEAT = (
    "You have made the very same tool call several times in a row. Repeating it will not help: try something else, "
    "or give your answer with what you know."
)
REPEAT_ADVICE = (
    "Repeating this will not help: the calls will not be run again, and their tools will be withheld. Try something else, "
    "or give your answer with what you know."
)
CLOSE_CYCLE = (
    "You have gone on making the same calls, so this run ends here and tools are switched off. Give your best final answer now, "
    "with what you know so far."
)
MAX_CYCLE: Final = 6


class ToolChoice(Struct, frozen=True):
    """Who decides about tools. `name` forces one tool; `allowed` narrows what may be called; both leave all tools visible."""

    mode: Literal["auto", "required", "none"] = "auto"
    name: str | None = None
    allowed: tuple[str, ...] | None = None


TURN_BYTES: Final = 64 * 1024 * 1024


class Limits(Struct, frozen=True):
    """What a run may use. None means unlimited.

    `max_errors_in_row` counts turns in which something failed and nothing succeeded. `max_repeats` is the number of turns with
    the same calls that earn a nudge, and `max_cycle` the most turns after which calls may come again to count as the same; what
    follows the nudge is in `core.repetition`. Orders of older versions have no `max_cycle`: only identical turns in a row count,
    and the one after the nudge is not executed and ends the run. `max_output_tokens` is for the whole run, `max_tokens` counts
    input and output of all its turns. `tool_seconds` bounds each call, also of a tool that allows itself more. `concurrency` is
    how many calls of a turn run at once, `agent_concurrency` how many of those that are work for other agents; None counts them
    as any other. `approval_seconds` is how long a call waits for a person to approve it; after that it can only be refused.
    `turn_seconds` and `turn_bytes` bound one answer of the model, however much it goes on to say.
    `budget_turns` is what an autonomy budget leaves of turns: a run that needs more ends for its budget, not for its length.
    """

    max_turns: int | None = 10
    max_tool_calls: int | None = None
    max_tool_calls_per_turn: int | None = None
    max_tokens: int | None = None
    max_output_tokens: int | None = None
    max_seconds: float | None = None
    max_errors_in_row: int | None = 3
    max_repeats: int | None = None
    max_cycle: int | None = None
    turn_seconds: float | None = 3600.0
    tool_seconds: float | None = None
    tool_output_chars: int | None = 15_000
    concurrency: int | None = None
    budget_turns: int | None = None
    approval_seconds: float | None = None
    agent_concurrency: int | None = None
    turn_bytes: int | None = TURN_BYTES


class Price(Struct, frozen=True, forbid_unknown_fields=True):
    """What a million tokens cost. Tokens that a cache held or took in cost as others unless said otherwise."""

    input: Amount
    output: Amount
    cached: Amount | None = None
    cache_write: Amount | None = None

    def of(self, usage: Usage) -> float:
        cached = self.input if self.cached is None else self.cached
        written = self.input if self.cache_write is None else self.cache_write
        plain = max(usage.input_tokens - usage.cached_tokens - usage.cache_write_tokens, 0)
        told = plain * self.input + usage.cached_tokens * cached + usage.cache_write_tokens * written
        return (told + usage.output_tokens * self.output) / MILLION


class Allowance(Struct, frozen=True):
    """Tokens and money of a run, in and out together: a turn begins only if it cannot use more, see `core.allowance`."""

    tokens: int | None = None
    cost: float | None = None
    price: Price = Price(0, 0)


class Completion(Struct, frozen=True):
    """When an answer counts as the last. A None prompt switches its step off.

    `confirm` is asked after a first text answer, and with `confirm_once` never again; without, as in orders of older versions,
    also after an answer that followed more work. `close` grants one last turn without tools after a limit;
    `retry_model_errors` asks again after a passing model failure instead of failing the run, but no more than `max_retries`
    times in all. `repeat` follows the words that name a repetition; in orders of older versions it is all that was said.
    """

    confirm: str | None = None
    close: str | None = None
    repeat: str = REPEAT
    retry_model_errors: bool = False
    max_retries: int | None = None
    confirm_once: bool = False


class Sampling(Struct, frozen=True):
    """How the model is asked. None leaves the choice to the backend; `max_turn_tokens` bounds the output of one turn.

    With `top_logprobs` the text comes with log probabilities: of each token, and of so many others in its place. `stop` are
    texts before which an answer ends. `cache_ttl` is how long a backend that caches on demand is to keep the prompt.
    """

    temperature: float | None = None
    top_p: float | None = None
    max_turn_tokens: int | None = None
    text: Json | None = None
    reasoning: Json | None = None
    extra: Json | None = None
    top_logprobs: int | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    stop: tuple[str, ...] = ()
    seed: int | None = None
    cache_ttl: Literal["5m", "1h"] | None = None


class Window(Struct, frozen=True):
    """How much of earlier conversation the model sees. None means all of it.

    `compact_threshold` is the number of tokens beyond which what is old is replaced by a summary before a turn; `context_tokens`
    is how many the model takes in at once, if that is known. Truncation `auto` leaves out the oldest items that do not fit, by
    that number or because the backend said so; `disabled` fails the run instead. All tokens are estimated, see `core.tokens`.
    """

    max_messages: int | None = None
    max_chars: int | None = None
    compact_threshold: int | None = None
    context_tokens: int | None = None
    truncation: Literal["auto", "disabled"] = "disabled"


class Conversation(Struct, frozen=True):
    """The conversation that a run reads and adds to, and how far it had got when the run began.

    `upto` is the number of its last item then, `waiting` are the calls that were open in it. The engine fills in both, so that
    the run can be read again whatever becomes of the conversation.
    """

    id: str
    upto: int = 0
    waiting: tuple[FunctionCall, ...] = ()


class Caller(Struct, frozen=True):
    """On whose behalf a run calls tools. `scopes` is what they may do; None is no restriction, as in local use."""

    subject: str = ""
    scopes: tuple[str, ...] | None = None


class Charter(Struct, frozen=True):
    """What a defined agent may do, whatever else allows more; None leaves it to others. See `features.agents.charter`.

    `rules` are verdicts by pattern of tools. `commands` are the programs it may run, `domains` the hosts it may reach (`*` is
    every one), `files` the patterns of paths below `root` that it may touch. `skills` are active from the start, `outputs` names
    the fields of its answer. `servers` are the MCP servers of the operator's whose tools it has.
    """

    agent: str
    level: LevelName = "full"
    rules: tuple[tuple[str, Literal["allow", "ask", "deny"]], ...] = ()
    commands: tuple[str, ...] | None = None
    domains: tuple[str, ...] | None = None
    files: tuple[str, ...] | None = None
    root: str = ""
    skills: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    servers: tuple[str, ...] | None = None


class StepCall(Struct, frozen=True):
    """The one call that a step of a workflow makes, in place of a model."""

    name: str
    arguments: Json = {}


class RunSpec(Struct, frozen=True):
    """Everything a run needs to know, fixed at its start. Earlier conversation is a link, never a copy: `parent` names a run,
    `conversation` what several runs share. `tenant` is whose run it is, `caller` who of them ordered it.
    `agent` is the defined agent that it runs as, if one, and `role` the role of that.
    `traceparent` is the span of others (W3C) that the run belongs to.
    `listed` is what MCP servers said they have: it opens the answer. `budget` is the autonomy budget that it works under,
    `allowance` what that leaves of tokens and money. `charters` are those of the agents it works for, its own last; all hold.
    `within` is the run that has delegated this one, if one has. `flags` say what in the input reads like orders to the model.
    `governed` is a digest of the operator's settings that it began under, empty if there were none. `dictated` is the call that a
    step of a workflow makes; no model is asked then. `goal` is what the run is for: an answer, one compaction of the
    conversation, or nothing but to keep its input for the run that continues it. `checks_calls` says that calls of the client's
    functions are held against their schemas, which takes a client that is not shown them as they come. `on_behalf_of` is the user
    that it goes on for, though somebody else has approved that."""

    id: str
    model: str
    input: tuple[Item, ...]
    instructions: str | None = None
    tools: tuple[Tool, ...] = ()
    tool_choice: ToolChoice = ToolChoice()
    limits: Limits = Limits()
    completion: Completion = Completion()
    sampling: Sampling = Sampling()
    window: Window = Window()
    preset: PresetName = "responses"
    parallel_tool_calls: bool = True
    parent: str | None = None
    store: bool = True
    background: bool = False
    metadata: dict[str, str] = {}
    echo: Json = {}
    tenant: str = ""
    conversation: Conversation | None = None
    caller: Caller = Caller()
    listed: tuple[Item, ...] = ()
    scope: str = ""
    budget: Json | None = None
    agent: str = ""
    traceparent: str = ""
    allowance: Allowance | None = msgspec.field(default=None, name="purse")
    flags: tuple[str, ...] = ()
    charters: tuple[Charter, ...] = ()
    within: str = ""
    governed: str = ""
    dictated: StepCall | None = None
    goal: Goal = "answer"
    role: str = ""
    checks_calls: bool = False
    on_behalf_of: str | None = None

    @property
    def user(self) -> str:
        """For whom of the tenant's users it runs: whom the request names, else whoever has its key."""
        if self.on_behalf_of is not None:
            return self.on_behalf_of
        named = self.echo.get("user") or self.echo.get("safety_identifier")
        return named if isinstance(named, str) else self.caller.subject

    @property
    def step_call(self) -> StepCall | None:
        """The call of a workflow step, None for a run of a model."""
        match self.sampling.extra:
            case {"call": {"name": str(name), "arguments": dict(arguments)}} if self.model == STEP_MODEL:
                return StepCall(name, arguments)  # as orders of older versions say it
            case _:
                return self.dictated

    def tool(self, name: str) -> ToolDefinition | None:
        for tool in self.tools:
            if isinstance(tool, ToolDefinition) and tool.name == name:
                return tool
        return None

    def tool_seconds(self, tool: ToolDefinition) -> float | None:
        """How long a call of this tool may take. Another agent has the time of its own definition, and of what its caller has
        left."""
        return tool.timeout if self.delegates(tool.name) else pick_least(tool.timeout, self.limits.tool_seconds)

    def delegates(self, name: str) -> bool:
        """Whether a call of this name is work for another agent."""
        return is_delegation(name) and (tool := self.tool(name)) is not None and tool.kind == "builtin"


class Preset(Struct, frozen=True):
    limits: Limits
    completion: Completion
    sampling: Sampling
    window: Window


PRESETS: dict[PresetName, Preset] = {
    "responses": Preset(
        Limits(max_turns=10, max_errors_in_row=None, max_repeats=3, max_cycle=MAX_CYCLE),
        Completion(repeat=REPEAT_ADVICE, confirm_once=True),
        Sampling(),
        Window(),
    ),
    "iterative": Preset(
        Limits(max_turns=20, max_tool_calls_per_turn=5, max_repeats=3, max_cycle=MAX_CYCLE, tool_seconds=60.0, concurrency=1),
        Completion(confirm=CONFIRM, repeat=REPEAT_ADVICE, retry_model_errors=True, confirm_once=True),
        Sampling(temperature=0.7),
        Window(),
    ),
    "decision": Preset(
        Limits(max_turns=5, max_repeats=2, max_cycle=MAX_CYCLE, turn_seconds=30.0, concurrency=1),
        Completion(repeat=REPEAT_ADVICE, confirm_once=True),
        Sampling(temperature=0.0, max_turn_tokens=1024),
        Window(max_messages=20, max_chars=4000),
    ),
}


_PARTS: Final = {"limits": Limits, "completion": Completion, "sampling": Sampling, "window": Window}
_PART_OF: Final = {field: part for part, kind in _PARTS.items() for field in kind.__struct_fields__}


def spec_for(preset: PresetName, *, id: str, model: str, input: tuple[Item, ...], **changes: Any) -> RunSpec:
    """A spec with the preset's limits and manners; `changes` are fields of `RunSpec`, of `Limits`, `Completion` or `Sampling`."""
    base = PRESETS[preset]
    inner: dict[str, Json] = {part: {} for part in _PARTS}
    for name in changes.keys() & _PART_OF.keys():
        inner[_PART_OF[name]][name] = changes.pop(name)
    for part, fields in inner.items():
        given: Struct = changes.get(part) or getattr(base, part)
        changes[part] = replace(given, **fields) if fields else given
    return RunSpec(id=id, model=model, input=input, preset=preset, **changes)


def pick_least(*bounds: N | None) -> N | None:
    """The strictest of these bounds, of which None is none."""
    return min([bound for bound in bounds if bound is not None], default=None)


def check(spec: RunSpec, right: MutableMapping[int, ToolDefinition] | None = None) -> None:
    """Raises `InvalidRequest` naming the first field that cannot be honoured. `right` are tools that were found right before, by
    their identity, and gets those of this order."""
    if not spec.model:
        raise InvalidRequest("no model is named; pass `model`", param="model")
    if spec.parent is not None and spec.conversation is not None:
        message = "previous_response_id and conversation exclude each other; send one of them"
        raise InvalidRequest(message, param="previous_response_id")
    names = [tool.name for tool in spec.tools if isinstance(tool, ToolDefinition)]
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise InvalidRequest(f"tool `{twice}` is declared twice; give each tool its own name", param="tools")
    choice = spec.tool_choice
    for name in (*([choice.name] if choice.name else []), *(choice.allowed or ())):
        if name not in names:
            known = ", ".join(f"`{name}`" for name in names) or "none"
            raise InvalidRequest(
                f"tool_choice names `{name}`, which is not among the tools; declared: {known}", param="tool_choice"
            )
    if choice.mode == "required" and not spec.tools:
        raise InvalidRequest("tool_choice requires a tool call but no tools are declared", param="tool_choice")
    given, tools = spec.input, spec.tools
    uncertain = tuple([item for item in given if not is_plain(item)]) if type(given) is tuple else given
    new = tuple([tool for tool in tools if right.get(id(tool)) is not tool]) if right and type(tools) is tuple else tools
    if (why := flaw(replace(spec, input=uncertain, tools=new), RunSpec)) is not None:
        raise InvalidRequest(f"an option of the run has a wrong value: {why}")
    if right is not None:
        right.update({id(tool): tool for tool in new if isinstance(tool, ToolDefinition)})
    bounds = astuple(spec.limits)
    if 0 not in bounds and min(filter(None, bounds), default=1) > 0:
        return
    for field, value in zip(Limits.__struct_fields__, bounds, strict=True):
        if value is not None and not value > 0:
            raise InvalidRequest(f"{field} must be above 0, not {value}; leave it out for no limit", param=field)
