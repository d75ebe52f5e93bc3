"""Items that certainly read back as they are written: messages with images and files, calls and outputs of words.

Most items are such. To know it by a look costs a tenth of what it costs to write an item and read it back (`items.flaw`), and
copies no large file.
"""

from typing import Final, get_args

from msgspec import UNSET

from mainspring.core.items import (
    FunctionCall,
    FunctionCallOutput,
    InputFile,
    InputImage,
    InputText,
    ItemStatus,
    Message,
    OutputText,
    Role,
)

_ROLES: Final = get_args(Role)
_STATUSES: Final = get_args(ItemStatus)


def is_plain(item: object) -> bool:
    """Whether the item is one of these. Nothing is taken for granted of the types of its fields."""
    if type(item) is Message:
        has_words = type(item.content) is tuple and all(map(_is_plain_part, item.content))
        return has_words and item.role in _ROLES and item.phase is UNSET and _is_known(item.id, item.status)
    if type(item) is FunctionCall:
        ours = (item.form, item.server, item.approval, item.namespace, item.inner)
        texts = (item.call_id, item.name, item.arguments)
        return all(map(_is_text, texts)) and _are_unset(ours) and _is_known(item.id, item.status)
    if type(item) is FunctionCallOutput:
        is_text = _is_text(item.output) and _is_text(item.call_id)
        return is_text and _are_unset((item.is_error, item.form, item.tools)) and _is_known(item.id, item.status)
    return False


def _is_known(id: object, status: object) -> bool:
    return _is_text(id) and type(status) is str and status in _STATUSES


def _are_unset(values: tuple[object, ...]) -> bool:
    return values.count(UNSET) == len(values)


def _is_plain_part(part: object) -> bool:
    if type(part) is OutputText:
        return _is_text(part.text) and part.annotations == part.logprobs == ()
    if type(part) is InputText:
        return _is_text(part.text)
    if type(part) is InputImage:
        has_url = part.image_url is None or _is_text(part.image_url)
        return has_url and _is_text(part.detail) and _is_absent_or_text(part.file_id)
    if type(part) is not InputFile:
        return False
    return all(map(_is_absent_or_text, (part.filename, part.file_data, part.file_url, part.file_id)))


def _is_absent_or_text(value: object) -> bool:
    return value is None or value is UNSET or _is_text(value)


def _is_text(text: object) -> bool:
    if type(text) is not str:
        return False
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:  # half a character, which no JSON has
        return False
    return True
