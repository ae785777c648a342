"""Which proxy leads to a server, by the environment: as Go's programs read it, since kubectl is what it is tried with.

HTTPS_PROXY and HTTP_PROXY by the server's scheme, NO_PROXY with names, addresses, networks and ports (Go's
golang.org/x/net/http/httpproxy). A server on this host is never asked by a proxy. urllib.request reads the same
variables, but knows no networks, and takes the lower case first.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from ipaddress import IPv6Address, IPv6Network, ip_address, ip_network
from urllib.parse import urlsplit

from coil.kernel.family import IPAddress, IPNetwork

_DEFAULT_PORTS = {"http": 80, "https": 443}
_SUPPORTED = ("http", "https")


class ProxyError(ValueError):
    """There is a proxy, and it cannot be used; says why."""


def find_proxy(server: str, environ: Mapping[str, str]) -> str | None:
    """The URL of the proxy for a server's URL; None if it is reached without one. Raises ProxyError."""
    url = urlsplit(server)
    text = _variable(environ, f"{url.scheme.upper()}_PROXY")
    if not text or url.hostname is None or _is_here(url.hostname):
        return None
    port = url.port or _DEFAULT_PORTS.get(url.scheme, 0)
    if any(entry.matches(url.hostname, port) for entry in _parse_exceptions(_variable(environ, "NO_PROXY"))):
        return None
    return check_proxy(text if "://" in text else f"http://{text}")


def check_proxy(text: str) -> str:
    """The URL of a proxy that can be used. Raises ProxyError."""
    url = urlsplit(text)
    if url.scheme not in _SUPPORTED or not url.hostname:
        raise ProxyError(f"the proxy {url.scheme}://{url.hostname or ''} is not supported: use one of HTTP or HTTPS")
    return text


@dataclass(frozen=True, slots=True)
class _Exception:
    """An entry of NO_PROXY: one of the first three. A `domain` begins with a dot, and has its own name `itself`."""

    everything: bool = False
    network: IPNetwork | None = None
    domain: str = ""
    itself: bool = False
    port: int | None = None

    def matches(self, host: str, port: int) -> bool:
        if self.everything:
            return True
        if self.port is not None and self.port != port:
            return False
        if (address := _parse_address(host)) is not None:
            return self.network is not None and address in self.network
        return self.network is None and (host.endswith(self.domain) or (self.itself and host == self.domain[1:]))


def _parse_exceptions(text: str) -> Iterable[_Exception]:
    for part in text.split(","):
        entry = part.strip().lower()
        if entry == "*":
            yield _Exception(everything=True)
        elif (network := _parse_network(entry)) is not None:
            yield _Exception(network=network)
        elif entry:
            host, port = _split_port(entry)
            if (address := _parse_address(host)) is not None:
                yield _Exception(network=ip_network(address), port=port)
            elif host:
                name = host.removeprefix("*")
                yield _Exception(domain=f".{name.removeprefix('.')}", itself=not name.startswith("."), port=port)


def _split_port(entry: str) -> tuple[str, int | None]:
    """Host and port; what has no port, or several colons, is the host alone, as an IPv6 address is."""
    host, colon, port = entry.rpartition(":")
    is_bracketed = host.startswith("[") and host.endswith("]")
    if not colon or (":" in host and not is_bracketed) or not (port.isdecimal() or not port):
        return entry, None
    return host.removeprefix("[").removesuffix("]"), int(port) if port else None


def _parse_network(text: str) -> IPNetwork | None:
    address, slash, length = text.partition("/")
    if not slash or not length.isdecimal() or _parse_address(address) is None:
        return None
    try:
        network = ip_network(text, strict=False)
    except ValueError:
        return None
    mapped = network.network_address.ipv4_mapped if isinstance(network, IPv6Network) else None
    return ip_network(f"{mapped}/{max(network.prefixlen - 96, 0)}") if mapped is not None else network


def _parse_address(text: str) -> IPAddress | None:
    """An address; an IPv4 address within IPv6 is the IPv4 address."""
    try:
        address = ip_address(text)
    except ValueError:
        return None
    return (address.ipv4_mapped or address) if isinstance(address, IPv6Address) else address


def _is_here(host: str) -> bool:
    address = _parse_address(host)
    return host == "localhost" or (address is not None and address.is_loopback)


def _variable(environ: Mapping[str, str], name: str) -> str:
    return environ.get(name) or environ.get(name.lower()) or ""
