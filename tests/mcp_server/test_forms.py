"""What a form of ours lets a person choose."""

import pytest
from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from mainspring.core.items import Json
from mainspring.features.approvals.pending import Approval
from mainspring.features.mcp_server.approval_forms import DENY, approving, can_ask, list_choices, render_form
from mainspring.features.mcp_server.peer import Peer
from mainspring.http.auth import ApiCaller

SHOWN = Approval("a1", "resp_1", "wipe", "", '{"disk":"sda"}', "d" * 64, "rules", "", 0.0, None, "pending", None)
ASKED: Json = {"server": "hotel", "message": "Which?"}
FIELDS: Json = {**ASKED, "mode": "form", "requested_schema": {"type": "object", "properties": {"room": {"type": "string"}}}}
NEWER: Json = {**FIELDS, "requested_schema": {"type": "object", "properties": {"room": {"oneOf": [{"const": "red"}]}}}}
LINK: Json = {**ASKED, "mode": "url", "url": "https://pay.example/1"}


def test_a_call_that_is_shown_whole_can_be_approved() -> None:
    assert list_choices(SHOWN) == [DENY, approving(SHOWN)]
    assert SHOWN.arguments in render_form(SHOWN, "2025-11-25")["message"]


def test_one_that_is_not_can_only_be_denied_and_says_where_to_approve_it() -> None:
    form = render_form(replace(SHOWN, arguments="x" * 4_001), "2025-11-25")
    assert form["requestedSchema"]["properties"]["answer"]["enum"] == [DENY]
    assert "mainspring approvals approve a1" in form["message"]


def test_what_a_server_asks_is_passed_on_as_each_revision_spells_it() -> None:
    asking = replace(SHOWN, elicitation=FIELDS)
    schema = FIELDS["requested_schema"]
    told = "MCP server `hotel` asks: Which?\n(It works on a call of `wipe`.)"
    assert render_form(asking, "2025-06-18") == {"message": told, "requestedSchema": schema}
    assert render_form(asking, "2026-07-28") == {"mode": "form", "message": told, "requestedSchema": schema}
    link = replace(SHOWN, elicitation=LINK)
    url = {"mode": "url", "message": told, "url": "https://pay.example/1"}
    assert render_form(link, "2026-07-28") == url
    assert render_form(link, "2025-11-25") == {**url, "elicitationId": "a1"}


@pytest.mark.parametrize(
    ("elicitation", "capabilities", "revision", "expected"),
    [
        (UNSET, {}, "2025-11-25", True),
        (UNSET, {"url": {}}, "2025-11-25", False),
        (FIELDS, {}, "2025-06-18", True),
        (FIELDS, {"url": {}}, "2025-11-25", False),
        (NEWER, {}, "2025-06-18", False),
        (NEWER, {}, "2025-11-25", True),
        (LINK, {}, "2025-11-25", False),
        (LINK, {"url": {}}, "2025-11-25", True),
        (LINK, {"url": {}}, "2025-06-18", False),
    ],
)
def test_a_client_is_asked_what_it_can_show(
    elicitation: Json | UnsetType, capabilities: Json, revision: str, expected: bool
) -> None:
    peer = Peer(caller=ApiCaller(), revision=revision, capabilities={"elicitation": capabilities})
    assert can_ask(replace(SHOWN, elicitation=elicitation), peer) is expected
    silent = replace(peer, capabilities={})
    assert not can_ask(replace(SHOWN, elicitation=elicitation), silent)
