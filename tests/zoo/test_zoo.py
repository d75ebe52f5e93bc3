"""Every animal of the zoo is asked. Those that we cannot keep yet are marked as such, and must be unmarked once we can."""

import json
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import anyio
import msgspec
import openai
import pytest
from aiohttp import web
from openai.types.responses import Response, ResponseOutputMessage
from tests.kit.waiting import PATIENCE
from tests.providers.backend import DONE, call_piece, chunk, sse, usage_chunk
from tests.server.hosting import hosted
from tests.zoo import calls, leaks, odd_answers, phrases, requests, slips, streams, thoughts, tokens
from tests.zoo.animal import MODEL, NOON, UTC, Animal, Failing, Learner, Outcome, Refusal, Talker, call, outputs, say, serving

from mainspring.app.engine import Engine
from mainspring.app.server import server
from mainspring.core.items import Json
from mainspring.features.traces.spans import build_spans
from mainspring.providers.chat.provider import Chat
from mainspring.providers.profiles import NEUTRAL, find_profile

EXPECTED: dict[str, str] = tomllib.loads(Path(__file__).with_name("expectations.toml").read_text())
KINDS = (Animal, Failing, Learner, Talker, thoughts.UnopenedThinker, tokens.Thinker, odd_answers.Broken)
ANIMALS = [
    kind
    for house in (calls, slips, leaks, odd_answers, tokens, thoughts, streams, requests)
    for kind in vars(house).values()
    if isinstance(kind, type) and issubclass(kind, Animal) and kind not in KINDS
]


def list_marks(kind: type[Animal]) -> list[pytest.MarkDecorator]:
    # Whoever teaches us to keep one must say so in the table.
    fate = EXPECTED[kind.__name__]
    return [] if fate == "survives" else [pytest.mark.xfail(strict=True, reason=fate)]


@pytest.mark.parametrize("kind", [pytest.param(kind, marks=list_marks(kind), id=kind.__name__) for kind in ANIMALS])
async def test_an_animal_is_understood(kind: type[Animal]) -> None:
    kind().check(await tell(kind))


async def tell(kind: type[Animal]) -> Outcome:
    """What comes of asking an animal of this kind."""
    zones: list[str] = []

    def get_time(zone: str) -> str:
        """Tells the time in a zone."""
        zones.append(zone)
        return "12:00"

    def now() -> str:
        """Tells the time here."""
        zones.append("here")
        return "12:00"

    animal, failure = kind(), None
    async with serving(animal) as url:
        engine = Engine(Chat(url), default_model=MODEL, owns_provider=True, tools=[get_time, now] if kind.has_tools else [])
        async with hosted(server(engine)) as near, openai.AsyncOpenAI(base_url=near, api_key="none", max_retries=0) as client:
            try:
                with anyio.fail_after(PATIENCE):
                    response = await animal.ask(client)
            except (openai.APIError, AssertionError, pytest.fail.Exception) as error:
                failure = error  # the server is taken down in peace first
            page = await engine.store.list(limit=1)
            trace = await engine.trace(page.runs[0].id)
    if failure is not None:
        raise failure
    return Outcome(response, sorted(zones, reverse=True), trace)


COMBINATIONS: list[tuple[type[Animal], ...]] = [
    (leaks.HermesCallAsText, requests.NoStreamOptions, requests.NoNullContent),
    (leaks.QwenXmlCallAsText, requests.NoNamesOnOutputs, requests.NoStrict),
    (leaks.BareCallAsText, requests.NoForcedCall, requests.NoStreamOptions),
    (leaks.FencedCallAsText, requests.NineLetterIds, requests.NoNullContent),
    (leaks.HarmonyChannels, requests.NoTemperature, requests.NoMaxTokens),
    (leaks.CallWithinReasoning, requests.NoNamesOnOutputs, requests.NoStreamOptions),
    (leaks.CallsOnlyUnstreamed, requests.NoStreamOptions, requests.NoNullContent),
    (calls.ArgumentsEncodedTwice, requests.NoClosedObjects, requests.NoStreamOptions),
    (calls.ArgumentsCumulative, requests.PlainIds, requests.NoEffort),
    (calls.NameWithPrefix, requests.NoParallelSwitch, requests.NoTemperature),
    (calls.CallsNumberedZero, requests.NoNullContent, requests.NoNamesOnOutputs),
    (thoughts.SignatureMustReturn, requests.NoStreamOptions, requests.NoTemperature),
    (streams.NoFinishWithCall, requests.NoStreamOptions, requests.NoMaxTokens),
    (slips.NameInCamelCase, requests.NoStreamOptions, requests.NoNullContent),
    (slips.ArgumentsWithinCall, requests.NineLetterIds, requests.NoTemperature),
    (slips.CallAgainInPieces, requests.NoNamesOnOutputs, requests.NoStreamOptions),
    (tokens.CallBesideItsTags, requests.NoNullContent, requests.NoStreamOptions),
    (tokens.TurnHeaderAndCall, requests.NoForcedCall, requests.NoMaxTokens),
]


