"""What an agent of Neutron does on each node: by its links, it tells Neutron whether ports are plugged in there."""

import json
from collections.abc import Mapping
from typing import Final

from coil.neutron.node_bridge import BRIDGE_PREFIX, UPLINK_PREFIX
from coil.podnet.host_link import PREFIX as HOST_LINK_PREFIX
from integration.kernel_state import KernelState
from integration.neutron.neutron_server import NeutronServer
from integration.side_thread import SideThread

_PAUSE: Final = 0.5


class PortAgent(SideThread):
    """A port is ACTIVE once a bridge of its node has its hardware address. `nodes` by their names in Neutron."""

    def __init__(self, neutron: NeutronServer, nodes: Mapping[str, KernelState]) -> None:
        super().__init__("port-agent")
        self._neutron = neutron
        self._nodes = nodes

    def work(self) -> None:
        """See `SideThread`."""
        with self._neutron.connect() as connection:
            while not self.stopped.wait(_PAUSE):
                ports = connection.network.get("/ports?status=DOWN").json()["ports"]
                bound = [port for port in ports if port["binding:host_id"] in self._nodes]
                plugged = {name: _plugged(self._nodes[name]) for name in {port["binding:host_id"] for port in bound}}
                for port in bound:
                    if port["mac_address"] in plugged[port["binding:host_id"]]:
                        self._neutron.set_status(port["id"], "ACTIVE")


def port_links(kernel: KernelState) -> list[str]:
    """The node's links of ports and of their networks, by name."""
    names = [link["ifname"] for link in kernel.ip("link", "show")]
    return [name for name in names if name.startswith((BRIDGE_PREFIX, UPLINK_PREFIX, HOST_LINK_PREFIX))]


def _plugged(kernel: KernelState) -> set[str]:
    """The hardware addresses that are tied to ports of bridges of networks."""
    entries = json.loads(kernel.run("bridge", "-json", "fdb", "show") or "[]")
    return {entry["mac"] for entry in entries if entry.get("master", "").startswith(BRIDGE_PREFIX)}
