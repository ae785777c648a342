from collections import Counter
from ipaddress import ip_network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coil.kernel.family import Family
from coil.kernel.link import LinkName
from coil.kernel.rule import Rule, RuleClaim, diff_claimed_rules, diff_rules
from tests.coil.kernel.strategies import rules, selective_rules

OURS = 30
CLAIM = RuleClaim(protocol=OURS, priorities=frozenset({2000}))
wanted_rules = st.sets(rules.filter(lambda rule: rule.protocol == OURS), min_size=1)


@given(st.lists(rules), wanted_rules)
def test_afterwards_every_wanted_lookup_is_there_and_ours_are_there_once(actual: list[Rule], wanted: set[Rule]) -> None:
    after = _applied(actual, wanted)
    lookups = Counter(rule.lookup for rule in after.elements())
    assert {rule.lookup for rule in wanted} <= lookups.keys()
    for rule, count in after.items():
        if rule.protocol == OURS:
            assert rule in wanted
            assert count == 1
            assert lookups[rule.lookup] == 1


@given(st.lists(rules), wanted_rules)
def test_rules_of_other_protocols_are_left_alone(actual: list[Rule], wanted: set[Rule]) -> None:
    def foreign(rules: Counter[Rule]) -> Counter[Rule]:
        return Counter(rule for rule in rules.elements() if rule.protocol != OURS)

    assert foreign(_applied(actual, wanted)) == foreign(Counter(actual))


@given(st.lists(rules), wanted_rules)
def test_a_second_time_nothing_changes(actual: list[Rule], wanted: set[Rule]) -> None:
    assert not diff_rules(list(_applied(actual, wanted).elements()), wanted)


claimed_rules = st.sets(selective_rules().filter(CLAIM.covers))


@given(st.lists(selective_rules()), claimed_rules)
def test_of_a_claim_exactly_what_is_wanted_is_left_and_nothing_else_is_touched(
    actual: list[Rule], wanted: set[Rule]
) -> None:
    changes = diff_claimed_rules(actual, wanted, CLAIM)
    after = Counter(actual)
    after.update(changes.adds)
    after.subtract(changes.deletes)
    assert min(after.values(), default=0) >= 0
    lookups = Counter(rule.lookup for rule in after.elements())
    assert {rule.lookup for rule in wanted} <= lookups.keys()
    for rule, count in (+after).items():
        if CLAIM.covers(rule):
            assert rule in wanted
            assert (count, lookups[rule.lookup]) == (1, 1)
        else:
            assert count == Counter(actual)[rule]
    assert not diff_claimed_rules(list(after.elements()), wanted, CLAIM)


def test_what_is_wanted_must_be_of_the_claim() -> None:
    with pytest.raises(ValueError, match=r"rule 1999 lookup 117 \(IPV4\) proto 30 is none of those that are claimed"):
        diff_claimed_rules([], [Rule(family=Family.IPV4, priority=1999, table=117, protocol=OURS)], CLAIM)


@pytest.mark.parametrize("network", ["0.0.0.0/0", "fc00::/7"])
def test_a_destination_that_no_rule_of_the_family_has(network: str) -> None:
    with pytest.raises(ValueError, match=f"destination {network}"):
        Rule(family=Family.IPV4, priority=2000, table=117, protocol=OURS, destination=ip_network(network))


@pytest.mark.parametrize(("table", "goto"), [(0, None), (254, 1536), (0, 1025), (0, 1024)])
def test_a_rule_leads_to_a_table_or_onward_to_another_rule(table: int, goto: int | None) -> None:
    with pytest.raises(ValueError, match=r"leads to a table or to another rule|cannot lead back"):
        Rule(family=Family.IPV4, priority=1025, table=table, goto=goto, protocol=OURS)


def test_a_rule_reads_like_ip_rule_prints_it() -> None:
    onward = Rule(family=Family.IPV4, priority=1025, goto=1536, protocol=OURS, destination=ip_network("10.0.0.0/16"))
    assert str(onward) == "rule 1025 to 10.0.0.0/16 goto 1536 (IPV4)"
    sent = Rule(family=Family.IPV4, priority=1536, table=10_001, protocol=OURS, source=ip_network("10.0.0.7/32"))
    assert str(sent) == "rule 1536 from 10.0.0.7/32 lookup 10001 (IPV4)"
    assert str(Rule(family=Family.IPV6, priority=2000, table=116, protocol=OURS)) == "rule 2000 lookup 116 (IPV6)"
    selective = Rule(
        family=Family.IPV4,
        priority=2000,
        table=254,
        protocol=OURS,
        destination=ip_network("10.0.0.0/8"),
        iif=LinkName("eth0"),
        mark=26,
    )
    assert str(selective) == "rule 2000 to 10.0.0.0/8 iif eth0 fwmark 0x1a lookup 254 (IPV4)"


def _applied(actual: list[Rule], wanted: set[Rule]) -> Counter[Rule]:
    """What the kernel would hold; it fails where a rule to be deleted is not there often enough."""
    changes = diff_rules(actual, wanted)
    after = Counter(actual)
    after.update(changes.adds)
    after.subtract(changes.deletes)
    assert min(after.values(), default=0) >= 0
    return +after