@pytest.mark.parametrize("kinds", [pytest.param(kinds, id="-".join([kind.__name__ for kind in kinds])) for kinds in COMBINATIONS])
async def test_an_animal_with_several_habits_is_understood(kinds: tuple[type[Animal], ...]) -> None:
    kind = kinds[0]
    others = [other() for other in kinds[1:]]
    asked = {name: value for other in others for name, value in other.request.items() if name != "input"}

    class Several(kind):  # type: ignore[misc, valid-type]
        request: ClassVar[dict[str, Any]] = {**kind.request, **asked}

        def refuse(self, body: Json) -> str | Refusal | None:
            refusals = [super().refuse(body), *[other.refuse(body) for other in others]]
            return next((refusal for refusal in refusals if refusal is not None), None)

    Several().check(await tell(Several))


class Reciting(Animal):
    """Answers with the text that is asked for, before a tool has run."""

    def __init__(self, texts: Mapping[str, str]) -> None:
        self._texts = texts

    def first(self, body: Json) -> bytes:
        return say(*split(self._texts[body["messages"][0]["content"]]))


async def recite(texts: Mapping[str, str], **request: Any) -> dict[str, tuple[str | None, list[str], str]]:
    """What comes of each text, through one server: the status, the zones that the tool was called with, and the words."""
    zones: list[str] = []

    def get_time(zone: str) -> str:
        """Tells the time in a zone."""
        zones.append(zone)
        return "12:00"

    told: dict[str, tuple[str | None, list[str], str]] = {}
    async with serving(Reciting(texts)) as url:
        engine = Engine(Chat(url), default_model=MODEL, owns_provider=True, tools=[get_time])
        async with hosted(server(engine)) as near, openai.AsyncOpenAI(base_url=near, api_key="none", max_retries=0) as client:
            for name in texts:
                zones.clear()
                with anyio.fail_after(PATIENCE):
                    response = await client.responses.create(model=MODEL, input=name, **request)
                told[name] = (response.status, zones.copy(), response.output_text)
    return told


async def test_a_call_in_text_is_made_once() -> None:
    told = await recite(leaks.FORMS)
    assert {name: each[:2] for name, each in told.items()} == dict.fromkeys(leaks.FORMS, ("completed", ["UTC"]))
    leads = re.compile(
        "Let me look[.:]|(?:[*]*Thought:[*]* )?I must look.|I will tell you as soon as I know.|Checking the time."
        "|I will look it up.|The clock knows."
    )
    assert {name: leads.sub("", words).strip() for name, (_, _, words) in told.items()} == dict.fromkeys(leaks.FORMS, NOON)


@pytest.mark.parametrize(
    "text",
    [
        "<tool_call>now</tool_call>",  # as GLM 4.7 writes it: https://github.com/vllm-project/vllm/issues/48201
        '<invoke name="now"/>',
        "<now />",
        "Thought: I must look.\nAction: now\nAction Input:",
        "Action: now\nAction Input: None",
    ],
)
async def test_a_call_may_be_nothing_but_a_name(text: str) -> None:
    class Terse(Animal):
        zones: ClassVar = ["here"]

        def first(self, body: Json) -> bytes:
            return say(*split(text))

        def check(self, outcome: Outcome) -> None:
            assert outcome.response.output_text.removeprefix("Thought: I must look.\n") == NOON
            assert outcome.zones == self.zones

    Terse().check(await tell(Terse))


async def test_a_word_before_braces_calls_nothing() -> None:
    class Wordy(Talker):
        def last(self, body: Json) -> bytes:
            return say(*split("Now: {}"))

    outcome = await tell(Wordy)
    assert (outcome.response.output_text, outcome.zones) == ("Now: {}", [])


