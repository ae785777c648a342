"""The egress-controller where the cluster, or its own deployment, is another than usual."""

import os
import secrets
import sys
from collections.abc import Iterator

import pytest

from integration.apiserver.egress_world import NAME, STOP_TIMEOUT, EgressWorld
from integration.cluster.control_plane import ControlPlane
from integration.cluster.family import SERVICES_IPV4
from integration.cluster.process import Process
from integration.deployment import apply, apply_chart
from integration.patience import wait_until

pytestmark = pytest.mark.apiserver


@pytest.fixture
def world(plane: ControlPlane) -> Iterator[EgressWorld]:
    world = EgressWorld(plane)
    yield world
    world.close()


def test_router_pods_have_the_image_of_the_controllers_own_pod(world: EgressWorld) -> None:
    plane, pod = world.plane, f"controller-{secrets.token_hex(3)}"
    containers = [{"name": "proxy", "image": "example.invalid/proxy"}, {"name": NAME, "image": "example.invalid/own:7"}]
    meta = {"name": pod, "namespace": "kube-system"}
    # Nobody here makes tokens, which the API server would wait for.
    spec = {"containers": containers, "automountServiceAccountToken": False}
    plane.kubectl("create", "serviceaccount", "default", "--namespace=kube-system")
    apply(plane, {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec})
    command = [
        *(sys.executable, "-m", "coil_egress_controller", f"--kubeconfig={plane.kubeconfig_for(NAME)}"),
        *("--metrics-addr=127.0.0.1:0", "--health-addr=127.0.0.1:0", f"--webhook-addr={plane.address}:0"),
    ]
    environment = {**os.environ, "COIL_POD_NAMESPACE": "kube-system", "COIL_POD_NAME": pod}
    process: Process = plane.workspace.spawn(f"{world.name}-own", command, env=environment)
    try:
        namespace = world.add_namespace()
        world.apply_egress(namespace)
        deployment = world.await_object("deployment", namespace)
        (container,) = deployment["spec"]["template"]["spec"]["containers"]
        assert container["image"] == "example.invalid/own:7"
    finally:
        process.stop(timeout=STOP_TIMEOUT)
        plane.kubectl("delete", "pod", pod, "--namespace=kube-system", "--force", "--grace-period=0")
        plane.kubectl("delete", "serviceaccount", "default", "--namespace=kube-system")


@pytest.fixture
def single_stack() -> Iterator[ControlPlane]:
    """An API server with one family of Service addresses."""
    with ControlPlane.start(apiserver_flags=[f"--service-cluster-ip-range={SERVICES_IPV4}"]) as plane:
        apply_chart(plane)
        yield plane


def test_a_cluster_of_one_family(single_stack: ControlPlane) -> None:
    world = EgressWorld(single_stack)
    try:
        replica = world.start_replica("--resync-interval=1s")
        namespace = world.add_namespace()
        world.apply_egress(namespace)
        wait_until(lambda: "status" in world.get("egress", namespace), what="the status")
        service = world.await_object("service", namespace)
        assert service["spec"]["clusterIP"].startswith("198.19.")
        assert len(service["spec"].get("clusterIPs", [""])) == 1
        before, compared = world.versions(namespace), replica.resyncs()
        wait_until(lambda: replica.resyncs() >= compared + 4, what="further comparisons")
        assert world.versions(namespace) == before, "a wish that is dropped is no reason to write"
        assert world.missing_rights() == []
    finally:
        world.close()
