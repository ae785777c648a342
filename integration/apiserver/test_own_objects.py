"""The programs on a node write the objects of their own node only: the chart's policies, with bound tokens.

Each account tries what its role allows on every kind, with the token of another node's pod and with one of no pod.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeAlias

import pytest

from coil.crd.address_block import ADDRESS_BLOCKS
from coil.crd.block_request import BLOCK_REQUESTS
from coil.crd.egress_client_slice import EGRESS_CLIENT_SLICES
from coil.crd.egress_tunnel import EGRESS_TUNNELS
from coil.crd.names import LABEL_EGRESS, LABEL_NODE, LABEL_POOL
from coil.crd.resource import Resource
from coil.eip.gateway_lease import lease_name
from coil.kube.client import KubeClient
from coil.kube.errors import ApiError, NotFoundError
from coil.kube.lease_lock import LEASES
from coil.runtime.settings import EIP_LEASE_NAMESPACE
from integration.apiserver.node_pair import HERE, THERE, NodePair, open_node_pair
from integration.cluster.control_plane import ControlPlane
from integration.patience import wait_until

pytestmark = pytest.mark.apiserver

Document: TypeAlias = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A kind of which each node has objects, and what the account on the node does with its own.

    `make` gives the object of a node, `change` a merge patch of it that the account has to be able to make, and `theft`
    one by which another node's object would be the writer's.
    """

    account: str
    resource: Resource[Any]
    make: Callable[[str], Document]
    change: Document
    theft: Document | None = None
    namespace: str = ""
    subresource: str = ""
    creates: bool = True
    changes: bool = True
    deletes: bool = True
    status: Document = field(default_factory=dict)

    def __str__(self) -> str:
        return self.resource.plural

    @property
    def refusal(self) -> str:
        return f"{self.account} may write the {self.resource.kind}s of its own node only"

    def name(self, node: str) -> str:
        name: str = self.make(node)["metadata"]["name"]
        return name


def _slice(node: str) -> Document:
    return {
        "metadata": {"name": f"slice-of-{node}", "labels": {LABEL_EGRESS: "own-objects"}},
        "nodeName": node,
        "addresses": ["10.1.0.7"],
    }


def _block(node: str) -> Document:
    labels = {LABEL_NODE: node, LABEL_POOL: "own-objects"}
    return {
        "metadata": {"name": f"block-of-{node}", "labels": labels, "finalizers": ["example.com/held"]},
        "index": 0,
        "ipv4": "10.1.0.0/27",
    }


def _request(node: str) -> Document:
    return {"metadata": {"name": f"request-of-{node}"}, "spec": {"nodeName": node, "poolName": "own-objects"}}


def _tunnel(node: str) -> Document:
    return {"metadata": {"name": node}}


def _lease(node: str) -> Document:
    return {"metadata": {"name": lease_name(node)}, "spec": {"holderIdentity": node, "leaseTransitions": 1}}  # type: ignore[arg-type]


GIVEN: Final = {
    "mark": "0x26000100",
    "nodeAddresses": ["192.0.2.1"],
    "podCIDRs": ["10.1.0.0/24"],
    "tunnel": {"ipv4": "172.31.0.1", "ipv6": "fd11::1", "mac": "02:00:00:00:00:01"},
}
"""What the controller writes in the status of an EgressTunnel."""

SLICES: Final = Kind(
    account="coild",
    resource=EGRESS_CLIENT_SLICES,
    make=_slice,
    change={"addresses": ["10.1.0.8"]},
    theft={"nodeName": HERE},
    namespace="default",
)
BLOCKS: Final = Kind(
    account="coild",
    resource=ADDRESS_BLOCKS,
    make=_block,
    change={"metadata": {"finalizers": []}},
    theft={"metadata": {"labels": {LABEL_NODE: HERE}}},
    creates=False,
)
REQUESTS: Final = Kind(account="coild", resource=BLOCK_REQUESTS, make=_request, change={}, changes=False)
TUNNELS: Final = Kind(
    account="coil-egress-node",
    resource=EGRESS_TUNNELS,
    make=_tunnel,
    change={
        "status": {
            "phase": "Ready",
            "tunnel": {"publicKey": f"{'a' * 42}A=", "parent": {"name": "eth0", "ipv4": "192.0.2.1/24"}},
        }
    },
    subresource="status",
    creates=False,
    deletes=False,
    status={"status": GIVEN},
)
LEASES_OF_NODES: Final = Kind(
    account="coil-egress-node",
    resource=LEASES,
    make=_lease,
    change={},
    namespace=EIP_LEASE_NAMESPACE,
    deletes=False,
)
KINDS: Final = (SLICES, BLOCKS, REQUESTS, TUNNELS, LEASES_OF_NODES)


def _call(kubeconfig: Path, work: Callable[[KubeClient], Awaitable[object]]) -> None:
    """Raises ApiError."""

    async def run() -> None:
        async with KubeClient.connect(kubeconfig) as client:
            await work(client)

    asyncio.run(run())


