"""Signing in to MCP servers: each user for themselves, once, though processes die; and what attackers try."""

import asyncio
import os
import socket
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Literal
from urllib.parse import parse_qsl, urlsplit

import aiohttp
import pytest
from anyio import to_thread
from msgspec.structs import replace
from tests.kit.processes import Process, start
from tests.kit.waiting import PATIENCE, until
from tests.mcp.authority import Authority, granting, make_assertion
from tests.server.hosting import hosted
from tests.server.process import Script, Served, serving, working
from yarl import URL

from mainspring import Engine
from mainspring.app.server import server
from mainspring.core.errors import InvalidRequest, MainspringError, SignInNeeded
from mainspring.core.items import ApprovalRequest, ApprovalResponse, Json
from mainspring.features.approvals.pending import ApprovalPage
from mainspring.features.mcp.open_sign_ins import WaitingRuns
from mainspring.http.auth import Keys
from mainspring.providers.scripted import Scripted, call, say
from mainspring.storage.memory_runs import MemoryStore
from mainspring.storage.sqlite_runs import SqliteStore
from mainspring.tools.mcp.executor import McpTools
from mainspring.tools.mcp.oauth_metadata import Challenge, OAuthFailed, parse_challenge
from mainspring.tools.mcp.server_connection import McpConnection
from mainspring.tools.mcp.server_specs import OAuthOptions, ServerSpec
from mainspring.tools.mcp.sign_in import ACCOUNT, ATTEMPT, Account, SignIns
from mainspring.tools.mcp.sign_in_policy import SIGN_IN_POLICY
from mainspring.tools.mcp.token_cipher import TokenCipher, load_cipher

BACK = "http://127.0.0.1:9/callback"
ALICE, BOB = Account("docs", "", "alice"), Account("docs", "", "bob")
KEY = bytes(32)


@pytest.fixture
def authority() -> Iterator[Authority]:
    with granting() as found:
        yield found


@pytest.fixture
def spec(authority: Authority) -> ServerSpec:
    return ServerSpec("docs", url=f"{authority.url}/mcp", trusted=True, require_approval="never", oauth=OAuthOptions())


@pytest.fixture
def sign_ins() -> SignIns:
    return SignIns(MemoryStore(), TokenCipher(KEY))


@pytest.fixture
async def browser() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(cookie_jar=aiohttp.CookieJar(unsafe=True)) as session:
        yield session


async def agree(url: str, browser: aiohttp.ClientSession) -> dict[str, str]:
    """What the authorization server sends the browser back with."""
    async with browser.get(url, allow_redirects=False) as answer:
        return dict(parse_qsl(urlsplit(answer.headers["location"]).query))


async def sign_in(sign_ins: SignIns, spec: ServerSpec, account: Account, browser: aiohttp.ClientSession) -> None:
    assert await sign_ins.finish(await agree(await sign_ins.begin(spec, account, BACK), browser)) == account


async def ask_who(sign_ins: SignIns, spec: ServerSpec, account: Account) -> str:
    connection = McpConnection(spec, authorizer=sign_ins.authorize(spec, account))
    try:
        return str((await connection.call("whoami", {})).content[0]["text"])
    finally:
        await connection.close()


async def test_each_user_has_access_of_their_own(
    authority: Authority, spec: ServerSpec, sign_ins: SignIns, browser: aiohttp.ClientSession
) -> None:
    for account in (ALICE, Account("docs", "acme", "alice")):
        with pytest.raises(SignInNeeded):
            await ask_who(sign_ins, spec, account)
    await sign_in(sign_ins, spec, ALICE, browser)
    authority.person = "bob"
    await sign_in(sign_ins, spec, BOB, browser)
    assert await ask_who(sign_ins, spec, ALICE) == "whoami: alice"
    assert await ask_who(sign_ins, spec, BOB) == "whoami: bob"
    with pytest.raises(SignInNeeded):
        await ask_who(sign_ins, spec, Account("docs", "acme", "alice"))
    [asked, *_] = [seen.form for seen in authority.seen if seen.path == "/authorize"]
    assert (asked["resource"], asked["scope"], asked["code_challenge_method"]) == (spec.url, "read", "S256")


@pytest.mark.parametrize("end", ["", "/"])
@pytest.mark.parametrize("has_metadata", [True, False], ids=["metadata", "no metadata"])
async def test_an_older_server_grants_access_itself(
    has_metadata: bool, end: str, authority: Authority, spec: ServerSpec, sign_ins: SignIns, browser: aiohttp.ClientSession
) -> None:
    """As of the revision 2025-03-26, with metadata of its host or without any."""
    authority.has_resource_metadata, authority.has_issuer_metadata = False, has_metadata
    authority.issuer_metadata = {"issuer": authority.url + end}
    authority.iss = authority.url + end if has_metadata else authority.url
    await sign_in(sign_ins, spec, ALICE, browser)
    assert await ask_who(sign_ins, spec, ALICE) == "whoami: alice"
    [asked] = [seen.form for seen in authority.seen if seen.path == "/authorize"]
    assert (asked["resource"], asked["code_challenge_method"]) == (spec.url, "S256")


