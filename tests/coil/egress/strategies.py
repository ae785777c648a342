"""Clients few enough in their parts that gateways meet in destinations, families and addresses."""

from ipaddress import ip_address, ip_network

from hypothesis import strategies as st

from coil.egress.gateway import ClientSpec, Gateway, Replies, SourcePort
from coil.kernel.family import Family

POD = (ip_address("10.64.0.2"), ip_address("fd64::2"))

destinations = st.sampled_from(
    [
        ip_network(text)
        for text in (
            *("0.0.0.0/0", "203.0.113.0/24", "203.0.113.128/25", "198.51.100.7/32", "8.0.0.0/5", "169.254.7.0/24"),
            *("10.0.0.0/8", "10.96.0.0/16", "10.96.0.1/32", "172.16.0.0/12", "192.168.10.0/24"),
            *("::/0", "2001:db8::/32", "fd00::/8", "fd96::/64", "fd96::1/128", "fe80::/64"),
        )
    ]
)
clusters = st.sampled_from(
    [
        ip_network(text)
        for text in (
            *("203.0.113.0/24", "203.0.113.200/32", "198.51.100.0/24", "8.0.0.0/8", "10.1.0.0/16", "0.0.0.0/0"),
            *("2001:db8::/48", "2001:db8::7/128", "2600::/16", "fd97::/64"),
        )
    ]
)
"""Networks that may be the cluster's own."""
gateway_addresses = {
    Family.IPV4: [ip_address(text) for text in ("10.96.0.1", "10.96.0.2", "198.51.100.7", "10.64.0.2")],
    Family.IPV6: [ip_address(text) for text in ("fd96::1", "fd96::2", "2001:db8::7")],
}


@st.composite
def gateways(draw: st.DrawFn, name: str) -> Gateway:
    """A gateway of zero to two addresses."""
    chosen = [draw(st.none() | st.sampled_from(gateway_addresses[family])) for family in Family]
    return Gateway(
        name=name,
        addresses=tuple(address for address in chosen if address is not None),
        destinations=tuple(draw(st.lists(destinations, max_size=4))),
        source_port=draw(st.sampled_from(SourcePort)),
    )


@st.composite
def client_specs(draw: st.DrawFn) -> ClientSpec:
    """A client of up to three gateways."""
    names = draw(st.lists(st.sampled_from(("a/nat", "a-b/nat", "b/x", "b/y")), unique=True, max_size=3))
    return ClientSpec(
        addresses=tuple(draw(st.sampled_from((POD, POD[:1], POD[1:])))),
        gateways=tuple(draw(gateways(name)) for name in names),
        replies=draw(st.sampled_from(Replies)),
        cluster=tuple(draw(st.lists(clusters, max_size=3, unique=True))),
        blocked=tuple(draw(st.lists(destinations, max_size=3, unique=True))),
        fail_open=draw(st.booleans()),
    )
