"""The host outside the cluster: on the same link as the nodes, without a route to any pod.

So an answer of its own proves the address that it saw: it reaches EIPs and nodes, and nobody else.
"""

import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from ipaddress import ip_address
from pathlib import Path

from integration.cluster.network import Namespaces, Network
from integration.cluster.workspace import Workspace
from integration.eip.pod import open_socket
from integration.kernel_state import KernelState
from integration.netns.netns import call_inside

PORT = "server"
_INDEX = 80


class Server:
    """`addresses` by IP version, of the cluster's families; `others`: more of its own, for narrowed destinations."""

    def __init__(self, workspace: Workspace, network: Network) -> None:
        self._namespaces = Namespaces.hold(workspace, PORT)
        network.attach(self._namespaces, port=PORT, addresses=network.node_addresses(_INDEX))
        self.addresses, self.others, self.third = (
            network.families.pick_texts(*network.node_addresses(_INDEX + offset)) for offset in range(3)
        )
        for address in (*self.others.values(), *self.third.values()):
            extra = ["nodad"] if ip_address(address).version == 6 else []
            self._namespaces.run("ip", "address", "add", address, "dev", "eth0", *extra)
        for family in self.addresses:
            self._namespaces.run("ip", f"-{family}", "route", "del", "default")
        self._namespaces.set_sysctls(["net.ipv4.ip_forward=0", "net.ipv6.conf.all.forwarding=0"])

    @property
    def netns(self) -> Path:
        return self._namespaces.net

    @property
    def kernel(self) -> KernelState:
        return KernelState(str(self.netns))

    def socket(self, kind: socket.SocketKind, address: str) -> socket.socket:
        """A socket of its own, of that address's family."""
        return open_socket(self.netns, kind, address)

    @contextmanager
    def neighbors(self, known: Mapping[str, str]) -> Iterator[None]:
        """As long as the block lasts, it is sure that these addresses have these hardware addresses."""
        for address, mac in known.items():
            self._namespaces.run("ip", "neighbor", "replace", address, "lladdr", mac, "dev", "eth0", "nud", "permanent")
        try:
            yield
        finally:
            for address in known:
                self._namespaces.run("ip", "neighbor", "delete", address, "dev", "eth0")

    def retransmitted(self) -> int:
        """TCP segments that it has sent again, in both families."""
        text = call_inside(self.netns, lambda: Path("/proc/thread-self/net/snmp").read_text())
        names, values = (line.split()[1:] for line in text.splitlines() if line.startswith("Tcp:"))
        return int(dict(zip(names, values, strict=True))["RetransSegs"])