@pytest.mark.parametrize("options", [OAuthOptions(), OAuthOptions(client_id="ours", client_secret="secret of ours")])
async def test_a_server_that_names_nobody_for_a_while_is_told_nothing_and_costs_nobody_their_sign_in(
    options: OAuthOptions, authority: Authority, spec: ServerSpec, sign_ins: SignIns, browser: aiohttp.ClientSession
) -> None:
    spec = replace(spec, oauth=options)
    with granting() as elsewhere:
        authority.resource_metadata = {"authorization_servers": [elsewhere.url]}
        elsewhere.tokens = authority.tokens
        await sign_in(sign_ins, spec, ALICE, browser)
        authority.expire_tokens()
        authority.has_resource_metadata = False
        with pytest.raises(MainspringError):
            await ask_who(sign_ins, spec, ALICE)
        assert (authority.count("/token"), authority.count("/register")) == (0, 0)
        authority.has_resource_metadata = True
        assert await ask_who(sign_ins, spec, ALICE) == "whoami: alice"


async def test_a_server_that_has_nothing_to_do_with_oauth_is_told_apart(
    authority: Authority, spec: ServerSpec, sign_ins: SignIns
) -> None:
    authority.has_resource_metadata = False
    authority.issuer_metadata = {"registration_endpoint": f"{authority.url}/nothing"}
    with pytest.raises(OAuthFailed, match=r"registers no clients by itself; .* give that in `headers`"):
        await sign_ins.begin(spec, ALICE, BACK)


async def test_an_expired_token_is_refreshed_once_for_all_processes(
    authority: Authority, spec: ServerSpec, browser: aiohttp.ClientSession, tmp_path: Path
) -> None:
    stores = [SqliteStore(tmp_path / "kept.db") for _ in range(3)]
    for store in stores:
        await store.open()
    processes = [SignIns(store, load_cipher(None, tmp_path / "kept.db", is_shared=True)) for store in stores]
    await sign_in(processes[0], spec, ALICE, browser)
    authority.expire_tokens()
    said = await asyncio.gather(*[ask_who(process, spec, ALICE) for process in processes])
    assert (said, authority.count_grants("refresh_token")) == (["whoami: alice"] * 3, 1)
    kept = b"".join([file.read_bytes() for file in tmp_path.iterdir()])  # noqa: ASYNC240 (small files)
    assert not any(token.encode() in kept for token in (*authority.tokens, *authority.refreshers, "secret-of-client"))
    assert (tmp_path / "kept.db.key").stat().st_mode & 0o777 == 0o600
    for store in stores:
        await store.close()


@pytest.mark.parametrize("meanwhile", ["wanted", "cancelled", "signed out"])
async def test_what_a_refresh_token_was_exchanged_for_is_not_lost(
    authority: Authority, spec: ServerSpec, sign_ins: SignIns, browser: aiohttp.ClientSession, meanwhile: str
) -> None:
    await sign_in(sign_ins, spec, ALICE, browser)
    authority.expire_tokens()
    authority.may_refresh.clear()
    asking = asyncio.create_task(ask_who(sign_ins, spec, ALICE))
    await until(lambda: authority.count_grants("refresh_token") == 1)
    match meanwhile:
        case "wanted":
            await sign_ins.want(spec, ALICE, "write", "write")
        case "cancelled":
            asking.cancel()
        case _:
            await sign_ins.sign_out(spec, ALICE)
    authority.may_refresh.set()
    done = await asyncio.gather(asking, return_exceptions=True)
    if meanwhile == "signed out":
        assert isinstance(done[0], SignInNeeded)
        assert authority.refreshers == {}
        return
    await until(lambda: bool(authority.tokens))
    assert await ask_who(sign_ins, spec, ALICE) == "whoami: alice"
    assert authority.count_grants("refresh_token") == 1
    assert await sign_ins.is_signed_in(spec, ALICE, "write") == (meanwhile == "cancelled")


async def test_a_refresh_token_that_is_refused_means_a_new_sign_in(
    authority: Authority, spec: ServerSpec, sign_ins: SignIns, browser: aiohttp.ClientSession
) -> None:
    await sign_in(sign_ins, spec, ALICE, browser)
    authority.expire_tokens()
    authority.refreshers.clear()
    with pytest.raises(SignInNeeded):
        await ask_who(sign_ins, spec, ALICE)
    assert not await sign_ins.is_signed_in(spec, ALICE)


