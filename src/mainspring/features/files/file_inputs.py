"""Files that inputs name by id: checked before a run starts, and put in their place whenever the model is asked.

The log of a run has the ids, so no file is in it, and one that is deleted is gone. Ids that do not begin as ours do are the
backend's own. Images and PDF files are shown as they are, of all others the text; so are documents that inputs bring themselves,
unless the backend reads them.
"""

from base64 import b64decode, b64encode
from collections import Counter
from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import aclosing
from hashlib import sha256
from logging import getLogger
from typing import Final, NamedTuple

from msgspec import UNSET
from msgspec.structs import replace

from mainspring.core.errors import InvalidRequest, MemoryLimit, NotFound, Refused, SandboxError
from mainspring.core.events import ModelEvent
from mainspring.core.items import FunctionCallOutput, InputFile, InputImage, InputText, Item, Message, Part
from mainspring.core.lru_cache import LRUCache
from mainspring.core.memory_quota import Hold, MemoryQuota
from mainspring.core.model_request import Items, ModelRequest
from mainspring.core.prefix import DATA, PDF, find_file_id, list_file_ids, list_file_parts, list_named_files
from mainspring.core.spec import RunSpec
from mainspring.features.files.files import Files
from mainspring.features.files.stored_file import PREFIX
from mainspring.ports import OrderContext, Provider, ReadingStep
from mainspring.providers.media import parse_data_url
from mainspring.providers.wrapper import ProviderWrapper, find_features
from mainspring.tools.documents.document_reader import DocumentReader, UnreadableFile

log = getLogger(__name__)

KEPT_TEXTS: Final = 32
KEPT_REFUSALS: Final = 256
KEPT_CHARS: Final = 500_000
MOST_TEXT_CHARS: Final = 10_485_760
"""As of text that a request brings itself."""


class _ShownFile(NamedTuple):
    """A file as the model sees it, and how many bytes it has."""

    part: InputFile | InputText
    size: int


class FileInputsStep(ReadingStep):
    """Refuses an order that names a file that is not there. A backend that keeps files of its own is asked for those."""

    name = "file inputs"
    runs_in_place = True

    def __init__(self, files: Files, provider: Provider) -> None:
        self._files, self._provider = files, provider

    async def prepare(self, order: RunSpec, context: OrderContext) -> RunSpec:
        for id in list_file_ids(order.input):
            if not id.startswith(PREFIX):
                continue
            try:
                await self._files.get(order.tenant, id)
            except NotFound as error:
                if "passthrough" not in find_features(self._provider, order.model):
                    raise NotFound(f"{error.message}; upload it to /v1/files first", param="input") from None
        return order


