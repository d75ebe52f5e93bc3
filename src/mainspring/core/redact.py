"""What of a tool's output the model and the log may see: no secrets, not too much of it, and valid text.

Every pattern is bounded in length and anchored at its start, so that the cost is linear in the text, whatever the text is. Most
texts hold none of the words that every match of a pattern has in it, and are not searched by it at all.
"""

import re
from collections.abc import Callable
from functools import lru_cache
from typing import Final, cast

import msgspec
from msgspec.structs import replace

from mainspring.core.items import InputText, Json, OutputText, Part, are_arguments_large

REDACTED = "[redacted]"

_SECRETS = re.compile(
    r"""
    -----BEGIN\ [A-Z\ ]{0,30}PRIVATE\ KEY-----.*?(?:-----END\ [A-Z\ ]{0,30}PRIVATE\ KEY-----|\Z)   # PEM keys
    | (?<![\w-])eyJ[\w-]{8,4000}\.[\w-]{8,8000}\.[\w-]{1,2000}                     # JSON web tokens
    | (?<![\w-])sk-(?=[\w-]{0,60}\d)[\w-]{20,300}                                  # OpenAI, Anthropic and kin
    | (?<![\w-])[spr]k_(?:live|test)_\w{10,200}                                    # Stripe
    | (?<!\w)gh[pousr]_\w{20,255} | (?<!\w)github_pat_\w{20,255} | (?<!\w)glpat-[\w-]{20,100}
    | (?<!\w)(?:AKIA|ASIA)[0-9A-Z]{16}\b | (?<!\w)AIza[\w-]{30,60} | (?<!\w)ya29\.[\w-]{20,500}
    | (?<!\w)xox[abeoprs]-[\w-]{10,200} | hooks\.slack\.com/services/[\w/]{10,200}
    | (?<!\w)hf_\w{30,60} | (?<!\w)npm_\w{30,60} | (?<!\w)pypi-[\w-]{40,300} | (?<!\w)dop_v1_[0-9a-f]{40,80}
    | (?<!\w)SG\.[\w-]{16,40}\.[\w-]{16,80}
    """,
    re.VERBOSE | re.DOTALL,
)
_URLS = re.compile(r"(?P<keep>://)(?:[^\s:/@]{0,100}:[^\s/@]{1,300}|[\w-]{20,300})(?=@)")
# What a URL has behind its question mark: a number, or something long, is a value and no word about one.
_QUERIES = re.compile(
    r"""(?P<keep>[?&;](?:[\w.-]{0,60}[_.-])?(?:api|access|auth|session|id|sas)?
        (?:token|key|sig|signature|secret|auth|pass|password|passwd|pwd|credentials?)=)
        (?=[^&\s"'<>\#]{0,60}\d|[^&\s"'<>\#]{16})[^&\s"'<>\#]{6,2000}""",
    re.VERBOSE | re.IGNORECASE,
)
_HEADERS = re.compile(
    r"""(?P<keep>(?<!\w)(?:(?:proxy-)?authorization["']?\s{0,3}[:=]\s{0,3}["']?(?:(?:bearer|basic|token)\s{1,3})?
        |(?:set-)?cookie["']?\s{0,3}:\s{0,3}))[^\s"',][^\r\n"']{3,2000}""",
    re.VERBOSE | re.IGNORECASE,
)
_NAME = r"""(?:pass(?:word|wd|phrase)|pwd|secret|(?:api|access|account|private|secret|signing|encryption)[_-]?key
    |(?:auth|access|refresh|session|id|bearer|api)[_-]?token|client[_-]?secret|credentials?)"""
# A quoted value is a value; a bare one counts only if it looks like no word of prose or code.
_NAMED = re.compile(
    rf"""(?P<keep>{_NAME}(?:[_-]?key)?["']?(?:\s{{0,3}}[:=]\s{{0,3}}|(?<=[a-z])\s))
        (?:"[^"\r\n]{{1,300}}"|'[^'\r\n]{{1,300}}'|(?=[^\s"',;&)\]}}]{{0,60}}\d)[^\s"',;&)\]}}]{{6,300}})""",
    re.VERBOSE | re.IGNORECASE,
)
_VARIABLES = re.compile(r"(?P<keep>(?<!\w)[A-Z][A-Z0-9_]{0,60}(?:TOKEN|SECRET|PASSWORD|PASSWD|_PASS|PWD|KEY)=)[^\s\"';&]{4,300}")


