"""The table `[mcp_server]`: what MCP clients are offered at `/mcp` and by `mainspring mcp serve`."""

from collections.abc import Collection
from typing import Annotated

from msgspec import Meta, Struct

from mainspring.definitions.parsed_file import hint


class OfferSettings(Struct, frozen=True):
    """What MCP clients are offered: agents and workflows, and nothing else unless it is named here. See docs/mcp.md."""

    agents: bool | tuple[str, ...] = True
    """Agents to offer as tools `agent_NAME`, and those with a user prompt as prompts: all, none, or those that are named."""
    workflows: bool | tuple[str, ...] = True
    """Workflows to offer as tools `workflow_NAME`: all, none, or those that are named."""
    tools: tuple[str, ...] = ()
    """Tools to offer under their own names, of those that the settings name (`tools`, `builtins`)."""
    memory: bool = False
    """Offer the tool `search_memory`, which finds what runs of the caller's tenant have said and done."""
    files: bool = False
    """Offer the files of the caller's tenant as resources."""
    allow_origins: tuple[str, ...] = ()
    """Web pages that may connect, such as `https://app.example.com`, besides those of this server."""
    sessions_per_key: Annotated[int, Meta(ge=1, le=10_000)] = 64
    """The most sessions that an API key has at a time (protocols up to 2025-11-25). Beyond it, the one unused longest ends."""
    session_seconds: Annotated[float, Meta(ge=10)] = 3_600.0
    """How long a session may be unused before it ends."""


def find_offer_doubts(
    offer: OfferSettings, *, agents: Collection[str], workflows: Collection[str], tools: Collection[str], remembers: bool
) -> list[str]:
    """What is to be offered and is not there."""
    named = (("agents", offer.agents, agents), ("workflows", offer.workflows, workflows), ("tools", offer.tools, tools))
    doubts = [
        f"mcp_server.{field}: there is no `{name}` to offer; {hint(name, tuple(known))}"
        for field, chosen, known in named
        for name in (() if isinstance(chosen, bool) else chosen)
        if name not in known
    ]
    if offer.memory and not remembers:
        doubts.append("mcp_server.memory: nothing is remembered, so nothing can be found; set `enabled = true` under `[memory]`")
    return doubts
