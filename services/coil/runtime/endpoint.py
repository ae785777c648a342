"""Where a server listens, written as Go programs write it: `:9386`, `0.0.0.0:9386`, `[::1]:9386`.

An empty host is 127.0.0.1, not everything: opening a port to the network is a decision to be written down.
"""

from dataclasses import dataclass
from ipaddress import ip_address

from coil.runtime.flag import kind

LOOPBACK = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A TCP address to bind to. `host` is an address or a name; port 0 lets the kernel choose."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@kind("HOST:PORT")
def parse_endpoint(text: str) -> Endpoint:
    """`[host]:port`. Raises ValueError saying what is expected."""
    host, colon, port_text = text.rpartition(":")
    if not colon:
        raise ValueError('an address such as ":9386" or "0.0.0.0:9386"')
    if not (port_text.isascii() and port_text.isdigit() and int(port_text) <= 65535):
        raise ValueError('a port from 0 to 65535 after the last ":"')
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
        if _version(host) != 6:
            raise ValueError("an IPv6 address between the brackets")
    elif ":" in host:
        raise ValueError('an IPv6 address in brackets, such as "[::1]:9386"')
    elif any(not (c.isalnum() or c in "-.") for c in host):
        raise ValueError("an address or a host name before the port")
    return Endpoint(host or LOOPBACK, int(port_text))


@kind("HOST:PORT")
def parse_open_endpoint(text: str) -> Endpoint:
    """As `parse_endpoint`, but without a host it is every address: for what others ask over the network."""
    endpoint = parse_endpoint(text)
    return Endpoint("", endpoint.port) if text.startswith(":") else endpoint


@kind("HOST:PORT|off")
def parse_optional_endpoint(text: str) -> Endpoint | None:
    """`[host]:port`, or None for `off` and for nothing. Raises ValueError."""
    if text in ("", "off"):
        return None
    try:
        return parse_endpoint(text)
    except ValueError as error:
        raise ValueError(f'"off" or {error}') from None


def _version(host: str) -> int | None:
    try:
        return ip_address(host).version
    except ValueError:
        return None
