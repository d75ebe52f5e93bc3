"""The tables `[mcp.LABEL]`: MCP servers whose tools every request may use."""

from collections.abc import Mapping
from typing import Literal

from msgspec.structs import asdict

from mainspring.core.errors import InvalidRequest
from mainspring.tools.mcp.server_specs import ApprovalFilter, ServerOptions, ServerSpec, Transport


class McpServerSettings(ServerOptions, frozen=True, kw_only=True):
    """An MCP server: `command` and `args` start a program, `url` names a server that is reached by HTTP.

    A program runs in the sandbox: it sees the system and its own files, read-only, an empty workspace of its own and no network.
    See docs/tools.md.
    """

    transport: Transport | None = None
    """`stdio`, `http` or `sse`. Default: `stdio` with a `command`, else `http`, which goes over to `sse` if need be."""
    require_approval: Literal["always", "never"] | ApprovalFilter = "never"
    """Whether a person approves calls: `always`, `never`, or a table with `always` and `never`."""

    def make_spec(self, label: str) -> ServerSpec:
        """The server as the operator's: it is trusted. Raises `ValueError` for options that do not go together."""
        transport = self.transport or ("stdio" if self.command else "http")
        return ServerSpec(**{**asdict(self), "label": label, "transport": transport, "trusted": True})


def make_server_specs(servers: Mapping[str, McpServerSettings]) -> tuple[ServerSpec, ...]:
    """The operator's servers. Raises `InvalidRequest` for options that do not go together."""
    try:
        return tuple([server.make_spec(label) for label, server in servers.items()])
    except ValueError as error:
        raise InvalidRequest(str(error)) from None
