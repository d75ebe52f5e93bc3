"""Streams as vendors really cut them, with words of our own; and law 14: cut anywhere, they give the same events."""

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.providers.backend import Backend, ask, folded

from mainspring.core.errors import ProviderError
from mainspring.core.events import ItemDone, ModelEvent, TurnEnded
from mainspring.core.ids import counting
from mainspring.core.items import FunctionCall, Item, Message, OutputText, Reasoning, ReasoningText, Usage
from mainspring.providers.chat.reply import ChatCompletionReply
from mainspring.providers.http_client import Http
from mainspring.providers.turn import TurnBuilder


class Recording(NamedTuple):
    raw: bytes
    items: list[Item]
    end: TurnEnded


def lines(head: str, *tails: str, gap: str = "\n\n") -> bytes:
    return "".join([f"data: {head}{tail}{gap}" for tail in tails]).encode() + f"data: [DONE]{gap}".encode()


OPENAI = lines(
    '{"id":"chatcmpl-9","object":"chat.completion.chunk","created":1,"model":"gpt-x","service_tier":"default",',
    '"choices":[{"index":0,"delta":{"role":"assistant","content":null,"tool_calls":[{"index":0,"id":"call_Zk","type":"function",'
    '"function":{"name":"get_hour","arguments":""}}],"refusal":null},"logprobs":null,"finish_reason":null}],"usage":null,"obfuscation":"q"}',
    '"choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"function":{"arguments":"{\\""}}]},"finish_reason":null}],"usage":null}',
    '"choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"function":{"arguments":"zone"}}]},"finish_reason":null}],"usage":null}',
    '"choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"function":{"arguments":"\\":\\"Z\\u00fcrich\\"}"}}]},"finish_reason":null}]}',
    '"choices":[{"index":0,"delta":{"tool_calls":[{"index":1,"id":"call_Zl","type":"function",'
    '"function":{"name":"get_hour","arguments":""}}]},"logprobs":null,"finish_reason":null}],"usage":null}',
    '"choices":[{"index":0,"delta":{"tool_calls":[{"index":1,"function":{"arguments":"{}"}}]},"finish_reason":null}],"usage":null}',
    '"choices":[{"index":0,"delta":{},"logprobs":null,"finish_reason":"tool_calls"}],"usage":null}',
    '"choices":[],"usage":{"prompt_tokens":53,"completion_tokens":31,"total_tokens":84,"prompt_tokens_details":{"cached_tokens":16,'
    '"audio_tokens":0},"completion_tokens_details":{"reasoning_tokens":8,"accepted_prediction_tokens":0}}}',
)  # fmt: skip

DEEPSEEK = lines(
    '{"id":"33be","object":"chat.completion.chunk","created":1,"model":"deep","system_fingerprint":"fp_1","choices":[{"index":0,',
    '"delta":{"role":"assistant","content":null,"reasoning_content":""},"logprobs":null,"finish_reason":null}],"usage":null}',
    '"delta":{"content":null,"reasoning_content":"The sun"},"logprobs":null,"finish_reason":null}],"usage":null}',
    '"delta":{"content":null,"reasoning_content":" is \u2600\ufe0f"},"logprobs":null,"finish_reason":null}],"usage":null}',
    '"delta":{"content":"Noon","reasoning_content":null},"logprobs":null,"finish_reason":null}],"usage":null}',
    '"delta":{"content":" \u5348","reasoning_content":null},"logprobs":null,"finish_reason":null}],"usage":null}',
    '"delta":{"content":"","reasoning_content":null},"logprobs":null,"finish_reason":"stop"}],"usage":{"prompt_tokens":6,'
    '"completion_tokens":21,"total_tokens":27,"completion_tokens_details":{"reasoning_tokens":9},"prompt_cache_hit_tokens":4}}',
)  # fmt: skip

MISTRAL = lines(
    '{"id":"9f9d","object":"chat.completion.chunk","created":1,"model":"mag","choices":[{"index":0,',
    '"delta":{"role":"assistant","content":""},"finish_reason":null}]}',
    '"delta":{"content":[{"type":"thinking","thinking":[{"type":"text","text":"Okay"}]}]},"finish_reason":null}]}',
    '"delta":{"content":[{"type":"thinking","thinking":[{"type":"text","text":", noon."}]}]},"finish_reason":null}]}',
    '"delta":{"content":[{"type":"thinking","thinking":[]}]},"finish_reason":null}]}',
    '"delta":{"content":"It is"},"finish_reason":null}]}',
    '"delta":{"content":" noon."},"finish_reason":null}]}',
    '"delta":{"content":""},"finish_reason":"stop"}],"usage":{"prompt_tokens":10,"total_tokens":42,"completion_tokens":32}}',
    gap="\r\n\r\n",
)  # fmt: skip

GEMINI = lines(
    '{"created":1,"id":"3SE","model":"gem","object":"chat.completion.chunk","choices":[{"index":0,',
    '"delta":{"role":"assistant","tool_calls":[{"function":{"arguments":"{\\"zone\\":\\"UTC\\"}","name":"get_hour"},"id":"","index":0,'
    '"type":"function"}]}}],"usage":{"completion_tokens":12,"prompt_tokens":35,"total_tokens":109}}',
    '"delta":{"role":"assistant","tool_calls":[{"function":{"arguments":"{\\"zone\\":\\"CET\\"}","name":"get_hour"},"id":"","index":0,'
    '"type":"function"}]},"finish_reason":"stop"}],"usage":{"completion_tokens":24,"prompt_tokens":35,"total_tokens":121}}',
)  # fmt: skip

