"""Whatever a page tries, the browser reaches what `web_fetch` may reach and nothing else. Each attempt is made twice: at a port
that is allowed, where it must arrive, and at the same port under a name that is not, where it must not."""

from collections.abc import Sequence
from socket import AF_INET, SOCK_DGRAM, socket

import anyio
import pytest
from tests.browser.conftest import Ask, Said
from tests.browser.site import PUBLIC, Site, lookup

from mainspring.features.governance.scope_policies import DomainPolicy
from mainspring.tools.addresses import AddressGuard
from mainspring.tools.builtin.builtins import BuiltinTools
from mainspring.tools.contract import ToolContext

pytestmark = pytest.mark.slow

# Each sets the title once it knows how the attempt went.
ATTEMPTS = {
    "image": "<img src='BAIT/x.png' onload='done()' onerror='done()'>",
    "script": "<script src='BAIT/x.js' onload='done()' onerror='done()'></script>",
    "style": "<link rel=stylesheet href='BAIT/x.css' onload='done()' onerror='done()'>",
    "frame": "<iframe src='BAIT/' onload='done()'></iframe>",
    "fetch": "<script>fetch('BAIT/', {mode: 'no-cors'}).finally(done)</script>",
    "post": "<script>fetch('BAIT/', {mode: 'no-cors', method: 'POST', body: 'x'.repeat(100000)}).finally(done)</script>",
    "encrypted": "<script>fetch('SAFE/', {mode: 'no-cors'}).finally(done)</script>",
    "events": "<script>new EventSource('BAIT/').onerror = done</script>",
    "beacon": "<script>navigator.sendBeacon('BAIT/', 'x'); fetch('BAIT/', {mode: 'no-cors'}).finally(done)</script>",
    "socket": "<script>const s = new WebSocket('WIRE/'); s.onerror = s.onopen = done</script>",
    "worker": """<script>const w = new Worker(URL.createObjectURL(new Blob(
        ["fetch('BAIT/', {mode: 'no-cors'}).finally(() => postMessage(1))"]))); w.onmessage = done</script>""",
}
LEAVES = {
    "refresh": "<meta http-equiv=refresh content='0; url=BAIT/'>",
    "location": "<script>location = 'BAIT/'</script>",
    "form": "<form method=post action='BAIT/'></form><script>document.forms[0].submit()</script>",
    "redirect": "",
}
SPELLINGS = (
    "127.0.0.1", "2130706433", "0x7f.1", "0177.0.0.1", "127.1", "localhost", "a.localhost", "inner.test", "[::1]",
    "[::ffff:127.0.0.1]", "[::ffff:7f00:1]", "0.0.0.0", "169.254.169.254", "10.0.0.1",
)  # fmt: skip


def put(site: Site, path: str, attempt: str, host: str) -> str:
    """The address of a page that makes this attempt."""
    name = f"{host}:{site.bait.port}"
    for mark, scheme in (("BAIT", "http"), ("SAFE", "https"), ("WIRE", "ws")):
        attempt = attempt.replace(mark, f"{scheme}://{name}")
    site.pages[path] = f"<title>trying</title><script>const done = () => document.title = 'done'</script><p>text</p>{attempt}"
    return site.url + path


async def outcome(ask: Ask, url: str) -> str:
    """What the model is told until the attempt is over."""
    told = ""
    with anyio.fail_after(60):
        result = await ask("open", url=url)
        while True:
            told += str(result.output or result.error) + "\n"
            if "# done" in told:
                return told
            result = await ask("text")


@pytest.mark.parametrize("attempt", ATTEMPTS)
async def test_what_a_page_loads_is_checked(attempt: str, site: Site, ask: Ask) -> None:
    site.bait.heard.clear()
    await outcome(ask, put(site, f"/good/{attempt}", ATTEMPTS[attempt], "second.test"))
    assert site.bait.heard, "the attempt works where it is allowed"
    site.bait.heard.clear()
    told = await outcome(ask, put(site, f"/bad/{attempt}", ATTEMPTS[attempt], "inner.test"))
    assert site.bait.heard == []
    assert f"inner.test:{site.bait.port}: host `inner.test` is not public; the operator can allow it" in told


@pytest.mark.parametrize("way", LEAVES)
async def test_where_a_page_leads_is_checked(way: str, site: Site, ask: Ask) -> None:
    async def led(host: str) -> Said:
        url = put(site, f"/{host}/{way}", LEAVES[way], host)
        if way == "redirect":
            site.redirects[f"/{host}/{way}"] = f"http://{host}:{site.bait.port}/"
        return await ask("open", url=url)

    site.bait.heard.clear()
    assert "secret" in (await led("second.test")).output
    assert site.bait.heard
    site.bait.heard.clear()
    result = await led("inner.test")
    assert site.bait.heard == []
    assert not result.success
    assert "may not be opened: host `inner.test` is not public" in result.error


