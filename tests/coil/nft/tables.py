"""Tables to go through: those that Coil writes, and random ones of the same vocabulary."""

from ipaddress import IPv4Address, ip_address

from hypothesis import strategies as st

from coil.egress.gateway import Uplink
from coil.egress.reply_plan import plan_reply_marks
from coil.egress.router_plan import plan_table
from coil.eip.eip_table import EipTableOptions, plan_eip_tables
from coil.eni.nat_plan import PrimaryLink, SecondaryLink, plan_nat_table
from coil.kernel.link import LinkName
from coil.kernel.nft_table import (
    Assign,
    ChainType,
    Comparison,
    Count,
    DataType,
    Field,
    Goto,
    HasBits,
    Hook,
    Jump,
    LeadingBits,
    Lookup,
    Match,
    Member,
    NftChain,
    NftSet,
    NftTable,
    PortChoice,
    Priority,
    RegularChain,
    SetBits,
    Statement,
    Verdict,
)

ETH0 = LinkName("eth0")
ROUTER = plan_table((ip_address("10.64.0.3"), ip_address("fd64::3")), ETH0)
IPV4_ROUTER = plan_table((ip_address("10.64.0.3"),), ETH0)
MOVED_ROUTER = plan_table((ip_address("10.64.0.4"), ip_address("fd64::4")), ETH0)
CLIENT = plan_reply_marks(Uplink(name=ETH0, index=2, mtu=1500))

ENI = plan_nat_table(
    PrimaryLink(ETH0, IPv4Address("10.1.0.4")),
    [SecondaryLink(LinkName("eth1"), 0x41), SecondaryLink(LinkName("eth2"), 0x42)],
    external_snat=False,
    metadata_access=False,
)
ENI_PORTS = [
    plan_nat_table(
        PrimaryLink(ETH0, IPv4Address("10.1.0.4")), external_snat=False, metadata_access=True, snat_ports=ports
    )
    for ports in PortChoice
]
EIP, EIP_ARP = plan_eip_tables(EipTableOptions())

_COUNTERS = ("a", "b")
_families = st.sampled_from(
    [
        Match(Field.IPV4_SOURCE, Comparison.IS_NOT, "10.64.0.3"),
        Match(Field.IPV6_SOURCE, Comparison.IS, "fd64::3"),
        Match(Field.FAMILY, Comparison.IS, "ipv6"),
    ]
)
"""A rule has one of these at most: others contradict it."""
_matches = st.sampled_from(
    [
        Match(Field.OUTPUT_LINK, Comparison.IS, "eth0"),
        Match(Field.INPUT_LINK, Comparison.IS_NOT, "eth1"),
        Match(Field.CONNECTION_STATE, Comparison.AMONG, "invalid"),
        Match(Field.CONNECTION_STATE, Comparison.AMONG, "new"),
        Match(Field.CONNECTION_MARK, Comparison.IS, 7),
        Match(Field.CONNECTION_MARK, Comparison.IS, LeadingBits(0x26000000, 8)),
        Match(Field.CONNECTION_MARK, Comparison.IS, HasBits(0x80)),
        Match(Field.CONNECTION_MARK, Comparison.IS, HasBits(0x41, 0x7F)),
        Match(Field.PACKET_MARK, Comparison.IS, HasBits(0, 0x7F)),
        Match(Field.CONNECTION_STATE, Comparison.AMONG, ("invalid", "untracked")),
    ]
)
_assigns: st.SearchStrategy[Statement] = st.sampled_from(
    [
        Assign(Field.CONNECTION_MARK, 7),
        Assign(Field.PACKET_MARK, Field.CONNECTION_MARK),
        Assign(Field.PACKET_MARK, 9),
        SetBits(Field.CONNECTION_MARK, 0x80),
    ]
)
_sets = {
    "m": st.sampled_from(
        [
            NftSet(name="m", key=(DataType.ETHER,), value=DataType.MARK),
            NftSet(name="m", key=(DataType.ETHER,)),
            NftSet(name="m", key=(DataType.CLASS, DataType.IPV4), value=DataType.MARK, intervals=True),
        ]
    ),
    "s": st.sampled_from(
        [
            NftSet(name="s", key=(DataType.ETHER,)),
            NftSet(name="s", key=(DataType.PACKET_FAMILY,), timeouts=True),
            NftSet(name="s", key=(DataType.IPV6,), intervals=True),
        ]
    ),
}
_places = st.sampled_from(
    [
        (ChainType.FILTER, Hook.INPUT, Priority.FILTER),
        (ChainType.FILTER, Hook.FORWARD, Priority.MANGLE),
        (ChainType.ROUTE, Hook.OUTPUT, Priority.MANGLE),
        (ChainType.NAT, Hook.POSTROUTING, Priority.SRCNAT),
    ]
)


@st.composite
def nft_tables(draw: st.DrawFn) -> NftTable:
    """Tables of one name, up to two base chains, two counters, two sets, and two chains to go to."""
    counters = draw(st.lists(st.sampled_from(_COUNTERS), unique=True))
    sets = [draw(_sets[name]) for name in draw(st.lists(st.sampled_from(sorted(_sets)), unique=True))]
    lookups: list[Statement] = [
        Assign(Field.PACKET_MARK, Lookup(Field.ETHER_SOURCE, entry.name))
        if entry.value is DataType.MARK
        else Match(Field.ETHER_SOURCE, Comparison.IS, Member(entry.name))
        for entry in sets
        if entry.key == (DataType.ETHER,) and entry.value in {None, DataType.MARK}
    ]
    names = draw(st.lists(st.sampled_from(("x", "y", "z")), unique=True))
    regular = draw(st.sets(st.sampled_from(names))) if names else set()
    jumps: list[Statement] = [kind(name) for name in sorted(regular) for kind in (Jump, Goto)]
    chains: list[NftChain | RegularChain] = [
        RegularChain(name=name, rules=tuple((entry,) for entry in draw(st.permutations(lookups)))) for name in regular
    ]
    for name in names:
        if name in regular:
            continue
        kind, hook, priority = draw(_places)
        counts = st.sampled_from([Count(counter) for counter in counters]) if counters else st.nothing()
        ends: list[tuple[Statement, ...]] = [(), (Verdict.MASQUERADE if kind is ChainType.NAT else Verdict.DROP,)]
        if kind is ChainType.FILTER and hook is not Hook.OUTPUT:
            ends += ((jump,) for jump in jumps)
            ends += ((lookup,) for lookup in lookups)
        parts = st.tuples(
            st.lists(_families, max_size=1),
            st.lists(st.one_of(_matches, counts, _assigns), max_size=3),
            st.sampled_from(ends),
        )
        rule = parts.map(lambda found: (*found[0], *found[1], *found[2]))
        rules = draw(st.lists(rule.filter(bool), max_size=3))
        chains.append(NftChain(name=name, type=kind, hook=hook, priority=priority, rules=tuple(rules)))
    return NftTable(name="coil_test", chains=tuple(chains), counters=tuple(counters), sets=tuple(sets))
