"""The doctor is sent to every animal, and names its habit. To a backend without habits it has nothing to say."""

import json
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

import anyio
import pytest
from msgspec.structs import replace
from tests.kit.waiting import PATIENCE
from tests.providers.backend import DONE, call_piece, chunk, sse, usage_chunk
from tests.zoo import calls, leaks
from tests.zoo.animal import MODEL, Animal, Refusal, assistants, call, outputs, say, serving
from tests.zoo.test_zoo import ANIMALS, split

from mainspring.core.items import Json
from mainspring.features.models.probes import LEVEL_THERE, PASSWORD, ProbeResult, examine
from mainspring.features.models.quirks import QUIRKS, find_quirks
from mainspring.providers.cassette import ExchangeRecorder
from mainspring.providers.chat.provider import Chat

NAMES: Final = {
    1: "calls without index",
    2: "one index for all",
    3: "calls without id",
    4: "empty ids",
    5: "ids again",
    6: "arguments as object",
    7: "arguments in a string",
    8: "arguments repeated",
    9: "name repeated",
    10: "no arguments",
    11: "no arguments",
    12: "arguments among words",
    13: "function_call",
    14: "tokens in names",
    15: "prefix of names",
    16: "call as tagged text",
    17: "call as XML text",
    18: "call as fenced text",
    19: "call as JSON text",
    20: "call in control tokens",
    21: "call in thoughts",
    22: "calls lost in streams",
    23: "thinking tags",
    24: "thinking never opened",
    25: "reasoning",
    26: "reasoning returned",
    27: "signed calls",
    29: "answer in thoughts",
    30: "stop with calls",
    31: "empty finish",
    32: "no finish",
    33: "finish twice",
    34: "vendor's finish",
    35: "no [DONE]",
    36: "comments",
    37: "comments",
    38: "empty data",
    39: "no choices first",
    40: "choice without delta",
    41: "whole answer",
    42: "error in stream",
    43: "error in stream",
    44: "prompt cut",
    45: "no room",
    46: "no usage",
    47: "usage often",
    48: "no stream_options",
    49: "no parallel_tool_calls",
    50: "no names on outputs",
    51: "no forced call",
    52: "no null content",
    53: "no blank content",
    54: "ids by pattern",
    55: "ids by pattern",
    56: "ids to the letter",
    57: "no max_tokens",
    58: "no temperature",
    59: "no effort",
    61: "no format with tools",
    62: "no json_object",
    63: "format ignored",
    64: "large schemas",
    66: "schema words",
    67: "no strict",
    68: "one system message",
    70: "tools with history",
    71: "no tools",
    72: "other form of names",
    73: "arguments within",
    74: "empty arguments first",
    75: "quote tokens",
    76: "calls again",
    77: "stop tokens",
    78: "turn headers",
    79: "call beside its text",
    80: "call with labels",
    81: "text repeated",
    82: "values as text",
    83: "ids per piece",
    84: "calls out of place",
    85: "content as object",
    86: "empty calls",
    87: "blank answer",
    88: "half calls",
    89: "odd lines",
    90: "no streams with tools",
    97: "no streams",
    98: "usage within choices",
    99: "events without empty lines",
    106: "choice without delta",
    107: "half characters",
    108: "empty errors",
    109: "ids per piece",
    110: "function_call",
    111: "calls not read",
    112: "turns made up",
    113: "JSON with slips",
}
# No request of ours provokes them: we stream, send no signature of another vendor's, no metadata, no odd description, no word as
# the developer, and no turn with two calls.
NEVER_MET: Final = ("ForeignSignature", "NoDeveloper", "NoLongDescriptions", "NoMetadata", "OneCallAtATime", "OnlyStreams")
PATIENTS: Final = [kind for kind in ANIMALS if kind.__name__ not in NEVER_MET]


def guide(animal: Animal) -> Animal:
    """The animal, calling whichever tools are offered, and speaking where there are none."""
    first, last = animal.first, animal.last

    def answer(body: Json) -> bytes | Json:
        tools = [tool["function"]["name"] for tool in body.get("tools", ())]
        if not tools or body.get("tool_choice") == "none":
            return last(body)
        told = first(body)
        text = told if isinstance(told, bytes) else json.dumps(told).encode()
        text = text.replace(b"get_time", tools[0].encode()).replace(b'"now"', f'"{tools[-1]}"'.encode())
        return text if isinstance(told, bytes) else json.loads(text)

    animal.first = answer  # type: ignore[method-assign]
    return animal


async def consult(animal: Animal) -> tuple[list[ProbeResult], list[str]]:
    """What the doctor finds, and the habits it names."""
    heard = ExchangeRecorder()
    async with serving(guide(animal)) as url:
        provider = Chat(url, tape=heard)
        with anyio.fail_after(PATIENCE):
            found = [result async for result in examine(provider, MODEL)]
        await provider.close()
    return found, [quirk.name for quirk in find_quirks(heard.exchanges)]


@pytest.mark.parametrize("kind", PATIENTS)
async def test_the_doctor_names_the_habit_of_an_animal(kind: type[Animal]) -> None:
    found, habits = await consult(kind())
    assert NAMES[kind.number] in habits, found


async def test_the_doctor_names_habits_by_whatever_path_a_deployment_has() -> None:
    heard = ExchangeRecorder()
    async with serving(guide(calls.CallWithoutId())) as url:
        provider = Chat(url, tape=heard)
        found = [result async for result in examine(provider, MODEL)]
        await provider.close()
    deployed = [replace(each, path=f"openai/deployments/small/{each.path}") for each in heard.exchanges]
    assert "calls without id" in [quirk.name for quirk in find_quirks(deployed)], found


