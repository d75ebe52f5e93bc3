"""`/v1/chat` and `/v1/decisions`: a person's tasks in plain language, with the conversation kept here or brought along.

Whose tasks they are is the API key's to say: a tenant has one list, and where there is only the default tenant, each key has one.
The first request opens the agent, and it stays open as long as the server runs; the server's task `keep_open` owns it.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from logging import getLogger
from typing import TYPE_CHECKING, Annotated

from anyio import Event, create_task_group, sleep_forever
from msgspec import Meta, Struct, ValidationError, convert
from msgspec.structs import asdict
from starlette.requests import Request
from starlette.responses import Response as HttpResponse

from mainspring.core.errors import InvalidRequest, MainspringError
from mainspring.core.items import Json
from mainspring.core.spec import Caller
from mainspring.engine.approvals import APPROVE
from mainspring.http.auth import ApiCaller, get_caller
from mainspring.http.bodies import read_json_body
from mainspring.http.endpoints import Endpoint
from mainspring.http.faults import Fault, json_response
from mainspring.http.idempotency import IdempotentReplies
from mainspring.http.ignored import IgnoredFields
from mainspring.http.queries import CURSOR, Page, make_page, read_cursor
from mainspring.parts import Host, ServedPart
from mainspring.tools.contract import EXECUTE
from mainspring_tasks.decision_settings import DecisionSettings, OpenTaskAgent, check_log, open_task_agent
from mainspring_tasks.decision_types import ALLOWED_TOOLS, BrokenRule, DecisionContext

if TYPE_CHECKING:
    from mainspring_tasks.conversations import MessageResult
    from mainspring_tasks.decision_engine import RecordedDecision

log = getLogger(__name__)

LOCAL = "local"
DECISION_ID = "x-decision-id"
_CHATS = "/v1/chat/conversations"


class SendMessage(Struct):
    """The body of `POST /v1/chat`. Without a `conversation_id`, it begins a conversation."""

    content: Annotated[str, Meta(min_length=1, max_length=32_000)]
    conversation_id: Annotated[str, Meta(max_length=256)] | None = None


class ShownMessage(Struct, frozen=True):
    """A message of the conversation. `created_at` is null for one that was added by hand."""

    id: str
    role: str
    content: str
    created_at: str | None


class ChatReply(Struct, frozen=True):
    """The reply, the last messages of the conversation with it, and the decision behind it."""

    conversation_id: str
    message: ShownMessage
    messages: tuple[ShownMessage, ...]
    decision: Json


class ListedChat(Struct, frozen=True):
    """A conversation about one's tasks. Its title is what was said first."""

    id: str
    created_at: int
    title: str
    object: str = "conversation"


class ChatMessages(Struct, frozen=True):
    """The last messages of a conversation, oldest first."""

    conversation_id: str
    messages: tuple[ShownMessage, ...]


class Decide(Struct):
    """The body of `POST /v1/decisions`: a DecisionContext. `user_id` is known by the API key, and may be left out."""

    message: str
    conversation_id: Annotated[str, Meta(max_length=256)]
    user_id: str | None = None
    message_history: tuple[Json, ...] = ()
    pending_confirmation: Json | None = None


class DecisionReply(Struct, frozen=True):
    """An AgentDecision."""

    decision_type: str
    tool_calls: tuple[Json, ...]
    response_text: str | None
    clarification_question: str | None
    pending_action: Json | None


def serve_chat(host: Host, settings: DecisionSettings) -> ServedPart:
    """Both endpoints, and the agent behind them for as long as the server runs."""
    routes = ChatRoutes(host, settings)

    @asynccontextmanager
    async def lifespan() -> AsyncIterator[None]:
        await check_log(settings, host)
        async with create_task_group() as tasks:
            tasks.start_soon(routes.keep_open)
            yield
            tasks.cancel_scope.cancel()

    return ServedPart(routes.endpoints(), lifespan)


