"""Files that inputs name by id: checked before a run starts, and put in their place whenever the model is asked.

The log of a run has the ids, so no file is in it, and one that is deleted is gone. Ids that do not begin as ours do are the
backend's own. Images and PDF files are shown as they are, of all others the text.
"""

from base64 import b64encode
from collections import Counter
from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import aclosing
from typing import Final

from msgspec import UNSET
from msgspec.structs import replace

from mainspring.core.errors import InvalidRequest, MemoryLimit, NotFound, Refused, SandboxError
from mainspring.core.events import ModelEvent
from mainspring.core.items import FunctionCallOutput, InputFile, InputImage, InputText, Item, Message, Part
from mainspring.core.lru_cache import LRUCache
from mainspring.core.memory_quota import Hold, MemoryQuota
from mainspring.core.model_request import Items, ModelRequest
from mainspring.core.prefix import list_file_ids, list_named_files
from mainspring.core.spec import RunSpec
from mainspring.features.files.files import Files
from mainspring.features.files.stored_file import PREFIX, StoredFile
from mainspring.ports import OrderContext, Provider, ReadingStep
from mainspring.providers.wrapper import ProviderWrapper, find_features
from mainspring.tools.documents.document_reader import DocumentReader, UnreadableFile

KEPT_TEXTS: Final = 32
KEPT_CHARS: Final = 500_000
MOST_TEXT_CHARS: Final = 10_485_760
"""As of text that a request brings itself."""


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

    def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
        items = request.items
        prefix = items.prefix if isinstance(items, Items) else None
        ids = list_file_ids(items) if prefix is None else prefix.file_ids
        return self._stream(request, ids) if ids else self._provider.stream(request)

    async def count_tokens(self, request: ModelRequest) -> int:
        hold = self._quota.hold(request.tenant, 0)
        return await super().count_tokens(await self._resolve(request, list_file_ids(request.items), hold))

    async def _stream(self, request: ModelRequest, ids: Iterable[str]) -> AsyncGenerator[ModelEvent, None]:
        hold = self._quota.hold(request.tenant, 0)
        try:
            async with aclosing(self._provider.stream(await self._resolve(request, ids, hold))) as events:
                async for event in events:
                    yield event
        finally:
            hold.release()

    async def _resolve(self, request: ModelRequest, ids: Iterable[str], hold: Hold) -> ModelRequest:
        """Raises `Refused` if a file cannot be shown, or all of them are too much: one that is named twice counts twice."""
        parts: dict[str, InputFile | InputText] = {}
        left, uses = self._files.settings.input_bytes, Counter(list_named_files(request.items))
        chars_left = MOST_TEXT_CHARS
        for id in ids:
            try:
                file = await self._files.get(request.tenant, id)
                hold.add(file.size)
                data = await self._files.load(file, left // max(uses[id], 1))
            except NotFound:
                if id.startswith(PREFIX) and "passthrough" not in find_features(self._provider, request.model):
                    raise Refused(f"the file `{id[:80]}` is not there any more; send the input without it") from None
                continue
            except (InvalidRequest, MemoryLimit) as error:
                raise Refused(error.message) from None
            shown = len(data)
            if (mime := find_mime(data)) is None:
                parts[id] = text = InputText(f"[file {file.filename}]\n{await self._read_text(file, data, request.tenant)}")
                shown = max(shown, len(text.text))
                if (chars_left := chars_left - len(text.text) * uses[id]) < 0:
                    told = f"the files of this input have more text than the {MOST_TEXT_CHARS} characters that a model is shown"
                    raise Refused(f"{told}; name fewer, or have them searched by `file_search`")
            else:
                parts[id] = InputFile(file.filename, f"data:{mime};base64,{b64encode(data).decode()}")
            if (left := left - shown * uses[id]) < 0:
                most = self._files.settings.input_bytes
                raise Refused(f"the files of this input are more than the {most} bytes that a model is shown; name fewer")
        return replace(request, items=[_replace_parts(item, parts) for item in request.items]) if parts else request

    async def _read_text(self, file: StoredFile, data: bytes, tenant: str) -> str:
        """The text of a file. Raises `Refused` for one that has none."""
        if (known := self._texts.get(file.sha256)) is not None:
            return known
        try:
            pages = await self._reader.read(file.filename, data, tenant)
        except (UnreadableFile, SandboxError) as error:
            raise Refused(f"the file `{file.id}` ({file.filename:.80}) cannot be shown to a model: {error.message}") from None
        text = "\n\n".join([page.text if page.number is None else f"[page {page.number}]\n{page.text}" for page in pages])
        if len(text) <= KEPT_CHARS:
            self._texts[file.sha256] = text
        return text


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
        case InputFile(file_id=str(id)) if id in known:
            return known[id]
        case InputImage(file_id=str(id)) if id in known:
            match known[id]:
                case InputFile(file_data=str(data)) if data.startswith("data:image/"):
                    return replace(part, image_url=data, file_id=UNSET)
            raise Refused(f"the file `{id}` is no PNG, JPEG, GIF or WebP image; send it as `input_file`")
        case _:
            return part