async def test_signing_out_revokes_and_forgets(
    authority: Authority, spec: ServerSpec, sign_ins: SignIns, browser: aiohttp.ClientSession
) -> None:
    await sign_in(sign_ins, spec, ALICE, browser)
    await sign_in(sign_ins, spec, BOB, browser)
    assert await sign_ins.sign_out(spec, ALICE)
    assert (authority.count("/revoke"), len(authority.refreshers)) == (1, 1)
    assert await sign_ins.sign_out_all(spec, "docs") == 1
    assert (authority.refreshers, await sign_ins.is_signed_in(spec, BOB)) == ({}, False)


async def test_a_state_counts_once(
    authority: Authority, spec: ServerSpec, browser: aiohttp.ClientSession, tmp_path: Path
) -> None:
    store = SqliteStore(tmp_path / "kept.db")
    await store.open()
    sign_ins = SignIns(store, TokenCipher(KEY))
    answer = await agree(await sign_ins.begin(spec, ALICE, BACK), browser)
    results = await asyncio.gather(*[sign_ins.finish(answer) for _ in range(5)], return_exceptions=True)
    assert results.count(ALICE) == 1
    assert [each.code for each in results if isinstance(each, InvalidRequest)] == ["sign_in_unknown"] * 4
    assert authority.count_grants("authorization_code") == 1
    with pytest.raises(InvalidRequest):
        await sign_ins.finish({"code": "stolen", "state": "guessed", "iss": authority.url})
    await store.close()


async def test_a_sign_in_is_for_the_account_that_began_it_and_ends_in_the_browser_that_did(
    authority: Authority, spec: ServerSpec, sign_ins: SignIns, browser: aiohttp.ClientSession
) -> None:
    """The callback knows no tenant: whoever calls it, the account is that of the state."""
    mallory = Account("docs", "mallory", "alice")
    answer = await agree(await sign_ins.begin(spec, ALICE, BACK, browser="alice's cookie"), browser)
    own = await agree(await sign_ins.begin(spec, mallory, BACK, browser="mallory's cookie"), browser)
    for cookie in ("", "mallory's cookie"):
        with pytest.raises(InvalidRequest) as raised:
            await sign_ins.finish(answer, browser=cookie)
        assert raised.value.code == "sign_in_foreign"
    assert await sign_ins.finish(own, browser="mallory's cookie") == mallory
    assert not await sign_ins.is_signed_in(spec, ALICE)
    # A code that was made for one sign-in is of no use in another: the proof does not fit.
    other = await agree(await sign_ins.begin(spec, BOB, BACK), browser)
    with pytest.raises(OAuthFailed) as failed:
        await sign_ins.finish({**other, "code": answer["code"]})
    assert failed.value.error == "invalid_grant"


@pytest.mark.parametrize("iss", ["https://evil.example", "", None])
async def test_an_answer_of_another_issuer_gets_no_code_exchanged(
    iss: str | None, authority: Authority, spec: ServerSpec, sign_ins: SignIns, browser: aiohttp.ClientSession
) -> None:
    answer = await agree(await sign_ins.begin(spec, ALICE, BACK), browser)
    del answer["iss"]
    with pytest.raises(OAuthFailed) as failed:
        await sign_ins.finish(answer if iss is None else {**answer, "iss": iss})
    assert (failed.value.error, authority.count("/token")) == ("issuer_mismatch", 0)


async def test_sign_ins_that_are_begun_again_use_the_same_client(
    authority: Authority, spec: ServerSpec, sign_ins: SignIns
) -> None:
    clients = {URL(await sign_ins.begin(spec, user, BACK)).query["client_id"] for user in (ALICE, ALICE, BOB)}
    assert (len(clients), authority.count("/register")) == (1, 1)
    await sign_ins.begin(spec, ALICE, f"{BACK}/other")
    assert authority.count("/register") == 2


@pytest.mark.parametrize(
    ("resource", "issuer"),
    [
        ({"resource": "https://bank.example/mcp"}, {}),
        ({"resource": "http://127.0.0.1:1/mcp"}, {}),
        ({"resource": "//127.0.0.1/mcp"}, {}),
        ({"resource": "http://[::1"}, {}),
        ({"authorization_servers": []}, {}),
        ({"authorization_servers": ["http://10.0.0.1"]}, {}),
        ({}, {"issuer": "https://evil.example"}),
        ({}, {"token_endpoint": "http://evil.example/token"}),
        ({}, {"code_challenge_methods_supported": ["plain"]}),
        ({}, {"registration_endpoint": None}),
    ],
)
async def test_metadata_that_would_lead_astray_is_refused(
    resource: Json, issuer: Json, authority: Authority, spec: ServerSpec, sign_ins: SignIns
) -> None:
    authority.resource_metadata, authority.issuer_metadata = resource, issuer
    with pytest.raises(OAuthFailed):
        await sign_ins.begin(spec, ALICE, BACK)
    assert authority.count("/register") == 0


