"""Turns an agent definition into the order for a run: its prompt, its tools and what binds it.

Every endpoint that runs an agent goes through `AgentOrders.apply_definition`.
"""

from collections.abc import Callable, Mapping, Sequence
from logging import getLogger
from typing import Final, Literal

from msgspec import Struct
from msgspec.structs import replace

from mainspring.core.autonomy import Autonomy, Level
from mainspring.core.delegation import TOOL_PREFIX
from mainspring.core.errors import InvalidRequest, MainspringError
from mainspring.core.items import Message, ToolDefinition
from mainspring.core.operator_limits import NO_LIMITS, OperatorLimits
from mainspring.core.spec import PRESETS, Charter, Completion, RunSpec, ToolChoice, Window, pick_least
from mainspring.definitions.parsed_file import hint
from mainspring.features.agents.agent_definition import AgentDefinition, Constraints, make_charter
from mainspring.features.agents.agent_inputs import build_input_schema
from mainspring.features.agents.agent_limits import apply_limits
from mainspring.features.agents.agent_prompt import MOST_MEMORIES, build_system_prompt
from mainspring.features.agents.agent_registry import AgentRegistry
from mainspring.features.agents.agent_result import ToolLoopConfig
from mainspring.features.budgets.budget import LEVELS, AutonomyBudget
from mainspring.features.budgets.budget_policy import apply_budget
from mainspring.features.governance.rule_policy import Rules
from mainspring.features.governance.rule_policy import combine_rules as narrower
from mainspring.features.skills.skill_folder import SkillFolders
from mainspring.features.skills.skill_scope import LOAD, READ
from mainspring.features.skills.skill_tools import SkillTools
from mainspring.ports import Recall, RecalledMemory

log = getLogger(__name__)

DEEPEST: Final = 3
# An agent whose time is up says what it has before its caller stops it.
GRACE_SECONDS: Final = 5.0
COMPACT_AT: Final = 0.75

Effort = Literal["low", "medium", "high"]
Truncation = Literal["auto", "disabled"]

_ITERATIVE = PRESETS["iterative"]


class InvocationSettings(Struct, frozen=True):
    """How an agent works in one invocation. Without a `config` it answers in one turn, without tools.

    `autonomy_level` selects one of the budgets of `features.budgets`. `active_skills` are active from the start; None
    means all of its skills if it cannot load any, else none. `max_seconds` must be within the time of the definition.
    `truncation` and `compact_threshold` say what becomes of a conversation that is too long, see `Window`.
    """

    config: ToolLoopConfig | None = None
    effort: Effort | None = None
    domain: str = ""
    autonomy_level: Level | None = None
    active_skills: tuple[str, ...] | None = None
    max_seconds: float | None = None
    truncation: Truncation | None = None
    compact_threshold: int | None = None


