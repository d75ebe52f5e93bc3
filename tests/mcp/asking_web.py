"""Servers that ask before they do anything, in either protocol, and one that works on tasks. They count what they were told."""

import asyncio

from aiohttp import web
from tests.mcp.wild_web import Json, Wild, begin, event, result, say

FORM: Json = {
    "message": "Which room?",
    "mode": "form",
    "requestedSchema": {
        "type": "object",
        "properties": {"room": {"type": "string", "enum": ["red", "blue"]}, "nights": {"type": "integer", "minimum": 1}},
        "required": ["room"],
    },
}
LINK: Json = {"message": "Pay here.", "mode": "url", "url": "https://pay.example/1", "elicitationId": "pay-1"}
BOOK: Json = {"name": "book", "inputSchema": {"type": "object"}}
TASKS = "io.modelcontextprotocol/tasks"


class Hotel(Wild):
    """Asks each of `questions` before it books. `bookings` are the answers that came with each booking."""

    def __init__(self, *, is_modern: bool, questions: tuple[Json, ...] = (FORM,), takes_tasks: bool = False) -> None:
        super().__init__(is_modern=is_modern)
        self.questions, self.takes_tasks = questions, takes_tasks
        self.bookings: list[list[Json]] = []
        self.asked = 0
        self.polls = 0
        self.done = asyncio.Event()
        self.replies: asyncio.Queue[Json] = asyncio.Queue()
        self.told: list[Json] = []
        if takes_tasks and is_modern:
            self.capabilities = {"tools": {}, "extensions": {TASKS: {}}}
        self.answers |= {
            "tools/list": self._list,
            "tools/call": self._modern_call if is_modern else self._call,
            "None": self._reply,
            "tasks/get": self._get_task,
            "tasks/result": self._get_result,
            "tasks/update": self._update_task,
        }

    async def _list(self, request: web.Request, message: Json) -> web.StreamResponse:
        task = {"execution": {"taskSupport": "required"}} if self.takes_tasks and not self.is_modern else {}
        return result(message, {"tools": [{**BOOK, **task}], "resultType": "complete", "ttlMs": 0, "cacheScope": "private"})

    async def _modern_call(self, request: web.Request, message: Json) -> web.StreamResponse:
        if self.takes_tasks:
            return result(message, {"resultType": "task", **self._describe_task("working")})
        params = message["params"]
        answered = [*params.get("requestState", "").split("|")[1:], *[str(each) for each in params.get("inputResponses", {})]]
        left = [place for place in range(len(self.questions)) if str(place) not in answered]
        self.told += params.get("inputResponses", {}).values()
        if left:
            self.asked += 1
            wanted = {str(left[0]): {"method": "elicitation/create", "params": self.questions[left[0]]}}
            state = "|".join(["state", *answered])
            return result(message, {"resultType": "input_required", "inputRequests": wanted, "requestState": state})
        self.bookings.append(self.told)
        return result(message, say("Booked."))

    async def _call(self, request: web.Request, message: Json) -> web.StreamResponse:
        if self.takes_tasks:
            assert message["params"]["task"]["ttl"] > 0
            return result(message, {"task": self._describe_task("working")})
        return await self._ask_all(request, message)

    async def _ask_all(self, request: web.Request, message: Json) -> web.StreamResponse:
        stream = await begin(request)
        heard = []
        for question in self.questions:
            self.asked += 1
            asked = {"jsonrpc": "2.0", "id": f"q{self.asked}", "method": "elicitation/create", "params": question}
            await stream.write(event(asked))
            heard.append(await self.replies.get())
        self.bookings.append(heard)
        await stream.write(event({"jsonrpc": "2.0", "id": message["id"], "result": say("Booked.")}))
        return stream

    async def take_back(self, request: web.Request, message: Json) -> web.StreamResponse:
        """Asks, does not wait for the answer, and says so."""
        stream = await begin(request)
        await stream.write(event({"jsonrpc": "2.0", "id": "q", "method": "elicitation/create", "params": FORM}))
        told = {"requestId": "q", "reason": "never mind"}
        await stream.write(event({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": told}))
        await stream.write(event({"jsonrpc": "2.0", "id": message["id"], "result": say("Booked.")}))
        return stream

    async def _reply(self, request: web.Request, message: Json) -> web.StreamResponse:
        """Takes the answer to a question."""
        self.replies.put_nowait(message.get("result") or message["error"])
        return web.Response(status=202)

    def _describe_task(self, status: str) -> Json:
        when = "2026-01-01T00:00:00Z"
        return {"taskId": "task-1", "status": status, "createdAt": when, "lastUpdatedAt": when, "ttl": None, "ttlMs": None}

    async def _get_task(self, request: web.Request, message: Json) -> web.StreamResponse:
        assert message["params"]["taskId"] == "task-1"
        self.polls += 1
        pace = {"pollInterval": 50, "pollIntervalMs": 50, "resultType": "complete"}
        if self.questions and len(self.told) < len(self.questions) and not self.bookings:
            wanted = {"0": {"method": "elicitation/create", "params": self.questions[0]}}
            self.asked += self.is_modern
            return result(message, {**self._describe_task("input_required"), **pace, "inputRequests": wanted})
        if not self.done.is_set():
            return result(message, {**self._describe_task("working"), **pace, "statusMessage": f"poll {self.polls}"})
        return result(message, {**self._describe_task("completed"), **pace, "result": say("Booked.")})

    async def _update_task(self, request: web.Request, message: Json) -> web.StreamResponse:
        self.told += message["params"]["inputResponses"].values()
        return result(message, {"resultType": "complete"})

    async def _get_result(self, request: web.Request, message: Json) -> web.StreamResponse:
        if self.questions:
            return await self._ask_all(request, message)
        return result(message, say("Booked."))
