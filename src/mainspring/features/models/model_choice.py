"""Which provider and model answer: those of the settings, those that a model's name stands for, or those that were found; how
much they take, and what they are known to be unable to do."""

import os
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from mainspring.core.errors import InvalidRequest, ModelNotFound, ModelUnable
from mainspring.core.spec import RunSpec
from mainspring.features.models import backends
from mainspring.features.models.backends import VENDORS, FoundBackend, Progress, complete_backend, make_router
from mainspring.features.models.discovery import SERVERS, find_address, find_in_environment
from mainspring.features.models.settings import ModelSettings, ProviderSettings
from mainspring.ports import KnownProfile, OrderContext, OrderStep, Provider, ReadingStep, Tape
from mainspring.providers.wrapper import explain_profiles, find_window


class ModelChoice(Struct, frozen=True):
    """Who answers: the provider, the model for requests that name none, and both in words."""

    provider: Provider
    model: str
    told: str


def choose_discovered(
    known: Mapping[str, FoundBackend],
    *,
    aliases: Mapping[str, str | Sequence[str]] | None = None,
    progress: Progress | None = None,
) -> ModelChoice | None:
    """What answers when nothing is configured: the first that was found; None if there is none."""
    model = backends.pick_default_model(known)
    if model is None:
        return None
    first = model.partition("/")[0]
    told = f"{model}, since {known[first].origin}"
    if model == "local/smollm2":
        told += "; it is very small, for a first look. A better one is one step away: `mainspring models pull`, "
        told += "a vendor's key, Ollama, or --base-url URL"
    elif others := [name for name in known if name != first]:
        told += f"; also {', '.join(others)}: choose with --model PROVIDER/MODEL"
    return ModelChoice(make_router(known, aliases=aliases, default=first, progress=progress), model, told)


def choose_configured(settings: ModelSettings, *, progress: Progress | None = None, tape: Tape | None = None) -> ModelChoice:
    """What answers when the settings name providers. Raises `InvalidRequest`."""
    known = backends.list_configured(settings.providers)
    if settings.base_url is not None:
        backend = ProviderSettings(kind="chat", base_url=settings.base_url, key=settings.backend_key)
        known["default"] = FoundBackend(backend, "configured")
    # A name that no provider has is refused: guessing would send what was meant for one to another.
    default = "default" if "default" in known else None
    provider = make_router(known, aliases=settings.aliases, default=default, progress=progress, tape=tape)
    model = settings.model or backends.pick_default_model(known) or ""
    return ModelChoice(provider, model, f"{model or 'as the request says'}, of the providers {', '.join(known)}")


def resolve_provider(
    model: str,
    base_url: str | None = None,
    api_key: str | None = None,
    *,
    environment: Mapping[str, str] = os.environ,
    progress: Progress | None = None,
    tape: Tape | None = None,
) -> Provider:
    """The provider that a model name stands for: `scripted:FILE`, `local`, `local:FILE`, any name for the backend at `base_url`,
    `VENDOR/MODEL` or `SERVER/MODEL`, or a name alone for whom the environment has a key or an address.

    A name with a provider in it is asked of that provider and of nobody else, and `api_key` is given to whoever is asked.
    """
    kind, _, rest = model.partition(":")
    vendor = model.partition("/")[0]
    if kind == "scripted":
        return backends.make_provider(kind, ProviderSettings(kind="scripted", model=rest), tape=tape)
    if base_url is not None:
        key = api_key or environment.get("OPENAI_API_KEY")
        return backends.make_provider("openai", ProviderSettings(kind="chat", base_url=base_url, key=key), environment, tape=tape)
    if kind == "local" or vendor == "local":
        weights = rest if kind == "local" else model.removeprefix("local/")
        backend = ProviderSettings(kind="local", model=weights or backends.find_own_model())
        return make_router({"local": FoundBackend(backend, "named")}, default="local", progress=progress, tape=tape)
    known = _find_named(model, api_key, environment)
    if not known:
        needed = " or ".join(VENDORS[vendor].keys) if vendor in VENDORS else "OPENAI_API_KEY, ANTHROPIC_API_KEY or GEMINI_API_KEY"
        address = "pass an address as base_url or --base-url (for example http://127.0.0.1:11434/v1)"
        advice = f"set {needed}, or {address}, or use `local`, or `scripted:FILE`"
        if close := get_close_matches(vendor, {*VENDORS, *SERVERS} - {vendor}, 1, 0.8):
            advice = f"did you mean `{close[0]}{model.removeprefix(vendor)}`? Or else {advice}"
        raise InvalidRequest(f"model `{model}` needs a backend: {advice}", param="model")
    return make_router(known, default=_guess_provider(model, known), environment=environment, progress=progress, tape=tape)