class ChatRoutes:
    """Both endpoints. `keep_open` must run as long as they are served."""

    def __init__(self, host: Host, settings: DecisionSettings) -> None:
        self._host, self._settings = host, settings
        self._replies = IdempotentReplies(host.engine.store)
        self._wanted, self._ready = Event(), Event()
        self._open: OpenTaskAgent | None = None
        self._failure = "the server is stopping"

    def endpoints(self) -> tuple[Endpoint, ...]:
        return (
            Endpoint("POST", "/v1/chat", self.chat, "decisions", ChatReply, SendMessage, takes_key=True, errors=(404, 409, 503)),
            Endpoint("GET", _CHATS, self.list_chats, "decisions", Page, query=CURSOR, schemas=(ListedChat,), errors=(503,)),
            Endpoint("GET", f"{_CHATS}/{{conversation_id}}", self.list_messages, "decisions", ChatMessages, errors=(503,)),
            Endpoint("POST", "/v1/decisions", self.decide, "decisions", DecisionReply, Decide, takes_key=True, errors=(409, 503)),
        )

    async def keep_open(self) -> None:
        """Opens the agent once it is wanted, or tries to again, and closes it when this is cancelled."""
        while True:
            await self._wanted.wait()
            try:
                await self._open_agent()
            except (MainspringError, OSError) as error:
                log.error("the task agent cannot be opened: %s", error)
                self._failure = str(error)
            self._open, ready = None, self._ready
            self._wanted, self._ready = Event(), Event()
            ready.set()

    async def _open_agent(self) -> None:
        async with open_task_agent(self._settings, self._host) as self._open:
            self._ready.set()
            await sleep_forever()

    async def chat(self, request: Request) -> HttpResponse:
        """Sends a message about one's tasks; the server keeps the conversation."""
        raw = await read_json_body(request)
        ignored = IgnoredFields()
        body, caller = ignored.parse(raw, SendMessage), get_caller(request)
        person = identify_person(caller)

        async def send_message(key: str) -> HttpResponse:
            chats = (await self._agent()).chats
            by = make_run_caller(caller)
            return _render(await chats.send(person, body.content, body.conversation_id, tenant=caller.tenant, caller=by, key=key))

        async def recall_message(key: str) -> HttpResponse | None:
            chats = (await self._agent()).chats
            sent = await chats.recall(person, body.content, body.conversation_id, key, tenant=caller.tenant)
            return None if sent is None else _render(sent)

        reply = await self._replies.reply(request, person, raw, send_message, recall_message)
        reply.headers.update(ignored.make_headers())
        return reply

    async def list_chats(self, request: Request) -> HttpResponse:
        """Lists the conversations about one's tasks, newest first."""
        caller, cursor = get_caller(request), read_cursor(request)
        found = await (await self._agent()).chats.list(
            identify_person(caller), cursor.limit + 1, cursor.after, newest_first=cursor.newest_first, tenant=caller.tenant
        )
        listed = [ListedChat(each.id, each.created_at, each.metadata.get("title", "")) for each in found[: cursor.limit]]
        return json_response(make_page(listed, [each.id for each in listed], has_more=len(found) > cursor.limit))

    async def list_messages(self, request: Request) -> HttpResponse:
        """Retrieves the last messages of a conversation about one's tasks."""
        caller, id = get_caller(request), str(request.path_params["conversation_id"])
        messages = await (await self._agent()).chats.find(identify_person(caller), id, tenant=caller.tenant)
        return json_response({"conversation_id": id, "messages": messages})

    async def decide(self, request: Request) -> HttpResponse:
        """Decides about a message that brings its context along; the server keeps only what waits for a confirmation."""
        raw = await read_json_body(request)
        ignored = IgnoredFields()
        context = _parse_context(ignored.parse(raw, Decide), caller := get_caller(request))

        async def make_decision(key: str) -> HttpResponse:
            agent, by = (await self._agent()).agent, make_run_caller(caller)
            return _render_decision(await agent.decide(context, tenant=caller.tenant, caller=by, key=key))

        async def recall_decision(key: str) -> HttpResponse | None:
            recorded = await (await self._agent()).agent.recall(key)
            return None if recorded is None else _render_decision(recorded)

        reply = await self._replies.reply(request, context.user_id, raw, make_decision, recall_decision)
        reply.headers.update(ignored.make_headers())
        return reply

    async def _agent(self) -> OpenTaskAgent:
        ready = self._ready
        self._wanted.set()
        await ready.wait()
        if self._open is None:
            raise Fault(503, "decisions_unavailable", f"the task agent is not available right now: {self._failure}")
        return self._open


def _render(sent: "MessageResult") -> HttpResponse:
    reply = {
        "conversation_id": sent.conversation_id,
        "message": sent.message,
        "messages": sent.messages,
        "decision": sent.recorded.decision,
    }
    return json_response(reply, headers={DECISION_ID: sent.recorded.id})


def _render_decision(recorded: "RecordedDecision") -> HttpResponse:
    return json_response(recorded.decision, headers={DECISION_ID: recorded.id})


def identify_person(caller: ApiCaller) -> str:
    """Whose tasks a caller's are: the tenant's, the key's, or those of whoever is at this machine. No two have one name."""
    if not caller.tenant:
        return caller.subject or LOCAL
    is_taken = caller.tenant == LOCAL or caller.tenant.startswith(("key:", "tenant:"))
    return f"tenant:{caller.tenant}" if is_taken else caller.tenant


def make_run_caller(caller: ApiCaller) -> Caller:
    """On whose behalf the agent acts. The scope `decisions` is for the five task tools, and for the yes that a deletion needs."""
    scopes = None if caller.tools is None else (APPROVE, *[f"{EXECUTE}:{name}" for name in sorted(ALLOWED_TOOLS)])
    return Caller(caller.subject or identify_person(caller), scopes)


def _parse_context(given: Decide, caller: ApiCaller) -> DecisionContext:
    """Raises `InvalidRequest` for what breaks a rule, `Fault` 403 for a user that the key does not speak for."""
    person = identify_person(caller)
    if given.user_id not in (None, person):
        raise Fault(403, "wrong_user", f"this API key speaks for `{person}`; leave user_id out", param="user_id")
    try:
        return convert({**asdict(given), "user_id": person}, DecisionContext)
    except ValidationError as error:
        # What is inside of a field is told by msgspec with its place; a rule of the context itself knows its field.
        message, _, place = str(error).partition(" - at `$")
        inner = place.strip("`.").partition("[")[0]
        field = inner or (error.__cause__.field if isinstance(error.__cause__, BrokenRule) else "body")
        raise InvalidRequest(message, param=field, code="invalid_value") from None
