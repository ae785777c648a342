"""Host ports: ports of the node that lead to a port of a pod, as `hostPort` in a container's `ports` asks for.

Place in the flow: the runtime names them in an ADD (`portMappings`, CNI's conventions), `coild.hostports` keeps the
elements of the node's pods, `coil.nft` the table.

A connection to an address of the node, from elsewhere or from the node itself, is looked up by address, protocol and
port, then by protocol and port alone, and goes to what the map has. The pod sees who has begun it, with two exceptions
that get an address of the node, as their answers would not come back otherwise: the pod itself, and 127.0.0.1.

Addresses of the node are those that the sets `own` have, and its loopback. A node has others, which are local to its
kernel and somebody else's: ClusterIPs (kube-proxy in IPVS mode), virtual addresses, floating addresses. Who translates
a connection at the ordinary priority, as kube-proxy does, comes before host ports, whoever made its table first.

127.0.0.1 needs route_localnet on the host's end of the pod's veth (`plan_loopback`). With that alone the pod could
send packets to what listens on the node's loopback, so the table drops what comes from any other link to or from
127.0.0.0/8. IPv6 has no such setting: what is sent from ::1 goes to no pod, and what is sent to ::1 only if it comes
from another of the node's addresses, as a connection that is bound to it does.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from ipaddress import IPv4Address, IPv4Network, collapse_addresses, ip_address, ip_network, summarize_address_range
from typing import Final, cast

from coil.kernel.family import Family, IPAddress, IPNetwork
from coil.kernel.link import LinkName, Sysctl
from coil.kernel.nft_element import ElementKey, Elements, ElementValue, SetName
from coil.kernel.nft_table import (
    ADDRESS,
    DESTINATION,
    SOURCE,
    ChainType,
    Comparison,
    DataType,
    DestinationNat,
    Field,
    Hook,
    Jump,
    Lookup,
    Match,
    Member,
    NftChain,
    NftSet,
    NftTable,
    Priority,
    RegularChain,
    Rule,
    TableFamily,
    Verdict,
)

TABLE: Final = "coil-host-ports"


class Protocol(StrEnum):
    """What a port is of, as CNI and nftables write it."""

    TCP = "tcp"
    UDP = "udp"
    SCTP = "sctp"


@dataclass(frozen=True, slots=True, kw_only=True)
class PortMapping:
    """One of the `portMappings` of an ADD.

    `host_address` is an address of the node, or 0.0.0.0 or :: for all of that family, or None for all of both.
    """

    protocol: Protocol
    host_port: int
    container_port: int
    host_address: IPAddress | None = None

    def __str__(self) -> str:
        return _describe(self.host_address, self.host_port, self.protocol)


def _describe(address: object, port: object, protocol: str) -> str:
    at = "" if address is None else f" at {address}"
    return f"{port}/{protocol.upper()}{at}"


@dataclass(frozen=True, slots=True)
class PortMaps:
    """From a port of the node to the pod's address, and to its port: two maps with the same keys."""

    addresses: SetName
    ports: SetName

    @classmethod
    def of(cls, prefix: str, bits: str) -> "PortMaps":
        return cls(*(SetName(TableFamily.INET, TABLE, f"{prefix}{name}{bits}") for name in ("address", "port")))


@dataclass(frozen=True, slots=True)
class HostPortSets:
    """Those of one family: `every` by protocol and port, `one` by address, protocol and port, `hairpin` each pod with
    itself, `own` the node's addresses and networks of such.
    """

    every: PortMaps
    one: PortMaps
    hairpin: SetName
    own: SetName

    @classmethod
    def of(cls, bits: str) -> "HostPortSets":
        hairpin, own = (SetName(TableFamily.INET, TABLE, f"{name}{bits}") for name in ("hairpin", "own"))
        return cls(PortMaps.of("", bits), PortMaps.of("bound_", bits), hairpin, own)


