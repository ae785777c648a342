"""What a visitor searches for: words that must all be found, case aside.

A word that is an address means that address, however it is written, and one that is a network everything inside.
The search is made here and not in the browser, so it finds what a long page leaves out, and without a script too.
"""

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_network

IpAddress = IPv4Address | IPv6Address
IpNetwork = IPv4Network | IPv6Network

LENGTH = 200
"""Letters of a search that count."""


@dataclass(frozen=True, slots=True)
class Query:
    """Make one with `parse_query`. Without words it is false, and matches nothing: there is nothing to point out."""

    text: str = ""
    words: tuple[str, ...] = ()
    networks: tuple[IpNetwork, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.words or self.networks)

    @property
    def is_one_address(self) -> bool:
        """Whether one address is asked for and nothing else."""
        return not self.words and len(self.networks) == 1 and self.networks[0].num_addresses == 1

    def meets(self, networks: Iterable[IpNetwork]) -> bool:
        """Whether every address that is asked for meets one of `networks`."""
        held = list(networks)
        return all(any(_overlap(asked, network) for network in held) for asked in self.networks)

    def matches(self, texts: Iterable[str], networks: Iterable[IpNetwork] = ()) -> bool:
        """Whether every word occurs in one of `texts`, and every address meets one of `networks`."""
        if not self:
            return False
        folded = [value.casefold() for value in texts]
        return all(any(word in value for value in folded) for word in self.words) and self.meets(networks)


def parse_query(text: str) -> Query:
    """Never fails: what is no address is a word."""
    text = text[:LENGTH].strip()
    words: list[str] = []
    networks: list[IpNetwork] = []
    for part in text.split():
        try:
            networks.append(ip_network(part, strict=False))
        except ValueError:
            words.append(part.casefold())
    return Query(text, tuple(words), tuple(networks))


def parse_networks(ipv4: str | None, ipv6: str | None) -> list[IpNetwork]:
    """What a stored block or subnet covers; what is malformed covers nothing."""
    found: list[IpNetwork] = []
    if ipv4:
        with suppress(ValueError):
            found.append(IPv4Network(ipv4, strict=False))
    if ipv6:
        with suppress(ValueError):
            found.append(IPv6Network(ipv6, strict=False))
    return found


def networks_of(texts: Iterable[str]) -> list[IpNetwork]:
    """What addresses and networks as text cover; what is malformed covers nothing."""
    found: list[IpNetwork] = []
    for text in texts:
        with suppress(ValueError):
            found.append(ip_network(text, strict=False))
    return found


def host_network(address: IpAddress) -> IpNetwork:
    """An address as the network of itself."""
    return IPv4Network(address) if isinstance(address, IPv4Address) else IPv6Network(address)


def _overlap(left: IpNetwork, right: IpNetwork) -> bool:
    return left.version == right.version and left.overlaps(right)
