"""`/v1/webhooks`: what other systems start by a message. `/v1/webhook_endpoints`: which systems are told of runs."""

from collections.abc import Sequence
from typing import Annotated, Final

from msgspec import Meta, Struct
from starlette.requests import Request
from starlette.responses import Response as HttpResponse

from mainspring.core.errors import InvalidRequest
from mainspring.core.items import Json
from mainspring.features.triggers.incoming import (
    MOST_BODY_BYTES,
    IncomingWebhook,
    ReceivedMessage,
    WebhookDefinition,
)
from mainspring.features.triggers.outbox import Delivery, EventType, WebhookEndpoint
from mainspring.features.triggers.schedule_routes import SCOPE
from mainspring.features.triggers.targets import check_maker
from mainspring.features.triggers.triggers import Triggers
from mainspring.http.auth import get_caller, get_tenant
from mainspring.http.bodies import parse_body, read_body, read_json_body
from mainspring.http.endpoints import PUBLIC, Endpoint, Parameter
from mainspring.http.faults import json_response
from mainspring.http.queries import CURSOR, Deleted, Page, cut_page, make_page, read_choice, read_cursor
from mainspring.tools.addresses import AddressGuard

_WEBHOOKS: Final = "/v1/webhooks"
_WEBHOOK: Final = f"{_WEBHOOKS}/{{webhook_id}}"
_ENDPOINTS: Final = "/v1/webhook_endpoints"
_ENDPOINT: Final = f"{_ENDPOINTS}/{{endpoint_id}}"
_STATE: Final = Parameter("state", {"enum": ["pending", "dead"], "default": "dead"})

DAY: Final = 86_400.0


class ShownWebhook(Struct, frozen=True):
    """A webhook. `path` is where messages are sent. `secret` signs them; it is in the answer that makes it, and never again."""

    id: str
    definition: WebhookDefinition
    path: str
    created_at: float
    key: str
    secret: str | None = None
    object: str = "webhook"


