"""Items that clients name instead of sending: `item_reference` stands for an item of a stored response."""

from mainspring.errors import InvalidRequest
from mainspring.items import Item, Unknown
from mainspring.ports import Store
from mainspring.server.requests import CreateResponse


async def resolve(request: CreateResponse, store: Store, tenant: str) -> None:
    """Puts the items themselves in the place of references to them. Raises `InvalidRequest` for one that names nothing."""
    if not isinstance(request.input, tuple):
        return
    wanted = {name for item in request.input for name in _names(item)}
    if not wanted:
        return
    found = await store.items(sorted(wanted), tenant=tenant)
    request.input = tuple([part for item in request.input for part in _resolved(item, found)])


def _resolved(item: Item, found: dict[str, Item]) -> list[Item]:
    names = _names(item)
    for name in names:
        if name not in found:
            raise InvalidRequest(f"Item with id '{_id(item)}' not found.", param="input")
    return [found[name] for name in names] or [item]


def _names(item: Item) -> list[str]:
    """The ids of the stored items that a reference stands for; none for other items. Our `mcp_call`s are two: call and output."""
    if not isinstance(item, Unknown) or item.data.get("type") != "item_reference":
        return []
    name = _id(item)
    return [f"fc_{name[4:]}", f"fco_{name[4:]}"] if name.startswith("mcp_") else [name]


def _id(item: Item) -> str:
    return str(item.data.get("id", "")) if isinstance(item, Unknown) else ""
