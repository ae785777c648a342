"""Nodes as commands read them: documents instead of programs that run."""

from collections.abc import Collection
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import msgspec

from coil.page.document import Document
from coil.page.node_dump import VERSION, NamespaceDump, NodeDump, Part, RouteDump
from kubectl_coil.node_reader import NodeUnreadableError


def node_dump(
    inspection: Document | None = None,
    *,
    routes: tuple[RouteDump, ...] = (),
    namespaces: tuple[NamespaceDump, ...] = (),
    tables: Any = None,
    truncated: tuple[str, ...] = (),
    troubles: tuple[str, ...] = (),
    version: int = VERSION,
) -> NodeDump:
    return NodeDump(
        version=version,
        at=datetime(2030, 1, 1, 12, tzinfo=UTC),
        host="n1",
        kernel="6.1",
        node=NamespaceDump(path="", routes=routes),
        pods=namespaces,
        fou_ports=(),
        tables=tables,
        inspection=None if inspection is None else msgspec.to_builtins(inspection, enc_hook=str),
        truncated=truncated,
        troubles=troubles,
    )


@dataclass(slots=True)
class MemoryNodes:
    """A `NodeReader`. Nodes without a dump cannot be read; `asked` has who was."""

    dumps: dict[str, NodeDump] = field(default_factory=dict)
    asked: list[tuple[str, frozenset[Part]]] = field(default_factory=list)

    async def read(self, node: str, parts: Collection[Part]) -> NodeDump:
        self.asked.append((node, frozenset(parts)))
        if (dump := self.dumps.get(node)) is None:
            raise NodeUnreadableError(f"the node {node} could not be asked: it is silent")
        return dump
