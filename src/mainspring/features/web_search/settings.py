"""The table `[web_search]`: the service that searches the web for the hosted tool `web_search`."""

from typing import Literal

from msgspec import Struct

SearchService = Literal["searxng", "brave", "tavily", "exa"]


class WebSearchSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The service that searches the web for the hosted tool `web_search`. See docs/files-and-search.md."""

    provider: SearchService | None = None
    """`searxng`, with its `url`, or `brave`, `tavily` or `exa`, with a `key`. Without it, `web_search` is refused, or passed on
    to a backend that speaks the Responses API."""
    url: str | None = None
    """Where the service is: for SearXNG its address, such as http://127.0.0.1:8888, which must answer in JSON (`search.formats`
    of its settings). Others are where their vendors have them, if not given."""
    key: str | None = None
    """The key of the service. SearXNG is sent it as `Authorization: Bearer`, if given."""
