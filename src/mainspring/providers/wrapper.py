"""What providers that wrap another provider share."""

from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from mainspring.core.events import ModelEvent, TurnEnded
from mainspring.core.items import Usage
from mainspring.core.model_request import ModelRequest
from mainspring.core.tokens import estimate, is_plausible
from mainspring.ports import (
    DocumentStore,
    FeatureReporter,
    InPlace,
    KnownProfile,
    LimitSharer,
    ModelFeature,
    ModelInfo,
    ProfileKeeper,
    ProfileValue,
    Provider,
    SharedLimits,
    TokenCounter,
)


def sum_usage(spent: Usage, used: Usage | None) -> Usage:
    """What attempts at one turn have used in all, as far as it is known."""
    return spent + used if used is not None and is_plausible(used) else spent


def add_usage(event: ModelEvent, spent: Usage) -> ModelEvent:
    """The event: the end of a turn with what the attempts before it have used, if it is counted at all."""
    if isinstance(event, TurnEnded) and event.usage is not None and is_plausible(event.usage):
        return replace(event, usage=event.usage + spent)
    return event


class ProviderWrapper:
    """Delegates everything to the provider behind it but `stream`, which a child implements."""

    def __init__(self, provider: Provider) -> None:
        self.name = provider.name
        self.runs_in_place = runs_in_place(provider)
        self._provider = provider

    async def models(self) -> Sequence[ModelInfo]:
        return await self._provider.models()

    async def count_tokens(self, request: ModelRequest) -> int:
        return await count_tokens(self._provider, request)

    def find_features(self, model: str) -> frozenset[ModelFeature]:
        return find_features(self._provider, model)

    def keep_profiles(self, store: DocumentStore) -> None:
        keep_profiles(self._provider, store)

    async def write_profiles(self) -> None:
        await write_profiles(self._provider)

    def share_limits(self, limits: SharedLimits) -> None:
        share_limits(self._provider, limits)

    async def explain_profiles(self, model: str) -> Sequence[KnownProfile]:
        return await explain_profiles(self._provider, model)

    async def find_window(self, model: str) -> int | None:
        return await find_window(self._provider, model)

    async def learn_profile(self, model: str, values: Mapping[str, ProfileValue], evidence: str) -> None:
        await learn_profile(self._provider, model, values, evidence)

    async def forget_profiles(self, model: str) -> int:
        return await forget_profiles(self._provider, model)

    async def close(self) -> None:
        await self._provider.close()


def runs_in_place(provider: Provider) -> bool:
    """Whether the provider needs no guard; one that does not say so does."""
    return isinstance(provider, InPlace) and provider.runs_in_place


async def count_tokens(provider: Provider, request: ModelRequest) -> int:
    """The provider's own count, or our estimate if it cannot count."""
    if isinstance(provider, TokenCounter):
        return await provider.count_tokens(request)
    return estimate(request.items, request.instructions, request.tools)


def find_features(provider: Provider, model: str) -> frozenset[ModelFeature]:
    """The features that the provider has for this model, none if it does not say."""
    return provider.find_features(model) if isinstance(provider, FeatureReporter) else frozenset()


def keep_profiles(provider: Provider, store: DocumentStore) -> None:
    """Has what the provider learns of its models kept, if it learns."""
    if isinstance(provider, ProfileKeeper):
        provider.keep_profiles(store)


async def write_profiles(provider: Provider) -> None:
    """Waits until all that the provider has learned is written."""
    if isinstance(provider, ProfileKeeper):
        await provider.write_profiles()


def share_limits(provider: Provider, limits: SharedLimits) -> None:
    """Has the limits of the provider, if it has any, hold for all processes together."""
    if isinstance(provider, LimitSharer):
        provider.share_limits(limits)


async def explain_profiles(provider: Provider, model: str) -> Sequence[KnownProfile]:
    """The profiles in force of the models that a name stands for, none if the provider does not adapt."""
    return await provider.explain_profiles(model) if isinstance(provider, ProfileKeeper) else ()


async def find_window(provider: Provider, model: str) -> int | None:
    return await provider.find_window(model) if isinstance(provider, ProfileKeeper) else None


async def learn_profile(provider: Provider, model: str, values: Mapping[str, ProfileValue], evidence: str) -> None:
    if isinstance(provider, ProfileKeeper):
        await provider.learn_profile(model, values, evidence)


async def forget_profiles(provider: Provider, model: str) -> int:
    return await provider.forget_profiles(model) if isinstance(provider, ProfileKeeper) else 0
