"""Webhooks in: another system starts an agent or a workflow with a signed message.

A message is taken once: its id has a receipt below the webhook, and the run that it starts has an id that follows from it. A
message that comes again finds its run; one that was under way when a process died starts it then. Receipts are kept for longer
than a message may be under way.
"""

from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import Annotated, Final

from msgspec import Meta, Struct
from msgspec.structs import replace

from mainspring.core.errors import CallerError, InvalidInputs, InvalidRequest, NotFound
from mainspring.core.ids import NewId
from mainspring.core.items import Json, decode, encode
from mainspring.core.json_values import parse_json
from mainspring.features.triggers.schedule import Name
from mainspring.features.triggers.signatures import WINDOW_SECONDS, SignedHead, check_signature, make_secret, read_head
from mainspring.features.triggers.targets import KeyLost, Target, TargetName, Targets, check_size
from mainspring.http.auth import ApiCaller
from mainspring.http.faults import Fault
from mainspring.http.queries import Cursor, read_document_page
from mainspring.ports import Document, DocumentStore

WEBHOOK: Final = "webhook"
OWNER: Final = "webhook_owner"
RECEIPT: Final = "webhook_receipt"
MOST_WEBHOOKS: Final = 1_000
# What the webhooks of a tenant may have together: all of them are read to count them.
MOST_BYTES: Final = 4 * 1024 * 1024
MOST_BODY_BYTES: Final = 1024 * 1024
RECEIPT_SECONDS: Final = 2 * WINDOW_SECONDS + 60
# How many old receipts a new one takes away.
SWEPT: Final = 20

_MISSING: Final = object()

Pointer = Annotated[str, Meta(max_length=512, pattern=r"^(/[^\n]*)?$", description="a JSON Pointer, as in /data/title")]