SETS: Final = {Family.IPV4: HostPortSets.of("4"), Family.IPV6: HostPortSets.of("6")}
_LOOPBACK: Final = IPv4Network("127.0.0.0/8")
_LOCAL: Final = Match(Field.DESTINATION_KIND, Comparison.IS, "local")
_TRANSLATED: Final = Match(Field.CONNECTION_STATUS, Comparison.AMONG, "dnat")


def plan_host_port_table() -> NftTable:
    """The same for all nodes, whatever pods they have."""
    lookup = RegularChain(name="host_ports", rules=tuple(rule for family in Family for rule in _lookups(family)))
    guard = NftChain(
        name="guard",
        type=ChainType.FILTER,
        hook=Hook.PREROUTING,
        priority=Priority.RAW,
        rules=tuple(
            (
                Match(Field.INPUT_LINK, Comparison.IS_NOT, "lo"),
                Match(field, Comparison.IS, _LOOPBACK),
                Verdict.DROP,
            )
            for field in (Field.IPV4_SOURCE, Field.IPV4_DESTINATION)
        ),
    )
    prerouting = NftChain(
        name="prerouting",
        type=ChainType.NAT,
        hook=Hook.PREROUTING,
        priority=Priority.AFTER_DSTNAT,
        rules=tuple(_to_node(lookup.name)),
    )
    output = NftChain(
        name="output",
        type=ChainType.NAT,
        hook=Hook.OUTPUT,
        priority=Priority.AFTER_DSTNAT,
        rules=(
            (Match(Field.IPV6_SOURCE, Comparison.IS, "::1"), Verdict.RETURN),
            (Match(Field.IPV4_DESTINATION, Comparison.IS, _LOOPBACK), Jump(lookup.name)),
            (Match(Field.IPV6_DESTINATION, Comparison.IS, "::1"), Jump(lookup.name)),
            *_to_node(lookup.name),
        ),
    )
    postrouting = NftChain(
        name="postrouting",
        type=ChainType.NAT,
        hook=Hook.POSTROUTING,
        priority=Priority.SRCNAT,
        rules=(
            *(
                (
                    _TRANSLATED,
                    Match((SOURCE[family], DESTINATION[family]), Comparison.IS, Member(SETS[family].hairpin.name)),
                    Verdict.MASQUERADE,
                )
                for family in Family
            ),
            (_TRANSLATED, Match(Field.IPV4_SOURCE, Comparison.IS, _LOOPBACK), Verdict.MASQUERADE),
        ),
    )
    return NftTable(
        name=TABLE,
        sets=tuple(entry for family in Family for entry in _sets_of(family)),
        chains=(lookup, guard, prerouting, output, postrouting),
    )


def _to_node(chain: str) -> Iterator[Rule]:
    """To the chain, with what is for an address of the node."""
    for family in Family:
        own = Match(DESTINATION[family], Comparison.IS, Member(SETS[family].own.name))
        yield _LOCAL, own, Jump(chain)


def _sets_of(family: Family) -> Iterator[NftSet]:
    address, names = ADDRESS[family], SETS[family]
    by_port = (DataType.PROTOCOL, DataType.PORT)
    for maps, key in ((names.every, by_port), (names.one, (address, *by_port))):
        yield NftSet(name=maps.addresses.name, key=key, value=address)
        yield NftSet(name=maps.ports.name, key=key, value=DataType.PORT)
    yield NftSet(name=names.hairpin.name, key=(address, address))
    yield NftSet(name=names.own.name, key=(address,), intervals=True)


def _lookups(family: Family) -> Iterator[Rule]:
    names = SETS[family]
    by_port = (Field.PROTOCOL, Field.DESTINATION_PORT)
    for maps, key in ((names.one, (DESTINATION[family], *by_port)), (names.every, by_port)):
        yield (DestinationNat(family, Lookup(key, maps.addresses.name), Lookup(key, maps.ports.name)),)