@pytest.mark.parametrize(
    "thought",
    [
        "<|inner_prefix|>High sun.<|inner_suffix|>",
        "<unused94>thought\nHigh sun.<unused95>",
        "<analysis>High sun.</analysis>\n\n",
        "<THINK>High sun.</THINK>",
        "<|think|>High sun.<|end|><|begin|>assistant<|content|>",
    ],
)
async def test_thoughts_before_a_call_are_thoughts_though_no_words_follow(thought: str) -> None:
    class Thinking(Animal):
        def first(self, body: Json) -> bytes:
            made = call_piece(0, id="a", name="get_time", arguments=UTC)
            said = [chunk({"content": piece}) for piece in split(thought)]
            return sse(*said, chunk(made), chunk(finish="tool_calls")) + DONE

    outcome = await tell(Thinking)
    Thinking().check(outcome)
    assert [item.type for item in outcome.response.output].index("reasoning") == 0


@pytest.mark.parametrize(
    "tags",
    [
        ("<longcat_think>", "</longcat_think>"),
        ("[unused16]", "[unused17]"),
        ("<|channel>thought\n", "<channel|>"),
        ("<|START_THINKING|>", "<|END_THINKING|>"),
    ],
)
async def test_thoughts_are_told_by_the_tokens_around_them(tags: tuple[str, str]) -> None:
    class Thinking(Talker):
        def last(self, body: Json) -> bytes:
            return say(*split(f"{tags[0]}The sun is high.{tags[1]}{NOON}"))

    outcome = await tell(Thinking)
    assert ([item.type for item in outcome.response.output], outcome.response.output_text) == (["reasoning", "message"], NOON)


async def test_tags_around_the_answer_stay_if_they_were_asked_for() -> None:
    class Obedient(Talker):
        request: ClassVar[dict[str, Any]] = {"instructions": "Put your answer in <answer> tags."}

        def last(self, body: Json) -> bytes:
            return say(*split("<think>High sun.</think><answer>It is noon.</answer>"))

    assert (await tell(Obedient)).response.output_text == "<answer>It is noon.</answer>"


async def test_a_script_stays_if_it_was_asked_for() -> None:
    script = {"Show me the call in JavaScript.": leaks.FORMS["a script"]}
    assert await recite(script) == {name: ("completed", [], text) for name, text in script.items()}


async def test_a_call_in_text_beside_another_call_stays_text() -> None:
    class Both(Animal):
        zones: ClassVar = ["CET"]

        def first(self, body: Json) -> bytes:
            made = call_piece(0, id="a", name="get_time", arguments='{"zone": "CET"}')
            return sse(chunk({"content": leaks.HERMES}), chunk(made), chunk(finish="tool_calls")) + DONE

    outcome = await tell(Both)
    assert (outcome.zones, outcome.response.output_text) == (["CET"], f"{leaks.HERMES}{NOON}")


