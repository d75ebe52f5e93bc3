"""Where a browser comes back to after a sign-in that a command has begun: one request, to this machine.

Any page that the browser shows may send requests here, too. Only one with the `state` of the sign-in ends the wait.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from urllib.parse import parse_qsl, urlsplit

PATH = "/callback"
_PAGE = b"<!doctype html><meta charset=utf-8><title>Mainspring</title><p>You can close this page, and go back to the terminal."

Wait = Callable[[str], Awaitable[dict[str, str]]]


@asynccontextmanager
async def listen_for_callback() -> AsyncIterator[tuple[str, Wait]]:
    """The address to come back to, and what waits for the query with this `state`. To all else the answer is that there is
    nothing here."""
    answers: dict[str, asyncio.Future[dict[str, str]]] = {}

    async def hear(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(10):
                line = (await reader.readline()).decode("ascii", "replace").split()
                while (await reader.readline()).strip():
                    pass
            to = urlsplit(line[1] if len(line) == 3 and line[0] == "GET" else "")
            query = dict(parse_qsl(to.query))
            if to.path == PATH and (answer := answers.get(query.get("state", ""))) is not None:
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/html\r\nconnection: close\r\n\r\n" + _PAGE)
                if not answer.done():
                    answer.set_result(query)
            else:
                writer.write(b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
            await writer.drain()
        except (OSError, TimeoutError, ValueError):
            pass  # whoever that was, the browser comes by another connection
        finally:
            writer.close()

    async def wait(state: str) -> dict[str, str]:
        answers[state] = asyncio.get_running_loop().create_future()
        return await answers[state]

    server = await asyncio.start_server(hear, "127.0.0.1", 0, limit=65_536)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}{PATH}", wait
