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
WEBHOOK_SECRET = "coil-ipam-controller-webhook"  # noqa: S105 (a name)
WEBHOOK_KINDS = ("mutatingwebhookconfigurations", "validatingwebhookconfigurations")


Wish: TypeAlias = tuple[str, str, str, str, str, str]
"""Verb, group, resource, subresource, namespace, name."""


def answers(plane: ControlPlane, account: str, *wishes: Wish) -> list[bool]:
    """Whether the account may, wish by wish."""
    items = [_review(account, wish) for wish in wishes]
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


def _review(account: str, wish: Wish) -> dict[str, Any]:
    verb, group, resource, subresource, namespace, name = wish
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
            "user": f"system:serviceaccount:kube-system:{account}",
            "groups": ["system:serviceaccounts", "system:serviceaccounts:kube-system", "system:authenticated"],
            "resourceAttributes": {key: value for key, value in attributes.items() if value},
        },
    }


def wish(verb: str, group: str, resource: str, *, namespace: str = "", name: str = "") -> Wish:
    kind, _, subresource = resource.partition("/")
    return verb, group, kind, subresource, namespace, name


CONTROLLER_MAY = [
    *(wish(verb, COIL, "addresspools") for verb in ("get", "list", "watch", "patch")),
    wish("patch", COIL, "addresspools/status"),
    *(wish(verb, "", "events", namespace="default") for verb in ("create", "patch")),
    # What OwnerReferencesPermissionEnforcement asks of whoever creates a block with blockOwnerDeletion.
    wish("update", COIL, "addresspools/finalizers"),
    *(wish(verb, COIL, "addressblocks") for verb in ("get", "list", "watch", "create", "patch", "delete")),
    *(wish(verb, COIL, "blockrequests") for verb in ("list", "watch", "delete")),
    wish("patch", COIL, "blockrequests/status"),
    *(wish(verb, "", "nodes") for verb in ("get", "list", "watch")),
    wish("create", LEASES, "leases", namespace="kube-system"),
    *(wish(verb, LEASES, "leases", namespace="kube-system", name=LEASE) for verb in ("get", "update")),
    # Secrets and webhook configurations: its own by name, and no other.
    wish("create", "", "secrets", namespace="kube-system"),
    *(wish(verb, "", "secrets", namespace="kube-system", name=WEBHOOK_SECRET) for verb in ("get", "update")),
    *(wish(verb, ADMISSION, kind, name=LEASE) for verb in ("get", "patch") for kind in WEBHOOK_KINDS),
]
CONTROLLER_MAY_NOT = [
    *(wish(verb, "", "secrets") for verb in ("get", "list", "create")),
    wish("get", "", "secrets", namespace="kube-system"),
    *(wish(verb, "", "secrets", namespace="kube-system", name="another") for verb in ("get", "update")),
    *(wish(verb, "", "secrets", namespace="kube-system", name=WEBHOOK_SECRET) for verb in ("list", "watch", "delete")),
    wish("get", "", "secrets", namespace="default", name=WEBHOOK_SECRET),
    *(wish(verb, ADMISSION, kind) for verb in ("list", "watch", "create") for kind in WEBHOOK_KINDS),
    *(wish(verb, ADMISSION, kind, name="another") for verb in ("get", "patch") for kind in WEBHOOK_KINDS),
    *(wish(verb, ADMISSION, kind, name=LEASE) for verb in ("update", "delete") for kind in WEBHOOK_KINDS),
    wish("list", "", "pods"),
    *(wish(verb, "", "nodes") for verb in ("patch", "update", "delete")),
    *(wish(verb, COIL, "addresspools") for verb in ("create", "delete")),
    *(wish(verb, "", "events", namespace="default") for verb in ("list", "watch", "delete")),
    wish("create", "", "events", namespace="kube-system"),
    *(wish(verb, COIL, "blockrequests") for verb in ("create", "patch")),
    wish("update", LEASES, "leases", namespace="kube-system", name="kube-scheduler"),
    wish("create", LEASES, "leases", namespace="default"),
    wish("get", "apiextensions.k8s.io", "customresourcedefinitions"),
]
COILD_MAY = [
    wish("get", "", "nodes"),
    *(wish(verb, "", "namespaces") for verb in ("get", "list", "watch")),
    *(wish(verb, COIL, "addressblocks") for verb in ("list", "watch", "patch", "delete")),
    *(wish(verb, COIL, "blockrequests") for verb in ("list", "watch", "create", "delete")),
    wish("get", COIL, "addresspools"),
    *(wish(verb, "", kind) for verb in ("get", "list", "watch") for kind in ("pods", "services")),
    *(wish(verb, COIL, "egresses") for verb in ("get", "list", "watch")),
    *(wish(verb, "", "events", namespace="default") for verb in ("create", "patch")),
]
COILD_MAY_NOT = [
    *(wish(verb, "", kind) for verb in ("create", "update", "patch", "delete") for kind in ("pods", "services")),
    *(wish(verb, COIL, "egresses") for verb in ("create", "update", "patch", "delete")),
    wish("get", "", "secrets", namespace="default"),
    *(wish(verb, "", kind) for verb in ("patch", "delete") for kind in ("nodes", "namespaces")),
    # Only with --route-sync, whose role is bound by nobody unasked.
    *(wish(verb, "", "nodes") for verb in ("list", "watch")),
    wish("create", COIL, "addressblocks"),
    *(wish(verb, COIL, "addresspools") for verb in ("list", "watch", "create", "patch", "delete")),
    *(wish(verb, "", "events", namespace="default") for verb in ("list", "watch", "delete")),
    wish("patch", COIL, "blockrequests/status"),
    wish("get", LEASES, "leases", namespace="kube-system", name=LEASE),
]


