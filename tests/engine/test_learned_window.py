"""A window that is known from a model's profile bounds conversations that may be shortened, and no others."""

import pytest

from mainspring.core.items import user
from mainspring.core.run import Run
from mainspring.core.spec import RunSpec, spec_for
from mainspring.features.models.model_choice import WindowStep
from mainspring.ports import OrderContext
from mainspring.providers.chat.provider import Chat
from mainspring.providers.router import Router
from mainspring.providers.scripted import Scripted


async def find_no_run(id: str) -> Run:
    raise AssertionError(id)


def order(**window: object) -> RunSpec:
    return spec_for("responses", id="resp_1", model="m", input=(user("Hi"),), **window)


@pytest.mark.parametrize(
    ("given", "threshold", "room"),
    [
        ({"compact_threshold": 100_000}, 6_000, None),
        ({"compact_threshold": 2_000}, 2_000, None),
        ({"truncation": "auto"}, None, 8_000),
        ({"truncation": "auto", "context_tokens": 4_000}, None, 4_000),
        ({"truncation": "auto", "context_tokens": 32_000, "compact_threshold": 30_000}, 6_000, 8_000),
        ({}, None, None),
        ({"context_tokens": 32_000}, None, 32_000),
    ],
)
async def test_an_order_keeps_to_the_window_of_its_model(
    given: dict[str, object], threshold: int | None, room: int | None
) -> None:
    chat = Chat("http://here/v1", profiles={"m": {"window": 8_000}})
    window = (await WindowStep(chat).prepare(order(**given), OrderContext(find_no_run))).window
    assert (window.compact_threshold, window.context_tokens) == (threshold, room)
    await chat.close()


async def test_of_several_models_the_largest_window_counts_if_all_are_known() -> None:
    small, large = (Chat("http://here/v1", profiles={"*": {"window": size}}) for size in (4_000, 8_000))
    chain = {"m": ["small/a", "large/b"], "n": ["small/a", "unknown/c"]}
    router = Router({"small": small, "large": large, "unknown": Scripted()}, aliases=chain)
    assert [await router.find_window(name) for name in ("m", "n", "small/a")] == [8_000, None, 4_000]
    await router.close()