class Clean(Animal):
    """Answers all questions as they should be."""

    def __init__(self, answer: bytes | None = None) -> None:
        self._answer = answer

    def first(self, body: Json) -> bytes:
        names = [tool["function"]["name"] for tool in body.get("tools", ())]
        if "response_format" in body:
            return self.last(body)
        if self._answer is not None:
            return self._answer
        asked = body["messages"][-1]["content"]
        told = '{"city": "Oslo", "level": 9, "notes": {}}' if names[0].startswith("set") else '{"city": "Oslo"}'
        made = [told, told] if "both" in asked else ["{}" if names[0].startswith("count") else told]
        pieces = [call_piece(place, id=f"call_{len(asked)}_{place}", name=names[0], arguments="") for place in range(len(made))]
        told_all = [call_piece(place, arguments=each) for place, each in enumerate(made)]
        both = [chunk(piece) for pair in zip(pieces, told_all, strict=True) for piece in pair]
        return sse(*both, chunk(finish="tool_calls"), usage_chunk(30, 10)) + DONE

    def last(self, body: Json) -> bytes:
        if "response_format" in body:
            return say('{"city": "Oslo", ', '"code": "NO-0150"}')
        if body["messages"][-1]["role"] == "tool":
            return say("The level is ", f"{LEVEL_THERE}.")
        if PASSWORD in str(body["messages"][-1]["content"]):
            return sse(chunk({"content": PASSWORD}), chunk(finish="stop"), usage_chunk(6_000, 5)) + DONE
        return say("Bl", "ue.")


async def test_the_doctor_has_nothing_to_say_of_a_backend_as_it_should_be() -> None:
    found, habits = await consult(Clean())
    assert habits == []
    assert [result for result in found if result.verdict != "ok"] == []
    assert found[-1].detail.startswith("conversation, tools and agents, structured output")


CLEAN: Final = {
    "words": say("It ", "is ", "noon."),
    "signs": say("a", " <b>", "bold", "</b>", " [1]", " {x}", "\n```py\n", "f(x)", "\n```\n", "."),
    "a call": call("a", '{"city"', ': "Oslo"}'),
    # As a small model on vLLM writes them.
    "a call with blanks": call("a", "{ ", "  ", "  ", '"city" : ', '"Oslo" ', "\n ", "\n ", "\n }"),
    "a word for arguments": call("a", '"read_', 'level"'),
    "thoughts": sse(chunk({"reasoning_content": "High sun."}), chunk({"content": "Noon."}), chunk(finish="stop")) + DONE,
    "a call in prose": say(
        'Write it as <tool_call>{"name": "get_time", "arguments": {"city": "Oslo"}}</tool_call>', " and wait."
    ),
    **{name: say(*split(text)) for name, text in leaks.TWINS.items()},
}


@pytest.mark.parametrize("name", CLEAN)
async def test_the_doctor_finds_no_habit_where_there_is_none(name: str) -> None:
    _, habits = await consult(Clean(CLEAN[name]))
    assert habits == []


async def test_what_has_been_learned_is_not_refused_again() -> None:
    """Whatever the ten questions provoke is refused in the first examination only."""
    refused: list[str] = []

    class Picky(Clean):
        def refuse(self, body: Json) -> str | Refusal | None:
            fields = ("stream_options", "parallel_tool_calls", "reasoning_effort", "temperature", "top_p")
            wrong = next((field for field in fields if field in body), None)
            if wrong is None and any("name" in output for output in outputs(body)):
                refused.append("name")
                return "'messages.2' : property 'name' is unsupported"
            if wrong is not None:
                refused.append(wrong)
            return None if wrong is None else f"Unsupported parameter: {wrong} is not supported"

    async with serving(guide(Picky())) as url:
        provider = Chat(url)
        examined = partial(examine, provider, MODEL)
        first = [result.verdict async for result in examined()]
        count = len(refused)
        second = [result.verdict async for result in examined()]
        await provider.close()
    assert (first, second) == (["ok"] * len(first), ["ok"] * len(first))
    assert count == len(set(refused)) == len(refused) == 6


async def test_a_history_that_was_refused_is_written_as_it_was_taken_from_then_on() -> None:
    refused: list[str] = []
    faults: Final[Mapping[str, Callable[[Json], bool]]] = {
        "content: Input should be a valid string": lambda body: any(each["content"] is None for each in body["messages"]),
        "messages[2].content: Input should be a valid list": lambda body: any(
            isinstance(output["content"], str) for output in outputs(body)
        ),
        "function.arguments: Input should be a valid dictionary": lambda body: any(
            isinstance(made["function"]["arguments"], str) for each in assistants(body) for made in each.get("tool_calls", ())
        ),
    }

    class Picky(Clean):
        def refuse(self, body: Json) -> str | None:
            wrong = next((words for words, is_wrong in faults.items() if is_wrong(body)), None)
            refused.extend([wrong] if wrong else [])
            return wrong

    async with serving(guide(Picky())) as url:
        provider = Chat(url)
        first = [result.verdict async for result in examine(provider, MODEL)]
        count = len(refused)
        second = [result.verdict async for result in examine(provider, MODEL)]
        await provider.close()
    assert (first, second) == (["ok"] * len(first), ["ok"] * len(first))
    assert set(refused) == set(faults)
    assert len(refused) == count


def test_every_habit_is_told_once_and_shown_by_an_animal() -> None:
    names = [quirk.name for quirk in QUIRKS]
    assert len(set(names)) == len(names)
    assert {NAMES[kind.number] for kind in PATIENTS} <= set(names)
