"""The hosted tool `web_search`, as the official client knows it, over search services of ours that answer as the real ones do."""

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import openai
import pytest
from aiohttp import web
from anthropic import AsyncAnthropic
from openai import AsyncOpenAI
from openai.types.responses import Response, ResponseFunctionWebSearch
from tests.server.hosting import hosted
from tests.server.process import serving as serving_process

from mainspring.app.engine import Engine
from mainspring.app.server import server
from mainspring.core.errors import BadOutput, InvalidRequest, Refused
from mainspring.core.events import ItemDone, ItemStarted, ModelEvent, TextDelta, TurnEnded
from mainspring.core.items import FunctionCall, FunctionCallOutput, Json, ToolDefinition, Unknown, Usage, assistant
from mainspring.core.model_request import ModelRequest
from mainspring.features.web_search.searchers import HttpSearcher, build_searcher
from mainspring.features.web_search.settings import SearchService, WebSearchSettings
from mainspring.features.web_search.web_search import make_mark, make_web_search, read_results
from mainspring.ports import ModelFeature, ModelInfo, WebQuery
from mainspring.providers.scripted import Scripted, call, say
from mainspring.tools.addresses import AddressGuard
from mainspring.tools.builtin.web_fetch import WebFetch

pytestmark = pytest.mark.slow
PAGES = [
    {"url": "https://bakers.example/bread", "title": "Bread", "content": "Sourdough rests for a night."},
    {"url": "https://news.example/today", "title": "Today", "content": "Sourdough is in the news."},
    {"url": "https://shop.bakers.example/flour", "title": "Flour", "content": "Sourdough needs strong flour."},
    {"url": "javascript:alert(1)", "title": "Bad", "content": "Sourdough."},
]
HTML = "<html><head><title>Ovens</title></head><body><h1>Ovens</h1><p>Bake at 240 degrees.</p></body></html>"


class Services:
    """A SearXNG, a Brave, a Tavily and an Exa, each with the pages in its own words, and a page of the web. `asked` is what they
    were asked for; a request that theirs would refuse is refused."""

    def __init__(self) -> None:
        self.asked: list[Json] = []
        self.url = ""
        self.status = 200
        self.html = HTML

    async def searxng(self, request: web.Request) -> web.Response:
        self.asked.append(dict(request.query))
        if request.query.get("format") != "json" or self.status != 200:
            return web.Response(status=403 if self.status == 200 else self.status, text="Forbidden")
        found = [page for page in PAGES if request.query["q"].split()[0].lower() in page["content"].lower()]
        return web.json_response({"query": request.query["q"], "results": found, "answers": [], "unresponsive_engines": []})

    async def brave(self, request: web.Request) -> web.Response:
        self.asked.append(dict(request.query))
        if request.headers.get("X-Subscription-Token") != "sekrit" or not 1 <= int(request.query["count"]) <= 20:
            return web.json_response({"type": "ErrorResponse"}, status=422)
        found = [{"url": page["url"], "title": page["title"], "description": page["content"]} for page in PAGES]
        return web.json_response({"type": "search", "web": {"type": "search", "results": found}})

    async def tavily(self, request: web.Request) -> web.Response:
        self.asked.append(await request.json())
        if request.headers.get("Authorization") != "Bearer sekrit":
            return web.json_response({"detail": {"error": "Unauthorized"}}, status=401)
        return web.json_response({"query": "q", "answer": None, "results": [{**page, "score": 0.5} for page in PAGES]})

    async def exa(self, request: web.Request) -> web.Response:
        self.asked.append(await request.json())
        if request.headers.get("x-api-key") != "sekrit":
            return web.json_response({"error": "no key"}, status=401)
        found = [{"id": page["url"], "url": page["url"], "title": page["title"], "text": page["content"]} for page in PAGES]
        return web.json_response({"requestId": "r", "results": found})

    async def page(self, request: web.Request) -> web.Response:
        return web.Response(text=self.html, content_type="text/html")


@asynccontextmanager
async def hosted_search(app: web.Application) -> AsyncIterator[str]:
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


