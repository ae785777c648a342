"""Services without a kube-proxy: their addresses are load balancers of a real Octavia, and floating IPs of a real
Neutron, judged by what pods and a host outside the cluster get for an answer.
"""

import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Final

import pytest

from integration.cluster.control_plane import KubectlError
from integration.cluster.network import NetworkError, run_command
from integration.demo.inventory import PodRow
from integration.demo.reach import TRY_FETCH
from integration.demo.workload import PORT
from integration.deployment import apply
from integration.neutron_nodes.test_pods import BLUE, READY_SECONDS, RED, deployed, is_answered, rows_of
from integration.neutron_nodes.world import NeutronNodes
from integration.patience import wait_until

pytestmark = pytest.mark.cluster

SERVICE: Final = "shop"
ASKED: Final = 8
"""How often a Service is asked: as often as it has pods, twice."""


@contextmanager
def served(nodes: NeutronNodes, **spec: Any) -> Iterator[None]:
    """A Service in front of the servers of the namespace RED; it is gone in the end."""
    document = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": SERVICE, "namespace": RED},
        "spec": {
            "selector": {"app": "web"},
            "ports": [{"name": "http", "port": 80, "targetPort": PORT}],
            "ipFamilyPolicy": "RequireDualStack",
            **spec,
        },
    }
    apply(nodes.plane, document)
    try:
        yield
    finally:
        nodes.plane.kubectl(f"--namespace={RED}", "delete", "service", SERVICE, f"--timeout={READY_SECONDS}s")


def service(nodes: NeutronNodes) -> dict[str, Any]:
    return nodes.read("service", SERVICE, f"--namespace={RED}")


def at(address: str, port: int = 80) -> str:
    host = f"[{address}]" if ":" in address else address
    return f"http://{host}:{port}/name"


def who_answers(nodes: NeutronNodes, client: PodRow, address: str, *, port: int = 80, times: int = ASKED) -> set[str]:
    """The names of the pods that have answered; "" for no answer."""
    fetch = shlex.join([*TRY_FETCH, at(address, port)])
    script = "; ".join([f'echo "$({fetch})"'] * times)
    place = f"--namespace={client.namespace}"
    printed = nodes.plane.kubectl("exec", place, client.name, "--", "busybox", "sh", "-c", script)
    return {line.strip() for line in printed.split("\n")[:times]}


def wait_for(nodes: NeutronNodes, client: PodRow, address: str, names: set[str], *, port: int = 80) -> None:
    """Return when these pods answer there, and no others."""
    wait_until(
        lambda: who_answers(nodes, client, address, port=port) == names, what=f"answers of {names} at {address} {port}"
    )


def is_answered_outside(nodes: NeutronNodes, address: str) -> bool:
    """Whether a host that is no part of the cluster gets an answer there."""
    try:
        run_command([*nodes.cluster.network.fabric.entrance, *TRY_FETCH, at(address)])
    except NetworkError:
        return False
    return True


def test_a_service_answers_every_pod_and_follows_its_pods(nodes: NeutronNodes) -> None:
    nodes.wait_idle()
    before = nodes.octavia.snapshot()
    with deployed(nodes, RED, BLUE):
        red, blue = rows_of(nodes, RED), rows_of(nodes, BLUE)
        names = {pod.name for pod in red}
        place = f"--namespace={RED}"
        with served(nodes):
            cluster_ips = service(nodes)["spec"]["clusterIPs"]
            assert len(cluster_ips) == 2
            for address in cluster_ips:
                wait_for(nodes, red[0], address, names)
            for client in (*red, *blue):
                for address in cluster_ips:
                    wait_for(nodes, client, address, names)

            # A pod that is not ready is asked no more.
            nodes.plane.kubectl("exec", place, red[0].name, "--", "busybox", "mv", "/www/name", "/www/gone")
            rest = names - {red[0].name}
            for address in cluster_ips:
                wait_for(nodes, blue[0], address, rest)
            nodes.plane.kubectl("exec", place, red[0].name, "--", "busybox", "mv", "/www/gone", "/www/name")
            for address in cluster_ips:
                wait_for(nodes, blue[0], address, names)

            # Another port, in place of the first.
            patch = '{"spec": {"ports": [{"name": "http", "port": 81, "targetPort": 8080}]}}'
            nodes.plane.kubectl(place, "patch", "service", SERVICE, "--type=merge", f"--patch={patch}")
            for address in cluster_ips:
                wait_for(nodes, blue[0], address, names, port=81)
                wait_for(nodes, blue[0], address, {""})

            # None at all: refused, and not left waiting.
            nodes.plane.kubectl(place, "scale", "deployment", "web", "--replicas=0")
            for address in cluster_ips:
                wait_until(partial(is_refused, nodes, blue[0], address, 81), what=f"a refusal by {address}")
    wait_until(lambda: nodes.octavia.snapshot() == before, what="Octavia is as it was before", timeout=READY_SECONDS)


