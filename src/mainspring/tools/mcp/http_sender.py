"""Sends HTTP requests to one MCP server: to checked addresses only, without a proxy, and to no other server by a redirect."""

from base64 import b64encode
from typing import TYPE_CHECKING

from yarl import URL

from mainspring.core.errors import ToolUnavailable
from mainspring.net.client import HttpClient, encode_headers, make_endpoint
from mainspring.net.connection import Answer, HttpError, Unreachable
from mainspring.tools.mcp.exchange import MOST_BYTES, SessionLost
from mainspring.tools.mcp.json_rpc import refuse
from mainspring.tools.mcp.server_specs import ServerSpec

if TYPE_CHECKING:
    from mainspring.tools.mcp.sign_in import Authorizer

# How long an answer may take is for the caller of each tool to say; a stream of notifications may be silent for long.
SILENCE_SECONDS = 86_400.0
MOST_REDIRECTS = 5
MOST_REFUSALS = 2


class HttpSender:
    """Sends requests with the headers of a server's spec, each once. `url` is another address of the same server.

    One that is refused for its token has not been carried out, and is sent again if there is another token.
    """

    def __init__(
        self, spec: ServerSpec, client: HttpClient, url: URL | None = None, authorizer: "Authorizer | None" = None
    ) -> None:
        self._client, self._authorizer = client, authorizer
        try:
            self.url = url or URL(spec.url)
            self._endpoint = make_endpoint(self.url)
            self._head = encode_headers(_list_headers(spec, URL(spec.url)))
        except ValueError as error:
            raise ToolUnavailable(f"MCP server `{spec.label}` cannot be asked: {error}") from None

    async def send(self, method: str, body: bytes | None = None, headers: bytes = b"") -> Answer:
        """The answer, which is no redirect. Raises `SessionLost` if there is none, `RequestRefused` for a redirect elsewhere."""
        refusals = 0
        for _ in range(MOST_REDIRECTS + 1):
            token = b"" if self._authorizer is None else await self._authorizer.get_header(method, self.url)
            head = b"".join((self._head, token, headers))
            try:
                answer = await self._client.request(method, self._endpoint, head, body, is_repeatable=False)
            except Unreachable as error:
                raise SessionLost(f"it cannot be reached: {error}") from error
            except HttpError as error:
                raise SessionLost(f"it gave no answer: {error}") from error
            if answer.status in (401, 403) and self._authorizer is not None and refusals < MOST_REFUSALS:
                refusals += 1
                if await self._recover(answer, token):
                    continue
            if not 300 <= answer.status < 400:
                return answer
            answer.close()
            self._follow_redirect(answer)
        raise refuse(f"It redirects more than {MOST_REDIRECTS} times")

    async def _recover(self, answer: Answer, token: bytes) -> bool:
        assert self._authorizer is not None
        try:
            is_recovered = await self._authorizer.recover(answer.status, answer.headers, token)
        except BaseException:
            answer.close()
            raise
        if is_recovered:
            answer.close()
        return is_recovered

    def is_same_server(self, url: URL) -> bool:
        """Whether the address is of this server: its origin, or the same by TLS, both at their usual ports."""
        ours = (self.url.scheme, self.url.raw_host, self.url.port)
        is_upgrade = (self.url.scheme, url.scheme) == ("http", "https") and self.url.is_default_port() and url.is_default_port()
        is_same = (url.scheme, url.raw_host, url.port) == ours or (is_upgrade and url.raw_host == self.url.raw_host)
        return is_same and url.raw_user in (None, self.url.raw_user)

    def _follow_redirect(self, answer: Answer) -> None:
        """Only a redirect that keeps the method is followed, and only on the same server."""
        told = answer.headers.get("Location", "")
        try:
            to = self.url.join(URL(told))
            endpoint = make_endpoint(to)
        except ValueError:
            raise refuse(f"Redirect to {told[:200]!r} not followed", answer.status) from None
        if answer.status not in (307, 308) or not self.is_same_server(to):
            raise refuse(f"Redirect to {str(to.with_query(None))[:200]} not followed", answer.status)
        self.url, self._endpoint = to, endpoint


def read_content_type(answer: Answer) -> str:
    """Raises `RequestRefused` for an answer that is compressed."""
    if answer.headers.get("Content-Encoding", "identity").strip().lower() not in ("", "identity"):
        raise refuse("the answer is compressed, though that was not asked for")
    return answer.headers.get("Content-Type", "").partition(";")[0].strip().lower()


async def read_body(answer: Answer) -> bytes:
    pieces: list[bytes] = []
    size = 0
    while data := await answer.read():
        pieces.append(data)
        size += len(data)
        if size > MOST_BYTES:
            raise refuse(f"The answer is larger than {MOST_BYTES >> 20} MiB; ask for less")
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def _list_headers(spec: ServerSpec, url: URL) -> list[tuple[str, str]]:
    headers = [
        ("Accept", "application/json, text/event-stream"),
        ("Content-Type", "application/json"),
        # What is compressed has no size that could be limited while it is read.
        ("Accept-Encoding", "identity"),
        *spec.headers.items(),
    ]
    names = {name.lower() for name in spec.headers}
    if "user-agent" not in names:
        headers.append(("User-Agent", "Mainspring"))
    if url.user is not None and "authorization" not in names:
        account = f"{url.user}:{url.password or ''}"
        headers.append(("Authorization", f"Basic {b64encode(account.encode()).decode()}"))
    return headers