@asynccontextmanager
async def open_services() -> AsyncIterator[Services]:
    services = Services()
    app = web.Application()
    app.router.add_get("/searxng/search", services.searxng)
    app.router.add_get("/brave/web/search", services.brave)
    app.router.add_post("/tavily/search", services.tavily)
    app.router.add_post("/exa/search", services.exa)
    app.router.add_get("/ovens", services.page)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    services.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield services
    finally:
        await runner.cleanup()


class CitingModel:
    """Calls the tool once with what it is given, and then cites the first result, by its mark and by a link."""

    name = "citing"
    runs_in_place = True

    def __init__(self, **arguments: Any) -> None:
        self.arguments: Json = arguments or {"queries": ["sourdough"]}
        self.requests: list[ModelRequest] = []

    async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
        self.requests.append(request)
        outputs = [item for item in request.items if isinstance(item, FunctionCallOutput)]
        if not outputs:
            assert "cite" in self.tool.description
            item = FunctionCall("call_1", self.tool.name, msgspec.json.encode(self.arguments).decode(), id="fc_1")
            yield ItemStarted(item)
            yield ItemDone(item)
        else:
            found = read_results(outputs[-1].output)
            mark, url = (make_mark(found[0].url), found[0].url) if found else ("", "")
            said = f"All night.{mark} Untrue.【00000000】 [See](https://else.example/) [there]({url})."
            message = assistant(said, id=f"msg_{len(self.requests)}")
            yield ItemStarted(assistant("", id=message.id))
            for letter in message.text:
                yield TextDelta(message.id, letter)
            yield ItemDone(message)
        yield TurnEnded(usage=Usage())

    @property
    def tool(self) -> ToolDefinition:
        [tool] = [tool for tool in self.requests[-1].tools if isinstance(tool, ToolDefinition)]
        return tool

    @property
    def output(self) -> str:
        said = [item.output for item in self.requests[-1].items if isinstance(item, FunctionCallOutput)][-1]
        assert isinstance(said, str)
        return said

    async def models(self) -> list[ModelInfo]:
        return []

    async def close(self) -> None:
        return


@asynccontextmanager
async def serving(
    model: Any, service: SearchService = "searxng", guard: AddressGuard | None = None
) -> AsyncIterator[tuple[AsyncOpenAI, Services]]:
    async with open_services() as services:
        searcher = HttpSearcher(service, f"{services.url}/{service}", "sekrit")
        fetcher = WebFetch(guard or AddressGuard(["127.0.0.1"]))
        engine = Engine(model, parts=[make_web_search(searcher, fetcher)])
        async with hosted(server(engine)) as url, AsyncOpenAI(base_url=url, api_key="unused", max_retries=0) as client:
            yield client, services


@asynccontextmanager
async def open_anthropic(client: AsyncOpenAI) -> AsyncIterator[AsyncAnthropic]:
    """Anthropic's client for the same server, which believes nothing that its types do not allow."""
    url = str(client.base_url).removesuffix("/v1/")
    async with AsyncAnthropic(base_url=url, api_key="unused", max_retries=0, _strict_response_validation=True) as other:
        yield other


def declare(kind: str = "web_search", **options: Any) -> Any:
    return [{"type": kind, **options}]


async def ask(client: AsyncOpenAI, **options: Any) -> tuple[ResponseFunctionWebSearch, Response]:
    """The call, and the response as strict types have it."""
    told = await client.responses.create(model="m", input="How long?", tools=declare(**options))
    assert Response.model_validate(told.model_dump(), strict=True).output == told.output
    search = told.output[0]
    assert isinstance(search, ResponseFunctionWebSearch)
    return search, told


