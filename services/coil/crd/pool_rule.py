"""The rules of AddressPools that the API server can hold by itself, in its own expression language (CEL).

They stand in the CRD beside the schema and are judged by Kubernetes 1.25 and newer, whether a webhook answers or not;
older ones drop them. They refuse nothing that `coil.crd.pool_validation` accepts, and less than that does: CEL knows
neither other objects nor, before 1.31, networks. Only functions of 1.25 are used.

Kubernetes judges the whole object at every update, from 1.30 on only what has changed. All but one of the rules were
kept by Coil v2 as well; a pool of mixed families that it once let in can lose its finalizer from 1.30 on, and before
that when the rule is taken out of the CRD.

An expression's cost is estimated from the longest possible lists and texts, so each has a limit. A comprehension has
no index, hence the literal ones: sixteen times sixteen positions.
"""

from typing import Any

MAX_SUBNETS = 256
IPV4_CIDR_LENGTH = 18
IPV6_CIDR_LENGTH = 49  # ffff:ffff:ffff:ffff:ffff:ffff:255.255.255.255/128

Rule = dict[str, Any]

_STEP = 16
_COARSE = list(range(0, MAX_SUBNETS, _STEP))
_FINE = list(range(_STEP))
_IPV4_BITS = "32 - int({0}.ipv4.split('/')[1])"
_IPV6_BITS = "128 - int({0}.ipv6.split('/')[1])"


def _rule(expression: str, message: str) -> Rule:
    return {"rule": expression, "message": message}


BLOCK_SIZE_RULES = [_rule("self == oldSelf", "is immutable")]
"""For `spec.blockSizeBits`."""

SUBNET_RULES = [
    _rule("has(self.ipv4) || has(self.ipv6)", "must have an ipv4 or an ipv6 network"),
    _rule(
        f"!has(self.ipv4) || !has(self.ipv6) || {_IPV4_BITS.format('self')} == {_IPV6_BITS.format('self')}",
        "the networks of both families must hold equally many addresses",
    ),
]
"""For each entry of `spec.subnets`."""

SUBNETS_RULES = [
    _rule(
        "self.all(s, has(s.ipv4) == has(self[0].ipv4) && has(s.ipv6) == has(self[0].ipv6))",
        "all entries must have the same address families",
    ),
    _rule(
        "oldSelf.size() <= self.size() && "
        f"{_COARSE}.all(c, c >= oldSelf.size() ? true : "
        f"{_FINE}.all(f, c + f >= oldSelf.size() || self[c + f] == oldSelf[c + f]))",
        "entries are immutable and must not be removed; new ones go to the end",
    ),
]
"""For `spec.subnets`."""

SPEC_RULES = [
    _rule(
        f"self.subnets.all(s, (!has(s.ipv4) || {_IPV4_BITS.format('s')} >= self.blockSizeBits) && "
        f"(!has(s.ipv6) || {_IPV6_BITS.format('s')} >= self.blockSizeBits))",
        "a network must not be smaller than a block of 2^blockSizeBits addresses",
    ),
    _rule(
        f"self.subnets.all(s, !has(s.ipv6) || {_IPV6_BITS.format('s')} - self.blockSizeBits < 63)",
        "a network must not hold more blocks than an index of 64 bits can number",
    ),
]
"""For `spec`."""
