"""What a model can do with a page, and what a page cannot do with the browser."""

import base64
import os
import signal

import anyio
import pytest
from tests.browser.conftest import Ask
from tests.browser.site import Site, guard
from tests.kit.waiting import PATIENCE
from tests.sandbox.test_death import has_ended
from tests.sandbox.traces import ancestors, everything

from mainspring.core.items import InputImage, InputText
from mainspring.tools.browser.browser import Browser
from mainspring.tools.builtin.browser_tool import BrowserTool
from mainspring.tools.builtin.builtins import BuiltinTools
from mainspring.tools.contract import Tool, ToolContext
from mainspring.tools.registry import Registry

pytestmark = [pytest.mark.slow, pytest.mark.requirement("C17")]


async def shown(ask: Ask, words: str) -> str:
    """What the page says once it says this."""
    with anyio.fail_after(PATIENCE):
        while True:
            result = await ask("text")
            assert result.success, result.error
            if words in result.output:
                return str(result.output)


def numbers(text: str) -> dict[str, int]:
    """The number of each thing to use, by its label."""
    lines = text.partition("Links and fields:\n")[2].splitlines()
    return {line.split('"')[1]: int(line[1:].partition("]")[0]) for line in lines if line.startswith("[") and '"' in line}


async def test_a_page_is_read_with_what_its_scripts_made_of_it(site: Site, ask: Ask) -> None:
    result = await ask("open", url=f"{site.url}/")
    assert result.success, result.error
    text = await shown(ask, "Seven are left.")
    assert text.startswith(f"# The shop\n{site.url}/\n\n# Welcome\n\nWe sell springs.\n\n- Go on [1]\n- In a new window [2]")
    assert '[1] link "Go on" http://shop.test' in text
    assert 'choice "Size" = "small" small, large' in text
    assert 'button, disabled "Later"' in text
    assert "unseen" not in text
    assert "s3cret" not in text
    links = await ask("links", start=2)
    assert "[2]" not in links.output
    assert '[3] text field "Name"' in links.output


async def test_a_form_is_filled_in_and_sent(site: Site, ask: Ask) -> None:
    found = numbers((await ask("open", url=f"{site.url}/")).output)
    site.orders.clear()
    for label, text in (("Name", "Änne"), ("Size", "large"), ("Words", "new")):
        result = await ask("type", number=found[label], text=text)
        assert result.success, result.error
    await ask("click", number=found["As a gift"])
    result = await ask("click", number=found["Order"])
    assert result.output.startswith("# Thanks"), result
    (order,) = site.orders
    assert {name: order[name] for name in ("who", "size", "words", "gift")} == {
        "who": "Änne", "size": "large", "words": "new", "gift": "on",
    }  # fmt: skip


async def test_enter_sends_a_form_and_back_returns(site: Site, ask: Ask) -> None:
    found = numbers((await ask("open", url=f"{site.url}/")).output)
    site.orders.clear()
    assert (await ask("type", number=found["Name"], text="Bo", submit=True)).output.startswith("# Thanks")
    assert [order["who"] for order in site.orders] == ["Bo"]
    assert (await ask("back")).output.startswith("# The shop")
    first = await ask("back")
    assert not first.success
    assert "no page to go back to" in first.error


async def test_what_cannot_be_used_says_why(site: Site, ask: Ask) -> None:
    assert "begin with `open`" in (await ask("text")).error
    found = numbers((await ask("open", url=f"{site.url}/")).output)
    assert "`click` needs `number`" in (await ask("click")).error
    assert "no element 99 on this page" in (await ask("click", number=99)).error
    assert "is disabled" in (await ask("click", number=found["Later"])).error
    assert "files cannot be sent" in (await ask("click", number=found["Upload"])).error
    assert "has no such choice" in (await ask("type", number=found["Size"], text="huge")).error
    assert "is no text field" in (await ask("type", number=found["Go on"], text="x")).error
    assert (await ask("click", number=found["Go on"])).output.startswith("# Next")
    assert "no element 9 on this page, or not any more" in (await ask("click", number=9)).error
    assert "cannot be opened: net::ERR" in (await ask("open", url="https://shop.test:1/")).error


