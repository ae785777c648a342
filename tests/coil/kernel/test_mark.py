from ipaddress import ip_address, ip_network

import pytest

from coil.kernel.family import Family
from coil.kernel.link import LinkName
from coil.kernel.mark import GATE_PRIORITY, LANDING_PRIORITY, MARK_CLAIM, MARK_PRIORITY, MarkGate, plan_marks
from coil.kernel.route import Route
from coil.kernel.rule import Rule

NAME = LinkName("egress.vxlan")
FOUR, SIX = ip_address("172.31.0.5"), ip_address("fd11::5")


def test_a_mark_has_a_rule_and_a_table_in_each_family() -> None:
    plan = plan_marks(NAME, {0x26000100: (FOUR, SIX), 0x26000200: (FOUR,), 0x26000300: ()})
    assert plan.rules == tuple(
        Rule(family=family, priority=1700, table=mark, protocol=30, mark=mark)
        for family, mark in ((Family.IPV4, 0x26000100), (Family.IPV6, 0x26000100), (Family.IPV4, 0x26000200))
    )
    assert plan.routes == tuple(
        Route(destination=ip_network(destination), device=NAME, gateway=gateway, table=mark, protocol=30, onlink=True)
        for destination, gateway, mark in (
            ("0.0.0.0/0", FOUR, 0x26000100),
            ("::/0", SIX, 0x26000100),
            ("0.0.0.0/0", FOUR, 0x26000200),
        )
    )
    assert plan.gates == (MarkGate(Family.IPV4), MarkGate(Family.IPV6))
    assert plan_marks(NAME, {0x26000100: (SIX,)}).gates == (MarkGate(Family.IPV6),)
    assert plan_marks(NAME, {}).gates == ()


def test_all_rules_are_of_the_claim_and_the_gate_is_around_them() -> None:
    plan = plan_marks(NAME, {0x26FFFF00: (FOUR, SIX)})
    assert all(MARK_CLAIM.covers(rule) for rule in plan.rules)
    assert GATE_PRIORITY < MARK_PRIORITY < LANDING_PRIORITY < 1800
    assert str(plan.gates[0]) == "gate 1699 to 1701 (IPV4)"


@pytest.mark.parametrize("mark", [-1, 0, 254, 0x12000000, 0x26000000, 0x27000100, 0x126000100])
def test_what_is_no_node_s_mark(mark: int) -> None:
    with pytest.raises(ValueError, match="is no node's mark"):
        plan_marks(NAME, {mark: (FOUR,)})


def test_one_way_for_each_family() -> None:
    with pytest.raises(ValueError, match=r"0x26000100 leads to several addresses of one family"):
        plan_marks(NAME, {0x26000100: (FOUR, ip_address("172.31.0.6"))})