async def test_an_answer_is_taken_out_of_what_is_around_it() -> None:
    answers = {
        "a message as on the wire": f'{{"role": "assistant", "content": "{NOON}"}}',
        "the end of ReAct": f"Thought: The sun is high.\nFinal Answer: {NOON}",
        "an output told again": f"<tool_response>\n12:00\n</tool_response>\n{NOON}",
        "another speaker": f"{NOON}</s>USER: thanks",
        "a token first": f"<SPECIAL_12>{NOON}",
        "Llama's tokens around it": f"<s> {NOON}</s>",
        "a token and another turn": f"<s>{NOON}</s><s>[INST] thanks [/INST]",
        "a header without its tokens": f"assistant\n\n{NOON}",
        "an answer called final": f"<think>High sun.</think><final>{NOON}</final>",
        "Pangu's end": f"{NOON}[unused10]",
        "reasoning in a fold": f'<details type="reasoning">\n<summary>Thought</summary>\n> High sun.\n</details>\n{NOON}',
        "Apertus's tokens": f"<|inner_prefix|>High sun.<|inner_suffix|>{NOON}",
        "MedGemma's tokens": f"<unused94>thought\nHigh sun.<unused95>{NOON}",
        "Gemma's second token": f"thought\nHigh sun.\n<channel|>{NOON}",
        "tokens that no table has": f"<|thinking_start|>High sun.<|thinking_end|>{NOON}",
        "thoughts within thoughts": f"<think>A <think>inner</think> more</think>{NOON}",
        "thoughts within on their lines": f"<think>\nA\n<think>\ninner\n</think>\nmore\n</think>\n\n{NOON}",
        "thoughts within that nothing closes": f"<think>One <think>two</think>\n\n{NOON}",
        "thoughts that speak of tags": f"<think>They ask about <think> and `<think>x</think>`, well.</think>\n{NOON}",
        "Ling's header": f"<role>ASSISTANT</role>{NOON}",
        "Cohere's header": f"<|CHATBOT_TOKEN|>{NOON}",
        "Idefics's end": f"{NOON}<end_of_utterance>",
        "Zephyr's next turn": f"<|assistant|>\n{NOON}</s>\n<|user|>\nThanks!",
        "Phi's next turn on a line": f"{NOON}<|end|>\n<|user|>\nThanks!<|end|>",
        "Mistral's tag before it": f"[/INST] {NOON}",
        "Mistral's tag behind it": f"{NOON}[/INST]",
        "Mistral's next turn": f"{NOON}[INST] Thanks! [/INST] You are welcome.",
        "Mistral's mark of calls": f"[TOOL_CALLS] {NOON}",
        "a header in a line": f"<|im_start|>assistant{NOON}<|im_end|>",
        "half a header": f"<|im_start|>{NOON}",
        "Llama's header in a line": f"<|start_header_id|>assistant<|end_header_id|>{NOON}<|eot_id|>",
        "half of Llama's header": f"assistant<|end_header_id|>\n\n{NOON}",
        "the end of Llama's header": f"<|end_header_id|>\n\n{NOON}",
        "a role on the first line": f"assistant\n{NOON}",
        "Gemma's role on the first line": f"model\n{NOON}",
        "Phi's header in a line": f"<|assistant|>{NOON}<|end|>",
        "the end of the turn before": f"<|eot_id|>{NOON}",
        "the end of the turn before, and a header": f"<end_of_turn>\n<start_of_turn>model\n{NOON}<end_of_turn>",
        "the end of the turn before, and Qwen's header": f"<|im_end|>\n<|im_start|>assistant\n{NOON}",
        "another turn of Qwen's": f"{NOON}<|im_start|>user\nThanks!",
        "another turn of DeepSeek's": f"{NOON}<\uff5cUser\uff5c>Thanks!<\uff5cAssistant\uff5c>Welcome.",
        "half a token at the end": f"{NOON}<|im_end",
        "tokens without bars": f"<im_start>assistant\n{NOON}<im_end>",
        "thoughts in a block": f"```thinking\nHigh sun.\n```\n{NOON}",
        "Qwen's reasoning": f"```reasoning\nHigh sun.\n```\n\n{NOON}",
        "thoughts in a block of another sign": f"~~~thought\nHigh sun.\n~~~\n{NOON}",
        "thoughts in brackets": f"[thinking]\nHigh sun.\n[/thinking]\n{NOON}",
        "thoughts in Chinese brackets": f"【思考】High sun.【/思考】{NOON}",
        "thoughts in a Chinese tag": f"<思考>High sun.</思考>{NOON}",
        "thoughts as Ollama's command shows them": f"Thinking...\nHigh sun.\n...done thinking.\n\n{NOON}",
        "thoughts in a fold with a title": f"<details><summary>Thinking</summary>\nHigh sun.\n</details>\n\n{NOON}",
        "thoughts in tokens": f"<|reasoning|>High sun.<|/reasoning|>{NOON}",
        "thoughts in tokens before the answer's": f"<|reasoning|>High sun.<|answer|>{NOON}",
        "thoughts in a tag with a space": f"<think >High sun.</think >{NOON}",
        "thoughts that a token closes": f"<think>High sun.<|/think|>{NOON}",
        "an answer within thoughts": f"<think>High sun.\n\n<answer>{NOON}</answer>",
        "harmony without tokens": f"analysisThe user wants the time.assistantfinal{NOON}",
        "harmony without tokens, at length": f"analysis{'We need the time. ' * 1_200}assistantfinal{NOON}",
        "harmony without tokens, twice": f"analysisWe look.assistantanalysisHigh sun.assistantfinal{NOON}",
        "harmony without tokens, on lines": f"analysis\nThe user wants the time.\nassistantfinal\n{NOON}",
        "harmony in lower case": f"analysiswe need the time.assistantfinal{NOON}",
        "harmony without its first token": "analysis<|message|>High sun.<|end|><|start|>assistant"
        f"<|channel|>final<|message|>{NOON}",
        "harmony's last header": f"assistant<|channel|>final<|message|>{NOON}<|return|>",
        "a section for all": f"all\n{NOON}",
        "version 2's section for all": f"<|from|>assistant\n<|recipient|>all\n<|content|>{NOON}<|stop|>",
        "version 2's section in a line": f"<|from|>assistant<|recipient|>all<|content|>{NOON}",
        "another turn of Phi's": f"{NOON}<|end|><|user|>Thanks!<|end|>",
        "thoughts in one word": f"<antThinking>High sun.</antThinking>{NOON}",
        "tokens for thoughts": f"<|think|>High sun.<|end|><|begin|>assistant<|content|>{NOON}<|flush|>",
    }
    assert await recite(answers) == dict.fromkeys(answers, ("completed", [], NOON))


