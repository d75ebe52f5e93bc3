"""Tools through a whole engine and over the wire to a vendor, by that vendor's own rules."""

import msgspec
import pytest
from tests.providers.dialects import Spoken, SpokenCall
from tests.providers.dialects.chat import DIALECT as CHAT
from tests.providers.dialects.ollama import DIALECT as OLLAMA
from tests.providers.dialects.responses import DIALECT as RESPONSES
from tests.providers.dialects.server import serving

from mainspring import Engine
from mainspring.core.items import FunctionCall, FunctionCallOutput
from mainspring.core.spec import ToolChoice

LOOK, RING = SpokenCall("look", ('{"at": ', '"wall"}')), SpokenCall("ring", ('{"times": 2}',))
DONE = Spoken(text=("Done.",))


def look(at: str) -> str:
    """Looks at a clock."""
    return f"noon at the {at}"


def ring(times: int) -> str:
    """Rings."""
    return "ding " * times


@pytest.mark.requirement("C42", "C-T23", "C-T28", "S10")
async def test_two_calls_of_ollama_stay_two_have_ids_and_are_told_again_as_objects() -> None:
    async with serving(OLLAMA) as fake:
        fake.says(Spoken(calls=(LOOK, RING)))
        fake.says(DONE)
        async with Engine(OLLAMA.provider(fake.url), default_model="clockwork", owns_provider=True, tools=[look, ring]) as engine:
            run = await engine.run("Look, and ring.")
        first, second = [msgspec.json.decode(body) for body in fake.bodies]
    assert (run.status, run.text) == ("completed", "Done.")
    assert [tool["function"]["name"] for tool in first["tools"]] == ["look", "ring"]
    _, called, noon, rang = second["messages"]
    assert [call["function"]["arguments"] for call in called["tool_calls"]] == [{"at": "wall"}, {"times": 2}]
    assert [(said["tool_name"], said["content"]) for said in (noon, rang)] == [
        ("look", "noon at the wall"),
        ("ring", "ding ding "),
    ]
    made = [item.call_id for item in run.output if isinstance(item, FunctionCall)]
    assert len(set(made)) == 2
    assert [item.call_id for item in run.output if isinstance(item, FunctionCallOutput)] == made


@pytest.mark.requirement("S6")
async def test_the_allowed_subset_goes_to_a_backend_that_understands_it_and_is_enforced_for_all() -> None:
    for dialect in (RESPONSES, CHAT):
        async with serving(dialect, judges=False) as fake:
            fake.says(Spoken(calls=(SpokenCall("look", ('{"at": "wall"}',), id="call_abc1"),)))
            fake.says(DONE)
            provider = dialect.provider(fake.url)
            async with Engine(provider, default_model="clockwork", owns_provider=True, tools=[look, ring]) as engine:
                run = await engine.run("Look.", tool_choice=ToolChoice(allowed=("ring",)))
            first = msgspec.json.decode(fake.bodies[0])
        [output] = [item for item in run.output if isinstance(item, FunctionCallOutput)]
        assert (run.status, "not allowed" in str(output.output)) == ("completed", True)
        assert len(first["tools"]) == 2
        told = first.get("tool_choice")
        if dialect is RESPONSES:
            assert (told["type"], [tool["name"] for tool in told["tools"]]) == ("allowed_tools", ["ring"])
        else:
            assert told in (None, "auto")
