"""Items that clients name instead of sending: `item_reference` stands for an item of a stored response."""

from mainspring.core.errors import InvalidRequest
from mainspring.core.items import Item, Unknown
from mainspring.features.responses.request import CreateResponse
from mainspring.ports import Store


async def resolve(request: CreateResponse, store: Store, tenant: str) -> None:
    """Puts the items themselves in the place of references to them. Raises `InvalidRequest` for one that names nothing."""
    if isinstance(request.input, tuple):
        request.input = await resolved(request.input, store, tenant, param="input")


async def resolved(items: tuple[Item, ...], store: Store, tenant: str, *, param: str) -> tuple[Item, ...]:
    """The items, with those in the place of references that they name. Raises `InvalidRequest` for one that names nothing."""
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