@pytest.mark.parametrize(
    "target", ["http://10.0.0.1/x", "https://10.0.0.1/x", "https://169.254.169.254/latest", "file:///etc/passwd"]
)
async def test_metadata_is_not_fetched_from_private_addresses(
    target: str, authority: Authority, spec: ServerSpec, sign_ins: SignIns
) -> None:
    authority.redirect_metadata = target
    with pytest.raises((OAuthFailed, InvalidRequest)):
        await sign_ins.begin(spec, ALICE, BACK)


@pytest.mark.parametrize("path", ["/.well-known/oauth-authorization-server", "/register", "/token"])
async def test_an_answer_that_never_ends_ends_the_sign_in(
    path: str, authority: Authority, spec: ServerSpec, browser: aiohttp.ClientSession
) -> None:
    sign_ins = SignIns(MemoryStore(), TokenCipher(KEY), longest_exchange=1.0)
    authority.drips = path
    async with asyncio.timeout(PATIENCE):
        with pytest.raises(OAuthFailed):
            await sign_in(sign_ins, spec, ALICE, browser)


async def test_a_token_goes_to_no_other_server(
    authority: Authority, spec: ServerSpec, sign_ins: SignIns, browser: aiohttp.ClientSession
) -> None:
    await sign_in(sign_ins, spec, ALICE, browser)
    with granting() as other:
        moved = ServerSpec("docs", url=f"{other.url}/mcp", trusted=True, oauth=OAuthOptions())
        with pytest.raises(SignInNeeded):
            await ask_who(sign_ins, moved, ALICE)
        assert not [seen for seen in other.seen if seen.credentials]
        # The server names another authorization server now: a refresh token is none of its business.
        authority.resource_metadata = {"authorization_servers": [other.url]}
        authority.expire_tokens()
        with pytest.raises(SignInNeeded):
            await ask_who(sign_ins, spec, ALICE)
        assert other.count("/token") == 0


@pytest.mark.parametrize("grant", ["client_credentials", "authorization_code"])
async def test_a_client_that_was_registered_by_hand_belongs_to_one_issuer(
    grant: Literal["client_credentials", "authorization_code"],
    authority: Authority,
    spec: ServerSpec,
    browser: aiohttp.ClientSession,
    tmp_path: Path,
) -> None:
    """A server that is taken over, and names an authorization server of the attacker's, is not told the secret."""
    own = OAuthOptions(grant=grant, client_id="ours", client_secret="secret of ours")
    machine, account, store = replace(spec, oauth=own), Account("docs", "", "alice"), SqliteStore(tmp_path / "kept.db")
    await store.open()

    async def use(spec: ServerSpec, account: Account) -> str:
        sign_ins = SignIns(store, TokenCipher(KEY))
        if grant == "authorization_code":
            await sign_in(sign_ins, spec, account, browser)
        return await ask_who(sign_ins, spec, account)

    assert await use(machine, account) == "whoami: alice"
    with granting() as evil:
        authority.expire_tokens()
        authority.resource_metadata = {"authorization_servers": [evil.url]}
        for each in (account, Account("docs", "", "bob")):
            with pytest.raises(OAuthFailed) as failed:
                await use(machine, each)
            assert failed.value.error == "issuer_mismatch"
        assert evil.seen == []
        # The operator says where the client is registered now.
        moved = replace(machine, oauth=replace(own, issuer=evil.url))
        authority.resource_metadata = {"authorization_servers": [authority.url, evil.url]}
        with pytest.raises(MainspringError):  # its tokens are not the server's, but it is asked for them
            await use(moved, Account("docs", "", "carol"))
        assert evil.count("/token") > 0
    await store.close()


async def test_a_token_that_is_bound_to_a_key_is_sent_with_a_proof_of_it_by_every_process(
    authority: Authority, spec: ServerSpec, browser: aiohttp.ClientSession
) -> None:
    authority.wants_proof = True
    store = MemoryStore()
    await sign_in(SignIns(store, TokenCipher(KEY)), spec, ALICE, browser)
    assert await ask_who(SignIns(store, TokenCipher(KEY)), spec, ALICE) == "whoami: alice"
    authority.expire_tokens()
    assert await ask_who(SignIns(store, TokenCipher(KEY)), spec, ALICE) == "whoami: alice"
    assert authority.count_grants("refresh_token") == 1
    assert {granted.key for granted in authority.tokens.values()} == {granted.key for granted in authority.refreshers.values()}
    machine = replace(spec, oauth=OAuthOptions(grant="client_credentials", client_id="ours", client_secret="secret of ours"))
    assert await ask_who(SignIns(store, TokenCipher(KEY)), machine, Account("docs")) == "whoami: alice"


