"""What the MCP server is made of: the services of other features, as they are, and what of them is offered."""

from typing import TYPE_CHECKING

from msgspec import Struct

from mainspring.features.mcp_server.settings import OfferSettings

if TYPE_CHECKING:  # nothing is imported before a client comes
    from mainspring.engine.engine import Engine
    from mainspring.features.agents.agent_runtime import AgentRuntime
    from mainspring.features.approvals.pending import Approvals
    from mainspring.features.files.files import Files
    from mainspring.features.memory.memory import Memory
    from mainspring.features.memory.no_memory import NoMemory
    from mainspring.features.workflows.workflows import Workflows


class McpServices(Struct, frozen=True):
    engine: "Engine"
    agents: "AgentRuntime"
    workflows: "Workflows"
    approvals: "Approvals"
    memory: "Memory | NoMemory"
    files: "Files"
    settings: OfferSettings
    version: str
