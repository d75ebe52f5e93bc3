"""Routes a model name to its backend: names, aliases, and fallback when a model fails."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, aclosing, suppress
from logging import getLogger

from anyio import create_task_group
from msgspec import Struct
from msgspec.structs import replace

from mainspring.core import errors
from mainspring.core.errors import InvalidRequest, ModelNotFound, ProviderError
from mainspring.core.items import Usage
from mainspring.core.model_request import ModelRequest
from mainspring.core.model_stream import ModelStream
from mainspring.definitions.parsed_file import hint
from mainspring.ports import DocumentStore, KnownProfile, ModelFeature, ModelInfo, ProfileValue, Provider, SharedLimits
from mainspring.providers.wrapper import (
    add_usage,
    count_tokens,
    explain_profiles,
    find_features,
    find_window,
    forget_profiles,
    keep_profiles,
    learn_profile,
    runs_in_place,
    share_limits,
    sum_usage,
    write_profiles,
)

log = getLogger(__name__)

# Failures of this backend or this model, which another one need not share.
_ELSEWHERE = (
    errors.Unavailable,
    errors.RateLimited,
    errors.BadOutput,
    errors.Unauthorized,
    errors.Misconfigured,
    errors.ModelNotFound,
    errors.ContextOverflow,
)


class ModelRoute(Struct, frozen=True):
    """A model as its provider knows it."""

    provider: str
    model: str


class Router:
    """Many providers as one, with fallback.

    `provider/model` goes to that provider as `model`. A name whose part before the first slash is no provider goes unchanged to
    the `default` one. An alias stands for a chain of names, aliases among them, that are tried in order.

    Falls back to the next of a chain when the backend is down, busy, unreadable, rejects our key or has no such model, or when
    the request is too long for the model, and only while no event has been handed on. A request that is refused for what it says
    is not tried elsewhere: that would hide a mistake. If all fail, raises the first error that is retryable, or else the first.

    Raises `InvalidRequest` for providers and aliases that cannot work. It owns its providers: `close` closes each once.
    """

    def __init__(
        self,
        providers: Mapping[str, Provider],
        *,
        aliases: Mapping[str, str | Sequence[str]] | None = None,
        default: str | None = None,
        name: str = "router",
    ) -> None:
        self.name = name
        self._providers = dict(providers)
        self.runs_in_place = all(runs_in_place(provider) for provider in self._providers.values())
        self._default = default
        for provider in self._providers:
            if not provider or "/" in provider:
                raise InvalidRequest(f"provider name `{provider}` must be a word without `/`", param="providers")
        if default is not None and default not in self._providers:
            known = _hint(default, self._providers)
            raise InvalidRequest(f"the default provider `{default}` is not configured{known}", param="default")
        given = {alias: (chain,) if isinstance(chain, str) else tuple(chain) for alias, chain in (aliases or {}).items()}
        self._aliases = {alias: tuple(dict.fromkeys(self._resolve(alias, given, ()))) for alias in given}

    async def stream(self, request: ModelRequest) -> ModelStream:
        """Raises `ModelNotFound` for a model that no provider is known for."""
        failures: list[ProviderError] = []
        spent = Usage()
        for route in self._chain(request.model):
            if failures:
                log.warning("trying %s/%s instead: %s", route.provider, route.model, failures[-1].message)
            is_begun = False
            try:
                asked = self._providers[route.provider].stream(replace(request, model=route.model))
                async with aclosing(asked) as events:
                    take = None
                    with suppress(StopAsyncIteration):
                        while True:
                            event = await events.asend(take)
                            is_begun = True
                            take = yield add_usage(event, spent) if failures else event
                return
            except ProviderError as error:
                spent = sum_usage(spent, error.usage)
                error.usage = spent if failures else error.usage
                if is_begun:
                    raise
                failures.append(error)
                if not isinstance(error, _ELSEWHERE):
                    break
        failure = next((error for error in failures if error.retryable), failures[0])
        failure.usage = failures[-1].usage
        raise failure

    async def models(self) -> Sequence[ModelInfo]:
        """The aliases, and the models of every provider that can list them. Raises only if there is nothing to list."""
        found: dict[str, Sequence[ModelInfo]] = {}
        failures: list[ProviderError] = []

        async def list_models(name: str, provider: Provider) -> None:
            try:
                found[name] = await provider.models()
            except ProviderError as error:
                log.warning("provider %s lists no models: %s", name, error.message)
                failures.append(error)

        async with create_task_group() as tasks:
            for name, provider in self._providers.items():
                tasks.start_soon(list_models, name, provider)
        if failures and not found and not self._aliases:
            raise failures[0]
        aliases = [ModelInfo(alias, owned_by=self.name) for alias in self._aliases]
        listed = [replace(model, id=f"{name}/{model.id}") for name in self._providers for model in found.get(name, ())]
        return (*aliases, *listed)

    async def count_tokens(self, request: ModelRequest) -> int:
        """As the first of the model's chain counts, or estimated if that cannot count."""
        route = self._chain(request.model)[0]
        return await count_tokens(self._providers[route.provider], replace(request, model=route.model))

    def find_features(self, model: str) -> frozenset[ModelFeature]:
        """What every model of the chain has, since any of them may answer."""
        return frozenset.intersection(
            *[find_features(self._providers[route.provider], route.model) for route in self._chain(model)]
        )

    def keep_profiles(self, store: DocumentStore) -> None:
        for provider in self._providers.values():
            keep_profiles(provider, store)

    def share_limits(self, limits: SharedLimits) -> None:
        for provider in self._providers.values():
            share_limits(provider, limits)

    async def write_profiles(self) -> None:
        for provider in self._providers.values():
            await write_profiles(provider)

    async def explain_profiles(self, model: str) -> Sequence[KnownProfile]:
        """Those of every model of the chain. Raises `ModelNotFound`."""
        return [
            replace(known, provider=route.provider)
            for route in self._chain(model)
            for known in await explain_profiles(self._providers[route.provider], route.model)
        ]

    async def find_window(self, model: str) -> int | None:
        """The largest of the chain, None if one is not known: the next is asked where the request does not fit."""
        windows = [await find_window(self._providers[route.provider], route.model) for route in self._chain(model)]
        known = [window for window in windows if window is not None]
        return max(known) if len(known) == len(windows) else None

    async def learn_profile(self, model: str, values: Mapping[str, ProfileValue], evidence: str) -> None:
        if len(chain := self._chain(model)) == 1:
            await learn_profile(self._providers[chain[0].provider], chain[0].model, values, evidence)

    async def forget_profiles(self, model: str) -> int:
        """Forgets what was learned of every model of the chain. Raises `ModelNotFound`."""
        return sum([await forget_profiles(self._providers[route.provider], route.model) for route in self._chain(model)])

    async def close(self) -> None:
        """Closes all of them, even if one fails to."""
        async with AsyncExitStack() as stack:
            for provider in {id(provider): provider for provider in self._providers.values()}.values():
                stack.push_async_callback(provider.close)

    def _chain(self, name: str) -> tuple[ModelRoute, ...]:
        if name in self._aliases:
            return self._aliases[name]
        if (route := self._route(name)) is not None:
            return (route,)
        raise ModelNotFound(f"model `{name}` is not configured{self._hint(name, self._aliases)}")

    def _route(self, name: str) -> ModelRoute | None:
        provider, _, model = name.partition("/")
        if provider in self._providers and model:
            return ModelRoute(provider, model)
        return ModelRoute(self._default, name) if self._default is not None else None

    def _resolve(self, name: str, aliases: Mapping[str, tuple[str, ...]], path: tuple[str, ...]) -> Iterator[ModelRoute]:
        """The routes that a name stands for; `path` are the aliases that led to it."""
        if name in path:
            way = " -> ".join([f"`{step}`" for step in (*path, name)])
            raise InvalidRequest(f"alias {way} leads back to itself; name a model as `provider/model`", param="aliases")
        if name in aliases:
            if not aliases[name]:
                raise InvalidRequest(f"alias `{name}` stands for no model; name one", param="aliases")
            for step in aliases[name]:
                yield from self._resolve(step, aliases, (*path, name))
        elif (route := self._route(name)) is not None:
            yield route
        else:
            known = self._hint(name, aliases)
            raise InvalidRequest(f"alias `{path[-1]}` names `{name}`, which is not configured{known}", param="aliases")

    def _hint(self, name: str, aliases: Iterable[str]) -> str:
        """What may have been meant: an alias, or the model of one of the providers."""
        _, _, model = name.partition("/")
        return _hint(name, [*aliases, *[f"{provider}/{model or 'MODEL'}" for provider in self._providers]])


def _hint(word: str, known: Iterable[str]) -> str:
    names = list(known)
    return f"; {hint(word, names)}" if names else "; no provider is"
