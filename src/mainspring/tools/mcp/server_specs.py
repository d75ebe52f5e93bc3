"""MCP servers as data: how one is reached, which of its tools may be used, and which of those need approval."""

import re
from collections.abc import Mapping
from hashlib import sha256
from typing import Literal
from urllib.parse import urlsplit

import msgspec
from msgspec import Struct

from mainspring.core.errors import InvalidRequest
from mainspring.core.items import Json
from mainspring.tools.addresses import parse_endpoint
from mainspring.tools.mcp.exchange import MOST_BYTES

Transport = Literal["stdio", "http", "sse"]
CALL_SECONDS = 60.0
TASK_SECONDS = 3600.0
MOST_CALLS = 16
LONGEST_LABEL = 64

_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_HEADER_VALUE = re.compile(r"[\t\x20-\x7e\x80-\xff]*")
# The protocol and the connection say these for themselves.
_OUR_HEADERS = frozenset({
    "accept", "accept-encoding", "connection", "content-length", "content-type", "host", "last-event-id", "mcp-method",
    "mcp-name", "mcp-protocol-version", "mcp-session-id", "te", "trailer", "transfer-encoding", "upgrade",
})  # fmt: skip
_REQUEST_FIELDS = frozenset(
    {
        "type", "server_label", "server_url", "server_description", "headers", "authorization", "allowed_tools",
        "require_approval", "defer_loading",
    }
)  # fmt: skip


class ToolFilter(Struct, frozen=True, forbid_unknown_fields=True):
    """Some of a server's tools: those named, those that only read, or those of both kinds. Empty, it is all of them."""

    tool_names: tuple[str, ...] | None = None
    read_only: bool | None = None

    def matches(self, name: str, is_read_only: bool) -> bool:
        is_named = self.tool_names is None or name in self.tool_names
        return is_named and (self.read_only is None or self.read_only == is_read_only)


class ApprovalFilter(Struct, frozen=True, forbid_unknown_fields=True):
    """Which tools a person must agree to. What neither names is asked for, and so is what both name."""

    always: ToolFilter | None = None
    never: ToolFilter | None = None


