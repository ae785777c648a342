"""The rules of AddressPools that the API server can hold by itself, in its own expression language (CEL).

They stand in the CRD beside the schema and are judged by Kubernetes 1.25 and newer, whether a webhook answers or not,
and before the webhook that refuses; older ones drop them. They refuse nothing that `coil.crd.pool_validation` accepts,
and less than that does: CEL knows neither other objects nor, before 1.31, networks. Only functions of 1.25 are used.

What is refused is told in the validation's words, at the same field or at one above it: a rule's field has no position.

Kubernetes judges the whole object at every update, from 1.30 on only what has changed. All but one of the rules were
kept by Coil v2 as well; a pool of mixed families that it once let in can lose its finalizer from 1.30 on, and before
that when the rule is taken out of the CRD.

An expression's cost is estimated from the longest possible lists and texts, so each has a limit. A comprehension has
no index, hence the literal ones: sixteen times sixteen positions.
"""

from coil.crd.definition import cel_rule

MAX_SUBNETS = 256
IPV4_CIDR_LENGTH = 18
IPV6_CIDR_LENGTH = 49  # ffff:ffff:ffff:ffff:ffff:ffff:255.255.255.255/128

_STEP = 16
_COARSE = list(range(0, MAX_SUBNETS, _STEP))
_FINE = list(range(_STEP))
_IPV4_BITS = "32 - int({0}.ipv4.split('/')[1])"
_IPV6_BITS = "128 - int({0}.ipv6.split('/')[1])"


_GAP = (
    f"{_COARSE}.exists(c, c >= oldSelf.size() ? false : "
    f"{_FINE}.exists(f, c + f < oldSelf.size() && c + f < self.size() && self[c + f] != oldSelf[c + f]))"
)
_SMALL4 = f"has(s.ipv4) && {_IPV4_BITS.format('s')} < self.blockSizeBits"
_SMALL6 = f"has(s.ipv6) && {_IPV6_BITS.format('s')} < self.blockSizeBits"

BLOCK_SIZE_RULES = [cel_rule("self == oldSelf", "is immutable")]
"""For `spec.blockSizeBits`."""

SUBNET_RULES = [
    cel_rule("has(self.ipv4) || has(self.ipv6)", "must have an ipv4 or an ipv6 network"),
    cel_rule(
        f"!has(self.ipv4) || !has(self.ipv6) || {_IPV4_BITS.format('self')} == {_IPV6_BITS.format('self')}",
        "the networks of both families must hold equally many addresses",
        told="self.ipv4 + ' and ' + self.ipv6 + ' must hold equally many addresses'",
    ),
]
"""For each entry of `spec.subnets`."""

SUBNETS_RULES = [
    cel_rule(
        "self.all(s, !has(s.ipv4) && !has(s.ipv6) || "
        "has(s.ipv4) == has(self[0].ipv4) && has(s.ipv6) == has(self[0].ipv6))",
        "must have the same address families as the first entry",
    ),
    cel_rule("oldSelf.size() <= self.size()", "must not be removed"),
    cel_rule(f"!{_GAP}", "is immutable; new subnets go to the end"),
]
"""For `spec.subnets`; what is told is true of one of its entries at least."""

SPEC_RULES = [
    cel_rule(
        f"!self.subnets.exists(s, {_SMALL4}) && !self.subnets.exists(s, {_SMALL6})",
        "a network is smaller than a block of 2^blockSizeBits addresses",
        field="subnets",
        # Neither which network nor the number: the API server reckons with the longest text that there could be, and
        # refuses the CRD for what an expression with either might cost.
    ),
    cel_rule(
        f"self.subnets.all(s, !has(s.ipv6) || {_IPV6_BITS.format('s')} - self.blockSizeBits < 63)",
        "hold more blocks than an index of 64 bits can number",
        field="subnets",
    ),
]
"""For `spec`."""
