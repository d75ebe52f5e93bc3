"""The tool `browser`: opens pages in Chromium, and uses their links, buttons and fields.

Elements that can be used have a number, shown in the text at their position. Pages stay open between the calls of a conversation.
They can reach only what `web_fetch` may reach, see `mainspring.tools.browser.proxy`.
"""

from typing import Annotated, Literal, TypeVar

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from mainspring.core.errors import CallerError, InvalidRequest, OurError, PeerError, ToolUnavailable
from mainspring.core.items import Effect, InputImage, InputText, Json, Purpose
from mainspring.tools.browser.browser import Browser
from mainspring.tools.browser.browser_session import BrowserSession, PageView
from mainspring.tools.builtin.web_fetch import check_url
from mainspring.tools.contract import ToolContext, ToolResult
from mainspring.tools.schema import describe_arguments

# Together below the default limit of a tool output, so that a page is not cut.
PAGE_CHARS, LIST_CHARS = 9_000, 4_000

T = TypeVar("T")
Operation = Literal["open", "click", "type", "text", "links", "back", "screenshot", "close"]


class BrowserArguments(Struct, frozen=True, forbid_unknown_fields=True):
    """What the model may ask for. Which arguments an operation needs is said in words, since models follow that best."""

    operation: Annotated[
        Operation,
        Meta(
            description="open: a page by its url. click: the link or button with a number. type: a text into the field with a "
            "number. text: the page as it is now. links: all links and fields with their addresses and values. back: the page "
            "before. screenshot: what is visible, as a picture. close: forget pages and cookies."
        ),
    ]
    url: Annotated[str, Meta(description="open: address that begins with http:// or https://.")] | UnsetType = UNSET
    number: Annotated[int, Meta(ge=1, description="click, type: the number shown for it.")] | UnsetType = UNSET
    text: Annotated[str, Meta(description="type: what the field is to hold, or which choice to take.")] | UnsetType = UNSET
    submit: Annotated[bool, Meta(description="type: press Enter behind it.")] = False
    start: Annotated[int, Meta(ge=0, description="text, links: where to go on in what was too long.")] = 0


class BrowserTool:
    """Its operations are told apart: `browser:open`, `browser:click`, ..."""

    name = "browser"
    description = (
        "Uses the web with a real browser, for pages that need scripts, forms or clicks. Numbers in brackets are links, buttons "
        "and fields to click or type into. For plain reading, `web_fetch` is faster."
    )
    effects: tuple[Effect, ...] = ("read", "write", "network")
    operation_effects: dict[str, tuple[Effect, ...]] = {  # noqa: RUF012 (read only, as all of these)
        "open": ("read", "network"),
        "click": ("read", "write", "network"),
        "type": ("read", "write", "network"),
        "text": ("read",),
        "links": ("read",),
        "back": ("read", "network"),
        "screenshot": ("read",),
        "close": ("read",),
    }
    parameters_schema = describe_arguments(BrowserArguments)
    purposes: dict[str, Purpose] = {"url": "url"}  # noqa: RUF012
    repeatable = False
    timeout = 120.0

    def __init__(self, browser: Browser) -> None:
        self._browser = browser

    async def execute(self, params: Json, context: ToolContext) -> ToolResult:
        try:
            asked = msgspec.convert(params, BrowserArguments, strict=False)
            if asked.operation == "close":
                await self._browser.forget((context.tenant, context.scope or context.run_id))
                return ToolResult.ok("The pages of this conversation are closed.")
            if asked.operation != "open":
                return await self._perform(asked, context)
            try:
                return await self._perform(asked, context)
            except ToolUnavailable:
                # The browser, or the page of an earlier call, may have crashed: retried once.
                return await self._perform(asked, context)
        except (CallerError, PeerError, OurError) as error:
            return ToolResult.fail(error.message)
        except msgspec.ValidationError as error:
            return ToolResult.fail(str(error))

    async def _perform(self, asked: BrowserArguments, context: ToolContext) -> ToolResult:
        url = str(check_url(_require(asked, "url", asked.url), context)) if asked.operation == "open" else ""
        async with self._browser.session(context, makes=asked.operation == "open") as session:
            match asked.operation:
                case "open":
                    await session.open(url)
                case "click":
                    await session.click(_require(asked, "number", asked.number))
                case "type":
                    number, text = _require(asked, "number", asked.number), _require(asked, "text", asked.text)
                    await session.type(number, text, asked.submit)
                case "back":
                    await session.back()
                case "screenshot":
                    return await _take_picture(session)
            return _render(await session.read_view(), session.take_notes(), asked)


def _require(asked: BrowserArguments, name: str, value: T | UnsetType) -> T:
    if isinstance(value, UnsetType):
        raise InvalidRequest(f"`{asked.operation}` needs `{name}`; send it as well")
    return value


async def _take_picture(session: BrowserSession) -> ToolResult:
    view = await session.read_view()
    head = InputText("\n".join([f"{view.title or 'No title'}: {view.address}", *session.take_notes()]))
    return ToolResult.ok((head, InputImage(f"data:image/jpeg;base64,{await session.take_picture()}")))


def _render(view: PageView, news: list[str], asked: BrowserArguments) -> ToolResult:
    lines = [f"# {view.title or 'No title'}", view.address, *news]
    if view.is_loading:
        lines.append("The page is still loading; look again with `text`.")
    if asked.operation == "links":
        lines += ["", _list_items(view, asked.start, PAGE_CHARS)]
        return ToolResult.ok("\n".join(lines))
    start = asked.start if asked.operation == "text" else 0
    text = view.text[start : start + PAGE_CHARS]
    lines += ["", text or "The page shows no text here."]
    if start + PAGE_CHARS < len(view.text):
        lines.append(f"[{len(view.text) - start - PAGE_CHARS} more characters; go on with `text` and start {start + PAGE_CHARS}]")
    elif view.is_cut:
        lines.append("[the page is longer than is read of one]")
    if view.items and not start:
        lines += ["", "Links and fields:", _list_items(view, 0, LIST_CHARS)]
    return ToolResult.ok("\n".join(lines))


def _list_items(view: PageView, start: int, most: int) -> str:
    lines: list[str] = []
    for item in view.items[start:]:
        value = f' = "{item.value}"' if item.value else ""
        lines.append(f'[{item.number}] {item.kind} "{item.label}"{value} {item.address[:300]}'.rstrip())
        most -= len(lines[-1])
        if most < 0 and item.number < len(view.items):
            lines.append(f"[{len(view.items) - item.number} more; go on with `links` and start {item.number}]")
            break
    return "\n".join(lines) or "There are none."
