from ipaddress import IPv4Network

from coil.eni.interface import SubnetId
from coil.eni.subnet_choice import FRAGMENTED_SECONDS, FULL_SECONDS, JITTER, SubnetChoice, SubnetOffer

PRIMARY, SECOND, THIRD = map(SubnetId, ("subnet-1", "subnet-2", "subnet-3"))


def offer(name: SubnetId, free: int) -> SubnetOffer:
    return SubnetOffer(id=name, ipv4=IPv4Network(f"10.{name[-1]}.0.0/24"), free=free)


def choice(*, random: float = 0.0) -> SubnetChoice:
    made = SubnetChoice(lambda: random)
    made.learn(offer(PRIMARY, 5), [offer(SECOND, 20), offer(THIRD, 200)])
    return made


def chosen(made: SubnetChoice, now: float, *, range_size: int = 1) -> SubnetId | None:
    found = made.choose(range_size=range_size, now=now)
    return found.id if found is not None else None


def test_the_primary_ones_first_then_the_emptiest() -> None:
    made = choice()
    assert chosen(made, 0.0) == PRIMARY
    made.refused(PRIMARY, range_size=1, asked=1, free=0, now=0.0)
    assert chosen(made, 0.0) == THIRD
    made.refused(THIRD, range_size=1, asked=1, free=0, now=0.0)
    assert chosen(made, 0.0) == SECOND
    made.refused(SECOND, range_size=1, asked=1, free=0, now=0.0)
    assert chosen(made, 0.0) is None
    assert made.shortage(now=0.0) == (
        "no free address in subnet-1 (10.1.0.0/24), subnet-3 (10.3.0.0/24), subnet-2 (10.2.0.0/24)"
    )
    assert chosen(made, FULL_SECONDS) == PRIMARY
    assert made.shortage(now=FULL_SECONDS) is None


def test_nothing_is_chosen_before_anything_is_known() -> None:
    assert chosen(SubnetChoice(lambda: 0.0), 0.0) is None


def test_rests_differ_from_node_to_node() -> None:
    made = choice(random=1.0)
    made.refused(PRIMARY, range_size=1, asked=1, free=0, now=0.0)
    assert chosen(made, FULL_SECONDS) == THIRD
    assert made.next_change(now=0.0) == FULL_SECONDS * (1 + JITTER)
    assert chosen(made, FULL_SECONDS * (1 + JITTER)) == PRIMARY


def test_what_is_left_is_asked_for_once() -> None:
    made = choice()
    made.refused(PRIMARY, range_size=1, asked=9, free=4, now=0.0)
    assert made.most(PRIMARY, range_size=1, now=1.0) == 4
    made.refused(PRIMARY, range_size=1, asked=4, free=3, now=1.0)
    assert made.most(PRIMARY, range_size=1, now=1.0) == 0, "others are faster"
    assert made.most(PRIMARY, range_size=1, now=1.0 + FULL_SECONDS) is None


def test_one_prefix_is_asked_for_where_several_are_not_there_and_then_single_addresses() -> None:
    made = choice()
    made.refused(PRIMARY, range_size=16, asked=3, free=100, now=0.0)
    assert made.most(PRIMARY, range_size=16, now=1.0) == 1
    made.refused(PRIMARY, range_size=16, asked=1, free=100, now=1.0)
    assert made.most(PRIMARY, range_size=16, now=1.0) == 0
    assert made.most(PRIMARY, range_size=1, now=1.0) is None
    assert chosen(made, 1.0, range_size=16) == THIRD
    assert chosen(made, 1.0) == PRIMARY
    assert made.shortage(now=1.0) is None
    assert made.most(PRIMARY, range_size=16, now=1.0 + FRAGMENTED_SECONDS) is None


def test_where_no_address_is_there_is_no_prefix() -> None:
    made = choice()
    made.refused(PRIMARY, range_size=1, asked=1, free=0, now=0.0)
    assert made.most(PRIMARY, range_size=16, now=0.0) == 0


def test_what_is_gone_is_forgotten_but_for_the_primary_one() -> None:
    made = choice()
    made.forget(THIRD)
    made.forget(PRIMARY)
    assert chosen(made, 0.0) == PRIMARY
    made.refused(PRIMARY, range_size=1, asked=1, free=0, now=0.0)
    assert chosen(made, 0.0) == SECOND