class AgentOrders:
    """Applies definitions to orders. `offered` lists the tools of the server, `has_servers` says that runs also have tools of
    MCP servers; `root` is the folder that tools work in. Memories that `recall` finds enter the prompt. `limits` are the
    operator's."""

    def __init__(
        self,
        registry: AgentRegistry,
        skills: SkillFolders,
        offered: Callable[[], Sequence[ToolDefinition]],
        *,
        has_servers: bool = False,
        root: str = "",
        recall: Recall | None = None,
        limits: OperatorLimits = NO_LIMITS,
    ) -> None:
        self._registry, self._skills, self._offered, self._limits = registry, skills, offered, limits
        self._has_servers, self._root, self._recall = has_servers, root, recall
        self._skill_tools = SkillTools(lambda: skills.definitions)

    async def apply_definition(
        self, spec: RunSpec, definition: AgentDefinition, manner: InvocationSettings, above: tuple[Charter, ...] = ()
    ) -> RunSpec:
        """The order as one for this agent, under the charters of its callers. Tools of the client stay; tools of the server are
        replaced by the agent's. Raises `InvalidRequest`."""
        known, bound = self._registry.definitions, (*above, make_charter(definition, root=self._root))
        own = [tool for tool in spec.tools if not isinstance(tool, ToolDefinition) or tool.kind == "function"]
        tools = (*own, *(self._tools(definition, known, bound) if manner.config is not None else ()))
        # Without tools there is nothing to iterate for.
        config = manner.config if tools or self._has_servers else None
        active, skills = _active(definition, manner, loads=config is not None), self._skills.definitions
        told = build_system_prompt(
            definition,
            skills=[skills[name] for name in definition.skills if config is not None],
            active=[skills[name] for name in active],
            memories=await self._recall_memories(spec, definition),
            calls_agents=config is not None,
            domain=manner.domain,
        )
        made = replace(
            _apply_constraints(spec, definition, manner, config),
            limits=apply_limits(
                spec.limits,
                definition,
                config,
                self._limits,
                max_seconds=manner.max_seconds,
                is_parallel=_is_parallel(definition, known),
            ),
            agent=definition.name,
            role=definition.role,
            charters=(*above, replace(bound[-1], skills=active)),
            instructions=told if spec.instructions is None else f"{told}\n\n# Further instructions\n{spec.instructions}",
            echo={"instructions": spec.instructions, **spec.echo},
            tools=tools if config is not None else (),
        )
        return made if manner.autonomy_level is None else apply_budget(made, self._budget(manner.autonomy_level))

    def make_agent_tool(self, definition: AgentDefinition, purpose: str = "") -> ToolDefinition:
        """The agent as a tool. It declares only the effect of reading: its own run is judged, under the charters of all its
        callers. A call may be repeated, since it finds the run that it has started."""
        does = " ".join([text for text in (definition.description, purpose) if text])
        return ToolDefinition(
            f"{TOOL_PREFIX}{definition.name}",
            f"Has the agent `{definition.name}` ({definition.role}) work on a task and waits for its result. {does}".strip(),
            build_input_schema(definition),
            kind="builtin",
            repeatable=True,
            effects=("read",),
            timeout=definition.constraints.timeout_seconds + GRACE_SECONDS,
        )

    def _tools(
        self, definition: AgentDefinition, known: Mapping[str, AgentDefinition], bound: tuple[Charter, ...]
    ) -> list[ToolDefinition]:
        """The tools of the server, of its skills and of the agents it may call, without those that a charter denies."""
        rules = Rules()
        for each in bound:
            rules = narrower(rules, Rules.of(dict(each.rules)))
        reads = any(each.level == "read-only" for each in bound)
        tools = (
            *[tool for tool in self._offered() if tool.name not in (LOAD, READ) and _is_chosen(tool, definition)],
            *self._skill_tools.definitions(definition.skills),
            *self._agents(definition, known, [each.agent for each in bound]),
        )
        left = [tool for tool in tools if (rule := rules.rule(tool.name)) is None or rule.choice != "deny"]
        return [tool for tool in left if not reads or _reads(tool)]

    def _agents(
        self, definition: AgentDefinition, known: Mapping[str, AgentDefinition], chain: Sequence[str]
    ) -> list[ToolDefinition]:
        within_reach = [
            each for each in definition.dependencies if each.agent in known and find_refusal(chain, each.agent) is None
        ]
        return [self.make_agent_tool(known[each.agent], each.purpose) for each in within_reach]

    def _budget(self, level: Level) -> AutonomyBudget:
        try:
            named = LEVELS[Autonomy.parse(level)]
        except ValueError as error:
            raise InvalidRequest(f"autonomy_level {error}", param="autonomy_level") from None
        return replace(named, files=replace(named.files, root=self._root))

    async def _recall_memories(self, spec: RunSpec, definition: AgentDefinition) -> Sequence[RecalledMemory]:
        """Memories that match the input. If the memory fails, the agent works without it."""
        query = "\n".join([item.text for item in spec.input if isinstance(item, Message) and item.role == "user"])
        if self._recall is None or not query:
            return ()
        try:
            return await self._recall(query, tenant=spec.tenant, agent=definition.name, top_k=MOST_MEMORIES)
        except MainspringError as error:
            log.warning("agent %s works without memories: %s", definition.name, error)
            return ()


