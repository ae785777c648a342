"""The roles of the programs: all that they need, and nothing that would surprise a cluster's admin."""

import json
from typing import Any, TypeAlias

import pytest

from integration.cluster.control_plane import ControlPlane

pytestmark = pytest.mark.apiserver

COIL = "coil.cybozu.com"
EIP = "egressgateway.spidernet.io"
LEASES = "coordination.k8s.io"
ADMISSION = "admissionregistration.k8s.io"
POLICY = "policy"
RBAC = "rbac.authorization.k8s.io"
LEASE = "coil-ipam-controller"
EIP_LEASES = "coil-eip-leases"
EGRESS_CONTROLLER = "coil-egress-controller"
CLUSTER_NETWORKS = "coil-cluster-networks"
WEBHOOK_SECRET = "coil-ipam-controller-webhook"  # noqa: S105 (a name)
WEBHOOK_KINDS = ("mutatingwebhookconfigurations", "validatingwebhookconfigurations")


Access: TypeAlias = tuple[str, str, str, str, str, str]
"""Verb, group, resource, subresource, namespace, name."""


def answers(plane: ControlPlane, account: str, *accesses: Access, home: str = "kube-system") -> list[bool]:
    """Whether the account of the namespace `home` may, access by access."""
    items = [_review(account, home, access) for access in accesses]
    text = plane.kubectl(
        "create",
        "--filename=-",
        "--output=json",
        stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": items}),
    )
    decoder = json.JSONDecoder()
    found: list[bool] = []
    while text := text.strip():
        review, end = decoder.raw_decode(text)
        reviews = review["items"] if review["kind"] == "List" else [review]
        found += [item["status"]["allowed"] for item in reviews]
        text = text[end:]
    return found


def _review(account: str, home: str, access: Access) -> dict[str, Any]:
    verb, group, resource, subresource, namespace, name = access
    attributes = {
        "verb": verb,
        "group": group,
        "resource": resource,
        "subresource": subresource,
        "namespace": namespace,
        "name": name,
    }
    return {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SubjectAccessReview",
        "metadata": {},
        "spec": {
            "user": f"system:serviceaccount:{home}:{account}",
            "groups": ["system:serviceaccounts", f"system:serviceaccounts:{home}", "system:authenticated"],
            "resourceAttributes": {key: value for key, value in attributes.items() if value},
        },
    }


def access(verb: str, group: str, resource: str, *, namespace: str = "", name: str = "") -> Access:
    kind, _, subresource = resource.partition("/")
    return verb, group, kind, subresource, namespace, name


