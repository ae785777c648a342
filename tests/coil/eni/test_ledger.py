from dataclasses import replace
from ipaddress import IPv4Address, IPv4Network, IPv6Network, ip_address

import pytest

from coil.eni.interface import InterfaceId, NetworkInterface
from coil.eni.ledger import EniLedger, InUseError
from tests.coil.eni.vpc import COOLDOWN, interface, key


def ledger(*interfaces: NetworkInterface) -> EniLedger:
    made = EniLedger(cooldown=COOLDOWN)
    made.update(interfaces, up=[each.id for each in interfaces])
    return made


def take(given: EniLedger, number: int, *, now: float = 0.0) -> str | None:
    found = given.acquire(key(number), version=4, now=now)
    return None if found is None else str(found.address)


FIRST = interface(0, "10.1.0.10/32", "10.1.0.11/32")
SECOND = interface(1, "10.1.1.10/32", "10.1.1.11/32")


class TestGiving:
    def test_pods_are_packed_on_the_interface_that_has_most(self) -> None:
        given = ledger(FIRST, SECOND)
        given.adopt(key(1), IPv4Address("10.1.1.11"))
        assert take(given, 2) == "10.1.1.10"
        assert take(given, 3) == "10.1.0.10"

    def test_a_prefix_that_serves_pods_is_filled_before_another(self) -> None:
        given = ledger(interface(0, "10.1.0.0/28", "10.1.0.16/28"))
        given.adopt(key(1), IPv4Address("10.1.0.20"))
        assert take(given, 2) == "10.1.0.16"
        assert [str(each) for use in given.uses(now=0.0) for each in use.idle] == ["10.1.0.0/28"]

    def test_a_known_key_gets_what_it_has(self) -> None:
        given = ledger(FIRST)
        assert take(given, 1) == take(given, 1)

    def test_an_address_that_came_back_is_not_given_while_it_cools_down_even_if_it_is_the_last(self) -> None:
        given = ledger(interface(0, "10.1.0.10/32"))
        take(given, 1)
        given.release(key(1), now=5.0)
        assert take(given, 2, now=5.0 + COOLDOWN - 0.1) is None
        assert take(given, 2, now=5.0 + COOLDOWN) == "10.1.0.10"

    def test_an_address_that_came_back_a_while_ago_has_cooled_down_before_one_that_came_back_earlier(self) -> None:
        given = ledger(FIRST)
        assert [take(given, number) for number in (1, 2)] == ["10.1.0.10", "10.1.0.11"]
        given.release(key(1), now=100.0)
        given.release(key(2), now=100.0 - COOLDOWN / 2)
        moment = 100.0 + COOLDOWN / 2
        [use] = given.uses(now=moment)
        assert (use.cooling, use.free) == (1, 1)
        assert [take(given, number, now=moment) for number in (3, 4)] == ["10.1.0.11", None]

    def test_an_address_that_the_node_itself_has_is_neither_given_nor_withdrawn(self) -> None:
        given = ledger(interface(0, "10.1.0.0/28", "10.1.0.20/32", "10.1.0.21/32"))
        own = frozenset(map(IPv4Address, ("10.1.0.3", "10.1.0.20", "192.0.2.1")))
        given.update([interface(0, "10.1.0.0/28", "10.1.0.20/32", "10.1.0.21/32")], up=[FIRST.id], configured=own)
        [use] = given.uses(now=0.0)
        assert (use.total, use.held, use.cooling, use.free) == (18, 0, 0, 16)
        assert [str(each) for each in use.idle] == ["10.1.0.21/32"]
        with pytest.raises(InUseError):
            given.withdraw([IPv4Network("10.1.0.20/32")], now=0.0)
        taken = {take(given, number) for number in range(16)}
        assert taken.isdisjoint({*map(str, own), None})
        assert take(given, 16) is None

    def test_an_address_that_the_node_has_and_a_pod_too_is_counted_once(self) -> None:
        given = ledger(FIRST)
        assert take(given, 1) == "10.1.0.10"
        given.release(key(1), now=0.0)
        assert take(given, 2) == "10.1.0.11"
        given.update([FIRST], up=[FIRST.id], configured=frozenset(map(IPv4Address, ("10.1.0.10", "10.1.0.11"))))
        [use] = given.uses(now=1.0)
        assert (use.total, use.held, use.cooling, use.free) == (2, 1, 1, 0)

    def test_one_that_was_never_used_need_not_cool_down(self) -> None:
        given = ledger(interface(0, "10.1.0.10/32"))
        take(given, 1)
        given.revoke(key(1))
        assert take(given, 2) == "10.1.0.10"

    def test_of_a_range_that_is_doubted_pods_keep_what_they_have_and_get_nothing(self) -> None:
        known = interface(0, "10.1.0.0/28", "10.1.0.20/32")
        given = ledger(known)
        for number in (1, 2):
            given.adopt(key(number), IPv4Address(f"10.1.0.{number}"))
        given.release(key(2), now=0.0)
        prefix = IPv4Network("10.1.0.0/28")
        assert given.update([known], up=[known.id], doubted=frozenset({prefix})) == []
        [use] = given.uses(now=1.0)
        assert (use.total, use.held, use.cooling, use.free) == (17, 1, 1, 1)
        assert [str(each) for each in use.idle] == ["10.1.0.20/32"]
        assert (take(given, 3), take(given, 4)) == ("10.1.0.20", None)
        assert given.update([known], up=[known.id]) == []
        assert [use.free for use in given.uses(now=1.0)] == [14]
        assert take(given, 4) == "10.1.0.0"

    def test_nothing_is_given_of_an_interface_whose_link_is_not_up(self) -> None:
        given = EniLedger(cooldown=COOLDOWN)
        given.update([FIRST], up=[])
        assert take(given, 1) is None
        given.update([FIRST], up=[FIRST.id])
        assert take(given, 1) is not None

    def test_ipv6_addresses_of_a_prefix_follow_each_other(self) -> None:
        prefix = IPv6Network("fd00:1::/80")
        given = ledger(replace(FIRST, ranges=frozenset({prefix})))
        first = given.acquire(key(1), version=6, now=0.0)
        second = given.acquire(key(2), version=6, now=0.0)
        assert first is not None
        assert second is not None
        assert int(second.address) == int(first.address) + 1
        assert given.acquire(key(3), version=4, now=0.0) is None


