"""What `kubectl coil trace` was asked about: a pod, and where its packet goes. Pure."""

from dataclasses import dataclass
from ipaddress import ip_address

from coil.crd.names import is_namespace_name, is_object_name
from coil.kernel.family import IPAddress

_LAST_PORT = 65535


class TraceTargetError(ValueError):
    """It cannot be read; says what is asked for."""


@dataclass(frozen=True, slots=True)
class Destination:
    address: IPAddress
    port: int | None


def parse_pod(text: str, *, namespace: str) -> tuple[str, str]:
    """Namespace and name of NAME or NAMESPACE/NAME. Raises TraceTargetError."""
    before, slash, after = text.partition("/")
    place, name = (before, after) if slash else (namespace, text)
    if is_namespace_name(place) and is_object_name(name):
        return place, name
    raise TraceTargetError(f"{text!r} is neither the name of a pod nor NAMESPACE/NAME")


def parse_destination(text: str) -> Destination:
    """An address, with a port where it has one; an IPv6 address with a port is in brackets. Raises TraceTargetError."""
    host, port = text, ""
    if text.startswith("["):
        host, _, rest = text[1:].partition("]")
        port = rest.removeprefix(":")
    elif text.count(":") == 1:
        host, _, port = text.partition(":")
    try:
        address = ip_address(host)
    except ValueError:
        raise TraceTargetError(f"{text!r} is no address: such as 192.0.2.1:443 or [2001:db8::1]:443") from None
    if not port:
        return Destination(address, None)
    if not port.isascii() or not port.isdigit() or not 0 < int(port) <= _LAST_PORT:
        raise TraceTargetError(f"{port!r} is no port")
    return Destination(address, int(port))
