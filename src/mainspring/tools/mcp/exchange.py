"""The data exchanged with an MCP server: the tools it lists, its answers, and the loss of a session."""

from collections.abc import Awaitable, Callable

from msgspec import Struct

from mainspring.core.items import Json

# One message, whatever it is. A larger one is refused while it is being read.
MOST_BYTES = 16 * 1024 * 1024
LIST_TTL = 300.0
STATELESS = "2026-07-28"

Progress = Callable[[str], None]
# Is shown a server's question, as the protocol spells it, and gives the fields of the answer; None declines.
Elicit = Callable[[Json], Awaitable[Json | None]]


class RemoteTool(Struct, frozen=True):
    """A tool as its server lists it. One with a `method` is no tool of the server: that is asked to read something for it."""

    name: str
    description: str
    schema: Json
    annotations: Json = {}
    may_be_task: bool = False
    method: str = ""

    @property
    def is_read_only(self) -> bool:
        return self.annotations.get("readOnlyHint") is True


class RejectedTool(Struct, frozen=True):
    """A listed tool that cannot be used, and why."""

    name: str
    reason: str


class ToolListing(Struct, frozen=True):
    """The tools of a server, which need not be asked for again for `seconds`. `says` is the name and version that it gives
    itself."""

    tools: tuple[RemoteTool, ...] = ()
    rejected: tuple[RejectedTool, ...] = ()
    seconds: float = LIST_TTL
    says: str = ""


class ToolAnswer(Struct, frozen=True):
    """The result of a call: content blocks as the protocol spells them, and the structured content if there is any."""

    content: tuple[Json, ...] = ()
    structured: object = None
    is_error: bool = False


class SessionLost(Exception):
    """The session ended during a request. Whether the server executed it is unknown."""


class TooMuchSaid(SessionLost):
    """The server has said more than it may, and was stopped."""


def list_errors(error: BaseException) -> list[BaseException]:
    """The errors that a group is made of; an error that is no group is its own."""
    if isinstance(error, BaseExceptionGroup):
        return [leaf for inner in error.exceptions for leaf in list_errors(inner)]
    return [error]
