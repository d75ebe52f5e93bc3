"""Texts that are not searched, because they cannot hold a secret, hold none."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainspring.core import redact
from mainspring.core.redact import REDACTED, redact_arguments, redact_text

PIECES = (
    "sk-abcdefghij0123456789", "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2ln", "ghp_0123456789abcdefghij0", "AKIA0123456789ABCDEF",
    "-----BEGIN RSA PRIVATE KEY-----\nMII\n-----END RSA PRIVATE KEY-----", "sk_live_0123456789", "hf_" + "a" * 34,
    "xoxb-0123456789",
    "hooks.slack.com/services/T0/B0/xyz", "SG.0123456789abcdef.0123456789abcdef", "pypi-" + "c" * 44, "dop_v1_" + "d" * 44,
    "glpat-0123456789abcdefghij", "github_pat_0123456789abcdefghij", "AIza" + "f" * 35, "https://ada:pw@example.com",
    "Authorization: Bearer abcdef", "ya29." + "e" * 24, "npm_" + "b" * 36, "COO\u212aIE: id=12345",
    "pa\u017f\u017fword: 'abc1234'",
    "export DB_PASS=zorkmid99", '{"db":{"pass":"zorkmid99"}}', "curl -s -u admin:zorkmid99 host", "mysql -u root -pzorkmid99",
    "https://h.example/mcp?token=zorkmid99", "&amp;sig=0123456789abcdef", "?to\u212aen=zorkmid99", "?monkey=zorkmid99",
    "MY_TOKEN=abcd", "DB_PWD=abcd", "api_key = 'abc'", "credential\u017f: 'abcdef1'", "secret \"x1\"", "pwd=abc123",
    "Acce\u017fs-To\u212aen: 'abc'", "cred\u0130ntial", "k\u0131ey=abc1234", "max_tokens=5", " ", "\n", "Caf\u00e9", "\ud800",
)  # fmt: skip


def searched(text: str) -> str:
    """The same with every pattern, whatever the text."""
    if not text.isascii():
        text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    text = redact._SECRETS.sub(REDACTED, text)
    for pattern in (
        redact._URLS,
        redact._QUERIES,
        redact._HEADERS,
        redact._VARIABLES,
        redact._OPTIONS,
        redact._FIELDS,
        redact._NAMED,
    ):
        text = pattern.sub(redact._keep_name, text)
    return text


@given(st.lists(st.sampled_from(PIECES) | st.text(max_size=8), max_size=6).map("".join))
def test_a_text_is_redacted_the_same_as_if_every_pattern_had_searched_it(text: str) -> None:
    assert redact_text(text) == searched(text)


@given(st.text(sorted(set("".join(PIECES))), max_size=redact.SHORTEST - 1))
def test_what_is_not_searched_because_it_is_short_holds_no_secret(text: str) -> None:
    assert redact_text(text) == searched(text)
    assert redact_text("://:x@") == f"://{REDACTED}@"


def test_each_kind_of_secret_is_found_alone() -> None:
    for piece in PIECES:
        assert redact_text(piece) == searched(piece), piece
    assert sum(REDACTED in redact_text(piece) for piece in PIECES) > 20


def test_passwords_of_commands_and_fields_are_found_and_what_only_looks_alike_stays() -> None:
    for text in (
        "export DB_PASS=zorkmid99", '{"db":{"pass":"zorkmid99"}}', "curl -u admin:zorkmid99 https://x.example",
        "curl --user 'admin:zorkmid99' x", "mysql -pzorkmid99 shop", "mysqldump -u root -pzorkmid99 shop > out.sql",
        "https://h.example/mcp?token=zorkmid99", "wss://h.example/?a=1&api_key=zorkmid99#x", "http://h/?x=1&amp;sig=zorkmid99",
        "https://s3.example/b?X-Amz-Signature=zorkmid99&X-Amz-Date=1", "/oauth?accessToken=zorkmidzorkmidzorkmid99",
        "{'DB_PWD': '/zorkmid99'}", "DB_PWD=/zorkmid99", "{'pwd': '/zorkmid99'}",
    ):  # fmt: skip
        assert "zorkmid99" not in redact_text(text), text
        assert REDACTED in redact_text(text)
    for text in (
        "https://h.example/?page=2&monkey=zorkmid99&keyword=zorkmid99", "?key=value", "/search?tokens=12345678",
        "?token=YOUR_TOKEN",
        "docker run -u 1000:1000 image", "mysql -p shop", "mysql --port 3306 -h db", "COMPASS=north BYPASS=true",
        "{'PWD': '/workspace', 'OLDPWD': '/'}", "PWD=/workspace OLDPWD=/tmp/1a", '{"PWD": "/workspace"}',
        '{"status": "pass", "passed": 12}', "curl -s http://x.example:8080/users", "pass: 12 of 13 tests",
    ):  # fmt: skip
        assert redact_text(text) == text


def test_arguments_are_redacted_by_what_their_fields_are_called_and_stay_json() -> None:
    for made, expected in (
        ({"body": '{"password":"zorkmid"}'}, {"body": '{"password":"[redacted]"}'}),
        ({"token": "zorkmid", "max_tokens": 5, "tokens": 7}, {"token": REDACTED, "max_tokens": 5, "tokens": 7}),
        ({"pass": "zorkmid", "pin": 1234}, {"pass": REDACTED, "pin": REDACTED}),
        ({"headers": {"Cookie": "sid=zorkmid", "Accept": "x"}}, {"headers": {"Cookie": REDACTED, "Accept": "x"}}),
        ({"passwords": ["zorkmid", "two"]}, {"passwords": [REDACTED, REDACTED]}),
        ({"password": 'a"b zorkmid'}, {"password": REDACTED}),
        ({"apiKey": "zorkmid", "key": "name"}, {"apiKey": REDACTED, "key": "name"}),
        ({"secret": {"a": [{"b": "zorkmid"}]}}, {"secret": {"a": [{"b": REDACTED}]}}),
        ({"command": "curl -u ada:zorkmid x"}, {"command": "curl -u ada:[redacted] x"}),
        ({"env": {"PWD": "/workspace", "DB_PWD": "/zorkmid"}}, {"env": {"PWD": "/workspace", "DB_PWD": "[redacted]"}}),
        ({"x": '["a", {"y": "{\\"pwd\\": \\"zorkmid\\"}"}]'}, {"x": '["a",{"y":"{\\"pwd\\":\\"[redacted]\\"}"}]'}),
    ):
        text = json.dumps(made)
        assert json.loads(redact_arguments(text)) == expected, text


def test_arguments_without_secrets_stay_as_they_are_written() -> None:
    for text in ('{ "a" : 1 }', "", "[1, 2", '{"passed": true, "compass": "n", "author": "x", "tokenizer": "y", "pinned": "z"}'):
        assert redact_arguments(text) == text


def test_of_very_long_arguments_both_ends_are_shown() -> None:
    shown = redact_arguments(json.dumps({"a": "x" * 3_000_000, "password": "zorkmid99"}))
    assert len(shown) < 510_000
    assert "characters left out" in shown
    assert "zorkmid99" not in shown


@pytest.mark.parametrize("name", ["auth", "token", "pin", "cookie", "password"])
def test_of_very_long_arguments_secret_fields_are_redacted_too(name: str) -> None:
    long = json.dumps({"a": "x " * 400_000, name: "zorkmid99"})
    within = json.dumps({"body": long, "b": "y"})
    many = json.dumps({"a": [[]] * 200_000, name: "zorkmid99"})
    for arguments in (long, within, many):
        assert "zorkmid99" not in redact_arguments(arguments)
        assert len(redact_arguments(arguments)) < 510_000
