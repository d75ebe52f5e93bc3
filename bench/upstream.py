"""A fast OpenAI-compatible backend for the load harness, and a bare byte-forwarding proxy to compare with.

    upstream.py backend PORT            upstream.py proxy PORT BACKEND_PORT

The backend answers by the last user text: `small` says three words, `deltas N` says N pieces, `loop N` makes two tool calls in
each of N turns and then answers, `hold` says one piece and keeps the line open. All its bytes are prepared beforehand.
"""

import asyncio
import json
import sys

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
END = b"0\r\n\r\n"


def chunk(delta: dict[str, object], finish: str | None = None) -> bytes:
    body = {
        "id": "c",
        "object": "chat.completion.chunk",
        "model": "m",
        "choices": [{"index": 0, "delta": delta, "finish_reason": finish}],
    }
    return framed(f"data: {json.dumps(body, separators=(',', ':'))}\n\n".encode())


def framed(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


FIRST = chunk({"role": "assistant", "content": ""})
PIECE = chunk({"content": "word "})
STOP = chunk({}, "stop")
CALLED = chunk({}, "tool_calls")
USAGE = framed(b'data: {"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":9,"total_tokens":18}}\n\n')
DONE = framed(b"data: [DONE]\n\n")


def made_call(index: int, number: int) -> bytes:
    arguments = json.dumps({"a": number, "b": index})
    named = {"index": index, "id": f"call_{number}_{index}", "type": "function", "function": {"name": "add", "arguments": ""}}
    said = {"index": index, "function": {"arguments": arguments}}
    return chunk({"tool_calls": [named]}) + chunk({"tool_calls": [said]})


async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            length = int(head.lower().partition(b"content-length:")[2].split(b"\r\n")[0])
            body = json.loads(await reader.readexactly(length))
            await say(writer, body["messages"])
    except (asyncio.IncompleteReadError, ConnectionError, ValueError):
        writer.close()


async def say(writer: asyncio.StreamWriter, messages: list[dict[str, object]]) -> None:
    asked = next(str(message["content"]) for message in reversed(messages) if message["role"] == "user")
    kind, _, amount = asked.partition(" ")
    turns = sum(message["role"] == "assistant" for message in messages)
    writer.write(HEAD + FIRST)
    if kind == "hold":
        writer.write(PIECE)
        await writer.drain()
        await asyncio.sleep(3600)
    if kind == "loop" and turns < int(amount):
        writer.write(made_call(0, turns) + made_call(1, turns) + CALLED)
    else:
        pieces = int(amount) if kind == "deltas" else 3
        for _ in range(pieces):
            writer.write(PIECE)
            if pieces > 10:
                # One piece per packet, as a model would send them.
                await asyncio.sleep(0)
        writer.write(STOP)
    writer.write(USAGE + DONE + END)
    await writer.drain()


async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    except ConnectionError:
        pass
    writer.close()


async def proxied(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    back_reader, back_writer = await asyncio.open_connection("127.0.0.1", int(sys.argv[3]))
    await asyncio.gather(forward(reader, back_writer), forward(back_reader, writer))


async def main() -> None:
    handler = answer if sys.argv[1] == "backend" else proxied
    server = await asyncio.start_server(handler, "127.0.0.1", int(sys.argv[2]), limit=1 << 24)
    print("ready", flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())
