"""What the controller gives each node's tunnel: a mark, addresses in the tunnel network, a hardware address.

All of it is planned from the tunnels that exist, so a controller that starts needs no memory of its own. What a tunnel
has is kept as long as it is valid and nobody older has it, too; what is missing is the lowest that is free. The mark
is also the number of a routing table, so it is written and read as one number.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from ipaddress import AddressValueError, IPv4Address, IPv4Network, IPv6Address, IPv6Network
from typing import Final

from coil.crd.egress_tunnel import EgressTunnel, TunnelEnd
from coil.crd.names import NodeName
from coil.kernel.family import Family, IPAddress
from coil.kernel.link import MacAddress
from coil.kernel.vxlan import OverlayPeer
from coil.kernel.wireguard import PublicKey, WireGuardPeer

NODE_MARK: Final = 0x26000000
NODE_MARK_MASK: Final = 0xFF000000
"""Which bits say that a mark is a node's at all; a node's own mark is compared as a whole."""
_MOST_MARKS: Final = 0xFFFF


class TunnelSpaceError(Exception):
    """No mark or no tunnel address is left."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TunnelNets:
    """Where tunnel addresses come from; None: no addresses of that family."""

    ipv4: IPv4Network | None
    ipv6: IPv6Network | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TunnelIdentity:
    """`mark` is written as in the status, `0x26000100`; `end` has no parent, which is the agent's."""

    mark: str
    end: TunnelEnd


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """Another node's end of the mesh: the mark that leads to it, and how it is reached. `tunnel` are its addresses in
    the tunnel network. `addresses` are those that its tunnel's packets may come from: the Node's, or where the mesh is
    encrypted those in the tunnel network, with the node's `key`. `parent` are those of the Node that its tunnel ends
    at, by its own word.
    """

    node: NodeName
    mark: int
    mac: MacAddress
    tunnel: tuple[IPAddress, ...] = ()
    parent: tuple[IPAddress, ...] = ()
    addresses: tuple[IPAddress, ...] = ()
    key: PublicKey | None = None

    def overlay(self, underlay: Family) -> OverlayPeer | None:
        """What the tunnel's link is to know of it, of a node with an address of that family; None if it has none. Where
        the mesh is encrypted, the link sends to its tunnel address.
        """
        end = self._end(underlay)
        if end is not None and self.key is not None:
            end = self._inner()
        return None if end is None else OverlayPeer(mac=self.mac, tunnel=self.tunnel, underlay=end)

    def wireguard(self, underlay: Family, *, port: int) -> WireGuardPeer | None:
        """What the link that encrypts is to know of it; None if it has no key, or no address of that family."""
        end, inner = self._end(underlay), self._inner()
        if end is None or inner is None or self.key is None:
            return None
        return WireGuardPeer(key=self.key, endpoint=end, port=port, address=inner)

    def _end(self, family: Family) -> IPAddress | None:
        return next((address for address in self.parent if Family.of(address) is family), None)

    def _inner(self) -> IPv4Address | None:
        return next((address for address in self.tunnel if isinstance(address, IPv4Address)), None)


def plan_tunnels(tunnels: Iterable[EgressTunnel], nets: TunnelNets) -> Mapping[NodeName, TunnelIdentity]:
    """The identity of each tunnel; the same again when the result is what the tunnels have.

    Of two that have the same, the older keeps it. Raises TunnelSpaceError.
    """
    ordered = sorted(tunnels, key=_age)
    ends = [tunnel.status.tunnel for tunnel in ordered]
    marks = _allocate([_mark_value(tunnel.status.mark) for tunnel in ordered], range(1, _MOST_MARKS + 1), "marks")
    ipv4 = _addresses([end.ipv4 for end in ends], nets.ipv4, IPv4Address)
    ipv6 = _addresses([end.ipv6 for end in ends], nets.ipv6, IPv6Address)
    taken: set[str] = set()
    planned: dict[NodeName, TunnelIdentity] = {}
    for tunnel, mark, one, other in zip(ordered, marks, ipv4, ipv6, strict=True):
        node = NodeName(tunnel.metadata.name)
        end = TunnelEnd(ipv4=one, ipv6=other, mac=_free_mac(node, taken))
        taken.add(end.mac)
        planned[node] = TunnelIdentity(mark=render_mark(mark), end=end)
    return planned


def tunnel_mac(node: NodeName, attempt: int = 0) -> MacAddress:
    """The hardware address of a node's tunnel: locally administered, unicast, and always the same for a name.

    A further `attempt` is for when the first one is another node's (IEEE 802: 46 bits are free to choose).
    """
    octets = bytearray(sha256(f"{node}/{attempt}".encode() if attempt else node.encode()).digest()[:6])
    octets[0] = octets[0] & 0xFC | 0x02
    return MacAddress(octets.hex(":"))


def render_mark(value: int) -> str:
    """The mark of a node by its value, 1 … 0xffff: 1 is `0x26000100`."""
    return f"{NODE_MARK | value << 8:#010x}"


def parse_mark(text: str) -> int | None:
    """A node's mark as the number that packets carry; None for anything that `render_mark` has not written."""
    value = _mark_value(text)
    return None if value is None else NODE_MARK | value << 8


def _mark_value(text: str) -> int | None:
    try:
        value = int(text, 16) >> 8 & _MOST_MARKS
    except ValueError:
        return None
    return value if value and render_mark(value) == text else None


def _age(tunnel: EgressTunnel) -> tuple[str, str]:
    since = tunnel.metadata.creation_timestamp
    # One that the API server has not made yet is the youngest.
    return "~" if since is None else since.isoformat(), tunnel.metadata.name


def _free_mac(node: NodeName, taken: set[str]) -> MacAddress:
    attempt = 0
    while tunnel_mac(node, attempt) in taken:
        attempt += 1
    return tunnel_mac(node, attempt)


def _addresses(
    texts: list[str],
    net: IPv4Network | IPv6Network | None,
    address: Callable[[str | int], IPv4Address] | Callable[[str | int], IPv6Address],
) -> list[str]:
    """One per text. The network's own address is left out, and the broadcast address of IPv4."""
    if net is None:
        return [""] * len(texts)
    base = int(net.network_address)
    present: list[int | None] = []
    for text in texts:
        try:
            present.append(int(address(text)) - base)
        except AddressValueError:
            present.append(None)
    usable = range(1, net.num_addresses - (net.version == 4))
    return [str(address(base + offset)) for offset in _allocate(present, usable, f"addresses in {net}")]


def _allocate(present: list[int | None], usable: range, what: str) -> list[int]:
    """A number for each, its own if that is usable and nobody before has it, otherwise the lowest free one."""
    taken: set[int] = set()
    kept: list[int | None] = []
    for number in present:
        keep = number is not None and number in usable and number not in taken
        kept.append(number if keep else None)
        if keep and number is not None:
            taken.add(number)
    free = (number for number in usable if number not in taken)
    found: list[int] = []
    for number in kept:
        chosen = next(free, None) if number is None else number
        if chosen is None:
            raise TunnelSpaceError(f"all {what} are given to tunnels")
        found.append(chosen)
    return found
