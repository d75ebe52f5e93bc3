"""Converts the answer of an MCP tool to the parts of a tool output."""

import mimetypes
import re
from base64 import b64decode
from pathlib import PurePosixPath
from urllib.parse import urlsplit

import msgspec

from mainspring.core.items import InputFile, InputImage, InputText, Json, Part
from mainspring.core.text import shorten_line
from mainspring.tools.images import detect_image_type
from mainspring.tools.mcp.exchange import ToolAnswer

LONGEST_URI = 2_048
_KIND = re.compile(r"[A-Za-z0-9][A-Za-z0-9!#$&^_.+-]{0,126}/[A-Za-z0-9][A-Za-z0-9!#$&^_.+-]{0,126}")


def render_answer(answer: ToolAnswer) -> str | tuple[Part, ...]:
    """One text if all is text; else the parts in their order. Structured content is added unless a text says the same."""
    parts = [_convert_block(block) for block in answer.content]
    texts = [part.text for part in parts if isinstance(part, InputText)]
    if answer.structured is not None and not _is_in_texts(texts, answer.structured):
        parts.append(InputText(_encode_json(answer.structured)))
        texts.append(_encode_json(answer.structured))
    return "\n".join(texts) if len(texts) == len(parts) else tuple(parts)


def _convert_block(block: Json) -> Part:
    match block:
        case {"type": "text", "text": str(text)}:
            return InputText(text)
        case {"type": "image", "data": str(data), "mimeType": str(mime)}:
            return _convert_data(data, mime, "image")
        case {"type": "audio", "data": str(data), "mimeType": str(mime)}:
            return _convert_data(data, mime, "audio")
        case {"type": "resource", "resource": {"text": str(text), **rest}}:
            return InputText(f"{rest.get('uri', 'resource')}:\n{text}")
        case {"type": "resource", "resource": {"blob": str(data), **rest}}:
            mime = str(rest.get("mimeType") or "application/octet-stream")
            return _convert_data(data, mime, _name_resource(str(rest.get("uri", ""))))
        case {"type": "resource_link", "uri": str(uri), **rest}:
            about = [str(rest[key]) for key in ("title", "name", "description", "mimeType") if rest.get(key)]
            return InputText(f"{uri} ({', '.join(dict.fromkeys(about))})" if about else uri)
        case _:
            return InputText(_encode_json(block))


def _name_resource(uri: str) -> str:
    """What a resource is called, by the end of its address."""
    try:
        return PurePosixPath(urlsplit(uri[:LONGEST_URI]).path).name or "resource"
    except ValueError:
        return "resource"


def _convert_data(data: str, mime: str, name: str) -> Part:
    """The data as an image or a file, checked: a provider would refuse the whole request for an invalid image."""
    told = shorten_line(mime, 100)
    try:
        content = b64decode(data, validate=True)
    except ValueError:
        return InputText(f"[the server sent {name} ({told}) that is not base64]")
    if mime.startswith("image/"):
        if (kind := detect_image_type(content)) is None:
            return InputText(f"[the server sent {len(content)} bytes as {told} that are no image a model can look at]")
        return InputImage(f"data:{kind};base64,{data}")
    mime = mime if _KIND.fullmatch(mime) else "application/octet-stream"
    url = f"data:{mime};base64,{data}"
    return InputFile(filename=name if "." in name else name + (mimetypes.guess_extension(mime) or ""), file_data=url)


def _is_in_texts(texts: list[str], structured: object) -> bool:
    """Whether the texts already say it: as JSON, or as the one value in it, since a bare result has to be wrapped in an object.
    What that value is called is part of what it says where it is a number or less, but for `result`."""
    match structured:
        case {"result": value, **rest} if not rest:
            return _is_value_in_texts(texts, value)
        case dict() if len(structured) == 1 and isinstance(value := next(iter(structured.values())), str | list | dict):
            return _is_value_in_texts(texts, value) or _says(texts, structured)
        case _:
            return _says(texts, structured)


def _is_value_in_texts(texts: list[str], value: object) -> bool:
    return value == texts or value in texts or _says(texts, value)


def _says(texts: list[str], value: object) -> bool:
    """Whether one of the texts is this value as JSON. None that cannot be is parsed: it may be of any size."""
    commas, brackets = [_encode_json(value).count(sign) for sign in ",["]
    return any(text.count(",") == commas and text.count("[") == brackets and _is_json_of(text, value) for text in texts)


def _is_json_of(text: str, value: object) -> bool:
    try:
        return bool(msgspec.json.decode(text) == value)
    except (msgspec.DecodeError, RecursionError):
        return False


def _encode_json(value: object) -> str:
    return msgspec.json.encode(value).decode()