async def test_a_picture_of_the_page_is_an_image(site: Site, ask: Ask) -> None:
    await ask("open", url=f"{site.url}/")
    result = await ask("screenshot")
    head, image = result.parts
    assert isinstance(head, InputText)
    assert isinstance(image, InputImage)
    assert head.text.startswith("The shop: http://shop.test")
    kind, _, data = str(image.image_url).partition(",")
    assert kind == "data:image/jpeg;base64"
    assert base64.b64decode(data)[:3] == b"\xff\xd8\xff"


async def test_a_long_page_comes_in_pieces(site: Site, ask: Ask) -> None:
    words = [f"word{number}" for number in range(3000)]
    site.pages["/long"] = f"<title>Long</title><p>{' '.join(words)}"
    read, result = "", await ask("open", url=f"{site.url}/long")
    while "go on with `text`" in result.output:
        body, _, more = result.output.partition("\n\n")[2].rpartition("\n[")
        read += body
        result = await ask("text", start=int(more.rpartition("start ")[2].rstrip("]")))
    read += result.output.partition("\n\n")[2]
    assert read.split() == words


async def test_dialogs_downloads_and_permissions_are_refused_and_told(site: Site, ask: Ask) -> None:
    site.pages["/asking"] = """<title>Asking</title><p id=out></p><script>
        const agreed = confirm('Take all you have?');
        const place = navigator.permissions.query({name: 'geolocation'});
        Promise.all([place, Notification.requestPermission()]).then(([place, notice]) =>
            out.textContent = `agreed ${agreed}, place ${place.state}, notice ${notice}`)</script><a href=/file>file</a>"""
    told = (await ask("open", url=f"{site.url}/asking")).output
    assert "in a dialog, which was dismissed: Take all you have?" in told
    assert "agreed false, place denied, notice denied" in await shown(ask, "agreed")
    result = await ask("click", number=1)
    assert f"A download was refused: {site.url}/file" in result.output


async def test_new_windows_stay_in_the_conversation_and_are_few(site: Site, ask: Ask) -> None:
    found = numbers((await ask("open", url=f"{site.url}/")).output)
    assert (await ask("click", number=found["In a new window"])).output.startswith("# Next")
    assert (await ask("back")).output.startswith("# The shop"), "going back closes it"
    site.pages["/windows"] = "<title>Many</title><a target=_blank href=/windows>one more</a>"
    await ask("open", url=f"{site.url}/windows")
    told = [(await ask("click", number=1)).output for _ in range(5)]
    assert [("which was closed" in output) for output in told] == [False, False, False, True, True]
    assert all(output.startswith("# Many") for output in told)


async def test_conversations_and_tenants_share_nothing(site: Site, tool: Tool) -> None:
    site.pages["/cookie"] = "<title>Set</title><script>document.cookie = 'who=ann'; localStorage.who = 'ann'</script>"
    ann, bob = ToolContext(tenant="a", scope="one"), ToolContext(tenant="b", scope="one")
    await tool.execute({"operation": "open", "url": f"{site.url}/cookie"}, ann)
    first = await tool.execute({"operation": "open", "url": f"{site.url}/next"}, ann)
    assert "for ann" in first.output
    assert "no page is open" in (await tool.execute({"operation": "text"}, bob)).error
    other = await tool.execute({"operation": "open", "url": f"{site.url}/next"}, bob)
    assert "for nobody" in other.output
    await tool.execute({"operation": "close"}, ann)
    again = await tool.execute({"operation": "open", "url": f"{site.url}/next"}, ann)
    assert "for nobody" in again.output
    for context in (ann, bob):
        await tool.execute({"operation": "close"}, context)