@pytest.mark.parametrize("kind", ["web_search", "web_search_2025_08_26", "web_search_preview", "web_search_preview_2025_03_11"])
async def test_the_model_searches_and_what_it_cites_is_annotated(kind: str) -> None:
    model = CitingModel()
    async with serving(model) as (client, services):
        search, told = await ask(client, kind=kind)
        assert (search.status, search.action.type) == ("completed", "search")
        assert search.id.startswith("ws_")
        urls = [page["url"] for page in PAGES[:3]]
        action = search.action.model_dump()
        assert (action["query"], action["queries"]) == ("sourdough", ["sourdough"])
        assert [source["url"] for source in action["sources"]] == urls
        assert services.asked == [{"q": "sourdough", "format": "json"}]
        message = told.output[-1]
        assert message.type == "message"
        [part] = message.content
        assert part.type == "output_text"
        mark, link = make_mark(urls[0]), f"[there]({urls[0]})"
        places = [(part.text.index(sign), part.text.index(sign) + len(sign)) for sign in (mark, link)]
        expected = {"type": "url_citation", "url": urls[0], "title": "Bread"}
        assert [note.model_dump() for note in part.annotations] == [
            {**expected, "start_index": start, "end_index": end} for start, end in places
        ]
        assert (await client.responses.retrieve(told.id)).output == told.output
        assert told.tools[0].model_dump(exclude_unset=True) == declare(kind)[0]
        assert read_results(model.output)[0].text == PAGES[0]["content"]


async def test_events_come_in_their_order() -> None:
    async with serving(CitingModel()) as (client, _):
        stream = await client.responses.create(model="m", input="How long?", tools=declare(), stream=True)
        events = [event async for event in stream]
        kinds = [event.type for event in events]
        begin = kinds.index("response.output_item.added")
        assert kinds[begin : begin + 5] == [
            "response.output_item.added",
            "response.web_search_call.in_progress",
            "response.web_search_call.searching",
            "response.web_search_call.completed",
            "response.output_item.done",
        ]
        assert kinds.count("response.output_text.annotation.added") == 2


@pytest.mark.parametrize("service", ["searxng", "brave", "tavily", "exa"])
async def test_every_service_is_asked_in_its_own_words_and_held_to_the_domains(service: SearchService) -> None:
    async with serving(CitingModel(), service) as (client, services):
        filters = {"allowed_domains": ["Bakers.example"]}
        search, _ = await ask(client, filters=filters, search_context_size="high")
        assert search.status == "completed"
        sources = [source["url"] for source in search.action.model_dump()["sources"]]
        assert sources == [PAGES[0]["url"], PAGES[2]["url"]]
        sited = "sourdough (site:bakers.example)"
        assert services.asked == [
            {
                "searxng": {"q": sited, "format": "json"},
                "brave": {"q": sited, "count": "20", "text_decorations": "false", "result_filter": "web"},
                "tavily": {
                    "query": "sourdough",
                    "max_results": 20,
                    "search_depth": "basic",
                    "include_domains": ["bakers.example"],
                },
                "exa": {
                    "query": "sourdough",
                    "numResults": 20,
                    "contents": {"text": {"maxCharacters": 2000}},
                    "includeDomains": ["bakers.example"],
                },
            }[service]
        ]


async def test_pages_are_opened_and_text_is_found_on_them() -> None:
    async with open_services() as other:
        page = f"{other.url}/ovens"
        model = CitingModel(url=page)
        async with serving(model) as (client, _):
            search, told = await ask(client)
            assert (search.status, search.action.model_dump()) == ("completed", {"type": "open_page", "url": page})
            [found] = read_results(model.output)
            assert (found.title, "240 degrees" in found.text, found.next_start) == ("Ovens", True, None)
            note = told.output[-1].model_dump()["content"][0]["annotations"][0]
            assert (note["url"], note["title"]) == (page, "Ovens")
        model = CitingModel(url=page, pattern="DEGREES")
        async with serving(model) as (client, _):
            search, _ = await ask(client)
            assert search.action.model_dump() == {"type": "find_in_page", "url": page, "pattern": "DEGREES"}
            assert "240 degrees" in read_results(model.output)[0].text
        model = CitingModel(url=page, pattern="kilograms")
        async with serving(model) as (client, _):
            await ask(client)
            assert read_results(model.output) == ()


