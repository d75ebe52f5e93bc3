"""The list of models, as every backend has it that follows OpenAI."""

from collections.abc import Sequence
from contextlib import closing

import msgspec
from msgspec import Struct

from mainspring.core.errors import BadOutput
from mainspring.ports import ModelInfo
from mainspring.providers.http_client import Http, shortened


async def models_of(http: Http) -> Sequence[ModelInfo]:
    """The models the backend offers. Raises a `ProviderError` if it has no such list."""
    with closing(await http.send("GET", "models")) as reply:
        data = await reply.body()
    try:
        listed = _models.decode(data)
    except (ValueError, RecursionError) as error:
        text = http.redacted(shortened(data))
        raise BadOutput(f"{reply.url} answered with no list of models ({error}): `{text}`") from error
    found = listed if isinstance(listed, list) else listed.data or []
    return tuple([ModelInfo(model.id, model.owned_by or "", int(model.created or 0)) for model in found])


class _Model(Struct, gc=False):
    id: str
    owned_by: str | None = None
    created: int | float | None = None


class _Models(Struct, gc=False):
    data: list[_Model] | None = None


_models = msgspec.json.Decoder(_Models | list[_Model])
