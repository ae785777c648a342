"""What `coil-connectivity-probe` says of the places that it asked: the contract between the image and the plugin."""

from enum import StrEnum

from coil.page.document import Document


class Scheme(StrEnum):
    """How a target, a URL, is asked."""

    TCP = "tcp"
    """Connects, and reads as whom the other side sees it."""
    UDP = "udp"
    """Sends a datagram, again each second, and reads the same."""
    CONNECT = "connect"
    """Connects by TCP, and says nothing."""
    NAME = "name"
    """Looks the host's name up."""


class ProbeAnswer(Document, frozen=True, kw_only=True):
    """`answer` is the address that the other side sees, or those that a name has, between commas; "" without one.
    `error` is why there is none: the name of an errno, such as ECONNREFUSED, or a sentence; "" if it went well.
    """

    target: str
    answer: str
    error: str
    seconds: float


def target_of(scheme: Scheme, host: str, port: int = 0) -> str:
    """Its URL."""
    place = f"[{host}]" if ":" in host else host
    return f"{scheme}://{place}:{port}" if port else f"{scheme}://{place}"