EIP_KINDS = ("egresstunnels", "egressgateways", "egressgatewaypolicies", "egressendpointslices")
PEOPLES_EIP_KINDS = ("egressgateways", "egressgatewaypolicies")

EGRESS_CONTROLLER_MAY = [
    *(wish(verb, COIL, "egresses") for verb in ("list", "watch")),
    wish("patch", COIL, "egresses/status"),
    wish("update", COIL, "egresses/finalizers"),
    *(
        wish(verb, group, resource)
        for verb in ("get", "list", "watch", "create", "update")
        for group, resource in (("apps", "deployments"), ("", "services"), (POLICY, "poddisruptionbudgets"))
    ),
    wish("delete", POLICY, "poddisruptionbudgets"),
    *(wish(verb, "", "serviceaccounts") for verb in ("list", "watch", "create")),
    wish("delete", "", "serviceaccounts", namespace="default", name="coil-egress"),
    *(wish(verb, RBAC, "clusterrolebindings", name="coil-egress") for verb in ("list", "watch", "patch")),
    wish("bind", RBAC, "clusterroles", name="coil-egress"),
    *(wish(verb, "", "events", namespace="default") for verb in ("create", "patch")),
    wish("get", "", "pods", namespace="kube-system"),
    wish("create", LEASES, "leases", namespace="kube-system"),
    *(wish(verb, LEASES, "leases", namespace="kube-system", name=EGRESS_CONTROLLER) for verb in ("get", "update")),
    wish("create", "", "secrets", namespace="kube-system"),
    *(
        wish(verb, "", "secrets", namespace="kube-system", name=f"{EGRESS_CONTROLLER}-webhook")
        for verb in ("get", "update")
    ),
    *(wish(verb, ADMISSION, kind, name=EGRESS_CONTROLLER) for verb in ("get", "patch") for kind in WEBHOOK_KINDS),
    *(wish(verb, "", kind) for verb in ("get", "list", "watch") for kind in ("nodes", "namespaces")),
    *(wish(verb, "", "pods") for verb in ("list", "watch")),
    *(wish(verb, EIP, kind) for verb in ("list", "watch") for kind in EIP_KINDS),
    wish("get", EIP, "egressgateways"),
    *(wish(verb, EIP, kind) for verb in ("create", "delete") for kind in ("egresstunnels", "egressendpointslices")),
    wish("update", EIP, "egressendpointslices"),
    *(wish("update", EIP, f"{kind}/status") for kind in PEOPLES_EIP_KINDS),
    wish("patch", EIP, "egresstunnels/status"),
    wish("update", EIP, "egressgatewaypolicies/finalizers"),
    *(
        wish(verb, LEASES, "leases", namespace=EIP_LEASES, name="coil-eip-n1")
        for verb in ("get", "list", "watch", "create", "update")
    ),
    wish("create", "authorization.k8s.io", "subjectaccessreviews"),
]
EGRESS_CONTROLLER_MAY_NOT = [
    *(wish(verb, COIL, "egresses") for verb in ("create", "update", "patch", "delete")),
    *(
        wish(verb, group, resource)
        for verb in ("patch", "delete")
        for group, resource in (("apps", "deployments"), ("", "services"))
    ),
    *(wish(verb, "", "serviceaccounts", namespace="default", name="default") for verb in ("delete", "update", "patch")),
    wish("create", "", "serviceaccounts/token", namespace="default", name="coil-egress"),
    *(wish(verb, RBAC, "clusterrolebindings") for verb in ("list", "create", "patch", "delete")),
    wish("patch", RBAC, "clusterrolebindings", name="cluster-admin"),
    wish("bind", RBAC, "clusterroles", name="cluster-admin"),
    *(wish(verb, RBAC, "clusterroles", name="coil-egress") for verb in ("update", "patch", "escalate")),
    *(wish(verb, "", "pods") for verb in ("create", "update", "patch", "delete")),
    wish("get", "", "pods", namespace="default"),
    *(wish(verb, "", kind) for verb in ("update", "patch", "delete") for kind in ("nodes", "namespaces")),
    *(wish(verb, EIP, kind) for verb in ("create", "update", "patch", "delete") for kind in PEOPLES_EIP_KINDS),
    *(wish("get", EIP, kind) for kind in EIP_KINDS if kind != "egressgateways"),
    *(wish(verb, "", "secrets") for verb in ("get", "list", "create")),
    wish("get", "", "secrets", namespace="kube-system", name=WEBHOOK_SECRET),
    *(wish(verb, ADMISSION, kind, name=LEASE) for verb in ("get", "patch") for kind in WEBHOOK_KINDS),
    *(wish(verb, LEASES, "leases", namespace="default") for verb in ("get", "list", "create", "update")),
    *(
        wish(verb, LEASES, "leases", namespace="kube-system", name="kube-scheduler")
        for verb in ("get", "list", "watch", "update", "patch", "delete")
    ),
    *(wish(verb, LEASES, "leases", namespace=EIP_LEASES, name="coil-eip-n1") for verb in ("patch", "delete")),
]

