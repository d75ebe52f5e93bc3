"""The doctor is sent to the animals of the native formats, and names their habits. The ways of a format are none."""

import re
from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Final

import anyio
import msgspec
import pytest
from tests.clouds import aws
from tests.kit.waiting import PATIENCE
from tests.zoo.animal import serving
from tests.zoo.native_animal import NativeAnimal
from tests.zoo.native_clouds import BedrockAnimal
from tests.zoo.native_responses import CALL, ResponsesAnimal, completed, message
from tests.zoo.test_native_zoo import ANIMALS, FORMATS, TWINS

from mainspring.core.items import Json
from mainspring.features.models.probes import PASSWORD, ProbeResult, examine
from mainspring.features.models.quirks import QUIRKS, find_quirks
from mainspring.providers.bedrock.event_stream import EventStreamSplitter
from mainspring.providers.cassette import ExchangeRecorder
from mainspring.providers.wrapper import explain_profiles

Reply = Callable[[Json], bytes | list[bytes]]


def fit(told: bytes, names: list[str]) -> bytes:
    """The answer, calling what is offered."""
    renamed = told.replace(b"get_time", names[0].encode()).replace(b'"now"', f'"{names[-1]}"'.encode())
    return renamed.replace(b"zone", b"city")


def fit_frames(told: bytes, names: list[str]) -> bytes:
    """The same of an event stream of Amazon's."""
    found = b""
    for _, data in EventStreamSplitter().feed(told):
        for kind, payload in msgspec.json.decode(fit(data, names)).items():
            found += aws.exception(payload["type"], payload["message"]) if kind == "error" else aws.event(kind, payload)
    return found


def guide(animal: NativeAnimal) -> NativeAnimal:
    """The animal, calling whichever tools are offered, and speaking where there are none."""
    first, last = animal.first, animal.last
    fitting = fit_frames if isinstance(animal, BedrockAnimal) else fit

    def answer(reply: Reply, body: Json) -> bytes | list[bytes]:
        offered = msgspec.json.encode([body.get("tools"), body.get("toolConfig")]).decode()
        if not (names := re.findall(r'"name":"(\w*quorl\w*)"', offered)):
            return last(body)
        told = reply(body)
        return fitting(told if isinstance(told, bytes) else b"".join(told), names)

    animal.first = partial(answer, first)  # type: ignore[method-assign]
    animal.last = partial(answer, last)  # type: ignore[method-assign]
    return animal


async def consult(animal: NativeAnimal, *, again: bool = False) -> tuple[list[ProbeResult], list[str]]:
    """What the doctor finds, and the habits it names. If it comes `again`, it is refused nothing then."""
    heard = ExchangeRecorder()
    async with serving(guide(animal)) as url:
        provider = animal.make_provider(url, heard)
        with anyio.fail_after(PATIENCE):
            found = [result async for result in examine(provider, animal.model)]
            if again:
                animal.refused.clear()
                found = [result async for result in examine(provider, animal.model)]
        profiles = await explain_profiles(provider, animal.model)
        await provider.close()
    return found, [quirk.name for quirk in find_quirks(heard.exchanges, profiles)]


