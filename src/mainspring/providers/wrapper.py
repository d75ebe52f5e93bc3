"""What providers have in common that stand before another one."""

from collections.abc import Sequence

from mainspring.core.model_request import ModelRequest
from mainspring.core.tokens import estimate
from mainspring.ports import ModelInfo, Provider, TokenCounter


class ProviderWrapper:
    """The provider behind it in everything but its `stream`, which a child adds."""

    def __init__(self, provider: Provider) -> None:
        self.name = provider.name
        self._provider = provider

    async def models(self) -> Sequence[ModelInfo]:
        return await self._provider.models()

    async def count_tokens(self, request: ModelRequest) -> int:
        return await count_tokens(self._provider, request)

    async def close(self) -> None:
        await self._provider.close()


async def count_tokens(provider: Provider, request: ModelRequest) -> int:
    """The provider's own count, or the estimate that everybody makes for a provider that cannot count."""
    if isinstance(provider, TokenCounter):
        return await provider.count_tokens(request)
    return estimate(request.items, request.instructions, request.tools)
