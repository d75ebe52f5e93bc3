"""`mainspring mcp serve`, beside the commands about the servers that Mainspring itself uses."""

from collections.abc import Coroutine
from typing import TYPE_CHECKING, Annotated

import typer
from anyio import create_task_group
from msgspec import Struct
from msgspec.structs import replace

from mainspring.cli import options
from mainspring.cli.context import Assembly, EngineOptions, build_engine, load_settings
from mainspring.features.mcp.commands import app
from mainspring.features.mcp_server.services import McpServices
from mainspring.features.mcp_server.settings import OfferSettings
from mainspring.late_module import LateModule

# What answers is heavy, and `mainspring mcp list` needs none of it.
if TYPE_CHECKING:
    from mainspring.features.mcp_server import stdio_transport
    from mainspring.http import auth
else:
    stdio_transport = LateModule("mainspring.features.mcp_server.stdio_transport")
    auth = LateModule("mainspring.http.auth")

__all__ = ["app"]


class ServedSettings(Struct, frozen=True):
    """The settings that this command reads."""

    mcp_server: OfferSettings


@app.command("serve")
def serve_client(
    config: options.Config = None,
    database: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Database file or URL. Default: as in the settings.", show_default=False),
    ] = None,
    tenant: Annotated[str, typer.Option(metavar="NAME", help="Whose runs and files these are.", show_default=False)] = "",
) -> Coroutine[object, object, None]:
    """
    Offers agents, workflows and chosen tools to the MCP client that starts it.

    It speaks MCP on standard input and output. What is offered is in the table `[mcp_server]` of the settings, as for `/mcp`.

    Examples:

        claude mcp add mainspring -- mainspring mcp serve --config /srv/agents/mainspring.toml

        codex mcp add mainspring -- mainspring mcp serve --config /srv/agents/mainspring.toml
    """
    offer = load_settings(ServedSettings, config).mcp_server
    assembly = build_engine(EngineOptions(kind="server", settings={"database": database}, config=config))
    return _serve(assembly, replace(assembly.find(McpServices), settings=offer), tenant)


async def _serve(assembly: Assembly, services: McpServices, tenant: str) -> None:
    async with assembly.lifespan:
        await assembly.engine.resume_all()
        async with create_task_group() as tasks:
            tasks.start_soon(assembly.engine.watch_over)
            tasks.start_soon(services.workflows.watch_over)
            await stdio_transport.StdioTransport(services, auth.ApiCaller(tenant)).serve()
            tasks.cancel_scope.cancel()