@pytest.mark.parametrize(
    ("guard", "options"),
    [
        (AddressGuard(), {}),
        (None, {"filters": {"allowed_domains": ["bakers.example"]}}),
        (None, {"external_web_access": False}),
    ],
    ids=["private address", "other domain", "no access"],
)
async def test_a_page_that_may_not_be_opened_is_not(guard: AddressGuard | None, options: Json) -> None:
    async with open_services() as other:
        model = CitingModel(url=f"{other.url}/ovens")
        async with serving(model, guard=guard) as (client, _):
            search, _ = await ask(client, **options)
            assert search.status == "failed"
            assert "240" not in model.output


async def test_long_pages_come_in_pieces_that_are_whole() -> None:
    lines = [f'Line "{number}"' for number in range(2_000)]
    async with open_services() as other:
        other.html = f"<html><body><pre>{chr(10).join(lines)}</pre></body></html>"
        read, start = "", 0
        for _ in range(5):
            model = CitingModel(url=f"{other.url}/ovens", start=start)
            async with serving(model) as (client, _):
                await ask(client)
            [page] = read_results(model.output)
            read += page.text
            if page.next_start is None:
                break
            start = page.next_start
        assert start > 10_000
        assert [line for line in read.splitlines() if line.startswith("Line")] == lines


async def test_the_location_and_the_size_reach_the_search() -> None:
    model = CitingModel(queries=["sourdough", "flour"])
    place = {"type": "approximate", "city": "Lyon", "country": "FR", "timezone": "Europe/Paris"}
    async with serving(model, "exa") as (client, services):
        search, _ = await ask(client, user_location=place, search_context_size="low")
        assert [(body["query"], body["numResults"]) for body in services.asked] == [("sourdough", 5), ("flour", 5)]
        assert "Lyon, FR" in model.tool.description
        assert "Europe/Paris" in model.tool.description
        assert len(search.action.model_dump()["sources"]) == 3, "each page once"


async def test_results_of_several_queries_take_turns() -> None:
    async with serving(CitingModel(queries=["flour", "sourdough", " "])) as (client, services):
        search, _ = await ask(client)
        sources = [source["url"] for source in search.action.model_dump()["sources"]]
        assert sources == [PAGES[2]["url"], PAGES[0]["url"], PAGES[1]["url"]]
        assert [query["q"] for query in services.asked] == ["flour", "sourdough"]


@pytest.mark.parametrize(
    "choice",
    [
        {"type": "web_search"},
        {"type": "web_search_preview"},
        {"type": "allowed_tools", "mode": "required", "tools": [{"type": "web_search_preview"}]},
    ],
)
async def test_a_search_can_be_asked_for(choice: Any) -> None:
    model = Scripted(call("web_search", queries=["sourdough"]), say("All night."))
    async with serving(model) as (client, _):
        tools = declare("web_search_preview")
        told = await client.responses.create(model="m", input="?", tools=tools, tool_choice=choice)
        asked = model.requests[0].tool_choice
        assert (asked.mode, asked.name or asked.allowed) == ("required", "web_search" if asked.name else ("web_search",))
        assert told.output[0].type == "web_search_call"


async def test_a_client_that_keeps_the_history_sends_it_back() -> None:
    model = CitingModel()
    async with serving(model) as (client, services):
        asked: Any = ["web_search_call.action.sources", "web_search_call.results"]
        sent = await client.responses.create(model="m", input="How long?", tools=declare(), store=False, include=asked)
        shown = sent.output[0].model_dump()["results"]
        assert [(page["url"], page["text"]) for page in shown] == [(page["url"], page["content"]) for page in PAGES[:3]]
        history: Any = [{"role": "user", "content": "How long?"}, *[item.model_dump(exclude_none=True) for item in sent.output]]
        again = await client.responses.create(model="m", input=[*history, {"role": "user", "content": "Sure?"}], tools=declare())
        [message] = again.output
        assert message.model_dump()["content"][0]["annotations"][0]["url"] == PAGES[0]["url"]
        assert read_results(model.output)[0].text == PAGES[0]["content"]
        assert len(services.asked) == 1


