"""The client under test of the protocol's conformance suite: our connection, doing what each scenario asks for.

    conformance_client.py URL

The suite names the scenario in the environment, and for some the calls to make. Otherwise every listed tool is called once, with
arguments its schema allows; questions are answered with their defaults.
"""

import asyncio
import json
import os
import sys
from collections.abc import Awaitable, Callable
from tempfile import NamedTemporaryFile
from typing import TypeVar
from urllib.parse import parse_qsl, urlsplit

from yarl import URL

from mainspring.core.errors import MainspringError, SignInNeeded
from mainspring.core.items import Json
from mainspring.net.client import HttpClient, make_endpoint
from mainspring.storage.memory_runs import MemoryStore
from mainspring.tools.mcp.exchange import ToolListing
from mainspring.tools.mcp.server_connection import McpConnection
from mainspring.tools.mcp.server_specs import OAuthOptions, ServerSpec
from mainspring.tools.mcp.sign_in import Account, SignIns
from mainspring.tools.mcp.token_cipher import TokenCipher

EXAMPLES: dict[str, object] = {"string": "word", "integer": 1, "number": 1, "boolean": True, "array": [], "object": {}}


T = TypeVar("T")
ACCOUNT = Account("conformance")
METADATA = "https://conformance-test.local/client-metadata.json"
MOST_SIGN_INS = 3


async def main(url: str) -> None:
    options = choose_options() if os.environ["MCP_CONFORMANCE_SCENARIO"].startswith("auth/") else None
    spec = ServerSpec("conformance", url=url, trusted=True, oauth=options)
    sign_ins = SignIns(MemoryStore(), TokenCipher(os.urandom(32)))
    authorizer = None if options is None else sign_ins.authorize(spec, ACCOUNT)
    connection = McpConnection(spec, elicit=defaults, authorizer=authorizer)

    async def ask(question: Callable[[], Awaitable[T]]) -> T:
        for _ in range(MOST_SIGN_INS):
            try:
                return await question()
            except SignInNeeded as error:
                await sign_in(sign_ins, spec, error)
        return await question()

    try:
        listing = await ask(connection.list_tools)
        print(listing)
        for name, arguments in choose_calls(listing):
            try:
                print(name, await ask(lambda: connection.call(name, arguments, seconds=20)))  # noqa: B023 (awaited at once)
            except MainspringError as error:
                print(name, error)
    finally:
        await connection.close()


def choose_options() -> OAuthOptions:
    told = json.loads(os.environ.get("MCP_CONFORMANCE_CONTEXT") or "{}")
    key_file = ""
    if "private_key_pem" in told:
        with NamedTemporaryFile("w", suffix=".pem", delete=False) as file:
            file.write(told["private_key_pem"])
        key_file = file.name
    is_machine, assertion_file = "client-credentials" in os.environ["MCP_CONFORMANCE_SCENARIO"], ""
    if (token := told.get("valid_jwt") or told.get("idp_id_token")) is not None:
        with NamedTemporaryFile("w", suffix=".jwt", delete=False) as file:
            file.write(token)
        assertion_file = file.name
    return OAuthOptions(
        grant="client_credentials" if is_machine else "jwt_bearer" if assertion_file else "authorization_code",
        assertion_file=assertion_file,
        exchange_url=told.get("idp_token_endpoint", ""),
        exchange_client_id=told.get("idp_client_id", ""),
        client_id=told.get("client_id", ""),
        client_secret=told.get("client_secret", ""),
        private_key_file=key_file,
        client_metadata_url=METADATA,
    )


async def sign_in(sign_ins: SignIns, spec: ServerSpec, error: SignInNeeded) -> None:
    """Does what a person does in a browser who agrees to everything."""
    if error.scope:
        await sign_ins.want(spec, ACCOUNT, "any", error.scope)
    address = await sign_ins.begin(spec, ACCOUNT, "http://127.0.0.1:8765/callback")
    async with HttpClient(seconds=20, proxy="") as browser:
        answer = await browser.request("GET", make_endpoint(URL(address)))
        answer.close()
    await sign_ins.finish(dict(parse_qsl(urlsplit(answer.headers["Location"]).query)))


def choose_calls(listing: ToolListing) -> list[tuple[str, Json]]:
    told = json.loads(os.environ.get("MCP_CONFORMANCE_CONTEXT") or "{}").get("toolCalls")
    if told:
        return [(call["name"], call.get("arguments", {})) for call in told]
    # One scenario wants the schema of its first tool back, in the argument `schema` of the second.
    EXAMPLES["object"] = listing.tools[0].schema if listing.tools else {}
    return [(tool.name, example(tool.schema)) for tool in listing.tools]


async def defaults(question: Json) -> Json:
    fields = question.get("requestedSchema", {}).get("properties", {})
    return {name: field.get("default", EXAMPLES[field.get("type", "string")]) for name, field in fields.items()}


def example(schema: Json) -> Json:
    properties = schema.get("properties", {})
    return {name: EXAMPLES.get(str(properties[name].get("type")), "word") for name in properties}


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
