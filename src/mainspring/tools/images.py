"""Detects images by content: a backend refuses a whole request for one image that is none, so declared types are not trusted."""

_STARTS = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF87a", "image/gif"),
    (b"GIF89a", "image/gif"),
)
# A PNG without any pixel has this many bytes; in the other formats even less says nothing.
_SMALLEST = {"image/png": 57, "image/jpeg": 100, "image/gif": 26, "image/webp": 20}


def detect_image_type(data: bytes) -> str | None:
    """The media type of an image by its first bytes; None for anything else, also for a truncated image."""
    kind = next((kind for start, kind in _STARTS if data.startswith(start)), None)
    if data.startswith(b"RIFF") and data[8:12] == b"WEBP":
        kind = "image/webp"
    return kind if kind is not None and len(data) >= _SMALLEST[kind] else None
