"""Holds MCP servers to what a person has approved: `mainspring.mcp.lock`.

The file pins for each server how it is reached (its command and grants, or its URL and the key of its certificate), the name
and version that it gives itself, and each tool by a digest of its name, description and schema. Whatever is another than pinned
is refused until a person accepts it: the whole server if it is reached otherwise or says to be something else, else the one
tool. Without the file nothing is held, and with it what it does not name is refused.
"""

import asyncio
import os
import stat
from hashlib import sha256
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import TYPE_CHECKING, Literal
from urllib.parse import urlsplit

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from mainspring.core.errors import InvalidRequest, ToolUnavailable
from mainspring.core.items import Json
from mainspring.core.redact import redact_text
from mainspring.late_module import LateModule
from mainspring.tools.addresses import AddressGuard, parse_endpoint
from mainspring.tools.mcp.exchange import RejectedTool, RemoteTool
from mainspring.tools.mcp.server_specs import ServerSpec
from mainspring.tools.mcp.toolset import ServerOffer, is_sign_in

if TYPE_CHECKING:
    from mainspring.net import client
else:
    client = LateModule("mainspring.net.client")

TLS_SECONDS = 15.0
MOST_LOCK_BYTES = 64 << 20
# Of 128 bits: a server cannot make two versions of itself that have the same.
DIGEST_LENGTH = 32