class OAuthOptions(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How to get access to a remote server by OAuth 2.1. An empty table will do: most servers say all that is needed."""

    grant: Literal["authorization_code", "client_credentials", "jwt_bearer"] = "authorization_code"
    """`authorization_code` has people sign in, each for themselves. With `client_credentials` the client itself has access, with
    `jwt_bearer` by what its platform says of it (workload identity), in `assertion_file`."""
    shared: bool = False
    """One sign-in, the operator's, is for all requests. Default: each `user` of each tenant signs in."""
    client_id: str = ""
    """The client, if it is registered by hand. Default: the client is registered on its own."""
    client_secret: str = ""
    """Its secret, if it has one."""
    private_key_file: str = ""
    """The file (PEM) with its private key, if it proves itself by one."""
    assertion_file: str = ""
    """The file with the token (JWT) that the platform gives this workload, such as Kubernetes; it is read anew each time."""
    exchange_url: str = ""
    """Where the company's identity provider exchanges that token for one that the authorization server takes (ID-JAG)."""
    exchange_client_id: str = ""
    """The client that the identity provider knows, if it wants to know one."""
    issuer: str = ""
    """The authorization server to sign in at, of those that the server names. Default: the first; a client that is registered by
    hand is known to no other from then on."""
    client_metadata_url: str = ""
    """The address of a client metadata document, as the client's id. Default: our own, if `public_url` is https."""
    scopes: tuple[str, ...] = ()
    """What to ask for. Default: what the server says."""

    @property
    def is_for_machine(self) -> bool:
        """Whether nobody signs in, since the client has access itself."""
        return self.grant != "authorization_code"

    def __repr__(self) -> str:
        return f"OAuthOptions({self.grant!r})"


class ServerOptions(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How an MCP server is reached, and what may be done with it."""

    command: str = ""
    """The program to start."""
    args: tuple[str, ...] = ()
    """Its arguments."""
    env: dict[str, str] = {}
    """Environment variables for the program."""
    cwd: str | None = None
    """The folder to start it in."""
    url: str = ""
    """The address of a server that is reached by HTTP."""
    headers: dict[str, str] = {}
    """Headers to send with every request."""
    oauth: OAuthOptions | None = None
    """How to sign in to it: a table `[mcp.LABEL.oauth]`, which may be empty."""
    allowed_tools: tuple[str, ...] | ToolFilter | None = None
    """The tools that may be used, by name, or a table with `tool_names` and `read_only`. Default: all."""
    require_approval: Literal["always", "never"] | ApprovalFilter = "always"
    """Whether a person approves calls: `always`, `never`, or a table with `always` and `never`."""
    timeout: float = CALL_SECONDS
    """Seconds that a call may take."""
    task_timeout: float = TASK_SECONDS
    """Seconds that a call may take which the server works on as a task."""
    concurrency: int = MOST_CALLS
    """Calls that each process has under way at once; others wait for their turn, within their time."""
    rate: float | None = None
    """Calls in a minute, of all processes on a database together. More are refused, and the model is told when to try again."""
    max_result_bytes: int = MOST_BYTES
    """Bytes that an answer may have."""
    resources: bool = False
    """Offer tools that list and read the server's resources, and show them over HTTP."""
    prompts: bool = False
    """Offer tools that list and get the server's prompts, and show them over HTTP."""
    sampling: bool = False
    """Let the server ask the model, without tools, at the expense of the run that calls it."""
    repeatable: tuple[str, ...] = ()
    """Tools whose calls do no harm when made twice."""
    polling: tuple[str, ...] = ()
    """Tools that are called again and again until something has changed; that counts as no repetition."""
    sandboxed: bool = True
    """Run the program in the sandbox."""
    network: bool = False
    """Grant the program the network."""
    folders: tuple[str, ...] = ()
    """Folders that it may write to."""
    reads: tuple[str, ...] = ()
    """Files and folders that it may read."""


class ServerSpec(ServerOptions, frozen=True):
    """An MCP server. A process of this machine has `command`; one that is reached by HTTP, streamable or as SSE, has `url`.

    `trusted` says that the operator has chosen the server: only then may it be a process, may its host be private, and are its
    words about its tools believed. A process that is `sandboxed` sees the system and its own program, read-only, an empty
    workspace of its own and no network, but for what it is granted.
    """

    label: str
    transport: Transport = "http"
    trusted: bool = False

    def __post_init__(self) -> None:
        if not self.label.strip() or not self.label.isprintable() or len(self.label) > LONGEST_LABEL:
            raise ValueError(f"an MCP server needs a label of at most {LONGEST_LABEL} printable characters")
        for name, value in (("timeout", self.timeout), ("task_timeout", self.task_timeout), ("rate", self.rate)):
            if value is not None and value <= 0:
                raise ValueError(f"MCP server `{self.label}`: {name} must be more than 0, not {value:g}")
        if self.concurrency < 1 or not 1024 <= self.max_result_bytes <= MOST_BYTES:
            raise ValueError(
                f"MCP server `{self.label}`: concurrency must be at least 1, and max_result_bytes between 1024 and {MOST_BYTES}"
            )
        if self.transport == "stdio":
            self._check_process()
        else:
            self._check_url()

    def __repr__(self) -> str:
        # Headers and environment hold secrets.
        return f"ServerSpec({self.label!r}, {self.transport!r})"

    @property
    def host(self) -> str:
        return urlsplit(self.url).hostname or ""

    @property
    def target(self) -> bytes:
        """What a connection depends on; servers with equal targets may share one."""
        return msgspec.json.encode(
            (
                *(self.transport, self.command, self.args, self.env, self.cwd, self.url, self.headers, self.trusted),
                *(self.sandboxed, self.network, self.folders, self.reads, self.oauth),
                *(self.resources, self.prompts, self.sampling),
                *(self.concurrency, self.rate, self.max_result_bytes),
            ),
            order="sorted",
        )

    @property
    def at(self) -> str:
        """Which server a request means, without its URL, which may hold a secret. The operator's are known by their label."""
        return "" if self.trusted else sha256(self.url.encode()).hexdigest()[:16]

    @property
    def is_personal(self) -> bool:
        """Whether each user has access of their own, so that nothing of it may be shared."""
        return self.oauth is not None and not self.oauth.is_for_machine and not self.oauth.shared

    @property
    def is_held(self) -> bool:
        """Whether it is a process that is to run in the sandbox."""
        return self.transport == "stdio" and self.sandboxed

    @property
    def advice(self) -> str:
        """What the operator can do for a server that does not work in the sandbox."""
        return (
            f"in [mcp.{self.label}], `network = true` grants it the network, `reads` and `folders` name what it may read and "
            "write, and `sandboxed = false` runs it without a sandbox"
        )

    def offers(self, name: str, is_read_only: bool) -> bool:
        match self.allowed_tools:
            case None:
                return True
            case ToolFilter() as allowed:
                return allowed.matches(name, is_read_only)
            case names:
                return name in names

    def needs_approval(self, name: str, is_read_only: bool) -> bool:
        rule = self.require_approval
        if not isinstance(rule, ApprovalFilter):
            return rule == "always"
        if rule.always is not None and rule.always.matches(name, is_read_only):
            return True
        return rule.never is None or not rule.never.matches(name, is_read_only)

    def _check_process(self) -> None:
        if not self.trusted:
            raise ValueError(f"MCP server `{self.label}`: only the operator can configure a server that is a process")
        if not self.command or self.url or self.oauth is not None:
            raise ValueError(f"MCP server `{self.label}`: a stdio server has a command and no url, nor oauth")
        if not self.sandboxed and (self.network or self.folders or self.reads):
            raise ValueError(f"MCP server `{self.label}`: with `sandboxed = false` there is nothing to grant; leave it out")
        for path in (*self.folders, *self.reads):
            if not path.startswith("/") or not path.strip("/."):
                raise ValueError(f"MCP server `{self.label}`: `{path}` cannot be granted; give the whole path of a folder")

    def _check_url(self) -> None:
        if self.command or self.args or self.env or self.cwd or self.network or self.folders or self.reads or not self.sandboxed:
            raise ValueError(f"MCP server `{self.label}`: a server with a url has no command, args, env, cwd or sandbox")
        try:
            parse_endpoint(self.url)
        except InvalidRequest as error:
            raise ValueError(f"MCP server `{self.label}`: {error.message}") from None
        if "@" in urlsplit(self.url).netloc and not self.trusted:
            raise ValueError(f"MCP server `{self.label}`: a URL must not hold a user or password; use `authorization`")
        if self.oauth is not None:
            self._check_oauth(self.oauth)
        for name, value in self.headers.items():
            if not _HEADER_NAME.fullmatch(name) or not _HEADER_VALUE.fullmatch(value) or name.lower() in _OUR_HEADERS:
                raise ValueError(f"MCP server `{self.label}`: header `{name}` cannot be sent")

    def _check_oauth(self, oauth: OAuthOptions) -> None:
        what = f"MCP server `{self.label}`:"
        if any(name.lower() == "authorization" for name in self.headers):
            raise ValueError(f"{what} with `oauth`, the header `Authorization` is not yours to set; leave one of them out")
        if urlsplit(self.url).scheme != "https" and self.host not in ("127.0.0.1", "::1", "localhost"):
            raise ValueError(f"{what} with `oauth`, its url must be https, or of this machine")
        if (oauth.client_secret or oauth.private_key_file) and not oauth.client_id:
            raise ValueError(f"{what} a secret or a private key needs its `client_id`")
        if oauth.client_secret and oauth.private_key_file:
            raise ValueError(f"{what} give `client_secret` or `private_key_file`, not both")
        if oauth.grant == "client_credentials" and not (oauth.client_secret or oauth.private_key_file):
            raise ValueError(f"{what} `client_credentials` needs `client_id` with `client_secret` or `private_key_file`")
        if (oauth.grant == "jwt_bearer") != bool(oauth.assertion_file):
            raise ValueError(f"{what} `jwt_bearer` and `assertion_file` go together; give both or neither")
        if (oauth.exchange_url or oauth.exchange_client_id) and not (oauth.assertion_file and oauth.exchange_url):
            raise ValueError(
                f"{what} `exchange_url` and `exchange_client_id` say what becomes of `assertion_file`; give that, too"
            )
        if oauth.issuer and not oauth.issuer.startswith(("https://", "http://")):
            raise ValueError(f"{what} `issuer` must be the address of an authorization server, https://")
        if oauth.client_metadata_url and not oauth.client_metadata_url.startswith("https://"):
            raise ValueError(f"{what} `client_metadata_url` must be https")


def parse_server_spec(tool: Json) -> ServerSpec:
    """The server that a `type: "mcp"` tool of a request describes. Raises `InvalidRequest`, naming the field at fault.

    A request can name servers by URL, never a process; and it has every call approved unless it says otherwise.
    """
    label = tool.get("server_label")
    if not isinstance(label, str) or not label:
        raise InvalidRequest("an mcp tool needs a `server_label`", param="tools")
    if unknown := sorted(tool.keys() - _REQUEST_FIELDS):
        known = ", ".join([f"`{field}`" for field in sorted(_REQUEST_FIELDS)])
        raise InvalidRequest(f"mcp tool `{label}`: `{unknown[0]}` is not supported; known: {known}", param="tools")
    if not isinstance(tool.get("server_url"), str):
        raise InvalidRequest(f"mcp tool `{label}`: it needs a `server_url`, http:// or https://", param="tools")
    fields = {
        "label": label,
        "url": tool["server_url"],
        "headers": _read_headers(tool, label),
        "allowed_tools": tool.get("allowed_tools"),
        "require_approval": tool.get("require_approval") or "always",
    }
    try:
        return msgspec.convert(fields, ServerSpec)
    except msgspec.ValidationError as error:
        raise InvalidRequest(f"mcp tool `{label}`: {error}", param="tools") from None


def _read_headers(tool: Json, label: str) -> Json:
    headers = tool.get("headers") or {}
    if not isinstance(headers, Mapping):
        raise InvalidRequest(f"mcp tool `{label}`: `headers` must be an object of strings", param="tools")
    token = tool.get("authorization")
    if token is None:
        return dict(headers)
    if not isinstance(token, str) or any(str(name).lower() == "authorization" for name in headers):
        raise InvalidRequest(
            f"mcp tool `{label}`: `authorization` must be a token, and not be in `headers` as well", param="tools"
        )
    return {**headers, "Authorization": f"Bearer {token}"}
