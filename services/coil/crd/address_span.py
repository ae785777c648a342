"""One text of a gateway's ranges as the first and last address that it means: an address, `first-last`, or a network.

Addresses are numbers here, so that a /64 is two of them and never a list. `coil.crd.eip_validation` judges ranges by
it, `coil.eip.address_range` allocates from them. Errors are ValueError with a message fit for a user.
"""

import re
from collections.abc import Iterable
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Literal, TypeAlias

from coil.crd.cidr import parse_cidr

Span: TypeAlias = tuple[int, int]
"""The first and the last address, both meant."""
Version: TypeAlias = Literal[4, 6]

_EXAMPLES: dict[Version, str] = {
    4: "10.6.0.1, 10.6.0.1-10.6.0.10 or 10.6.0.0/26",
    6: "fd00::1, fd00::1-fd00::a or fd00::/122",
}
# Unlike `ipaddress`, the same programs as in `coil.crd.cidr` know no zones.
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
