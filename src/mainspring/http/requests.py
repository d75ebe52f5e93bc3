"""A request whose headers are looked up in a table. Each request is asked for a dozen of them, and has few."""

from typing import Any

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.types import Receive, Scope, Send


class HeaderTable(Headers):
    """Headers by name. Of several with one name, the first counts, as it does for the framework."""

    def __init__(self, raw: list[tuple[bytes, bytes]]) -> None:
        super().__init__(raw=raw)
        self._values = {name.decode("latin-1"): value.decode("latin-1") for name, value in reversed(raw)}

    def __getitem__(self, key: str) -> str:
        return self._values[key.lower()]

    def get(self, key: str, default: Any = None) -> Any:
        return self._values.get(key.lower(), default)

    def __contains__(self, key: Any) -> bool:
        return key.lower() in self._values


class ApiRequest(Request):
    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        super().__init__(scope, receive, send)
        self._headers = HeaderTable(scope["headers"])
