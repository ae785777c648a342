"""The networks that tunnels are not for unless an Egress names a part of them: both ends of the tunnels ask."""

from ipaddress import IPv4Network, IPv6Network

from coil.kernel.family import Family, IPNetwork

PRIVATE_NETWORKS: dict[Family, tuple[IPNetwork, ...]] = {
    Family.IPV4: (IPv4Network("10.0.0.0/8"), IPv4Network("172.16.0.0/12"), IPv4Network("192.168.0.0/16")),
    Family.IPV6: (IPv6Network("fc00::/7"),),
}
"""RFC 1918 and RFC 4193: where nodes, pods and Services are."""

LINK_LOCAL_NETWORKS: dict[Family, IPNetwork] = {
    Family.IPV4: IPv4Network("169.254.0.0/16"),
    Family.IPV6: IPv6Network("fe80::/10"),
}
"""RFC 3927 and RFC 4291: the pod's own link, where its gateway is."""


def is_within(inner: IPNetwork, outer: IPNetwork) -> bool:
    """True if every address of `inner` is one of `outer`."""
    return inner.version == outer.version and inner.subnet_of(outer)  # type: ignore[arg-type]  # of one family here


def is_private(network: IPNetwork) -> bool:
    """True if the whole of it is inside one private network."""
    return any(is_within(network, private) for private in PRIVATE_NETWORKS[Family.of(network)])