def find_refusal(chain: Sequence[str], agent: str) -> str | None:
    """Why the last agent of this chain of callers may not call the agent; None if it may."""
    told = " -> ".join([*chain, agent])
    if agent in chain:
        return f"agent `{agent}` is at work on this already ({told}); do it yourself, or without it"
    if len(chain) > DEEPEST:
        return f"agents may call each other {DEEPEST} deep, and this would be deeper ({told}); do it yourself"
    return None


def _is_parallel(definition: AgentDefinition, known: Mapping[str, AgentDefinition]) -> bool:
    """Whether several agents may work for this one at the same time."""
    others = [known[each.agent] for each in definition.dependencies if each.agent in known]
    return bool(others) and all(each.constraints.parallel_allowed for each in (definition, *others))


def _active(definition: AgentDefinition, manner: InvocationSettings, *, loads: bool) -> tuple[str, ...]:
    if manner.active_skills is None:
        return () if loads else definition.skills
    for name in manner.active_skills:
        if name not in definition.skills:
            told = f"agent `{definition.name}` has no skill `{name}`; {hint(name, definition.skills)}"
            raise InvalidRequest(told, param="active_skills")
    return manner.active_skills


def _apply_constraints(
    spec: RunSpec, definition: AgentDefinition, manner: InvocationSettings, config: ToolLoopConfig | None
) -> RunSpec:
    """The order within the constraints of the definition, but for its limits."""
    own = definition.constraints
    completion = Completion(
        retry_model_errors=own.max_retries > 0,
        max_retries=own.max_retries,
        confirm=None if config is None else config.choose_question(definition.prompts.confirmation),
        confirm_once=config is None or not config.confirm_after_work,
    )
    sampling = spec.sampling
    usual = _ITERATIVE.sampling.temperature if definition.temperature is None else definition.temperature
    temperature = usual if sampling.temperature is None else sampling.temperature
    effort = manner.effort or (definition.effort if not sampling.reasoning else None)
    reasoning = sampling.reasoning if effort is None else {**(sampling.reasoning or {}), "effort": effort}
    tokens = pick_least(sampling.max_turn_tokens, own.max_tokens)
    return replace(
        spec,
        window=_make_window(spec, own, manner, iterates=config is not None),
        tool_choice=ToolChoice("none") if config is None else spec.tool_choice,
        completion=completion,
        sampling=replace(sampling, temperature=temperature, reasoning=reasoning, max_turn_tokens=tokens),
        parallel_tool_calls=spec.parallel_tool_calls and own.parallel_allowed,
    )


def _make_window(spec: RunSpec, own: Constraints, manner: InvocationSettings, *, iterates: bool) -> Window:
    """What the request says, else the definition. An iterative run that is told neither sums up and leaves out what is old, if
    it is known how much the model takes."""
    window, truncation = spec.window, manner.truncation or own.truncation
    threshold = window.compact_threshold or manner.compact_threshold or own.compact_threshold
    if iterates and spec.preset == "iterative" and truncation is None and window.context_tokens is not None:
        truncation, threshold = "auto", threshold or int(window.context_tokens * COMPACT_AT)
    return replace(window, truncation=truncation or window.truncation, compact_threshold=threshold)


def _is_chosen(tool: ToolDefinition, definition: AgentDefinition) -> bool:
    return definition.tools is None or tool.name in definition.tools


def _reads(tool: ToolDefinition) -> bool:
    """Whether some call of this tool only reads."""
    return any("read" in effects and set(effects) <= {"read", "network"} for effects in (tool.effects, *tool.operations.values()))
