"""What the VPC's router says on an instance's link about itself: that it is the default router, for so many seconds.

RFC 4861, section 4.2. AWS repeats it; here a test says when, so that it knows which one has been heard.
"""

import socket
import struct
from typing import Any, Final

from integration.aws.instance import Instance
from integration.aws.vpc import GATEWAY6, Vpc
from integration.kernel_state import KernelState
from integration.netns.netns import call_inside

LONG: Final = 9000
"""Seconds: the longest lifetime that there is."""
_ROUTER_ADVERTISEMENT: Final = 134
_HOP_LIMIT: Final = 64
_ALL_NODES: Final = "ff02::1"
_LINK_ONLY: Final = 255
"""The hop limit of the packet itself, which shows that no router has forwarded it."""


def advertise(vpc: Vpc, instance: Instance, *, lifetime: int) -> None:
    """Once, on the link of the instance's primary interface."""
    port = vpc.port(instance.interfaces[0].id)
    # The kernel computes the checksum.
    message = struct.pack("!BBHBBHII", _ROUTER_ADVERTISEMENT, 0, 0, _HOP_LIMIT, 0, lifetime, 0, 0)

    def send() -> None:
        with socket.socket(socket.AF_INET6, socket.SOCK_RAW, socket.IPPROTO_ICMPV6) as raw:
            index = socket.if_nametoindex(port)
            raw.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_HOPS, _LINK_ONLY)
            raw.bind((GATEWAY6, 0, 0, index))
            raw.sendto(message, (_ALL_NODES, 0, 0, index))

    call_inside(vpc.router.net, send)


def advertised_route(instance: Instance) -> dict[str, Any] | None:
    """The default route that its kernel has from a router, as `ip` shows it; `expires` is in seconds."""
    kernel = KernelState(str(instance.namespaces.net))
    found = kernel.ip("-6", "route", "show", "default", "dev", "eth0")
    return next((route for route in found if route["protocol"] == "ra"), None)


def forget_configured_route(instance: Instance) -> None:
    """Take away the default route of IPv6 that it was switched on with: from now on it has what is advertised."""
    instance.namespaces.run("ip", "-6", "route", "delete", "default", "dev", "eth0")
