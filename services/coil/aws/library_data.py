"""The data that the AWS library reads about AWS, cut down to the operations that are called.

The library describes all of EC2, some 800 operations with 4 000 shapes, and the endpoints of every service. As Python
objects that is 20 MB on each node, for a dozen operations, and most of the time that it takes to create a client. Here
only the outermost level of a file is decoded at first, and the rest stays text; what is needed of that is then decoded,
and the text is freed.
"""

import gzip
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from pathlib import Path, PurePath
from typing import Any, Final, TypeAlias

import msgspec

Texts: TypeAlias = dict[str, msgspec.Raw]
Document: TypeAlias = dict[str, Any]

SERVICES: Final = ("ec2", "sts")
"""EC2, and the service that issues credentials for it."""
_READERS: Final[Mapping[str, Callable[[bytes], bytes]]] = {".json": bytes, ".json.gz": gzip.decompress}


class LibraryFiles:
    """Takes the place of a file loader of `botocore.loaders`, here `whole`, which still reads all other files.

    EC2's model has only `operations`, and the endpoints are only those of `SERVICES`.
    """

    def __init__(self, whole: Any, operations: Collection[str]) -> None:
        self._whole = whole
        self._operations = operations

    def exists(self, path: str) -> bool:
        """Whether there is such a file; `path` has no extension."""
        found: bool = self._whole.exists(path)
        return found

    def load_file(self, path: str) -> Document | None:
        """What it says; None if there is no such file. `path` has no extension."""
        if (cut := self._cut_for(PurePath(path))) is None:
            whole: Document | None = self._whole.load_file(path)
            return whole
        for ending, unpacked in _READERS.items():
            with suppress(FileNotFoundError):
                return cut(unpacked(Path(path + ending).read_bytes()))
        return None

    def _cut_for(self, path: PurePath) -> Callable[[bytes], Document] | None:
        match path.parts:
            case (*_, "ec2", _, "service-2"):
                return lambda text: cut_model(text, self._operations)
            case (*_, "endpoints"):
                return lambda text: cut_endpoints(text, SERVICES)
        return None


def cut_model(text: bytes, operations: Collection[str]) -> Document:
    """A service's model with these operations only, and the shapes that they refer to.

    Raises LookupError if it does not have one of them.
    """
    model = _texts(text)
    every, shapes = _texts(model.pop("operations")), _texts(model.pop("shapes"))
    kept = {name: msgspec.json.decode(every[name]) for name in sorted(operations)}
    needed: Document = {}
    missing = list(_references(kept))
    while missing:
        if (name := missing.pop()) not in needed:
            needed[name] = msgspec.json.decode(shapes[name])
            missing += _references(needed[name])
    return {**_objects(model), "operations": kept, "shapes": needed}


def cut_endpoints(text: bytes, services: Collection[str]) -> Document:
    """Partitions, with their regions, and these services only."""
    document = _texts(text)
    partitions = msgspec.json.decode(document.pop("partitions"), type=list[Texts])
    return {**_objects(document), "partitions": [_cut_partition(each, services) for each in partitions]}


def _cut_partition(partition: Texts, services: Collection[str]) -> Document:
    known = _texts(partition.pop("services"))
    kept = {name: text for name, text in known.items() if name in services}
    return {**_objects(partition), "services": _objects(kept)}


def _references(document: object) -> Iterator[str]:
    """The names of shapes in a part of a model. A member may be called "shape", too, and is then no string."""
    match document:
        case {"shape": str(name)}:
            yield name
    match document:
        case dict():
            for each in document.values():
                yield from _references(each)
        case list():
            for each in document:
                yield from _references(each)


def _texts(text: bytes | msgspec.Raw) -> Texts:
    return msgspec.json.decode(text, type=Texts)


def _objects(texts: Mapping[str, msgspec.Raw]) -> Document:
    return {name: msgspec.json.decode(text) for name, text in texts.items()}
