"""Kubernetes' own roles `view`, `edit` and `admin`, with what the chart adds to them: people who have one of them ask a
real API server, beside the controller that puts the roles together.
"""

import secrets
from collections.abc import Iterator
from typing import Any

import pytest

from integration.apiserver.egress_world import egress_document
from integration.apiserver.tenant import Tenant
from integration.cluster.control_plane import Controllers, ControlPlane
from integration.deployment import apply, apply_chart
from integration.patience import wait_until

pytestmark = pytest.mark.apiserver

COIL = "/apis/coil.cybozu.com/v2"
EIP = "/apis/egressgateway.spidernet.io/v1beta1"
READ_IN_NAMESPACE = (
    f"{COIL}/namespaces/{{namespace}}/egresses",
    f"{EIP}/namespaces/{{namespace}}/egressgatewaypolicies",
    f"{EIP}/namespaces/{{namespace}}/egressendpointslices",
    f"{EIP}/namespaces/{{namespace}}/egresspolicies",
)
READ_IN_CLUSTER = tuple(f"{COIL}/{kind}" for kind in ("addresspools", "addressblocks", "blockrequests", "egresses"))
OF_ADMINISTRATORS = tuple(f"{EIP}/{kind}" for kind in ("egressgateways", "egresstunnels", "egressclusterpolicies"))
"""What a gateway tells of all namespaces is in no role of Kubernetes' own."""


@pytest.fixture(scope="module")
def plane() -> Iterator[ControlPlane]:
    """With the controllers of a whole cluster. No webhook has a say."""
    with ControlPlane.start(controllers=Controllers.RUNNING) as plane:
        apply_chart(plane)
        yield plane


def make_tenant(plane: ControlPlane, role: str) -> Tenant:
    """A user who has the role in a namespace of its own."""
    namespace = f"{role}-{secrets.token_hex(3)}"
    plane.kubectl("create", "namespace", namespace)
    return Tenant(plane, namespace, role)


def await_allowed(tenant: Tenant, *paths: str) -> None:
    """Until the user may list all of these: the roles are put together, and the API server hears of it, in time."""

    def refused() -> list[str]:
        return [path for path in paths if tenant.request("GET", path)[0] != 200]

    wait_until(lambda: not refused(), what=f"{tenant.user} may list {paths}")


def refusals(tenant: Tenant, *paths: str) -> list[int]:
    return [tenant.request("GET", path)[0] for path in paths]


def policy(**spec: Any) -> dict[str, Any]:
    spec = {"appliedTo": {"podSelector": {"matchLabels": {"app": "shop"}}}, **spec}
    return {
        "apiVersion": EIP.removeprefix("/apis/"),
        "kind": "EgressGatewayPolicy",
        "metadata": {"name": "shop"},
        "spec": spec,
    }


@pytest.mark.parametrize(("role", "writes"), [("view", False), ("edit", True), ("admin", True)])
def test_who_has_a_role_of_kubernetes_in_a_namespace_has_what_belongs_to_it_there(
    plane: ControlPlane, role: str, writes: bool
) -> None:
    tenant = make_tenant(plane, role)
    await_allowed(tenant, *(path.format(namespace=tenant.namespace) for path in READ_IN_NAMESPACE))
    policies = READ_IN_NAMESPACE[1].format(namespace=tenant.namespace)
    wanted = 201 if writes else 403
    wait_until(lambda: tenant.request("POST", f"{policies}?dryRun=All", policy())[0] == wanted, what="the answer")
    # To write Egresses is part of no role of Kubernetes.
    egress = egress_document(tenant.namespace)
    assert tenant.request("POST", f"{COIL}/namespaces/{tenant.namespace}/egresses?dryRun=All", egress)[0] == 403
    slices = READ_IN_NAMESPACE[2].format(namespace=tenant.namespace)
    assert tenant.request("DELETE", f"{slices}?dryRun=All")[0] == 403
    # Nothing in another namespace, and nothing that is in none.
    elsewhere = [path.format(namespace="default") for path in READ_IN_NAMESPACE]
    nowhere = [*elsewhere, *READ_IN_CLUSTER, *OF_ADMINISTRATORS]
    assert refusals(tenant, *nowhere) == [403] * len(nowhere)


def test_who_may_view_the_cluster_sees_pools_and_blocks_and_changes_nothing(plane: ControlPlane) -> None:
    tenant = make_tenant(plane, "view")
    binding = f"view-of-{tenant.namespace}"
    plane.kubectl("create", "clusterrolebinding", binding, "--clusterrole=view", f"--user={tenant.user}")
    await_allowed(tenant, *READ_IN_CLUSTER)
    assert refusals(tenant, *OF_ADMINISTRATORS) == [403] * len(OF_ADMINISTRATORS)
    pool = {
        "apiVersion": COIL.removeprefix("/apis/"),
        "kind": "AddressPool",
        "metadata": {"name": "mine"},
        "spec": {"subnets": [{"ipv4": "10.77.0.0/24"}]},
    }
    assert tenant.request("POST", f"{COIL}/addresspools?dryRun=All", pool)[0] == 403
    apply(plane, pool)
    assert tenant.request("DELETE", f"{COIL}/addresspools/mine?dryRun=All")[0] == 403