@pytest.mark.parametrize(
    "options",
    [
        {"filters": {"allowed_domains": ["https://a.example/x"]}},
        {"filters": {"blocked_domains": ["a.example"]}},
        {"search_context_size": "huge"},
        {"user_location": {"type": "exact"}},
        {"search_content_types": ["text", "image"]},
    ],
)
async def test_what_cannot_be_honoured_is_refused_before_the_run(options: Json) -> None:
    model = Scripted(say("Never."))
    async with serving(model) as (client, _):
        with pytest.raises(openai.BadRequestError) as raised:
            await client.responses.create(model="m", input="?", tools=declare(**options))
        assert (raised.value.code, str(raised.value.param)[:5]) == ("invalid_value", "tools")
        assert model.requests == []


@pytest.mark.parametrize("kind", ["web_search", "web_search_preview"])
async def test_without_a_service_it_is_refused_with_what_to_set(kind: str) -> None:
    model = Scripted(say("Never."))
    async with hosted(server(Engine(model))) as url, AsyncOpenAI(base_url=url, api_key="unused", max_retries=0) as client:
        with pytest.raises(openai.BadRequestError) as raised:
            await client.responses.create(model="m", input="?", tools=declare(kind))
        assert (raised.value.param, raised.value.code) == ("tools[0].type", "unsupported_value")
        assert "[web_search]" in raised.value.message
        assert model.requests == []


class PassingModel(Scripted):
    """One whose backend speaks the Responses API."""

    def find_features(self, model: str) -> frozenset[ModelFeature]:
        return frozenset({"passthrough"})


async def test_without_a_service_a_backend_that_can_is_passed_it_on() -> None:
    model = PassingModel(say("I searched."))
    wanted, included = {"type": "web_search", "search_context_size": "low"}, "web_search_call.action.sources"
    item: Any = {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"type": "search", "query": "x"}}
    async with hosted(server(Engine(model))) as url, AsyncOpenAI(base_url=url, api_key="unused", max_retries=0) as client:
        history: Any = [item, {"role": "user", "content": "?"}]
        await client.responses.create(model="m", input=history, tools=[wanted], include=[included])  # type: ignore[list-item]
        [request] = model.requests
        assert (request.tools, request.items[0]) == ((Unknown(wanted),), Unknown(item))
        assert request.extra == {"include": [included]}


async def test_with_a_service_it_is_ours_whatever_the_backend_can() -> None:
    model = PassingModel(call("web_search", queries=["sourdough"]), say("All night."))
    async with serving(model) as (client, services):
        search, _ = await ask(client)
        assert (search.status, len(services.asked)) == ("completed", 1)


async def test_a_service_that_fails_is_told_to_the_model_without_its_key() -> None:
    model = CitingModel()
    async with serving(model) as (client, services):
        services.status = 429
        search, told = await ask(client)
        assert (search.status, told.status) == ("failed", "completed")
        assert "429" in model.output
        assert "sekrit" not in model.output
    model = CitingModel(pattern="nothing")
    async with serving(model) as (client, _):
        assert (await ask(client))[0].status == "failed"


async def test_what_a_service_says_stands_in_the_log_without_keys_and_within_bounds(caplog: pytest.LogCaptureFixture) -> None:
    async def answer(request: web.Request) -> web.Response:
        if request.query["q"] == "values":
            return web.Response(body=b'{"results": [' + b"{}," * 100_000 + b"{}]}", content_type="application/json")
        told = f"who is {request.headers['Authorization']}? not sk-proj-aB3dEf6hIj9kLmN0pQrS2uVwX4yZ; " + "no " * 1_000
        return web.Response(status=500, text=told)

    app = web.Application()
    app.router.add_get("/search", answer)
    async with hosted_search(app) as url:
        searcher = HttpSearcher("searxng", url, "correct-horse")
        with pytest.raises(Refused):
            await searcher.search(WebQuery("words", 5, 100))
        with pytest.raises(BadOutput, match="values"):
            await searcher.search(WebQuery("values", 5, 100))
    [told] = [record.getMessage() for record in caplog.records if "answered 500" in record.getMessage()]
    assert "who is Bearer ***" in told
    assert "correct-horse" not in told
    assert "sk-proj-aB3dEf6hIj9kLmN0pQrS2uVwX4yZ" not in told
    assert len(told) < 700