class PinnedTool(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """A tool as it was approved. What is behind the digest is kept so that changes can be shown."""

    digest: str
    description: str = ""
    schema: Json = {}
    annotations: Json = {}


class PinnedServer(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """A server as it was approved: `reached` is how, `certificate` a digest of the public key of its TLS certificate, `says` the
    name and version that it gives itself."""

    reached: str
    certificate: str = ""
    says: str = ""
    tools: dict[str, PinnedTool] = {}


class LockDifference(Struct, frozen=True):
    """One thing that is another than approved. Without a `tool` it is about the server itself."""

    label: str
    what: str
    tool: str = ""
    before: str = ""
    after: str = ""


class McpLock(Struct, frozen=True, forbid_unknown_fields=True):
    """The content of the file."""

    servers: dict[str, PinnedServer]
    version: Literal[1] = 1

    def review(self, offer: ServerOffer, certificate: str) -> ServerOffer:
        """The offer without what differs from what was approved, and with the reasons."""
        spec = offer.spec
        if not spec.trusted or offer.needs_sign_in or offer.error is not None:
            return offer
        found = self.compare(offer, certificate)
        own = [each.what for each in found if not each.tool]
        if own:
            return ServerOffer(spec, error=f"refused: {'; '.join(own)}. {_advise(spec.label)}", is_refused=True)
        flaws = {each.tool: f"{each.what}. {_advise(spec.label)}" for each in found}
        kept = tuple([tool for tool in offer.tools if tool.name not in flaws])
        refused = [RejectedTool(tool.name, flaws[tool.name]) for tool in offer.tools if tool.name in flaws]
        return replace(offer, tools=kept, rejected=(*offer.rejected, *refused))

    def compare(self, offer: ServerOffer, certificate: str) -> list[LockDifference]:
        """All that differs from what was approved."""
        label, pinned = offer.spec.label, self.servers.get(offer.spec.label)
        if pinned is None:
            return [LockDifference(label, f"the server `{label}` was never approved")]
        now, found = pin_server(offer, certificate), []
        for field, what in (
            ("reached", "it is reached otherwise than approved"),
            ("certificate", "its certificate has another key than approved"),
            ("says", "it says to be another version than approved"),
        ):
            before, after = getattr(pinned, field), getattr(now, field)
            if before != after:
                found.append(LockDifference(label, what, before=before, after=after))
        for name, tool in now.tools.items():
            known = pinned.tools.get(name)
            if known is None:
                found.append(LockDifference(label, "the tool was never approved", name, after=_show(tool)))
            elif known.digest != tool.digest:
                found.append(LockDifference(label, "the tool has changed since it was approved", name, _show(known), _show(tool)))
        return found

    def accept(self, offer: ServerOffer, certificate: str, tool: str | None = None) -> "McpLock":
        """The lock with the server as it is now, or with one tool of it and nothing else. Raises `InvalidRequest`."""
        label, now = offer.spec.label, pin_server(offer, certificate)
        if tool is not None:
            pinned = self.servers.get(label)
            if pinned is None:
                raise InvalidRequest(f"the server `{label}` was never approved; accept it first: mainspring mcp accept {label}")
            if tool not in now.tools:
                raise InvalidRequest(f"`{label}` has no tool `{tool}`; it has: {', '.join([f'`{name}`' for name in now.tools])}")
            now = replace(pinned, tools={**pinned.tools, tool: now.tools[tool]})
        return replace(self, servers={**self.servers, label: now})


def pin_server(offer: ServerOffer, certificate: str) -> PinnedServer:
    """The server as it is now."""
    tools = {tool.name: pin_tool(tool) for tool in offer.tools if not is_sign_in(offer.spec, tool.name)}
    return PinnedServer(describe_reach(offer.spec), certificate, offer.says, tools)


def digest_server(offer: ServerOffer, certificate: str) -> str:
    """By what a person knows the server again that they have looked at."""
    return sha256(msgspec.json.encode(pin_server(offer, certificate), order="sorted")).hexdigest()[:DIGEST_LENGTH]


def pin_tool(tool: RemoteTool) -> PinnedTool:
    told = (tool.name, tool.description, tool.schema, tool.annotations)
    digest = sha256(msgspec.json.encode(told, order="deterministic")).hexdigest()
    return PinnedTool(digest, tool.description, tool.schema, tool.annotations)


def describe_reach(spec: ServerSpec) -> str:
    """How the server is reached and what it is granted, without what may be a secret: variables, headers and queries, and of its
    arguments what looks like one."""
    if spec.transport != "stdio":
        parts = urlsplit(spec.url)
        return f"{spec.transport} {parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
    grants = {"network": spec.network, "folders": spec.folders, "reads": spec.reads, "sandboxed": spec.sandboxed, "cwd": spec.cwd}
    words = [spec.command, *spec.args]
    shown = redact_text(" ".join(words))
    return msgspec.json.encode([*(words if shown == " ".join(words) else [shown]), grants]).decode()


async def fetch_certificate(spec: ServerSpec, guard: AddressGuard) -> str:
    """A digest of the public key of the server's certificate, empty if it has none. Raises `ToolUnavailable`."""
    if spec.transport == "stdio" or urlsplit(spec.url).scheme != "https":
        return ""
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
    from cryptography.x509 import load_der_x509_certificate

    host, port = parse_endpoint(spec.url)
    try:
        async with asyncio.timeout(TLS_SECONDS):
            address = (await guard.allow(spec.host).resolve(host, port))[0]
            _, writer = await asyncio.open_connection(address, port, ssl=client.make_tls(), server_hostname=host)
            shown = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
            writer.close()
    except (OSError, TimeoutError) as error:
        raise ToolUnavailable(f"the certificate of MCP server `{spec.label}` cannot be read: {error}") from error
    key = load_der_x509_certificate(shown).public_key()
    return sha256(key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)).hexdigest()


def read_lock(file: Path) -> McpLock | None:
    """None if there is no such file. Raises `InvalidRequest` for one that cannot be read, and for a link to nothing: somebody has
    meant there to be one."""
    try:
        return msgspec.json.decode(_read_regular(file), type=McpLock)
    except (OSError, ValueError, RecursionError) as error:
        if isinstance(error, FileNotFoundError) and not file.is_symlink():
            return None
        raise InvalidRequest(f"{file} cannot be read: {error}; restore it, or remove it and run `mainspring mcp lock`") from error


def _read_regular(file: Path) -> bytes:
    """Raises `OSError` for what is no file, such as a device, which would be read for ever, or is too large."""
    with os.fdopen(os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as source:
        found = os.fstat(source.fileno())
        if not stat.S_ISREG(found.st_mode) or found.st_size > MOST_LOCK_BYTES:
            raise OSError(f"it is no file of at most {MOST_LOCK_BYTES >> 20} MiB")
        return source.read(MOST_LOCK_BYTES)


class LockFile:
    """The lock as it is in the file now: what is accepted there counts at once. A file that is gone holds on as it was."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._seen: tuple[int, int, int] | None = None
        self._lock: McpLock | None = None

    def read(self) -> McpLock | None:
        """None if there was no file. Raises `InvalidRequest`."""
        try:
            found = os.stat(self._file)
        except OSError:
            self._lock = self._lock or read_lock(self._file)
            return self._lock
        seen = found.st_ino, found.st_mtime_ns, found.st_size
        if seen != self._seen:
            self._lock = read_lock(self._file) or self._lock
            self._seen = seen
        return self._lock


def write_lock(file: Path, lock: McpLock) -> None:
    """Replaces the file as a whole; of a link, what it leads to."""
    file = Path(os.path.realpath(file))
    text = msgspec.json.format(msgspec.json.encode(lock, order="sorted"), indent=2)
    with NamedTemporaryFile("wb", dir=file.parent or Path(), prefix=f".{file.name}", delete=False) as out:
        out.write(text + b"\n")
        out.flush()
        os.fsync(out.fileno())
    os.chmod(out.name, 0o644)
    os.replace(out.name, file)


def _advise(label: str) -> str:
    return f"Look at it with `mainspring mcp diff {label}`, and accept it with `mainspring mcp accept {label}`"


def _show(tool: PinnedTool) -> str:
    body = {"description": tool.description, "schema": tool.schema, "annotations": tool.annotations}
    return msgspec.json.format(msgspec.json.encode(body, order="sorted"), indent=2).decode()
