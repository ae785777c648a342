"""Whoever has the tokens of one node's programs changes nothing of another node: every account, kind and way to write.

Real calls with tokens that are bound to pods of a node. The control is the same call about an object of that node: it
is let in exactly where the program has to make it.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import pytest

from coil.crd.address_pool import ADDRESS_POOLS
from coil.crd.block_request import BLOCK_REQUESTS
from coil.crd.builtin import NODES, PODS
from coil.crd.egress import EGRESSES
from coil.crd.egress_cluster_info import EGRESS_CLUSTER_INFOS
from coil.crd.egress_gateway import EGRESS_GATEWAYS
from coil.crd.egress_gateway_policy import EGRESS_ENDPOINT_SLICES, EGRESS_GATEWAY_POLICIES
from coil.crd.egress_policy import EGRESS_CLUSTER_POLICIES, EGRESS_POLICIES
from coil.crd.egress_tunnel import EGRESS_TUNNELS
from coil.crd.node_condition import ADDRESSES_AVAILABLE
from coil.crd.resource import Resource
from coil.kube.lease_lock import LEASES
from integration.apiserver.node_pair import ACCOUNTS, HERE, THERE, open_node_pair, pod_document
from integration.apiserver.test_own_objects import KINDS
from integration.cluster.control_plane import ControlPlane
from integration.cluster.https import Endpoint
from integration.deployment import EIP_KINDS, apply, apply_eni_access, bind_router_pods
from integration.deployment import KINDS as COIL_KINDS
from integration.patience import wait_until
from tests.coil.crd.eip_object import gateway_document, policy_document

pytestmark = pytest.mark.apiserver

Document: TypeAlias = Mapping[str, Any]

ROUTERS: Final = "coil-egress"
"""The account of router pods, which run on nodes, too, but in tenants' namespaces."""
NAMESPACE: Final = "default"
MARK: Final = {"metadata": {"labels": {"example.com/marked": "yes"}}}
METHODS: Final = {"create": "POST", "update": "PUT", "patch": "PATCH", "delete": "DELETE", "deletecollection": "DELETE"}
ON_STATUS: Final = ("update status", "patch status")
REFUSED: Final = 403


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A kind, and the object of a node, or one that is named after it. `change` is a merge patch, as `writers` make it
    if there are any: operations by the account that has to be able to do them.
    """

    resource: Resource[Any]
    make: Callable[[str], Document]
    namespace: str = ""
    change: Document
    has_status: bool = True
    status: Document | None = None
    writers: Mapping[str, frozenset[str]]

    def __str__(self) -> str:
        return self.resource.plural

    def name(self, node: str) -> str:
        name: str = self.make(node)["metadata"]["name"]
        return name

    @property
    def operations(self) -> tuple[str, ...]:
        return (*METHODS, *ON_STATUS) if self.has_status else tuple(METHODS)


def _named(resource: Resource[Any], *, has_status: bool = True, **fields: Any) -> Target:
    """What belongs to no node; the programs on nodes write none of it."""
    return Target(
        resource=resource,
        make=lambda node: {"metadata": {"name": f"named-after-{node}"}, **fields},
        namespace=NAMESPACE if resource.namespaced else "",
        change=MARK,
        has_status=has_status,
        writers={},
    )


def _of_nodes() -> Iterator[Target]:
    """The kinds of which programs write the objects of their own node."""
    for kind in KINDS:
        change = "update" if kind.resource is LEASES else f"patch {kind.subresource}".strip()
        may = {"create": kind.creates, change: kind.changes, "delete": kind.deletes}
        yield Target(
            resource=kind.resource,
            make=kind.make,
            namespace=kind.namespace,
            change=kind.change or MARK,
            has_status=kind.resource in {BLOCK_REQUESTS, EGRESS_TUNNELS},
            status=kind.status or None,
            writers={kind.account: frozenset(operation for operation, allowed in may.items() if allowed)},
        )


def _node(node: str) -> Document:
    return {"metadata": {"name": node}}


def _pod(node: str) -> Document:
    return pod_document(ROUTERS, node, name=f"pod-of-{node}", namespace=NAMESPACE)


CONDITION: Final = {"type": ADDRESSES_AVAILABLE, "status": "False", "reason": "Tried", "message": "tried"}
TARGETS: Final = (
    *_of_nodes(),
    Target(
        resource=NODES,
        make=_node,
        change={"status": {"conditions": [CONDITION]}},
        writers={"coild": frozenset({"patch status"})},
    ),
    Target(resource=PODS, make=_pod, namespace=NAMESPACE, change=MARK, writers={}),
    _named(ADDRESS_POOLS, spec={"blockSizeBits": 0, "subnets": [{"ipv4": "10.9.0.0/24"}]}),
    _named(EGRESSES, spec={"destinations": ["10.9.0.0/24"]}),
    _named(EGRESS_GATEWAYS, spec=gateway_document()["spec"]),
    _named(EGRESS_GATEWAY_POLICIES, spec=policy_document()["spec"]),
    _named(EGRESS_ENDPOINT_SLICES, has_status=False),
    _named(EGRESS_POLICIES, spec=policy_document()["spec"]),
    _named(EGRESS_CLUSTER_POLICIES, spec=policy_document()["spec"]),
    _named(EGRESS_CLUSTER_INFOS, spec={}),
)


@dataclass(frozen=True, slots=True)
class Site:
    """An API server that is going to enforce the policies, an object of each of the two nodes for every target, and the
    accounts of the programs on `HERE`, with the tokens of their pods.
    """

    plane: ControlPlane
    accounts: Mapping[str, Endpoint]

    def path(self, target: Target, node: str = "", subresource: str = "") -> str:
        name = target.name(node) if node else ""
        return target.resource.path(namespace=target.namespace, name=name, subresource=subresource)

    def write(self, account: str, operation: str, target: Target, node: str, *, pretend: bool) -> tuple[int, str]:
        """Status and answer. In pretence everything is judged as ever, and nothing stored."""
        verb, _, subresource = operation.partition(" ")
        whole = verb in {"create", "deletecollection"}
        body: Document | None = None
        if verb == "create":
            body = document(target, node)
        elif verb == "update":
            stored = self.plane.read(self.path(target, node))
            body = {**stored, "metadata": {**stored["metadata"], **MARK["metadata"]}}
        elif verb == "patch":
            body = target.change
        path = self.path(target, "" if whole else node, subresource) + ("?dryRun=All" if pretend else "")
        sent = json.dumps(body).encode() if body is not None else None
        status, answer = self.accounts[account].request(METHODS[verb], path, sent)
        return status, answer.decode(errors="replace")

    def refused(self, account: str, target: Target, node: str) -> dict[str, bool]:
        """By operation, in pretence."""
        answers = {each: self.write(account, each, target, node, pretend=True) for each in target.operations}
        # What exists already was let in as well.
        assert {status for status, _ in answers.values()} <= {REFUSED, 200, 201, 409}, answers
        return {operation: status == REFUSED for operation, (status, _) in answers.items()}

    def add(self, target: Target, node: str) -> None:
        apply(self.plane, document(target, node))
        if target.status is not None:
            patch = json.dumps(target.status).encode()
            status, answer = self.plane.request("PATCH", self.path(target, node, "status"), patch)
            assert status == 200, answer

    def remove(self, target: Target, node: str) -> None:
        path = self.path(target, node)
        self.plane.request("PATCH", path, b'{"metadata": {"finalizers": null}}')
        self.plane.request("DELETE", f"{path}?gracePeriodSeconds=0")


def document(target: Target, node: str) -> dict[str, Any]:
    made = target.make(node)
    metadata = {**made["metadata"], **({"namespace": target.namespace} if target.namespace else {})}
    return {"apiVersion": target.resource.api_version, "kind": target.resource.kind, **made, "metadata": metadata}


@pytest.fixture(scope="module")
def site(plane: ControlPlane) -> Iterator[Site]:
    apply_eni_access(plane)
    account = {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": {"name": ROUTERS, "namespace": NAMESPACE},
    }
    with open_node_pair(plane) as pair:
        site = Site(plane, accounts := {each: pair.endpoint_of(HERE, each) for each in ACCOUNTS})
        objects = [(target, node) for target in TARGETS if target.resource is not NODES for node in (HERE, THERE)]
        try:
            apply(plane, account)
            bind_router_pods(plane, NAMESPACE)
            for target, node in objects:
                site.add(target, node)
            [pods] = (target for target in TARGETS if target.resource is PODS)
            accounts[ROUTERS] = plane.endpoint_for(ROUTERS, NAMESPACE, pod=pods.name(HERE))
            yield site
        finally:
            for target, node in objects:
                site.remove(target, node)
            plane.kubectl("delete", f"rolebinding/{ROUTERS}", f"serviceaccount/{ROUTERS}", "--ignore-not-found")


def test_every_kind_of_the_project_is_tried() -> None:
    assert {*COIL_KINDS, *EIP_KINDS} <= {target.resource.plural for target in TARGETS}


@pytest.mark.parametrize("target", TARGETS, ids=str)
@pytest.mark.parametrize("account", [*ACCOUNTS, ROUTERS])
def test_nothing_of_another_node_can_be_changed(site: Site, account: str, target: Target) -> None:
    # Until a policy is enforced, the role alone decides.
    wait_until(
        lambda: set(site.refused(account, target, THERE).values()) == {True}, what=f"{account} is refused {target}"
    )
    before = site.plane.read(site.path(target, THERE))
    for operation in target.operations:
        status, answer = site.write(account, operation, target, THERE, pretend=False)
        assert status == REFUSED, f"{operation}: {answer}"
    assert site.plane.read(site.path(target, THERE)) == before


@pytest.mark.parametrize("target", TARGETS, ids=str)
@pytest.mark.parametrize("account", [*ACCOUNTS, ROUTERS])
def test_of_its_own_node_only_what_it_has_to_write(site: Site, account: str, target: Target) -> None:
    """The control: the same calls, which are let in where the program makes them."""
    writes = target.writers.get(account, frozenset())

    def is_as_wanted() -> bool:
        refused = site.refused(account, target, HERE)
        return {operation for operation, is_refused in refused.items() if not is_refused} == writes

    wait_until(is_as_wanted, what=f"{account} may {', '.join(sorted(writes)) or 'nothing'} of {target}, and no more")