@pytest.mark.parametrize("flaw", ["not bound", "not offered"])
async def test_a_token_that_should_be_bound_to_a_key_and_is_not_is_not_taken(
    flaw: str, authority: Authority, spec: ServerSpec, sign_ins: SignIns, browser: aiohttp.ClientSession
) -> None:
    authority.resource_metadata = {"dpop_bound_access_tokens_required": True}
    authority.binds = flaw != "not bound"
    authority.issuer_metadata = {"dpop_signing_alg_values_supported": ["RS256"]} if flaw == "not offered" else {}
    with pytest.raises(OAuthFailed, match="bound to"):
        await sign_in(sign_ins, spec, ALICE, browser)
    assert not await sign_ins.is_signed_in(spec, ALICE)


async def test_a_server_that_wants_bound_tokens_from_now_on_is_signed_in_to_anew(
    authority: Authority, spec: ServerSpec, sign_ins: SignIns, browser: aiohttp.ClientSession
) -> None:
    await sign_in(sign_ins, spec, ALICE, browser)
    assert await ask_who(sign_ins, spec, ALICE) == "whoami: alice"
    authority.wants_proof = True
    with pytest.raises(SignInNeeded):
        await ask_who(sign_ins, spec, ALICE)
    await sign_in(sign_ins, spec, ALICE, browser)
    assert await ask_who(sign_ins, spec, ALICE) == "whoami: alice"


async def test_a_workload_has_access_by_what_its_platform_says_of_it(
    authority: Authority, spec: ServerSpec, sign_ins: SignIns, tmp_path: Path
) -> None:
    file = tmp_path / "token"
    file.write_text(make_assertion(sub="reporter", aud=[authority.url]) + "\n")
    workload = replace(spec, oauth=OAuthOptions(grant="jwt_bearer", assertion_file=str(file)))
    assert await ask_who(sign_ins, workload, Account("docs")) == "whoami: reporter"
    # The platform has renewed it meanwhile, and the token that was got with the first is over.
    file.write_text(make_assertion(sub="reporter, again", aud=f"{authority.url}/token"))
    authority.expire_tokens()
    authority.refreshers.clear()
    assert await ask_who(sign_ins, workload, Account("docs")) == "whoami: reporter, again"


@pytest.mark.parametrize("client", ["crew", "somebody else"])
async def test_what_the_company_s_identity_provider_gives_for_a_token_is_what_is_told(
    client: str, authority: Authority, spec: ServerSpec, sign_ins: SignIns, tmp_path: Path
) -> None:
    file = tmp_path / "token"
    file.write_text(make_assertion(sub="ann", aud="crew"))
    with granting() as company:
        options = OAuthOptions(
            grant="jwt_bearer", assertion_file=str(file), exchange_url=f"{company.url}/exchange", exchange_client_id=client
        )
        asked = ask_who(sign_ins, replace(spec, oauth=options), Account("docs"))
        if client == "crew":
            assert await asked == "whoami: ann of the company"
        else:
            with pytest.raises(OAuthFailed, match=r"refused to exchange .*: invalid_grant"):
                await asked
        [seen] = company.seen
    assert (seen.form["audience"], seen.form["resource"]) == (authority.url, spec.url)
    told = [each.form["assertion"] for each in authority.seen if each.path == "/token"]
    assert (len(told), file.read_text() in told) == (int(client == "crew"), False)


@pytest.mark.parametrize("said", ["for another", "nothing", "no token"])
async def test_what_a_platform_says_is_told_to_nobody_but_whom_it_is_for(
    said: str, authority: Authority, spec: ServerSpec, sign_ins: SignIns, tmp_path: Path
) -> None:
    file = tmp_path / "token"
    options = OAuthOptions(grant="jwt_bearer", assertion_file=str(file))
    match said:
        case "for another":
            file.write_text(make_assertion(sub="reporter", aud="https://elsewhere.example"))
        case "no token":
            file.write_text("secret")
        case _:
            pass
    with pytest.raises((OAuthFailed, InvalidRequest), match="assertion_file") as refused:
        await ask_who(sign_ins, replace(spec, oauth=options), Account("docs"))
    assert (authority.count("/token"), "secret" in str(refused.value)) == (0, False)
    if said == "for another":  # the operator says who takes it all the same
        named = replace(spec, oauth=replace(options, issuer=authority.url))
        assert await ask_who(sign_ins, named, Account("docs")) == "whoami: reporter"


@pytest.mark.parametrize(
    "oauth",
    [
        OAuthOptions(grant="jwt_bearer"),
        OAuthOptions(assertion_file="/run/token"),
        OAuthOptions(exchange_url="https://idp.example/token"),
        OAuthOptions(grant="jwt_bearer", assertion_file="/run/token", exchange_client_id="crew"),
    ],
)
def test_a_file_of_the_platform_goes_with_its_grant(oauth: OAuthOptions) -> None:
    with pytest.raises(ValueError, match="`assertion_file`"):
        ServerSpec("docs", url="https://docs.example/mcp", trusted=True, oauth=oauth)