CONTROLLER_MAY = [
    *(access(verb, COIL, "addresspools") for verb in ("get", "list", "watch", "patch")),
    access("patch", COIL, "addresspools/status"),
    *(access(verb, "", "events", namespace="default") for verb in ("create", "patch")),
    # What OwnerReferencesPermissionEnforcement asks of whoever creates a block with blockOwnerDeletion.
    access("update", COIL, "addresspools/finalizers"),
    *(access(verb, COIL, "addressblocks") for verb in ("get", "list", "watch", "create", "patch", "delete")),
    *(access(verb, COIL, "blockrequests") for verb in ("list", "watch", "delete")),
    access("patch", COIL, "blockrequests/status"),
    *(access(verb, "", "nodes") for verb in ("get", "list", "watch")),
    access("create", LEASES, "leases", namespace="kube-system"),
    *(access(verb, LEASES, "leases", namespace="kube-system", name=LEASE) for verb in ("get", "update")),
    # Secrets and webhook configurations: its own by name, and no other.
    access("create", "", "secrets", namespace="kube-system"),
    *(access(verb, "", "secrets", namespace="kube-system", name=WEBHOOK_SECRET) for verb in ("get", "update")),
    *(access(verb, ADMISSION, kind, name=LEASE) for verb in ("get", "patch") for kind in WEBHOOK_KINDS),
]
CONTROLLER_MAY_NOT = [
    *(access(verb, "", "secrets") for verb in ("get", "list", "create")),
    access("get", "", "secrets", namespace="kube-system"),
    *(access(verb, "", "secrets", namespace="kube-system", name="another") for verb in ("get", "update")),
    *(
        access(verb, "", "secrets", namespace="kube-system", name=WEBHOOK_SECRET)
        for verb in ("list", "watch", "delete")
    ),
    access("get", "", "secrets", namespace="default", name=WEBHOOK_SECRET),
    *(access(verb, ADMISSION, kind) for verb in ("list", "watch", "create") for kind in WEBHOOK_KINDS),
    *(access(verb, ADMISSION, kind, name="another") for verb in ("get", "patch") for kind in WEBHOOK_KINDS),
    *(access(verb, ADMISSION, kind, name=LEASE) for verb in ("update", "delete") for kind in WEBHOOK_KINDS),
    access("list", "", "pods"),
    *(access(verb, "", "nodes") for verb in ("patch", "update", "delete")),
    *(access(verb, COIL, "addresspools") for verb in ("create", "delete")),
    *(access(verb, "", "events", namespace="default") for verb in ("list", "watch", "delete")),
    access("create", "", "events", namespace="kube-system"),
    *(access(verb, COIL, "blockrequests") for verb in ("create", "patch")),
    access("update", LEASES, "leases", namespace="kube-system", name="kube-scheduler"),
    access("create", LEASES, "leases", namespace="default"),
    access("get", "apiextensions.k8s.io", "customresourcedefinitions"),
]
COILD_MAY = [
    access("get", "", "nodes"),
    *(access(verb, "", "namespaces") for verb in ("get", "list", "watch")),
    *(access(verb, COIL, "addressblocks") for verb in ("list", "watch", "patch", "delete")),
    *(access(verb, COIL, "blockrequests") for verb in ("list", "watch", "create", "delete")),
    access("get", COIL, "addresspools"),
    *(access(verb, "", kind) for verb in ("get", "list", "watch") for kind in ("pods", "services")),
    *(access(verb, COIL, "egresses") for verb in ("get", "list", "watch")),
    *(access(verb, COIL, "egressclientslices") for verb in ("list", "watch", "create", "patch", "delete")),
    *(access(verb, "discovery.k8s.io", "endpointslices") for verb in ("list", "watch")),
    *(access(verb, "", "events", namespace="default") for verb in ("create", "patch")),
]
COILD_MAY_NOT = [
    *(access(verb, "", kind) for verb in ("create", "update", "patch", "delete") for kind in ("pods", "services")),
    *(access(verb, COIL, "egresses") for verb in ("create", "update", "patch", "delete")),
    access("get", "", "secrets", namespace="default"),
    *(access(verb, "", kind) for verb in ("patch", "delete") for kind in ("nodes", "namespaces")),
    # Only with --route-sync, whose role is bound by nobody unasked.
    *(access(verb, "", "nodes") for verb in ("list", "watch")),
    access("create", COIL, "addressblocks"),
    *(access(verb, COIL, "addresspools") for verb in ("list", "watch", "create", "patch", "delete")),
    *(access(verb, "", "events", namespace="default") for verb in ("list", "watch", "delete")),
    access("patch", COIL, "blockrequests/status"),
    access("get", LEASES, "leases", namespace="kube-system", name=LEASE),
]


AGENTS_EIP_KINDS = ("egresstunnels", "egressgateways", "egressgatewaypolicies", "egressendpointslices")
EIP_KINDS = (*AGENTS_EIP_KINDS, "egresspolicies", "egressclusterpolicies", "egressclusterinfos")
PEOPLES_EIP_KINDS = (
    *("egressgateways", "egressgatewaypolicies", "egresspolicies", "egressclusterpolicies"),
    "egressclusterinfos",
)

