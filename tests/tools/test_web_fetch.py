"""Pages of the web are read as text, from public machines only, and no server can make it take long or take much."""

import asyncio
import gzip
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager

import anyio
import pytest
from aiohttp import web
from tests.kit.waiting import PATIENCE

from mainspring.app.engine import Engine
from mainspring.features.governance.scope_policies import DomainPolicy
from mainspring.providers.scripted import Scripted, call, say
from mainspring.tools.addresses import AddressGuard
from mainspring.tools.builtin.readable import answer
from mainspring.tools.builtin.web_fetch import FetchedPage, WebFetch, decode_page
from mainspring.tools.contract import ToolContext, ToolResult
from mainspring.tools.registry import Registry

LOCAL = AddressGuard(["127.0.0.1"])
Raw = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def serving(raw: Raw) -> AsyncIterator[str]:
    """A server that answers each connection as it is told, byte by byte; it ends with what it was doing."""
    doing: set[asyncio.Task[None]] = set()

    async def answering(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        try:
            await raw(reader, writer)
        finally:
            writer.close()

    async def kept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.ensure_future(answering(reader, writer))
        doing.add(task)
        await asyncio.wait([task])

    server = await asyncio.start_server(kept, "127.0.0.1")
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        for task in doing:
            task.cancel()
        await asyncio.gather(*doing, return_exceptions=True)


def saying(head: str, body: bytes = b"") -> Raw:
    async def raw(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(f"HTTP/1.1 {head}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode() + body)
        await writer.drain()

    return raw


async def fetch(url: str, start: int = 0, *, guard: AddressGuard = LOCAL, seconds: float = 10.0) -> ToolResult:
    registry = Registry([WebFetch(guard, seconds=seconds)])
    with anyio.fail_after(PATIENCE):
        return await registry.validated_execute("web_fetch", {"url": url, "start": start}, ToolContext())


async def fetched(raw: Raw, start: int = 0) -> str:
    """What is told of the page, without its address."""
    async with serving(raw) as url:
        result = await fetch(url, start)
    assert result.success, result.error
    assert isinstance(result.output, str)
    return result.output.removeprefix(f"{url}\n")


async def refused(raw: Raw, seconds: float = 10.0) -> str:
    async with serving(raw) as url:
        result = await fetch(url, seconds=seconds)
    assert not result.success, result.output
    return result.error.replace(url, "URL")


PAGE = b"""<!doctype html><html><head><title>The
 Title</title><style>p {color: red}</style><script>alert("<p>no</p>")</script></head>
<body><h1>Big</h1><p>Some <b>bold</b>   text &amp; a <a href="/next?a=1#x">link
here</a>, <a href="#top">top</a>.</p><ul><li>one</li><li>two<ol><li>deep</li><li>er</li></ol></li></ul>
<table><tr><th>Name</th><th>Age</th></tr><tr><td>Ann</td><td>7</td></tr></table>
<pre>  code
    kept</pre><p>and <code>inline</code><br>new line <img src="x.png" alt="A cat"></p>
<svg><text>drawn</text><p>no</p></svg><p>end</p></body></html>"""
READ = """The Title

# Big

Some bold text & a [link here](http://site.example/next?a=1#x), top.

- one
- two
  1. deep
  2. er

| Name | Age
| Ann | 7

```
  code
    kept
```

and `inline`
new line [image: A cat]

end"""


async def test_a_page_is_read_as_text_with_its_links() -> None:
    told = await fetched(saying("200 OK\r\nContent-Type: text/html", PAGE))
    address = told.partition("(")[2].partition("/next")[0]
    assert told.replace(address, "http://site.example") == READ


@pytest.mark.parametrize(
    ("html", "text"),
    [
        ("", ""),
        ("just text", "just text"),
        ("<p>unclosed <a href='http://x'>link", "unclosed link"),
        ("</p></ul></a></li></pre></svg>fine", "fine"),
        ("<a href='javascript:alert(1)'>click</a> <a href='http://[bad'>bad</a>", "click bad"),
        ("<li>loose", "- loose"),
        ("a<![if x]>b", "a"),
        ("<p>a</p>\n\n\n<p>b</p>", "a\n\nb"),
    ],
)
def test_broken_html_is_read_as_well_as_it_can_be(html: str, text: str) -> None:
    assert answer(html, "http://site.example/")["text"].startswith(text)


async def test_json_and_plain_text_are_shown_as_they_are() -> None:
    assert await fetched(saying("200 OK\r\nContent-Type: application/ld+json", b'{"a": "<b>"}')) == '\n{"a": "<b>"}'
    assert await fetched(saying("200 OK\r\nContent-Type: text/plain", b"<p>as it is")) == "\n<p>as it is"
    assert await fetched(saying("200 OK", b"<p>untyped page")) == "\nuntyped page"


async def test_what_is_no_text_is_described() -> None:
    told = await refused(saying("200 OK\r\nContent-Type: image/png", b"\x89PNG" * 1000))
    assert told == "`URL` is image/png (4,000 bytes), which is not text; web_fetch reads text only"


@pytest.mark.parametrize(
    ("kind", "data", "text"),
    [
        ("text/plain; charset=iso-8859-1", "café".encode("latin-1"), "café"),
        ("text/plain; charset=Shift_JIS", "日本".encode("shift_jis"), "日本"),
        ("text/plain", "café".encode(), "café"),
        ("text/plain", "café “x”".encode("cp1252"), "café “x”"),
        ("text/plain; charset=utf-8", "café".encode("latin-1"), "caf\ufffd"),
        ("text/plain; charset=nonsense", "café".encode(), "café"),
        ("text/plain; charset=punycode", b"a" * 5, "aaaaa"),
        ("text/plain; charset=hex", b"6161", "6161"),
        ("text/plain; charset=ascii", "\ufeffcafé".encode(), "café"),
        ("text/plain", "café".encode("utf-16"), "café"),
        ("text/html", '<meta charset="koi8-r"><p>мир'.encode("koi8-r"), "мир"),
    ],
)
async def test_text_is_decoded_by_what_says_its_encoding(kind: str, data: bytes, text: str) -> None:
    assert await fetched(saying(f"200 OK\r\nContent-Type: {kind}", data)) == f"\n{text}"


def test_a_character_cut_off_with_the_rest_does_not_change_the_encoding() -> None:
    page = FetchedPage("http://x/", 200, "OK", "text/plain", "", "né".encode()[:-1], is_cut=True)
    assert decode_page(page) == "n\ufffd"


async def test_a_long_page_comes_in_pieces_that_lose_nothing() -> None:
    text = "".join([f"{number:05} " for number in range(5000)])
    raw = saying("200 OK\r\nContent-Type: text/plain", text.encode())
    seen = ""
    while len(seen) < len(text):
        piece, note = (await fetched(raw, len(seen))).removeprefix("\n").split("\n\n[")
        assert note.startswith(f"characters {len(seen)} to {len(seen) + len(piece)} of 30000")
        assert ("go on with start=" in note) == (len(seen) + len(piece) < len(text))
        seen += piece
    assert seen == text
    async with serving(raw) as url:
        assert (await fetch(url, 30_000)).error == f"`{url}` has 30,000 characters of text; there is nothing from 30,000 on"


async def test_an_endless_body_is_read_to_the_limit_and_no_further() -> None:
    sent = 0

    async def endless(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n\r\n")
        while not writer.is_closing():
            writer.write(b"x" * 65_536)
            sent += 65_536
            await writer.drain()

    told = await fetched(endless)
    assert "of 2000000; the page is longer than the 2,000,000 bytes that are read; go on with start=12000]" in told
    assert sent < 20_000_000


@pytest.mark.parametrize("coding", ["gzip", "deflate"])
async def test_a_compressed_page_is_unpacked(coding: str) -> None:
    data = gzip.compress(b"one two") + b"padding" if coding == "gzip" else zlib.compress(b"one two")
    head = f"200 OK\r\nContent-Type: text/plain\r\nContent-Encoding: {coding}"
    assert await fetched(saying(head, data)) == "\none two"


async def test_a_compressed_bomb_is_unpacked_to_the_limit_and_no_further() -> None:
    bomb = gzip.compress(b"x" * 100_000_000, 1)
    told = await fetched(saying("200 OK\r\nContent-Type: text/plain\r\nContent-Encoding: gzip", bomb))
    assert "of 2000000; the page is longer" in told


async def test_a_compression_that_was_not_asked_for_or_is_none_is_refused() -> None:
    head = "200 OK\r\nContent-Type: text/plain\r\nContent-Encoding: "
    assert "compressed as `br`, which was not asked for" in await refused(saying(f"{head}br", b"x"))
    assert "is not compressed as it says" in await refused(saying(f"{head}gzip", b"plain"))


async def test_a_server_that_dawdles_is_left() -> None:
    async def slowly(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n\r\n")
        while not writer.is_closing():
            writer.write(b"x")
            await writer.drain()
            await asyncio.sleep(0.02)

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()

    for raw in (slowly, silent):
        assert await refused(raw, seconds=0.3) == "`URL` was not read within 0.3 s; try another source"


@pytest.mark.parametrize(
    "head",
    [
        f"200 OK\r\nX-Huge: {'x' * 100_000}",
        "200 OK\r\n" + "\r\n".join([f"X-{number}: {'x' * 100}" for number in range(20_000)]),
        "999999 WHAT",
        "200 OK\r\nContent-Length: nonsense",
    ],
    ids=["one huge header", "many headers", "odd status", "odd length"],
)
async def test_an_answer_that_is_no_proper_http_is_a_failure(head: str) -> None:
    assert "cannot be reached" in await refused(saying(head, b"body"))


async def test_a_page_that_breaks_off_is_a_failure() -> None:
    async def broken(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 100\r\n\r\nonly this")
        await writer.drain()

    assert "cannot be reached" in await refused(broken)


@pytest.mark.parametrize("status", ["204 No Content", "304 Not Modified", "200 OK"])
async def test_an_answer_without_content_says_so(status: str) -> None:
    async with serving(saying(status)) as url:
        assert (await fetch(url)).output == f"`{url}` answered {status} without content."


async def test_an_error_page_is_a_failure_with_its_text() -> None:
    told = await refused(saying("404 Not Found\r\nContent-Type: text/html", b"<h1>No such page</h1>"))
    assert told == "`URL` answered 404 Not Found: # No such page"
    assert await refused(saying("503 Busy")) == "`URL` answered 503 Busy without content."


@pytest.mark.slow
async def test_html_that_keeps_the_parser_busy_for_ever_is_given_up() -> None:
    told = await refused(saying("200 OK\r\nContent-Type: text/html", b"<a " * 300_000))
    assert told == "`URL` is HTML that cannot be read within 5 s; try another source"


class Inside:
    """A machine of the internal network, and how often it was reached."""

    def __init__(self) -> None:
        self.visits = 0

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.visits += 1
        await saying("200 OK\r\nContent-Type: text/plain", b"internal")(reader, writer)


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "localhost", "0x7f000001", "[::ffff:127.0.0.1]", "inside.example", "mixed.example", "0.0.0.0"]
)
async def test_private_addresses_are_refused_unless_the_operator_allows_them(host: str) -> None:
    async def lookup(name: str, port: int) -> Sequence[str]:
        return {"mixed.example": ["93.184.215.14", "127.0.0.1"]}.get(name, ["127.0.0.1"])

    inside = Inside()
    async with serving(inside) as url:
        port = url.rpartition(":")[2]
        told = await fetch(f"http://{host}:{port}/", guard=AddressGuard(lookup=lookup))
        assert "is not public; the operator can allow it" in told.error
        assert inside.visits == 0
        allowed = AddressGuard(["inside.example"], lookup=lookup)
        assert (await fetch(f"http://inside.example:{port}/", guard=allowed)).success
    assert inside.visits == 1


async def test_a_redirect_is_followed_and_each_step_is_checked() -> None:
    async def lookup(name: str, port: int) -> Sequence[str]:
        return ["127.0.0.1"]

    inside = Inside()
    guard = AddressGuard(["open.example"], lookup=lookup)
    async with serving(inside) as url:
        port = url.rpartition(":")[2]
        for target in (f"http://private.example:{port}/", f"http://127.0.0.1:{port}/", f"//private.example:{port}/"):
            async with serving(saying(f"302 Found\r\nLocation: {target}")) as door:
                told = await fetch(f"http://open.example:{door.rpartition(':')[2]}/", guard=guard)
                assert "is not public" in told.error
        assert inside.visits == 0
        async with serving(saying(f"307 Moved\r\nLocation: http://open.example:{port}/there#part")) as door:
            told = await fetch(f"http://open.example:{door.rpartition(':')[2]}/", guard=guard)
    assert told.output == f"http://open.example:{port}/there\n\ninternal"


async def test_a_name_is_looked_up_once_and_its_checked_address_connected_to() -> None:
    asked: list[str] = []

    async def lookup(name: str, port: int) -> Sequence[str]:
        asked.append(name)
        return ["127.0.0.1"] if len(asked) == 1 else ["127.0.0.2"]

    inside = Inside()
    async with serving(inside) as url:
        guard = AddressGuard(["turning.example"], lookup=lookup)
        assert (await fetch(f"http://turning.example:{url.rpartition(':')[2]}/", guard=guard)).success
    assert (asked, inside.visits) == (["turning.example"], 1)


async def test_redirects_in_circles_end() -> None:
    assert await refused(saying("301 Moved\r\nLocation: /again")) == ("`URL` redirects more than 5 times; try another source")


@pytest.mark.parametrize(
    "target", ["file:///etc/passwd", "ftp://127.0.0.1/", "http://user:pw@127.0.0.1/", "http://[", "javascript:1"]
)
async def test_a_redirect_to_what_is_no_web_address_is_refused(target: str) -> None:
    assert "cannot be reached" not in await refused(saying(f"302 Found\r\nLocation: {target}"))


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("file:///etc/passwd", "`file:///etc/passwd` is no web address"),
        ("example.org", "`example.org` is no web address; write http:// or https:// and a host"),
        ("http://", "is no"),
        ("http://[::1", "is no URL"),
        ("http://host:99999/", "is no URL"),
        ("http://user:secret@example.org/", "the URL for host `example.org` carries a user or password"),
    ],
)
async def test_what_is_no_web_address_is_refused(url: str, told: str) -> None:
    result = await fetch(url)
    assert told in result.error
    assert "secret" not in result.error


async def test_only_allowed_domains_are_asked_and_redirects_may_not_leave_them() -> None:
    async def lookup(name: str, port: int) -> Sequence[str]:
        return ["127.0.0.1"]

    hosts = ["example.org", "docs.example.org", "evil-example.org"]
    tool = WebFetch(AddressGuard(hosts, lookup=lookup))
    context = ToolContext(domain_allowlist=("example.org",))
    inside = Inside()
    async with serving(inside) as url:
        port = url.rpartition(":")[2]
        for host in ("example.org", "docs.example.org", "EXAMPLE.org"):
            assert (await tool.execute({"url": f"http://{host}:{port}/"}, context)).success
        told = await tool.execute({"url": f"http://evil-example.org:{port}/"}, context)
        assert told.error == "host `evil-example.org` is not among the allowed domains; allowed: `example.org`"
        async with serving(saying(f"302 Found\r\nLocation: http://evil-example.org:{port}/")) as door:
            told = await tool.execute({"url": f"http://example.org:{door.rpartition(':')[2]}/"}, context)
        assert "not among the allowed domains" in told.error
        assert "allowed: none" in (await tool.execute({"url": url}, ToolContext(domain_allowlist=()))).error
    assert inside.visits == 3


async def test_the_request_is_a_plain_get_that_keeps_no_cookie() -> None:
    seen: list[tuple[str, str, str | None]] = []

    async def handler(request: web.Request) -> web.Response:
        seen.append((request.method, request.headers["User-Agent"], request.headers.get("Cookie")))
        response = web.Response(status=302, headers={"Location": "/b"}) if request.path == "/a" else web.Response(text="ok")
        response.set_cookie("track", "me")
        return response

    app = web.Application()
    app.router.add_get("/{any}", handler)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        port = runner.addresses[0][1]
        assert (await fetch(f"http://127.0.0.1:{port}/a")).success
    finally:
        await runner.cleanup()
    assert seen == [("GET", "Mainspring", None)] * 2


async def test_a_machine_that_is_not_there_is_a_failure() -> None:
    async with serving(saying("200 OK")) as url:
        pass
    assert "cannot be reached" in (await fetch(url)).error

    async def unknown(name: str, port: int) -> Sequence[str]:
        raise OSError("Name or service not known")

    assert "cannot be reached" in (await fetch("http://nowhere.example/", guard=AddressGuard(lookup=unknown))).error


@pytest.mark.requirement("C-T6")
async def test_a_model_reads_a_page_through_the_engine() -> None:
    async with serving(saying("200 OK\r\nContent-Type: text/html", b"<p>The answer is 42.</p>")) as url:
        script = Scripted(call("web_fetch", url=url), say("42.", expect="The answer is 42."))
        async with Engine(script, tools=[WebFetch(LOCAL)]) as engine:
            run = await engine.run("What is it?")
    assert run.text == "42."


async def test_a_redirect_is_judged_like_the_address_that_was_asked_for() -> None:
    async with serving(saying("200 OK\r\nContent-Type: text/plain", b"secret")) as there:
        elsewhere = there.replace("127.0.0.1", "localhost")
        async with serving(saying(f"302 Found\r\nLocation: {elsewhere}")) as here:
            guard = AddressGuard(["127.0.0.1", "localhost"])
            domains = DomainPolicy(guard.check, ["127.0.0.1"])
            result = await WebFetch(guard, flaw=domains.flaw).execute({"url": here}, ToolContext())
    assert not result.success
    assert "`localhost` is not among the allowed domains" in str(result.error)
