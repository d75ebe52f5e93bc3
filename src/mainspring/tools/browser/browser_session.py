"""The pages of one conversation, in a browser context with its own cookies, cache and proxy.

Calls act on the newest page; going back from its first address closes it. Dialogs are dismissed, downloads and permissions
refused, and the model is told about them.
"""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from urllib.parse import urlsplit

import anyio
import msgspec
from msgspec import Struct

from mainspring.core.errors import InvalidRequest, ToolUnavailable
from mainspring.core.items import Json
from mainspring.tools.browser.devtools import SECONDS, CommandFailed, DevTools
from mainspring.tools.browser.outline import CLICK, FOCUS, OUTLINE
from mainspring.tools.browser.proxy import Proxy

MOST_TABS = 4
MOST_CHARS, MOST_ITEMS = 200_000, 400
LOAD_SECONDS = 20.0
CRASHED = "the page has crashed; open it again, or another one"
# A load that starts within this time is attributed to the action.
MOMENT_MS = 150
QUALITIES = (70, 40, 15)
MOST_IMAGE = 1_000_000

_STARTS = frozenset({"Page.frameStartedLoading", "Page.frameStartedNavigating", "Page.frameRequestedNavigation"})
_COOKIE = frozenset({"name", "value", "domain", "path", "expires", "httpOnly", "secure", "sameSite"})
_WHY = {
    "gone": "there is no element {0} on this page, or not any more; look again with `text`",
    "disabled": "element {0} is disabled; something else must be filled in first",
    "file": "element {0} takes a file, and files cannot be sent; leave it out",
    "option": "element {0} has no such choice; `links` shows those it has",
    "click": "element {0} is no text field; use `click`",
}


class PageItem(Struct, frozen=True):
    """An element that can be used. `address` is the target of a link, or the options of a choice."""

    number: int
    kind: str
    label: str
    value: str
    address: str


class PageView(Struct, frozen=True):
    """A page as text."""

    title: str
    text: str
    items: tuple[PageItem, ...]
    is_cut: bool
    address: str = ""
    is_loading: bool = False


class Tab:
    """One page of a session, and its events."""

    def __init__(self, protocol: DevTools, session: str, target: str, note: Callable[[str], None]) -> None:
        self.session, self.target = session, target
        self.is_crashed = False
        self.idle = asyncio.Event()
        self.idle.set()
        self._protocol, self._note = protocol, note
        protocol.listeners[session] = self._hear
        protocol.post("Page.enable", session)
        protocol.post("Inspector.enable", session)
        protocol.post("Runtime.runIfWaitingForDebugger", session)

    def _hear(self, method: str, params: Json) -> None:
        if method in _STARTS and params.get("frameId") == self.target:
            self.idle.clear()
        elif method == "Page.frameStoppedLoading" and params.get("frameId") == self.target:
            self.idle.set()
        elif method == "Page.javascriptDialogOpening":
            # Only leaving the page is agreed to.
            leaves = params.get("type") == "beforeunload"
            self._protocol.post("Page.handleJavaScriptDialog", self.session, accept=leaves)
            if not leaves:
                self._note(f"The page said in a dialog, which was dismissed: {str(params.get('message'))[:300]}")
        elif method == "Page.downloadWillBegin":
            self._note(f"A download was refused: {str(params.get('url'))[:200]}")
        elif method == "Inspector.targetCrashed":
            self.is_crashed = True
            self.idle.set()
            self._protocol.fail(self.session, ToolUnavailable(CRASHED))

    async def send(self, method: str, *, seconds: float = SECONDS, **params: object) -> Json:
        if self.is_crashed:
            raise ToolUnavailable(CRASHED)
        return await self._protocol.send(method, self.session, seconds=seconds, **params)

    async def call(self, function: str, *arguments: object) -> object:
        """Runs a function in the page, isolated from the page's own scripts. Raises `CommandFailed`."""
        world = await self.send("Page.createIsolatedWorld", frameId=self.target, worldName="mainspring")
        given = ", ".join([msgspec.json.encode(argument).decode() for argument in arguments])
        answer = await self.send(
            "Runtime.evaluate",
            expression=f"({function.strip()})({given})",
            contextId=world["executionContextId"],
            returnByValue=True,
            awaitPromise=True,
            userGesture=True,
        )
        if "exceptionDetails" in answer:
            raise CommandFailed(f"the page cannot be read: {answer['exceptionDetails'].get('text')}")
        return answer["result"].get("value")

    async def wait_until_loaded(self) -> bool:
        """Waits until the page has loaded. False on timeout."""
        with anyio.move_on_after(LOAD_SECONDS):
            while True:
                # A page that is being left answers nothing.
                with suppress(CommandFailed, TimeoutError):
                    await self.call("ms => new Promise(done => setTimeout(done, ms))", MOMENT_MS)
                if self.idle.is_set():
                    return True
                await self.idle.wait()
        return False


