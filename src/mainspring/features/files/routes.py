"""`/v1/files` and `/v1/uploads`: files of the caller's tenant go in by a form or in parts, are listed, read and deleted.

Clients of OpenAI's API and of the Messages API share the routes, and see the same files in their own shape.
"""

from collections.abc import Mapping
from contextlib import aclosing
from typing import Final, get_args
from urllib.parse import quote

import msgspec
from msgspec import Struct
from starlette.requests import Request
from starlette.responses import Response as HttpResponse
from starlette.responses import StreamingResponse

from mainspring.core.errors import InvalidRequest
from mainspring.features.files.files import Content, Files
from mainspring.features.files.messages_files import (
    DeletedMessagesFile,
    MessagesFile,
    MessagesFileList,
    list_messages_files,
    read_lifetime,
    render_messages_file,
)
from mainspring.features.files.stored_file import FileExpiry, FileObject, Purpose, StoredFile, render_file
from mainspring.features.files.uploads import CompleteUpload, CreateUpload, UploadObject, UploadPart, Uploads
from mainspring.http.auth import get_tenant
from mainspring.http.endpoints import Endpoint, Parameter
from mainspring.http.faults import json_response
from mainspring.http.forms import read_form, refuse_form
from mainspring.http.ignored import IgnoredFields, read_known
from mainspring.http.queries import Deleted, Page, is_of_messages, make_page, read_choice, read_number

MOST_LISTED: Final = 10_000
# What a form may have beside the file in it.
FORM_BYTES: Final = 1 << 20
MOST_NAME: Final = 512
_LIST: Final = (
    Parameter("limit", {"type": "integer", "minimum": 1, "maximum": MOST_LISTED, "default": MOST_LISTED}),
    Parameter("order", {"enum": ["asc", "desc"], "default": "desc"}),
    Parameter("after"),
    Parameter("purpose"),
)
_FILE: Final = "/v1/files/{file_id}"
_EXPIRES: Final = "expires_after["
_UPLOAD: Final = "/v1/uploads/{upload_id}"


class FileForm(Struct):
    """The fields of the form that `POST /v1/files` takes, beside its `file`."""

    purpose: Purpose
    expires_after: FileExpiry | None = None


class PartForm(Struct):
    """The form that `POST /v1/uploads/{upload_id}/parts` takes has its bytes in `data`."""


class FileRoutes:
    def __init__(self, files: Files) -> None:
        self._files, self._uploads = files, Uploads(files)

    def endpoints(self) -> tuple[Endpoint, ...]:
        return (
            Endpoint(
                "POST", "/v1/files", self.create, "responses", FileObject, FileForm,
                form="file", schemas=(MessagesFile,), errors=(503,),
            ),
            Endpoint("GET", "/v1/files", self.list, "responses", Page, query=_LIST, schemas=(MessagesFileList,)),
            Endpoint("GET", _FILE, self.retrieve, "responses", FileObject),
            Endpoint("DELETE", _FILE, self.delete, "responses", Deleted, schemas=(DeletedMessagesFile,)),
            Endpoint("GET", f"{_FILE}/content", self.content, "responses", is_file=True),
            Endpoint("POST", "/v1/uploads", self.create_upload, "responses", UploadObject, CreateUpload, errors=(503,)),
            Endpoint("POST", f"{_UPLOAD}/parts", self.add_part, "responses", UploadPart, PartForm, form="data"),
            Endpoint("POST", f"{_UPLOAD}/complete", self.complete_upload, "responses", UploadObject, CompleteUpload),
            Endpoint("POST", f"{_UPLOAD}/cancel", self.cancel_upload, "responses", UploadObject),
        )  # fmt: skip

    async def create(self, request: Request) -> HttpResponse:
        """Uploads a file. The answer to a request with `anthropic-version` is as in that API, here and below."""
        ignored, fields = IgnoredFields(), dict[str, str]()
        content: Content | None = None
        name = mime = ""
        room = await self._files.find_room(get_tenant(request), int(request.headers.get("content-length", 0)) - FORM_BYTES)
        try:
            async with aclosing(read_form(request, self._files.settings.file_bytes + FORM_BYTES)) as parts:
                async for part in parts:
                    if part.name == "file" and content is None:
                        name, mime = part.filename, part.content_type
                        content = await self._files.receive(part.pieces, room=room)
                    elif part.name in ("file", *fields):
                        raise refuse_form(f"it has more than one `{part.name:.80}`")
                    else:
                        fields[part.name] = await part.read_field()
            purpose, seconds = _read_order(request, fields, ignored)
            if content is None:
                raise refuse_form("it has no part called `file`")
            _check_name(name)
        except BaseException:
            if content is not None:
                await self._files.drop(content.key)
            raise
        made = await self._files.add(get_tenant(request), content, name, purpose, seconds, mime=mime)
        return json_response(_render(request, made), headers=ignored.make_headers())

    async def list(self, request: Request) -> HttpResponse:
        """Lists files, newest first."""
        if is_of_messages(request):
            return json_response(await list_messages_files(request, self._files, get_tenant(request)))
        newest_first = read_choice(request, "order", {"desc": True, "asc": False}) is not False
        found, has_more = await self._files.list(
            get_tenant(request),
            limit=read_number(request, "limit", most=MOST_LISTED) or MOST_LISTED,
            after=request.query_params.get("after"),
            newest_first=newest_first,
            purpose=request.query_params.get("purpose"),
        )
        return json_response(make_page([render_file(file) for file in found], [file.id for file in found], has_more=has_more))

    async def retrieve(self, request: Request) -> HttpResponse:
        """Retrieves a file, without its content."""
        return json_response(_render(request, await self._files.get(*_file_key(request))))

    async def delete(self, request: Request) -> HttpResponse:
        """Deletes a file."""
        tenant, id = _file_key(request)
        await self._files.remove(tenant, id)
        return json_response(DeletedMessagesFile(id) if is_of_messages(request) else Deleted(id, "file"))

    async def content(self, request: Request) -> HttpResponse:
        """Downloads a file."""
        file = await self._files.get(*_file_key(request))
        headers = {
            "content-disposition": f"attachment; filename*=UTF-8''{quote(file.filename, safe='')}",
            "content-length": str(file.size),
            "x-content-type-options": "nosniff",
        }
        return StreamingResponse(self._files.read(file), headers=headers, media_type="application/octet-stream")

    async def create_upload(self, request: Request) -> HttpResponse:
        """Begins an upload in parts."""
        order, headers = await read_known(request, CreateUpload)
        _check_name(order.filename)
        return json_response(await self._uploads.create(get_tenant(request), order), headers=headers)

    async def add_part(self, request: Request) -> HttpResponse:
        """Adds a part to an upload."""
        made: UploadPart | None = None
        async with aclosing(read_form(request, self._files.settings.file_bytes + FORM_BYTES)) as parts:
            async for part in parts:
                if part.name == "data" and made is None:
                    made = await self._uploads.add_part(*_upload_key(request), part.pieces)
        if made is None:
            raise refuse_form("it has no part called `data`")
        return json_response(made)

    async def complete_upload(self, request: Request) -> HttpResponse:
        """Completes an upload: its parts become a file."""
        order, headers = await read_known(request, CompleteUpload)
        return json_response(await self._uploads.complete(*_upload_key(request), order), headers=headers)

    async def cancel_upload(self, request: Request) -> HttpResponse:
        """Cancels an upload, and drops its parts."""
        return json_response(await self._uploads.cancel(*_upload_key(request)))


