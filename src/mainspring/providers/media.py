"""Images and files as clients send them: inside a data URL, as bare base64, or at an address."""

import mimetypes
import re
from base64 import b64decode
from collections.abc import Callable, Iterable

from msgspec import Struct

from mainspring.core.errors import Refused
from mainspring.core.items import InputFile, InputText, Part, Unknown


class EmbeddedFile(Struct, frozen=True):
    """Content that came along: its type, and its bytes in base64."""

    mime: str
    data: str

    def text(self) -> str | None:
        """The content as words, None if it is no text."""
        if self.mime == "application/pdf" or self.mime.startswith(("image/", "audio/", "video/")):
            return None
        try:
            return b64decode(self.data).decode()
        except ValueError:
            return None


def parse_data_url(url: str) -> EmbeddedFile | None:
    """What a data URL holds, None if it is an address. Raises `Refused` for one that is not in base64."""
    if not url.startswith("data:"):
        return None
    found = _DATA_URL.match(url)
    if found is None:
        raise Refused(f"the data URL `{url:.60}` cannot be read; write it as data:TYPE;base64,CONTENT")
    return EmbeddedFile(found[1].lower() or "text/plain", url[found.end() :])


def read_attachment(file: InputFile) -> EmbeddedFile | None:
    """The content of a file that came along, None if it only has an address or an id. Its name tells the type if need be."""
    if not isinstance(file.file_data, str):
        return None
    return parse_data_url(file.file_data) or EmbeddedFile(guess_mime(file.filename or "", "application/pdf"), file.file_data)


def list_readable(parts: Iterable[Part], can_send: Callable[[EmbeddedFile], bool]) -> list[Part]:
    """What a tool has put out. A file that the backend cannot take is named instead: no answer of a tool's may fail the run."""
    return [part if (file := _find_file(part)) is None or can_send(file) else _name_file(part, file) for part in parts]


def is_document(file: EmbeddedFile) -> bool:
    """Whether it is text, or pages to look at, which most backends take."""
    return file.mime == "application/pdf" or file.mime.startswith("image/") or file.text() is not None


def is_sound_or_film(file: EmbeddedFile) -> bool:
    return file.mime.startswith(("audio/", "video/"))


def _find_file(part: Part) -> EmbeddedFile | None:
    return read_attachment(part) if isinstance(part, InputFile) else None


def _name_file(part: Part, file: EmbeddedFile) -> InputText:
    name = part.filename if isinstance(part, InputFile) and isinstance(part.filename, str) and part.filename else "file"
    return InputText(f"[{name}: {file.mime}, {len(file.data) * 3 // 4} bytes, which this model cannot be given]")


def is_audio(part: Part) -> bool:
    """Whether it is a piece of sound, which only some formats can carry."""
    return isinstance(part, Unknown) and part.data.get("type") == "input_audio"


def guess_mime(name: str, default: str) -> str:
    """The type that the ending of a name or an address stands for."""
    return mimetypes.guess_type(name.partition("?")[0])[0] or default


_DATA_URL = re.compile(r"data:([\w.+-]+/[\w.+-]+|)(?:;[\w.+-]+=[^;,]*)*;base64,", re.IGNORECASE)
