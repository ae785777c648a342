"""What an object that is there becomes: ours where it is ours, theirs elsewhere."""

from typing import Any

Document = dict[str, Any]


def overlay_metadata(live: Document, wanted: Document) -> Document:
    """`live` metadata, resource version included, with the labels and annotations of `wanted` among its own.

    Owner references stay: an object is only written to when it has ours.
    """
    merged = {field: {**(live.get(field) or {}), **(wanted.get(field) or {})} for field in ("labels", "annotations")}
    return {**live, **{field: entries for field, entries in merged.items() if entries}}
