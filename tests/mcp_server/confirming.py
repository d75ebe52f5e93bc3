"""An MCP server on standard input and output that asks a person before it does anything, by the stateless protocol.

What was confirmed need not be confirmed again at once: the script of a run that goes on begins anew, and calls a second time.
"""

import json
import sys
from typing import Any

TOOL: dict[str, Any] = {"name": "confirm", "inputSchema": {"type": "object", "properties": {"what": {"type": "string"}}}}
FIELDS = {"confirm": {"type": "boolean"}, "name": {"type": "string"}}
FORM = {"message": "Shall it be done?", "requestedSchema": {"type": "object", "properties": FIELDS, "required": ["confirm"]}}
ASKED: dict[str, Any] = {"resultType": "input_required", "inputRequests": {"q": {"method": "elicitation/create", "params": FORM}}}

confirmed: list[object] = []
for line in sys.stdin:
    message = json.loads(line)
    match message:
        case {"method": "server/discover"}:
            result: dict[str, Any] = {"supportedVersions": ["2026-07-28"], "capabilities": {"tools": {}}}
        case {"method": "tools/list"}:
            result = {"tools": [TOOL], "ttlMs": 60_000, "cacheScope": "public"}
        case {"method": "tools/call", "params": {"arguments": {"what": what}, "inputResponses": {"q": dict(said)}}}:
            confirmed.append(what)
            result = {"content": [{"type": "text", "text": json.dumps(said)}]}
        case {"method": "tools/call", "params": {"arguments": {"what": what}}} if what in confirmed:
            confirmed.remove(what)
            result = {"content": [{"type": "text", "text": "confirmed before"}]}
        case {"method": "tools/call"}:
            result = ASKED
        case _:
            continue
    print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": {"resultType": "complete", **result}}), flush=True)