EGRESS_NODE_MAY = [
    *(wish(verb, EIP, kind) for verb in ("list", "watch") for kind in EIP_KINDS),
    wish("patch", EIP, "egresstunnels/status"),
    *(wish(verb, "", "nodes") for verb in ("list", "watch")),
    *(wish(verb, COIL, "addresspools") for verb in ("list", "watch")),
    *(wish(verb, LEASES, "leases", namespace=EIP_LEASES, name="coil-eip-n1") for verb in ("get", "create", "update")),
]
EGRESS_NODE_MAY_NOT = [
    *(wish(verb, EIP, kind) for verb in ("create", "update", "patch", "delete") for kind in EIP_KINDS),
    *(wish(verb, EIP, f"{kind}/status") for verb in ("update", "patch") for kind in PEOPLES_EIP_KINDS),
    *(wish(verb, "", "nodes") for verb in ("create", "update", "patch", "delete")),
    wish("patch", "", "nodes/status"),
    *(wish(verb, "", kind) for verb in ("get", "list", "watch") for kind in ("pods", "services", "secrets")),
    *(wish(verb, "", "namespaces") for verb in ("list", "watch")),
    *(wish(verb, LEASES, "leases", namespace=EIP_LEASES) for verb in ("list", "watch", "patch", "delete")),
    # Neither the election of Coil's own controllers nor anybody else's is its business.
    *(
        wish(verb, LEASES, "leases", namespace=namespace, name=name)
        for verb in ("get", "list", "watch", "create", "update", "patch", "delete")
        for namespace, name in (
            *(("kube-system", name) for name in ("kube-scheduler", EGRESS_CONTROLLER, "coil-eip-n1")),
            *(("kube-node-lease", "n1"), ("default", "coil-eip-n1")),
        )
    ),
    *(wish(verb, COIL, "addresspools") for verb in ("create", "patch", "delete")),
    wish("create", "authorization.k8s.io", "subjectaccessreviews"),
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
    may: list[Wish],
    may_not: list[Wish],
) -> None:
    allowed = answers(plane, account, *may, *may_not)
    assert [item for item, answer in zip(may, allowed, strict=False) if not answer] == [], "too narrow"
    assert [item for item, answer in zip(may_not, allowed[len(may) :], strict=True) if answer] == [], "too wide"