async def test_no_spelling_of_an_address_slips_through(site: Site, ask: Ask) -> None:
    site.bait.heard.clear()
    images = "".join([f"<img src='http://{host}:{site.bait.port}/'>" for host in SPELLINGS])
    site.pages["/spellings"] = f"<title>trying</title>{images}<script>onload = () => document.title = 'done'</script>"
    told = await outcome(ask, f"{site.url}/spellings")
    assert site.bait.heard == []
    assert told.count("is not public") >= 8, "as many as there are different hosts"
    for host in ("169.254.169.254", "localhost", "[::1]"):
        result = await ask("open", url=f"http://{host}:{site.bait.port}/")
        assert not result.success
        assert "is not public" in result.error
    assert site.bait.heard == []


@pytest.mark.parametrize(
    "url", ["file:///etc/passwd", "chrome://version", "data:text/html,x", "about:blank", "view-source:http://shop.test/", "x"]
)
async def test_only_the_web_is_opened(url: str, ask: Ask) -> None:
    result = await ask("open", url=url)
    assert not result.success
    assert "is no web address" in result.error


async def test_a_page_reads_no_file_of_the_machine(site: Site, ask: Ask) -> None:
    site.pages["/files"] = """<title>trying</title><p id=out></p><iframe src='file:///etc/passwd'></iframe>
        <a href='file:///etc/passwd'>a file</a><a href='chrome://version'>of the browser</a><script>
        fetch('file:///etc/passwd').then(r => r.text(), e => 'no file')
            .then(t => { out.textContent = t; document.title = 'done' })
        </script>"""
    told = await outcome(ask, f"{site.url}/files")
    assert "no file" in told
    assert "root:" not in told
    for number in (1, 2):
        result = await ask("click", number=number)
        assert f"{site.url}/files" in result.output


async def test_calls_between_browsers_leave_by_no_other_way(site: Site, ask: Ask) -> None:
    """WebRTC would ask a server by UDP, past any proxy."""
    with socket(AF_INET, SOCK_DGRAM) as udp:
        udp.bind(("127.0.0.1", 0))
        udp.setblocking(False)
        site.pages["/calls"] = f"""<title>trying</title><p id=out></p><script>
            const peer = new RTCPeerConnection({{iceServers: [{{urls: 'stun:127.0.0.1:{udp.getsockname()[1]}'}}]}});
            const found = []; peer.onicecandidate = e => {{ if (e.candidate) found.push(e.candidate.candidate) }};
            peer.createDataChannel('x'); peer.createOffer().then(o => peer.setLocalDescription(o));
            setTimeout(() => {{ out.textContent = `found: ${{found.join()}}.`; document.title = 'done' }}, 1500)</script>"""
        told = await outcome(ask, f"{site.url}/calls")
        assert "found: ." in told, "it is not even told its own address"
        with pytest.raises(BlockingIOError):
            udp.recv(1)


async def test_a_name_that_turns_inwards_after_it_was_checked_is_not_followed(site: Site, chromium: None) -> None:
    asked: list[str] = []

    async def turning(host: str, port: int) -> Sequence[str]:
        asked.append(host)
        return [PUBLIC] if asked.count(host) < 3 and host == "turning.test" else await lookup(host, port)

    guard = AddressGuard(["shop.test"], lookup=turning)
    rule = DomainPolicy(guard.check)
    async with BuiltinTools(["browser"], guard=guard, url_flaw=rule.flaw) as builtins:
        url = f"http://turning.test:{site.bait.port}/"
        assert await rule.flaw(url) is None, "the call itself passes"
        site.bait.heard.clear()
        result = await builtins.tools[0].execute({"operation": "open", "url": url}, ToolContext(scope="c"))
    assert asked.count("turning.test") >= 3, "once for the call, then by the proxy: its policy, and the address it takes"
    assert site.bait.heard == []
    assert "host `turning.test` is not public" in result.error


@pytest.mark.requirement("C17")
async def test_the_operators_domains_hold_for_what_a_page_loads_and_leads_to(site: Site, chromium: None) -> None:
    guard = AddressGuard(["shop.test", "second.test"], lookup=lookup)
    rule = DomainPolicy(guard.check, denied=["second.test"])
    url = put(site, "/denied", f"<a href='http://second.test:{site.bait.port}/'>there</a><img src='BAIT/'>", "second.test")
    site.bait.heard.clear()
    async with BuiltinTools(["browser"], guard=guard, url_flaw=rule.flaw) as builtins:
        (tool,) = builtins.tools
        context = ToolContext(scope="c")
        shown = await tool.execute({"operation": "open", "url": url}, context)
        assert "`second.test` is denied" in shown.output
        led = await tool.execute({"operation": "click", "number": 1}, context)
        assert "may not be opened: `second.test` is denied" in led.error
        narrow = ToolContext(scope="c", domain_allowlist=("elsewhere.test",))
        refused = await tool.execute({"operation": "open", "url": url}, narrow)
        assert "host `shop.test` is not among the allowed domains" in refused.error
        await tool.execute({"operation": "open", "url": url}, context)
        kept = await tool.execute({"operation": "back"}, narrow)
    assert site.bait.heard == []
    assert "not among the allowed domains" in str(kept.output or kept.error)