async def test_the_mark_of_a_call_without_one_fails_the_turn() -> None:
    class Marked(Talker):
        def last(self, body: Json) -> bytes:
            return say("Let me look.", "[TOOL", "_CALLS]")

    assert (await tell(Marked)).response.status == "failed"


async def test_thoughts_that_end_in_a_channel_are_no_answer() -> None:
    class Prefilled(Talker):
        def last(self, body: Json) -> bytes:
            return say(*split(f"We need the time.<|end|><|start|>assistant<|channel|>final<|message|>{NOON}<|return|>"))

    told = (await tell(Prefilled)).response.output
    assert [(item.phase, item.content[0].text) for item in told if isinstance(item, ResponseOutputMessage)] == [  # type: ignore[union-attr]
        ("commentary", "We need the time."),
        (None, NOON),
    ]


async def test_json_that_was_asked_for_is_taken_out_of_what_is_around_it() -> None:
    hour = '{"hour": 12, "words": "```{[`"}'
    answers = {
        "a block": f"```json\n{hour}\n```",
        "a block without its end": f"```json\n{hour}",
        "words around a block": f"Here you are:\n```json\n{hour}\n```\nAsk me for more.",
        "words around JSON": f"Here is the JSON:\n\n{hour}\n\nLet me know.",
        "thoughts and a token": f"<think>High sun.</think>\n```\n{hour}\n```<|im_end|>",
        "tags": f"<json>{hour}</json>",
        "nothing": hour,
    }
    assert await recite(answers, text={"format": {"type": "json_object"}}) == dict.fromkeys(answers, ("completed", [], hour))


async def test_json_that_slips_is_mended_or_fails() -> None:
    day = '{"hour": 12, "is_day": true}'
    answers = {
        "a comma": '{"hour": 12, "is_day": true,}',
        "Python": "{'hour': 12, 'is_day': True}",
        "Python's word": '{"hour": 12, "is_day": True}',
        "no end": '{"hour": 12, "is_day": true',
        "words behind": f"{day}\n\nLet me know.",
        "a block and a comma": '```json\n{"hour": 12, "is_day": true,}\n```',
        "Python among words": "The answer is {'hour': 12, 'is_day': True}.",
        "thoughts before": f"<think>High sun.</think>{day[:-1]},}}",
    }
    format = {
        "type": "json_schema", "name": "day",
        "schema": {"type": "object", "properties": {"hour": {"type": "integer"}, "is_day": {"type": "boolean"}}},
    }  # fmt: skip
    assert await recite(answers, text={"format": format}) == dict.fromkeys(answers, ("completed", [], day))
    broken = {"half a number": '{"is_day": true, "hour": 1', "two": f"{day}\n{day}", "words": "{It is noon.}"}
    told = await recite(broken, text={"format": format})
    assert {name: each[0] for name, each in told.items()} == dict.fromkeys(broken, "failed")


async def test_text_that_only_looks_like_a_call_stays_text() -> None:
    assert await recite(leaks.TWINS) == {name: ("completed", [], text) for name, text in leaks.TWINS.items()}


CLEAN = {
    "words": say("It ", "is ", "noon."),
    "signs": say("So", " <b>", "bold", "</b>", " [1]", " {x}", "\n```py\n", "f(x)", "\n```\n", "."),
    "a call": call("a", '{"zone"', ': "UTC"}'),
    "two calls": sse(*[chunk(call_piece(place, id=f"c{place}", name="get_time", arguments=UTC)) for place in (0, 1)])
    + sse(chunk(finish="tool_calls"))
    + DONE,
    "thoughts": sse(chunk({"reasoning_content": "High sun."}), chunk({"content": NOON}), chunk(finish="stop")) + DONE,
}


PLAIN_REQUEST = (
    b'{"model":"nobody-knows-me","messages":[{"role":"user","content":"What time is it?"}],"stream":true,'
    b'"stream_options":{"include_usage":true},'
    b'"tools":[{"type":"function","function":{"name":"get_time","description":"Tells the time in a zone.","parameters"'
    b':{"type":"object","properties":{"zone":{"type":"string"}},"required":["zone"],"additionalProperties":false}}},{"'
    b'type":"function","function":{"name":"now","description":"Tells the time here.","parameters":{"type":"object","pr'
    b'operties":{},"required":[],"additionalProperties":false}}}]}'
)
"""Byte for byte what is sent to a backend of which nothing is known."""