EGRESS_CONTROLLER_MAY = [
    *(access(verb, COIL, "egresses") for verb in ("list", "watch")),
    access("patch", COIL, "egresses/status"),
    access("update", COIL, "egresses/finalizers"),
    *(
        access(verb, group, resource)
        for verb in ("get", "list", "watch", "create", "update")
        for group, resource in (("apps", "deployments"), ("", "services"), (POLICY, "poddisruptionbudgets"))
    ),
    access("delete", POLICY, "poddisruptionbudgets"),
    *(access(verb, "", "serviceaccounts") for verb in ("list", "watch", "create")),
    access("delete", "", "serviceaccounts", namespace="default", name="coil-egress"),
    *(access(verb, RBAC, "rolebindings") for verb in ("list", "watch", "create")),
    access("delete", RBAC, "rolebindings", namespace="default", name="coil-egress"),
    *(access(verb, RBAC, "clusterrolebindings", name="coil-egress") for verb in ("list", "watch", "patch")),
    access("bind", RBAC, "clusterroles", name="coil-egress"),
    *(access(verb, "", "events", namespace="default") for verb in ("create", "patch")),
    access("get", "", "pods", namespace="kube-system"),
    access("create", LEASES, "leases", namespace="kube-system"),
    *(access(verb, LEASES, "leases", namespace="kube-system", name=EGRESS_CONTROLLER) for verb in ("get", "update")),
    access("create", "", "secrets", namespace="kube-system"),
    *(
        access(verb, "", "secrets", namespace="kube-system", name=f"{EGRESS_CONTROLLER}-webhook")
        for verb in ("get", "update")
    ),
    *(access(verb, ADMISSION, kind, name=EGRESS_CONTROLLER) for verb in ("get", "patch") for kind in WEBHOOK_KINDS),
    *(access(verb, "", kind) for verb in ("get", "list", "watch") for kind in ("nodes", "namespaces")),
    *(access(verb, "", "pods") for verb in ("list", "watch")),
    *(access(verb, EIP, kind) for verb in ("list", "watch") for kind in EIP_KINDS),
    *(access("get", EIP, kind) for kind in ("egressgateways", "egressclusterpolicies")),
    *(access(verb, EIP, kind) for verb in ("create", "delete") for kind in ("egresstunnels", "egressendpointslices")),
    access("update", EIP, "egressendpointslices"),
    *(access(verb, EIP, "egressgatewaypolicies") for verb in ("create", "update", "delete")),
    *(access("update", EIP, f"{kind}/status") for kind in PEOPLES_EIP_KINDS),
    access("patch", EIP, "egresstunnels/status"),
    access("update", EIP, "egressgatewaypolicies/finalizers"),
    *(
        access(verb, LEASES, "leases", namespace=EIP_LEASES, name="coil-eip-n1")
        for verb in ("get", "list", "watch", "create", "update")
    ),
    access("create", "authorization.k8s.io", "subjectaccessreviews"),
    *(
        access(verb, "", "configmaps", namespace="kube-system", name=name)
        for verb in ("list", "watch")
        for name in (CLUSTER_NETWORKS, "kubeadm-config", "kube-proxy", "cilium-config")
    ),
    access("patch", "", "configmaps", namespace="kube-system", name=CLUSTER_NETWORKS),
    *(access(verb, "crd.projectcalico.org", "ippools") for verb in ("list", "watch")),
    *(access(verb, "cilium.io", "ciliumnodes") for verb in ("list", "watch")),
]
EGRESS_CONTROLLER_MAY_NOT = [
    *(access(verb, "", "configmaps", namespace="kube-system") for verb in ("get", "list", "watch", "create", "delete")),
    access("list", "", "configmaps", namespace="default", name="kubeadm-config"),
    access("patch", "", "configmaps", namespace="kube-system", name="kubeadm-config"),
    *(access(verb, COIL, "egresses") for verb in ("create", "update", "patch", "delete")),
    *(
        access(verb, group, resource)
        for verb in ("patch", "delete")
        for group, resource in (("apps", "deployments"), ("", "services"))
    ),
    *(
        access(verb, "", "serviceaccounts", namespace="default", name="default")
        for verb in ("delete", "update", "patch")
    ),
    access("create", "", "serviceaccounts/token", namespace="default", name="coil-egress"),
    *(access(verb, RBAC, "clusterrolebindings") for verb in ("list", "create", "patch", "delete")),
    access("patch", RBAC, "clusterrolebindings", name="cluster-admin"),
    *(access(verb, RBAC, "rolebindings", namespace="default") for verb in ("update", "patch", "delete")),
    access("bind", RBAC, "clusterroles", name="cluster-admin"),
    *(access(verb, RBAC, "clusterroles", name="coil-egress") for verb in ("update", "patch", "escalate")),
    *(access(verb, "", "pods") for verb in ("create", "update", "patch", "delete")),
    access("get", "", "pods", namespace="default"),
    *(access(verb, "", kind) for verb in ("update", "patch", "delete") for kind in ("nodes", "namespaces")),
    *(
        access(verb, EIP, kind)
        for verb in ("create", "update", "patch", "delete")
        for kind in PEOPLES_EIP_KINDS
        if kind != "egressgatewaypolicies"
    ),
    access("patch", EIP, "egressgatewaypolicies"),
    *(access("get", EIP, kind) for kind in EIP_KINDS if kind not in {"egressgateways", "egressclusterpolicies"}),
    *(access(verb, "", "secrets") for verb in ("get", "list", "create")),
    access("get", "", "secrets", namespace="kube-system", name=WEBHOOK_SECRET),
    *(access(verb, ADMISSION, kind, name=LEASE) for verb in ("get", "patch") for kind in WEBHOOK_KINDS),
    *(access(verb, LEASES, "leases", namespace="default") for verb in ("get", "list", "create", "update")),
    *(
        access(verb, LEASES, "leases", namespace="kube-system", name="kube-scheduler")
        for verb in ("get", "list", "watch", "update", "patch", "delete")
    ),
    *(access(verb, LEASES, "leases", namespace=EIP_LEASES, name="coil-eip-n1") for verb in ("patch", "delete")),
]

