"""The table of host ports in the kernel, and what conntrack remembers of them.

On a node without host ports there is no table, and libnftables is not loaded.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path

from coil.kernel.family import IPAddress
from coil.netlink.conntrack import forget_flows, read_udp_flows
from coil.podnet.host_port import plan_host_port_table
from coild.model.watched_table import WatchedTable


class KernelTable(WatchedTable):
    """Implements `coild.hostports.host_ports.HostPortTable` for the process's namespace, or the one at `netns`."""

    def __init__(self, *, netns: Path | None = None) -> None:
        super().__init__(plan_host_port_table(), netns=netns)

    async def forget_udp(self, ports: Mapping[IPAddress, frozenset[int]]) -> None:
        """See `HostPortTable`."""
        await self._worker.run(_forget_udp, ports)


def _forget_udp(ports: Mapping[IPAddress, Iterable[int]]) -> None:
    pods: dict[int, set[IPAddress]] = {}
    for pod, found in ports.items():
        for port in found:
            pods.setdefault(port, set()).add(pod)
    stale = [
        flow
        for port, addresses in pods.items()
        for flow in read_udp_flows(port)
        if flow.target.address in addresses or (flow.target, flow.seen) == (flow.destination, flow.source)
    ]
    forget_flows(stale)