async def test_the_settings_name_the_service(tmp_path: Path) -> None:
    async with open_services() as services:
        settings = f'allow_hosts = ["127.0.0.1"]\n[web_search]\nprovider = "searxng"\nurl = "{services.url}/searxng"\n'
        (tmp_path / "mainspring.toml").write_text(settings)
        found = {"calls": [{"name": "web_search", "arguments": {"queries": ["sourdough"]}}]}
        opened = {"calls": [{"name": "web_search", "arguments": {"url": f"{services.url}/ovens"}}]}
        script: list[Json] = [found, opened, {"say": "At 240.", "expect": "240 degrees"}]
        with serving_process(tmp_path, script) as running:
            async with AsyncOpenAI(base_url=running.url, api_key="unused", max_retries=0) as client:
                told = await client.responses.create(model="scripted", input="How hot?", tools=declare())
        assert [item.model_dump().get("status") for item in told.output] == ["completed"] * 3
        assert told.output_text == "At 240."


async def test_the_rules_for_domains_hold_for_pages(tmp_path: Path) -> None:
    async with open_services() as services:
        settings = f'allow_hosts = ["127.0.0.1"]\n[web_search]\nprovider = "searxng"\nurl = "{services.url}/searxng"\n'
        (tmp_path / "mainspring.toml").write_text(
            settings + '[governance.domains]\nallowed = ["bakers.example"]\ndenied = ["127.0.0.1"]\n'
        )
        found = {"calls": [{"name": "web_search", "arguments": {"queries": ["sourdough"]}}]}
        opened = {"calls": [{"name": "web_search", "arguments": {"url": f"{services.url}/ovens"}}]}
        script: list[Json] = [found, opened, {"say": "I may not.", "expect": "denied"}]
        with serving_process(tmp_path, script) as running:
            async with AsyncOpenAI(base_url=running.url, api_key="unused", max_retries=0) as client:
                told = await client.responses.create(model="scripted", input="How hot?", tools=declare())
        assert [item.model_dump().get("status") for item in told.output] == ["completed", "failed", "completed"]


@pytest.mark.parametrize(
    ("settings", "param"),
    [
        (WebSearchSettings(url="http://127.0.0.1"), "web_search.provider"),
        (WebSearchSettings(provider="searxng"), "web_search.url"),
        (WebSearchSettings(provider="searxng", url="ftp://x"), "web_search.url"),
        (WebSearchSettings(provider="searxng", url="http://me:sekrit@127.0.0.1"), "web_search.url"),
        (WebSearchSettings(provider="brave"), "web_search.key"),
    ],
)
def test_settings_that_miss_something_say_what(settings: WebSearchSettings, param: str) -> None:
    with pytest.raises(InvalidRequest) as raised:
        build_searcher(settings)
    assert raised.value.param == param


DECLARED: Any = [{"type": "web_search_20250305", "name": "web_search", "max_uses": 5}]


