"""The tools of an engine: those that every run has, the agents that runs may call, and who performs the calls."""

from collections.abc import Callable, Sequence
from pathlib import Path

from mainspring.core.items import ToolDefinition
from mainspring.core.operator_limits import OperatorLimits
from mainspring.features.agents.agent_order import AgentOrders
from mainspring.features.agents.agent_registry import AgentRegistry
from mainspring.features.agents.agent_tools import AgentTools
from mainspring.features.skills.skill_folder import SkillFolders
from mainspring.features.skills.skill_tools import SkillTools
from mainspring.features.workflows.http_request import HttpRequestTool
from mainspring.parts import PartContents
from mainspring.ports import Recall, ToolExecutor
from mainspring.tools.builtin.builtins import BuiltinTools
from mainspring.tools.contract import Tool
from mainspring.tools.mcp.executor import McpTools
from mainspring.tools.registry import Registry
from mainspring.tools.tool_search import ToolSearch


class EngineTools:
    """`root` is the working directory as tools see it, empty if there is none."""

    def __init__(
        self,
        tools: Registry | Sequence[Tool | Callable[..., object]],
        builtins: BuiltinTools,
        mcp: McpTools,
        skills: SkillFolders,
        agents: Sequence[Path],
        parts: Sequence[PartContents],
        *,
        recall: Recall,
        limits: OperatorLimits,
    ) -> None:
        context = builtins.context
        self.root = "" if context.working_dir is None else str(context.working_dir.resolve())
        self.registry = tools if isinstance(tools, Registry) else Registry(tools, context=context)
        for tool in (*builtins.tools, *[tool for part in parts for tool in part.tools]):
            self.registry.register(tool)
        self._mcp, self._skills, self._parts = mcp, skills, parts
        self._loading = SkillTools(lambda: skills.definitions)
        self._http_step = Registry([HttpRequestTool(builtins.guard, flaw=builtins.url_flaw)], context=context)
        self.agents = AgentRegistry(
            agents,
            skills=lambda: skills.definitions,
            tools=lambda: [tool.name for tool in self.definitions()],
            servers=[server.label for server in mcp.servers],
        )
        self.orders = AgentOrders(
            self.agents,
            skills,
            self.definitions,
            has_servers=bool(mcp.servers),
            root=self.root,
            recall=recall,
            limits=limits,
        )

    def definitions(self) -> tuple[ToolDefinition, ...]:
        """The tools that every run has."""
        return (*self.registry.definitions, *self._loading.definitions())

    def step_definitions(self) -> tuple[ToolDefinition, ...]:
        """Those, and what steps of workflows alone may call."""
        return (*self.definitions(), *self._http_step.definitions)

    def list_executors(self, *others: ToolExecutor) -> tuple[ToolExecutor, ...]:
        """Who performs calls; the first that can perform one does."""
        return (
            self.registry,
            *((self._loading,) if self._skills.folders else ()),
            AgentTools(self.agents, self.orders),
            ToolSearch(),
            *others,
            *[executor for part in self._parts for executor in part.executors],
            self._mcp,
            self._http_step,
        )