async def test_a_page_that_hangs_or_crashes_hurts_no_other(site: Site, builtins: BuiltinTools, tool: Tool) -> None:
    site.pages["/hang"] = "<title>Hang</title><button onclick='while (true);'>Go</button>"
    good, bad = ToolContext(scope="good"), ToolContext(scope="bad")
    await tool.execute({"operation": "open", "url": f"{site.url}/next"}, good)
    await tool.execute({"operation": "open", "url": f"{site.url}/hang"}, bad)
    hung = await tool.execute({"operation": "click", "number": 1}, bad)
    assert "does not answer any more, and was closed" in hung.error
    assert "no page is open" in (await tool.execute({"operation": "text"}, bad)).error
    await tool.execute({"operation": "open", "url": f"{site.url}/"}, bad)
    browser = builtins._browser
    assert browser is not None
    session = browser._sessions[("", "bad")]
    session._protocol.post("Page.crash", session.tab.session)
    crashed = await tool.execute({"operation": "text"}, bad)
    assert "crashed" in crashed.error, "it is told at once, not when the time for an answer is over"
    assert (await tool.execute({"operation": "open", "url": f"{site.url}/"}, bad)).success
    assert "The next page" in (await tool.execute({"operation": "text"}, good)).output
    for context in (good, bad):
        await tool.execute({"operation": "close"}, context)


async def test_a_browser_that_ends_is_started_again_by_the_next_open(site: Site, builtins: BuiltinTools, ask: Ask) -> None:
    assert (await ask("open", url=f"{site.url}/")).success
    browser = builtins._browser
    assert browser is not None
    assert browser.pid is not None
    first = browser.pid
    below = [pid for pid in everything() if first in ancestors(pid)]
    assert len(below) >= 3, "it has processes of its own"
    os.kill(first, signal.SIGKILL)
    lost = await ask("text")
    assert "open" in lost.error
    assert (await ask("open", url=f"{site.url}/next")).output.startswith("# Next")
    assert browser.pid != first
    for pid in below:
        assert await anyio.to_thread.run_sync(has_ended, pid)


async def test_sessions_are_few_and_end_when_nobody_uses_them(site: Site, builtins: BuiltinTools) -> None:
    now = [0.0]
    async with Browser(builtins.wrap, builtins.health, guard(), most=2, most_each=1, clock=lambda: now[0]) as browser:
        tool = BrowserTool(browser)

        async def opened(tenant: str, scope: str) -> bool:
            context = ToolContext(tenant=tenant, scope=scope)
            now[0] += 1
            return (await tool.execute({"operation": "open", "url": f"{site.url}/next"}, context)).success

        assert await opened("a", "1")
        assert await opened("a", "2")
        assert list(browser._sessions) == [("a", "2")], "a tenant's second takes the place of its first"
        assert await opened("b", "1")
        assert await opened("c", "1")
        assert list(browser._sessions) == [("b", "1"), ("c", "1")], "the one used longest ago made room"
        async with browser.session(ToolContext(tenant="b", scope="1")):
            context = ToolContext(tenant="b", scope="2")
            full = await tool.execute({"operation": "open", "url": f"{site.url}/next"}, context)
        assert "are in use" in full.error
        pid = browser.pid
        assert pid is not None
        now[0] += 10_000
        await browser.expire()
        assert browser.pid is None, "without sessions there is no browser"
        assert await anyio.to_thread.run_sync(has_ended, pid)


@pytest.mark.parametrize("mode", ["landlock", "unsafe"])
async def test_without_a_sandbox_for_its_network_there_is_no_browser(mode: str, site: Site) -> None:
    async with BuiltinTools(["browser"], guard=guard(), sandbox=mode) as builtins:  # type: ignore[arg-type]
        result = await builtins.tools[0].execute({"operation": "open", "url": f"{site.url}/"}, ToolContext(scope="c"))
    assert not result.success
    assert "the browser needs the sandbox `bwrap`" in result.error or "no sandbox holds" in result.error


async def test_a_missing_chromium_says_what_to_install(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mainspring.tools.browser.chromium.PROGRAMS", ())
    monkeypatch.setenv("PATH", "/nowhere")
    async with BuiltinTools(["browser"], guard=guard()) as builtins:
        result = await builtins.tools[0].execute({"operation": "open", "url": f"{site.url}/"}, ToolContext(scope="c"))
    assert "apt-get install chromium" in result.error


async def test_its_declaration_tells_reading_from_acting(tool: Tool) -> None:
    (definition,) = Registry([tool]).definitions
    assert definition.purposes == {"url": "url"}
    acting = [name for name, effects in definition.operations.items() if "write" in effects]
    assert acting == ["click", "type"]
    assert definition.operations["open"] == ("read", "network")
