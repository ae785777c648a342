"""Networks as manifests write them: `address/prefix length`, host bits unset where nothing else is said.

Stricter than `ipaddress` on purpose: a bare address, a netmask (`/255.255.0.0`) or a zone (`%eth0`) is not a
CIDR to the Go programs that read the same manifests. Errors are ValueError with a message fit for a user.
"""

import re
from ipaddress import IPv4Interface, IPv4Network, IPv6Interface, IPv6Network, ip_interface

_SHAPE = re.compile(r"[0-9a-fA-F.:]+/(0|[1-9][0-9]{0,2})")


def parse_ipv4_cidr(text: str) -> IPv4Network:
    """An IPv4 network. Raises ValueError that says what is wrong."""
    interface = _parse_interface(text)
    if not isinstance(interface, IPv4Interface):
        raise ValueError(f"{text!r} is an IPv6 network, not IPv4")
    if interface.ip != interface.network.network_address:
        raise ValueError(_host_bits(text, interface.network))
    return interface.network


def parse_ipv6_cidr(text: str) -> IPv6Network:
    """An IPv6 network. Raises ValueError that says what is wrong."""
    interface = _parse_interface(text)
    if not isinstance(interface, IPv6Interface):
        raise ValueError(f"{text!r} is an IPv4 network, not IPv6")
    if interface.ip != interface.network.network_address:
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