GROQ = lines(
    '{"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":"llama","system_fingerprint":"fp_1","choices":[{"index":0,',
    '"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}],"x_groq":{"id":"req_1"}}',
    '"delta":{"content":"Noon"},"logprobs":null,"finish_reason":null}]}',
    '"delta":{},"logprobs":null,"finish_reason":"stop"}],"x_groq":{"id":"req_1","usage":{"queue_time":0.01,"prompt_tokens":37,'
    '"prompt_time":0.002,"completion_tokens":4,"completion_time":0.01,"total_tokens":41,"total_time":0.012}}}',
)  # fmt: skip

ROUTER = b": OPENROUTER PROCESSING\n\n: OPENROUTER PROCESSING\n\n" + lines(
    '{"id":"gen-1","provider":"P","model":"m","object":"chat.completion.chunk","created":1,"choices":[{"index":0,',
    '"delta":{"role":"assistant","content":"","reasoning":"Well","reasoning_details":[{"type":"reasoning.text","text":"Well"}]},'
    '"finish_reason":null,"native_finish_reason":null,"logprobs":null}]}',
    '"delta":{"role":"assistant","content":"\\n\\n"},"finish_reason":null}]}',
    '"delta":{"role":"assistant","content":"Noon"},"finish_reason":null}]}',
    '"delta":{"role":"assistant","content":""},"finish_reason":"stop","native_finish_reason":"completed"}]}',
    '"delta":{"role":"assistant","content":""},"finish_reason":null}],"usage":{"prompt_tokens":8,"completion_tokens":5,'
    '"total_tokens":13,"cost":0.1,"prompt_tokens_details":{"cached_tokens":0,"cache_write_tokens":3}}}',
)  # fmt: skip

ZURICH, UTC, CET = '{"zone":"Z\u00fcrich"}', '{"zone":"UTC"}', '{"zone":"CET"}'
RECORDINGS = {
    "openai": Recording(
        OPENAI,
        [FunctionCall("call_Zk", "get_hour", ZURICH, id="fc_1"), FunctionCall("call_Zl", "get_hour", "{}", id="fc_2")],
        TurnEnded("stop", Usage(53, 31, cached_tokens=16, reasoning_tokens=8)),
    ),
    "deepseek": Recording(
        DEEPSEEK,
        [
            Reasoning(id="rs_1", content=(ReasoningText("The sun is \u2600\ufe0f"),)),
            Message("assistant", (OutputText("Noon \u5348"),), id="msg_2"),
        ],
        TurnEnded("stop", Usage(6, 21, cached_tokens=4, reasoning_tokens=9)),
    ),
    "mistral": Recording(
        MISTRAL,
        [
            Reasoning(id="rs_1", content=(ReasoningText("Okay, noon."),)),
            Message("assistant", (OutputText("It is noon."),), id="msg_2"),
        ],
        TurnEnded("stop", Usage(10, 32)),
    ),
    "gemini": Recording(
        GEMINI,
        [FunctionCall("call_2", "get_hour", UTC, id="fc_1"), FunctionCall("call_4", "get_hour", CET, id="fc_3")],
        TurnEnded("stop", Usage(35, 86)),
    ),
    "groq": Recording(
        GROQ,
        [Message("assistant", (OutputText("Noon"),), id="msg_1")],
        TurnEnded("stop", Usage(37, 4)),
    ),
    "openrouter": Recording(
        ROUTER,
        [
            Reasoning(id="rs_1", content=(ReasoningText("Well"),)),
            Message("assistant", (OutputText("\n\nNoon"),), id="msg_2"),
        ],
        TurnEnded("stop", Usage(8, 5, cache_write_tokens=3)),
    ),
}


@pytest.mark.parametrize("vendor", RECORDINGS)
async def test_a_vendor_is_understood(backend: Backend, vendor: str) -> None:
    recording = RECORDINGS[vendor]
    backend.replies(recording.raw)
    events = await ask(backend)
    assert [event.item for event in events if isinstance(event, ItemDone)] == recording.items
    assert events[-1] == recording.end
    assert list(folded(events).output) == recording.items


@pytest.mark.parametrize("vendor", RECORDINGS)
async def test_a_vendor_is_understood_byte_by_byte(backend: Backend, vendor: str) -> None:
    raw = RECORDINGS[vendor].raw
    backend.replies(*[raw[at : at + 1] for at in range(len(raw))])
    assert await ask(backend) == read([raw])


def read(pieces: Sequence[bytes]) -> list[ModelEvent]:
    """What these pieces make; a failure is the last of it."""
    answer = ChatCompletionReply(TurnBuilder(counting()), Http("http://clock/v1", api_key=None, headers=None, timeout=1.0))
    events: list[ModelEvent] = []
    try:
        for piece in pieces:
            if answer.is_over:
                break
            events += answer.feed(piece)
        events += answer.end()
    except ProviderError as error:
        pytest.fail(error.message)
    return events


@given(st.sampled_from(sorted(RECORDINGS)), st.lists(st.integers(0, 3000), max_size=50))
def test_law_14_any_byte_split_of_a_stream_gives_the_same_events(vendor: str, cuts: list[int]) -> None:
    raw = RECORDINGS[vendor].raw
    places = [0, *sorted([cut for cut in cuts if cut < len(raw)]), len(raw)]
    assert read([raw[a:b] for a, b in pairwise(places)]) == read([raw])