async def test_what_is_kept_cannot_be_moved_to_another_account(
    authority: Authority, spec: ServerSpec, browser: aiohttp.ClientSession
) -> None:
    store = MemoryStore()
    sign_ins = SignIns(store, TokenCipher(KEY))
    await sign_in(sign_ins, spec, ALICE, browser)
    kept = await store.get(ACCOUNT, ALICE.id)
    assert kept is not None
    await store.put([type(kept)(ACCOUNT, BOB.id, kept.body)])
    assert not await sign_ins.is_signed_in(spec, BOB)
    assert not await SignIns(store, TokenCipher(os.urandom(32))).is_signed_in(spec, ALICE)


async def test_a_tool_that_needs_more_waits_for_the_user_to_permit_it(
    authority: Authority, spec: ServerSpec, browser: aiohttp.ClientSession
) -> None:
    store = MemoryStore()
    sign_ins = SignIns(store, TokenCipher(KEY))
    mcp = McpTools([spec], sign_ins=sign_ins)
    account = Account("docs")
    async with Engine(Scripted(call("write"), call("write"), say("Written.")), store=store, mcp=mcp) as engine:
        await sign_in(sign_ins, spec, account, browser)
        first = await engine.run("Write.")
        [asked] = [item for item in first.output if isinstance(item, ApprovalRequest)]
        assert (first.reason, asked.name) == ("approval_needed", "write")
        await sign_in(sign_ins, spec, account, browser)
        done = await engine.run((ApprovalResponse(asked.id, True),), previous=first.spec.id)
    assert done.text == "Written."
    scopes = [seen.form["scope"] for seen in authority.seen if seen.path == "/authorize"]
    assert scopes == ["read", "read write"]


async def test_a_server_that_wants_what_it_was_granted_asks_nobody_again(
    authority: Authority, spec: ServerSpec, browser: aiohttp.ClientSession
) -> None:
    store = MemoryStore()
    sign_ins = SignIns(store, TokenCipher(KEY))
    authority.is_insatiable = True
    script = Scripted(call("write"), call("write"), call("write"), say("It does not work."))
    async with Engine(script, store=store, mcp=McpTools([spec], sign_ins=sign_ins)) as engine:
        await sign_in(sign_ins, spec, Account("docs"), browser)
        first = await engine.run("Write.")
        [asked] = [item for item in first.output if isinstance(item, ApprovalRequest)]
        await sign_in(sign_ins, spec, Account("docs"), browser)
        done = await engine.run((ApprovalResponse(asked.id, True),), previous=first.spec.id)
    assert (done.text, authority.count("/authorize")) == ("It does not work.", 2)
    assert "HTTP 403" in str(done.output)


async def test_whoever_approves_a_call_does_not_lend_it_their_own_sign_in(
    authority: Authority, spec: ServerSpec, sign_ins: SignIns, browser: aiohttp.ClientSession
) -> None:
    store = MemoryStore()
    keys = Keys(store)
    asker, approver = [await keys.create(scopes=("*",)) for _ in range(2)]
    for person, key in (("alice", asker), ("bob", approver)):
        authority.person = person
        await sign_in(sign_ins, spec, Account("docs", "", (await keys.caller(f"Bearer {key}")).subject), browser)
    mcp = McpTools([replace(spec, require_approval="always")], sign_ins=sign_ins)
    script = Scripted(call("whoami"), call("whoami"), say("Twice."))
    async with hosted(server(Engine(script, store=store, mcp=mcp), keys=keys)) as url:
        first = await post(browser, url, "/responses", key=asker, input="Who am I?")
        for _ in range(2):  # what goes on may be asked about again
            [asked] = [item for item in first["output"] if item["type"] == "mcp_approval_request"]
            first = await post(browser, url, f"/approvals/{asked['id']}", key=approver, approve=True, background=False)
            assert "whoami: alice" in str(first["output"])
    assert "bob" not in str(script.requests)


async def test_whoever_has_not_signed_in_is_asked_and_who_only_says_yes_is_not_believed(
    spec: ServerSpec, browser: aiohttp.ClientSession
) -> None:
    store = MemoryStore()
    sign_ins = SignIns(store, TokenCipher(KEY))
    script = Scripted(call("sign_in_to_docs"), say("No luck."))
    async with Engine(script, store=store, mcp=McpTools([spec], sign_ins=sign_ins)) as engine:
        first = await engine.run("Who am I?")
        [asked] = [item for item in first.output if isinstance(item, ApprovalRequest)]
        done = await engine.run((ApprovalResponse(asked.id, True),), previous=first.spec.id)
    assert done.text == "No luck."
    assert "Nobody has signed in" in str(script.requests[-1])


