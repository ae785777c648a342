from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from coil.kernel.family import Family
from coil.kernel.rule import Rule, diff_rules
from tests.coil.kernel.strategies import rules

OURS = 30
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


def test_a_rule_reads_like_ip_rule_prints_it() -> None:
    assert str(Rule(family=Family.IPV6, priority=2000, table=116, protocol=OURS)) == "rule 2000 lookup 116 (IPV6)"


def _applied(actual: list[Rule], wanted: set[Rule]) -> Counter[Rule]:
    """What the kernel would hold; it fails where a rule to be deleted is not there often enough."""
    changes = diff_rules(actual, wanted)
    after = Counter(actual)
    after.update(changes.adds)
    after.subtract(changes.deletes)
    assert min(after.values(), default=0) >= 0
    return +after
