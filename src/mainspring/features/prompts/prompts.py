"""Prompts that clients keep here: instructions and a first message with variables, in versions that never change.

A prompt is a document, and so is each of its versions, which belong to it. The newest version is the one that is used, unless the
prompt names another one. A version is added by its number, which only one writer can take.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Annotated, Final

import msgspec
from msgspec import Meta, Struct

from mainspring.core.errors import InvalidRequest, NotFound
from mainspring.core.ids import NewId, random_id
from mainspring.core.items import InputFile, InputImage, InputText, Json, Part, decode, encode, from_wire
from mainspring.definitions.parsed_file import hint
from mainspring.features.prompts.prompt_template import SLOT, count_filled, fill_parts, fill_text, list_misspelt, list_slots
from mainspring.ports import PAGE_BYTES, Document, DocumentStore

PREFIX: Final = "pmpt_"
PROMPT: Final = "prompt"
VERSION: Final = "prompt_version"
MOST_CHARS: Final = 500_000
MOST_VARIABLES: Final = 100
# How long its texts may be with their values, as long as what a request brings itself.
MOST_FILLED_CHARS: Final = 10_485_760
MOST_TOLD: Final = 20

Text = Annotated[str, Meta(max_length=MOST_CHARS)]


class PromptContent(Struct, frozen=True, kw_only=True):
    """What a version says. `instructions` are those of the model, `prompt` is the first message; `{{ name }}` stands for a
    variable in both. `model` and `temperature` count where a request names none."""

    instructions: str = ""
    prompt: str = ""
    model: str | None = None
    temperature: float | None = None
    description: str = ""
    metadata: dict[str, str] = {}

    @property
    def variables(self) -> tuple[str, ...]:
        return list_slots(self.instructions, self.prompt)


class Prompt(Struct, frozen=True):
    """A version of a prompt."""

    id: str
    number: int
    created_at: float
    is_default: bool
    content: PromptContent


class PromptPage(Struct, frozen=True):
    """Some prompts, or versions of one, and whether there are more."""

    prompts: Sequence[Prompt]
    has_more: bool


class FilledPrompt(Struct, frozen=True):
    """A prompt with the values of its variables. Without a message, `parts` is empty."""

    instructions: str
    parts: tuple[Part, ...]


class _Head(Struct, frozen=True):
    """`default` is the number of the version that is used, 0 for the newest."""

    created_at: float
    default: int = 0


class _Version(Struct, frozen=True):
    created_at: float
    content: PromptContent


class StoredPrompts:
    """The prompts of all tenants. Whatever names one raises `NotFound` if the tenant has none of that id."""

    def __init__(self, store: DocumentStore, new_id: NewId = random_id) -> None:
        self._store, self._new_id = store, new_id

    async def create(self, tenant: str, content: PromptContent, variables: Sequence[str] | None = None) -> Prompt:
        """Raises `InvalidRequest` for a text that cannot be filled in, or none, or that has other `variables`, if given."""
        check_content(content, variables)
        id, now = self._new_id("pmpt"), await self._store.read_clock()
        head = Document(PROMPT, id, encode(_Head(now)), tenant)
        await self._store.put([head, _make_version(tenant, id, 1, _Version(now, content))])
        return Prompt(id, 1, now, True, content)

    async def get(self, tenant: str, id: str, version: str | None = None) -> Prompt:
        """The version, else the one that is used."""
        head, newest = await self._get_head(tenant, id), None
        number = head.default if version is None else parse_version(version)
        if number == 0:
            newest = await self._get_newest(tenant, id)
        found = newest or await self._store.get(VERSION, str(number), tenant=tenant, parent=id)
        if found is None:
            raise NotFound(f"the prompt `{id[:80]}` has no version {number}", param="version")
        return _read(id, found, head.default or int((newest or await self._get_newest(tenant, id)).id))

    async def list(
        self, tenant: str, after: str | None, limit: int, *, newest_first: bool, most_bytes: float = PAGE_BYTES
    ) -> PromptPage:
        """A page ends behind the prompt with which it has more than `most_bytes`."""
        number = None if after is None else (await self._find(tenant, after)).number
        heads = await self._store.documents(PROMPT, tenant=tenant, after=number, limit=limit + 1, newest_first=newest_first)
        found, size = list[Prompt](), 0
        for head in heads:
            if len(found) == limit or size > most_bytes:
                return PromptPage(found, has_more=True)
            with suppress(NotFound):  # deleted meanwhile
                found.append(await self.get(tenant, head.id))
                size += len(encode(found[-1].content))
        return PromptPage(found, has_more=len(heads) > limit)

    async def list_versions(self, tenant: str, id: str, after: str | None, limit: int, *, newest_first: bool) -> PromptPage:
        """As `list` does."""
        head, number = await self._get_head(tenant, id), None
        if after is not None:
            last = await self._store.get(VERSION, str(parse_version(after)), tenant=tenant, parent=id)
            if last is None:
                raise NotFound(f"the prompt `{id[:80]}` has no version {after[:20]}", param="after")
            number = last.number
        page = await self._store.documents(
            VERSION,
            tenant=tenant,
            parent=id,
            after=number,
            limit=limit + 1,
            newest_first=newest_first,
            most_bytes=PAGE_BYTES,
        )
        default = head.default or int((await self._get_newest(tenant, id)).id)
        is_cut = len(page) > limit or sum([len(document.body) for document in page]) > PAGE_BYTES
        return PromptPage([_read(id, document, default) for document in page[:limit]], has_more=is_cut)

    async def add_version(
        self,
        tenant: str,
        id: str,
        changes: Json,
        *,
        based_on: str | None = None,
        is_default: bool = True,
        variables: Sequence[str] | None = None,
    ) -> Prompt:
        """A version with these changes to the newest one. Raises `InvalidRequest` if that is not `based_on`, where it is
        given: somebody else has changed it meanwhile. `variables` are checked if they are given."""
        kept = 0
        while True:
            head = await self._get_head(tenant, id)
            newest = await self._get_newest(tenant, id)
            number, before = int(newest.id), decode(newest.body, _Version).content
            if based_on is not None and parse_version(based_on) != number:
                told = f"the newest version of this prompt is {number}, not {based_on[:20]}; look at it, and change that one"
                raise InvalidRequest(told, param="version", code="version_conflict")
            content = msgspec.structs.replace(before, **changes)
            check_content(content, variables)
            if not is_default and head.default in (0, kept):
                await self._set_default(tenant, id, number)
                kept = number
            now = await self._store.read_clock()
            if await self._store.put([_make_version(tenant, id, number + 1, _Version(now, content))], if_absent=True):
                break
        if is_default:
            await self._set_default(tenant, id, number + 1, is_added=True)
        return Prompt(id, number + 1, now, is_default, content)

    async def choose(self, tenant: str, id: str, version: str) -> Prompt:
        """Has this version be the one that is used."""
        await self.get(tenant, id, version)
        await self._set_default(tenant, id, parse_version(version))
        return await self.get(tenant, id, version)

    async def remove(self, tenant: str, id: str) -> None:
        """Deletes a prompt with all its versions."""
        if not await self._store.remove(PROMPT, id, tenant=tenant):
            raise _not_found(id)

    async def _set_default(self, tenant: str, id: str, number: int, *, is_added: bool = False) -> None:
        """Has this version be used; one that was just added not if a later one is, or if the newest is anyway."""
        while True:
            found = await self._find(tenant, id)
            head = decode(found.body, _Head)
            if is_added and (head.default == 0 or head.default >= number):
                return
            changed = msgspec.structs.replace(head, default=number)
            if await self._store.swap(Document(PROMPT, id, encode(changed), tenant), found.body):
                return

    async def _find(self, tenant: str, id: str) -> Document:
        if (found := await self._store.get(PROMPT, id, tenant=tenant)) is None:
            raise _not_found(id)
        return found

    async def _get_head(self, tenant: str, id: str) -> _Head:
        return decode((await self._find(tenant, id)).body, _Head)

    async def _get_newest(self, tenant: str, id: str) -> Document:
        found = await self._store.documents(VERSION, tenant=tenant, parent=id, limit=1, newest_first=True)
        if not found:
            raise _not_found(id)
        return found[0]


def _read(id: str, found: Document, default: int) -> Prompt:
    version = decode(found.body, _Version)
    return Prompt(id, int(found.id), version.created_at, int(found.id) == default, version.content)


def parse_version(text: str) -> int:
    """The number of a version. Raises `InvalidRequest`."""
    if not (text.isascii() and text.isdigit() and 1 <= len(text) <= 9 and int(text) > 0):
        raise InvalidRequest(f"a version is a whole number as text, such as `2`, not `{text[:20]}`", param="version")
    return int(text)


def check_content(content: PromptContent, variables: Sequence[str] | None = None) -> None:
    """Raises `InvalidRequest` for a prompt that says nothing, or whose variables cannot be told, or are not those given."""
    if not (content.instructions.strip() or content.prompt.strip()):
        raise InvalidRequest("a prompt needs `instructions`, or a `prompt`, its first message; write one", param="prompt")
    for field, text in (("instructions", content.instructions), ("prompt", content.prompt)):
        for wrong in list_misspelt(text):
            told = f"`{wrong[:80]}` is nothing that could be filled in; write `{{{{ name }}}}` with letters, digits, `_` and `-`"
            raise InvalidRequest(told, param=field)
    if len(content.variables) > MOST_VARIABLES:
        raise InvalidRequest(f"a prompt may have {MOST_VARIABLES} variables, not {len(content.variables)}", param="prompt")
    named = content.variables if variables is None else variables
    for name in {*named} ^ {*content.variables}:
        place = "no text has it" if name in named else "the texts have it, and `variables` has not"
        raise InvalidRequest(f"the variable `{name[:80]}`: {place}; name those that the texts have, or none", param="variables")


def fill_prompt(prompt: Prompt, given: Mapping[str, object], param: str) -> FilledPrompt:
    """Raises `InvalidRequest` that names every variable that is missing, unknown, or of a kind that does not fit."""
    content, known = prompt.content, prompt.content.variables
    unknown = [name[:80] for name in given if name not in known][:MOST_TOLD]
    problems = [f"there is no variable `{name}`; {hint(name, known)}" for name in unknown]
    problems += [f"`{name}` is missing" for name in known if name not in given]
    values: dict[str, str | Part] = {}
    for name in [name for name in known if name in given]:
        if (value := parse_value(given[name])) is None:
            problems.append(f"`{name}` must be a text, or an object of type `input_text`, `input_image` or `input_file`")
        elif isinstance(value, Part) and name in SLOT.findall(content.instructions):
            problems.append(f"`{name}` stands in the instructions, which take only text")
        else:
            values[name] = value
    if problems:
        told = f"the variables of prompt `{prompt.id}` are not right: {'; '.join(problems)[:2_000]}"
        raise InvalidRequest(told, param=param, code="invalid_variables")
    check_filled(content, values, param)
    return FilledPrompt(fill_text(content.instructions, values), fill_parts(content.prompt, values))


def check_filled(content: PromptContent, values: Mapping[str, object], param: str) -> None:
    """Raises `InvalidRequest` for texts that would be longer with these values than a request may be."""
    if (size := count_filled(content.instructions, values) + count_filled(content.prompt, values)) > MOST_FILLED_CHARS:
        told = f"with these values the prompt has {size} characters, and may have {MOST_FILLED_CHARS}; give shorter ones"
        raise InvalidRequest(told, param=param, code="string_above_max_length")


def parse_value(value: object) -> str | Part | None:
    """A variable as clients send it; None if it is none."""
    if isinstance(value, str):
        return value
    if not isinstance(value, dict):
        return None
    try:
        part = from_wire(Part, value)
    except (ValueError, msgspec.ValidationError):
        return None
    match part:
        case InputText(text):
            return text
        case InputImage() | InputFile():
            return part
        case _:
            return None


def _make_version(tenant: str, id: str, number: int, version: _Version) -> Document:
    return Document(VERSION, str(number), encode(version), tenant, id)


def _not_found(id: str) -> NotFound:
    return NotFound(f"Prompt with id '{id[:80]}' not found.", param="prompt_id")
