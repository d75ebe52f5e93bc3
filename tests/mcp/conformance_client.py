"""The client under test of the protocol's conformance suite: our connection, doing what each scenario asks for.

    conformance_client.py URL

The suite names the scenario in the environment, and for some the calls to make. Otherwise every listed tool is called once, with
arguments its schema allows; questions are answered with their defaults.
"""

import asyncio
import json
import os
import sys

from mainspring.core.errors import ToolUnavailable
from mainspring.core.items import Json
from mainspring.tools.mcp.connection import Connection
from mainspring.tools.mcp.server_specs import ServerSpec

EXAMPLES: dict[str, object] = {"string": "word", "integer": 1, "number": 1, "boolean": True, "array": [], "object": {}}


async def main(url: str) -> None:
    connection = Connection(ServerSpec("conformance", url=url, trusted=True), elicit=defaults)
    try:
        for name, arguments in await wanted(connection):
            try:
                print(name, await connection.call(name, arguments, seconds=20))
            except ToolUnavailable as error:
                print(name, error)
    finally:
        await connection.close()


async def wanted(connection: Connection) -> list[tuple[str, Json]]:
    listing = await connection.list_tools()
    print(listing)
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
