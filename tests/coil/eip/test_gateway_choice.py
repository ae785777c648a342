"""Which gateway a policy means."""

import pytest

from coil.crd.egress_gateway import EgressGateway, EgressGatewaySpec
from coil.crd.egress_gateway_policy import EgressGatewayPolicySpec
from coil.crd.meta import LabelSelector, ObjectMeta
from coil.crd.names import LABEL_DEFAULT_GATEWAY, LABEL_DEFAULT_GATEWAY_0_6
from coil.eip.gateway_choice import ChoiceReason, NoGateway, choose_gateway

OPEN = EgressGatewaySpec()
FOR_SHOP = EgressGatewaySpec(allowed_namespaces=LabelSelector(match_labels={"tenant": "shop"}))
SHOP = {"tenant": "shop"}
LABELLED = {**SHOP, LABEL_DEFAULT_GATEWAY: "eg"}
LABELLED_0_6 = {LABEL_DEFAULT_GATEWAY_0_6: "eg"}
FOR_ALL = EgressGatewaySpec(cluster_default=True)


@pytest.mark.parametrize(
    ("named", "labels", "gateways", "chosen"),
    [
        ("eg", {}, {"eg": OPEN}, "eg"),
        ("eg", SHOP, {"eg": FOR_SHOP}, "eg"),
        ("eg", {}, {"eg": FOR_SHOP, "default": OPEN}, ChoiceReason.NOT_ALLOWED),
        ("eg", {}, {"default": OPEN}, ChoiceReason.NOT_FOUND),
        ("", LABELLED, {"eg": FOR_SHOP, "default": OPEN}, "eg"),
        ("", LABELLED, {"default": OPEN}, "default"),
        ("", {LABEL_DEFAULT_GATEWAY: "eg"}, {"eg": FOR_SHOP, "default": OPEN}, "default"),
        ("", LABELLED_0_6, {"eg": OPEN, "any": FOR_ALL, "default": OPEN}, "eg"),
        ("", LABELLED_0_6 | {LABEL_DEFAULT_GATEWAY: "own"}, {"eg": OPEN, "own": OPEN}, "own"),
        ("", LABELLED_0_6, {"any": FOR_ALL, "default": OPEN}, "any"),
        ("", {}, {"any": FOR_ALL, "another": FOR_ALL, "default": OPEN}, "another"),
        ("", {}, {"any": EgressGatewaySpec(cluster_default=True, allowed_namespaces=LabelSelector())}, "any"),
        ("", {}, {"default": OPEN}, "default"),
        ("", {}, {"default": FOR_SHOP}, ChoiceReason.NO_DEFAULT),
        ("", {LABEL_DEFAULT_GATEWAY: ""}, {}, ChoiceReason.NO_DEFAULT),
    ],
)
def test_choice(
    named: str, labels: dict[str, str], gateways: dict[str, EgressGatewaySpec], chosen: str | ChoiceReason
) -> None:
    known = {name: EgressGateway(metadata=ObjectMeta(name=name), spec=spec) for name, spec in gateways.items()}
    spec = EgressGatewayPolicySpec(egress_gateway_name=named)
    found = choose_gateway(spec, namespace_labels=labels, gateway=known.get, gateways=known.values())
    assert (found.reason if isinstance(found, NoGateway) else found.metadata.name) == chosen
