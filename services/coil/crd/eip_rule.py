"""The rules of the EIP gateway's kinds that the API server can hold by itself, in its own expression language (CEL).

As in `coil.crd.pool_rule`: Kubernetes 1.25 and newer judge them, older ones drop them, and they refuse nothing that
`coil.crd.eip_validation` accepts. An absent field and an empty one are equal, before and after. Only functions of 1.25
are used; what an expression counts or compares has a limit in the schema.
"""

from coil.crd.definition import cel_rule


def _same(*path: str, empty: str) -> str:
    """An expression: whether a field is what it was, where an absent one is `empty`."""

    def value(root: str) -> str:
        steps = [".".join((root, *path[:length])) for length in range(1, len(path) + 1)]
        there = " && ".join(f"has({step})" for step in steps)
        return f"({there} ? {steps[-1]} : {empty})"

    return f"{value('self')} == {value('oldSelf')}"


_IMMUTABLE = "is immutable; delete the policy and create another"
_EGRESS_IP = {"ipv4": "''", "ipv6": "''", "useNodeIP": "false", "allocatorPolicy": "''"}

IMMUTABLE_RULES = [
    cel_rule(
        _same("egressGatewayName", empty="''"),
        _IMMUTABLE,
        field="egressGatewayName",
    ),
    cel_rule(
        " && ".join(_same("egressIP", name, empty=empty) for name, empty in _EGRESS_IP.items()),
        _IMMUTABLE,
        field="egressIP",
    ),
]
"""For `spec` of a policy."""

EGRESS_IP_RULES = [
    cel_rule(
        "!has(self.useNodeIP) || !self.useNodeIP || "
        "((!has(self.ipv4) || self.ipv4 == '') && (!has(self.ipv6) || self.ipv6 == ''))",
        "must not ask for an address and for the node's own (useNodeIP)",
    ),
]

APPLIED_TO_RULES = [
    cel_rule(
        "has(self.podSelector) != (has(self.podSubnet) && self.podSubnet.size() > 0)",
        "must have either a podSelector or a podSubnet",
    ),
]

NODE_SELECTOR_RULES = [
    cel_rule(
        "(has(self.matchLabels) && self.matchLabels.size() > 0) || "
        "(has(self.matchExpressions) && self.matchExpressions.size() > 0)",
        "must not be empty: it would have every node carry addresses",
    ),
]
"""For `spec.nodeSelector.selector` of a gateway."""

REQUIREMENT_RULES = [
    cel_rule(
        "(self.operator in ['In', 'NotIn']) == (has(self.values) && self.values.size() > 0)",
        "In and NotIn need values, Exists and DoesNotExist have none",
        field="values",
    ),
]
"""For each entry of a selector's `matchExpressions`."""
