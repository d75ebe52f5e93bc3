"""Does an input try to give orders to the model?

`scan` looks at every text of a JSON value, keys included, for three things: words that override what the model was told, signs
that pretend that the input has ended and somebody else speaks, and either of them in an encoding. It is a net with holes, to be
used beside governance: it stops what is copied from lists of attacks, not somebody who thinks of a new one.

Theory of operation. A text is looked at in a plain form: compatibility forms, accents, invisible signs and case are taken away,
so that one spelling stands for many. Letters of other alphabets that look Latin, digits that stand for letters, and words written
letter by letter are read as what they spell, besides. Then what is encoded in the text is decoded and looked at in turn. What is
decoded is bounded by what was given, and the rules are linear, so the whole is.
"""

import html
import re
from base64 import b64decode
from collections.abc import Iterator
from string import ascii_lowercase
from typing import Final
from urllib.parse import unquote

from anyio import to_thread
from msgspec import Struct, to_builtins
from msgspec.structs import replace

from mainspring.core.errors import InvalidRequest
from mainspring.core.items import to_wire
from mainspring.core.normal_form import normalize
from mainspring.core.spec import RunSpec
from mainspring.core.text import shorten_line
from mainspring.features.governance.injection_phrases import DELIMITER, RULES, SECTION, TELLTALES
from mainspring.ports import OrderContext, OrderStep

LAYERS: Final = 6
GROWTH: Final = 6
SLACK: Final = 4_096
EXCERPT: Final = 80
RECENT: Final = 32_768
MOST_FLAGS: Final = 8
ENCODED: Final = "encoded_payload"


class InjectionFinding(Struct, frozen=True):
    """A text that a rule fits: where it is, as a path from `$`, and the part that fits, in its plain form."""

    rule: str
    path: str
    excerpt: str


def scan(value: object) -> tuple[InjectionFinding, ...]:
    """What looks like an injection in a JSON value, each rule once for each text; empty if nothing does."""
    found: dict[tuple[str, str], InjectionFinding] = {}
    for path, text in _iterate_texts(value):
        for finding in _scan_text(path, text):
            found.setdefault((finding.rule, path), finding)
    return tuple(found.values())


def list_flags(value: object) -> tuple[str, ...]:
    """What `scan` finds near the end of a JSON value, in a few words each: to be noted, not to be refused.

    Only the last `RECENT` characters of text are looked at: a client may send all of a long conversation again and again.
    """
    found: dict[tuple[str, str], None] = {}
    left = RECENT
    for path, text in _iterate_texts(value):  # of a list, the last come first
        if left <= 0 or len(found) >= MOST_FLAGS:
            break
        found |= {(finding.rule, path): None for finding in _scan_text(path, text[-left:])}
        left -= len(text)
    return tuple([f"{rule} at {path:.80}" for rule, path in found][:MOST_FLAGS])


def refuse_injection(inputs: object) -> None:
    """Raises `InvalidRequest` that says where `scan` found what."""
    if findings := scan(inputs):
        told = "; ".join([f"{finding.rule} at {finding.path:.200}: `{finding.excerpt}`" for finding in findings[:5]])
        more = f"; and {len(findings) - 5} more" if len(findings) > 5 else ""
        message = f"the input reads like orders to the model ({told}{more}); take them out, or say it in other words"
        raise InvalidRequest(message, param="inputs", code="prompt_injection")


def _iterate_texts(value: object) -> Iterator[tuple[str, str]]:
    """Every text with its path. The texts of a list are looked at together as well: a sentence may be spread over them."""
    pending: list[tuple[str, object]] = [("$", value)]
    while pending:
        path, found = pending.pop()
        match found:
            case str():
                yield path, found
            case dict():
                for key, inner in found.items():
                    yield f"{path}.{key:.40}", key
                    pending.append((f"{path}.{key:.40}", inner))
            case list() | tuple():
                if len(words := [part for part in found if isinstance(part, str)]) > 1:
                    yield path, " ".join(words)
                pending += [(f"{path}[{index}]", inner) for index, inner in enumerate(found)]
            case _:
                pass


class _Layer(Struct, frozen=True):
    text: str
    encodings: tuple[str, ...] = ()


def _scan_text(path: str, text: str) -> Iterator[InjectionFinding]:
    pending, left = [_Layer(text)], GROWTH * len(text) + SLACK
    while pending:
        layer = pending.pop()
        left -= len(layer.text)
        if left < 0:
            yield InjectionFinding(ENCODED, path, "more is encoded in it than can be looked at")
            return
        plain = plain_form(layer.text)
        for form in _forms(plain):
            for rule, excerpt in _match_rules(form):
                if layer.encodings:
                    yield InjectionFinding(ENCODED, path, f"{' of '.join(reversed(layer.encodings))}: {excerpt}")
                else:
                    yield InjectionFinding(rule, path, excerpt)
        if len(layer.encodings) < LAYERS:
            pending += [_Layer(inner, (*layer.encodings, name)) for name, inner in _decode(layer.text, plain)]


def _match_rules(plain: str) -> Iterator[tuple[str, str]]:
    for rule in RULES:
        if (part := rule.find(plain)) is not None:
            yield rule.name, shorten_line(part, EXCERPT)
    if (tag := _find_unopened(plain)) is not None:
        yield DELIMITER, shorten_line(tag, EXCERPT)


def _find_unopened(plain: str) -> str | None:
    """The first tag that closes a section which the text has not opened: it is meant to close one of the prompt's."""
    opened: set[str] = set()
    for match in SECTION.finditer(plain) if "</" in plain else ():
        if not match[1]:
            opened.add(match[2])
        elif match[2] not in opened:
            return match[0]
    return None


