"""A server of the stateless protocol, by HTTP: prints its URL once it listens.

    modern.py PORT

`learn` gives it another tool.
"""

import socket
import sys

import uvicorn
from mcp.server.mcpserver import Context, MCPServer
from mcp_types import ElicitRequest, ElicitRequestFormParams, InputRequiredResult

server = MCPServer("modern")


@server.tool()
def add(a: int, b: int) -> int:
    """Adds."""
    return a + b


@server.tool()
async def learn(name: str, ctx: Context) -> str:
    """Learns another tool."""
    server.add_tool(lambda: "learned", name=name, description="Learned.")
    await ctx.notify_tools_changed()
    return "done"


@server.tool()
def ask() -> InputRequiredResult:
    """Asks the user and never has enough."""
    schema = {"type": "object", "properties": {"name": {"type": "string"}}}
    question = ElicitRequest(params=ElicitRequestFormParams(message="Who are you?", requested_schema=schema))
    return InputRequiredResult(input_requests={"name": question}, request_state="asked")


if __name__ == "__main__":
    listening = socket.create_server(("127.0.0.1", int(sys.argv[1])))
    print(f"http://127.0.0.1:{listening.getsockname()[1]}/mcp", flush=True)
    uvicorn.Server(uvicorn.Config(server.streamable_http_app(), log_level="error")).run([listening])