# They are asked nothing that would provoke them: no schemas of these shapes, no thoughts of another's. What they need is sent to
# whoever speaks the format.
NEVER_MET: Final = {
    "gemini": ("NoSignature", "OutputsAlone"),
    "responses": ("StaleReasoning", "NoPhase"),
    "refusals": (
        "OneTypeEach", "AlwaysThinking", "OneTypeEachHere", "TypesWanted", "NoReferences", "GemmaWithoutSystem", "StaleSignature",
        "StaleThought", "SmallOutput",
    ),
    "clouds": ("OutputsAlone", "StaleSealOnBedrock", "SignatureWanted", "StaleThoughtOnVertex"),
}  # fmt: skip
# They answer nothing at all: what they say is the finding, and no habit.
REFUSES_ALL: Final = {
    "ollama": ("BusyLoading", "NotPulled", "NotPulledOld", "NoMemory", "SignIn"),
    "anthropic": ("OverloadedStatus",),
    "responses": ("NoLimit", "InstructionsWanted"),
    "clouds": (
        "FilteredPrompt", "NoDeployment", "NoVersion", "NoChat", "NoResource", "WaitInMilliseconds", "Firewall", "ProfileWanted",
        "TokenNeverGood", "NoPublisherModel", "ServiceDisabled", "Exhausted", "QuotaOnVertex",
    ),
}  # fmt: skip
# Whoever speaks the format may do so.
STANDARD: Final = {
    "ollama": ("CallsWithoutIds", "LinesInPieces", "IndexedCalls"),
    "gemini": (
        "CallsWithoutIds", "SignatureMustReturn", "SignatureOnTheThought", "SignatureOfTheFirstCall", "SignatureOnEmptyText",
    ),
    "anthropic": ("SignatureOnly", "NoArguments", "SealedThoughts"),
    "responses": ("EncryptedThoughtsReturn", "QueuedFirst"),
    "clouds": ("TokenExpires", "ClockIsWrong", "GoogleTokenExpires", "NoIdsTaken"),
}  # fmt: skip
NAMES: Final = {
    "ollama": {
        "CallInTheLastLine": "calls at the end",
        "ReasonBeforeTheEnd": "finish twice",
        "ArgumentsAsText": "arguments in a string",
        "CallAsText": "call as JSON text",
        "CallWithinThinking": "call in thoughts",
        "ThinkTags": "thinking tags",
        "NoTools": "no tools",
        "ToolsInWords": "no tools",
        "EndWithAnError": "error in stream",
        "NoThinking": "no effort",
        "NoReason": "no finish",
        "ErrorWithinTheStream": "error in stream",
        "EmptyAnswer": "empty answer",
        "NoRoom": "no room",
        "PromptCut": "prompt cut",
        "NoEnd": "no end",
        "OnlyLoaded": "vendor's finish",
        "ObjectsWithoutLineBreaks": "objects on one line",
        "LastLineWithoutBreak": "no last line break",
        "NoMessageAtTheEnd": "fields left out",
        "HalfCallAtItsLength": "no room",
        "ErrorBehindWords": "error in stream",
        "NoEndBehindWords": "no end",
        "NullArguments": "no arguments",
        "IdsMustReturn": "ids of calls wanted",
        "UnopenedThought": "thinking never opened",
        "CachedPrompt": "cache not counted",
        "NoCounts": "no usage",
        "UnknownTool": "unknown tools",
        "EmptyCalls": "empty calls",
        "CallsTwice": "calls again",
    },
    "gemini": {
        "NameWithPrefix": "prefix of names",
        "CallAsCode": "call as fenced text",
        "NoClosedObjects": "schema words",
        "NoJsonSchema": "schema words",
        "EmptyPartsBeforeTheCall": "empty pieces",
        "ContentWithoutParts": "fields left out",
        "NoArguments": "no arguments",
        "SecondCandidate": "other candidates",
        "MalformedCall": "calls given up",
        "UnexpectedCall": "calls given up",
        "EmptyStop": "empty answer",
        "EmptyText": "empty answer",
        "NoFinish": "no end",
        "ErrorWithinTheStream": "error in stream",
        "PromptBlocked": "filtered",
        "WithoutSse": "array for a stream",
        "WholeObject": "whole answer",
        "WholeErrorArray": "error in stream",
        "ReasonFirst": "finish twice",
        "ReasonUnspecified": "empty finish",
        "NoBlockReason": "empty block reason",
        "FilteredCall": "filtered",
        "Filtered": "filtered",
        "Other": "given up",
        "NoCandidates": "no end",
        "CutCall": "no room",
        "NullParts": "fields left out",
        "UsageInTheMiddle": "usage in the middle",
        "ArgumentsAsText": "arguments in a string",
        "DoneAtTheEnd": "no end",
    },
    "anthropic": {
        "NoMessageStop": "no end",
        "EndTurnWithCalls": "stop with calls",
        "InputAtTheStart": "arguments at the start",
        "NoInputAtTheStart": "fields left out",
        "NoIds": "empty ids",
        "SameIds": "ids again",
        "BlocksNumberedZero": "one index for all",
        "NoEventLines": "events without names",
        "Pings": "unknown events",
        "UnsignedThoughtMustReturn": "unsigned thoughts",
        "CallAsText": "call as tagged text",
        "EmptyTextRefused": "empty pieces",
        "OverloadedWithinTheStream": "error in stream",
        "CallsWithoutCalls": "empty answer",
        "NoReason": "no end",
        "CutCall": "no end",
        "ReasonOfAnotherFormat": "vendor's finish",
        "WordsAsArguments": "pieces out of place",
        "NoUsageAtTheStart": "fields left out",
        "NoBlockStart": "parts without bounds",
        "BlocksBegunAgain": "parts without bounds",
        "NoBlockStop": "parts without bounds",
        "WholeMessage": "whole answer",
        "PausedTurn": "paused turns",
        "Refusing": "filtered",
        "CutWithinACall": "no room",
        "OverloadedBehindWords": "error in stream",
        "RateLimitWithinTheStream": "error in stream",
        "ThoughtWithoutItsType": "pieces out of place",
        "EndReasonTwice": "finish twice",
        "IdsOfAnotherVendor": "ids to the letter",
        "ServerTools": "tools of its own",
    },
    "responses": {
        "NoItemDone": "parts without bounds",
        "NoOutputInTheWhole": "fields left out",
        "OtherIdsInTheWhole": "ids change",
        "NoItemAdded": "parts without bounds",
        "ArgumentsOnlyWhenDone": "parts without bounds",
        "OnlyInTheWhole": "whole answer",
        "ItemIdsChange": "ids change",
        "UnknownEvents": "unknown events",
        "EventsOutOfOrder": "events out of order",
        "NoCompleted": "no end",
        "NoEncryptedContent": "no encrypted reasoning",
        "NoIds": "calls without id",
        "CutCallSaysCompleted": "no room",
        "EmptyWhole": "empty answer",
        "EmptyMessage": "empty answer",
        "FailedWithinTheStream": "error in stream",
        "NoEnd": "no end",
        "NoStore": "no store",
        "ThoughtsAsText": "thinking tags",
        "CallAsText": "call as tagged text",
        "CallBehindWords": "call as tagged text",
        "CallInASection": "call with labels",
        "RareTemperature": "no temperature",
        "EncryptedOnlyInTheWhole": "no ids of items",
        "OnlyAuto": "no forced call",
        "NoFormat": "no format",
        "FailsBehindWords": "error in stream",
        "ErrorEvent": "error in stream",
        "IncompleteForFilter": "filtered",
        "UnknownItem": "unknown items",
        "ArgumentsAsObject": "arguments as object",
        "SameCallTwice": "calls again",
        "FormatIgnored": "format ignored",
    },
    "refusals": {
        "ThinkLevelRefused": "no effort",
        "OldThink": "no effort",
        "OldFormat": "no format",
        "NoThinkingLevel": "no effort",
        "FullObjects": "schema words",
        "GemmaWithoutTools": "no tools",
        "NoJsonMode": "no format",
        "NoJsonBesideTools": "no format with tools",
        "NoCacheMarks": "no cache marks",
        "NoOutputConfig": "no effort",
        "NoOutputFormat": "no format",
        "NoThinking": "no effort",
        "NoForcedCall": "no forced call",
        "NoStrictTools": "no strict",
        "NoParser": "no tools",
        "OneCallAtATime": "no parallel_tool_calls",
    },
    "clouds": {
        "FilteredWords": "filtered",
        "FilterBesideThem": "choice without delta",
        "OtherLimit": "no max_tokens",
        "OldVersion": "no stream_options",
        "ItemsNotKept": "no ids of items",
        "NoToolsAtAll": "no tools",
        "NoCachePoints": "no cache marks",
        "NoCaching": "no cache marks",
        "NoMetadata": "no usage",
        "NoBlockStarts": "parts without bounds",
        "BrokenCall": "error in stream",
        "ThrottledBehindWords": "error in stream",
        "OtherStopReason": "vendor's finish",
        "OddNames": "unknown tools",
        "ArrayFromVertex": "array for a stream",
        "NoOutputConfigOnVertex": "no effort",
        "OverloadedOnVertex": "error in stream",
    },
}


