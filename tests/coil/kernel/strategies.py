"""Random values of the kernel's vocabulary, few enough that equal ones meet."""

from dataclasses import replace
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network

from hypothesis import strategies as st

from coil.kernel.family import Family
from coil.kernel.link import LinkName
from coil.kernel.route import Route, link_scope
from coil.kernel.rule import Rule

networks = st.one_of(
    st.integers(0, 7).map(lambda number: IPv4Network((0x0A000000 + number * 32, 27))),
    st.integers(0, 7).map(lambda number: IPv6Network(((0xFD << 120) + number * 32, 123))),
)


@st.composite
def routes(draw: st.DrawFn) -> Route:
    """Routes with and without a gateway, in one table."""
    destination = draw(networks)
    gateway = IPv4Address("192.0.2.1") if destination.version == 4 else IPv6Address("2001:db8::1")
    via = draw(st.sampled_from((None, gateway)))
    return Route(
        destination=destination,
        device=draw(st.sampled_from((None, LinkName("lo"), LinkName("eth0")))),
        gateway=via,
        table=119,
        protocol=draw(st.sampled_from((30, 31))),
        scope=0 if via else link_scope(destination),
        metric=draw(st.sampled_from((0, 7))),
    )


rules = st.builds(
    Rule,
    family=st.sampled_from(Family),
    priority=st.sampled_from((2000, 2001)),
    table=st.sampled_from((116, 117)),
    protocol=st.sampled_from((3, 30)),
)


@st.composite
def selective_rules(draw: st.DrawFn) -> Rule:
    """Rules with any selectors, or none."""
    rule = draw(rules)
    network = IPv4Network("10.0.0.0/8") if rule.family is Family.IPV4 else IPv6Network("fc00::/7")
    return replace(
        rule,
        source=draw(st.sampled_from((None, network))),
        destination=draw(st.sampled_from((None, network))),
        iif=draw(st.sampled_from((None, LinkName("eth0")))),
        mark=draw(st.sampled_from((None, 0, 5))),
    )