def is_refused(nodes: NeutronNodes, client: PodRow, address: str, port: int) -> bool:
    """Whether the client is told at once that nobody serves there."""
    place = f"--namespace={client.namespace}"
    script = f"{shlex.join([*TRY_FETCH, at(address, port)])} 2>&1 || true"
    return "refused" in nodes.plane.kubectl("exec", place, client.name, "--", "busybox", "sh", "-c", script)


def test_a_service_of_type_load_balancer_answers_outside(nodes: NeutronNodes) -> None:
    nodes.wait_idle()
    before = nodes.neutron.snapshot()
    with deployed(nodes, RED):
        with served(nodes, type="LoadBalancer"):

            def ingress() -> list[str]:
                return [each["ip"] for each in service(nodes)["status"]["loadBalancer"].get("ingress", [])]

            wait_until(lambda: len(ingress()) == 1, what="the floating IP in the status")
            [address] = ingress()
            wait_until(lambda: is_answered_outside(nodes, address), what="an answer on the floating IP")
            pods = rows_of(nodes, RED)
            # From inside as well.
            wait_for(nodes, pods[0], address, {pod.name for pod in pods})
        wait_until(lambda: not is_answered_outside(nodes, address), what="no answer on the floating IP any more")
    wait_until(lambda: nodes.neutron.snapshot() == before, what="Neutron is as it was before", timeout=READY_SECONDS)


def test_pods_reach_the_api_server_by_its_service(nodes: NeutronNodes) -> None:
    address = nodes.read("service", "kubernetes")["spec"]["clusterIP"]
    with deployed(nodes, RED):
        pod = rows_of(nodes, RED)[0]
        script = f"busybox nc -w 3 {address} 443 </dev/null && echo connected"

        def connects() -> bool:
            try:
                said = nodes.plane.kubectl("exec", f"--namespace={RED}", pod.name, "--", "busybox", "sh", "-c", script)
            except KubectlError:
                return False
            return "connected" in said

        wait_until(connects, what="a connection to the API server")
        assert not is_answered(nodes, pod, str(nodes.cluster.nodes[0].ipv4))


def test_isolated_namespaces_are_reached_by_their_services_only(nodes: NeutronNodes) -> None:
    with deployed(nodes, RED, BLUE), served(nodes):
        red, blue = rows_of(nodes, RED), rows_of(nodes, BLUE)
        names = {pod.name for pod in red}
        [cluster_ip, _] = service(nodes)["spec"]["clusterIPs"]
        for address in red[0].addresses:
            wait_until(partial(is_answered, nodes, blue[0], address), what="an answer")
        nodes.release.upgrade({"raven.isolateNamespaces": True})
        try:
            nodes.release.wait_rolled_out()
            for address in red[0].addresses:
                wait_until(
                    partial(is_shut_out, nodes, blue[0], address),
                    what="the wall between namespaces",
                    timeout=READY_SECONDS,
                )
                wait_until(partial(is_answered, nodes, red[1], address), what="an answer within the namespace")
            wait_for(nodes, blue[0], cluster_ip, names)
        finally:
            nodes.release.upgrade({})
            nodes.release.wait_rolled_out("deployment/coil-raven")
        for address in red[0].addresses:
            wait_until(partial(is_answered, nodes, blue[0], address), what="no wall any more", timeout=READY_SECONDS)


def is_shut_out(nodes: NeutronNodes, client: PodRow, address: str) -> bool:
    return not is_answered(nodes, client, address)
