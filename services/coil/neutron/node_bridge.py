"""What a node has for a Neutron network of which it has ports: a bridge, and a VXLAN link as its uplink. Pure.

    ports of a network on this node, the node's underlay ─► plan_network ─► NodeBridge ─► coil.netlink.bridge

Names follow from the network's UUID; the alias of both links has the UUID itself, by which they are found again, and
by which two networks with the same name would be noticed. Both have the same hardware addresses on every node: nothing
that the node itself sends on a bridge leaves by the uplink (`coil.neutron.port_filter`).

The uplink learns which node a hardware address is behind. Without that every frame would be sent to every node. What
it learns from are packets of nodes only, and these send frames only with the hardware address of the sender's port.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from ipaddress import ip_interface, ip_network
from typing import Final

from coil.kernel.bridge import Bridge
from coil.kernel.family import Family, IPAddress, IPInterface
from coil.kernel.link import LinkName, MacAddress, Neighbour, ParentLink, derived_mac
from coil.kernel.mark import MARK_PROTOCOL
from coil.kernel.route import Route, link_scope
from coil.kernel.vxlan import Vxlan, vxlan_mtu
from coil.neutron.handoff import Handoff
from coil.neutron.node_address import NodeAddressError, node_address
from coil.neutron.port_rules import RuleSet
from coil.neutron.resource import NetworkId

BRIDGE_PREFIX: Final = "cnb-"
UPLINK_PREFIX: Final = "cnx-"
_DIGITS: Final = 11
"""Of the digest in a name; a link's name has 15 characters at most."""
_ALIAS: Final = "COIL:network:"


class NetworkRefusedError(ValueError):
    """The network cannot be had on this node; the sentence says why, for the administrator."""


PROTOCOL: Final = MARK_PROTOCOL
"""Of the node's routes to pods: what Coil's routes carry everywhere."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BridgedPort:
    """A pod's port as the node has it: the host's end of the pod's veth, what the pod's end has, the hardware address
    of the network's bridge, and the rules of its security groups, None if it has none.
    """

    ifname: LinkName
    mac: MacAddress
    addresses: tuple[IPInterface, ...]
    bridge_mac: MacAddress
    rules: RuleSet | None = None

    @classmethod
    def of(cls, ifname: LinkName, port: Handoff) -> "BridgedPort":
        return cls(
            ifname=ifname,
            mac=port.mac,
            addresses=tuple(each.interface for each in port.addresses),
            bridge_mac=bridge_mac(port.network),
            rules=port.rules,
        )

    @property
    def node_addresses(self) -> frozenset[IPInterface]:
        """Those that the node has for the pod on its bridge, without a network."""
        return frozenset(ip_interface(node_address(interface)) for interface in self.addresses)

    def routes(self, bridge: LinkName) -> tuple[Route, ...]:
        """The node's routes to the pod."""
        destinations = (ip_network(interface.ip) for interface in self.addresses)
        return tuple(
            Route(destination=network, device=bridge, protocol=PROTOCOL, scope=link_scope(network))
            for network in destinations
        )

    def neighbours(self, bridge: LinkName) -> tuple[Neighbour, ...]:
        """Where the pod is: the node never asks."""
        return tuple(Neighbour(bridge, interface.ip, self.mac) for interface in self.addresses)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeBridge:
    """The two links of one network on one node, and its ports."""

    network: NetworkId
    bridge: Bridge
    uplink: Vxlan
    ports: tuple[BridgedPort, ...]

    @property
    def addresses(self) -> frozenset[IPInterface]:
        """The node's own on the bridge, without a network."""
        return frozenset(address for port in self.ports for address in port.node_addresses)

    @property
    def routes(self) -> tuple[Route, ...]:
        """The node's routes to all pods."""
        return tuple(route for port in self.ports for route in port.routes(self.bridge.name))

    @property
    def neighbours(self) -> tuple[Neighbour, ...]:
        """Where all pods are."""
        return tuple(neighbour for port in self.ports for neighbour in port.neighbours(self.bridge.name))


def bridge_name(network: NetworkId) -> LinkName:
    """The network's bridge, on any node."""
    return LinkName(BRIDGE_PREFIX + _digest(network))


def uplink_name(network: NetworkId) -> LinkName:
    """The bridge's uplink."""
    return LinkName(UPLINK_PREFIX + _digest(network))


def bridge_mac(network: NetworkId) -> MacAddress:
    """The bridge's hardware address, on any node."""
    return derived_mac(f"{network.lower()}/bridge")


def _digest(network: NetworkId) -> str:
    return sha256(network.lower().encode()).hexdigest()[:_DIGITS]


def render_network_alias(network: NetworkId) -> str:
    """The alias of both links."""
    return _ALIAS + network


