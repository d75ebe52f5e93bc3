"""What an MCP server asks a person: a form of flat fields, or a link to open. Read from the protocol, and the answer checked.

The protocol allows a form no more than strings, numbers, booleans and choices, so that any client can draw it. Whatever else a
server wants is refused here, before anybody is asked.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Final
from urllib.parse import urlsplit

from mainspring.core.items import Json, encode
from mainspring.core.look_alikes import fold_text

MOST_FIELDS: Final = 64
MOST_CHOICES: Final = 256
LONGEST_MESSAGE: Final = 4_000
LONGEST_TEXT: Final = 64_000
LONGEST_FORM: Final = 64_000

DEEPEST_FIELD: Final = 4
"""A field, its items, their choices, and one of those."""

# What secrets are called, in a few languages: whole words, and those that may stand in others.
_WORDS: Final = ("pin", "pwd", "otp", "totp", "cvv", "cvc", "ssn", "2fa", "mfa", "token", "senha", "parola", "mnemonic")
_PARTS: Final = (
    "password", "passwd", "passphrase", "passcode", "passwort", "kennwort", "contrasena", "mot de passe",
    "\u043f\u0430\u0440\u043e\u043b", "\u5bc6\u7801", "secret", "credential", "api key", "access key", "private key",
    "signing key", "card number", "credit card", "security code", "social security", "one time code", "verification code",
    "seed phrase", "recovery phrase", "recovery code",
)  # fmt: skip
_BETWEEN: Final = r"[\W_]*"
_SECRET = re.compile(
    rf"(?<!\w)(?:{'|'.join([fold_text(word) for word in _WORDS])})(?!\w)"
    rf"|{'|'.join([fold_text(part).replace(' ', _BETWEEN) for part in _PARTS])}"
)
_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_LINK = re.compile(r"[!-\[\]-~]+")  # no space, no backslash, nothing that cannot be seen
_FORMATS: Final = {
    "email": re.compile(r"[^@\s]+@[^@\s]+"),
    "uri": re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:\S+"),
    "date": re.compile(r"\d{4}-\d\d-\d\d"),
    "date-time": re.compile(r"\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d.*"),
}


def read_elicitation(server: str, params: Json) -> Json:
    """The question as people and clients are shown it, with who asks. Raises `ValueError` if it is none that can be shown."""
    message = str(params.get("message") or "")[:LONGEST_MESSAGE]
    mode = params.get("mode", "form")
    if mode == "url":
        return {"server": server, "mode": "url", "message": message, "url": _check_link(params.get("url"))}
    if mode != "form":
        raise ValueError("it is neither a form nor a link")
    schema = params.get("requestedSchema")
    if not isinstance(schema, dict) or not isinstance(schema.get("properties"), dict):
        raise ValueError("its form has no fields")
    fields: Mapping[str, Json] = schema["properties"]
    if len(fields) > MOST_FIELDS:
        raise ValueError(f"its form has more than {MOST_FIELDS} fields")
    for name, field in fields.items():
        if not isinstance(field, dict) or not _is_flat(field):
            raise ValueError(f"the field `{str(name)[:80]}` of its form is of a kind that the protocol does not allow")
    if len(encode(fields)) > LONGEST_FORM:
        raise ValueError(f"its form has more than {LONGEST_FORM} bytes")
    wanted = schema.get("required")
    required = [name for name in fields if name in wanted] if isinstance(wanted, list) else []
    return {
        "server": server,
        "mode": "form",
        "message": message,
        "requested_schema": {
            "type": "object",
            "properties": {name: _drop_wrong_default(field) for name, field in fields.items()},
            "required": required,
        },
    }


def _drop_wrong_default(field: Json) -> Json:
    """The field without a value that is no answer to it: whoever leaves the field as it is would be told that they are wrong."""
    if "default" not in field or _find_flaw(field, field["default"]) is None:
        return field
    return {name: value for name, value in field.items() if name != "default"}


def _check_link(url: object) -> str:
    """An address that is what it looks like: people judge by it where they are going. Raises `ValueError`."""
    if isinstance(url, str) and len(url) > LONGEST_MESSAGE:
        raise ValueError(f"the address to open has more than {LONGEST_MESSAGE} characters")
    parts = urlsplit(url) if isinstance(url, str) else urlsplit("")
    if not isinstance(url, str) or parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError("it asks to open what is no http:// or https:// address")
    if "@" in parts.netloc or not _LINK.fullmatch(url):
        raise ValueError("the address to open has a user name, or characters that an address is not written with")
    return url


def asks_for_secret(question: Json) -> bool:
    """Whether a form seems to want a secret, which the protocol forbids servers to ask for so: by what its fields are called that
    take any text or number, or by its message if they do. Letters that only look like those of a word count as them."""
    fields = (question.get("requested_schema") or {}).get("properties") or {}
    free = {name: field for name, field in fields.items() if field.get("type") != "boolean" and list_choices(field) is None}
    told = [
        f"{name} {field.get('title', '')} {field.get('description', '')} {field.get('format', '')}"
        for name, field in free.items()
    ]
    said = [str(question.get("message", ""))] if free else []
    return any(_SECRET.search(fold_text(_HUMP.sub(" ", text)).replace("_", " ")) for text in (*told, *said))


def describe_question(question: Json, *, is_trusted: bool = True) -> str:
    """Who asks what, for the person who is to answer."""
    warning = "; it seems to want a secret, which no server may ask for in a form" if asks_for_secret(question) else ""
    stranger = "" if is_trusted else ", which the request brought"
    return f"MCP server `{question['server']}`{stranger} asks: {question['message']}{warning}"


def list_flaws(schema: Json, content: Json) -> list[str]:
    """Why these are no answers to the form, one by one; empty if they are."""
    fields = schema["properties"]
    missing = [f"`{name}` is missing" for name in schema.get("required", ()) if name not in content]
    unknown = [f"`{name}` is no field of the form" for name in content if name not in fields]
    wrong = [
        f"`{name}` {flaw}"
        for name, value in content.items()
        if name in fields and (flaw := _find_flaw(fields[name], value)) is not None
    ]
    return [*missing, *unknown, *wrong]


def fill_defaults(schema: Json) -> Json:
    """The fields that have a value already, for a person who leaves them as they are."""
    return {name: field["default"] for name, field in schema["properties"].items() if "default" in field}


def list_choices(field: Json) -> list[str] | None:
    """The values to choose from, None if there is no such list."""
    match field:
        case {"enum": [*values]}:
            return [str(value) for value in values]
        case {"oneOf": [*options]} | {"anyOf": [*options]}:
            return [str(option.get("const")) for option in options if isinstance(option, dict)]
        case {"type": "array", "items": dict(items)}:
            return list_choices(items)
        case _:
            return None


def parse_field(field: Json, text: str) -> object:
    """What a person typed into a field, as the value it stands for; the text itself where it stands for none."""
    kind, said = field.get("type"), text.strip()
    if kind == "boolean" and said.lower() in ("y", "yes", "true", "n", "no", "false"):
        return said.lower() in ("y", "yes", "true")
    if kind == "array":
        return [each.strip() for each in said.split(",") if each.strip()]
    if kind in ("number", "integer"):
        for read in (int, float):
            try:
                return read(said)
            except ValueError:
                continue
    return text


def _is_flat(field: Json) -> bool:
    if not _is_shallow(field, DEEPEST_FIELD):
        return False
    kind, choices = field.get("type"), list_choices(field)
    if choices is not None and len(choices) > MOST_CHOICES:
        return False
    if kind == "array":
        items = field.get("items")
        return isinstance(items, dict) and items.get("type") != "array" and choices is not None
    return kind in ("string", "number", "integer", "boolean") or (kind is None and choices is not None)


def _is_shallow(value: object, levels: int) -> bool:
    """Whether nothing in it is nested more deeply than that."""
    if not isinstance(value, dict | list):
        return True
    inner = value.values() if isinstance(value, dict) else value
    return levels > 0 and all(_is_shallow(each, levels - 1) for each in inner)


def _find_flaw(field: Json, value: object) -> str | None:
    kind, choices = field.get("type", "string"), list_choices(field)
    match kind, value:
        case "array", [*chosen]:
            if not all(isinstance(each, str) and each in (choices or ()) for each in chosen):
                return f"must be some of {_name(choices or ())}"
            return _find_excess(field, len(chosen), "minItems", "maxItems", "choices")
        case "boolean", bool():
            return None
        case "integer", int() | float() if not isinstance(value, bool) and (isinstance(value, int) or value.is_integer()):
            return _find_excess(field, value, "minimum", "maximum", "")
        case "number", int() | float() if not isinstance(value, bool):
            return _find_excess(field, value, "minimum", "maximum", "")
        case "string", str():
            if choices is not None:
                return None if value in choices else f"must be one of {_name(choices)}"
            pattern = _FORMATS.get(str(field.get("format")))
            if len(value) > LONGEST_TEXT or (pattern is not None and not pattern.fullmatch(value)):
                return f"must be text of the format {field.get('format')}" if pattern else "is too long"
            return _find_excess(field, len(value), "minLength", "maxLength", "characters")
        case _:
            return f"must be of the type {kind}"


def _find_excess(field: Json, size: float, least: str, most: str, unit: str) -> str | None:
    low, high = field.get(least), field.get(most)
    if isinstance(low, int | float) and size < low:
        return f"must be at least {low} {unit}".rstrip()
    if isinstance(high, int | float) and size > high:
        return f"must be at most {high} {unit}".rstrip()
    return None


def _name(choices: Sequence[str]) -> str:
    return ", ".join([f"`{choice}`" for choice in choices[:20]])
