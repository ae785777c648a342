"""Which chains are looked at, and what is said of a packet; test_forward_filter.py does it beside a kernel."""

from ipaddress import ip_address, ip_network

from coil.kernel.family import Family
from coil.kernel.link import LinkName
from coil.kernel.packet_filter import (
    MOST_CHAINS,
    AddressMatch,
    FilterChain,
    FilterRule,
    FilterVerdict,
    ForwardedPacket,
    ForwardHook,
    Side,
    judge,
    reach_chains,
)

PACKET = ForwardedPacket(
    family=Family.IPV4, input=LinkName("veth1"), output=LinkName("eth0"), source=ip_address("10.1.0.7")
)


def jump(target: str) -> FilterRule:
    return FilterRule(verdict=FilterVerdict.JUMP, target=target)


def hook(policy: FilterVerdict, *rules: FilterRule, families: frozenset[Family] = frozenset(Family)) -> ForwardHook:
    chains = {"FORWARD": FilterChain(rules=rules, policy=policy)}
    return ForwardHook(label="the filter", families=families, base="FORWARD", chains=chains)


def test_only_chains_that_are_reached_are_read() -> None:
    rules = {"FORWARD": (jump("a"), jump("b")), "a": (jump("b"),), "b": (jump("gone"),), "services": ()}
    read: list[str] = []

    def rules_of(name: str) -> tuple[FilterRule, ...]:
        read.append(name)
        return rules.get(name, ())

    assert set(reach_chains("FORWARD", rules_of)) == {"FORWARD", "a", "b", "gone"}
    assert sorted(read) == ["FORWARD", "a", "b", "gone"], "each once"


def test_however_many_chains_there_are_the_reading_ends() -> None:
    chains = reach_chains("0", lambda name: (jump(str(int(name) + 1)),))
    assert len(chains) == MOST_CHAINS
    endless = ForwardHook(label="the filter", families=frozenset(Family), base="0", chains=chains)
    assert judge(endless, PACKET) is None


def test_a_chain_that_many_rules_lead_to_is_walked_once() -> None:
    """2 ** 60 ways lead to the last one."""
    chains = {str(number): FilterChain(rules=2 * (jump(str(number + 1)),)) for number in range(60)}
    crowded = ForwardHook(label="the filter", families=frozenset(Family), base="0", chains=chains)
    assert judge(crowded, PACKET) is None


def test_an_address_that_may_be_any_is_in_no_network() -> None:
    for negated in (False, True):
        match = AddressMatch(Side.TO, ip_network("198.51.100.0/24"), negated=negated)
        accepting = FilterRule(matches=(match,), verdict=FilterVerdict.ACCEPT)
        assert judge(hook(FilterVerdict.DROP, accepting), PACKET) == "the filter: its policy drops it"


def test_a_filter_of_the_other_family_says_nothing() -> None:
    assert judge(hook(FilterVerdict.DROP, families=frozenset({Family.IPV6})), PACKET) is None


def test_the_rule_that_drops_is_named_by_its_chain() -> None:
    assert judge(hook(FilterVerdict.ACCEPT, FilterRule(verdict=FilterVerdict.DROP)), PACKET) == (
        "the filter: a rule of FORWARD drops it"
    )
