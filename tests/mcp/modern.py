"""A server of the stateless protocol, by HTTP: prints its URL once it listens.

    modern.py PORT [sse [TOKEN]]

With `sse` it is reached by the older transport, of GET and endpoint; with a token every request must have it. `learn` gives it
another tool.
"""

import socket
import sys

import uvicorn
from mcp.server.mcpserver import Context, MCPServer
from mcp_types import ElicitRequest, ElicitRequestFormParams, InputRequiredResult
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

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


def locked(app: ASGIApp, token: str) -> ASGIApp:
    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        is_let_in = scope["type"] != "http" or (b"authorization", f"Bearer {token}".encode()) in scope["headers"]
        await (app if is_let_in else Response(status_code=401))(scope, receive, send)

    return answer


if __name__ == "__main__":
    port, *how = sys.argv[1:]
    listening = socket.create_server(("127.0.0.1", int(port)))
    print(f"http://127.0.0.1:{listening.getsockname()[1]}/{'sse' if how else 'mcp'}", flush=True)
    app: ASGIApp = server.sse_app() if how else server.streamable_http_app()
    uvicorn.Server(uvicorn.Config(locked(app, how[1]) if how[1:] else app, log_level="error")).run([listening])
