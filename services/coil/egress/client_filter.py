"""The node's table that keeps clients' tunnels to their routers: what is encapsulated and comes from anybody else does
not reach a client. Pure.

A client's flow-based links decapsulate whatever the pod is sent (`coil.kernel.tunnel`): whoever could reach it that way
would speak to it under any inner source, past the rules of a NetworkPolicy, which see the outer packet.

It is a table of the node's, not of the pod's namespace: there it would cost each ADD a library to load, and a pod that
has NET_ADMIN could change it. At the forward hook a reply still has its router's own address: conntrack puts the
Service's into its place afterwards (`nf_nat_ipv4_out`). Where something other than kube-proxy stands in for Services,
it may have that one already, so it counts, too.
"""

from collections.abc import Iterable, Mapping
from ipaddress import ip_address
from typing import Final, TypeAlias

from coil.kernel.family import Family, IPAddress
from coil.kernel.nft_element import ElementKey, Elements, ElementValue, SetName
from coil.kernel.nft_table import (
    ADDRESS,
    DESTINATION,
    SOURCE,
    ChainType,
    Comparison,
    Count,
    Field,
    Hook,
    Jump,
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

TABLE: Final = "coil-egress-clients"
UNSOLICITED: Final = "unsolicited"
"""Counts what was dropped."""

PROTOCOLS: Final = {Family.IPV4: "ipencap", Family.IPV6: "ipv6"}
"""What a tunnel of the family takes without UDP, too (`ipip_rcv`, `ip6ip6_rcv`): 4 and 41, as nftables calls them. Its
`ipip` is 94.
"""

_DIGITS: Final = {Family.IPV4: "4", Family.IPV6: "6"}


def _set_name(name: str, family: Family) -> SetName:
    return SetName(TableFamily.INET, TABLE, name + _DIGITS[family])


CLIENTS: Final = {family: _set_name("clients", family) for family in Family}
"""The clients' addresses."""
ROUTERS: Final = {family: _set_name("routers", family) for family in Family}
"""A client's address, and one that it takes encapsulated packets from."""

Peers: TypeAlias = Mapping[IPAddress, frozenset[IPAddress]]
"""By each client's address, those that it takes encapsulated packets from."""


def plan_client_table(*, udp_port: int) -> NftTable:
    """The table; what is in its sets is `plan_client_elements`'. `udp_port` is where tunnels are received."""
    solicited: list[Rule] = [
        (Match((DESTINATION[family], SOURCE[family]), Comparison.IS, Member(ROUTERS[family].name)), Verdict.RETURN)
        for family in Family
    ]
    unsolicited: list[Rule] = [
        (Match(DESTINATION[family], Comparison.IS, Member(CLIENTS[family].name)), Count(UNSOLICITED), Verdict.DROP)
        for family in Family
    ]
    encapsulated = RegularChain(name="encapsulated", rules=(*solicited, *unsolicited))
    jump = Jump(encapsulated.name)
    forward = NftChain(
        name="forward",
        type=ChainType.FILTER,
        hook=Hook.FORWARD,
        priority=Priority.FILTER,
        rules=(
            (Match(Field.UDP_DESTINATION_PORT, Comparison.IS, udp_port), jump),
            *((Match(Field.PROTOCOL, Comparison.IS, protocol), jump) for protocol in PROTOCOLS.values()),
        ),
    )
    return NftTable(
        name=TABLE,
        counters=(UNSOLICITED,),
        sets=(
            *(NftSet(name=CLIENTS[family].name, key=(ADDRESS[family],)) for family in Family),
            *(NftSet(name=ROUTERS[family].name, key=(ADDRESS[family], ADDRESS[family])) for family in Family),
        ),
        chains=(encapsulated, forward),
    )


def plan_client_elements(peers: Peers) -> Elements:
    """What the sets are to hold."""
    elements: dict[SetName, dict[ElementKey, ElementValue]] = {}
    for client, routers in peers.items():
        family = Family.of(client)
        elements.setdefault(CLIENTS[family], {})[str(client)] = None
        for router in routers:
            if Family.of(router) is family:
                elements.setdefault(ROUTERS[family], {})[str(client), str(router)] = None
    return elements


def parse_client_elements(elements: Elements) -> dict[IPAddress, frozenset[IPAddress]]:
    """What `plan_client_elements` made them of; routers of what is no client are left out."""
    found: dict[IPAddress, set[IPAddress]] = {
        ip_address(client): set() for client in _words(elements, CLIENTS) if isinstance(client, str)
    }
    for pair in _words(elements, ROUTERS):
        client, router = map(ip_address, pair)
        if client in found:
            found[client].add(router)
    return {client: frozenset(routers) for client, routers in found.items()}


def _words(elements: Elements, names: Mapping[Family, SetName]) -> Iterable[ElementKey]:
    return [word for family in Family for word in elements.get(names[family], {})]
