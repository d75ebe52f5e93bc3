"""The sign-ins to MCP servers that a database holds, and the runs that wait for them."""

import asyncio
from logging import getLogger

from mainspring.core.errors import InvalidRequest, MainspringError, NotFound
from mainspring.core.events import RunStarted
from mainspring.features.approvals.pending import Approval, Approvals
from mainspring.ports import Store
from mainspring.storage.location import Location
from mainspring.tools.addresses import AddressGuard
from mainspring.tools.mcp.oauth_metadata import OAuthFailed, check_url
from mainspring.tools.mcp.sign_in import Account, SignIns
from mainspring.tools.mcp.sign_in_policy import SIGN_IN_POLICY
from mainspring.tools.mcp.token_cipher import load_cipher

log = getLogger(__name__)

PAGE = 100
WATCH_SECONDS = 2.0


def open_sign_ins(
    store: Store, database: Location | None, guard: AddressGuard, *, secret_key: str = "", public_url: str = ""
) -> SignIns:
    """Raises `InvalidRequest` if there is no key for what is kept."""
    if public_url:
        try:
            check_url(public_url, "`public_url`")
        except OAuthFailed as error:
            raise InvalidRequest(error.message, param="public_url") from None
    cipher = load_cipher(secret_key, None if database is None else database.file, is_shared=database is not None)
    return SignIns(store, cipher, guard=guard, public_url=public_url)


class WaitingRuns:
    """Continues the runs that wait for a sign-in which has been made."""

    def __init__(self, approvals: Approvals, store: Store, sign_ins: SignIns) -> None:
        self._approvals, self._store, self._sign_ins = approvals, store, sign_ins

    async def watch(self) -> None:
        """Continues runs after sign-ins that commands have made, or processes that died then, until it is cancelled."""
        while True:
            try:
                for account in await self._sign_ins.list_signed_in():
                    await self.continue_runs(account)
            except MainspringError as error:  # it is tried again; the server has other work, too
                log.warning("runs that wait for a sign-in cannot be continued: %s", error.message)
            await asyncio.sleep(WATCH_SECONDS)

    async def continue_runs(self, account: Account) -> int:
        """Returns how many runs go on. One that only its client can continue waits for that."""
        count, last, is_more = 0, None, True
        while is_more:
            page = await self._approvals.list(tenant=account.tenant, state="pending", limit=PAGE, after=last, newest_first=False)
            for approval in page.approvals:
                if await self._waits_for(approval, account):
                    count += await self._continue(approval, account)
            is_more = page.has_more and bool(page.approvals)
            last = page.approvals[-1].id if page.approvals else None
        await self._sign_ins.note_continued(account)
        return count

    async def _waits_for(self, approval: Approval, account: Account) -> bool:
        if (approval.policy, approval.server_label) != (SIGN_IN_POLICY, account.label):
            return False
        try:
            first = (await self._store.events(approval.response_id))[0].event
        except NotFound:
            return False  # it was deleted meanwhile
        return isinstance(first, RunStarted) and (first.spec.tenant, first.spec.user) == (account.tenant, account.user)

    async def _continue(self, approval: Approval, account: Account) -> bool:
        try:
            await self._approvals.answer(approval.id, approve=True, tenant=account.tenant)
        except InvalidRequest as error:
            # Somebody else was quicker, or the client has to answer.
            log.info("run %s does not go on by itself after a sign-in: %s", approval.response_id, error.message)
            return False
        return True
