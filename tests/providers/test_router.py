"""The router: whom a name means, and who is tried when a model fails."""

from collections.abc import Sequence

import pytest
from msgspec.structs import replace
from tests.kit.clock import JUMPING
from tests.providers.stand import ANSWER, BEGUN, Puppet, Reader, asks, heard, said, settle

from mainspring.core.errors import (
    BadOutput,
    ContextOverflow,
    InvalidRequest,
    ProviderError,
    RateLimited,
    Refused,
    Unauthorized,
    Unavailable,
)
from mainspring.core.events import TurnEnded
from mainspring.core.items import ToolDefinition, Usage
from mainspring.core.model_request import ModelRequest
from mainspring.core.tokens import estimate
from mainspring.ports import ModelInfo, TokenCounter
from mainspring.providers.router import Router
from mainspring.providers.scripted import Scripted, ScriptError, fail, say


@pytest.fixture(scope="module")
def anyio_backend() -> tuple[str, dict[str, object]]:
    return JUMPING


def scripts(**turns: object) -> dict[str, Scripted]:
    """A provider for each name, which fails as told or else says its name."""
    return {
        name: Scripted(fail(told) if isinstance(told, ProviderError) else say(name), repeat=True) for name, told in turns.items()
    }


@pytest.mark.parametrize(
    ("name", "provider", "model"),
    [
        ("openai/gpt", "openai", "gpt"),
        ("openrouter/meta-llama/llama-3", "openrouter", "meta-llama/llama-3"),
        ("meta-llama/llama-3", "openai", "meta-llama/llama-3"),
        ("gpt", "openai", "gpt"),
        ("openrouter", "openai", "openrouter"),
        ("openrouter/", "openai", "openrouter/"),
    ],
)
async def test_first_word_names_the_provider_if_there_is_one_of_that_name(name: str, provider: str, model: str) -> None:
    providers = scripts(openai=None, openrouter=None)
    assert await said(Router(providers, default="openai"), asks(model=name)) == provider
    assert [request.model for request in providers[provider].requests] == [model]


async def test_what_a_failed_model_has_used_is_counted_with_the_answer_of_the_next() -> None:
    error = BadOutput("garbled")
    error.usage = Usage(70, 30)
    *_, alone = await heard(Router(scripts(b=None)), asks(model="b/m"))
    *_, end = await heard(Router(scripts(a=error, b=None), aliases={"any": ["a/m", "b/m"]}), asks(model="any"))
    assert isinstance(alone, TurnEnded)
    assert isinstance(end, TurnEnded)
    assert alone.usage is not None
    assert end.usage == alone.usage + error.usage


@pytest.mark.requirement("C22")
async def test_everything_but_the_name_is_forwarded_as_it_is() -> None:
    providers = scripts(a=None)
    look = ToolDefinition("look")
    request = ModelRequest(
        "resp_1", "a/m", asks().items, turn=3, instructions="Be brief.", tools=(look,), temperature=0.5, tenant="t"
    )
    await heard(Router(providers), request)
    assert providers["a"].requests == [replace(request, model="m")]


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("opanai/gpt-4", "did you mean `openai/gpt-4`?"),
        ("fsat", "did you mean `fast`?"),
        ("gpt", "known: `fast`, `openai/MODEL`, `local/MODEL`"),
        ("openai/", "did you mean `openai/MODEL`?"),
    ],
)
async def test_unknown_model_is_refused_with_what_may_be_meant(name: str, hint: str) -> None:
    router = Router(scripts(openai=None, local=None), aliases={"fast": ["openai/gpt"]})
    with pytest.raises(Refused) as caught:
        await heard(router, asks(model=name))
    assert (caught.value.message, caught.value.param) == (f"model `{name}` is not configured; {hint}", "model")


@pytest.mark.parametrize(
    "error",
    [Unavailable("down"), RateLimited("busy"), BadOutput("garbled"), Unauthorized("who"), ContextOverflow("long")],
)
async def test_next_of_the_chain_is_tried_when_another_model_may_help(error: ProviderError) -> None:
    providers = scripts(a=error, b=error, c=None)
    router = Router(providers, aliases={"best": ["a/one", "b/two", "c/three"]})
    assert await said(router, asks(model="best")) == "c"
    assert [provider.requests[0].model for provider in providers.values()] == ["one", "two", "three"]


@pytest.mark.parametrize("error", [Refused("no such model"), ProviderError("odd")])
async def test_request_that_is_refused_for_what_it_says_is_not_tried_elsewhere(error: ProviderError) -> None:
    providers = scripts(a=error, b=None)
    with pytest.raises(type(error), match=error.message):
        await heard(Router(providers, aliases={"best": ["a/m", "b/m"]}), asks(model="best"))
    assert providers["b"].requests == []


async def test_defect_of_a_provider_is_not_hidden_by_another() -> None:
    providers = {"a": Scripted(say("a", expect="something else")), **scripts(b=None)}
    with pytest.raises(ScriptError):
        await heard(Router(providers, aliases={"best": ["a/m", "b/m"]}), asks(model="best"))
    assert providers["b"].requests == []


async def test_nothing_else_is_tried_once_an_event_was_handed_on() -> None:
    first, second = Puppet(), Puppet()
    reader = Reader(Router({"a": first, "b": second}, aliases={"best": ["a/m", "b/m"]}), model="best")
    await settle()
    first.calls[0].say(BEGUN)
    first.calls[0].fail(Unavailable("gone"))
    await settle()
    assert reader.heard == [BEGUN]
    assert isinstance(reader.error, Unavailable)
    assert second.calls == []