class BrowserSession:
    """Serves one call at a time. Raises `ToolUnavailable` if its browser or page is gone, `TimeoutError` if it hangs."""

    def __init__(self, protocol: DevTools, proxy: Proxy) -> None:
        self.lock = asyncio.Lock()
        self.users = 0
        self.last_use = 0.0
        self.proxy = proxy
        self.context = ""
        self.notes: list[str] = []
        self._protocol = protocol
        self._tabs: list[Tab] = []
        self._arrived = asyncio.Event()

    async def begin(self) -> None:
        proxy = f"http://127.0.0.1:{self.proxy.port}"
        made = await self._protocol.send(
            "Target.createBrowserContext", disposeOnDetach=True, proxyServer=proxy, proxyBypassList="<-loopback>"
        )
        self.context = made["browserContextId"]
        await self._protocol.send("Browser.setDownloadBehavior", behavior="deny", browserContextId=self.context)
        # Granting an empty list denies every other permission without a prompt.
        await self._protocol.send("Browser.grantPermissions", permissions=[], browserContextId=self.context)

    async def close(self) -> None:
        self.proxy.drop()
        for tab in self._tabs:
            self._protocol.listeners.pop(tab.session, None)
        if self.context and self._protocol.is_open:
            await self._protocol.send("Target.disposeBrowserContext", browserContextId=self.context)

    async def restore(self, address: str, cookies: Sequence[Json]) -> None:
        """Goes on where a session in another browser was. An empty address opens nothing."""
        if cookies:
            await self._protocol.send("Storage.setCookies", browserContextId=self.context, cookies=cookies)
        if address:
            await self.open(address)
            self._note("The page was opened anew in another browser: what was typed into it is gone")

    async def describe(self) -> tuple[str, tuple[Json, ...]]:
        """The address of the page, empty if there is none, and the cookies of the session."""
        found = await self._protocol.send("Storage.getCookies", browserContextId=self.context)
        cookies = [{name: value for name, value in cookie.items() if name in _COOKIE} for cookie in found["cookies"]]
        for cookie in cookies:
            if cookie.get("expires", -1) < 0:  # It ends with the session.
                cookie.pop("expires", None)
        if not self._tabs:
            return "", tuple(cookies)
        frame = (await self.tab.send("Page.getFrameTree"))["frameTree"]["frame"]
        address = str(frame["url"])
        return address if address.startswith(("http://", "https://")) else "", tuple(cookies)

    def attach(self, session: str, target: str) -> None:
        """Adds a page that was opened by us or by another page."""
        if len(self._tabs) >= MOST_TABS:
            self._note(f"The page opened another one, which was closed: there are {MOST_TABS} already")
            self._protocol.post("Target.closeTarget", targetId=target)
            return
        self._tabs.append(Tab(self._protocol, session, target, self._note))
        self._arrived.set()

    def detach(self, session: str) -> None:
        self._protocol.listeners.pop(session, None)
        self._tabs = [tab for tab in self._tabs if tab.session != session]

    def _note(self, text: str) -> None:
        if len(self.notes) < 10 and text not in self.notes:
            self.notes.append(text)

    @property
    def tab(self) -> Tab:
        if not self._tabs:
            raise InvalidRequest("no page is open in this conversation; begin with `open`")
        return self._tabs[-1]

    async def open(self, url: str) -> None:
        if not self._tabs:
            self._arrived.clear()
            await self._protocol.send("Target.createTarget", url="about:blank", browserContextId=self.context)
            with anyio.fail_after(LOAD_SECONDS):
                await self._arrived.wait()
        tab = self.tab
        try:
            answer = await tab.send("Page.navigate", url=url, seconds=LOAD_SECONDS)
        except TimeoutError:
            await tab.send("Page.stopLoading")
            raise InvalidRequest(f"`{url}` does not answer within {LOAD_SECONDS:g} s; try another source") from None
        if error := answer.get("errorText"):
            await tab.wait_until_loaded()
            raise InvalidRequest(f"`{url}` cannot be opened: {error}" + "".join([f". {told}" for told in self.take_notes()]))

    async def click(self, number: int) -> None:
        await self._check_outcome(number, await self.tab.call(CLICK, number))

    async def type(self, number: int, text: str, submit: bool) -> None:
        tab = self.tab
        said = await tab.call(FOCUS, number, text)
        if said == "type":
            await tab.send("Input.insertText", text=text)
        else:
            await self._check_outcome(number, said)
        if submit:
            for kind in ("keyDown", "keyUp"):
                await tab.send(
                    "Input.dispatchKeyEvent", type=kind, key="Enter", code="Enter", windowsVirtualKeyCode=13, text="\r"
                )

    async def _check_outcome(self, number: int, said: object) -> None:
        if said != "done":
            raise InvalidRequest(_WHY.get(str(said), "element {0} cannot be used").format(number))

    async def back(self) -> None:
        tab = self.tab
        history = await tab.send("Page.getNavigationHistory")
        index, entries = history["currentIndex"], history["entries"]
        if index > 0 and entries[index - 1]["url"] != "about:blank":
            await tab.send("Page.navigateToHistoryEntry", entryId=entries[index - 1]["id"])
        elif len(self._tabs) > 1:
            await self._protocol.send("Target.closeTarget", targetId=tab.target)
            self.detach(tab.session)
        else:
            raise InvalidRequest("there is no page to go back to; `open` another one")

    async def read_view(self) -> PageView:
        """Waits for the page to load and reads it. Raises `InvalidRequest` if its address is not allowed."""
        tab = self.tab
        is_whole = await tab.wait_until_loaded()
        tab = self.tab  # A page may have opened another one meanwhile.
        frame = (await tab.send("Page.getFrameTree"))["frameTree"]["frame"]
        address = str(frame.get("unreachableUrl") or frame["url"])
        parts = urlsplit(address)
        if (why := self.proxy.refused.get(f"{parts.scheme}://{parts.netloc}")) is not None:
            raise InvalidRequest(f"`{address}` may not be opened: {why}")
        seen = msgspec.convert(await tab.call(OUTLINE, MOST_CHARS, MOST_ITEMS), PageView)
        return msgspec.structs.replace(seen, address=address, is_loading=not is_whole)

    async def take_picture(self) -> str:
        """The visible part of the page, as a JPEG in base64. Raises `InvalidRequest` if it is too large at any quality."""
        for quality in QUALITIES:
            answer = await self.tab.send("Page.captureScreenshot", format="jpeg", quality=quality)
            if len(data := str(answer["data"])) <= MOST_IMAGE:
                return data
        raise InvalidRequest(
            f"the picture has more than {MOST_IMAGE:,} characters at the lowest quality; read the `text` instead"
        )

    def take_notes(self) -> list[str]:
        """Returns and clears the notes about side effects and refusals."""
        notes, self.notes = self.notes, []
        refused, self.proxy.refused = self.proxy.refused, {}
        return [*notes, *[f"Not loaded: {origin}: {why}" for origin, why in refused.items()]]
