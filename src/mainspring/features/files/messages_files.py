"""Files as clients of the Messages API upload them, list them and see them."""

from collections.abc import Mapping, Sequence, Set
from contextlib import suppress
from datetime import UTC, datetime
from typing import Final

from msgspec import Struct
from starlette.requests import Request

from mainspring.core.errors import InvalidRequest, NotFound
from mainspring.features.files.files import Files
from mainspring.features.files.stored_file import HOUR, StoredFile
from mainspring.http.ignored import IgnoredFields
from mainspring.http.queries import read_number

MOST_LISTED: Final = 1_000
MOST_IDS: Final = 100
LONGEST: Final = 90 * 24 * HOUR
_LISTED: Final = 20
_PAGE: Final = "page_"
_UNKNOWN: Final = "application/octet-stream"


class MessagesFile(Struct, frozen=True):
    id: str
    filename: str
    mime_type: str
    size_bytes: int
    created_at: str
    expires_at: str | None
    downloadable: bool = True
    type: str = "file"


class MessagesFileList(Struct, frozen=True):
    data: Sequence[MessagesFile]
    first_id: str | None
    last_id: str | None
    has_more: bool
    next_page: str | None


class DeletedMessagesFile(Struct, frozen=True):
    id: str
    type: str = "file_deleted"


def render_messages_file(file: StoredFile) -> MessagesFile:
    expires = None if file.expires_at is None else _render_time(file.expires_at)
    return MessagesFile(file.id, file.filename, file.mime or _UNKNOWN, file.size, _render_time(file.created_at), expires)


def read_lifetime(fields: Mapping[str, str], ignored: IgnoredFields) -> float | None:
    """How many seconds a file is to be there, None for ever, by the fields of its form. Raises `InvalidRequest`."""
    ignored.compare("", dict(fields), {"expires_in_seconds", "purpose"})
    if (text := fields.get("expires_in_seconds")) is None:
        return None
    if not (text.isascii() and text.isdigit() and len(text) <= 8 and HOUR <= int(text) <= LONGEST):
        told = f"expires_in_seconds must be between {HOUR} and {LONGEST}"
        raise InvalidRequest(told, param="expires_in_seconds", code="invalid_value")
    return float(text)


async def list_messages_files(request: Request, files: Files, tenant: str) -> MessagesFileList:
    """The newest first: those of `ids`, or `limit` of them behind what `page` or `after_id` names. Raises `InvalidRequest` and
    `NotFound`."""
    query = request.query_params
    limit = read_number(request, "limit", most=MOST_LISTED) or _LISTED
    after = query.get("page", "").removeprefix(_PAGE) or query.get("after_id")
    if ids := {*query.getlist("ids"), *query.getlist("ids[]")}:
        found, has_more = await _find_named(files, tenant, ids), False
    else:
        found, has_more = await files.list(tenant, limit=limit, after=after, newest_first=True)
    first, last = (found[0].id, found[-1].id) if found else (None, None)
    return MessagesFileList(
        [render_messages_file(file) for file in found], first, last, has_more, f"{_PAGE}{last}" if has_more else None
    )


async def _find_named(files: Files, tenant: str, ids: Set[str]) -> Sequence[StoredFile]:
    """Those of them that there are."""
    if len(ids) > MOST_IDS:
        raise InvalidRequest(f"ids may name {MOST_IDS} files", param="ids", code="invalid_value")
    found: list[StoredFile] = []
    for id in ids:
        with suppress(NotFound):
            found.append(await files.get(tenant, id))
    return sorted(found, key=lambda file: file.created_at, reverse=True)


def _render_time(seconds: float) -> str:
    return datetime.fromtimestamp(int(seconds), UTC).isoformat().replace("+00:00", "Z")