def test_a_challenge_is_read_in_one_pass() -> None:
    assert parse_challenge('DPoP algs="ES256", error="use_dpop_nonce"') == Challenge(error="use_dpop_nonce", wants_proof=True)
    assert not parse_challenge("DPoP algs=ES256, Bearer").wants_proof
    header = (
        'Basic realm="a, Bearer scope=\\"x\\"", Bearer error="insufficient_scope", scope="a b", resource_metadata="https://x/y"'
    )
    assert parse_challenge(header) == Challenge("https://x/y", "a b", "insufficient_scope")
    assert parse_challenge("Bearer scope=one") == Challenge(scope="one")
    for hostile in ("", '"', "Bearer", "=,=", 'Bearer scope="', "Bearer " + 'a="' * 100_000, "," * 1_000_000, "\\" * 100_000):
        assert parse_challenge(hostile).resource_metadata == ""


@pytest.mark.slow
@pytest.mark.parametrize("each_database", ["postgres"], indirect=True)
async def test_a_run_waits_for_a_sign_in_and_goes_on_though_servers_are_killed(
    authority: Authority, each_database: None, tmp_path: Path, browser: aiohttp.ClientSession
) -> None:
    """Each step is at another process on the same database, and the token is used by a worker."""
    settings = f'secret_key = "for all of these processes"\n[mcp.docs]\nurl = "{authority.url}/mcp"\n[mcp.docs.oauth]\n'
    (tmp_path / "mainspring.toml").write_text(settings)
    turns: Script = [{"calls": [{"name": "sign_in_to_docs"}]}, {"calls": [{"name": "whoami"}]}, {"say": "You are alice."}]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])

    with serving(tmp_path, turns, "--port", port) as first:
        waiting = await post(browser, first, "/responses", input="Who am I?", user="alice")
        [asked] = [item for item in waiting["output"] if item["type"] == "mcp_approval_request"]
        assert asked["server_label"] == "docs"
        link = (await post(browser, first, "/mcp_servers/docs/sign_in", user="alice"))["url"]
        first.kill()
    with serving(tmp_path, turns, "--port", port) as second:
        [approval] = (await get(browser, second, "/approvals?state=pending"))["data"]
        assert urlsplit(link).path in approval["question"]
        assert (await post(browser, second, "/mcp_servers/docs/sign_in", user="alice"))["url"] == link
        assert (await post(browser, second, "/mcp_servers/docs/sign_in", user="bob"))["url"] != link
        async with browser.post(link, headers={"origin": "https://evil.example"}) as refused:
            assert refused.status == 403
        origin = f"http://127.0.0.1:{port}"
        async with browser.get(link) as page:
            assert "alice" in await page.text()
        async with browser.post(link, headers={"origin": origin}, allow_redirects=False) as began:
            assert began.status == 303
        other = (await post(browser, second, "/mcp_servers/docs/sign_in", user="bob"))["url"]
        async with browser.post(other, headers={"origin": origin}, allow_redirects=False) as beside:
            assert beside.status == 303  # in another tab; the first goes on
        second.kill()
    with serving(tmp_path, turns, "--port", port, "--role", "gateway") as third, working(tmp_path, turns):
        async with browser.get(began.headers["location"]) as page:  # the authority sends the browser back to us
            assert (page.status, page.url.path) == (200, "/sign-in/callback")
        done = await wait_for_answer(browser, third, approval["id"])
        assert "You are alice." in str(done["output"])
        assert "whoami: alice" in str(done["output"])
        assert (await get(browser, third, "/approvals?state=pending"))["data"] == []
        async with browser.post(link, headers={"origin": origin}, allow_redirects=False) as late:
            assert late.status == 200  # signed in: the link begins nothing any more
    assert (authority.count("/authorize"), authority.count_grants("authorization_code")) == (1, 1)


async def get(browser: aiohttp.ClientSession, served: Served, path: str) -> Json:
    async with browser.get(served.url + path) as answer:
        assert answer.status == 200, await answer.text()
        found: Json = await answer.json()
        return found


async def post(browser: aiohttp.ClientSession, served: Served | str, path: str, key: str = "", **body: object) -> Json:
    headers = {"authorization": f"Bearer {key}"} if key else {}
    url = served if isinstance(served, str) else served.url
    async with browser.post(url + path, json=body, headers=headers) as answer:
        assert answer.status == 200, await answer.text()
        found: Json = await answer.json()
        return found


async def wait_for_answer(browser: aiohttp.ClientSession, served: Served, approval_id: str) -> Json:
    async with asyncio.timeout(PATIENCE):
        while (id := (await get(browser, served, f"/approvals/{approval_id}"))["continued_by"]) is None:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        while (found := await get(browser, served, f"/responses/{id}"))["status"] in ("queued", "in_progress"):  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    return found


