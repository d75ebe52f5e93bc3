"""The Containers API: the workspaces of `shell` and `code_interpreter`, made, listed and removed, and files in and out of them.

A container belongs to a tenant. A file's id follows from its path, so nothing is kept of files but the files themselves: what
code writes is there as well as what was sent.
"""

import os
from collections.abc import AsyncGenerator, Collection
from contextlib import aclosing
from hashlib import sha256
from typing import Annotated, Final, Literal

from msgspec import Meta, Struct
from starlette.requests import Request
from starlette.responses import Response as HttpResponse

from mainspring.core.errors import InvalidRequest, NotFound
from mainspring.core.ids import NewId
from mainspring.core.items import Json
from mainspring.core.sandbox import WorkspaceFile
from mainspring.http.auth import get_caller, get_tenant
from mainspring.http.bodies import MOST_BODY_BYTES, media_type, parse_body, read_json_body
from mainspring.http.endpoints import Endpoint, Parameter
from mainspring.http.faults import Fault, json_response
from mainspring.http.forms import FormPart, read_all, read_form, refuse_form
from mainspring.http.ignored import IgnoredFields
from mainspring.http.queries import CURSOR, Deleted, Page, cut_page, read_cursor
from mainspring.ports import FileLoader, NamedFile
from mainspring.tools.builtin.builtins import JAILED, MOST_FILES, put_files
from mainspring.tools.builtin.containers import IDLE_SECONDS, ContainerInfo, Containers
from mainspring.tools.contract import EXECUTE