async def test_failed_stream_is_closed_before_the_next_is_asked() -> None:
    first, second = Puppet(), Puppet()
    reader = Reader(Router({"a": first, "b": second}, aliases={"best": ["a/m", "b/m"]}), model="best")
    await settle()
    first.calls[0].fail(Unavailable("down"))
    await settle()
    assert first.calls[0].is_closed
    second.calls[0].say(*ANSWER)
    second.calls[0].end()
    await settle()
    assert reader.heard == list(ANSWER)


@pytest.mark.parametrize(
    ("failures", "raised"),
    [
        ([Unavailable("one"), RateLimited("two")], "one"),
        ([Unauthorized("one"), RateLimited("two")], "two"),
        ([ContextOverflow("one"), Unauthorized("two")], "one"),
        ([Unavailable("one"), Refused("two")], "one"),
        ([Unauthorized("one"), Refused("two")], "one"),
    ],
)
async def test_first_failure_that_may_pass_is_raised_when_all_fail(failures: list[ProviderError], raised: str) -> None:
    providers = scripts(a=failures[0], b=failures[1])
    with pytest.raises(ProviderError) as caught:
        await heard(Router(providers, aliases={"best": ["a/m", "b/m"]}), asks(model="best"))
    assert caught.value.message == raised


async def test_alias_may_name_aliases_and_each_model_is_tried_once() -> None:
    providers = scripts(a=Unavailable("down"), b=Unavailable("down"), c=None)
    aliases = {"best": ["a/m", "spare", "c/m"], "spare": ["b/m", "a/m"]}
    assert await said(Router(providers, aliases=aliases), asks(model="best")) == "c"
    assert [len(provider.requests) for provider in providers.values()] == [1, 1, 1]


async def test_alias_goes_before_a_provider_and_may_be_a_single_name() -> None:
    router = Router(scripts(a=None, b=None), aliases={"a/old": "b/new"})
    assert await said(router, asks(model="a/old")) == "b"


@pytest.mark.parametrize(
    ("aliases", "message"),
    [
        (
            {"a": ["b"], "b": ["c", "a"], "c": ["p/m"]},
            "alias `a` -> `b` -> `a` leads back to itself; name a model as `provider/model`",
        ),
        ({"m": ["m"]}, "alias `m` -> `m` leads back to itself; name a model as `provider/model`"),
        ({"a": []}, "alias `a` stands for no model; name one"),
        ({"a": ["q/m"]}, "alias `a` names `q/m`, which is not configured; did you mean `p/m`?"),
    ],
)
def test_alias_that_cannot_work_is_refused_at_once(aliases: dict[str, Sequence[str]], message: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        Router({"p": Puppet()}, aliases=aliases)
    assert caught.value.message == message


@pytest.mark.parametrize(
    ("names", "default", "message"),
    [
        (["a/b"], None, "provider name `a/b` must be a word without `/`"),
        ([""], None, "provider name `` must be a word without `/`"),
        (["openai"], "opanai", "the default provider `opanai` is not configured; did you mean `openai`?"),
        ([], "openai", "the default provider `openai` is not configured; no provider is"),
    ],
)
def test_provider_that_cannot_be_named_is_refused(names: list[str], default: str | None, message: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        Router({name: Puppet() for name in names}, default=default)
    assert caught.value.message == message


class Broken(Puppet):
    """Can do nothing, not even close."""

    async def models(self) -> Sequence[ModelInfo]:
        raise Unavailable(f"{self.name} is down")

    async def close(self) -> None:
        await super().close()
        raise OSError("stuck")


async def test_models_of_all_are_listed_even_if_one_cannot_say() -> None:
    router = Router({"a": Puppet("x"), "b": Broken(), "c": Puppet("z")}, aliases={"best": ["a/m"]})
    assert await router.models() == (
        ModelInfo("best", owned_by="router"),
        ModelInfo("a/m", owned_by="x"),
        ModelInfo("c/m", owned_by="z"),
    )


async def test_failure_to_list_is_raised_if_there_is_nothing_to_list() -> None:
    with pytest.raises(Unavailable, match="b is down"):
        await Router({"b": Broken("b")}).models()
    assert await Router({"a": Puppet("x"), "b": Broken()}).models() == (ModelInfo("a/m", owned_by="x"),)
    assert await Router({"b": Broken()}, aliases={"best": ["b/m"]}).models() == (ModelInfo("best", owned_by="router"),)


async def test_every_provider_is_closed_once_even_if_one_cannot_be() -> None:
    one, broken, two = Puppet(), Broken(), Puppet()
    with pytest.raises(OSError, match="stuck"):
        await Router({"a": one, "b": broken, "c": two, "again": one}).close()
    assert [one.closed, broken.closed, two.closed] == [1, 1, 1]


class Counting(Puppet):
    """Counts every request as many tokens as its model's name has letters."""

    async def count_tokens(self, request: ModelRequest) -> int:
        return len(request.model)


async def test_tokens_are_counted_by_who_can_and_else_estimated() -> None:
    router = Router({"a": Counting(), "b": Puppet()}, aliases={"best": ["a/three", "b/m"]})
    assert isinstance(router, TokenCounter)
    assert await router.count_tokens(asks(model="best")) == 5
    assert await router.count_tokens(asks(model="b/m")) == estimate(asks().items)
