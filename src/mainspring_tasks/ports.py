"""What can be swapped in the task agent: its model, its task server, and where tasks are kept."""

from collections.abc import Sequence
from datetime import datetime
from typing import Protocol
from uuid import UUID

from mainspring.core.items import Json
from mainspring.tools.mcp.exchange import ToolAnswer
from mainspring_tasks.decision_types import DEFAULT_TEMPERATURE, MAX_RESPONSE_TOKENS, LLMMessage, LLMResponse, ToolDeclaration
from mainspring_tasks.server.task import Status, Task


class LLMAdapter(Protocol):
    """A model. `generate` raises only `LLMError` and its children. `instructions` are the system's words, never the user's."""

    async def generate(
        self,
        messages: Sequence[LLMMessage],
        tools: Sequence[ToolDeclaration],
        temperature: float = DEFAULT_TEMPERATURE,
        max_tokens: int = MAX_RESPONSE_TOKENS,
        *,
        instructions: str | None = None,
    ) -> LLMResponse: ...


class TaskServer(Protocol):
    """An MCP server with the five tools. `call` may raise anything: that becomes one error output."""

    async def call(self, user: str, name: str, arguments: Json) -> ToolAnswer: ...

    async def close(self) -> None: ...


class TaskStore(Protocol):
    """Tasks by their owners. Each method is one step that happens or does not; all raise `StoreError`, and may work again later.

    What is somebody else's is answered like what is missing; `exists` tells the two apart.
    """

    async def open(self) -> None:
        """Makes the tables, if they are missing. Raises `StoreError` that says what to do."""

    async def close(self) -> None: ...

    async def add(self, owner: str, task: Task) -> None: ...

    async def list(self, owner: str, status: Status | None = None) -> Sequence[Task]:
        """Newest first."""

    async def reword(self, owner: str, id: UUID, description: str) -> Task | None: ...

    async def complete(self, owner: str, id: UUID, at: datetime) -> Task | None:
        """The task, completed: now, or when it was before."""

    async def delete(self, owner: str, id: UUID) -> bool: ...

    async def restore(self, owner: str, task: Task) -> Task | None:
        """Puts a task back as it was, whether it has changed or is gone."""

    async def exists(self, id: UUID) -> bool:
        """Whether anybody has this task."""
