"""Linux bridges: the link, its ports, and where a VXLAN port of one sends copies of what it floods.

Place in the flow: `coil.neutron.node_bridge` plans in these words, `coil.netlink.bridge` carries it out.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Final

from coil.kernel.family import IPAddress
from coil.kernel.link import LinkName, MacAddress
from coil.kernel.vxlan import ForwardingEntry

BRIDGE_KIND: Final = "bridge"
FLOOD_MAC: Final = MacAddress("00:00:00:00:00:00")
"""In the forwarding database of a VXLAN link: where frames go whose destination it does not know, a copy to each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bridge:
    """A bridge without spanning tree and without multicast snooping. `mtu` is in bytes.

    Snooping without a querier, or with one that a pod pretends to be, would keep neighbour solicitations from pods.
    """

    name: LinkName
    mac: MacAddress
    mtu: int
    alias: str

    def __str__(self) -> str:
        return f"bridge {self.name}"


@dataclass(frozen=True, slots=True)
class PortFlags:
    """What the bridge does at a port: whether it learns hardware addresses from what comes in by it, and whether frames
    whose destination nobody knows leave by it.
    """

    learning: bool
    flood: bool


UPLINK_FLAGS: Final = PortFlags(learning=True, flood=True)
POD_FLAGS: Final = PortFlags(learning=False, flood=False)
"""A pod has one hardware address, which is known, and gets no frames that are for others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FloodChanges:
    """First the deletes, then the adds. Sorted, so that runs are alike."""

    deletes: tuple[ForwardingEntry, ...] = ()
    adds: tuple[ForwardingEntry, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.deletes or self.adds)


def diff_flood(device: LinkName, actual: Collection[ForwardingEntry], peers: Collection[IPAddress]) -> FloodChanges:
    """What makes `peers` all to whom the VXLAN link sends anything. `actual` are all entries that it has.

    Besides copies for those who are no peers any more, what was learnt from them goes: the address may be another
    machine's tomorrow.
    """
    flooded = {entry.remote for entry in actual if entry.mac == FLOOD_MAC}
    return FloodChanges(
        deletes=_sorted(entry for entry in actual if entry.remote not in peers),
        adds=_sorted(ForwardingEntry(device, FLOOD_MAC, peer) for peer in frozenset(peers) - flooded),
    )


def _sorted(entries: Iterable[ForwardingEntry]) -> tuple[ForwardingEntry, ...]:
    return tuple(sorted(entries, key=str))
