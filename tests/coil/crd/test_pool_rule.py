"""The CRD's CEL rules: each refuses what it is for, and none refuses what the validation in Python accepts."""

import re
from ipaddress import IPv4Network, IPv6Network
from typing import Any

import msgspec
import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from coil.crd.address_pool import AddressPool
from coil.crd.pool_rule import IPV4_CIDR_LENGTH, IPV6_CIDR_LENGTH, MAX_SUBNETS, SUBNETS_RULES
from coil.crd.pool_validation import validate_pool, validate_pool_update
from coil.crd.schema import address_pool_definition
from coil.crd.validation import FieldError
from tests.coil.crd.cel import Document, Refusal, evaluate_rules

(VERSION,) = address_pool_definition()["spec"]["versions"]
SCHEMA: Document = VERSION["schema"]["openAPIV3Schema"]


def pool(*subnets: dict[str, str], bits: int | None = 5) -> Document:
    spec: Document = {"subnets": list(subnets)}
    if bits is not None:
        spec["blockSizeBits"] = bits
    return {"metadata": {"name": "pool"}, "spec": spec}


V4, V6, BOTH = {"ipv4": "10.2.0.0/16"}, {"ipv6": "fd02::/112"}, {"ipv4": "10.3.0.0/16", "ipv6": "fd03::/112"}
FAMILY = "must have an ipv4 or an ipv6 network"
EQUAL = "10.2.0.0/16 and fd02::/111 must hold equally many addresses"
SAME = "must have the same address families as the first entry"
KEPT = "is immutable; new subnets go to the end"
GONE = "must not be removed"
SMALL = "is smaller than a block of 2^blockSizeBits addresses"
COUNT = "hold more blocks than an index of 64 bits can number"


@pytest.mark.parametrize(
    ("refused", "by"),
    [
        (pool({}), [("spec.subnets[0]", FAMILY)]),
        (pool(V4, {}), [("spec.subnets[1]", FAMILY)]),
        (pool({"ipv4": "10.2.0.0/16", "ipv6": "fd02::/111"}), [("spec.subnets[0]", EQUAL)]),
        (pool(V4, V6), [("spec.subnets", SAME)]),
        (pool(BOTH, V4), [("spec.subnets", SAME)]),
        (pool(V4, {"ipv4": "10.9.0.0/28"}), [("spec.subnets", f"a network {SMALL}")]),
        (pool({"ipv6": "fd02::/128"}, bits=None), [("spec.subnets", f"a network {SMALL}")]),
        (pool({"ipv4": "10.2.0.0/33"}), [("spec.subnets", f"a network {SMALL}")]),
        (pool({"ipv6": "fd00::/8"}), [("spec.subnets", COUNT)]),
    ],
)
def test_a_new_pool_is_refused(refused: Document, by: list[tuple[str, str]]) -> None:
    found = evaluate_rules(SCHEMA, refused)
    assert sorted(found, key=str) == sorted((Refusal(*each) for each in by), key=str)
    if "/33" not in str(refused):  # which is no network to the validation
        assert untold(found, validate_pool(read(refused))) == []


@pytest.mark.parametrize(
    ("new", "by"),
    [
        (pool(V4, bits=6), [("spec.blockSizeBits", "is immutable")]),
        (pool(V4), []),
        (pool(V4, {"ipv4": "10.9.0.0/16"}), []),
        (pool({"ipv4": "10.9.0.0/16"}), [("spec.subnets", KEPT)]),
        (pool({"ipv4": "10.9.0.0/16"}, V4), [("spec.subnets", KEPT)]),
        (pool(), [("spec.subnets", GONE)]),
        (pool({"ipv4": "10.2.0.0/16", "ipv6": "fd02::/112"}), [("spec.subnets", KEPT)]),
    ],
)
def test_an_update_is_refused(new: Document, by: list[tuple[str, str]]) -> None:
    found = evaluate_rules(SCHEMA, new, pool(V4))
    assert found == [Refusal(*each) for each in by]
    assert untold(found, validate_pool_update(read(pool(V4)), read(new)) + validate_pool(read(new))) == []


def untold(found: list[Refusal], errors: list[FieldError]) -> list[Refusal]:
    """Those whose sentence the validation does not tell of the same field, or of one below it."""
    told = [(error.path, error.message) for error in errors]
    return [
        refusal
        for refusal in found
        if not any(path.startswith(refusal.path) and plain(message) == plain(refusal.message) for path, message in told)
    ]


def plain(message: str) -> str:
    """Without what no rule can tell: which network is too small, and for how large a block."""
    return re.sub(r"^\S+( network)? is smaller than a block of 2\^\w+", "too small for", message)


