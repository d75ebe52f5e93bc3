"""The hosted tool `file_search`: the model asks, passages of vector stores answer, and what it cites of them is annotated.

Each passage comes with a mark such as 【12.3】, which the model is asked to put behind what it takes from it. Marks that name a
passage become `file_citation` annotations at their places when a message is done; the text keeps them.
"""

import re
from collections.abc import Sequence
from functools import partial
from typing import Annotated, Final

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import replace

from mainspring.core.errors import InvalidRequest, NotFound
from mainspring.core.items import Json, ServerTool, Tool, ToolDefinition, ToolKind, Unknown
from mainspring.core.spec import RunSpec
from mainspring.features.search_results import CitedText, ListNotes, Output, find_room, fit_results
from mainspring.features.vector_stores.filters import Attribute, parse_filter
from mainspring.features.vector_stores.vector_stores import (
    MOST_RESULTS,
    RankingOptions,
    SearchOptions,
    SearchResult,
    VectorStores,
)
from mainspring.ports import CallContext, OrderContext, Provider, ReadingStep, ToolCall, ToolResult
from mainspring.providers.wrapper import find_features

NAME: Final = "file_search"
DEFAULT_RESULTS: Final = 20
MOST_STORES: Final = 10
MOST_QUERIES: Final = 5
INCLUDE: Final = "include_results"
"""What a declaration has for whoever wants to see the results; no backend is shown it."""
_MARK: Final = re.compile(r"【(\d{1,18}\.\d{1,6})】")
_DESCRIPTION: Final = (
    "Searches the files that the user has provided, by words and by meaning. Use it whenever they may hold the answer. Ask with "
    "a few short queries. Each result has a mark in `cite`, such as 【12.3】: put that mark right behind every statement that "
    "you take from the result, exactly as it is."
)
_PARAMETERS: Final[Json] = {
    "type": "object",
    "properties": {
        "queries": {"type": "array", "items": {"type": "string"}, "description": f"1 to {MOST_QUERIES} search queries"}
    },
    "required": ["queries"],
    "additionalProperties": False,
}


class FileSearchTool(Struct, frozen=True, omit_defaults=True):
    """A declaration of the tool, as the executor needs it."""

    vector_store_ids: Annotated[tuple[str, ...], Meta(min_length=1, max_length=MOST_STORES)]
    max_num_results: Annotated[int, Meta(ge=1, le=MOST_RESULTS)] | None = None
    filters: Json | None = None
    ranking_options: RankingOptions | None = None
    include_results: bool = False


class CitedResult(CitedText, frozen=True):
    """A result as the model reads it, and as clients may be shown it. `cite` is the mark of the passage."""

    file_id: str = ""
    filename: str = ""
    score: float = 0.0
    page: int | None = None
    line: int | None = None
    attributes: dict[str, Attribute] = msgspec.field(default_factory=dict)


class FoundPassages(Struct, frozen=True):
    """What the tool returns."""

    results: tuple[CitedResult, ...]


class FileSearchStep(ReadingStep):
    """Puts our tool in the place of each `file_search` that names vector stores of the tenant. A backend that has stores of its
    own is passed the others."""

    name = "file search"
    runs_in_place = True

    def __init__(self, stores: VectorStores, provider: Provider) -> None:
        self._stores, self._provider = stores, provider

    async def prepare(self, order: RunSpec, context: OrderContext) -> RunSpec:
        if not any(_is_declared(tool) for tool in order.tools):
            return order
        tools = [
            await self._resolve(order, tool) if isinstance(tool, Unknown) and _is_declared(tool) else tool for tool in order.tools
        ]
        if sum([isinstance(tool, ToolDefinition) and tool.form == NAME for tool in tools]) > 1:
            raise InvalidRequest("`file_search` is declared twice; name all vector stores in one", param="tools")
        return replace(order, tools=tuple(tools))

    async def _resolve(self, order: RunSpec, tool: Unknown) -> Tool:
        try:
            wanted = msgspec.convert(tool.data, FileSearchTool)
        except msgspec.ValidationError as error:
            raise InvalidRequest(f"tools: `file_search`: {error}", param="tools", code="invalid_value") from None
        if wanted.filters is not None:
            parse_filter(wanted.filters, "tools.filters")
        try:
            for id in wanted.vector_store_ids:
                await self._stores.get(order.tenant, id)
        except NotFound as error:
            if "passthrough" in find_features(self._provider, order.model):
                return Unknown({name: value for name, value in tool.data.items() if name != INCLUDE})
            raise NotFound(error.message, param="tools") from None
        whose = ServerTool(NAME, NAME, at=msgspec.json.encode(wanted).decode())
        return ToolDefinition(
            NAME, _DESCRIPTION, _PARAMETERS, kind="builtin", repeatable=True, effects=("read",), form=NAME, server=whose
        )


def _is_declared(tool: Tool) -> bool:
    return isinstance(tool, Unknown) and tool.data.get("type") == NAME


class FileSearch:
    """Performs the calls."""

    kind: ToolKind = "builtin"

    def __init__(self, stores: VectorStores) -> None:
        self._stores = stores

    def can_execute(self, tool: ToolDefinition) -> bool:
        return tool.form == NAME

    async def execute(self, call: ToolCall, context: CallContext) -> ToolResult:
        server = context.tool.server
        assert isinstance(server, ServerTool), "the order step has made the tool"
        wanted = msgspec.json.decode(server.at, type=FileSearchTool)
        queries = [str(query) for query in call.parsed.get("queries") or () if str(query).strip()][:MOST_QUERIES]
        if not queries:
            return ToolResult(call.id, 'name at least one query: {"queries": ["..."]}', is_error=True)
        options = SearchOptions(
            wanted.max_num_results or DEFAULT_RESULTS,
            None if wanted.filters is None else parse_filter(wanted.filters),
            wanted.ranking_options or RankingOptions(),
        )
        found: list[SearchResult] = []
        for store in wanted.vector_store_ids:
            found += await self._stores.search(context.tenant, store, queries, options)
        best = sorted(found, key=lambda each: each.score, reverse=True)[: options.most]
        said = FoundPassages(fit_results(map(_cite, best), await find_room(context)))
        return ToolResult(call.id, msgspec.json.encode(said).decode(), data={"queries": queries, "count": len(said.results)})


def _cite(found: SearchResult) -> CitedResult:
    passage = found.passage
    return CitedResult(
        f"【{passage.id}】",
        passage.text,
        passage.file,
        passage.filename,
        found.score,
        passage.page,
        passage.line,
        passage.attributes,
    )


def read_results(output: Output) -> tuple[CitedResult, ...]:
    """The results in an output of the tool, none if it is an error."""
    try:
        return msgspec.json.decode(output, type=FoundPassages).results if isinstance(output, str) else ()
    except (ValueError, RecursionError):
        return ()


def read_outputs(outputs: Sequence[Output]) -> ListNotes | None:
    """What finds the marks of the passages in these outputs; see `CitationProvider`."""
    known = {result.cite.strip("【】"): result for output in outputs for result in read_results(output)}
    return partial(list_notes, known) if known else None


def list_notes(known: dict[str, CitedResult], text: str) -> list[Json]:
    """The annotations that the marks in a text stand for."""
    return [
        {"type": "file_citation", "file_id": cited.file_id, "filename": cited.filename, "index": mark.start()}
        for mark in _MARK.finditer(text)
        if (cited := known.get(mark[1])) is not None
    ]
