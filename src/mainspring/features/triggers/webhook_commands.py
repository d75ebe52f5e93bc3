"""`mainspring webhooks`: those that start runs, and the endpoints that are told of runs. They are made over HTTP."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated

import typer
from msgspec import Struct

from mainspring.cli import options
from mainspring.cli.database import open_database
from mainspring.cli.output import format_moment, say, write_lines, write_table
from mainspring.core.errors import NotFound
from mainspring.engine.engine import Engine
from mainspring.features.triggers.incoming import IncomingWebhook, WebhookBook
from mainspring.features.triggers.outbox import Outbox, WebhookEndpoint
from mainspring.features.triggers.webhook_endpoints import Endpoints
from mainspring.features.triggers.webhook_routes import show_delivery, show_endpoint, show_webhook
from mainspring.storage.location import Location

app = typer.Typer()

Id = Annotated[str, typer.Argument(metavar="ID", help="Webhook or endpoint, as `list` names it.")]
EndpointId = Annotated[str, typer.Argument(metavar="ENDPOINT", help="Endpoint, as `list` names it.")]


class _Books(Struct, frozen=True):
    incoming: WebhookBook
    endpoints: Endpoints

    async def find(self, tenant: str, id: str) -> IncomingWebhook | WebhookEndpoint:
        try:
            return await self.incoming.get(tenant, id)
        except NotFound:
            pass
        try:
            return await self.endpoints.get(tenant, id)
        except NotFound:
            raise NotFound(f"there is no webhook or endpoint `{id}`; see `mainspring webhooks list`") from None


@app.command("list")
async def list_webhooks(database: options.Database, tenant: options.Tenant = "", json: options.AsJson = False) -> None:
    """Lists webhooks that start runs (in), and endpoints that are told of them (out), without their secrets."""
    async with _open(database) as books:
        incoming, endpoints = await books.incoming.list(tenant), await books.endpoints.list(tenant)
    if json:
        write_lines([*[show_webhook(each) for each in incoming], *[show_endpoint(each) for each in endpoints]])
    else:
        rows = [(each.id, "in", "active", each.definition.name) for each in incoming]
        rows += [(each.id, "out", show_endpoint(each).state, each.url[:38]) for each in endpoints]
        none = "there are no webhooks; make them with POST /v1/webhooks and POST /v1/webhook_endpoints"
        write_table([("id", "way", "state", "what"), *rows], none=none)


@app.command()
async def show(id: Id, database: options.Database, tenant: options.Tenant = "", json: options.AsJson = False) -> None:
    """Shows a webhook or an endpoint, without its secret."""
    async with _open(database) as books:
        found = await books.find(tenant, id)
    if json:
        write_lines([show_webhook(found) if isinstance(found, IncomingWebhook) else show_endpoint(found)])
    elif isinstance(found, IncomingWebhook):
        definition = found.definition
        what = f"agent {definition.agent}" if definition.agent else f"workflow {definition.workflow}"
        write_table([("webhook", found.id), ("name", definition.name), ("starts", what), ("path", show_webhook(found).path)])
    else:
        told = found.stopped or "active"
        write_table([("endpoint", found.id), ("url", found.url), ("events", ", ".join(found.events)), ("state", told)])


@app.command()
async def rotate(id: Id, database: options.Database, tenant: options.Tenant = "", grace: options.Expires = None) -> None:
    """
    Gives a webhook or an endpoint a new secret, and prints it, this once.

        mainspring webhooks rotate wh_123 --grace 1d
    """
    async with _open(database) as books:
        found, seconds = await books.find(tenant, id), grace or 0.0
        book = books.incoming if isinstance(found, IncomingWebhook) else books.endpoints
        print((await book.rotate(tenant, id, seconds)).secret)
    say("store this secret now; it cannot be shown again")


@app.command()
async def remove(id: Id, database: options.Database, tenant: options.Tenant = "") -> None:
    """Removes a webhook, or an endpoint with what was not delivered to it."""
    async with _open(database) as books:
        found = await books.find(tenant, id)
        await (books.incoming if isinstance(found, IncomingWebhook) else books.endpoints).remove(tenant, id)
    print(f"{id} is removed")


@app.command()
async def deliveries(
    endpoint: EndpointId,
    database: options.Database,
    tenant: options.Tenant = "",
    pending: Annotated[bool, typer.Option("--pending", help="Those on their way, instead of those given up.")] = False,
    json: options.AsJson = False,
) -> None:
    """Lists the events that could not be delivered to an endpoint."""
    async with _open(database) as books:
        found = await books.endpoints.list_deliveries(tenant, endpoint, dead=not pending)
    if json:
        write_lines([show_delivery(each, is_dead=not pending) for each in found])
    else:
        rows = [(each.id, each.type, str(each.attempts), format_moment(each.at)) for each in found]
        none = "all events were delivered" if pending else "no event was given up"
        write_table([("delivery", "event", "tries", "next" if pending else "given up"), *rows], none=none)


@app.command()
async def redeliver(
    endpoint: EndpointId,
    delivery: Annotated[str, typer.Argument(metavar="DELIVERY", help="Event, as `deliveries` names it.")],
    database: options.Database,
    tenant: options.Tenant = "",
) -> None:
    """Has a server on this database try an event again that could not be delivered."""
    async with _open(database) as books:
        await books.endpoints.redeliver(tenant, endpoint, delivery)
    print(f"{delivery} is delivered by the next server that looks")


@asynccontextmanager
async def _open(database: Location) -> AsyncIterator[_Books]:
    engine: Engine
    async with open_database(database) as engine:
        yield _Books(WebhookBook(engine.store), Endpoints(engine.store, Outbox(engine.store), engine.new_id))