class EndpointRequest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of `POST /v1/webhook_endpoints`: where these events are sent."""

    url: Annotated[str, Meta(min_length=1, max_length=2048)]
    events: Annotated[tuple[EventType, ...], Meta(min_length=1, max_length=20)]
    description: Annotated[str, Meta(max_length=500)] = ""


class ShownEndpoint(Struct, frozen=True):
    """Where events are sent. `state` is `active` or `stopped`; then `stopped` says why. `secret` is as in `ShownWebhook`."""

    id: str
    url: str
    events: Sequence[EventType]
    description: str
    state: str
    stopped: str
    created_at: float
    key: str
    secret: str | None = None
    object: str = "webhook_endpoint"


class ShownDelivery(Struct, frozen=True):
    """An event that was not delivered yet. `at` is when it is tried next, or when it was given up, `error` why the last attempt
    failed."""

    id: str
    type: EventType
    data: Json
    state: str
    attempts: int
    created_at: float
    at: float
    error: str
    object: str = "webhook_delivery"


class RotateSecret(Struct, frozen=True, forbid_unknown_fields=True):
    """The body of `POST .../rotate`. The secret before is good for `seconds` more, a day if not given."""

    seconds: Annotated[float, Meta(ge=0, le=30 * DAY)] = DAY


class WebhookRoutes:
    """Every endpoint under `/v1/webhooks`."""

    def __init__(self, triggers: Triggers) -> None:
        self._triggers, self._webhooks = triggers, triggers.webhooks

    def endpoints(self) -> tuple[Endpoint, ...]:
        return (
            Endpoint("GET", _WEBHOOKS, self.list, SCOPE, Page, query=CURSOR, schemas=(ShownWebhook,)),
            Endpoint("POST", _WEBHOOKS, self.create, SCOPE, ShownWebhook, WebhookDefinition, errors=(422,)),
            Endpoint("GET", _WEBHOOK, self.retrieve, SCOPE, ShownWebhook),
            Endpoint("DELETE", _WEBHOOK, self.remove, SCOPE, Deleted),
            Endpoint("POST", f"{_WEBHOOK}/rotate", self.rotate, SCOPE, ShownWebhook, RotateSecret, errors=(409,)),
            Endpoint(
                "POST", f"{_WEBHOOK}/receive", self.receive, PUBLIC, ReceivedMessage, errors=(400, 401, 403, 409, 413, 422, 429)
            ),
        )

    async def list(self, request: Request) -> HttpResponse:
        """Lists the webhooks, newest first, without their secrets."""
        found, has_more = await self._webhooks.list_page(get_tenant(request), read_cursor(request))
        return json_response(make_page([show_webhook(each) for each in found], [each.id for each in found], has_more=has_more))

    async def create(self, request: Request) -> HttpResponse:
        """Creates a webhook. The answer has its secret, this once."""
        definition, caller = parse_body(await read_json_body(request), WebhookDefinition), get_caller(request)
        made = await self._webhooks.create(caller, definition)
        return json_response(show_webhook(made, made.secret))

    async def retrieve(self, request: Request) -> HttpResponse:
        """Retrieves a webhook, without its secret."""
        return json_response(show_webhook(await self._webhooks.get(get_tenant(request), _name(request))))

    async def remove(self, request: Request) -> HttpResponse:
        """Deletes a webhook. What it has started goes on."""
        gone = await self._webhooks.remove(get_tenant(request), _name(request))
        return json_response(Deleted(gone.id, "webhook"))

    async def rotate(self, request: Request) -> HttpResponse:
        """Gives a webhook a new secret. The answer has it, this once."""
        seconds = parse_body(await read_json_body(request), RotateSecret).seconds
        found = await self._webhooks.get(get_tenant(request), _name(request))
        await self._triggers.targets.check_use(found.definition.target, found.by, get_caller(request))
        changed = await self._webhooks.rotate(get_tenant(request), _name(request), seconds)
        return json_response(show_webhook(changed, changed.secret))

    async def receive(self, request: Request) -> HttpResponse:
        """Takes a message, signed as Standard Webhooks has it, and starts what the webhook is for."""
        tenant = await self._webhooks.find_owner(_name(request))
        head = await self._webhooks.open_message(request.headers)
        body = await read_body(request, MOST_BODY_BYTES)
        return json_response(await self._triggers.receive(tenant, _name(request), head, body))


class EndpointRoutes:
    """Every endpoint under `/v1/webhook_endpoints`."""

    def __init__(self, triggers: Triggers, guard: AddressGuard) -> None:
        self._endpoints, self._guard = triggers.endpoints, guard

    def endpoints(self) -> tuple[Endpoint, ...]:
        delivery = f"{_ENDPOINT}/deliveries"
        return (
            Endpoint("GET", _ENDPOINTS, self.list, SCOPE, Page, query=CURSOR, schemas=(ShownEndpoint,)),
            Endpoint("POST", _ENDPOINTS, self.create, SCOPE, ShownEndpoint, EndpointRequest),
            Endpoint("GET", _ENDPOINT, self.retrieve, SCOPE, ShownEndpoint),
            Endpoint("POST", _ENDPOINT, self.change, SCOPE, ShownEndpoint, EndpointRequest, errors=(409,)),
            Endpoint("DELETE", _ENDPOINT, self.remove, SCOPE, Deleted),
            Endpoint("POST", f"{_ENDPOINT}/rotate", self.rotate, SCOPE, ShownEndpoint, RotateSecret, errors=(409,)),
            Endpoint("GET", delivery, self.list_deliveries, SCOPE, Page, query=(*CURSOR, _STATE), schemas=(ShownDelivery,)),
            Endpoint("POST", f"{delivery}/{{delivery_id}}/redeliver", self.redeliver, SCOPE, ShownDelivery),
        )

    async def list(self, request: Request) -> HttpResponse:
        """Lists the endpoints that events are sent to, newest first, without their secrets."""
        found = await self._endpoints.list(get_tenant(request))
        return json_response(cut_page([show_endpoint(each) for each in found], [each.id for each in found], read_cursor(request)))

    async def create(self, request: Request) -> HttpResponse:
        """Creates an endpoint that is told of ended runs and waiting approvals. The answer has its secret, this once."""
        body, caller = parse_body(await read_json_body(request), EndpointRequest), get_caller(request)
        check_maker(caller)
        await self._check_url(body.url)
        made = await self._endpoints.create(caller.tenant, body.url, body.events, caller.subject, body.description)
        return json_response(show_endpoint(made, made.secret))

    async def retrieve(self, request: Request) -> HttpResponse:
        """Retrieves an endpoint, without its secret."""
        return json_response(show_endpoint(await self._endpoints.get(get_tenant(request), _endpoint(request))))

    async def change(self, request: Request) -> HttpResponse:
        """Changes where events are sent, and which."""
        body = parse_body(await read_json_body(request), EndpointRequest)
        await self._check_url(body.url)
        changed = await self._endpoints.change(get_tenant(request), _endpoint(request), body.url, body.events, body.description)
        return json_response(show_endpoint(changed))

    async def remove(self, request: Request) -> HttpResponse:
        """Deletes an endpoint, with the events that were not delivered to it."""
        gone = await self._endpoints.remove(get_tenant(request), _endpoint(request))
        return json_response(Deleted(gone.id, "webhook_endpoint"))

    async def rotate(self, request: Request) -> HttpResponse:
        """Gives an endpoint a new secret. The answer has it, this once."""
        seconds = parse_body(await read_json_body(request), RotateSecret).seconds
        changed = await self._endpoints.rotate(get_tenant(request), _endpoint(request), seconds)
        return json_response(show_endpoint(changed, changed.secret))

    async def list_deliveries(self, request: Request) -> HttpResponse:
        """Lists the events that could not be delivered, or with `state=pending` those that are on their way."""
        is_dead = read_choice(request, "state", {"dead": True, "pending": False}) is not False
        found = await self._endpoints.list_deliveries(get_tenant(request), _endpoint(request), dead=is_dead)
        shown = [show_delivery(each, is_dead=is_dead) for each in found]
        return json_response(cut_page(shown, [each.id for each in shown], read_cursor(request)))

    async def redeliver(self, request: Request) -> HttpResponse:
        """Tries an event again that could not be delivered."""
        again = await self._endpoints.redeliver(get_tenant(request), _endpoint(request), str(request.path_params["delivery_id"]))
        return json_response(show_delivery(again, is_dead=False))

    async def _check_url(self, url: str) -> None:
        """Raises `InvalidRequest` for an address that nothing may be sent to."""
        try:
            await self._guard.check(url)
        except InvalidRequest as error:
            raise InvalidRequest(error.message, param="url") from None


def show_endpoint(endpoint: WebhookEndpoint, secret: str | None = None) -> ShownEndpoint:
    return ShownEndpoint(
        endpoint.id,
        endpoint.url,
        endpoint.events,
        endpoint.description,
        "stopped" if endpoint.stopped else "active",
        endpoint.stopped,
        endpoint.created_at,
        endpoint.by,
        secret,
    )


def show_delivery(delivery: Delivery, *, is_dead: bool) -> ShownDelivery:
    state = "dead" if is_dead else "pending"
    return ShownDelivery(
        delivery.id, delivery.type, delivery.data, state, delivery.attempts, delivery.created_at, delivery.at, delivery.error
    )


def show_webhook(webhook: IncomingWebhook, secret: str | None = None) -> ShownWebhook:
    path = f"{_WEBHOOKS}/{webhook.id}/receive"
    return ShownWebhook(webhook.id, webhook.definition, path, webhook.created_at, webhook.by, secret)


def _name(request: Request) -> str:
    return str(request.path_params["webhook_id"])


def _endpoint(request: Request) -> str:
    return str(request.path_params["endpoint_id"])