_ACCENTS = re.compile("[\u0300-\u036f]+")
# What is not seen: soft hyphen, joiners, direction marks, fillers, variation selectors, and the tags that mirror ASCII.
_UNSEEN = re.compile(
    "[\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f\u3164\ufe00-\ufe0f"
    "\ufeff\uffa0\ufff9-\ufffb\U000e0100-\U000e01ef]+"
)
_TAGS = {0xE0000 + code: code for code in range(0x20, 0x7F)}
_TAGGED = re.compile("[\U000e0020-\U000e007e]")


def plain_form(text: str) -> str:
    """The text without case, accents, compatibility forms and invisible signs. Invisible letters become visible ones."""
    if text.isascii():
        return text.lower()
    if _TAGGED.search(text):
        text = text.translate(_TAGS)
    text = _ACCENTS.sub("", normalize("NFKD", _UNSEEN.sub("", text)))
    return normalize("NFC", text).casefold()


_LOOKALIKES = str.maketrans(
    "авекмнорстухіїјѕһԁԛԝӏ" + "αβγεηικνορτυχω" + "ıɑɡɩʀ" + "013457@$!|",
    "abekmhopctyxiijshdqwl" + "abyenikvoptuxw" + "iagir" + "oieastasil",
)
_SPELLED = re.compile(r"(?<![^\W_])[^\W_](?:[\s.,_*|/~+-]{1,3}[^\W_](?![^\W_])){5,}")
_GAP = re.compile(r"[\W_]+")


def _forms(plain: str) -> Iterator[str]:
    """The text, what it spells in letters that only look so, and its words that are written letter by letter."""
    yield plain
    if _tells_more(alike := plain.translate(_LOOKALIKES), plain):
        yield alike
    if letters := [_GAP.sub("", match[0]) for match in _SPELLED.finditer(plain)]:
        yield "\n".join(letters)


def _tells_more(text: str, than: str) -> bool:
    return any(text.count(word) > than.count(word) for word in TELLTALES)


_BASE64 = re.compile(r"[A-Za-z0-9+/_-]{16,}(?:\r?\n[ \t]*[A-Za-z0-9+/_-]{8,})*={0,2}")
_ROT13 = str.maketrans(ascii_lowercase, ascii_lowercase[13:] + ascii_lowercase[:13])
_URL_SAFE = str.maketrans("-_", "+/")
_HEX = re.compile(r"[2-7][0-9a-fA-F](?:[\s,:;]{0,2}(?:\\x|0x|%u00)?(?:[2-7][0-9a-fA-F]|0[9aAdD])){11,}")
_HEX_SIGNS = re.compile(r"\\x|0x|%u00|[\s,:;]+")
_ESCAPED = re.compile(r"%[0-9a-fA-F]{2}|&#x?[0-9a-fA-F]{2,6};?|&(?:lt|gt|quot|amp|nbsp);|\\u\{?[0-9a-fA-F]{4}|\\x[0-9a-fA-F]{2}")
_UNICODE = re.compile(r"\\(?:u\{?([0-9a-fA-F]{4,5})\}?|x([0-9a-fA-F]{2}))")
_READABLE = re.compile(rb"[\t\n\r\x20-\x7e]{12,}")


def _decode(text: str, plain: str) -> Iterator[tuple[str, str]]:
    """What is encoded in the text, by the name of the encoding."""
    if inner := "\n".join([part for token in _BASE64.finditer(text) for part in _from_base64(token[0]) if part]):
        yield "base64", inner
    if inner := "\n".join([part for token in _HEX.finditer(text) if (part := _decode_readable(_from_hex(token[0])))]):
        yield "hex", inner
    if _ESCAPED.search(text) and (inner := _unescape(text)) != text:
        yield "escapes", inner
    if _tells_more(turned := plain.translate(_ROT13), ""):
        yield "rot13", turned


def _from_base64(token: str) -> Iterator[str]:
    """What is readable in it, wherever in the token it begins: other signs of the alphabet may stand before it."""
    packed = "".join(token.split()).rstrip("=").translate(_URL_SAFE)
    for start in range(4):
        length = len(packed) - start
        end = len(packed) - (length % 4 == 1)
        yield (part := _decode_readable(data := b64decode(packed[start:end] + "=" * (-(end - start) % 4))))
        if len(part) == len(data):
            return


def _from_hex(token: str) -> bytes:
    digits = _HEX_SIGNS.sub("", token)
    return bytes.fromhex(digits[: len(digits) // 2 * 2])


def _decode_readable(data: bytes) -> str:
    """The bytes as text; of those that are none, what is readable in them."""
    if b"\0" in data:
        data = data.replace(b"\0", b"")
    try:
        return data.decode()
    except UnicodeDecodeError:
        return "\n".join([run.decode("ascii") for run in _READABLE.findall(data)])


def _unescape(text: str) -> str:
    text = _UNICODE.sub(lambda match: chr(int(match[1] or match[2], 16)), text)
    return unquote(html.unescape(text), errors="ignore")


class InjectionFlagsStep(OrderStep):
    """Notes in an order what in its input reads like instructions to the model."""

    name = "injection flags"
    runs_in_place = True

    async def prepare(self, order: RunSpec, context: OrderContext) -> RunSpec:
        found = await to_thread.run_sync(list_flags, to_builtins(order.input, enc_hook=to_wire))
        return replace(order, flags=found) if found else order