def _find_named(model: str, api_key: str | None, environment: Mapping[str, str]) -> dict[str, FoundBackend]:
    """Whom a model's name leaves to be asked: its provider alone if it names one, else those of the environment."""
    vendor, slash, _ = model.partition("/")
    if slash and vendor in SERVERS:
        address = find_address(vendor, SERVERS[vendor], environment)
        return {vendor: FoundBackend(ProviderSettings(kind=SERVERS[vendor].kind, base_url=address, key=api_key), "named")}
    known = find_in_environment(environment)
    if slash and vendor in VENDORS:
        known = {vendor: known[vendor]} if vendor in known else {}
    if api_key is None:
        return known
    asked = vendor if slash and vendor in VENDORS else _guess_provider(model, VENDORS)
    found = known.get(asked) or FoundBackend(complete_backend(asked, ProviderSettings(kind=VENDORS[asked].kind)), "named")
    return {asked: FoundBackend(replace(found.backend, key=api_key, key_env=None), "named")}


def add_missing_keys(environment: Mapping[str, str]) -> dict[str, str]:
    """An environment that has every vendor's key, for asking a recording, which looks at none."""
    # Short enough never to be taken for a secret in what was said.
    return {**{key: "none" for known in VENDORS.values() for key in known.keys[:1]}, **environment}


def _guess_provider(model: str, known: Mapping[str, object]) -> str:
    """The provider of a model that is named without one: by its family, or else the first."""
    family = {"claude": "anthropic", "gemini": "gemini", "gpt": "openai"}.get(model.partition("-")[0])
    return family if family is not None and family in known else next(iter(known))


class WindowStep(OrderStep):
    """Has orders that may be shortened be shortened or compacted before the model's window is full. Others pass: the size of a
    request is only estimated, and a backend may still take it."""

    name = "window"
    runs_in_place = True

    def __init__(self, provider: Provider) -> None:
        self._provider = provider

    async def prepare(self, order: RunSpec, context: OrderContext) -> RunSpec:
        window = order.window
        if order.step_call is not None or (window.truncation == "disabled" and window.compact_threshold is None):
            return order
        known = await find_window(self._provider, order.model)
        if known is None:
            return order
        threshold = window.compact_threshold and min(window.compact_threshold, known * 3 // 4)
        room = known if window.context_tokens is None else min(known, window.context_tokens)
        room_said = room if window.truncation == "auto" else window.context_tokens
        return replace(order, window=replace(window, compact_threshold=threshold, context_tokens=room_said))


class Ability(Struct, frozen=True):
    """Something that a model must be able to do for some orders: by which question the doctor finds it out, and which fields of
    the profile say that it cannot."""

    question: str
    fields: tuple[str, ...]
    told: str


CALLS: Final = Ability("calls a tool", ("calls", "tools"), "call tools")
SCHEMAS: Final = Ability("keeps to a schema", ("keeps_schemas",), "keep to a schema")
ENDING: Final = Ability("ends", ("ends",), "end its answers")
ABILITIES: Final = (CALLS, SCHEMAS, ENDING)


class AbilityStep(ReadingStep):
    """Refuses an order that needs what no model of its name can do. Raises `ModelUnable`."""

    name = "abilities"
    runs_in_place = True

    def __init__(self, provider: Provider) -> None:
        self._provider = provider

    async def prepare(self, order: RunSpec, context: OrderContext) -> RunSpec:
        if needs := _list_needs(order):
            try:
                known = await explain_profiles(self._provider, order.model)
            except ModelNotFound:  # which is for whoever asks it to say
                return order
            for need in needs:
                if known and (causes := [_find_cause(each, need) for each in known]) and all(causes):
                    raise ModelUnable(_explain(order, need, known[0], causes[0] or ""))
        return order


def _list_needs(order: RunSpec) -> list[Ability]:
    if order.step_call is not None or order.goal != "answer":
        return []
    is_decision = order.preset == "decision"
    has_tools = bool(order.tools) and order.tool_choice.mode != "none" and bool(order.agent or is_decision)
    has_schema = ((order.sampling.text or {}).get("format") or {}).get("type") == "json_schema"
    return [*([CALLS] if has_tools else []), *([SCHEMAS] if has_schema else []), *([ENDING] if is_decision else [])]


def _find_cause(known: KnownProfile, need: Ability) -> str | None:
    """Why the model cannot do it, None if it may be able to. What was found out or set outweighs what is shipped."""
    for field in need.fields:
        fact = known.facts.get(field)
        if fact is not None:
            return None if fact.value else fact.evidence
    return None


def _explain(order: RunSpec, need: Ability, known: KnownProfile, cause: str) -> str:
    who = f"agent `{order.agent}`" if order.agent else "the task agent" if order.preset == "decision" else "`text.format`"
    ways = [
        "take another model (`mainspring models pull` fetches one, `mainspring models` lists those that you have)",
        f"examine it again with `mainspring doctor --model {order.model} --learn`",
        f'set `{need.fields[0]} = true` in `[providers.NAME.profiles."{known.model}"]` to try it all the same',
    ]
    return f"model `{order.model}` cannot {need.told} ({cause}), and {who} needs that; {'; or '.join(ways)}"
