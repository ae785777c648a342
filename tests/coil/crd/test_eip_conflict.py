"""What gateways and policies may not do because of others."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coil.crd.eip_conflict import validate_disjoint_ranges, validate_kept, validate_offered, validate_untaken
from coil.crd.validation import FieldError
from tests.coil.crd.eip_object import gateway, placed, policy

ELSEWHERE = "is the address of a policy in another namespace; ask for another"
Asked = dict[str, Any]


def said(errors: list[FieldError]) -> list[str]:
    return [str(error) for error in errors]


def test_two_gateways_share_no_address() -> None:
    others = [
        gateway("a", ranges={"ipv4": ["10.6.0.0/24", "nonsense", ""], "ipv6": ["fd00::/120"]}),
        gateway("b", ranges={"ipv4": ["10.6.2.1-10.6.2.9"]}),
    ]
    ranges = {"ipv4": ["10.6.0.255-10.6.1.4", "10.6.2.10", "10.6.2.5", "x", ""], "ipv6": ["fd00::100"]}
    assert said(validate_disjoint_ranges(gateway("c", ranges=ranges), others)) == [
        "spec.ranges.ipv4[0]: '10.6.0.255-10.6.1.4' overlaps '10.6.0.0/24' of the gateway 'a'",
        "spec.ranges.ipv4[2]: '10.6.2.5' overlaps '10.6.2.1-10.6.2.9' of the gateway 'b'",
    ]
    assert validate_disjoint_ranges(others[0], others[:1]) == []


def span_text(ends: tuple[int, int]) -> str:
    first, last = sorted(ends)
    return f"10.6.0.{first}-10.6.0.{last}"


SPAN = st.tuples(st.integers(1, 40), st.integers(1, 40)).map(span_text)


@given(st.lists(SPAN, max_size=4), st.lists(st.lists(SPAN, max_size=4), max_size=3))
def test_an_entry_is_named_when_it_shares_an_address(mine: list[str], theirs: list[list[str]]) -> None:
    def addresses(text: str) -> set[int]:
        first, last = (int(part.rpartition(".")[2]) for part in text.split("-"))
        return set(range(first, last + 1))

    taken = {number for texts in theirs for text in texts for number in addresses(text)}
    others = [gateway(f"other-{position}", ranges={"ipv4": texts}) for position, texts in enumerate(theirs)]
    found = validate_disjoint_ranges(gateway(ranges={"ipv4": mine}), others)
    expected = [f"spec.ranges.ipv4[{position}]" for position, text in enumerate(mine) if addresses(text) & taken]
    assert [error.path for error in found] == expected


def test_an_address_stays_while_a_policy_has_it() -> None:
    user = {"namespace": "shop", "name": "web"}
    other = {"namespace": "shop", "name": "ap"}
    eips = [{"ipv4": "10.6.0.1", "ipv6": "fd00::1", "policies": [user, other]}, {"ipv4": "10.6.0.2", "policies": []}]
    old = gateway(
        ranges={"ipv4": ["10.6.0.1-10.6.0.5"], "ipv6": ["fd00::1-fd00::5"]},
        status={"nodeList": [{"name": "node1", "eips": eips}]},
    )
    policies = [
        policy("also", status=placed("eg1", ipv4="10.6.0.1")),
        policy("waiting", status=placed("eg1", node="", ipv4="10.6.0.4")),
        policy("elsewhere", status=placed("eg2", ipv4="10.6.0.3")),
        policy("outside", status=placed("eg1", ipv4="10.9.0.3")),
    ]
    new = gateway(ranges={"ipv4": ["10.6.0.5"], "ipv6": ["fd00::5"]})
    assert said(validate_kept(old, new, policies)) == [
        "spec.ranges.ipv4: must keep 10.6.0.1, which the policies shop/also, shop/ap, shop/web have: delete them first",
        "spec.ranges.ipv4: must keep 10.6.0.4, which the policies shop/waiting have: delete them first",
        "spec.ranges.ipv6: must keep fd00::1, which the policies shop/ap, shop/web have: delete them first",
    ]
    rewritten = gateway(ranges={"ipv4": ["10.6.0.4-10.6.0.5", "10.6.0.1"], "ipv6": ["fd00::/126", "fd00::4"]})
    assert validate_kept(old, rewritten, policies) == []


def test_an_address_that_is_asked_for_is_one_of_the_gateways() -> None:
    offered = gateway(ranges={"ipv4": ["10.6.0.1-10.6.0.5", "", "10.6.1.1", "10.6.2.1", "10.6.3.1"]})
    assert validate_offered(policy(egressIP={"ipv4": "10.6.0.5"}), offered) == []
    assert validate_offered(policy(), offered) == []
    assert said(validate_offered(policy(egressIP={"ipv4": "10.6.0.6", "ipv6": "fd00::1"}), offered)) == [
        "spec.egressIP.ipv4: is not an address of the gateway 'eg1', which has "
        "10.6.0.1-10.6.0.5, 10.6.1.1, 10.6.2.1, …",
        "spec.egressIP.ipv6: is not an address of the gateway 'eg1', which has no IPv6 addresses",
    ]


X, Y, Z = "10.6.1.21", "fd00::1", "fd00::2"
REFUSED = {"conditions": [{"type": "Ready", "status": "False", "reason": "EgressIPTaken"}]}


@pytest.mark.parametrize(
    ("asked", "others", "paths"),
    [
        ({"ipv4": X}, [], []),
        ({"ipv4": X}, [policy("b", "bank")], []),
        # Another tenant has it, by chance or by wish.
        ({"ipv4": X}, [policy("b", "bank", status=placed("eg1", ipv4=X))], ["ipv4"]),
        ({"ipv6": Y}, [policy("b", "bank", status=placed("eg1", ipv4=X, ipv6="fd00:0::1"))], ["ipv6"]),
        ({"ipv4": X}, [policy("b", "bank", egressIP={"ipv4": X})], ["ipv4"]),
        # It was not given to the other one.
        ({"ipv4": X}, [policy("b", "bank", egressIP={"ipv4": X}, status=REFUSED)], []),
        # A neighbour shares it, so it is this tenant's as well.
        (
            {"ipv4": X},
            [
                policy("b", "bank", status=placed("eg1", ipv4=X)),
                policy("c", "shop", status=placed("eg1", ipv4=X)),
            ],
            [],
        ),
        # (X, Y) is bound, so nobody gets (X, Z), or (W, Y).
        ({"ipv4": X, "ipv6": Z}, [policy("c", status=placed("eg1", ipv4=X, ipv6=Y))], ["ipv4"]),
        ({"ipv4": "10.6.1.22", "ipv6": Y}, [policy("c", status=placed("eg1", ipv4=X, ipv6=Y))], ["ipv6"]),
        ({"ipv4": X, "ipv6": Z}, [policy("c", egressIP={"ipv4": X, "ipv6": Y})], ["ipv4"]),
        ({"ipv4": X, "ipv6": Y}, [policy("c", status=placed("eg1", ipv4=X, ipv6=Y))], []),
        ({"ipv4": X}, [policy("c", status=placed("eg1", ipv4=X, ipv6=Y))], []),
        ({"ipv4": X, "ipv6": Z}, [policy("c", status=placed("eg1", ipv4=X))], []),
        # Itself.
        ({"ipv4": X, "ipv6": Z}, [policy(status=placed("eg1", ipv4=X, ipv6=Y))], []),
        ({}, [policy("b", "bank", status=placed("eg1", ipv4=X))], []),
    ],
)
def test_which_address_may_be_asked_for(asked: Asked, others: list[Any], paths: list[str]) -> None:
    found = validate_untaken(policy(egressIP=asked), others, is_shared=False)
    assert [error.path for error in found] == [f"spec.egressIP.{path}" for path in paths]


def test_another_tenants_name_stays_untold() -> None:
    secret = policy("takeover-plan", "bank", status=placed("eg1", ipv4=X))
    assert said(validate_untaken(policy(egressIP={"ipv4": X}), [secret], is_shared=False)) == [
        f"spec.egressIP.ipv4: {ELSEWHERE}"
    ]
    own = policy("own", status=placed("eg1", ipv4=X, ipv6=Y))
    asked = policy(egressIP={"ipv4": X, "ipv6": Z})
    pair = "spec.egressIP.ipv4: belongs to a pair with another address, which"
    assert said(validate_untaken(asked, [own], is_shared=False)) == [f"{pair} the policy shop/own has"]
    secret = policy("takeover-plan", "bank", status=placed("eg1", ipv4=X, ipv6=Y))
    assert said(validate_untaken(asked, [secret], is_shared=True)) == [f"{pair} a policy in another namespace has"]


def test_a_gateway_may_share_an_address_with_everybody() -> None:
    others = [policy("b", "bank", status=placed("eg1", ipv4=X))]
    assert validate_untaken(policy(egressIP={"ipv4": X}), others, is_shared=True) == []
