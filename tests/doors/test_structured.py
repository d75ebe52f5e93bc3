"""An answer that is to be JSON is nothing but JSON, through every door, also when the server's tools have worked for it."""

from typing import Any

import pytest
from anthropic import AsyncAnthropic
from pydantic import BaseModel
from tests.doors.chatting import opened

from mainspring.providers.scripted import Scripted, call, say, turn

ASK: Any = [{"role": "user", "content": "What time is it?"}]


class Time(BaseModel):
    hour: int


def look_and_tell() -> Scripted:
    return Scripted(turn(say="Let me look.", calls=[call("clock")]), say('{"hour": 9}'))


@pytest.mark.parametrize("is_streamed", [False, True])
async def test_a_chat_is_parsed(is_streamed: bool) -> None:
    async with opened(look_and_tell()) as place:
        completions = place.client.chat.completions
        if is_streamed:
            async with completions.stream(model="scripted", messages=ASK, response_format=Time) as stream:
                answer: Any = await stream.get_final_completion()
        else:
            answer = await completions.parse(model="scripted", messages=ASK, response_format=Time)
    assert answer.choices[0].message.parsed == Time(hour=9)


@pytest.mark.parametrize("is_streamed", [False, True])
async def test_a_message_is_parsed(is_streamed: bool) -> None:
    async with (
        opened(look_and_tell()) as place,
        AsyncAnthropic(base_url=place.url.removesuffix("/v1"), api_key="unused", max_retries=0) as client,
    ):
        options: Any = {"model": "scripted", "max_tokens": 50, "messages": ASK, "output_format": Time}
        if is_streamed:
            async with client.messages.stream(**options) as stream:
                answer: Any = await stream.get_final_message()
        else:
            answer = await client.messages.parse(**options)
    assert answer.parsed_output == Time(hour=9)
