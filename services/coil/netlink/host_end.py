"""The host's end of a pod's veth: found from the pod, given an alias, and the way back from the alias to the pod.

    name_host_end(ifname, alias, pod_netns, home=...)     for an interface that another plugin has made
    open_pod_namespace(alias, connection)                 an open namespace, the caller closes it

Runs in a worker's thread, in the host's namespace. Names of links are used again, so nothing here trusts one: a link is
its alias, or the kernel's word that it and the pod's interface are two ends of one veth.
"""

from coil.kernel.link import Link, LinkName
from coil.netlink.connection import Connection
from coil.netlink.error import NamespaceError, NetlinkError
from coil.netlink.link_message import set_alias
from coil.netlink.link_table import find_link, read_links
from coil.netlink.namespace import Namespace
from coil.netlink.nsid_message import get_netns_number, parse_netns_number
from coil.netlink.peer_namespace import find_namespace
from coil.podnet.alias import PodAlias, parse_alias, render_alias


def name_host_end(ifname: LinkName, alias: PodAlias, pod_netns: Namespace, *, home: Namespace) -> LinkName | None:
    """Give the host's end of the pod's interface the alias, in place of any other, and return its name.

    None where the interface has no other end on the host: a macvlan or ipvlan, for example. Idempotent. Raises
    NamespaceError, or NetlinkError where the pod has no such interface.
    """
    if pod_netns.is_same(home):
        raise NamespaceError(pod_netns.path, "is the node's own")
    with pod_netns.entered(home), Connection() as pod:
        inside = find_link(ifname, pod)
    if inside is None:
        raise NetlinkError(f"the pod has no interface {ifname}")
    with Connection() as host:
        # What the host knows of the veth is enough: it is the other end of that interface in that very namespace. Links
        # first: the kernel gives a namespace its number when it first has to tell of a link that leads there.
        links = read_links(host)
        number = parse_netns_number(host.get(get_netns_number(pod_netns.fileno())))
        for link in links if number is not None else ():
            if link.peer_netns == number and link.peer_index == inside.index and link.index == inside.peer_index:
                text = render_alias(alias)
                if link.alias != text:
                    host.apply((set_alias(link.index, text),))
                return link.name
    return None


def open_pod_namespace(alias: PodAlias, connection: Connection) -> Namespace | None:
    """The namespace of the pod whose veth has this alias, which the caller closes; None if there is no such veth.

    Raises NetlinkError where it is not to be found, or in doubt.
    """
    before = _find(alias, connection)
    if before is None:
        return None
    namespace = find_namespace(before.name, connection)
    try:
        after = _find(alias, connection)
        if after is None or after.index != before.index:
            raise NetlinkError(f"link {before.name} was replaced while its other end was looked for")
    except BaseException:
        namespace.close()
        raise
    return namespace


def _find(alias: PodAlias, connection: Connection) -> Link | None:
    links = [link for link in read_links(connection) if parse_alias(link.alias) == alias]
    if len(links) > 1:
        raise NetlinkError(f"{len(links)} links have the alias {render_alias(alias)}")
    return links[0] if links else None
