"""Which gateway a policy means, and whether that gateway lets the policy's namespace in.

Asked at admission and again whenever a policy is placed, as labels and gateways change. A policy that names a gateway
means that one. One that names none means the gateway that its namespace's label names, otherwise the one with
`clusterDefault`, otherwise the one called `default`, each only if it allows the namespace.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from coil.crd.egress_gateway import EgressGateway
from coil.crd.egress_gateway_policy import EgressGatewayPolicySpec
from coil.crd.names import DEFAULT_GATEWAY, LABEL_DEFAULT_GATEWAY, LABEL_DEFAULT_GATEWAY_0_6


class ChoiceReason(StrEnum):
    """One CamelCase word each: the reason of a condition of the policy."""

    NOT_FOUND = "GatewayNotFound"
    NOT_ALLOWED = "GatewayNotAllowed"
    NO_DEFAULT = "NoDefaultGateway"


@dataclass(frozen=True, slots=True)
class NoGateway:
    """`message` is a sentence for whoever wrote the policy."""

    reason: ChoiceReason
    message: str


def allows(gateway: EgressGateway, namespace_labels: Mapping[str, str]) -> bool:
    """Whether policies of a namespace with these labels may use the gateway."""
    allowed = gateway.spec.allowed_namespaces
    return allowed is None or allowed.selects(namespace_labels)


def choose_gateway(
    spec: EgressGatewayPolicySpec,
    *,
    namespace_labels: Mapping[str, str],
    gateway: Callable[[str], EgressGateway | None],
    gateways: Iterable[EgressGateway],
) -> EgressGateway | NoGateway:
    """`gateway` gives the EgressGateway of a name; `gateways` are all, and looked at only for a policy that names none.
    A gateway that is being deleted is still there for its policies.
    """
    if name := spec.egress_gateway_name:
        found = gateway(name)
        if found is None:
            return NoGateway(ChoiceReason.NOT_FOUND, f"there is no EgressGateway {name!r}")
        if not allows(found, namespace_labels):
            return NoGateway(ChoiceReason.NOT_ALLOWED, f"the EgressGateway {name!r} does not allow this namespace")
        return found
    named = (namespace_labels.get(label, "") for label in (LABEL_DEFAULT_GATEWAY, LABEL_DEFAULT_GATEWAY_0_6))
    defaults = sorted(found.metadata.name for found in gateways if found.spec.cluster_default)
    for name in (*named, *defaults, DEFAULT_GATEWAY):
        found = gateway(name) if name else None
        if found is not None and allows(found, namespace_labels):
            return found
    message = f"no egressGatewayName, and neither the namespace's label {LABEL_DEFAULT_GATEWAY} nor clusterDefault nor"
    return NoGateway(
        ChoiceReason.NO_DEFAULT, f"{message} the name {DEFAULT_GATEWAY!r} leads to a gateway that allows it"
    )