def parse_network_alias(text: str) -> NetworkId | None:
    """The network that a link is for; None where it is none of these links."""
    return NetworkId(text.removeprefix(_ALIAS)) if text.startswith(_ALIAS) and text != _ALIAS else None


def plan_network(
    ports: Mapping[LinkName, Handoff],
    *,
    local: IPAddress,
    parent: ParentLink,
    udp_port: int,
    checksum_offload: bool = True,
) -> NodeBridge:
    """The links for the network of these ports, at least one, by the hosts' ends of their veths; `parent` is the link
    that has the address `local`.

    Raises NetworkRefusedError. A network without an identifier is refused although its ports on one node could reach
    each other: those on other nodes would silently be cut off from them.
    """
    network = next(iter(ports.values())).network
    found = {port.segmentation for port in ports.values()}
    if None in found:
        raise NetworkRefusedError(
            f"the network {network} has no segmentation ID in the hand-off, so nodes could not tell its packets from "
            "those of others: it has to be a network of the type vxlan, and coil-raven's account needs the rule "
            "get_network:provider:segmentation_id"
        )
    [vni, *others] = sorted(vni for vni in found if vni is not None)
    if others:
        raise NetworkRefusedError(f"ports of the network {network} have different segmentation IDs: {vni}, {others[0]}")
    mtu = max(port.mtu for port in ports.values())
    most = vxlan_mtu(parent.mtu, Family.of(local))
    if mtu > most:
        raise NetworkRefusedError(
            f"the network {network} has an MTU of {mtu}, but a packet of this node has room for {most} bytes: the MTU "
            f"of {parent.name} is {parent.mtu}, of which VXLAN takes {parent.mtu - most}. Lower the network's MTU in "
            f"Neutron to {most} and recreate its pods, or raise that of {parent.name} to {mtu + parent.mtu - most}"
        )
    try:
        for port in ports.values():
            for each in port.addresses:
                node_address(each.interface)
    except NodeAddressError as error:
        raise NetworkRefusedError(str(error)) from None
    return NodeBridge(
        network=network,
        bridge=Bridge(
            name=bridge_name(network),
            mac=bridge_mac(network),
            mtu=mtu,
            alias=render_network_alias(network),
        ),
        uplink=Vxlan(
            name=uplink_name(network),
            vni=vni,
            port=udp_port,
            mac=derived_mac(f"{network.lower()}/uplink"),
            mtu=mtu,
            local=local,
            parent=parent.name,
            learning=True,
            checksum_offload=checksum_offload,
        ),
        ports=tuple(BridgedPort.of(ifname, port) for ifname, port in sorted(ports.items())),
    )


def refuse_conflicts(
    ifname: LinkName, port: Handoff, bound: Mapping[LinkName, Handoff], links: Iterable[ParentLink]
) -> None:
    """Raises NetworkRefusedError where the port cannot be beside those that are bound, or beside the node's own
    network: `links` are the node's links with their addresses, but for those of networks of ports.

    The node has one route to an address. If it led to a pod, a neighbour of the node with that address would lose its
    packets to the pod; if two pods had it, kubelet would ask one tenant's pod for another's.
    """
    links = tuple(links)
    for each in port.addresses:
        address = each.interface.ip
        if address.is_link_local or address.is_loopback or address.is_multicast or address.is_unspecified:
            raise NetworkRefusedError(f"the port {port.port} has the address {address}, which no pod can have")
        for link in links:
            if link.has(address) or link.reaches(address):
                raise NetworkRefusedError(
                    f"the port {port.port} has the address {address}, which is in a network of the node's link "
                    f"{link.name}: what the node sends there would reach the pod. Use other ranges for pods"
                )
    addresses = {each.interface.ip for each in port.addresses}
    for other_name, other in bound.items():
        if other_name == ifname:
            continue
        if other.port == port.port:
            raise NetworkRefusedError(f"the port {port.port} is still plugged in at {other_name}")
        if shared := addresses & {each.interface.ip for each in other.addresses}:
            raise NetworkRefusedError(
                f"the port {port.port} has the address {min(map(str, shared))}, which the port {other.port} of the "
                f"network {other.network} has on this node: kubelet could not tell the pods apart"
            )
        if other.network == port.network and other.mac == port.mac:
            raise NetworkRefusedError(f"the ports {port.port} and {other.port} have the hardware address {port.mac}")
        if other.network != port.network and other.segmentation == port.segmentation is not None:
            raise NetworkRefusedError(
                f"the networks {port.network} and {other.network} have the segmentation ID {port.segmentation}: their "
                "packets could not be told apart. Both have to be of the type vxlan"
            )
