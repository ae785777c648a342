"""A kind for tests: namespaced, with one field that must be there and one that may."""

import json
from typing import Any

from coil.crd.meta import ObjectMeta, Struct
from coil.crd.resource import Resource


class Thing(Struct, frozen=True, kw_only=True):
    metadata: ObjectMeta
    size: int
    colour: str = ""


THINGS: Resource[Thing] = Resource("example.com", "v1", "things", "Thing", namespaced=True, type=Thing)
COLLECTION = "/apis/example.com/v1/things"


def thing(name: str, *, version: int, uid: str = "", size: int = 1, colour: str = "") -> dict[str, Any]:
    """The document of a Thing, with fields that its struct does not know."""
    metadata = {"name": name, "namespace": "here", "uid": uid or f"uid-{name}", "resourceVersion": str(version)}
    document: dict[str, Any] = {"apiVersion": "example.com/v1", "kind": "Thing", "metadata": metadata}
    return document | {"size": size, "colour": colour, "unknown": {"deep": [1, 2, {"x": None}]}}


def thing_list(*things: dict[str, Any], version: int, more: str = "") -> dict[str, Any]:
    metadata = {"resourceVersion": str(version)} | ({"continue": more} if more else {})
    return {"apiVersion": "example.com/v1", "kind": "ThingList", "metadata": metadata, "items": list(things)}


def event(kind: str, document: dict[str, Any]) -> bytes:
    """A line of a watch."""
    return json.dumps({"type": kind, "object": document}).encode() + b"\n"


def bookmark(version: int, *, ends_list: bool = False) -> bytes:
    """A bookmark as the API server sends it: of an object there is only the resource version, and at the end of a
    streamed list the annotation that says so.
    """
    metadata: dict[str, Any] = {"resourceVersion": str(version)}
    if ends_list:
        metadata["annotations"] = {"k8s.io/initial-events-end": "true"}
    return event("BOOKMARK", {"kind": "Thing", "metadata": metadata})