async def test_anthropics_client_declares_the_tool_as_it_knows_it_and_sends_back_what_was_found() -> None:
    model = CitingModel()
    async with serving(model) as (plain, services), open_anthropic(plain) as client:
        asked: Any = {"model": "m", "max_tokens": 99, "tools": DECLARED, "messages": [{"role": "user", "content": "How long?"}]}
        whole: Any = await client.messages.create(**asked, tool_choice={"type": "tool", "name": "web_search"})
        async with client.messages.stream(**asked) as stream:
            streamed: Any = await stream.get_final_message()
        assert len(services.asked) == 2
        for told in (whole, streamed):
            use, found, said = told.content
            assert (use.type, found.type, said.type) == ("server_tool_use", "web_search_tool_result", "text")
            assert (use.name, use.input, found.tool_use_id) == ("web_search", {"query": "sourdough"}, use.id)
            assert isinstance(found.content, list)
            assert [page.url for page in found.content] == [page["url"] for page in PAGES[:3]]
            cited = [(note.url, note.cited_text) for note in said.citations or () if note.type == "web_search_result_location"]
            assert cited == [(PAGES[0]["url"], PAGES[0]["content"])] * 2
            assert told.usage.server_tool_use is not None
            assert (told.usage.server_tool_use.web_search_requests, told.stop_reason) == (1, "end_turn")
        back: Any = [*asked["messages"], {"role": "assistant", "content": whole.content}, {"role": "user", "content": "Why?"}]
        await client.messages.create(**{**asked, "messages": back})
        read = [(page.cite, page.url, page.title, page.text) for page in read_results(model.output)]
        assert read == [(make_mark(page["url"]), page["url"], page["title"], page["content"]) for page in PAGES[:3]]
        assert len(services.asked) == 2


async def test_anthropics_client_sees_the_pages_that_were_opened_and_what_failed() -> None:
    model = CitingModel()
    async with serving(model) as (plain, services), open_anthropic(plain) as client:
        model.arguments = {"url": f"{services.url}/ovens", "pattern": "240"}
        asked: Any = {"model": "m", "max_tokens": 99, "tools": DECLARED, "messages": [{"role": "user", "content": "How hot?"}]}
        opened: Any = await client.messages.create(**asked)
        services.status, model.arguments = 500, {"queries": ["x", "y"]}
        failed: Any = await client.messages.create(**asked)
        use, page, _ = opened.content
        assert (use.type, page.type) == ("server_tool_use", "web_fetch_tool_result")
        assert (use.name, page.content.type) == ("web_fetch", "web_fetch_result")
        assert "240 degrees" in str(page.content)
        use, found, _ = failed.content
        assert (use.type, found.type) == ("server_tool_use", "web_search_tool_result")
        assert use.input == {"query": "x", "queries": ["x", "y"]}
        assert "unavailable" in str(found)
        for told in (opened, failed):
            back: Any = [*asked["messages"], {"role": "assistant", "content": told.content}, {"role": "user", "content": "?"}]
            answer = await client.messages.with_raw_response.create(**{**asked, "messages": back})
            assert answer.headers["Mainspring-Ignored"] == "tools[0].max_uses"
        assert "240 degrees" in str([item for item in model.requests[-2].items if isinstance(item, FunctionCallOutput)])


async def test_chat_completions_have_the_tool_and_its_citations() -> None:
    model = CitingModel()
    async with serving(model) as (client, services):
        asked: Any = [{"role": "user", "content": "How long?"}]
        place: Any = {"type": "approximate", "approximate": {"city": "Oslo", "country": "NO"}}
        options: Any = {"search_context_size": "low", "user_location": place}
        way: Any
        for way in ({"tools": declare()}, {"web_search_options": options}):
            told = await client.chat.completions.create(model="m", messages=asked, **way)
            notes = told.choices[0].message.annotations or []
            assert [note.url_citation.url for note in notes] == [PAGES[0]["url"]] * 2
        assert "The user is in Oslo, NO" in model.tool.description
        assert len(services.asked) == 2
        odd: Any = {**options, "user_location": "Oslo"}
        with pytest.raises(openai.BadRequestError) as refused:
            await client.chat.completions.create(model="m", messages=asked, web_search_options=odd)
        assert refused.value.param == "web_search_options.user_location"


async def test_codex_has_the_tool_and_is_told_of_others_that_are_left_out() -> None:
    async with serving(CitingModel()) as (client, services):
        tools: Any = [{"type": "web_search", "external_web_access": False}, {"type": "image_generation"}]
        told = await client.responses.with_raw_response.create(
            model="m", input="?", tools=tools, extra_headers={"originator": "codex_exec"}
        )
        assert told.headers["Mainspring-Ignored"] == "tools[1]"
        assert [item.type for item in told.parse().output] == ["web_search_call", "message"]
        assert len(services.asked) == 1
