"""The packets of policies that this node is to forward, for `coil.nft.forward_watch`: from its pods into the tunnel,
and on a node that carries addresses, from the tunnel to the world. One pod of each family stands for all, in both
directions.

    NodePods, gateways' statuses, slices ─► ForwardedSources ─► plan_packets ─► ForwardWatch
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final

from coil.crd.condition_text import fit_sentences
from coil.crd.egress_gateway import EgressGateway
from coil.crd.meta import Condition
from coil.crd.names import NodeName
from coil.kernel.family import Family, IPAddress
from coil.kernel.link import LinkName
from coil.kernel.packet_filter import ForwardedPacket
from coil.netlink.connection import Connection
from coil.netlink.error import NetlinkError
from coil.netlink.route import find_links, find_uplink
from coil.reconcile.cache import Cache
from coil_egress_agent.eip.change_tracker import BY_POLICY, EndpointSlice, policy_key, source_nodes
from coil_egress_agent.eip.mesh import DEVICE
from coil_egress_agent.eip.node_pods import NodePods

_MOST_SLICES: Final = 100
"""That are looked at for pods of other nodes."""

POLICY_TRAFFIC_DROPPED: Final = "PolicyTrafficDropped"
"""The type of the EgressTunnel's condition."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ways:
    """The links by which packets leave: to each of the addresses that there is a route to, and to the world."""

    links: Mapping[IPAddress, LinkName]
    uplink: LinkName | None


def read_ways(addresses: Collection[IPAddress]) -> Ways:
    """Those of the calling thread's namespace. Raises NetlinkError."""
    with Connection() as connection:
        try:
            uplink = find_uplink((), connection).name
        except NetlinkError:
            uplink = None
        return Ways(links=find_links(addresses, connection), uplink=uplink)


class ForwardedSources:
    """The pods that stand for all, as they are now."""

    def __init__(
        self, pods: NodePods, gateways: Cache[EgressGateway], slices: Cache[EndpointSlice], *, node: NodeName
    ) -> None:
        self._pods = pods
        self._gateways = gateways
        self._slices = slices
        self._node = node

    def local(self) -> tuple[IPAddress, ...]:
        """Of this node, one of each family. O(pods of the node)."""
        return _one_of_each_family(address for addresses in self._pods.view().sources.values() for address in addresses)

    def remote(self) -> tuple[IPAddress, ...]:
        """Of other nodes, one of each family, whose policies' traffic leaves here."""
        return _one_of_each_family(self._remote_sources())

    def _remote_sources(self) -> Iterator[IPAddress]:
        slices = (
            slice_
            for gateway in self._gateways.items()
            for listed in gateway.status.node_list
            if listed.name == self._node
            for eip in listed.eips
            for policy in eip.policies
            for slice_ in self._slices.by_index(BY_POLICY, policy_key(policy))
        )
        for slice_ in islice(slices, _MOST_SLICES):
            yield from (address for address, node in source_nodes([slice_]).items() if node != self._node)


def plan_packets(local: Iterable[IPAddress], remote: Iterable[IPAddress], ways: Ways) -> dict[str, ForwardedPacket]:
    """By what each is called. `local` are pods of this node, `remote` those whose traffic comes out of the tunnel."""
    packets: dict[str, ForwardedPacket] = {}
    for pod in local:
        if (link := ways.links.get(pod)) is not None:
            packets.update(_both_ways(pod, link, DEVICE, "from pods into the tunnel", "from the tunnel to pods"))
    for pod in remote:
        if ways.uplink is not None:
            out, back = "from the tunnel to the uplink", "from the uplink into the tunnel"
            packets.update(_both_ways(pod, DEVICE, ways.uplink, out, back))
    return packets


def dropped_condition(dropped: Sequence[str]) -> Condition:
    """What the node's EgressTunnel says. `dropped` has a sentence for each packet filter and kind of packet."""
    if dropped:
        status, reason, message = "True", "ForwardDropped", fit_sentences(dropped)
    else:
        status, reason, message = "False", "ForwardAccepted", "no packet filter of others drops what policies send"
    return Condition(type=POLICY_TRAFFIC_DROPPED, status=status, reason=reason, message=message)


def _both_ways(
    pod: IPAddress, near: LinkName, far: LinkName, out: str, back: str
) -> Iterator[tuple[str, ForwardedPacket]]:
    """`near` is on the pod's side."""
    family, version = Family.of(pod), f"IPv{pod.version}"
    yield f"{version} {out}", ForwardedPacket(family=family, input=near, output=far, source=pod)
    yield f"{version} {back}", ForwardedPacket(family=family, input=far, output=near, destination=pod)


def _one_of_each_family(addresses: Iterable[IPAddress]) -> tuple[IPAddress, ...]:
    found: dict[Family, IPAddress] = {}
    for address in addresses:
        found.setdefault(Family.of(address), address)
        if len(found) == len(Family):
            break
    return tuple(found[family] for family in sorted(found, key=lambda family: family.value))