@pytest.mark.slow
async def test_a_command_signs_in_and_removing_the_server_revokes(
    authority: Authority, tmp_path: Path, browser: aiohttp.ClientSession
) -> None:
    def command(*arguments: str) -> Process:
        return start([sys.executable, "-m", "mainspring", "mcp", *arguments], cwd=tmp_path)

    async def finish(process: Process) -> tuple[int, str]:
        out, err = await to_thread.run_sync(process.communicate)
        return process.wait(), out + err

    assert (await finish(command("add", "docs", "--url", f"{authority.url}/mcp", "--oauth")))[0] == 0
    assert "sign-in needed: mainspring mcp sign-in docs" in (await finish(command("list")))[1]
    assert not [seen for seen in authority.seen if seen.path == "/mcp"]  # nobody is not asked about
    signing_in = command("sign-in", "docs", "--no-browser")
    assert signing_in.stdout is not None
    link = await to_thread.run_sync(signing_in.stdout.readline)
    back = dict(parse_qsl(urlsplit(link.strip()).query))["redirect_uri"]
    async with browser.get(f"{back}?state=guessed&error=access_denied") as guessed:
        assert guessed.status == 404  # any page can send the browser there
    async with browser.get(link.strip()) as page:
        assert page.status == 200
    assert (await finish(signing_in))[0] == 0
    assert "ready, 2 tools" in (await finish(command("list")))[1]
    code, said = await finish(command("remove", "docs"))
    assert (code, authority.refreshers) == (0, {}), said


async def test_a_run_that_was_deleted_meanwhile_keeps_no_other_from_going_on(sign_ins: SignIns) -> None:
    class Deleted:
        async def list(self, **_: object) -> ApprovalPage:
            fields = {"policy": SIGN_IN_POLICY, "server_label": "docs", "response_id": "resp_gone", "id": "mcpr_gone"}
            return SimpleNamespace(approvals=[SimpleNamespace(**fields)], has_more=False)  # type: ignore[return-value]

    waiting = WaitingRuns(Deleted(), MemoryStore(), sign_ins)  # type: ignore[arg-type]
    assert await waiting.continue_runs(ALICE) == 0


def test_a_key_file_can_be_brought_along_as_a_secret(tmp_path: Path) -> None:
    sealed = load_cipher(None, tmp_path / "old.db", is_shared=True).seal(b"token", "here")
    digits = (tmp_path / "old.db.key").read_bytes().hex()
    assert load_cipher(f"key:{digits}", None, is_shared=True).open(sealed, "here") == b"token"
    for wrong in (digits[2:], "no digits"):
        with pytest.raises(InvalidRequest):
            load_cipher(f"key:{wrong}", None, is_shared=True)


async def test_attempts_that_nobody_finishes_do_not_pile_up(spec: ServerSpec) -> None:
    store, now = MemoryStore(), [0.0]
    sign_ins = SignIns(store, TokenCipher(KEY), clock=lambda: now[0])
    for _ in range(5):
        now[0] += 400
        await sign_ins.begin(spec, ALICE, BACK)
    assert len(await store.documents(ATTEMPT)) == 2


def test_the_key_to_what_is_kept_is_never_missing_open_or_weak(tmp_path: Path) -> None:
    database = tmp_path / "kept.db"
    sealed = load_cipher(None, database, is_shared=True).seal(b"token", "place")
    assert load_cipher(None, database, is_shared=True).open(sealed, "place") == b"token"
    assert load_cipher(None, database, is_shared=True).open(sealed, "elsewhere") is None
    assert load_cipher("0123456789abcdef", database, is_shared=True).open(sealed, "place") is None
    (tmp_path / "kept.db.key").chmod(0o644)
    for secret, file in ((None, database), ("short", database), (None, None)):
        with pytest.raises(InvalidRequest):
            load_cipher(secret, file, is_shared=True)


async def test_a_sign_in_that_all_share_is_the_operators(
    authority: Authority, spec: ServerSpec, sign_ins: SignIns, browser: aiohttp.ClientSession
) -> None:
    """A model that works for somebody is not offered to sign in for everybody."""
    shared = replace(spec, oauth=OAuthOptions(shared=True))
    for is_signed_in in (False, True):
        tools = McpTools([shared], sign_ins=sign_ins)
        try:
            found = await tools.collect_tools(principal="acme", user="alice")
        finally:
            await tools.close()
        assert sorted(found.routes) == (["whoami", "write"] if is_signed_in else [])
        assert ("mainspring mcp sign-in docs" in str(found.offers[0].error)) is not is_signed_in
        await sign_in(sign_ins, shared, Account("docs"), browser)
