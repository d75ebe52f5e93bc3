"""Every animal of the native formats is asked, and those that only look odd, and those that are as they should be."""

from inspect import isabstract

import anyio
import openai
import pytest
from openai.types.responses import Response
from tests.kit.waiting import PATIENCE
from tests.server.hosting import hosted
from tests.zoo import native_anthropic, native_clouds, native_gemini, native_ollama, native_refusals, native_responses
from tests.zoo.animal import NOON, serving
from tests.zoo.native_animal import NativeAnimal, Outcome, Silent
from tests.zoo.native_anthropic import ClaudeAnimal
from tests.zoo.native_clouds import AzureAnimal, AzureResponsesAnimal, BedrockAnimal, VertexAnimal, VertexClaudeAnimal
from tests.zoo.native_gemini import GeminiAnimal
from tests.zoo.native_ollama import OllamaAnimal
from tests.zoo.native_responses import ResponsesAnimal

from mainspring.app.engine import Engine
from mainspring.app.server import server
from mainspring.core.items import Json

FORMATS: list[type[NativeAnimal]] = [
    OllamaAnimal, GeminiAnimal, ClaudeAnimal, ResponsesAnimal,
    AzureAnimal, AzureResponsesAnimal, BedrockAnimal, VertexAnimal, VertexClaudeAnimal,
]  # fmt: skip
HOUSES = (native_ollama, native_gemini, native_anthropic, native_responses, native_refusals, native_clouds)
ANIMALS = [
    pytest.param(kind, id=f"{house.__name__.rpartition('_')[2]}-{kind.__name__}")
    for house in HOUSES
    for kind in vars(house).values()
    if isinstance(kind, type) and issubclass(kind, NativeAnimal) and kind.__module__ == house.__name__
    if not isabstract(kind) and kind not in FORMATS
]


async def tell(animal: NativeAnimal, *, again: bool = False) -> Outcome:
    """What comes of asking it; if `again`, it is asked once more, streamed, is as good then, and refuses nothing."""
    zones: list[str] = []

    def get_time(zone: str) -> str:
        """Tells the time in a zone."""
        zones.append(zone)
        return "12:00"

    def now() -> str:
        """Tells the time here."""
        zones.append("here")
        return "12:00"

    failure = None
    async with serving(animal) as url:
        engine = Engine(animal.make_provider(url), default_model=animal.model, owns_provider=True, tools=[get_time, now])
        async with hosted(server(engine)) as near, openai.AsyncOpenAI(base_url=near, api_key="none", max_retries=0) as client:
            try:
                with anyio.fail_after(PATIENCE):
                    response = await animal.ask(client)
                    outcome = Outcome(response, sorted(zones, reverse=True))
                    if again and not isinstance(animal, Silent):
                        animal.check(outcome)
                        refused = len(animal.refused)
                        zones.clear()
                        response = await animal.ask(client, streamed=True)
                        animal.check(Outcome(response, sorted(zones, reverse=True)))
                        assert animal.refused[refused:] == []
            except (openai.APIError, AssertionError, pytest.fail.Exception) as error:
                failure = error  # the server is taken down in peace first
    if failure is not None:
        raise failure
    return outcome


@pytest.mark.parametrize("kind", ANIMALS)
async def test_a_native_animal_is_understood_or_fails_with_a_reason(kind: type[NativeAnimal]) -> None:
    animal = kind()
    animal.check(await tell(animal, again=True))


TWINS = {
    "a call in prose": 'Write it as <tool_call>{"name": "get_time", "arguments": {"zone": "UTC"}}</tool_call> and wait.',
    "a call in code": 'Like this:\n```json\n{"name": "get_time", "arguments": {"zone": "UTC"}}\n```\nThat is all.',
    "a story of tags": "The model writes <think> before it thinks, and </think> after.",
    "a prefix": "Names like default_api:get_time are odd.",
}


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("twin", TWINS)
async def test_text_that_only_looks_odd_stays_text(kind: type[NativeAnimal], twin: str) -> None:
    words = TWINS[twin]

    class Quoting(kind):  # type: ignore[misc, valid-type]
        def first(self, body: Json) -> bytes:
            return self.say(*[words[at : at + 5] for at in range(0, len(words), 5)])  # type: ignore[no-any-return]

    outcome = await tell(Quoting())
    assert (outcome.response.status, outcome.response.output_text, outcome.zones) == ("completed", words, [])


@pytest.mark.parametrize("kind", FORMATS)
async def test_a_clean_backend_is_asked_once_a_turn_and_heard_at_once(kind: type[NativeAnimal]) -> None:
    heard: list[str] = []

    class Clean(kind):  # type: ignore[misc, valid-type]
        def last(self, body: Json) -> bytes:
            return self.say("It ", "is ", "noon.")  # type: ignore[no-any-return]

        async def ask(self, client: openai.AsyncOpenAI) -> Response:
            async with client.responses.stream(model=self.model, input="What time is it?") as stream:
                async for event in stream:
                    if event.type == "response.output_text.delta":
                        heard.append(event.delta)
                return await stream.get_final_response()

    animal = Clean()
    outcome = await tell(animal)
    assert (outcome.response.status, outcome.response.output_text, outcome.zones) == ("completed", NOON, ["UTC"])
    assert heard == ["It ", "is ", "noon."]
    assert len(animal.asked) == 2


@pytest.mark.parametrize("kind", FORMATS)
async def test_an_empty_answer_behind_a_call_fails_and_no_call_runs_twice(kind: type[NativeAnimal]) -> None:
    class Mute(kind):  # type: ignore[misc, valid-type]
        def last(self, body: Json) -> bytes:
            return self.say("")  # type: ignore[no-any-return]

    outcome = await tell(Mute())
    assert (outcome.response.status, outcome.zones) == ("failed", ["UTC"])


@pytest.mark.parametrize("kind", ANIMALS)
def test_a_native_animal_says_where_it_was_seen(kind: type[NativeAnimal]) -> None:
    assert "https://" in (kind.__doc__ or "")


def test_every_format_has_its_animals() -> None:
    doors = [kind for kind in FORMATS if kind not in (AzureResponsesAnimal, VertexClaudeAnimal)]
    counts = {name: sum(issubclass(param.values[0], name) for param in ANIMALS) for name in doors}  # type: ignore[arg-type]
    assert all(count >= 8 for count in counts.values()), counts
