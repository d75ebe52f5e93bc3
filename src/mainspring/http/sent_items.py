"""Items as clients send them: some by reference, some without an id."""

from msgspec.structs import replace

from mainspring.core.errors import InvalidRequest
from mainspring.core.ids import NewId
from mainspring.core.items import (
    FunctionCall,
    FunctionCallOutput,
    Item,
    Message,
    Reasoning,
    Unknown,
    encode,
    split_media,
)
from mainspring.http.bodies import MOST_BODY_BYTES
from mainspring.ports import RunStore

# What items are stored as that clients know by other ids: those of `hosted_calls`, and searches for tools.
_STORED = {**dict.fromkeys(("mcp", "ci", "fs", "ws"), ("fc", "fco")), "tsc": ("fc",), "tso": ("fco",)}
_PREFIXES = {Message: "msg", FunctionCall: "fc", FunctionCallOutput: "fco", Reasoning: "rs"}


def assign_id(item: Item, new_id: NewId) -> Item:
    """The item with an id. Clients may leave ids out; stored items have one."""
    match item:
        case Message(id=id) | FunctionCall(id=id) | FunctionCallOutput(id=id) | Reasoning(id=id) if not id:
            return replace(item, id=new_id(_PREFIXES[type(item)]))
        case Unknown({"type": "additional_tools"}) if not item.data.get("id"):
            return Unknown({**item.data, "id": new_id("at")})
        case _:
            return item


def check_text_size(items: tuple[Item, ...], most: int) -> None:
    """Raises `InvalidRequest` for items that have more text than that; images and files, which are told apart, are no text."""
    if len(encode([_leave_out_media(item) for item in items]).decode()) > most:
        message = f"the items of `input` may have {most} characters in all, without images and files; send fewer or shorter ones"
        raise InvalidRequest(message, param="input", code="string_above_max_length")


def _leave_out_media(item: Item) -> Item:
    match item:
        case Message(content=parts):
            return replace(item, content=tuple([split_media(part)[0] for part in parts]))
        case FunctionCallOutput(output=tuple(parts)):
            return replace(item, output=tuple([split_media(part)[0] for part in parts]))
        case _:
            return item


async def resolve_references(items: tuple[Item, ...], store: RunStore, tenant: str, *, param: str) -> tuple[Item, ...]:
    """The items, with stored ones in the place of each `item_reference`. Raises `InvalidRequest` for one that names nothing, and
    for more than a body may have: a reference is short, and may be there a thousand times."""
    wanted = {name for item in items for name in _names(item)}
    if not wanted:
        return items
    found = await store.items(sorted(wanted), tenant=tenant)
    sizes = {name: len(encode(item)) for name, item in found.items()}
    if sum([sizes.get(name, 0) for item in items for name in _names(item)]) > MOST_BODY_BYTES:
        message = f"what `{param}` refers to may have {MOST_BODY_BYTES} bytes in all, as if it were sent; refer to less"
        raise InvalidRequest(message, param=param, code="string_above_max_length")
    return tuple([part for item in items for part in _resolve(item, found, param)])


def _resolve(item: Item, found: dict[str, Item], param: str) -> list[Item]:
    if not (names := _names(item)):
        return [item]
    parts = [found[name] for name in names if name in found]
    if names[0] not in found:
        raise InvalidRequest(f"Item with id '{_id(item)}' not found.", param=param)
    # A call of the server's that has no output was never finished, and nobody is to be asked for it now.
    half = parts[0] if len(parts) < len(names) else None
    return [replace(half, status="incomplete")] if isinstance(half, FunctionCall) else parts


def _names(item: Item) -> list[str]:
    """The ids of the stored items that a reference stands for, none for other items. Calls that the server performs are two: the
    call and its output."""
    if not isinstance(item, Unknown) or item.data.get("type") != "item_reference":
        return []
    prefix, _, rest = (name := _id(item)).partition("_")
    return [f"{stored}_{rest}" for stored in _STORED[prefix]] if prefix in _STORED else [name]


def _id(item: Item) -> str:
    return str(item.data.get("id", "")) if isinstance(item, Unknown) else ""
