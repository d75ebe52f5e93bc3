"""Resources, prompts and sampling: what the operator allows of a server, and nothing that was not allowed."""

import json
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from tests.mcp.wild_web import Handler, Json, Wild, begin, event, result, say, serve
from tests.server.hosting import hosted

from mainspring import Engine
from mainspring.app.server import server
from mainspring.core.items import ApprovalRequest, ApprovalResponse, FunctionCallOutput
from mainspring.core.run import Run
from mainspring.http.auth import Keys
from mainspring.providers.scripted import Scripted, call
from mainspring.providers.scripted import say as speak
from mainspring.tools.mcp.executor import McpTools
from mainspring.tools.mcp.server_specs import ServerSpec

pytestmark = pytest.mark.slow

ERAS = pytest.mark.parametrize("is_modern", [True, False], ids=["stateless", "sessions"])
HELLO: Json = {"role": "user", "content": {"type": "text", "text": "Say hello."}}


class Library(Wild):
    """Has a resource and a prompt, and asks the model when its tool is called. `said` is what the model told it."""

    def __init__(self, *, is_modern: bool) -> None:
        super().__init__(is_modern=is_modern)
        self.capabilities = {"tools": {}, "resources": {}, "prompts": {}}
        self.said: list[Json] = []
        self.answers |= {
            "resources/list": self._answer({"resources": [{"uri": "file:///a", "name": "a"}], "nextCursor": "2"}),
            "resources/read": self._read,
            "prompts/get": self._answer({"messages": [{"role": "user", "content": {"type": "text", "text": "Greet Ann."}}]}),
            "tools/call": self._modern_call if is_modern else self._call,
            "None": self._reply,
        }

    def _answer(self, found: Json) -> Handler:
        async def answer(request: web.Request, message: Json) -> web.StreamResponse:
            return result(message, {**found, "resultType": "complete", "ttlMs": 0, "cacheScope": "private"})

        return answer

    async def _read(self, request: web.Request, message: Json) -> web.StreamResponse:
        uri = message["params"]["uri"]
        assert not self.is_modern or request.headers["mcp-name"] == uri
        return await self._answer({"contents": [{"uri": uri, "text": "A story."}]})(request, message)

    async def _modern_call(self, request: web.Request, message: Json) -> web.StreamResponse:
        if "inputResponses" in message["params"]:
            self.said.append(message["params"]["inputResponses"]["m"])
            return result(message, say("Thanks."))
        wanted = {"m": {"method": "sampling/createMessage", "params": {"messages": [HELLO], "maxTokens": 9}}}
        return result(message, {"resultType": "input_required", "inputRequests": wanted, "requestState": "s"})

    async def _call(self, request: web.Request, message: Json) -> web.StreamResponse:
        stream = await begin(request)
        params = {"messages": [HELLO], "maxTokens": 9}
        await stream.write(event({"jsonrpc": "2.0", "id": "m", "method": "sampling/createMessage", "params": params}))
        await self.cancelled.wait()
        await stream.write(event({"jsonrpc": "2.0", "id": message["id"], "result": say("Thanks.")}))
        return stream

    async def _reply(self, request: web.Request, message: Json) -> web.StreamResponse:
        self.said.append(message.get("result") or message["error"])
        self.cancelled.set()
        return web.Response(status=202)


def engine_of(library: Library, *turns: Any, **more: Any) -> Engine:
    spec = ServerSpec("library", url=library.url, trusted=True, **{"require_approval": "never", **more})
    return Engine(Scripted(*turns), mcp=McpTools([spec]))


def outputs(run: Run) -> list[object]:
    return [entry.item.output for entry in run.transcript if isinstance(entry.item, FunctionCallOutput)]


@ERAS
async def test_resources_and_prompts_are_tools_where_the_operator_says_so(is_modern: bool) -> None:
    asked = (call("list_resources"), call("read_resource", uri="file:///a"), call("get_prompt", name="greet"), speak("Done."))
    async with serve(Library(is_modern=is_modern)) as library:
        async with engine_of(library, *asked, resources=True, prompts=True) as engine:
            run = await engine.run("Read.")
            listed, read, prompt = outputs(run)
            assert json.loads(str(listed)) == {"resources": [{"uri": "file:///a", "name": "a"}], "nextCursor": "2"}
            assert (read, prompt) == ("file:///a:\nA story.", "user: Greet Ann.")
        async with engine_of(library, speak("Nothing.")) as engine:
            await engine.run("Read.")
            assert list((await engine.mcp.collect_tools()).routes) == ["read"]


