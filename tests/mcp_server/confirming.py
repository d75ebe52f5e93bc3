"""An MCP server on standard input and output that asks a person before it does anything, by the stateless protocol.

`confirm` asks whether it shall be done, and `fill_in` for the forms of that name, one after the other. What was answered need not
be answered again at once: the script of a run that goes on begins anew, and calls a second time.
"""

import json
import sys
from typing import Any

Json = dict[str, Any]


def describe(kind: str, **more: Any) -> Json:
    return {"type": kind, **more}


def name_all(names: str, key: str) -> list[Json]:
    return [{"const": name, "title": f"{key} {name}"} for name in names.split()]


OPTIONS = ["option1", "option2", "option3"]
# The fields of forms, by the name of what is asked for. Those with a `conformance` name are what its scenarios look for.
FORMS: dict[str, list[Json]] = {
    "confirm": [{"confirm": describe("boolean"), "name": describe("string")}],
    "name": [{"name": describe("string")}],
    "ok": [{"ok": describe("boolean")}],
    "name and color": [{"name": describe("string")}, {"color": describe("string")}],
    "contact": [{"username": describe("string"), "email": describe("string")}],
    "defaults": [
        {
            "name": describe("string", default="John Doe"),
            "age": describe("integer", default=30),
            "score": describe("number", default=95.5),
            "status": describe("string", enum=["active", "inactive", "pending"], default="active"),
            "verified": describe("boolean", default=True),
        }
    ],
    "choices": [
        {
            "untitledSingle": describe("string", enum=OPTIONS),
            "titledSingle": describe("string", oneOf=name_all("value1 value2 value3", "Option")),
            "legacyEnum": describe("string", enum=["opt1", "opt2"], enumNames=["Option One", "Option Two"]),
            "untitledMulti": describe("array", items=describe("string", enum=OPTIONS)),
            "titledMulti": describe("array", items={"anyOf": name_all("value1 value2 value3", "Choice")}),
        }
    ],
}
TOOLS = [
    {"name": "confirm", "inputSchema": {"type": "object", "properties": {"what": {"type": "string"}}}},
    {"name": "fill_in", "inputSchema": {"type": "object", "properties": {"what": {"enum": list(FORMS)}}}},
]


def ask(fields: Json, place: int) -> Json:
    schema = {"type": "object", "properties": fields, "required": list(fields)[:1]}
    question = {"method": "elicitation/create", "params": {"message": "Shall it be done?", "requestedSchema": schema}}
    return {"resultType": "input_required", "inputRequests": {"q": question}, "requestState": str(place)}


answered: list[object] = []
for line in sys.stdin:
    message = json.loads(line)
    match message:
        case {"method": "server/discover"}:
            result: Json = {"supportedVersions": ["2026-07-28"], "capabilities": {"tools": {}}}
        case {"method": "tools/list"}:
            result = {"tools": TOOLS, "ttlMs": 60_000, "cacheScope": "public"}
        case {"method": "tools/call", "params": {"name": name, "arguments": {"what": what}}}:
            forms = FORMS["confirm" if name == "confirm" else what]
            said = message["params"].get("inputResponses", {}).get("q")
            place = int(message["params"]["requestState"]) + 1 if said is not None else 0
            if said is None and what in answered:
                answered.remove(what)
                result = {"content": [{"type": "text", "text": "answered before"}]}
            elif place < len(forms):
                result = ask(forms[place], place)
            else:
                answered.append(what)
                result = {"content": [{"type": "text", "text": json.dumps(said)}]}
        case _:
            continue
    print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": {"resultType": "complete", **result}}), flush=True)