class TestWithdrawing:
    def test_what_is_withdrawn_is_not_given_and_may_come_back(self) -> None:
        given = ledger(interface(0, "10.1.0.10/32"))
        network = [IPv4Network("10.1.0.10/32")]
        given.withdraw(network, now=0.0)
        assert take(given, 1) is None
        given.reinstate(network)
        assert take(given, 1) == "10.1.0.10"

    def test_nothing_in_use_is_withdrawn(self) -> None:
        given = ledger(interface(0, "10.1.0.0/28", "10.1.0.40/32"))
        given.adopt(key(1), IPv4Address("10.1.0.3"))
        with pytest.raises(InUseError, match=r"10\.1\.0\.0/28"):
            given.withdraw([IPv4Network("10.1.0.40/32"), IPv4Network("10.1.0.0/28")], now=0.0)
        given.release(key(1), now=0.0)
        with pytest.raises(InUseError):
            given.withdraw([IPv4Network("10.1.0.0/28")], now=COOLDOWN - 1)
        given.withdraw([IPv4Network("10.1.0.0/28")], now=COOLDOWN)
        [use] = given.uses(now=COOLDOWN)
        assert (use.total, use.free) == (17, 1)


class TestWhatEc2Says:
    def test_a_pod_whose_address_is_gone_is_told_of_and_nobody_gets_the_address(self) -> None:
        given = ledger(FIRST)
        take(given, 1)
        [lost] = given.update([interface(0, "10.1.0.11/32")], up=[FIRST.id])
        assert str(lost.address) == "10.1.0.10"
        assert given.find(key(1)) == lost
        assert given.update([FIRST], up=[FIRST.id]) == []
        assert take(given, 2) == "10.1.0.11"
        assert take(given, 3) is None

    def test_an_address_that_moves_to_another_interface_is_the_pods_still(self) -> None:
        given = ledger(FIRST, interface(1))
        take(given, 1)
        moved = interface(1, "10.1.0.10/32")
        assert given.update([interface(0, "10.1.0.11/32"), moved], up=[FIRST.id, moved.id]) == []
        assert [use.held for use in given.uses(now=0.0)] == [0, 1]

    def test_a_cooldown_outlives_the_interface_it_was_on(self) -> None:
        given = ledger(FIRST)
        take(given, 1)
        given.release(key(1), now=0.0)
        given.update([], up=[])
        given.update([interface(0, "10.1.0.10/32")], up=[FIRST.id])
        assert take(given, 2, now=1.0) is None


class TestRecovery:
    def test_what_the_kernel_holds_is_entered_before_ec2_has_answered(self) -> None:
        given = EniLedger(cooldown=COOLDOWN)
        given.adopt(key(1), IPv4Address("10.1.0.10"))
        assert given.allocations()[0].interface == InterfaceId("")
        assert given.update([FIRST], up=[FIRST.id]) == []
        assert take(given, 2) == "10.1.0.11"

    def test_two_pods_never_have_one_address(self) -> None:
        given = ledger(FIRST)
        given.adopt(key(1), IPv4Address("10.1.0.10"))
        with pytest.raises(InUseError):
            given.adopt(key(2), IPv4Address("10.1.0.10"))
        with pytest.raises(InUseError):
            given.adopt(key(1), IPv4Address("10.1.0.11"))

    def test_cooldowns_of_an_earlier_process_go_on(self) -> None:
        given = ledger(interface(0, "10.1.0.10/32"))
        given.resume({ip_address("10.1.0.10"): 7.0})
        assert take(given, 1, now=6.9) is None
        assert take(given, 1, now=7.0) == "10.1.0.10"