# A field called `pass`, and what programs take on their command line; `docker run -u 1000:1000` is none of these.
_FIELDS = re.compile(
    r"""(?P<keep>["'](?:\w{1,60}[_-])?pass["']\s{0,3}:\s{0,3})(?:"[^"\r\n]{1,300}"|'[^'\r\n]{1,300}')""", re.IGNORECASE
)
_OPTIONS = re.compile(
    r"""(?P<keep>(?<!\w)curl\s[^\r\n]{0,300}?(?<=\s)(?:-u\s{0,3}|--(?:proxy-)?user[\s=])["']?[^\s:"']{1,100}:
        |(?<!\w)(?:mysql(?:dump|admin)?|mariadb)\s[^\r\n]{0,300}?(?<=\s)-p["']?)[^\s"']{1,300}""",
    re.VERBOSE,
)


# Where a program works is no password, though both are called `pwd`.
_FOLDER = re.compile(r"""(?<!\w)(?:OLD)?PWD["']?\s{0,3}[:=]\s{0,3}["']?[/~][^"'\r\n]*["']?\Z""")


# What a match of each pattern cannot do without; of the last two, in small letters.
_MARKS = (
    "PRIVATE KEY-----", "eyJ", "sk-", "k_live_", "k_test_", "ghp_", "gho_", "ghu_", "ghs_", "ghr_", "github_pat_", "glpat-",
    "AKIA", "ASIA", "AIza", "ya29.", "xox", "hooks.slack.com/services/", "hf_", "npm_", "pypi-", "dop_v1_", "SG.",
)  # fmt: skip
_ASSIGNED = ("TOKEN=", "SECRET=", "PASSWORD=", "PASSWD=", "_PASS=", "PWD=", "KEY=")
_COMMANDS = ("curl ", "mysql", "mariadb")
_IN_QUERIES = ("token=", "key=", "sig=", "signature=", "secret=", "auth=", "pass=", "password=", "passwd=", "pwd=", "credential")
_IN_HEADERS = ("authorization", "cookie")
_IN_NAMES = ("pass", "pwd", "secret", "key", "token", "credential")
# The letters beyond ASCII that a pattern takes for one of a to z when it ignores case.
_ALIKE = str.maketrans({"\u0130": "i", "\u0131": "i", "\u017f": "s", "\u212a": "k"})
# What is shorter holds no match of any pattern.
SHORTEST: Final = 6


def redact_text(text: str) -> str:
    """The text with everything that looks like a key, token or password replaced, and fit to be written as UTF-8."""
    if not text.isascii():
        text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if len(text) < SHORTEST:
        return text
    if _has(text, _MARKS):
        text = _SECRETS.sub(REDACTED, text)
    if "://" in text:
        text = _URLS.sub(_keep_name, text)
    small = (text if text.isascii() else text.translate(_ALIKE)).lower()
    if ("?" in text or "&" in text) and _has(small, _IN_QUERIES):
        text = _QUERIES.sub(_keep_name, text)
    if _has(small, _IN_HEADERS):
        text = _HEADERS.sub(_keep_name, text)
    if _has(text, _ASSIGNED):
        text = _VARIABLES.sub(_keep_name, text)
    if _has(text, _COMMANDS):
        text = _OPTIONS.sub(_keep_name, text)
    if "pass" in small:
        text = _FIELDS.sub(_keep_name, text)
    if _has(small, _IN_NAMES):
        text = _NAMED.sub(_keep_name, text)
    return text


# What a field is called whose value is a secret, with `apiKey` read as `api_key`. A number may be a PIN; of tokens it is a count.
_FIELD = re.compile(
    r"""(?:.*_)?(?:pass(?:word|wd|phrase|code|words)?|pwd|pins?|secrets?|tokens?|credentials?|cookies?|authorization|auth
        |(?:api|access|account|private|secret|signing|encryption|auth)_?keys?)(?:_(?:value|text|hash))?""",
    re.VERBOSE,
)
_WORDS = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|[^A-Za-z0-9]+")
_USUAL_NAME: Final = 64
_DEEPEST: Final = 20
# A text of hostile words takes a fifth of a second for a million characters.
MOST_SHOWN: Final = 500_000


