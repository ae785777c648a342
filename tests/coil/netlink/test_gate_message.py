"""The gate before the rules of marks, read by pyroute2."""

import pytest
from pyroute2.netlink.rtnl.fibmsg import fibmsg

from coil.kernel.family import Family
from coil.kernel.mark import MARK_CLAIM, MarkGate
from coil.netlink.rule import delete_gate, new_gate, parse_rule
from tests.coil.netlink.oracle import read

GOTO, NOP, INVERT = 2, 3, 2  # linux/fib_rules.h


@pytest.mark.parametrize("family", Family)
def test_what_is_no_other_node_s_goes_on_behind_the_marks(family: Family) -> None:
    requests = new_gate(MarkGate(family))
    landing, none, own = (read(fibmsg, request) for request in requests)
    assert (landing["family"], landing["action"], landing.get("priority")) == (family, NOP, 1701)
    for jump, flags, mask in ((none, INVERT, 0xFF000000), (own, 0, 0xFFFFFFFF)):
        assert (jump["family"], jump["action"], jump["flags"]) == (family, GOTO, flags)
        assert (jump.get("priority"), jump.get("goto"), jump.get("protocol")) == (1699, 1701, 30)
        assert (jump.get("fwmark"), jump.get("fwmask")) == (0x26000000, mask)
    # Nobody's who syncs rules: what is understood of it has a selector, and is none of the marks' own.
    [understood] = [rule for request in requests if (rule := parse_rule(request.body)) is not None]
    assert understood.selects
    assert not MARK_CLAIM.covers(understood)


def test_what_the_others_lead_to_goes_last() -> None:
    gate = MarkGate(Family.IPV4)
    assert [request.body for request in delete_gate(gate)] == [request.body for request in reversed(new_gate(gate))]