@pytest.mark.parametrize("name", CLEAN)
async def test_a_clean_backend_is_asked_once_a_turn_and_heard_at_once(name: str) -> None:
    asked: list[Json] = []
    heard: list[str] = []

    raw: list[bytes] = []

    class Clean(Animal):
        async def handle(self, request: web.Request) -> web.Response:
            raw.append(await request.read())
            return await super().handle(request)

        def refuse(self, body: Json) -> None:
            asked.append(body)

        def first(self, body: Json) -> bytes:
            return CLEAN[name]

        async def ask(self, client: openai.AsyncOpenAI) -> Response:
            async with client.responses.stream(model=MODEL, input="What time is it?") as stream:
                async for event in stream:
                    if event.type == "response.output_text.delta":
                        heard.append(event.delta)
                return await stream.get_final_response()

    outcome = await tell(Clean)
    assert outcome.response.status == "completed"
    assert [set(body) for body in asked] == [{"model", "messages", "stream", "stream_options", "tools"}] * len(asked)
    assert asked[0]["messages"] == [{"role": "user", "content": "What time is it?"}]
    assert len(asked) == (2 if outcome.zones else 1)
    assert raw[0] == PLAIN_REQUEST
    if name in ("words", "signs"):
        sent = [json.loads(line[6:]) for line in CLEAN[name].decode().splitlines() if line.startswith("data: {")]
        pieces = [choice["delta"].get("content") for each in sent for choice in each["choices"] if choice.get("delta")]
        assert heard == [piece for piece in pieces if piece]


@pytest.mark.parametrize("phrase", phrases.PHRASES)
async def test_a_refusal_is_understood(phrase: str) -> None:
    said = phrases.PHRASES[phrase]
    refused: list[Json] = []

    class Refusing(Talker):
        request: ClassVar[dict[str, Any]] = said.request

        def refuse(self, body: Json) -> Refusal | None:
            if not said.is_wrong(body):
                return None
            refused.append(body)
            return Refusal(said.words, said.status)

        def last(self, body: Json) -> bytes:
            return say(said.answer)

    outcome = await tell(Refusing)
    assert (outcome.response.status, outcome.response.output_text) == ("completed", said.answer)
    assert len(refused) == 1


@pytest.mark.parametrize("phrase", phrases.AFTER_A_CALL)
async def test_a_refusal_once_a_tool_has_run_is_understood_and_the_tool_runs_once(phrase: str) -> None:
    said = phrases.AFTER_A_CALL[phrase]

    class Refusing(Animal):
        def refuse(self, body: Json) -> Refusal | None:
            return Refusal(said.words, said.status) if said.is_wrong(body) else None

        def first(self, body: Json) -> bytes | Json:
            return self.last(body) if "12:00" in json.dumps(body["messages"]) else super().first(body)

    Refusing().check(await tell(Refusing))


@pytest.mark.parametrize("words", phrases.FAULTS)
async def test_a_refusal_of_what_the_caller_says_is_told_to_the_caller(words: str) -> None:
    asked: list[Json] = []

    class Strict(Talker):
        request: ClassVar[dict[str, Any]] = {"temperature": 2, "text": phrases.FORMAT}

        def refuse(self, body: Json) -> str:
            asked.append(body)
            return words

    with pytest.raises(openai.BadRequestError, match="the backend answered"):
        await tell(Strict)
    assert len(asked) == 1


@pytest.mark.parametrize(
    ("word", "status"),
    [
        ("MAX_TOKENS", "incomplete"),
        ("sensitive", "incomplete"),
        ("SAFETY", "incomplete"),
        ("network_error", "failed"),
        ("token_limit", "incomplete"),
        ("ERROR_TOXIC", "incomplete"),
        ("cancelled", "failed"),
        ("time_limit", "failed"),
        ("OTHER", "failed"),
        ("LANGUAGE", "incomplete"),
        ("engine_overloaded", "failed"),
        ("function_call_filter: MALFORMED_FUNCTION_CALL", "failed"),
    ],
)
async def test_an_answer_that_was_broken_off_does_not_pass_for_whole(word: str, status: str) -> None:
    class Breaking(Talker):
        def last(self, body: Json) -> bytes:
            return say("It is", finish=word)

    assert (await tell(Breaking)).response.status == status