@dataclass(frozen=True, slots=True)
class Stage:
    """An object of each of the two nodes, of one kind."""

    pair: NodePair
    kind: Kind

    @property
    def admin(self) -> Path:
        return self.pair.plane.admin_kubeconfig

    @property
    def own(self) -> Path:
        return self.pair.token_of(HERE, self.kind.account)

    @property
    def strangers(self) -> tuple[Path, Path]:
        """Another node's token and nobody's, for the object of `THERE`."""
        return self.own, self.pair.plane.kubeconfig_for(self.kind.account)

    def create(self, node: str, token: Path) -> None:
        kind = self.kind
        _call(token, lambda client: client.create(kind.resource, kind.make(node), namespace=kind.namespace))

    def change(self, node: str, token: Path) -> None:
        """As the account has to be able to."""
        kind = self.kind
        if kind is not LEASES_OF_NODES:  # agents replace these
            self.patch(node, kind.change, token)
            return
        name = kind.name(node)
        body = self.pair.plane.read(kind.resource.path(namespace=kind.namespace, name=name))
        _call(token, lambda client: client.replace(kind.resource, body, name=name, namespace=kind.namespace))

    def patch(self, node: str, patch: Document, token: Path) -> None:
        kind, name = self.kind, self.kind.name(node)
        where = {"namespace": kind.namespace, "subresource": kind.subresource}
        _call(token, lambda client: client.patch(kind.resource, name, patch, **where))

    def delete(self, node: str, token: Path) -> None:
        kind, name = self.kind, self.kind.name(node)
        _call(token, lambda client: client.delete(kind.resource, name, namespace=kind.namespace))

    def read(self, node: str) -> dict[str, Any]:
        """The object, as far as its writers say what is in it."""
        kind = self.kind
        found = self.pair.plane.read(kind.resource.path(namespace=kind.namespace, name=kind.name(node)))
        metadata = {key: found["metadata"].get(key) for key in ("name", "labels", "finalizers", "deletionTimestamp")}
        return {**found, "metadata": metadata}


@pytest.fixture(scope="module")
def pair(plane: ControlPlane) -> Iterator[NodePair]:
    with open_node_pair(plane) as pair:
        yield pair


@pytest.fixture(params=KINDS, ids=str)
def stage(pair: NodePair, request: pytest.FixtureRequest) -> Iterator[Stage]:
    kind: Kind = request.param
    stage = Stage(pair, kind)

    def is_enforced() -> bool:
        # Until the policy is, a change of nothing succeeds.
        try:
            stage.change(THERE, stage.own)
        except ApiError as error:
            return kind.refusal in str(error)
        return False

    try:
        for node in (HERE, THERE):
            stage.create(node, stage.admin)
            if kind.status:
                stage.patch(node, kind.status, stage.admin)
        if kind.changes:
            wait_until(is_enforced, what="the API server enforces the policy")
        yield stage
    finally:
        for node in (HERE, THERE):
            with suppress(NotFoundError):
                stage.patch(node, {"metadata": {"finalizers": None}}, stage.admin)
                stage.delete(node, stage.admin)


def test_the_objects_of_its_own_node_it_may_write(stage: Stage) -> None:
    kind = stage.kind
    if kind.changes:
        stage.change(HERE, stage.own)
    if kind.deletes:
        stage.delete(HERE, stage.own)
    if kind.creates:
        if not kind.deletes:
            stage.delete(HERE, stage.admin)
        stage.create(HERE, stage.own)
        assert stage.read(HERE)


def test_those_of_another_node_it_may_not(stage: Stage) -> None:
    kind = stage.kind
    before = stage.read(THERE)
    for token in stage.strangers:
        if kind.changes:
            with pytest.raises(ApiError, match=kind.refusal):
                stage.change(THERE, token)
        if kind.theft is not None:
            with pytest.raises(ApiError, match=f"{kind.refusal}|must not change"):
                stage.patch(THERE, kind.theft, token)
        if kind.deletes:
            with pytest.raises(ApiError, match=kind.refusal):
                stage.delete(THERE, token)
        assert stage.read(THERE) == before
    if kind.creates:
        stage.delete(THERE, stage.admin)
        for token in stage.strangers:
            with pytest.raises(ApiError, match=kind.refusal):
                stage.create(THERE, token)


@pytest.mark.parametrize(
    ("stage", "forgery"),
    [
        (BLOCKS, {"ipv4": "0.0.0.0/1"}),
        (BLOCKS, {"ipv6": "::/1"}),
        (BLOCKS, {"index": 7}),
        (BLOCKS, {"metadata": {"labels": {LABEL_POOL: "another"}}}),
        (BLOCKS, {"metadata": {"annotations": {"example.com/trusted": "true"}}}),
        (TUNNELS, {"status": {"nodeAddresses": ["192.0.2.66"]}}),
        (TUNNELS, {"status": {"podCIDRs": ["0.0.0.0/1"]}}),
        (TUNNELS, {"status": {"mark": "0x26000200"}}),
        (TUNNELS, {"status": {"tunnel": {"ipv4": "172.31.0.2"}}}),
        (TUNNELS, {"status": {"tunnel": {"ipv6": "fd11::2"}}}),
        (TUNNELS, {"status": {"tunnel": {"mac": "02:00:00:00:00:02"}}}),
    ],
    indirect=["stage"],
    ids=str,
)
def test_what_it_was_given_it_may_not_change(stage: Stage, forgery: Document) -> None:
    before = stage.read(HERE)
    with pytest.raises(ApiError, match=f"{stage.kind.account} may change only|must not change"):
        stage.patch(HERE, forgery, stage.own)
    assert stage.read(HERE) == before
