"""Items as clients send them: some by reference, some without an id."""

from msgspec.structs import replace

from mainspring.core.errors import InvalidRequest
from mainspring.core.ids import NewId
from mainspring.core.items import (
    FunctionCall,
    FunctionCallOutput,
    InputFile,
    InputImage,
    Item,
    Message,
    Reasoning,
    Unknown,
    encode,
)
from mainspring.ports import Store

_PREFIXES = {Message: "msg", FunctionCall: "fc", FunctionCallOutput: "fco", Reasoning: "rs"}


def assign_id(item: Item, new_id: NewId) -> Item:
    """The item with an id. Clients may leave ids out; stored items have one."""
    match item:
        case Message(id=id) | FunctionCall(id=id) | FunctionCallOutput(id=id) | Reasoning(id=id) if not id:
            return replace(item, id=new_id(_PREFIXES[type(item)]))
        case _:
            return item


def check_text_size(items: tuple[Item, ...], most: int) -> None:
    """Raises `InvalidRequest` for items that have more text than that; images and files, which are told apart, are no text."""
    parts = [part for item in items if isinstance(item, Message) for part in item.content]
    media = [part.image_url or "" for part in parts if isinstance(part, InputImage)]
    media += [part.file_data or "" for part in parts if isinstance(part, InputFile)]
    if len(encode(items)) - sum(map(len, media)) > most:
        message = f"the items of `input` may have {most} characters in all, without images and files; send fewer or shorter ones"
        raise InvalidRequest(message, param="input", code="string_above_max_length")


async def resolve_references(items: tuple[Item, ...], store: Store, tenant: str, *, param: str) -> tuple[Item, ...]:
    """The items, with stored ones in the place of each `item_reference`. Raises `InvalidRequest` for one that names nothing."""
    wanted = {name for item in items for name in _names(item)}
    if not wanted:
        return items
    found = await store.items(sorted(wanted), tenant=tenant)
    for item in items:
        if not found.keys() >= set(_names(item)):
            raise InvalidRequest(f"Item with id '{_id(item)}' not found.", param=param)
    return tuple([part for item in items for part in [found[name] for name in _names(item)] or [item]])


def _names(item: Item) -> list[str]:
    """The ids of the stored items that a reference stands for; none for other items. Our `mcp_call`s are two: call and output."""
    if not isinstance(item, Unknown) or item.data.get("type") != "item_reference":
        return []
    name = _id(item)
    return [f"fc_{name[4:]}", f"fco_{name[4:]}"] if name.startswith("mcp_") else [name]


def _id(item: Item) -> str:
    return str(item.data.get("id", "")) if isinstance(item, Unknown) else ""
