"""A server as data: what may describe one, what a request may ask for, and whom it asks before a call."""

import msgspec
import pytest

from mainspring.core.errors import InvalidRequest
from mainspring.core.items import Json
from mainspring.tools.mcp.server_specs import ApprovalFilter, ServerSpec, ToolFilter, parse_server_spec

URL = "https://tools.example/mcp"


def asked(**more: object) -> Json:
    return {"type": "mcp", "server_label": "tools", "server_url": URL, **more}


def test_a_request_describes_a_server_by_its_url() -> None:
    tool = asked(
        headers={"X-Team": "gears"},
        authorization="token",
        allowed_tools=["read", "list"],
        require_approval={"never": {"tool_names": ["read"]}},
        server_description="Tools.",
    )
    assert parse_server_spec(tool) == ServerSpec(
        "tools",
        url=URL,
        headers={"X-Team": "gears", "Authorization": "Bearer token"},
        allowed_tools=("read", "list"),
        require_approval=ApprovalFilter(never=ToolFilter(("read",))),
    )


def test_a_request_has_every_call_approved_unless_it_says_otherwise() -> None:
    spec = parse_server_spec(asked())
    assert (spec.require_approval, spec.trusted) == ("always", False)
    assert parse_server_spec(asked(require_approval="never")).require_approval == "never"


@pytest.mark.parametrize(
    ("tool", "complaint"),
    [
        ({"type": "mcp", "server_url": URL}, "needs a `server_label`"),
        ({"type": "mcp", "server_label": "tools"}, "needs a `server_url`"),
        (asked(server_url="stdio://sh"), "is no HTTP URL"),
        (asked(server_url="file:///bin/sh"), "is no HTTP URL"),
        (asked(command="sh"), "`command` is not supported"),
        (asked(transport="stdio"), "`transport` is not supported"),
        (asked(trusted=True), "`trusted` is not supported"),
        (asked(connector_id="connector_mail"), "`connector_id` is not supported"),
        (asked(headers=["X"]), "`headers` must be an object"),
        (asked(headers={"X": 1}), "Expected `str`"),
        (asked(headers={"X": "a\r\nHost: b"}), "header `X` cannot be sent"),
        (asked(headers={"X Y": "a"}), "header `X Y` cannot be sent"),
        (asked(headers={"host": "inside.example"}), "header `host` cannot be sent"),
        (asked(server_label="a\nb"), "printable characters"),
        (asked(server_label="a" * 65), "at most 64"),
        (asked(headers={"authorization": "a"}, authorization="b"), "not be in `headers` as well"),
        (asked(authorization=7), "`authorization` must be a token"),
        (asked(allowed_tools={"names": []}), "unknown field `names`"),
        (asked(require_approval="sometimes"), "Invalid enum value 'sometimes'"),
    ],
)
def test_a_request_that_asks_for_more_is_told_what_is_wrong(tool: Json, complaint: str) -> None:
    with pytest.raises(InvalidRequest, match=complaint) as raised:
        parse_server_spec(tool)
    assert raised.value.param == "tools"


def test_only_the_operator_has_servers_that_are_processes() -> None:
    with pytest.raises(ValueError, match="only the operator"):
        ServerSpec("git", "stdio", command="git-server")
    with pytest.raises(msgspec.ValidationError, match="only the operator"):
        msgspec.convert({"label": "git", "transport": "stdio", "command": "git-server"}, ServerSpec)
    assert ServerSpec("git", "stdio", command="git-server", trusted=True).command == "git-server"


@pytest.mark.parametrize(
    ("fields", "complaint"),
    [
        ({"label": " ", "url": URL}, "needs a label"),
        ({"label": "a", "url": URL, "timeout": 0}, "timeout must be more than 0"),
        ({"label": "a", "url": URL, "command": "sh"}, "has no command"),
        ({"label": "a", "transport": "stdio", "trusted": True}, "has a command and no url"),
        ({"label": "a"}, "is no HTTP URL"),
    ],
)
def test_a_description_that_cannot_work_is_refused(fields: Json, complaint: str) -> None:
    with pytest.raises(msgspec.ValidationError, match=complaint):
        msgspec.convert(fields, ServerSpec)


def test_secrets_are_not_shown() -> None:
    assert repr(ServerSpec("tools", url=URL, headers={"Authorization": "hush"})) == "ServerSpec('tools', 'http')"


@pytest.mark.parametrize(
    ("rule", "asks"),
    [
        ("always", {"read": True, "write": True}),
        ("never", {"read": False, "write": False}),
        (ApprovalFilter(never=ToolFilter(("read",))), {"read": False, "write": True}),
        (ApprovalFilter(never=ToolFilter(read_only=True)), {"read": False, "write": True}),
        (ApprovalFilter(always=ToolFilter(("write",))), {"read": True, "write": True}),
        (ApprovalFilter(always=ToolFilter(("write",)), never=ToolFilter()), {"read": False, "write": True}),
        (ApprovalFilter(always=ToolFilter(("read",)), never=ToolFilter(("read", "write"))), {"read": True, "write": False}),
    ],
)
def test_who_is_asked_follows_the_rule(rule: ApprovalFilter, asks: dict[str, bool]) -> None:
    spec = ServerSpec("tools", url=URL, require_approval=rule)
    assert {name: spec.needs_approval(name, name == "read") for name in asks} == asks


def test_only_allowed_tools_are_offered() -> None:
    spec = ServerSpec("tools", url=URL, allowed_tools=ToolFilter(("read", "write"), read_only=True))
    assert [spec.offers("read", True), spec.offers("write", False), spec.offers("look", True)] == [True, False, False]
    by_name = ServerSpec("tools", url=URL, allowed_tools=("read",))
    assert [by_name.offers("read", False), by_name.offers("write", False)] == [True, False]


def test_servers_share_a_connection_only_if_everything_about_it_is_the_same() -> None:
    one = ServerSpec("a", url=URL, headers={"A": "1", "B": "2"})
    assert one.target == ServerSpec("b", url=URL, headers={"B": "2", "A": "1"}, timeout=5).target
    assert one.target != ServerSpec("a", url=URL, headers={"A": "1"}).target
