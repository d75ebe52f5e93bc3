"""What MCP clients reach of an engine, over HTTP and on standard input."""

import mainspring
from mainspring.app.engine import Engine
from mainspring.features.approvals.pending import Approvals
from mainspring.features.mcp_server.services import McpServices
from mainspring.features.mcp_server.settings import OfferSettings


def make_mcp_services(engine: Engine, offer: OfferSettings) -> McpServices:
    return McpServices(
        engine.core,
        engine.agents,
        engine.workflows,
        Approvals(engine.core, {spec.label for spec in engine.mcp.servers}),
        engine.memory,
        engine.files,
        offer,
        mainspring.__version__,
    )