@pytest.mark.parametrize(
    "told",
    [
        {"id": "", "choices": None, "base_resp": {"status_code": 1008, "status_msg": "insufficient balance"}},
        {"code": 1113, "msg": "insufficient balance", "success": False},
        {"success": False, "errors": [{"code": 5006, "message": "insufficient balance"}]},
        {"detail": "insufficient balance"},
    ],
)
async def test_an_error_of_another_shape_is_told(told: Json) -> None:
    class Broke(Talker):
        def last(self, body: Json) -> Json:
            return told

    with pytest.raises(openai.APIStatusError, match="insufficient balance"):
        await tell(Broke)


async def test_sealed_thoughts_of_each_call_come_back() -> None:
    sealed = [{"type": "reasoning.encrypted", "index": place, "id": f"c{place}", "data": "c2VhbGVk"} for place in (0, 1)]

    class Sealing(Animal):
        zones: ClassVar = ["UTC", "UTC"]

        def refuse(self, body: Json) -> str | None:
            told = [each["reasoning_details"] for each in body["messages"] if "reasoning_details" in each]
            return "reasoning_details must be passed back unmodified" if outputs(body) and told != [sealed] else None

        def first(self, body: Json) -> bytes:
            made = [call_piece(place, id=f"c{place}", name="get_time", arguments=UTC) for place in (0, 1)]
            told = [chunk({**each, "reasoning_details": [detail]}) for each, detail in zip(made, sealed, strict=True)]
            return sse(*told, chunk(finish="tool_calls")) + DONE

    Sealing().check(await tell(Sealing))


async def test_thoughts_may_be_parts_of_the_content() -> None:
    class Parts(Talker):
        def last(self, body: Json) -> bytes:
            thought = chunk({"content": [{"type": "reasoning", "text": "High sun."}]})
            return sse(thought, chunk({"content": [{"type": "text", "text": NOON}]}), chunk(finish="stop")) + DONE

    outcome = await tell(Parts)
    assert (outcome.response.output_text, outcome.response.output[0].type) == (NOON, "reasoning")


@pytest.mark.parametrize("code", ["tool_use_failed", "json_validate_failed"])
async def test_what_the_backend_could_not_read_is_no_fault_of_the_caller(code: str) -> None:
    class Stumbling(Talker):
        async def handle(self, request: web.Request) -> web.Response:
            error = {"message": "Failed to generate. Please adjust your prompt.", "code": code}  # as at Groq
            return web.json_response({"error": error}, status=400)

    with pytest.raises(openai.APIStatusError, match="Failed to generate") as caught:
        await tell(Stumbling)
    assert caught.value.status_code == 502


async def test_a_request_is_changed_three_times_at_most() -> None:
    fields = ["stream_options", "temperature", "top_p", "reasoning_effort"]
    asked: list[Json] = []

    class Picky(Talker):
        request: ClassVar[dict[str, Any]] = {"temperature": 1, "top_p": 1, "reasoning": {"effort": "low"}}

        def refuse(self, body: Json) -> str | None:
            asked.append(body)
            wrong = [field for field in fields if field in body]
            return f"Unsupported parameter: {wrong[0]} is not supported" if wrong else None

    with pytest.raises(openai.BadRequestError):
        await tell(Picky)
    assert len(asked) == 4


