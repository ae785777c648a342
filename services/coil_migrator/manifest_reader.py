"""Manifests that people have in files: streams of YAML documents.

Read as kubectl reads them, and nothing is made of them but plain values. A document keeps its text, with the comments
in front of it, so that one that is passed on is passed on as it was.
"""

import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final

import yaml

STANDARD_INPUT: Final = Path("-")
MAX_BYTES: Final = 16 * 2**20
"""Of one file."""
_MAX_VALUES: Final = 1_000_000
"""In one document, each alias counted as what it stands for: a short text may stand for more than memory holds."""


class ManifestError(Exception):
    """A file that cannot be read, or is no stream of documents; the message says which and why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """A document: `place` says where it stands, `text` is the text from the document before it to its own end. The
    texts of a file's documents, one after the other, are the file. `value` is None for an empty one.
    """

    place: str
    text: str
    value: Any


class _Loader(yaml.SafeLoader):
    """The one in Python: libyaml's ends the process on deeply nested text. What YAML 1.1 takes for a time, or for a
    number to the base 60, is a text to Kubernetes.
    """


def _construct_int(loader: yaml.SafeLoader, node: yaml.ScalarNode) -> int | str:
    return str(node.value) if ":" in node.value else loader.construct_yaml_int(node)


def _construct_float(loader: yaml.SafeLoader, node: yaml.ScalarNode) -> float | str:
    return str(node.value) if ":" in node.value else loader.construct_yaml_float(node)


_Loader.add_constructor("tag:yaml.org,2002:int", _construct_int)
_Loader.add_constructor("tag:yaml.org,2002:float", _construct_float)
_Loader.add_constructor("tag:yaml.org,2002:timestamp", lambda _loader, node: str(node.value))


def objects_in(value: Any) -> Iterator[dict[str, Any]]:
    """The objects of a document: itself, or those of a list."""
    if not isinstance(value, dict):
        return
    if is_list(value):
        for item in value["items"]:
            yield from objects_in(item)
    else:
        yield value


def is_list(value: Mapping[str, Any]) -> bool:
    """Whether it is a list of objects, as `kubectl get` prints one."""
    return str(value.get("kind", "")).endswith("List") and isinstance(value.get("items"), list)


def read_manifests(paths: Iterable[Path], stdin: BinaryIO | None = None) -> list[Manifest]:
    """The documents of these files, "-" being standard input. Raises ManifestError."""
    found: list[Manifest] = []
    for path in paths:
        name = "standard input" if path == STANDARD_INPUT else str(path)
        try:
            text = _read(path, stdin or sys.stdin.buffer)
        except (OSError, UnicodeDecodeError) as error:
            raise ManifestError(f"{name}: {error}") from error
        found += parse_manifests(text, name=name)
    return found


def _read(path: Path, stdin: BinaryIO) -> str:
    if path == STANDARD_INPUT:
        content = stdin.read(MAX_BYTES + 1)
    else:
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
    if len(content) > MAX_BYTES:
        raise OSError(f"has more than {MAX_BYTES // 2**20} MiB")
    return content.decode()


def parse_manifests(text: str, *, name: str) -> list[Manifest]:
    """Raises ManifestError. `name` is that of the file."""
    try:
        found = list(_parse(text, name))
    except (yaml.YAMLError, ValueError) as error:
        raise ManifestError(f"{name}: {error}") from error
    except RecursionError:
        raise ManifestError(f"{name}: too deeply nested") from None
    return found


def _parse(text: str, name: str) -> Iterator[Manifest]:
    loader = _Loader(text)
    begin = 0
    number = 0
    while loader.check_node() and (node := loader.get_node()) is not None:
        end = node.end_mark.index if loader.check_node() else len(text)
        number += 1
        value = loader.construct_document(node)
        if _count(value) > _MAX_VALUES:
            raise ManifestError(f"{name}: document {number} has more than {_MAX_VALUES} values")
        yield Manifest(place=f"{name}, document {number}", text=text[begin:end], value=value)
        begin = end


def _count(value: Any) -> int:
    """How many values there are, up to a few more than `_MAX_VALUES`."""
    waiting, count = [value], 0
    while waiting and count <= _MAX_VALUES:
        one = waiting.pop()
        count += 1
        if isinstance(one, Mapping):
            waiting += one.values()
        elif isinstance(one, list):
            waiting += one
    return count