def list_animals(*groups: Mapping[str, Collection[str]]) -> list[type[NativeAnimal]]:
    chosen = [f"{house}-{name}" for group in groups for house, names in group.items() for name in names]
    return [animal.values[0] for animal in ANIMALS if animal.id in chosen]  # type: ignore[misc]


# One refuses every history but its own, which a doctor cannot have.
REFUSING: Final = [
    kind for kind in list_animals(NAMES) if "refuse" in vars(kind) and kind.__name__ != "UnsignedThoughtMustReturn"
]


@pytest.mark.parametrize("kind", list_animals(NAMES))
async def test_the_doctor_names_the_habit_of_a_native_animal(kind: type[NativeAnimal]) -> None:
    found, habits = await consult(kind())
    assert NAMES[kind.__module__.rpartition("_")[2]][kind.__name__] in habits, found


@pytest.mark.parametrize("kind", REFUSING)
async def test_the_doctor_is_refused_nothing_when_it_comes_again(kind: type[NativeAnimal]) -> None:
    animal = kind()
    found, _ = await consult(animal, again=True)
    assert animal.refused == [], found


@pytest.mark.parametrize("kind", list_animals(REFUSES_ALL))
async def test_what_a_backend_refuses_altogether_is_the_finding_and_no_habit(kind: type[NativeAnimal]) -> None:
    found, habits = await consult(kind())
    assert (len(found), found[0].verdict, habits) == (1, "failed", [])