async def test_an_answer_that_reaches_its_limit_is_incomplete_and_teaches_nothing() -> None:
    class Limited(Talker):
        request: ClassVar[dict[str, Any]] = {**streams.AnswerCutSilently.request, "max_output_tokens": 17}
        last = streams.AnswerCutSilently.last

    outcome = await tell(Limited)
    assert outcome.response.incomplete_details is not None
    assert (outcome.response.status, outcome.response.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    assert not outcome.trace.execution[-1].adaptations


async def test_a_window_that_was_learned_is_kept_to_from_then_on() -> None:
    cut: list[bool] = []

    class Small(Talker):
        request: ClassVar[dict[str, Any]] = {
            "input": [{"role": "user", "content": f"{number} " + "tick tock " * 500} for number in range(30)],
            "truncation": "auto",
        }

        def last(self, body: Json) -> bytes:
            size = len(str(body["messages"])) // 4
            cut.append(size > 4_096)
            return sse(chunk({"content": NOON}), chunk(finish="stop"), usage_chunk(min(size, 4_096), 5)) + DONE

        async def ask(self, client: openai.AsyncOpenAI) -> Response:
            await super().ask(client)
            return await super().ask(client)

    assert (await tell(Small)).response.status == "completed"
    assert cut == [True, True, False]


async def test_a_bound_that_does_not_fit_the_context_is_refused_once() -> None:
    asked: list[int | None] = []

    class Small(Talker):
        request: ClassVar[dict[str, Any]] = {"max_output_tokens": 8_000}

        def refuse(self, body: Json) -> str | None:
            asked.append(most := body.get("max_tokens"))
            return "This model's maximum context length is 8192 tokens. However, you requested more." if most == 8_000 else None

        async def ask(self, client: openai.AsyncOpenAI) -> Response:
            await super().ask(client)
            await client.responses.create(model=MODEL, input="What time is it?", max_output_tokens=500)
            return await super().ask(client)

    assert (await tell(Small)).response.status == "completed"
    assert asked == [8_000, None, 500, None]


async def test_odd_tools_of_one_caller_change_nothing_for_the_others() -> None:
    refused: list[Json] = []
    taken: list[Json] = []

    class Strict(Talker):
        def refuse(self, body: Json) -> Refusal | None:
            is_odd = "minLength" in json.dumps(body["tools"])
            (refused if is_odd else taken).append(body)
            return Refusal("failed to parse grammar", 500) if is_odd else None

        async def ask(self, client: openai.AsyncOpenAI) -> Response:
            for request in (phrases.LENGTH, {}, phrases.LENGTH):
                last: Response = await client.responses.create(model=MODEL, input="What time is it?", **request)
            return last

    await tell(Strict)
    assert len(refused) == 1
    assert "Tells the time in a zone." in json.dumps(taken[1]["tools"])
    assert "minLength" not in json.dumps(taken[2]["tools"])


async def test_what_was_adapted_is_in_the_trace_and_nothing_that_was_said() -> None:
    class Leaking(leaks.HermesCallAsText):
        def refuse(self, body: Json) -> str | None:
            return requests.NoStreamOptions().refuse(body) or requests.NoNullContent().refuse(body)

    trace = (await tell(Leaking)).trace
    first, second = [step.adaptations for step in trace.execution]
    assert [(each.kind, each.field, each.value, each.attempt, each.is_kept) for each in first] == [
        ("changed", "stream_options", False, 1, True),
        ("recovered", "calls", 1, 0, False),
    ]
    assert [(each.kind, each.field, each.value, each.attempt, each.is_kept) for each in second] == [
        ("changed", "blank", "empty", 1, True)
    ]
    told = msgspec.json.encode([first, second]).decode()
    assert not re.search("UTC|noon|get_time|12:00", told)
    chats = [span for span in build_spans(trace, "openai") if span.name.startswith("chat")]
    assert [span.attributes["mainspring.adaptations"] for span in chats] == [tuple(map(str, first)), tuple(map(str, second))]


async def test_what_was_tried_in_vain_is_in_the_trace() -> None:
    class Stubborn(Talker):
        def refuse(self, body: Json) -> str:
            return f"Unknown field: {'stream_options' if 'stream_options' in body else 'the moon'}"

        async def ask(self, client: openai.AsyncOpenAI) -> Response:
            with pytest.raises(openai.BadRequestError):
                await super().ask(client)
            return Response.model_construct(id="", status="failed")

    (step,) = (await tell(Stubborn)).trace.execution
    assert [(each.field, each.attempt, each.is_kept) for each in step.adaptations] == [("stream_options", 1, True)]


async def test_where_calls_are_forbidden_none_is_found_in_text() -> None:
    told = await recite(leaks.FORMS, tool_choice="none")
    assert {name: each[:2] for name, each in told.items()} == dict.fromkeys(leaks.FORMS, ("completed", []))
    assert [name for name, (_, _, words) in told.items() if "gettime" not in words.replace("_", "").lower()] == []


def split(text: str) -> list[str]:
    return [text[start : start + 5] for start in range(0, len(text), 5)]


def test_no_table_knows_the_model() -> None:
    assert find_profile(MODEL) is NEUTRAL


def test_the_table_lists_every_animal_and_no_other() -> None:
    assert EXPECTED.keys() == {kind.__name__ for kind in ANIMALS}
    assert all(fate == "survives" or fate.startswith("not yet: ") for fate in EXPECTED.values())


@pytest.mark.parametrize("kind", ANIMALS)
def test_an_animal_says_what_it_does_and_where_it_was_seen(kind: type[Animal]) -> None:
    words = kind.__doc__ or ""
    assert f"Quirk {kind.number}:" in words
    assert "https://" in words or "own measurement" in words or "code read" in words or "supposed, without a source" in words
