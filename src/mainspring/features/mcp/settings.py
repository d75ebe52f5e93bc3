"""The tables `[mcp.LABEL]`: MCP servers whose tools every request may use."""

from collections.abc import Mapping
from typing import Literal

from msgspec import Struct
from msgspec.structs import asdict

from mainspring.core.errors import InvalidRequest
from mainspring.tools.mcp.server_specs import CALL_SECONDS, ApprovalFilter, ServerSpec, ToolFilter, Transport


class McpServerSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An MCP server: `command` and `args` start a program, `url` names a server that is reached by HTTP.

    A program runs in the sandbox: it sees the system and its own files, read-only, an empty workspace of its own and no network.
    See docs/tools.md.
    """

    transport: Transport | None = None
    """`stdio`, `http` or `sse`. Default: `stdio` with a `command`, else `http`."""
    command: str | None = None
    """The program to start."""
    args: tuple[str, ...] = ()
    """Its arguments."""
    env: dict[str, str] = {}
    """Environment variables for the program."""
    cwd: str | None = None
    """The folder to start it in."""
    url: str = ""
    """The address of a server that is reached by HTTP."""
    headers: dict[str, str] = {}
    """Headers to send with every request."""
    allowed_tools: tuple[str, ...] | ToolFilter | None = None
    """The tools that may be used, by name, or a table with `tool_names` and `read_only`. Default: all."""
    require_approval: Literal["always", "never"] | ApprovalFilter = "never"
    """Whether a person approves calls: `always`, `never`, or a table with `always` and `never`."""
    timeout: float = CALL_SECONDS
    """Seconds that a call may take."""
    repeatable: tuple[str, ...] = ()
    """Tools whose calls do no harm when made twice."""
    sandboxed: bool = True
    """Run the program in the sandbox."""
    network: bool = False
    """Grant the program the network."""
    folders: tuple[str, ...] = ()
    """Folders that it may write to."""
    reads: tuple[str, ...] = ()
    """Files and folders that it may read."""

    def make_spec(self, label: str) -> ServerSpec:
        """The server as the operator's: it is trusted. Raises `ValueError` for options that do not go together."""
        given = {name: value for name, value in asdict(self).items() if value is not None}
        transport = self.transport or ("http" if self.command is None else "stdio")
        return ServerSpec(**{**given, "label": label, "transport": transport, "trusted": True})


def make_server_specs(servers: Mapping[str, McpServerSettings]) -> tuple[ServerSpec, ...]:
    """The operator's servers. Raises `InvalidRequest` for options that do not go together."""
    try:
        return tuple([server.make_spec(label) for label, server in servers.items()])
    except ValueError as error:
        raise InvalidRequest(str(error)) from None