async def test_resources_and_prompts_are_read_over_http_of_servers_that_show_them() -> None:
    async with (
        serve(Library(is_modern=True)) as library,
        hosted(server(engine_of(library, resources=True, rate=2))) as url,
        aiohttp.ClientSession() as http,
    ):
        at = f"{url}/mcp_servers/library"
        listed = await (await http.get(f"{at}/resources")).json()
        assert listed["result"]["resources"] == [{"uri": "file:///a", "name": "a"}]
        read = await (await http.post(f"{at}/resources/read", json={"uri": "file:///a"})).json()
        assert read["result"]["contents"][0]["text"] == "A story."
        assert (await http.get(f"{at}/prompts")).status == 404
        more = await http.get(f"{at}/resources")
        assert (more.status, (await more.json())["error"]["code"]) == (429, "rate_limit_exceeded")
        assert 1 <= int(more.headers["retry-after"]) <= 60
        long = await http.get(f"{at}/resources", params={"cursor": "x" * 8_193})
        assert (long.status, (await long.json())["error"]["param"]) == (400, "cursor")
        assert (await http.get(f"{url}/mcp_servers/other/resources")).status == 404


async def test_what_a_client_is_let_in_by_is_told_to_no_server() -> None:
    """A server that got a client's key could call us, or others, as that client."""
    key = "sk-of-the-client"
    known = {"Authorization": f"Bearer {key}", "Cookie": f"session={key}"}
    async with serve(Library(is_modern=True)) as library:
        engine = engine_of(library, call("read", text="a"), speak("Done."), resources=True)
        async with (
            hosted(server(engine, keys=Keys(engine.store, configured=key))) as url,
            aiohttp.ClientSession(headers=known) as http,
        ):
            assert (await http.get(f"{url}/mcp_servers/library/resources")).status == 200
            told = await (await http.post(f"{url}/responses", json={"input": "Read.", "model": "m"})).json()
            assert (told["status"], (await http.get(f"{url}/models", headers={"Authorization": ""})).status) == ("completed", 401)
        assert {"resources/list", "tools/call"} <= {message.get("method") for message in library.heard}
        assert key not in json.dumps([library.headers, library.heard])


@ERAS
async def test_a_server_asks_the_model_at_the_expense_of_the_run_that_calls_it(is_modern: bool) -> None:
    turns = (call("read"), speak("Hello."), speak("Done."))
    async with serve(Library(is_modern=is_modern)) as library, engine_of(library, *turns, sampling=True) as engine:
        run = await engine.run("Read.")
        assert run.text == "Done."
        [said] = library.said
        assert said["content"] == {"type": "text", "text": "Hello."}
        assert run.delegated.turns == 1
        assert run.delegated.usage.total_tokens > 0


@ERAS
async def test_a_server_that_is_not_allowed_to_asks_no_model(is_modern: bool) -> None:
    async with serve(Library(is_modern=is_modern)) as library, engine_of(library, call("read"), speak("Done.")) as engine:
        run = await engine.run("Read.")
        assert run.text == "Done."
        assert [said.get("code") for said in library.said] == ([] if is_modern else [-32601])


async def test_what_a_server_had_the_model_say_counts_though_it_asks_a_person_and_fails() -> None:
    texts = ["Say hello.", "Say goodbye."]

    async def ask_each(request: web.Request, message: Json) -> web.StreamResponse:
        place = len(message["params"].get("requestState", ""))
        library.said += [each for each in message["params"].get("inputResponses", {}).values() if "model" in each]
        samples = [{"messages": [{"role": "user", "content": {"type": "text", "text": text}}]} for text in texts]
        wanted: list[Json] = [
            {"method": "sampling/createMessage", "params": samples[0]},
            {"method": "elicitation/create", "params": {"message": "Sure?", "mode": "url", "url": "https://a.example/"}},
            {"method": "sampling/createMessage", "params": samples[1]},
        ]
        if place == len(wanted):
            return web.json_response({"jsonrpc": "2.0", "id": message["id"], "error": {"code": -32000, "message": "No."}})
        told = {"inputRequests": {"m": wanted[place]}, "requestState": "s" * (place + 1)}
        return result(message, {"resultType": "input_required", **told})

    turns = (call("read"), speak("Hello."), speak("Goodbye."), speak("Done."))
    async with serve(Library(is_modern=True)) as library, engine_of(library, *turns, sampling=True) as engine:
        library.answers["tools/call"] = ask_each
        first = await engine.run("Read.")
        [asked] = [item for item in first.output if isinstance(item, ApprovalRequest)]
        run = await engine.run((ApprovalResponse(asked.id, True),), previous=first.spec.id)
        assert [said["content"]["text"] for said in library.said] == ["Hello.", "Goodbye."]
        assert (run.text, run.delegated.turns) == ("Done.", 2)