async def test_an_answer_of_responses_that_comes_whole_is_named_so_and_nothing_else() -> None:
    class Whole(ResponsesAnimal):
        mime = "application/json"

        def first(self, body: Json) -> bytes:
            return msgspec.json.encode(completed(CALL)["response"])

        def say(self, *pieces: str) -> bytes:
            return msgspec.json.encode(completed(message("".join(pieces)))["response"])

    found, habits = await consult(behave(Whole()))
    assert habits == ["whole answer"], found


def behave(animal: NativeAnimal) -> NativeAnimal:
    """The animal, answering with JSON where it should, and reading the whole of long prompts."""

    def answer(reply: Reply, body: Json) -> bytes | list[bytes]:
        asked = str(body)
        told = animal.say('{"city": "Oslo", ', '"code": "NO-0150"}') if "two capital letters" in asked else reply(body)
        is_long = PASSWORD in asked and isinstance(told, bytes)
        return told.replace(b'"prompt_eval_count":20', b'"prompt_eval_count":6000') if is_long else told  # type: ignore[union-attr]

    animal.first = partial(answer, animal.first)  # type: ignore[method-assign]
    animal.last = partial(answer, animal.last)  # type: ignore[method-assign]
    return animal


@pytest.mark.parametrize("kind", [*FORMATS, *list_animals(STANDARD)])
async def test_the_doctor_finds_no_habit_in_the_ways_of_a_format(kind: type[NativeAnimal]) -> None:
    found, habits = await consult(behave(kind()))
    assert habits == [], found


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("twin", TWINS)
async def test_the_doctor_finds_no_habit_in_text_that_only_looks_odd(kind: type[NativeAnimal], twin: str) -> None:
    words = re.split("(?<= )", TWINS[twin])

    class Quoting(kind):  # type: ignore[misc, valid-type]
        def first(self, body: Json) -> bytes:
            return self.say(*words)  # type: ignore[no-any-return]

        last = first

    found, habits = await consult(behave(Quoting()))
    assert habits == [], found


def test_every_native_animal_is_named_or_said_to_have_nothing_to_name() -> None:
    groups = (NAMES, STANDARD, REFUSES_ALL, NEVER_MET)
    told = [f"{house}-{name}" for group in groups for house, names in group.items() for name in names]
    assert sorted(told) == sorted(str(animal.id) for animal in ANIMALS)
    assert {name for names in NAMES.values() for name in names.values()} <= {quirk.name for quirk in QUIRKS}
