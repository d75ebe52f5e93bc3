"""Websites on this machine for a browser to visit, and a port that it must not reach."""

import asyncio
from asyncio import StreamReader, StreamWriter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress

from aiohttp import web

from mainspring.tools.addresses import AddressGuard

ALLOWED = ("shop.test", "second.test")
PUBLIC = "93.184.216.34"

HOME = """<!doctype html><title>The shop</title><h1>Welcome</h1><p>We sell <b>springs</b>.</p>
<ul><li><a href="/next">Go on</a></li><li><a href="/next?new" target="_blank">In a new window</a></li></ul>
<form action="/order" method="post"><label>Name <input name="who"></label> <input type="password" name="word" value="s3cret">
<select name="size" aria-label="Size"><option>small<option>large</select>
<input type="checkbox" name="gift" aria-label="As a gift">
<textarea name="words" aria-label="Words">old</textarea> <input type="file" name="upload" aria-label="Upload">
<button type="button" disabled>Later</button><button>Order</button></form>
<div style="display:none">unseen <a href="/hidden">hidden</a></div><p id="late"></p>
<script>fetch("/stock").then(r => r.text()).then(t => late.textContent = t)</script>"""


class Bait:
    """Listens where nobody may come. `heard` is what each connection began with.

    A browser asks for the icon of a page that it was allowed to open whenever it likes, which is no attempt.
    """

    def __init__(self) -> None:
        self.heard: list[bytes] = []
        self.port = 0

    async def answer(self, reader: StreamReader, writer: StreamWriter) -> None:
        with suppress(OSError):
            head = await reader.read(4096)
            if not (head.startswith(b"GET /favicon.ico ") and b"\r\nHost: second.test" in head):
                self.heard.append(head)
            writer.write(b"HTTP/1.1 200 OK\r\nAccess-Control-Allow-Origin: *\r\nContent-Length: 6\r\n\r\nsecret")
            await writer.drain()
        writer.close()


class Site:
    """What the servers know. A page of an attack has `BAIT` in it, which stands for the origin to be reached."""

    def __init__(self, port: int, bait: Bait) -> None:
        self.port, self.bait = port, bait
        self.pages: dict[str, str] = {}
        self.redirects: dict[str, str] = {}
        self.orders: list[dict[str, str]] = []
        self.url = f"http://shop.test:{port}"

    async def answer(self, request: web.Request) -> web.StreamResponse:
        path = request.path
        if path in self.redirects:
            raise web.HTTPFound(self.redirects[path])
        if path == "/order":
            self.orders.append({name: str(value) for name, value in (await request.post()).items()})
            return page("<title>Thanks</title>Ordered.")
        if path == "/stock":
            return web.Response(text="Seven are left.")
        if path == "/file":
            return web.Response(body=b"\0" * 99, headers={"Content-Disposition": "attachment; filename=x.bin"})
        if path == "/next":
            return page(f'<title>Next</title>The next page for {request.cookies.get("who", "nobody")}. <a href="/">Home</a>')
        return page(self.pages.get(path, HOME))


def page(text: str) -> web.Response:
    return web.Response(text=text, content_type="text/html")


async def lookup(host: str, port: int) -> Sequence[str]:
    if host.endswith((".test", "localhost")):
        return ["127.0.0.1"]
    raise OSError(f"there is no {host}")


def guard() -> AddressGuard:
    return AddressGuard(ALLOWED, lookup=lookup)


@asynccontextmanager
async def opened_site() -> AsyncIterator[Site]:
    bait = Bait()
    server = await asyncio.start_server(bait.answer, "127.0.0.1", 0)
    bait.port = server.sockets[0].getsockname()[1]
    holder: list[Site] = []

    async def answer(request: web.Request) -> web.StreamResponse:
        return await holder[0].answer(request)

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(app, shutdown_timeout=0)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        holder.append(Site(runner.addresses[0][1], bait))
        yield holder[0]
    finally:
        await runner.cleanup()
        server.close()
