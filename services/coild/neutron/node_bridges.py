"""The binding `bridge`, put together: its kernel, and the Nodes that it follows.

Nodes (cache) ─► NodePeers ─► BridgeBinding ─► BridgeNetwork
"""

from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from structlog.typing import FilteringBoundLogger

from coil.crd.builtin import Node
from coil.reconcile.cache import Cache
from coild.neutron.bridge import BridgeBinding
from coild.neutron.bridge_kernel import BridgeNetwork
from coild.neutron.node_peers import NodePeers
from coild.settings import Settings


@dataclass(frozen=True, slots=True)
class NodeBridges:
    """One per process."""

    binding: BridgeBinding
    _peers: NodePeers

    def tasks(self) -> dict[str, Coroutine[Any, Any, None]]:
        """What is to run as long as the process, by name; once, after it is known what is bound."""
        return {"port-bridges": self.binding.run(), "port-peers": self._peers.run()}


@asynccontextmanager
async def open_bridges(
    settings: Settings, nodes: Cache[Node], *, random: Callable[[], float], log: FilteringBoundLogger
) -> AsyncIterator[NodeBridges]:
    """For the node of the settings, in the process's network namespace. Leaving it leaves bridges as they are."""
    async with BridgeNetwork(
        udp_port=settings.neutron_vxlan_port, checksum_offload=settings.neutron_vxlan_checksum_offload
    ) as kernel:
        binding = BridgeBinding(kernel, random=random, log=log)
        peers = NodePeers(nodes, own=settings.node_name, tell=binding.set_underlay, log=log)
        yield NodeBridges(binding, peers)
