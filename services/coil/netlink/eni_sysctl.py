"""What the links of a node's interfaces need of the kernel's settings, in the namespace that the calling thread is in.

A strict reverse path filter (`rp_filter` 1) drops a packet, without a trace but in `log_martians`, unless its answer
would leave by the link that it came in by. The kernel looks that up when addresses of Services are translated already:
a question to a NodePort of one interface, whose pod has its address of another, would be dropped, and so would be the
answers to what that pod sends translated. So the filter is made loose (2): there has to be a way to the source. What an
interface may send, EC2 checks. A filter that is off stays off.

A kernel that forwards IPv6 is a router, and takes no default route from other routers (`accept_ra` 1) any more: those
that it has it drops when it begins to forward, or they end with their lifetime, some minutes later. So before it does,
`accept_ra` becomes 2 for the link that the node's default route leads over. Where something else than the kernel
listens to routers (0), as networkd does, nothing is to be done.
"""

from typing import Final

from coil.kernel.family import Family
from coil.kernel.link import LinkName, Sysctl
from coil.kernel.route import DEFAULT_NETWORKS, RouteProtocol
from coil.netlink.connection import Connection
from coil.netlink.link import read_links
from coil.netlink.node_sysctl import NodeSysctls
from coil.netlink.route import dump_protocol_routes, parse_route
from coil.netlink.sysctl import read_sysctl

STRICT: Final = "1"
LOOSE: Final = "2"
"""Of rp_filter (Linux' Documentation/networking/ip-sysctl.rst); the greater of the link's and of all links' counts."""
_ALL_LINKS: Final = "net/ipv4/conf/all/rp_filter"
_ACCEPT, _ACCEPT_FORWARDING = "1", "2"
"""Of accept_ra."""


def loosen_path_filter(link: LinkName, sysctls: NodeSysctls) -> tuple[Sysctl, ...]:
    """Make the reverse path filter of the link loose if it is strict; returns what was written. Idempotent.

    A link that is gone has none. Raises NetlinkError that names the file where it cannot be written.
    """
    path = f"net/ipv4/conf/{link}/rp_filter"
    own = read_sysctl(path)
    if own is None or max(own, read_sysctl(_ALL_LINKS) or "") != STRICT:
        return ()
    return tuple(sysctls.ensure((Sysctl(path, LOOSE),)))


def keep_advertised_routes(link: LinkName, sysctls: NodeSysctls) -> tuple[Sysctl, ...]:
    """Have the kernel take default routes from routers on the link although it forwards, if it does otherwise; returns
    what was written. Idempotent. Raises as `loosen_path_filter`.
    """
    if accepts_advertised_routes(link):
        return ()
    return tuple(sysctls.ensure((Sysctl(_accept_ra(link), _ACCEPT_FORWARDING),)))


def accepts_advertised_routes(link: LinkName) -> bool:
    """Whether forwarding makes no difference to the default routes that the kernel takes from routers on the link."""
    return read_sysctl(_accept_ra(link)) != _ACCEPT


def keep_advertised_default_route(connection: Connection, sysctls: NodeSysctls) -> None:
    """The same for the link of the default route that a router has advertised, of several the one that is used. To be
    called before the kernel forwards, when it need not be known yet which link is whose. Raises NetlinkError.
    """
    # The routes first: one whose link is not in the list then has lost it meanwhile, and is gone as well.
    bodies = connection.dump(dump_protocol_routes(Family.IPV6, RouteProtocol.ROUTER_ADVERTISEMENT))
    names = {link.index: link.name for link in read_links(connection)}
    order = {name: index for index, name in names.items()}
    routes = [
        (route.metric, order[route.device], route.device)
        for body in bodies
        if (route := parse_route(body, names)) is not None
        and route.device is not None
        and route.destination == DEFAULT_NETWORKS[Family.IPV6]
    ]
    if routes:
        *_, used = min(routes)
        keep_advertised_routes(used, sysctls)


def _accept_ra(link: LinkName) -> str:
    return f"net/ipv6/conf/{link}/accept_ra"
