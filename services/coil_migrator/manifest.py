"""Objects as a YAML stream for `kubectl apply`. Pure; last step of a dump.

Pools come before blocks. Values are written as JSON, which is YAML too, and keys as they are: no name of a user's can
mean anything but itself. Names in the API are ASCII.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from coil.crd.address_block import ADDRESS_BLOCKS, AddressBlock
from coil.crd.address_pool import ADDRESS_POOLS, AddressPool

Document: TypeAlias = dict[str, Any]


def render_manifests(pools: Iterable[AddressPool], blocks: Iterable[AddressBlock]) -> str:
    """The text; empty for nothing. The same objects make the same text."""
    documents = [*map(_pool_document, pools), *map(_block_document, blocks)]
    return "".join("---\n" + "".join(f"{line}\n" for line in _lines(document)) for document in documents)


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
    """A mapping or a sequence, none of them empty, in block style."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            if _is_leaf(item):
                yield f"{indent}{key}: {json.dumps(item)}"
            else:
                yield f"{indent}{key}:"
                yield from _lines(item, indent if isinstance(item, Sequence) else f"{indent}  ")
    else:
        for item in value:
            first, *rest = _lines(item, f"{indent}  ")
            yield f"{indent}- {first.lstrip()}"
            yield from rest


def _is_leaf(value: Any) -> bool:
    return isinstance(value, str | int)