class WebhookDefinition(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of `POST /v1/webhooks`: what a message starts. `inputs` are always the same; `mapping` takes others from the body
    of the message, each by a JSON Pointer, empty for the whole of it."""

    name: Name
    agent: TargetName = ""
    workflow: TargetName = ""
    inputs: Json = {}
    mapping: dict[str, Pointer] = {}
    description: Annotated[str, Meta(max_length=500)] = ""

    @property
    def target(self) -> Target:
        return Target(self.agent, self.workflow)


class IncomingWebhook(Struct, frozen=True, omit_defaults=True):
    """A webhook as it is kept, with its secret. For some time after a change, the secret before is good as well."""

    id: str
    definition: WebhookDefinition
    secret: str
    created_at: float
    by: str = ""
    previous: str = ""
    previous_until: float = 0.0


class Receipt(Struct, frozen=True):
    """A message that was taken. `run_id` is empty while it is not known whether its run was started."""

    at: float
    digest: str
    run_id: str = ""


class ReceivedMessage(Struct, frozen=True):
    """What became of a message. `duplicate` says that it had come before."""

    run_id: str
    duplicate: bool
    object: str = "webhook.receipt"


class MessageReused(CallerError):
    """A message with the id of another one."""

    code = "webhook_id_reused"
    status = 409


class WebhookBook:
    """The webhooks of a store, as they are kept."""

    def __init__(self, store: DocumentStore) -> None:
        self._store = store

    async def list(self, tenant: str) -> Sequence[IncomingWebhook]:
        """Those of a tenant, by the time they were made; none that has no secret."""
        found = [decode(document.body, IncomingWebhook) for document in await self._store.documents(WEBHOOK, tenant=tenant)]
        return [webhook for webhook in found if webhook.secret]

    async def list_page(self, tenant: str, cursor: Cursor) -> tuple[Sequence[IncomingWebhook], bool]:
        """Some of a tenant's, and whether there are more. Raises `NotFound` for an unknown `after`."""
        page = await read_document_page(self._store, WEBHOOK, tenant, cursor)
        found = [decode(document.body, IncomingWebhook) for document in page.documents]
        return [webhook for webhook in found if webhook.secret], page.has_more

    async def get(self, tenant: str, id: str) -> IncomingWebhook:
        """Raises `NotFound`."""
        return decode((await self._find(tenant, id)).body, IncomingWebhook)

    async def rotate(self, tenant: str, id: str, seconds: float) -> IncomingWebhook:
        """Gives it a new secret; the one before is good for so many seconds. Raises `NotFound`, `Fault` 409."""
        found, until = await self._find(tenant, id), await self._store.read_clock() + seconds
        before = decode(found.body, IncomingWebhook)
        after = replace(
            before, secret=make_secret(), previous=before.secret if seconds else "", previous_until=until if seconds else 0.0
        )
        if not await self._store.swap(replace(found, body=encode(after)), found.body):
            raise Fault(409, "trigger_conflict", f"webhook `{id}` was changed by somebody else in this moment; try again")
        return after

    async def remove(self, tenant: str, id: str) -> IncomingWebhook:
        """Raises `NotFound`."""
        gone = await self.get(tenant, id)
        await self._store.remove(OWNER, id)
        await self._store.remove(WEBHOOK, id, tenant=tenant)
        return gone

    async def _find(self, tenant: str, id: str) -> Document:
        found = await self._store.get(WEBHOOK, id, tenant=tenant)
        if found is None or not decode(found.body, IncomingWebhook).secret:
            raise _not_found(id)
        return found


class Webhooks(WebhookBook):
    """The webhooks of a store, and what they start."""

    def __init__(self, store: DocumentStore, targets: Targets, new_id: NewId) -> None:
        super().__init__(store)
        self._targets, self._new_id = targets, new_id

    async def create(self, caller: ApiCaller, definition: WebhookDefinition) -> IncomingWebhook:
        """Raises `InvalidRequest`, `InvalidInputs` (422) for inputs that the target does not take, `Fault` 403."""
        await self._check(caller, definition)
        check_size(definition)
        if await self._store.measure_documents(WEBHOOK, tenant=caller.tenant) > MOST_BYTES:
            raise InvalidRequest(f"the webhooks of a tenant may have {MOST_BYTES} bytes; remove one", param="name")
        if len(await self.list(caller.tenant)) >= MOST_WEBHOOKS:
            raise InvalidRequest(f"a tenant has at most {MOST_WEBHOOKS} webhooks; remove one", param="name")
        now = await self._store.read_clock()
        made = IncomingWebhook(self._new_id("wh"), definition, make_secret(), now, caller.subject)
        await self._store.put(
            [Document(WEBHOOK, made.id, encode(made), caller.tenant), Document(OWNER, made.id, caller.tenant.encode())]
        )
        return made

    async def find_owner(self, id: str) -> str:
        """The tenant of a webhook. Raises `NotFound`."""
        if (owner := await self._store.get(OWNER, id)) is None:
            raise _not_found(id)
        return owner.body.decode()

    async def open_message(self, headers: Mapping[str, str]) -> SignedHead:
        """What the headers say. Raises `BadSignature` before the body is read."""
        return read_head(headers, await self._store.read_clock())

    async def receive(self, tenant: str, id: str, head: SignedHead, body: bytes) -> ReceivedMessage:
        """Starts what the message is for, once. Raises `BadSignature`, `MessageReused`, `NotFound`, `InvalidRequest`, `Fault`."""
        webhook, now = await self.get(tenant, id), await self._store.read_clock()
        previous = [webhook.previous] if webhook.previous and now < webhook.previous_until else []
        check_signature([webhook.secret, *previous], head, body)
        try:
            caller = await self._targets.find_caller(webhook.by)
        except KeyLost as lost:
            raise Fault(409, "trigger_stopped", str(lost)) from None
        name = sha256(head.id.encode()).hexdigest()[:32]
        receipt = Receipt(now, sha256(body).hexdigest())
        if not await self._store.put([Document(RECEIPT, name, encode(receipt), tenant, id)], if_absent=True):
            found = await self._store.get(RECEIPT, name, tenant=tenant, parent=id)
            if found is None:
                raise _not_found(id)
            known = decode(found.body, Receipt)
            if known.digest != receipt.digest:
                told = "a message with this webhook-id and another body came before; give each message an id of its own"
                raise MessageReused(told, param="webhook-id")
            if known.run_id:
                return ReceivedMessage(known.run_id, duplicate=True)
        try:
            inputs = take_inputs(webhook.definition, body)
            metadata = {"webhook": webhook.definition.name}
            run_id = await self._targets.start(webhook.definition.target, inputs, f"{id} {head.id}", caller, metadata)
        except (CallerError, Fault):
            await self._store.remove(RECEIPT, name, tenant=tenant, parent=id)
            raise
        await self._store.put([Document(RECEIPT, name, encode(replace(receipt, run_id=run_id)), tenant, id)])
        await self._sweep(tenant, id, now)
        return ReceivedMessage(run_id, duplicate=False)

    async def _check(self, caller: ApiCaller, definition: WebhookDefinition) -> None:
        try:
            await self._targets.check(definition.target, None, caller)
        except NotFound as error:
            param = "agent" if definition.agent else "workflow"
            raise InvalidRequest(error.message, param=param, code="not_found") from None
        if twice := sorted(definition.inputs.keys() & definition.mapping.keys()):
            raise InvalidInputs(f"`{twice[0]}` is in `inputs` and in `mapping`; leave one of them out", param="inputs")
        self._targets.check_inputs(definition.target, definition.inputs, sorted(definition.mapping))

    async def _sweep(self, tenant: str, id: str, now: float) -> None:
        for document in await self._store.documents(RECEIPT, tenant=tenant, parent=id, limit=SWEPT):
            if decode(document.body, Receipt).at < now - RECEIPT_SECONDS:
                await self._store.remove(RECEIPT, document.id, tenant=tenant, parent=id)


def take_inputs(definition: WebhookDefinition, body: bytes) -> Json:
    """The inputs that a message brings. What is not in it is left out. Raises `InvalidRequest` if it is no JSON."""
    if not definition.mapping:
        return definition.inputs
    try:
        sent = parse_json(body)
    except ValueError as error:
        raise InvalidRequest(f"the body is not valid JSON: {error}", param="body", code="invalid_json") from None
    found = {name: find_value(sent, pointer) for name, pointer in definition.mapping.items()}
    return {**definition.inputs, **{name: value for name, value in found.items() if value is not _MISSING}}


def find_value(sent: object, pointer: str) -> object:
    """What a JSON Pointer (RFC 6901) leads to; `_MISSING` if that is nothing."""
    for token in pointer.split("/")[1:]:
        step = token.replace("~1", "/").replace("~0", "~")
        if isinstance(sent, dict) and step in sent:
            sent = sent[step]
        elif isinstance(sent, list) and step.isascii() and step.isdigit() and int(step[:9]) < len(sent):
            sent = sent[int(step[:9])]
        else:
            return _MISSING
    return sent


def _not_found(id: str) -> NotFound:
    return NotFound(f"there is no webhook `{id[:80]}`", param="webhook_id")
