"""What a tool of an MCP server answers, as parts of a tool output."""

import mimetypes
from pathlib import PurePosixPath
from urllib.parse import urlsplit

import msgspec

from mainspring.items import InputFile, InputImage, InputText, Json, Part
from mainspring.tools.mcp.exchange import Answer


def output_of(answer: Answer) -> str | tuple[Part, ...]:
    """One text if all is text; else the parts in their order. Structured content is added unless a text says the same."""
    parts = [_part(block) for block in answer.content]
    texts = [part.text for part in parts if isinstance(part, InputText)]
    if answer.structured is not None and not _is_told(texts, answer.structured):
        parts.append(InputText(_json(answer.structured)))
        texts.append(_json(answer.structured))
    return "\n".join(texts) if len(texts) == len(parts) else tuple(parts)


def _part(block: Json) -> Part:
    match block:
        case {"type": "text", "text": str(text)}:
            return InputText(text)
        case {"type": "image", "data": str(data), "mimeType": str(mime)}:
            return _data(data, mime, "image")
        case {"type": "audio", "data": str(data), "mimeType": str(mime)}:
            return _data(data, mime, "audio")
        case {"type": "resource", "resource": {"text": str(text), **rest}}:
            return InputText(f"{rest.get('uri', 'resource')}:\n{text}")
        case {"type": "resource", "resource": {"blob": str(data), **rest}}:
            mime = str(rest.get("mimeType") or "application/octet-stream")
            return _data(data, mime, PurePosixPath(urlsplit(str(rest.get("uri", ""))).path).name or "resource")
        case {"type": "resource_link", "uri": str(uri), **rest}:
            about = [str(rest[key]) for key in ("title", "name", "description", "mimeType") if rest.get(key)]
            return InputText(f"{uri} ({', '.join(dict.fromkeys(about))})" if about else uri)
        case _:
            return InputText(_json(block))


def _data(data: str, mime: str, name: str) -> Part:
    url = f"data:{mime};base64,{data}"
    if mime.startswith("image/"):
        return InputImage(url)
    return InputFile(filename=name if "." in name else name + (mimetypes.guess_extension(mime) or ""), file_data=url)


def _is_told(texts: list[str], structured: object) -> bool:
    """Whether the texts already say it: as JSON, or, where a server has wrapped a bare result, as the result itself."""
    match structured:
        case {"result": result, **rest} if not rest:
            return result == texts or any(text == result or _says(text, result) for text in texts)
        case _:
            return any(_says(text, structured) for text in texts)


def _says(text: str, value: object) -> bool:
    try:
        return bool(msgspec.json.decode(text) == value)
    except (msgspec.DecodeError, RecursionError):
        return False


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()