def redact_arguments(arguments: str) -> str:
    """The arguments of a call as they may be shown: JSON as before, secrets replaced by what the fields are called as well, in
    JSON that is inside of a text too. What is no JSON is redacted like any text. Of what is very long both ends are shown, and
    nothing of what would take long to parse."""
    is_long = len(arguments) > MOST_SHOWN
    if is_long and are_arguments_large(arguments):
        return f"[{len(arguments)} characters, too many to find the secrets in them]"
    try:
        value = msgspec.json.decode(arguments)
        # The texts of long ones are searched where they are shown.
        shown = _redact_value(value, search=str if is_long else redact_text)
        arguments = arguments if shown == value else msgspec.json.encode(shown).decode()
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return _present_text(arguments, MOST_SHOWN)
    return _present_text(arguments, MOST_SHOWN) if is_long else arguments


def redact_data(data: Json | None) -> Json | None:
    """The data of a result as it may be kept: secrets replaced in texts, and by what the fields are called."""
    return None if data is None else cast(Json, _redact_value(data))


def _redact_value(
    value: object, *, search: Callable[[str], str] = redact_text, is_secret: bool = False, depth: int = 0
) -> object:
    """`search` replaces the secrets of a text."""
    match value:
        case dict():
            return {
                search(name): _redact_value(each, search=search, is_secret=is_secret or _is_field(name, each), depth=depth)
                for name, each in value.items()
            }
        case list():
            return [_redact_value(each, search=search, is_secret=is_secret, depth=depth) for each in value]
        case str():
            return _redact_string(value, search, is_secret, depth)
        case int() | float() if is_secret and not isinstance(value, bool):
            return REDACTED
        case _:
            return value


def _redact_string(text: str, search: Callable[[str], str], is_secret: bool, depth: int) -> str:
    if is_secret:
        return REDACTED if text else text
    if text.lstrip()[:1] in ("{", "[") and depth < _DEEPEST and not are_arguments_large(text):
        try:
            inner = msgspec.json.decode(text)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return search(text)
        shown = _redact_value(inner, search=search, depth=depth + 1)
        return text if shown == inner else msgspec.json.encode(shown).decode()
    return search(text)


def _is_field(name: str, value: object) -> bool:
    if not (_tells_secret if len(name) <= _USUAL_NAME else _tells_secret.__wrapped__)(name):
        return False
    is_count = isinstance(value, int | float) and "token" in name.lower()
    is_folder = name in ("PWD", "OLDPWD") and isinstance(value, str) and value.startswith(("/", "~"))
    return not is_count and not is_folder


@lru_cache(maxsize=1024)  # the same few names come with every call
def _tells_secret(name: str) -> bool:
    return _FIELD.fullmatch(_WORDS.sub("_", name).lower().strip("_")) is not None


def _has(text: str, words: tuple[str, ...]) -> bool:
    for word in words:  # a generator would cost more than the search  # noqa: SIM110
        if word in text:
            return True
    return False


def _keep_name(found: re.Match[str]) -> str:
    if _FOLDER.search(found.string[max(0, found.start() - 4) : found.end()]) is not None:
        return found[0]
    return found["keep"] + REDACTED


def shorten(text: str, max_chars: int | None) -> str:
    """The text's head and tail, with a note of how much is missing between them."""
    if max_chars is None or len(text) <= max_chars:
        return text
    return _join_ends(text, text, max_chars, len(text))


def make_presentable(output: str | tuple[Part, ...], max_chars: int | None) -> str | tuple[Part, ...]:
    """An output as it may be kept and shown to the model."""
    if isinstance(output, str):
        return _present_text(output, max_chars)
    return tuple([_part(part, max_chars) for part in output])


def _part(part: Part, max_chars: int | None) -> Part:
    if isinstance(part, InputText | OutputText):
        return replace(part, text=_present_text(part.text, max_chars))
    return part


def _present_text(text: str, max_chars: int | None) -> str:
    """Only what can be shown is searched, with enough around it that no secret is cut in half by the search."""
    if max_chars is None or len(text) <= 2 * max_chars:
        return shorten(redact_text(text), max_chars)
    return _join_ends(redact_text(text[: 2 * max_chars]), redact_text(text[-2 * max_chars :]), max_chars, len(text))


def _join_ends(head: str, tail: str, max_chars: int, length: int) -> str:
    first = max_chars - max_chars // 2
    last = max_chars - first
    note = f"\n[... {length - max_chars} characters left out ...]\n"
    return head[:first] + note + (tail[-last:] if last else "")
