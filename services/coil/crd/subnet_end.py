"""The ends of the networks that nodes are in: addresses that no host has, and that no gateway is to have. Pure.

Which networks these are, a node says itself (`parent` of its EgressTunnel): the API server knows addresses of Nodes
without a prefix. So its word counts only for an address of its Node, and for no more than two addresses of a family.
Whoever is root on a node can say that its Node has any address at all, which no gateway may have then, either: a
forged prefix gives nothing in addition. Both are refused to changes of gateways only, by the name of the Node; what
gateways have already they keep.
"""

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Interface, IPv6Address, IPv6Interface, ip_interface

from coil.crd.builtin import Node
from coil.crd.cidr import Version
from coil.crd.egress_gateway import EgressGateway
from coil.crd.egress_tunnel import EgressTunnel
from coil.crd.eip_validation import VERSIONS, try_span
from coil.crd.validation import FieldError


@dataclass(frozen=True, slots=True)
class SubnetEnd:
    """`kind` and `owner` are for people: what the address is, and of which network."""

    address: IPv4Address | IPv6Address
    kind: str
    owner: str


SubnetEnds = Mapping[Version, Sequence[SubnetEnd]]
"""Sorted by their addresses, each of which is there once."""


def collect_subnet_ends(nodes: Iterable[Node], tunnels: Iterable[EgressTunnel]) -> SubnetEnds:
    """Of the networks of `tunnels`, as far as their addresses are those of `nodes`. What is malformed is passed over.

    Of several Nodes in a network, the first by name is told.
    """
    addresses = {node.metadata.name: set(node.addresses()) for node in nodes}
    found: dict[Version, dict[int, SubnetEnd]] = {version: {} for version in VERSIONS}
    for tunnel in sorted(tunnels, key=lambda tunnel: tunnel.metadata.name):
        name, parent = tunnel.metadata.name, tunnel.status.tunnel.parent
        for text in (parent.ipv4, parent.ipv6):
            try:
                interface = ip_interface(text)
            except ValueError:
                continue
            if interface.ip in addresses.get(name, ()):
                for end in _ends(interface, name):
                    found[interface.version].setdefault(int(end.address), end)
    return {version: [end for _, end in sorted(ends.items())] for version, ends in found.items()}


def validate_assignable_ranges(gateway: EgressGateway, ends: SubnetEnds) -> list[FieldError]:
    """Each entry of `gateway` that has such an address, with the first of these."""
    return list(_find_ends(gateway, ends))


def _find_ends(gateway: EgressGateway, ends: SubnetEnds) -> Iterator[FieldError]:
    for version in VERSIONS:
        theirs = ends[version]
        for path, text in gateway.spec.offers(version):
            if (span := try_span(text, version)) is None:
                continue
            position = bisect_left(theirs, span[0], key=lambda end: int(end.address))
            if position < len(theirs) and int((end := theirs[position]).address) <= span[1]:
                yield FieldError(path, f"{text!r} has {end.address}, which is the {end.kind} of {end.owner}")


def _ends(interface: IPv4Interface | IPv6Interface, node: str) -> Iterator[SubnetEnd]:
    """None where each of two addresses is a host's (RFC 3021, RFC 6164), or where there is one."""
    network = interface.network
    if network.prefixlen >= network.max_prefixlen - 1:
        return
    owner = f"{network}, the network of the Node {node!r}"
    if isinstance(interface, IPv6Interface):
        # All routers of the network have it (RFC 4291, 2.6.1); IPv6 has no broadcast.
        yield SubnetEnd(network.network_address, "Subnet-Router anycast address", owner)
    else:
        yield SubnetEnd(network.network_address, "network address", owner)
        yield SubnetEnd(network.broadcast_address, "broadcast address", owner)