def test_every_position_is_looked_at() -> None:
    """The positions are written out in the rule, since CEL has no index."""
    entries = [{"ipv4": str(network)} for network in IPv4Network("10.0.0.0/8").subnets(new_prefix=16)]
    assert len(entries) == MAX_SUBNETS == SCHEMA["properties"]["spec"]["properties"]["subnets"]["maxItems"]
    (grow,) = (rule for rule in SUBNETS_RULES if rule["message"] == KEPT)
    alone = {"x-kubernetes-validations": [grow], "items": {}}
    assert evaluate_rules(alone, entries, entries) == []
    for position in (0, 15, 16, MAX_SUBNETS - 1):
        changed = [*entries[:position], {"ipv4": "192.168.0.0/16"}, *entries[position + 1 :]]
        assert evaluate_rules(alone, changed, entries) == [Refusal("", KEPT)]


@pytest.mark.parametrize(
    ("text", "limit"),
    [
        ("255.255.255.255/32", IPV4_CIDR_LENGTH),
        ("ffff:ffff:ffff:ffff:ffff:ffff:255.255.255.255/128", IPV6_CIDR_LENGTH),
    ],
)
def test_the_longest_network_fits(text: str, limit: int) -> None:
    assert len(text) == limit


def network4() -> st.SearchStrategy[str]:
    return st.tuples(st.integers(0, 2**32 - 1), st.integers(0, 32)).map(
        lambda part: str(IPv4Network((part[0] >> (32 - part[1]) << (32 - part[1]), part[1])))
    )


def network6() -> st.SearchStrategy[str]:
    return st.tuples(st.integers(0, 2**128 - 1), st.integers(0, 128)).map(
        lambda part: str(IPv6Network((part[0] >> (128 - part[1]) << (128 - part[1]), part[1])))
    )


ODD = st.sampled_from(
    [
        "",
        "/",
        "10.2.0.0",
        "10.2.0.1/16",
        "10.2.0.0/33",
        "10.2.0.0/016",
        "fd02::/129",
        "fd02::",
        "a/b",
        "1/2/3",
        "::1/64",
    ]
)
PLAIN4 = st.sampled_from(["10.2.0.0/16", "10.3.0.0/16", "10.4.0.0/24", "10.5.0.0/27"])
PLAIN6 = st.sampled_from(["fd02::/112", "fd03::/112", "fd04::/120", "fd05::/123", "::ffff:10.5.0.0/112"])
TEXT4 = st.one_of(PLAIN4, PLAIN4, network4(), ODD)
TEXT6 = st.one_of(PLAIN6, PLAIN6, network6(), ODD)
SINGLES = [{"ipv4": f"10.{number}.0.0/16"} for number in range(10, 14)]
PAIRS = [{"ipv4": f"10.{number}.0.0/16", "ipv6": f"fd{number}::/112"} for number in range(10, 14)]
SUBNET = st.fixed_dictionaries({}, optional={"ipv4": TEXT4, "ipv6": TEXT6})
SUBNETS = st.one_of(
    st.lists(SUBNET, min_size=1, max_size=3),
    st.lists(st.sampled_from(SINGLES), min_size=1, max_size=3, unique_by=str),
    st.lists(st.sampled_from(PAIRS), min_size=1, max_size=3, unique_by=str),
)
BITS = st.one_of(st.just(5), st.just(0), st.just(8), st.integers(0, 128))


@st.composite
def updates(draw: st.DrawFn) -> tuple[Document, Document]:
    """A pool and another one that often begins like it."""
    old = draw(SUBNETS)
    bits = draw(BITS)
    kept = old[: draw(st.integers(0, len(old)))] if draw(st.booleans()) else old
    new = kept + draw(st.one_of(st.just([]), st.lists(SUBNET, max_size=2), SUBNETS))
    return pool(*old, bits=bits), pool(*new, bits=draw(BITS) if draw(st.booleans()) else bits)


def read(document: Document) -> AddressPool:
    return msgspec.convert(document, AddressPool)


def refusing(pairs: list[Refusal], errors: list[Any], what: str) -> None:
    event(f"{what}: CEL {'refuses' if pairs else 'accepts'}, validation {'refuses' if errors else 'accepts'}")
    assert errors or not pairs, f"refused although it is valid: {pairs}"


@settings(max_examples=150)
@given(SUBNETS, BITS)
def test_nothing_valid_is_refused(subnets: list[dict[str, str]], bits: int) -> None:
    document = pool(*subnets, bits=bits)
    refusing(evaluate_rules(SCHEMA, document), validate_pool(read(document)), "creation")


@settings(max_examples=100)
@given(updates())
def test_no_valid_update_is_refused(change: tuple[Document, Document]) -> None:
    old, new = change
    errors = validate_pool_update(read(old), read(new))
    refused = evaluate_rules(SCHEMA, new, old)
    refusing(refused, errors + validate_pool(read(new)), "update")
    # And what concerns the past is held here as well as there.
    assert bool(errors) == any(each.message in {KEPT, GONE, "is immutable"} for each in refused)
