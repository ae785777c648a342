"""The account of the agents keeps the Leases of gateway nodes, in a namespace of their own, and touches no others."""

import secrets
from collections.abc import AsyncIterator

import pytest

from coil.crd.meta import ObjectMeta
from coil.crd.names import NodeName
from coil.eip.gateway_lease import lease_name
from coil.kube.client import KubeClient
from coil.kube.errors import ForbiddenError
from coil.kube.lease_lock import LEASES, Lease, LeaseLock, LeaseSpec
from coil.runtime.settings import EIP_LEASE_NAMESPACE
from integration.cluster.control_plane import ControlPlane

pytestmark = pytest.mark.apiserver

ACCOUNT = "coil-egress-node"
HELD = LeaseSpec(holder_identity="me", lease_transitions=1)
RENEWED = LeaseSpec(holder_identity="me", lease_transitions=2)


@pytest.fixture
async def agent(plane: ControlPlane) -> AsyncIterator[KubeClient]:
    """The client of an agent."""
    async with KubeClient.connect(plane.kubeconfig_for(ACCOUNT)) as client:
        yield client


@pytest.fixture
def node() -> NodeName:
    return NodeName(f"n{secrets.token_hex(3)}")


async def test_an_agent_keeps_the_lease_of_its_node(agent: KubeClient, admin: KubeClient, node: NodeName) -> None:
    store = LeaseLock(client=agent, namespace=EIP_LEASE_NAMESPACE, name=lease_name(node))
    name = f"coil-eip-{node}"
    assert await store.read() is None
    made = await store.create(Lease(metadata=ObjectMeta(name=name), spec=HELD))
    await store.replace(Lease(metadata=made.metadata, spec=RENEWED))
    assert (await store.read() or made).spec.lease_transitions == 2
    # It goes with the Node, or never: a term is not to be used twice.
    with pytest.raises(ForbiddenError):
        await agent.delete(LEASES, name, namespace=EIP_LEASE_NAMESPACE)
    await admin.delete(LEASES, name, namespace=EIP_LEASE_NAMESPACE)


@pytest.mark.parametrize("namespace", ["kube-system", "default"])
async def test_an_agent_touches_nobody_elses_lease(
    agent: KubeClient, admin: KubeClient, node: NodeName, namespace: str
) -> None:
    store = LeaseLock(client=agent, namespace=namespace, name=lease_name(node))
    name = f"coil-eip-{node}"
    with pytest.raises(ForbiddenError):
        await store.create(Lease(metadata=ObjectMeta(name=name), spec=HELD))
    there = await admin.create(LEASES, Lease(metadata=ObjectMeta(name=name), spec=HELD), namespace=namespace)
    with pytest.raises(ForbiddenError):
        await store.read()
    with pytest.raises(ForbiddenError):
        await store.replace(Lease(metadata=there.metadata, spec=RENEWED))
    assert await admin.get(LEASES, name, namespace=namespace) == there
    await admin.delete(LEASES, name, namespace=namespace)
