"""What a form of ours lets a person choose."""

import pytest
from msgspec.structs import replace

from mainspring.core.items import Json
from mainspring.features.approvals.pending import Approval
from mainspring.features.mcp_server.questions import DENY, approving, list_choices, render_form

SHOWN = Approval("a1", "resp_1", "wipe", "", '{"disk":"sda"}', "d" * 64, "rules", "", 0.0, None, "pending", None)
FIELDS: Json = {"mode": "form", "requested_schema": {"type": "object", "properties": {"room": {"type": "string"}}}}


def test_a_call_that_is_shown_whole_can_be_approved() -> None:
    assert list_choices(SHOWN) == [DENY, approving(SHOWN)]
    assert SHOWN.arguments in render_form(SHOWN, "2025-11-25")["message"]


@pytest.mark.parametrize(
    "approval", [replace(SHOWN, arguments="x" * 4_001), replace(SHOWN, elicitation=FIELDS)], ids=["long", "fields"]
)
def test_one_that_is_not_can_only_be_denied_and_says_where_to_approve_it(approval: Approval) -> None:
    form = render_form(approval, "2025-11-25")
    assert form["requestedSchema"]["properties"]["answer"]["enum"] == [DENY]
    assert "mainspring approvals approve a1" in form["message"]
