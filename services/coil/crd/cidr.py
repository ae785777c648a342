"""Networks and ranges of addresses as manifests write them. Errors are ValueError with a message fit for a user.

`parse_cidr` and its like are stricter than `ipaddress` on purpose: a bare address, a netmask (`/255.255.0.0`) or a zone
(`%eth0`) is not a CIDR to the Go programs that read the same manifests. Host bits are unset where nothing else is said.

A gateway's range is an address, `first-last`, or a network. As a `Span` it is two numbers, so a /64 is never a list;
`coil.crd.eip_validation` judges ranges by it, and `coil.eip.address_range` allocates from them.
"""

import re
from collections.abc import Iterable
from ipaddress import (
    IPv4Address,
    IPv4Interface,
    IPv4Network,
    IPv6Address,
    IPv6Interface,
    IPv6Network,
    ip_address,
    ip_interface,
    ip_network,
)
from typing import Final, Literal, NamedTuple, TypeAlias

UNROUTED: Final[tuple[IPv4Network | IPv6Network, ...]] = tuple(
    map(ip_network, ("127.0.0.0/8", "169.254.0.0/16", "224.0.0.0/4", "255.255.255.255/32", "fe80::/10", "ff00::/8"))
)
"""Loopback, link-local, multicast, broadcast (RFC 6890, RFC 4291)."""


class OwnedNetwork(NamedTuple):
    """`owner` says for people whose the network is, such as "the IPPool 'pods' of Calico"."""

    network: IPv4Network | IPv6Network
    owner: str


_SHAPE = re.compile(r"[0-9a-fA-F.:]+/(0|[1-9][0-9]{0,2})")


def parse_ipv4_cidr(text: str, *, strict: bool = True) -> IPv4Network:
    """An IPv4 network. Unless `strict`, host bits are cleared. Raises ValueError that says what is wrong."""
    interface = _parse_interface(text)
    if not isinstance(interface, IPv4Interface):
        raise ValueError(f"{text!r} is an IPv6 network, not IPv4")
    if strict and interface.ip != interface.network.network_address:
        raise ValueError(_host_bits(text, interface.network))
    return interface.network


def parse_ipv6_cidr(text: str, *, strict: bool = True) -> IPv6Network:
    """An IPv6 network. Unless `strict`, host bits are cleared. Raises ValueError that says what is wrong."""
    interface = _parse_interface(text)
    if not isinstance(interface, IPv6Interface):
        raise ValueError(f"{text!r} is an IPv4 network, not IPv6")
    if strict and interface.ip != interface.network.network_address:
        raise ValueError(_host_bits(text, interface.network))
    return interface.network


def parse_cidr(text: str) -> IPv4Network | IPv6Network:
    """A network of either family; host bits are cleared, as Go's net.ParseCIDR does it. Raises ValueError."""
    return _parse_interface(text).network


def _parse_interface(text: str) -> IPv4Interface | IPv6Interface:
    try:
        if _SHAPE.fullmatch(text):
            return ip_interface(text)
    except ValueError:
        pass
    raise ValueError(f"{text!r} is not a network in CIDR notation")


def _host_bits(text: str, network: IPv4Network | IPv6Network) -> str:
    return f"{text!r} has host bits set; the network is {network}"


Span: TypeAlias = tuple[int, int]
"""The first and the last address, both meant."""
Version: TypeAlias = Literal[4, 6]

_EXAMPLES: dict[Version, str] = {
    4: "10.6.0.1, 10.6.0.1-10.6.0.10 or 10.6.0.0/26",
    6: "fd00::1, fd00::1-fd00::a or fd00::/122",
}
# Unlike `ipaddress`, Go programs know no zones.
_ADDRESS = re.compile(r"[0-9a-fA-F.:]+")


def parse_address(text: str, version: Version) -> IPv4Address | IPv6Address:
    """One address of that family. Raises ValueError that says what is wrong."""
    try:
        found = ip_address(text) if _ADDRESS.fullmatch(text) else None
    except ValueError:
        found = None
    if found is None:
        raise ValueError(f"{text!r} is not an IP address")
    if found.version != version:
        raise ValueError(f"{text!r} is an IPv{found.version} address, not IPv{version}")
    return found


def parse_span(text: str, version: Version) -> Span:
    """The addresses that one text means; of a network all of them, and host bits count for nothing.

    Raises ValueError that says what is wrong, and what would be right. The empty text is one such.
    """
    first, dash, last = text.partition("-")
    try:
        if dash:
            span = int(parse_address(first, version)), int(parse_address(last, version))
        elif "/" in text:
            network = parse_cidr(text)
            if network.version != version:
                raise ValueError(f"{text!r} is an IPv{network.version} network, not IPv{version}")
            span = int(network.network_address), int(network.broadcast_address)
        else:
            span = (int(parse_address(text, version)),) * 2
    except ValueError as error:
        raise ValueError(f"{error}; write {_EXAMPLES[version]}") from None
    if span[0] > span[1]:
        raise ValueError(f"{text!r} ends before it begins; write {last}-{first}")
    return span


def parse_spans(texts: Iterable[str], version: Version) -> list[Span]:
    """What a list of ranges means, in its order. Empty texts mean nothing (the proposal's manifests have such).

    Raises ValueError at the first text that is wrong.
    """
    return [parse_span(text, version) for text in texts if text]


def merge_spans(spans: Iterable[Span]) -> list[Span]:
    """The same addresses as the fewest spans, ascending: disjoint, with a gap between any two."""
    merged: list[Span] = []
    for first, last in sorted(spans):
        if merged and first <= merged[-1][1] + 1:
            merged[-1] = merged[-1][0], max(last, merged[-1][1])
        else:
            merged.append((first, last))
    return merged


def count_addresses(spans: Iterable[Span]) -> int:
    """How many addresses there are, each counted once."""
    return sum(last - first + 1 for first, last in merge_spans(spans))
