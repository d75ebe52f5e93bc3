"""A Hugging Face hub on this machine: it redirects to where files are sent from, knows their sums, and can be made to fail."""

import asyncio
import hashlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from aiohttp import web

PATH = "/owner/model/resolve/main/small/model.gguf"


class Hub:
    """Serves `data` at `path`, or as every file. `sha256` may be a lie.

    `cuts` are the lengths after which answers break off, one per answer; but not before some of it has arrived, which the test
    says by `progress`. What has `excess` is followed by that many megabytes that nobody has announced.
    """

    def __init__(self) -> None:
        self.url = ""
        self.path: str | None = PATH
        self.data = bytes(range(256)) * 4096
        self.sha256 = hashlib.sha256(self.data).hexdigest()
        self.cuts: list[int] = []
        self.token: str | None = None
        self.knows_ranges = True
        self.knows_sums = True
        self.is_down = False
        self.excess = 0
        self.starts: list[int | None] = []
        self.said: list[str] = []
        self._arrived = asyncio.Event()

    def progress(self, line: str) -> None:
        self.said.append(line)
        self._arrived.set()

    async def resolve(self, request: web.Request) -> web.Response:
        """What the hub itself says: where the file is, and what it must be."""
        if self.token is not None and request.headers.get("Authorization") != f"Bearer {self.token}":
            return web.Response(status=401)
        if self.path not in (None, request.path):
            return web.Response(status=404)
        headers = {"Location": f"{self.url}/cdn/file"}
        if self.knows_sums:
            headers |= {"X-Linked-ETag": f'"{self.sha256}"', "X-Linked-Size": str(len(self.data))}
        return web.Response(status=302, headers=headers)

    async def send(self, request: web.Request) -> web.StreamResponse:
        wanted = request.headers.get("Range", "").removeprefix("bytes=").removesuffix("-")
        self.starts.append(int(wanted) if wanted else None)
        if self.is_down:
            return web.Response(status=503)
        start = int(wanted) if wanted and self.knows_ranges else 0
        response = web.StreamResponse(status=206 if start else 200)
        response.content_length = len(self.data) - start + self.excess * 1_000_000
        await response.prepare(request)
        if not self.cuts:
            await response.write(self.data[start:])
            for _ in range(self.excess):
                await response.write(bytes(1_000_000))
            return response
        self._arrived.clear()
        if cut := self.cuts.pop(0):
            await response.write(self.data[start : start + cut])
            await self._arrived.wait()
        assert request.transport is not None
        request.transport.close()
        return response


@asynccontextmanager
async def serving_hub() -> AsyncIterator[Hub]:
    hub = Hub()
    app = web.Application()
    app.router.add_get("/cdn/file", hub.send, allow_head=False)
    app.router.add_route("*", "/{path:.*}", hub.resolve)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    hub.url = "http://{}:{}".format(*runner.addresses[0][:2])
    try:
        yield hub
    finally:
        await runner.cleanup()
