"""What this node's addresses are doing, as a page and as JSON: served to people and their scripts.

AddressSource.describe ─► describe_node ─► coil.page: JSON and page ─► coil.runtime.inspection
"""

from collections.abc import Callable
from datetime import UTC, datetime

from structlog.typing import FilteringBoundLogger

from coil.crd.names import NodeName
from coil.page import node_document as page
from coil.page.node_page import render_node_page
from coil.runtime.inspection import Inspection, start_inspection
from coil.runtime.process import Process
from coild.model.address_source import AddressSource
from coild.settings import Settings


def start_node_inspection(
    settings: Settings, process: Process, *, source: AddressSource, log: FilteringBoundLogger
) -> None:
    """Serve the node's inspection on the ports of the settings until the process stops."""

    def look() -> Callable[[], page.NodeDocument]:
        # All of it at once: there are no more addresses out than pods here, and the books change with every ADD.
        node = describe_node(settings.node_name, source.describe(), now=datetime.now(UTC))
        return lambda: node

    endpoints = {"inspect": settings.inspect_addr, "inspect-page": settings.inspect_page_addr}
    start_inspection(process, Inspection(look, render_node_page), endpoints, log=log)


def describe_node(node: NodeName, pools: tuple[page.PoolDocument, ...], *, now: datetime) -> page.NodeDocument:
    """The node's document."""
    addresses = sum((pool.addresses for pool in pools), start=page.AddressCounts())
    return page.NodeDocument(node=node, at=now, addresses=addresses, pools=pools)
