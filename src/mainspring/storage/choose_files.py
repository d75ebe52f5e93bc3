"""Which storage keeps files: a folder that all processes share, or object storage. Each is imported where it is used."""

import re
from pathlib import Path
from typing import TYPE_CHECKING, Final

from mainspring.core.errors import InvalidRequest
from mainspring.late_module import LateModule
from mainspring.ports import FileStorage

if TYPE_CHECKING:
    from mainspring.storage import file_folder, object_storage
else:
    file_folder = LateModule("mainspring.storage.file_folder")
    object_storage = LateModule("mainspring.storage.object_storage")

SCHEMES: Final = ("s3", "gs", "az", "memory")
_URL = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*)://(?P<bucket>[^/?#]*)(?P<prefix>[^?#]*)(?P<rest>.*)")


def choose_files(place: str) -> FileStorage:
    """The storage at a place, which is not open yet. Raises `InvalidRequest` for a place that cannot be one, and shows no
    secret."""
    if (url := _URL.fullmatch(place)) is None:
        if not place.strip() or "\0" in place:
            raise InvalidRequest("`files` is empty; name a folder, or a bucket such as s3://BUCKET/PREFIX", param="files")
        return file_folder.FileFolder(Path(place))
    scheme = url["scheme"].lower()
    if scheme not in SCHEMES:
        raise InvalidRequest(
            f"`{scheme}://` is no storage that Mainspring knows; name a folder, or write s3://, gs:// or az://", param="files"
        )
    if url["rest"] or "@" in url["bucket"] or bool(url["bucket"]) is (scheme == "memory"):
        raise InvalidRequest(
            f"`files` is to be {scheme}://BUCKET/PREFIX and nothing more; credentials come from the environment, as for the "
            "tools of the vendor",
            param="files",
        )
    try:
        open_bucket = object_storage.ObjectStorage
    except ModuleNotFoundError:
        raise InvalidRequest("object storage needs another package: pip install 'mainspring[objects]'", param="files") from None
    return open_bucket(f"{scheme}://{url['bucket']}{url['prefix'].rstrip('/') or '/'}")
