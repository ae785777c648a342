"""The rules of AddressPools."""

import pytest

from coil.crd.address_pool import AddressPool, AddressPoolSpec, SubnetSet
from coil.crd.meta import ObjectMeta
from coil.crd.pool_validation import validate_disjoint, validate_pool, validate_pool_update
from coil.crd.validation import render_errors


def pool(*subnets: tuple[str | None, str | None], bits: int = 5, name: str = "pool") -> AddressPool:
    entries = tuple(SubnetSet(ipv4=ipv4, ipv6=ipv6) for ipv4, ipv6 in subnets)
    return AddressPool(metadata=ObjectMeta(name=name), spec=AddressPoolSpec(block_size_bits=bits, subnets=entries))


@pytest.mark.parametrize(
    "valid",
    [
        pool(("10.2.0.0/16", None)),
        pool((None, "fd01::/112"), (None, "fd02::/100")),
        pool(("10.2.0.0/16", "fd01:203:405:607::/112")),
        pool(("10.2.0.0/32", None), ("10.2.0.2/32", None), bits=0),
        pool(("10.2.0.0/27", "fd01::/123"), ("10.2.0.32/27", "fd01::20/123")),
        pool((None, "fd00::/64"), bits=5),
        pool((None, "fd00::/48"), bits=64),
        pool(("10.2.0.0/16", None), name="p" * 63),
        pool(("203.0.113.7/32", None), bits=0),
        pool((None, "fd00::7/128"), bits=0),
        pool(("240.0.0.0/5", None)),
        pool(("10.2.0.1/16", "fd01::7/112")),
    ],
)
def test_valid_pools(valid: AddressPool) -> None:
    assert validate_pool(valid) == []


@pytest.mark.parametrize(
    ("invalid", "path", "message"),
    [
        (pool(), "spec.subnets", "at least one entry"),
        (pool((None, None)), "spec.subnets[0]", "an ipv4 or an ipv6 network"),
        (pool(("x", None)), "spec.subnets[0].ipv4", "not a network in CIDR notation"),
        (pool(("", None)), "spec.subnets[0].ipv4", "not a network in CIDR notation"),
        (pool(("fd00::/64", None)), "spec.subnets[0].ipv4", "not IPv4"),
        (pool((None, "10.0.0.0/8")), "spec.subnets[0].ipv6", "not IPv6"),
        (pool(("10.2.0.0/28", None)), "spec.subnets[0].ipv4", "smaller than a block of 2^5 addresses"),
        (pool(("10.2.0.0/24", None), bits=-1), "spec.blockSizeBits", "must not be negative"),
        (pool(("10.2.0.0/24", "fd01::/112")), "spec.subnets[0]", "equally many addresses"),
        (pool(("10.2.0.0/24", None), (None, "fd01::/120")), "spec.subnets[1]", "same address families"),
        (pool(("10.2.0.0/24", None), ("10.3.0.0/24", "fd01::/120")), "spec.subnets[1]", "same address families"),
        (pool(("10.2.0.0/16", None), ("10.2.9.0/24", None)), "spec.subnets[1].ipv4", "overlaps 10.2.0.0/16"),
        (pool(("10.2.9.0/24", None), ("10.2.0.0/16", None)), "spec.subnets[1].ipv4", "overlaps 10.2.9.0/24"),
        (pool((None, "2000::/3"), bits=0), "spec.subnets", "more blocks than an index of 64 bits"),
        (pool(("0.0.0.0/0", None)), "spec.subnets[0].ipv4", "no pod can have: 0.0.0.0/8 (this host)"),
        (pool(("127.0.0.0/24", None)), "spec.subnets[0].ipv4", "127.0.0.0/8 (loopback)"),
        (pool(("168.0.0.0/6", None)), "spec.subnets[0].ipv4", "169.254.0.0/16 (link-local"),
        (pool(("239.1.0.0/16", None)), "spec.subnets[0].ipv4", "224.0.0.0/4 (multicast)"),
        (pool(("240.0.0.0/4", None)), "spec.subnets[0].ipv4", "255.255.255.255/32 (broadcast)"),
        (pool((None, "::/0"), bits=66), "spec.subnets[0].ipv6", "::/127 (this host and loopback)"),
        (pool((None, "::1/128"), bits=0), "spec.subnets[0].ipv6", "::/127"),
        (pool((None, "::ffff:10.0.0.0/104")), "spec.subnets[0].ipv6", "IPv4-mapped"),
        (pool((None, "fe80::/64")), "spec.subnets[0].ipv6", "fe80::/10 (link-local"),
        (pool((None, "ff05::/120")), "spec.subnets[0].ipv6", "ff00::/8 (multicast)"),
        (pool(("10.2.0.0/16", None), name="p" * 64), "metadata.name", "no more than 63 characters"),
    ],
)
def test_each_rule_names_its_field(invalid: AddressPool, path: str, message: str) -> None:
    errors = validate_pool(invalid)
    assert [error.path for error in errors] == [path]
    assert message in errors[0].message


def test_all_faults_are_found_at_once() -> None:
    broken = pool(("nonsense", "fd00::/129"), ("10.0.0.0/30", None), ("127.0.0.0/24", None))
    assert [error.path for error in validate_pool(broken)] == [
        "spec.subnets[0].ipv4",
        "spec.subnets[0].ipv6",
        "spec.subnets[1].ipv4",
        "spec.subnets[1]",
        "spec.subnets[2]",
        "spec.subnets[2].ipv4",
    ]


def test_errors_in_one_line() -> None:
    assert render_errors(validate_pool(pool(("x", None), bits=-1))) == (
        "spec.blockSizeBits: must not be negative; spec.subnets[0].ipv4: 'x' is not a network in CIDR notation"
    )


OLD = pool(("10.2.0.0/16", None), ("10.3.0.0/16", None))


@pytest.mark.parametrize(
    ("new", "paths"),
    [
        (OLD, []),
        (pool(("10.2.0.0/16", None), ("10.3.0.0/16", None), ("10.4.0.0/16", None)), []),
        (pool(("10.2.0.0/16", None), ("10.3.0.0/16", None), bits=6), ["spec.blockSizeBits"]),
        (pool(("10.2.0.0/16", None)), ["spec.subnets[1]"]),
        (pool(("10.3.0.0/16", None), ("10.2.0.0/16", None)), ["spec.subnets[0]", "spec.subnets[1]"]),
        (pool(("10.2.0.0/16", "fd01::/112"), ("10.3.0.0/16", None)), ["spec.subnets[0]"]),
    ],
)
def test_a_pool_may_only_grow_at_its_end(new: AddressPool, paths: list[str]) -> None:
    assert [error.path for error in validate_pool_update(OLD, new)] == paths


def test_overlaps_with_other_pools_are_told_per_entry() -> None:
    mine = pool(("10.2.0.0/24", "fd01::/120"), ("10.9.0.0/24", "fd09::/120"))
    others = [
        pool(("10.0.0.0/8", None), name="wide"),
        pool((None, "fd09::80/121"), name="narrow"),
        pool(("172.16.0.0/12", "fd77::/108"), name="elsewhere"),
        pool(("garbage", None), name="broken"),
        mine,
    ]
    assert [str(error) for error in validate_disjoint(mine, others)] == [
        "spec.subnets[0].ipv4: 10.2.0.0/24 overlaps 10.0.0.0/8 of the pool 'wide'",
        "spec.subnets[1].ipv4: 10.9.0.0/24 overlaps 10.0.0.0/8 of the pool 'wide'",
        "spec.subnets[1].ipv6: fd09::/120 overlaps fd09::80/121 of the pool 'narrow'",
    ]