EGRESS_NODE_MAY = [
    *(access(verb, EIP, kind) for verb in ("list", "watch") for kind in AGENTS_EIP_KINDS),
    access("patch", EIP, "egresstunnels/status"),
    *(access(verb, "", kind) for verb in ("list", "watch") for kind in ("nodes", "pods")),
    *(access(verb, COIL, "addresspools") for verb in ("list", "watch")),
    *(access(verb, LEASES, "leases", namespace=EIP_LEASES, name="coil-eip-n1") for verb in ("get", "create", "update")),
    *(access(verb, "", "configmaps", namespace="kube-system", name=CLUSTER_NETWORKS) for verb in ("list", "watch")),
]
EGRESS_NODE_MAY_NOT = [
    *(access(verb, EIP, kind) for verb in ("list", "watch") for kind in EIP_KINDS if kind not in AGENTS_EIP_KINDS),
    *(access(verb, "", "configmaps", namespace="kube-system") for verb in ("get", "list", "watch")),
    *(
        access(verb, "", "configmaps", namespace="kube-system", name=CLUSTER_NETWORKS)
        for verb in ("update", "patch", "delete")
    ),
    *(access(verb, EIP, kind) for verb in ("create", "update", "patch", "delete") for kind in EIP_KINDS),
    *(access(verb, EIP, f"{kind}/status") for verb in ("update", "patch") for kind in PEOPLES_EIP_KINDS),
    *(access(verb, "", "nodes") for verb in ("create", "update", "patch", "delete")),
    access("patch", "", "nodes/status"),
    *(access(verb, "", kind) for verb in ("get", "list", "watch") for kind in ("services", "secrets")),
    *(access(verb, "", "pods") for verb in ("get", "create", "update", "patch", "delete")),
    *(access(verb, "", "namespaces") for verb in ("list", "watch")),
    *(access(verb, LEASES, "leases", namespace=EIP_LEASES) for verb in ("list", "watch", "patch", "delete")),
    # Neither the election of Coil's own controllers nor anybody else's is its business.
    *(
        access(verb, LEASES, "leases", namespace=namespace, name=name)
        for verb in ("get", "list", "watch", "create", "update", "patch", "delete")
        for namespace, name in (
            *(("kube-system", name) for name in ("kube-scheduler", EGRESS_CONTROLLER, "coil-eip-n1")),
            *(("kube-node-lease", "n1"), ("default", "coil-eip-n1")),
        )
    ),
    *(access(verb, COIL, "addresspools") for verb in ("create", "patch", "delete")),
    access("create", "authorization.k8s.io", "subjectaccessreviews"),
]


@pytest.mark.parametrize(
    ("account", "may", "may_not"),
    [
        ("coil-ipam-controller", CONTROLLER_MAY, CONTROLLER_MAY_NOT),
        (EGRESS_CONTROLLER, EGRESS_CONTROLLER_MAY, EGRESS_CONTROLLER_MAY_NOT),
        ("coil-egress-node", EGRESS_NODE_MAY, EGRESS_NODE_MAY_NOT),
        ("coild", COILD_MAY, COILD_MAY_NOT),
    ],
)
def test_what_an_account_may(
    plane: ControlPlane,
    account: str,
    may: list[Access],
    may_not: list[Access],
) -> None:
    allowed = answers(plane, account, *may, *may_not)
    assert [item for item, answer in zip(may, allowed, strict=False) if not answer] == [], "too narrow"
    assert [item for item, answer in zip(may_not, allowed[len(may) :], strict=True) if answer] == [], "too wide"
