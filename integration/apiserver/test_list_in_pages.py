"""Where the API server does not stream lists, each program lists in pages whatever it follows, and then watches it.

Elsewhere nobody notices that a program may not list: it does so only after a stream that broke off.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from ipaddress import IPv4Address

import pytest

from integration.apiserver.bare_node import BareNode
from integration.cluster.address import free_port
from integration.cluster.control_plane import ControlPlane
from integration.cluster.network import Network
from integration.cluster.process import Process
from integration.cluster.workspace import Workspace
from integration.deployment import (
    CLUSTER_NETWORKS_FLAG,
    apply,
    apply_chart,
    bind_router_pods,
    egress_agent_command,
    egress_controller_command,
    grant_node_list,
    ipam_controller_command,
)
from integration.metrics_page import await_followed, fetch_here

pytestmark = pytest.mark.apiserver

LOCALHOST = IPv4Address("127.0.0.1")
ROUTERS = "internet"
COILD_METRICS, ROUTER_METRICS, NODE_AGENT_METRICS = 9384, 8080, 9398
STOP_TIMEOUT = 60.0

SOURCES = {"egresspolicies", "egressclusterpolicies", "egressclusterinfos"}
EIP = {"egresstunnels", "egressgateways", "egressgatewaypolicies", "egressendpointslices"}


@pytest.fixture(scope="module")
def paged() -> Iterator[ControlPlane]:
    """With the chart, without the feature, and at an address that nodes reach."""
    with Workspace.create() as workspace:
        plane = ControlPlane.start(
            workspace=workspace,
            address=Network.create(workspace).host4,
            apiserver_flags=["--feature-gates=WatchList=false"],
        )
        apply_chart(plane)
        grant_node_list(plane)
        yield plane


@pytest.fixture(scope="module")
def node(paged: ControlPlane) -> Iterator[BareNode]:
    with BareNode.up(paged) as node:
        yield node


@contextmanager
def running(process: Process) -> Iterator[None]:
    try:
        yield
    finally:
        process.stop(timeout=STOP_TIMEOUT)


def test_coild(node: BareNode) -> None:
    pools = {"addressblocks", "blockrequests", "namespaces"}
    egress = {"egresses", "egressclientslices", "endpointslices", "pods", "services"}
    routes = {"addressblocks-of-all-nodes", "addresspools", "nodes"}
    coild = node.start_coild("--route-sync", CLUSTER_NETWORKS_FLAG)
    with running(coild.process):
        await_followed(partial(node.fetch, COILD_METRICS, "/metrics"), pools | egress | routes | {"configmaps"})


def test_the_ipam_controller(paged: ControlPlane) -> None:
    metrics = free_port(LOCALHOST, 9386)
    command = ipam_controller_command(paged, ports=(metrics, free_port(LOCALHOST, metrics + 1)))
    with running(paged.workspace.spawn("paged-ipam-controller", command)):
        networks = {"nodes", "servicecidrs", "services"}
        await_followed(partial(fetch_here, metrics), {"addresspools", "addressblocks", "blockrequests"} | networks)


def test_the_egress_controller(paged: ControlPlane) -> None:
    metrics = free_port(LOCALHOST, 9396)
    ports = (metrics, free_port(LOCALHOST, metrics + 1))
    command = egress_controller_command(
        paged, ports=ports, image="example.invalid/coil:test", flags=[CLUSTER_NETWORKS_FLAG, "--enable-egress-policies"]
    )
    routers = {"egresses", "deployments", "services", "poddisruptionbudgets"}
    accounts = {"serviceaccounts", "rolebindings", "clusterrolebindings"}
    clients = {"egress-clients", "egressclientslices"}
    gateways = {"nodes", "namespaces", "pods", "leases"} | EIP | SOURCES
    networks = {"addresspools", "servicecidrs", "apiserver-service", "configmaps"}
    networks |= {"kubeadm-config", "kube-proxy-config", "cilium-config"}
    with running(paged.workspace.spawn("paged-egress-controller", command)):
        await_followed(partial(fetch_here, metrics), routers | accounts | clients | gateways | networks)


def test_the_agent_of_a_router_pod(node: BareNode) -> None:
    node.make_namespace(ROUTERS)
    account = {"name": "coil-egress", "namespace": ROUTERS}
    apply(node.plane, {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": account})
    bind_router_pods(node.plane, ROUTERS)
    environment = {
        "COIL_POD_NAMESPACE": ROUTERS,
        "COIL_EGRESS_NAME": "nat",
        "COIL_POD_ADDRESSES": f"{node.ipv4},{node.ipv6}",
    }
    agent = node.spawn("paged-egress-agent", egress_agent_command(node.plane, namespace=ROUTERS), env=environment)
    with running(agent):
        await_followed(partial(node.fetch, ROUTER_METRICS, "/metrics"), {"egresses", "egressclientslices"})


def test_the_agent_of_a_node(node: BareNode) -> None:
    command = [
        *(sys.executable, "-m", "coil_egress_agent.eip"),
        f"--kubeconfig={node.plane.kubeconfig_for('coil-egress-node')}",
        f"--node-name={node.name}",
        "--cluster-cidr=198.19.0.0/16",
        CLUSTER_NETWORKS_FLAG,
    ]
    with running(node.spawn("paged-eip-agent", command)):
        others = {"nodes", "pods", "addresspools", "configmaps"}
        await_followed(partial(node.fetch, NODE_AGENT_METRICS, "/metrics"), EIP | others)