def _file_key(request: Request) -> tuple[str, str]:
    return get_tenant(request), str(request.path_params["file_id"])


def _upload_key(request: Request) -> tuple[str, str]:
    return get_tenant(request), str(request.path_params["upload_id"])


def _check_name(name: str) -> None:
    if not name or len(name) > MOST_NAME or any(ord(letter) < 32 for letter in name):
        told = f"the file needs a name of 1 to {MOST_NAME} printable characters"
        raise InvalidRequest(told, param="filename", code="invalid_value")


def _render(request: Request, file: StoredFile) -> FileObject | MessagesFile:
    return render_messages_file(file) if is_of_messages(request) else render_file(file)


def _read_order(request: Request, fields: Mapping[str, str], ignored: IgnoredFields) -> tuple[Purpose, float | None]:
    """What a file is for, and how many seconds it is to be there. Notes the fields that are ignored. Raises `InvalidRequest`."""
    if is_of_messages(request):
        return "user_data", read_lifetime(fields, ignored)
    form = _read_form(fields, ignored)
    return form.purpose, None if form.expires_after is None else float(form.expires_after.seconds)


def _read_form(fields: Mapping[str, str], ignored: IgnoredFields) -> FileForm:
    """The form, which may write `expires_after` as JSON or in brackets."""
    purposes = get_args(Purpose)
    if (purpose := fields.get("purpose")) not in purposes:
        code = "missing_required_parameter" if purpose is None else "invalid_value"
        raise InvalidRequest(f"purpose must be one of {', '.join(purposes)}", param="purpose", code=code)
    inner = {name[len(_EXPIRES) :].removesuffix("]"): value for name, value in fields.items() if name.startswith(_EXPIRES)}
    others = {name: value for name, value in fields.items() if not name.startswith(_EXPIRES)}
    ignored.compare("", others, {"purpose"} if inner else {"purpose", "expires_after"})
    ignored.compare("expires_after", inner, {"anchor", "seconds"})
    try:
        if inner:
            return FileForm(purpose, msgspec.convert(inner, FileExpiry, strict=False))  # type: ignore[arg-type]
        made = msgspec.json.decode(fields.get("expires_after", "null"), type=FileExpiry | None)
    except (msgspec.DecodeError, RecursionError) as error:
        told = f"expires_after: {error}; write expires_after[anchor]=created_at and expires_after[seconds]=3600 to 2592000"
        raise InvalidRequest(told, param="expires_after", code="invalid_value") from None
    return FileForm(purpose, made)  # type: ignore[arg-type]