LONGEST_MINUTES: Final = int(IDLE_SECONDS // 60)

_PATH: Final = "/v1/containers/{container_id}"


class ExpiresAfter(Struct, frozen=True):
    minutes: Annotated[int, Meta(ge=1, le=LONGEST_MINUTES)]
    anchor: Literal["last_active_at"] = "last_active_at"


class CreateContainer(Struct):
    """The body of `POST /v1/containers`."""

    name: Annotated[str, Meta(max_length=256)]
    expires_after: ExpiresAfter | None = None
    file_ids: Annotated[tuple[str, ...], Meta(max_length=MOST_FILES)] | None = None
    memory_limit: str | None = None
    network_policy: Json | None = None
    skills: tuple[Json, ...] | None = None


class CreateFile(Struct):
    """The body of `POST /v1/containers/{container_id}/files`, unless it is a form with a `file`."""

    file_id: str | None = None


class ContainerObject(Struct, frozen=True):
    id: str
    created_at: int
    last_active_at: int
    name: str
    expires_after: ExpiresAfter
    status: str = "running"
    object: str = "container"


class ContainerFile(Struct, frozen=True):
    """`path` is relative to the folder that code starts in; `source` is `user` for what was sent, else `assistant`."""

    id: str
    bytes: int
    container_id: str
    created_at: int
    path: str
    source: Literal["user", "assistant"]
    object: str = "container.file"


class ContainerRoutes:
    """Every endpoint under `/v1/containers`."""

    def __init__(self, containers: Containers | None, new_id: NewId, load: FileLoader) -> None:
        self._offered, self._new_id, self._load = containers, new_id, load

    def endpoints(self) -> tuple[Endpoint, ...]:
        return (
            Endpoint("POST", "/v1/containers", self.create, "responses", ContainerObject, CreateContainer, errors=(404, 429)),
            Endpoint("GET", "/v1/containers", self.list, "responses", Page, query=(*CURSOR, Parameter("name")), errors=(404,)),
            Endpoint("GET", _PATH, self.retrieve, "responses", ContainerObject),
            Endpoint("DELETE", _PATH, self.delete, "responses", Deleted),
            Endpoint("POST", f"{_PATH}/files", self.add_file, "responses", ContainerFile, CreateFile, takes_file=True),
            Endpoint("GET", f"{_PATH}/files", self.list_files, "responses", Page, query=CURSOR),
            Endpoint("GET", f"{_PATH}/files/{{file_id}}", self.retrieve_file, "responses", ContainerFile),
            Endpoint("DELETE", f"{_PATH}/files/{{file_id}}", self.delete_file, "responses", Deleted),
            Endpoint("GET", f"{_PATH}/files/{{file_id}}/content", self.content, "responses", is_file=True),
        )

    async def create(self, request: Request) -> HttpResponse:
        """Creates a container."""
        _check_scope(request)
        ignored = IgnoredFields()
        body = ignored.parse(await read_json_body(request) or b"{}", CreateContainer)
        for name in ("memory_limit", "network_policy", "skills"):
            if getattr(body, name):
                raise InvalidRequest(
                    f"`{name}` cannot be set here; make the container without it, and send files to it", param=name
                )
        seconds = None if body.expires_after is None else body.expires_after.minutes * 60.0
        tenant, id = get_tenant(request), self._new_id("cntr")
        await put_files(self._containers, self._load, tenant, id, body.file_ids or (), name=body.name, idle_seconds=seconds)
        made = await self._containers.describe(tenant, id)
        return json_response(_render_container(made), headers=ignored.make_headers())

    async def list(self, request: Request) -> HttpResponse:
        """Lists the containers, newest first."""
        wanted = request.query_params.get("name")
        found = [about for about in await self._containers.list_all(get_tenant(request)) if wanted in (None, about.name)]
        return json_response(
            cut_page([_render_container(about) for about in found], [about.id for about in found], read_cursor(request))
        )

    async def retrieve(self, request: Request) -> HttpResponse:
        """Retrieves a container."""
        return json_response(_render_container(await self._containers.describe(*_key(request))))

    async def delete(self, request: Request) -> HttpResponse:
        """Deletes a container and its files."""
        _check_scope(request)
        tenant, id = _key(request)
        await self._containers.remove(tenant, id)
        return json_response(Deleted(id, "container.deleted"))

    async def add_file(self, request: Request) -> HttpResponse:
        """Uploads a file to a container."""
        _check_scope(request)
        tenant, id = _key(request)
        await self._containers.describe(tenant, id)
        if media_type(request) != "multipart/form-data":
            if (file_id := parse_body(await read_json_body(request) or b"{}", CreateFile).file_id) is None:
                raise InvalidRequest("name an uploaded file as `file_id`, or send a form with a `file`", param="file_id")
            sent = await self._load_file(tenant, file_id)
        else:
            sent = await read_upload(read_form(request, MOST_BODY_BYTES))
        entry = await self._containers.put(tenant, id, sent.name, sent.data)
        return json_response(_render_file(id, entry, (entry.path,)))

    async def list_files(self, request: Request) -> HttpResponse:
        """Lists the files of a container, newest first."""
        tenant, id = _key(request)
        listing, given = await self._containers.list(tenant, id), await self._containers.list_given(tenant, id)
        files = [_render_file(id, entry, given) for entry in listing.entries]
        return json_response(cut_page(files, [file.id for file in files], read_cursor(request)))

    async def retrieve_file(self, request: Request) -> HttpResponse:
        """Retrieves a file of a container, without its content."""
        tenant, id = _key(request)
        entry = await self._entry(request)
        return json_response(_render_file(id, entry, await self._containers.list_given(tenant, id)))

    async def content(self, request: Request) -> HttpResponse:
        """Downloads a file of a container."""
        data = await self._containers.get(*_key(request), (await self._entry(request)).path)
        headers = {"content-disposition": "attachment", "x-content-type-options": "nosniff"}
        return HttpResponse(data, headers=headers, media_type="application/octet-stream")

    async def delete_file(self, request: Request) -> HttpResponse:
        """Deletes a file of a container."""
        _check_scope(request)
        await self._containers.remove_file(*_key(request), (await self._entry(request)).path)
        return json_response(Deleted(str(request.path_params["file_id"]), "container.file.deleted"))

    async def _load_file(self, tenant: str, id: str) -> NamedFile:
        return await self._load(tenant, id, self._containers.spec.limits.file)

    @property
    def _containers(self) -> Containers:
        if self._offered is None:
            raise NotFound(
                "this server has no containers; its operator can offer them: mainspring serve --builtin code_interpreter"
            )
        return self._offered

    async def _entry(self, request: Request) -> WorkspaceFile:
        """The file that the path names. Raises `NotFound`."""
        tenant, id = _key(request)
        wanted = str(request.path_params["file_id"])
        for entry in (await self._containers.list(tenant, id)).entries:
            if _derive_file_id(id, entry) == wanted:
                return entry
        raise NotFound(f"Container file with id '{wanted}' not found in container '{id}'.", param="file_id")


async def read_upload(parts: AsyncGenerator[FormPart, None]) -> NamedFile:
    """The part `file` of a form. Raises `Fault`."""
    sent: NamedFile | None = None
    async with aclosing(parts):
        async for part in parts:
            if part.name == "file" and sent is None:
                sent = NamedFile(part.filename, await read_all(part.pieces, MOST_BODY_BYTES, "file"))
    if sent is None:
        raise refuse_form("it has no part called `file`")
    return sent


def _check_scope(request: Request) -> None:
    """Raises `Fault` for a key that may not run anything in a container: then it has nothing to put there."""
    scopes, needed = get_caller(request).tools, (EXECUTE, *[f"{EXECUTE}:{name}" for name in JAILED])
    if scopes is not None and not set(needed) & set(scopes):
        told = f"this API key may use no tool that works in a container; a key with the scope `{EXECUTE}` is needed here"
        raise Fault(403, "insufficient_scope", told)


def _key(request: Request) -> tuple[str, str]:
    return get_tenant(request), str(request.path_params["container_id"])


def _render_container(about: ContainerInfo) -> ContainerObject:
    expires = ExpiresAfter(int(about.idle_seconds // 60))
    return ContainerObject(about.id, int(about.created_at), int(about.used_at), about.name, expires)


def _derive_file_id(container: str, entry: WorkspaceFile) -> str:
    return f"cfile_{sha256(os.fsencode(f'{container}/{entry.path}')).hexdigest()[:24]}"


def _render_file(container: str, entry: WorkspaceFile, given: Collection[str]) -> ContainerFile:
    return ContainerFile(
        _derive_file_id(container, entry),
        entry.size,
        container,
        entry.modified // 10**9,
        # A name need not be text; what is told must be.
        os.fsencode(entry.path).decode("utf-8", "replace"),
        "user" if entry.path in given else "assistant",
    )
