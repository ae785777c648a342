"""Makes a router of a namespace, without taking from it what routers tell it.

A kernel that forwards IPv6 takes no default route from router advertisements any more, unless the link's `accept_ra` is
2: those that it has it drops when it begins to forward, or they end with their lifetime (Linux'
Documentation/networking/ip-sysctl.rst). So before it does, `accept_ra` becomes 2 where it is 1. Where something else
than the kernel listens to routers (0), as networkd does, nothing is to be done; nor for a link that leads to a pod, of
whatever network: a pod is no router of its node.

Runs in a worker's thread, in the namespace.
"""

from collections.abc import Collection

from coil.kernel.family import Family
from coil.kernel.link import Link, Sysctl, forwarding_sysctls
from coil.netlink.address import dump_addresses, parse_address
from coil.netlink.connection import Connection
from coil.netlink.link import read_links
from coil.netlink.node_sysctl import NodeSysctls
from coil.netlink.sysctl import missing_sysctls, read_sysctl


def ensure_forwarding(families: Collection[Family], sysctls: NodeSysctls) -> int:
    """Have the namespace forward packets of the families, on links that exist and on those to come. Idempotent.

    Returns how many settings were otherwise. Raises NetlinkError that says what to do where one cannot be written.
    """
    missing = missing_sysctls(forwarding_sysctls(families))
    if any(sysctl in forwarding_sysctls((Family.IPV6,)) for sysctl in missing):
        sysctls.ensure(_keep_advertised_routes())
    return len(sysctls.ensure(missing))


def _keep_advertised_routes() -> list[Sysctl]:
    with Connection() as connection:
        pods = {link.name for link in read_pod_links(connection)}
        names = [link.name for link in read_links(connection) if link.name not in pods]
    paths = [f"net/ipv6/conf/{name}/accept_ra" for name in names]
    return [Sysctl(path, "2") for path in paths if read_sysctl(path) == "1"]


def read_pod_links(connection: Connection) -> list[Link]:
    """The veths that lead to pods, of whatever network: to another namespace, and to no network that the node has an
    address in. The uplink of a node that is a container itself is none of them.
    """
    links = {link.index: link for link in read_links(connection)}
    names = {index: link.name for index, link in links.items()}
    addresses = [
        address
        for family in Family
        for body in connection.dump(dump_addresses(family))
        if (address := parse_address(body, names)) is not None
    ]
    own = {
        address.device
        for address in addresses
        if address.interface.network.num_addresses > 1 and not address.interface.is_link_local
    }
    return [
        link for link in links.values() if link.kind == "veth" and link.peer_netns is not None and link.name not in own
    ]
