"""Texts that are not searched, because they cannot hold a secret, hold none."""

from hypothesis import given
from hypothesis import strategies as st

from mainspring.engine import redact
from mainspring.engine.redact import REDACTED, without_secrets

PIECES = (
    "sk-abcdefghij0123456789", "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2ln", "ghp_0123456789abcdefghij0", "AKIA0123456789ABCDEF",
    "-----BEGIN RSA PRIVATE KEY-----\nMII\n-----END RSA PRIVATE KEY-----", "sk_live_0123456789", "hf_" + "a" * 34,
    "xoxb-0123456789",
    "hooks.slack.com/services/T0/B0/xyz", "SG.0123456789abcdef.0123456789abcdef", "pypi-" + "c" * 44, "dop_v1_" + "d" * 44,
    "glpat-0123456789abcdefghij", "github_pat_0123456789abcdefghij", "AIza" + "f" * 35, "https://ada:pw@example.com",
    "Authorization: Bearer abcdef", "ya29." + "e" * 24, "npm_" + "b" * 36, "COO\u212aIE: id=12345",
    "pa\u017f\u017fword: 'abc1234'",
    "MY_TOKEN=abcd", "DB_PWD=abcd", "api_key = 'abc'", "credential\u017f: 'abcdef1'", "secret \"x1\"", "pwd=abc123",
    "Acce\u017fs-To\u212aen: 'abc'", "cred\u0130ntial", "k\u0131ey=abc1234", "max_tokens=5", " ", "\n", "Caf\u00e9", "\ud800",
)  # fmt: skip


def searched(text: str) -> str:
    """The same with every pattern, whatever the text."""
    if not text.isascii():
        text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    text = redact._SECRETS.sub(REDACTED, text)
    for pattern in (redact._URLS, redact._HEADERS, redact._VARIABLES, redact._NAMED):
        text = pattern.sub(redact._kept, text)
    return text


@given(st.lists(st.sampled_from(PIECES) | st.text(max_size=8), max_size=6).map("".join))
def test_a_text_is_redacted_the_same_as_if_every_pattern_had_searched_it(text: str) -> None:
    assert without_secrets(text) == searched(text)


def test_each_kind_of_secret_is_found_alone() -> None:
    for piece in PIECES:
        assert without_secrets(piece) == searched(piece), piece
    assert sum(REDACTED in without_secrets(piece) for piece in PIECES) > 20