class FileInputsProvider(ProviderWrapper):
    """Shows the model the files themselves, counted in `quota` while it answers. What has none costs a look at what is kept of
    the transcript."""

    def __init__(self, provider: Provider, files: Files, reader: DocumentReader, quota: MemoryQuota) -> None:
        super().__init__(provider)
        self._files, self._reader, self._quota = files, reader, quota
        self._texts: LRUCache[str, str] = LRUCache(KEPT_TEXTS)
        self._refused: LRUCache[tuple[str, str], bool] = LRUCache(KEPT_REFUSALS)

    def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
        items = request.items
        prefix = items.prefix if isinstance(items, Items) else None
        ids = list_file_ids(items) if prefix is None else prefix.file_ids
        return self._stream(request, ids) if ids else self._provider.stream(request)

    async def count_tokens(self, request: ModelRequest) -> int:
        hold = self._quota.hold(request.tenant, 0)
        return await super().count_tokens(await self._resolve(request, list_file_ids(request.items), hold))

    async def _stream(self, request: ModelRequest, ids: Iterable[str]) -> AsyncGenerator[ModelEvent, None]:
        hold, has_begun = self._quota.hold(request.tenant, 0), False
        try:
            resolved = await self._resolve(request, ids, hold)
            known = [url for url in list_pdfs(resolved) if self._is_refused(request.model, url)] if len(self._refused) else []
            shown = await self._tell_pdfs(resolved, known, hold) or resolved
            try:
                async with aclosing(self._provider.stream(shown)) as events:
                    async for event in events:
                        has_begun = True
                        yield event
                return
            except Refused as error:
                # Others, such as that the model is not there, have nothing to do with what it is shown.
                pdfs = list_pdfs(shown) if type(error) is Refused and not has_begun and not self._passes_on(request) else []
                if not pdfs or (told := await self._tell_pdfs(shown, pdfs, hold)) is None:
                    raise
                log.info("%s does not take these PDF files (%s); it is shown their text", request.model, error.message)
                refusal = error
            async with aclosing(self._provider.stream(told)) as events:
                try:
                    async for event in events:
                        if not has_begun:
                            self._note_refused(request.model, pdfs)
                        has_begun = True
                        yield event
                except Refused:
                    raise refusal from None
        finally:
            hold.release()

    def _is_refused(self, model: str, url: str) -> bool:
        return self._refused.get(_name_refusal(model, url)) is not None

    def _note_refused(self, model: str, urls: Sequence[str]) -> None:
        for url in urls:
            self._refused[_name_refusal(model, url)] = True

    async def _tell_pdfs(self, request: ModelRequest, urls: Sequence[str], hold: Hold) -> ModelRequest | None:
        """The request with the text of these PDF files in their place; None if there is none, or too much."""
        left, uses = MOST_TEXT_CHARS, Counter(list_named_files(request.items))
        parts: dict[str, InputFile | InputText] = {}
        for url in urls:
            try:
                data = b64decode(url.partition(",")[2])
                hold.add(len(data))
                text = await self._read_text(sha256(data).hexdigest(), "document.pdf", data, request.tenant)
            except (ValueError, UnreadableFile, SandboxError, MemoryLimit):
                return None
            if not text.strip() or (left := left - len(text) * uses[url]) < 0:
                return None
            parts[url] = InputText(_head(_find_name(request, url), text))
        return replace(request, items=[_replace_parts(item, parts) for item in request.items]) if parts else None

    async def _resolve(self, request: ModelRequest, ids: Iterable[str], hold: Hold) -> ModelRequest:
        """Raises `Refused` if a file cannot be shown, or all of them are too much: one that is named twice counts twice."""
        parts: dict[str, InputFile | InputText] = {}
        left, uses = self._files.settings.input_bytes, Counter(list_named_files(request.items))
        chars_left = MOST_TEXT_CHARS
        for id in ids:
            show = self._show_document if id.startswith(DATA) else self._show_file
            if (shown := await show(request, id, left // max(uses[id], 1), hold)) is None:
                continue
            parts[id], size = shown.part, shown.size
            if isinstance(shown.part, InputText):
                size = max(size, len(shown.part.text))
                if (chars_left := chars_left - len(shown.part.text) * uses[id]) < 0:
                    told = f"the files of this input have more text than the {MOST_TEXT_CHARS} characters that a model is shown"
                    raise Refused(f"{told}; name fewer, or have them searched by `file_search`")
            if (left := left - size * uses[id]) < 0:
                most = self._files.settings.input_bytes
                raise Refused(f"the files of this input are more than the {most} bytes that a model is shown; name fewer")
        return replace(request, items=[_replace_parts(item, parts) for item in request.items]) if parts else request

    async def _show_file(self, request: ModelRequest, id: str, most: int, hold: Hold) -> _ShownFile | None:
        """What a model is shown of a file, None if its backend has it. Raises `Refused`."""
        try:
            file = await self._files.get(request.tenant, id)
            hold.add(file.size)
            data = await self._files.load(file, most)
        except NotFound:
            if id.startswith(PREFIX) and not self._passes_on(request):
                raise Refused(f"the file `{id[:80]}` is not there any more; send the input without it") from None
            return None
        except (InvalidRequest, MemoryLimit) as error:
            raise Refused(error.message) from None
        if (mime := find_mime(data)) is not None:
            return _ShownFile(InputFile(file.filename, f"data:{mime};base64,{b64encode(data).decode()}"), len(data))
        try:
            text = await self._read_text(file.sha256, file.filename, data, request.tenant)
        except (UnreadableFile, SandboxError) as error:
            raise Refused(f"the file `{id}` ({file.filename:.80}) cannot be shown to a model: {error.message}") from None
        return _ShownFile(InputText(f"[file {file.filename}]\n{text}"), len(data))

    async def _show_document(self, request: ModelRequest, url: str, most: int, hold: Hold) -> _ShownFile | None:
        """What a model is shown of a document in a data URL, None if it is passed on as it is: its backend may read it."""
        file = None if url.startswith(PDF) or self._passes_on(request) else parse_data_url(url)
        if file is None:
            return None
        name = _find_name(request, url)
        if (text := file.text()) is None or "\0" in text:
            try:
                data = b64decode(file.data)
                hold.add(len(data))
                text = await self._read_text(sha256(data).hexdigest(), name, data, request.tenant)
            except (ValueError, UnreadableFile, SandboxError):
                return None
            except MemoryLimit as error:
                raise Refused(error.message) from None
        return _ShownFile(InputText(_head(name, text)), len(file.data))

    def _passes_on(self, request: ModelRequest) -> bool:
        return "passthrough" in find_features(self._provider, request.model)

    async def _read_text(self, digest: str, name: str, data: bytes, tenant: str) -> str:
        """Raises `UnreadableFile` and `SandboxError`."""
        if (known := self._texts.get(digest)) is not None:
            return known
        pages = await self._reader.read(name, data, tenant)
        text = "\n\n".join([page.text if page.number is None else f"[page {page.number}]\n{page.text}" for page in pages])
        if len(text) <= KEPT_CHARS:
            self._texts[digest] = text
        return text


def list_pdfs(request: ModelRequest) -> list[str]:
    """The PDF files that a request shows, as data URLs; each once."""
    data = [part.file_data for part in list_file_parts(request.items) if isinstance(part, InputFile)]
    return list(dict.fromkeys([url for url in data if isinstance(url, str) and url.startswith(PDF)]))


def _name_refusal(model: str, url: str) -> tuple[str, str]:
    return model, sha256(url.encode()).hexdigest()


def _find_name(request: ModelRequest, url: str) -> str:
    files = [part for part in list_file_parts(request.items) if isinstance(part, InputFile)]
    return next(part.filename or "" for part in files if part.file_data == url)


def _head(name: str, text: str) -> str:
    return f"[file {name}]\n{text}" if name else text


def find_mime(data: bytes) -> str | None:
    """What a file is that backends take as it is, by its bytes; None for any other."""
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "image/webp"
    return next((mime for start, mime in _SIGNATURES if data.startswith(start)), None)


_SIGNATURES = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF87a", "image/gif"),
    (b"GIF89a", "image/gif"),
    (b"%PDF-", "application/pdf"),
)


def _replace_parts(item: Item, known: dict[str, InputFile | InputText]) -> Item:
    match item:
        case Message(content=parts):
            return replace(item, content=_fill(parts, known))
        case FunctionCallOutput(output=tuple(parts)):
            return replace(item, output=_fill(parts, known))
        case _:
            return item


def _fill(parts: Sequence[Part], known: dict[str, InputFile | InputText]) -> tuple[Part, ...]:
    return tuple([_fill_part(part, known) for part in parts])


def _fill_part(part: Part, known: dict[str, InputFile | InputText]) -> Part:
    match part:
        case InputFile() if (id := find_file_id(part)) in known:
            return known[id]
        case InputImage(file_id=str(id)) if id in known:
            match known[id]:
                case InputFile(file_data=str(data)) if data.startswith("data:image/"):
                    return replace(part, image_url=data, file_id=UNSET)
            raise Refused(f"the file `{id}` is no PNG, JPEG, GIF or WebP image; send it as `input_file`")
        case _:
            return part
