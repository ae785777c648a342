"""Ranges of addresses as pairs of numbers, the first and the last address of each, and what can be done to them.

Invariant: every list of spans that comes out of here is sorted and disjoint.
"""

from collections.abc import Iterable, Sequence
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from typing import TypeAlias

from coil.kernel.family import Family, IPAddress, IPNetwork

Span: TypeAlias = tuple[int, int]


def span_of(network: IPNetwork) -> Span:
    """All addresses of a network."""
    return int(network.network_address), int(network.broadcast_address)


def spans_of(networks: Iterable[IPNetwork], family: Family) -> list[Span]:
    """The addresses of those networks that are of a family."""
    return unite([span_of(network) for network in networks if Family.of(network) is family])


def unite(spans: Iterable[Span]) -> list[Span]:
    """What is in any of them."""
    united: list[Span] = []
    for first, last in sorted(spans):
        if united and first <= united[-1][1] + 1:
            united[-1] = (united[-1][0], max(united[-1][1], last))
        else:
            united.append((first, last))
    return united


def intersect(spans: Sequence[Span], others: Sequence[Span]) -> list[Span]:
    """What is in both; both are sorted and disjoint."""
    common: list[Span] = []
    mine = theirs = 0
    while mine < len(spans) and theirs < len(others):
        first = max(spans[mine][0], others[theirs][0])
        last = min(spans[mine][1], others[theirs][1])
        if first <= last:
            common.append((first, last))
        if spans[mine][1] < others[theirs][1]:
            mine += 1
        else:
            theirs += 1
    return common


def touching(spans: Sequence[Span], others: Sequence[Span]) -> list[Span]:
    """Those of the first that have an address that is in the second, whole; both are sorted and disjoint."""
    found: list[Span] = []
    position = 0
    for first, last in spans:
        while position < len(others) and others[position][1] < first:
            position += 1
        if position < len(others) and others[position][0] <= last:
            found.append((first, last))
    return found


def subtract(spans: Sequence[Span], others: Sequence[Span]) -> list[Span]:
    """What is in the first and not in the second; both are sorted and disjoint."""
    rest: list[Span] = []
    position = 0
    for first, last in spans:
        while position < len(others) and others[position][1] < first:
            position += 1
        start, ahead = first, position
        while ahead < len(others) and others[ahead][0] <= last:
            if start < others[ahead][0]:
                rest.append((start, others[ahead][0] - 1))
            start = others[ahead][1] + 1
            ahead += 1
        if start <= last:
            rest.append((start, last))
    return rest


def address_at(number: int, family: Family) -> IPAddress:
    """The address with that number."""
    return IPv4Address(number) if family is Family.IPV4 else IPv6Address(number)


def span_word(span: Span, family: Family) -> str:
    """A span in the words of `coil.kernel.nft_element`."""
    first, last = span
    start = address_at(first, family)
    if first == last:
        return str(start)
    size = last - first + 1
    if size & (size - 1) == 0 and first % size == 0:
        return f"{start}/{start.max_prefixlen - size.bit_length() + 1}"
    return f"{start}-{address_at(last, family)}"


def parse_span(word: str) -> Span:
    """What `span_word` has written. Raises ValueError."""
    first, dash, last = word.partition("-")
    if dash:
        return int(ip_address(first)), int(ip_address(last))
    return span_of(ip_network(word))
