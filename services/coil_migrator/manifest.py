"""Objects as a YAML stream for `kubectl apply`. Pure; last step of a dump, and of a conversion.

Texts are written as in JSON, in quotes, and so are keys that could mean something else: no name of a user's can mean
anything but itself, whichever version of YAML a reader follows.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeAlias

from coil.crd.address_block import ADDRESS_BLOCKS, AddressBlock
from coil.crd.address_pool import ADDRESS_POOLS, AddressPool

Document: TypeAlias = dict[str, Any]

_PLAIN_KEY: Final = re.compile(r"[A-Za-z][A-Za-z0-9_./-]*")
_WORDS: Final = frozenset({"y", "n", "yes", "no", "on", "off", "true", "false", "null"})
"""What YAML 1.1 takes for something other than a text."""
_NOT_ASCII: Final = re.compile(r"[^ -~]")


def render_manifests(pools: Iterable[AddressPool], blocks: Iterable[AddressBlock]) -> str:
    """The text, pools before blocks; empty for nothing. The same objects make the same text."""
    return "".join(map(render_document, [*map(_pool_document, pools), *map(_block_document, blocks)]))


def render_document(document: Mapping[str, Any]) -> str:
    """One that is not empty, with the mark of a document's beginning. Raises ValueError for a number that is none."""
    return "---\n" + "".join(f"{line}\n" for line in _lines(document))


def _pool_document(pool: AddressPool) -> Document:
    # Written out although 5 is the default: v1's number is part of what is moved.
    spec = {
        "blockSizeBits": pool.spec.block_size_bits,
        "subnets": [{"ipv4": subnet.ipv4} for subnet in pool.spec.subnets],
    }
    return {
        "apiVersion": ADDRESS_POOLS.api_version,
        "kind": ADDRESS_POOLS.kind,
        "metadata": {"name": pool.name},
        "spec": spec,
    }


def _block_document(block: AddressBlock) -> Document:
    return {
        "apiVersion": ADDRESS_BLOCKS.api_version,
        "kind": ADDRESS_BLOCKS.kind,
        "metadata": {"name": block.name, "labels": dict(block.metadata.labels)},
        "index": block.index,
        "ipv4": block.ipv4,
    }


def _lines(value: Any, indent: str = "") -> Iterator[str]:
    """A mapping or a sequence, not empty, in block style."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            if _is_leaf(item):
                yield f"{indent}{_key(key)}: {_scalar(item)}"
            else:
                yield f"{indent}{_key(key)}:"
                yield from _lines(item, indent if isinstance(item, Sequence) else f"{indent}  ")
    else:
        for item in value:
            if _is_leaf(item):
                yield f"{indent}- {_scalar(item)}"
            else:
                first, *rest = _lines(item, f"{indent}  ")
                yield f"{indent}- {first.lstrip()}"
                yield from rest


def _is_leaf(value: Any) -> bool:
    return not value or not isinstance(value, Mapping | list | tuple)


def _key(key: Any) -> str:
    """One that is no text, which YAML can have, is to Kubernetes what it looks like in JSON."""
    text = key if isinstance(key, str) else json.dumps(key)
    return text if _PLAIN_KEY.fullmatch(text) and text.lower() not in _WORDS else _scalar(text)


def _scalar(value: Any) -> str:
    """Also of an empty mapping or list. What is not ASCII is escaped as in YAML, which knows no pairs of surrogates."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    return _NOT_ASCII.sub(lambda found: f"\\U{ord(found[0]):08x}", text)