def plan_host_ports(addresses: Iterable[IPAddress], mappings: Collection[PortMapping]) -> Elements:
    """What leads to a pod with these addresses. A mapping for a family in which the pod has no address leads nowhere,
    and of two for one port of the node the later counts.
    """
    found: dict[SetName, dict[ElementKey, ElementValue]] = {}
    for address in addresses:
        family = Family.of(address)
        names = SETS[family]
        for mapping in mappings:
            host = mapping.host_address
            if host is not None and Family.of(host) is not family:
                continue
            by_port = (mapping.protocol.value, str(mapping.host_port))
            everywhere = host is None or host.is_unspecified
            maps, key = (names.every, by_port) if everywhere else (names.one, (str(host), *by_port))
            found.setdefault(maps.addresses, {})[key] = str(address)
            found.setdefault(maps.ports, {})[key] = str(mapping.container_port)
            found.setdefault(names.hairpin, {})[str(address), str(address)] = None
    return found


def plan_own(networks: Iterable[IPNetwork]) -> Elements:
    """What the table has to know of the node: its addresses as networks of one address, and networks of which every
    local address is the node's.
    """
    found: dict[SetName, Mapping[ElementKey, ElementValue]] = {}
    for family in Family:
        united = collapse_addresses([network for network in networks if Family.of(network) is family])  # type: ignore[type-var]
        words: dict[ElementKey, ElementValue] = {_word(network): None for network in united}
        if words:
            found[SETS[family].own] = words
    return found


def parse_own(elements: Elements) -> frozenset[IPNetwork]:
    """The inverse of `plan_own`."""
    return frozenset(
        network
        for names in SETS.values()
        for word in elements.get(names.own, {})
        for network in _networks(cast("str", word))
    )


def _word(network: IPNetwork) -> str:
    return str(network.network_address) if network.num_addresses == 1 else str(network)


def _networks(word: str) -> Iterable[IPNetwork]:
    first, dash, last = word.partition("-")
    return summarize_address_range(ip_address(first), ip_address(last)) if dash else [ip_network(word)]


def plan_loopback(link: LinkName, elements: Elements) -> tuple[Sysctl, ...]:
    """What 127.0.0.1 needs at the host's end of the veth of a pod, where these elements lead from there to the pod."""
    names = SETS[Family.IPV4]
    bound = (IPv4Address(key[0]) for key in elements.get(names.one.addresses, {}))
    if elements.get(names.every.addresses) or any(address.is_loopback for address in bound):
        return (Sysctl(f"net/ipv4/conf/{link}/route_localnet", "1"),)
    return ()


def group_by_pod(elements: Elements) -> dict[IPAddress, Elements]:
    """What is in the table's sets, by the address of the pod that it leads to. The inverse of `plan_host_ports`."""
    found: dict[IPAddress, dict[SetName, dict[ElementKey, ElementValue]]] = {}
    for names in SETS.values():
        for maps in (names.every, names.one):
            ports = elements.get(maps.ports, {})
            for key, address in elements.get(maps.addresses, {}).items():
                if key in ports:
                    pod = found.setdefault(ip_address(cast("str", address)), {})
                    pod.setdefault(maps.addresses, {})[key] = address
                    pod.setdefault(maps.ports, {})[key] = ports[key]
                    pod[names.hairpin] = {(cast("str", address),) * 2: None}
    return dict(found)


def describe_host_port(key: ElementKey) -> str:
    """The port of the node that a key of one of the maps is, for people."""
    *address, protocol, port = cast("tuple[str, ...]", key)
    return _describe(address[0] if address else None, port, protocol)


def host_ports(elements: Elements) -> Iterator[tuple[SetName, ElementKey, IPAddress]]:
    """The ports of the node among the elements, each as a map and its key there, and the pod that it leads to."""
    for names in SETS.values():
        for maps in (names.every, names.one):
            for key, address in elements.get(maps.addresses, {}).items():
                yield maps.addresses, key, ip_address(cast("str", address))


def udp_ports(elements: Elements) -> dict[IPAddress, frozenset[int]]:
    """The node's UDP ports among the elements, by the pod's address."""
    found: dict[IPAddress, frozenset[int]] = {}
    for _, key, pod in host_ports(elements):
        *_, protocol, port = cast("tuple[str, ...]", key)
        if protocol == Protocol.UDP:
            found[pod] = found.get(pod, frozenset()) | {int(port)}
    return found
