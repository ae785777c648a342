"""Pods that a real kubelet runs on Coil: addresses of each family, who reaches whom, what Kubernetes does with them."""

import platform
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import replace
from ipaddress import ip_address

import pytest

from integration.cluster.control_plane import KubectlError
from integration.cluster.node import NodeCommandError
from integration.demo.inventory import PodRow
from integration.demo.reach import FETCH, TRY_FETCH, url
from integration.demo.workload import PORT, deployment_document, server_container
from integration.nodes.coil_cluster import DEFAULT_POOL, CoilCluster, Families, Room
from integration.nodes.conftest import OpenRoom
from integration.patience import wait_until
from integration.uplink_watch import UplinkWatch

pytestmark = pytest.mark.cluster

CROWD = 30

EachFamily = Mapping[Families, Room]


@pytest.fixture(scope="module")
def rooms(coil: CoilCluster) -> Iterator[EachFamily]:
    """A room of each kind with two pods on the first node and one on the other; the dual one has no annotation."""
    here, there = coil.nodes
    with ExitStack() as stack:
        opened = {
            families: stack.enter_context(coil.room(families, pool=DEFAULT_POOL if families is Families.DUAL else ""))
            for families in Families
        }
        for room in opened.values():
            room.create(room.pod("a", here), room.pod("b", here), room.pod("c", there))
        for room in opened.values():
            room.wait_ready("--all")
        yield opened


@pytest.mark.parametrize("families", Families)
def test_a_pod_has_addresses_of_its_namespaces_pool_in_each_family_of_it(rooms: EachFamily, families: Families) -> None:
    room = rooms[families]
    owners = {block.name: block.node for block in room.blocks()}
    pods = room.pods()
    assert [(pod.name, pod.node) for pod in pods] == [("a", "node-1"), ("b", "node-1"), ("c", "node-2")]
    for pod in pods:
        assert tuple(ip_address(address).version for address in pod.addresses if address) == families.value
        assert pod.pool == room.pool
        assert owners[pod.block] == pod.node
    assert all_distinct(pods)


@pytest.mark.parametrize("families", Families)
def test_the_api_server_reaches_pods(coil: CoilCluster, rooms: EachFamily, families: Families) -> None:
    """As it must for its proxy, for webhooks and for aggregated APIs behind Services."""
    room = rooms[families]
    for pod in room.pods():
        path = f"/api/v1/namespaces/{room.namespace}/pods/{pod.name}:{PORT}/proxy/name"
        status, answer = coil.plane.request("GET", path)
        assert (status, answer.decode().strip()) == (200, pod.name)


@pytest.mark.parametrize("address", ["203.0.113.77", "2001:db8::77"])
def test_nothing_leaves_the_machine(coil: CoilCluster, rooms: EachFamily, address: str) -> None:
    """Neither from a pod nor from a node nor from the control plane."""
    room, away = rooms[Families.DUAL], url(address)
    with UplinkWatch(nowhere=address) as watch:
        with pytest.raises(KubectlError):
            room.kubectl("exec", "a", "--", *TRY_FETCH, away)
        with pytest.raises(NodeCommandError):
            coil.nodes[0].run([*TRY_FETCH, away])
        status, _ = coil.plane.request("GET", f"/api/v1/nodes/{coil.nodes[0].name}:{PORT}/proxy/name")
        assert status >= 500, "nobody listens there"
    assert watch.leaks() == []


@pytest.mark.parametrize("families", Families)
def test_a_pod_has_a_default_route_in_each_family_of_its_addresses_only(rooms: EachFamily, families: Families) -> None:
    gateways = {4: "169.254.1.1", 6: "fe80::1"}
    for version, gateway in gateways.items():
        printed = rooms[families].kubectl("exec", "a", "--", "ip", f"-{version}", "route", "show")
        defaults = [line.split()[:5] for line in printed.splitlines() if line.startswith("default")]
        assert defaults == ([["default", "via", gateway, "dev", "eth0"]] if version in families.value else [])


@pytest.mark.parametrize("families", Families)
def test_pods_and_nodes_reach_every_pod_here_and_across(rooms: EachFamily, families: Families) -> None:
    assert rooms[families].find_gaps() == []


def test_pods_of_different_pools_reach_each_other(rooms: EachFamily) -> None:
    pods = [*rooms[Families.DUAL].pods(), *rooms[Families.IPV4].pods()]
    assert rooms[Families.DUAL].find_gaps([replace(pod, ipv6="") for pod in pods]) == []


def test_kubectl_executes_and_reads_logs(rooms: EachFamily) -> None:
    room = rooms[Families.DUAL]
    for pod in ("a", "c"):
        assert room.kubectl("exec", pod, "--", "sh", "-c", "echo heard >/proc/1/fd/1; hostname") == f"{pod}\n"
        wait_until(lambda pod=pod: "heard" in room.kubectl("logs", pod), what=f"the log of {pod}")  # type: ignore[misc]


@pytest.mark.parametrize("families", Families)
def test_the_kubelets_probes_decide_about_readiness(rooms: EachFamily, families: Families) -> None:
    room = rooms[families]
    room.kubectl("exec", "b", "--", "mv", "/www/name", "/www/away")
    room.kubectl("wait", "--for=condition=Ready=false", "pod", "b", "--timeout=180s")
    room.kubectl("exec", "b", "--", "mv", "/www/away", "/www/name")
    room.wait_ready("b")


def test_a_service_leads_to_a_pod_on_the_other_node_in_both_families(rooms: EachFamily, coil: CoilCluster) -> None:
    room = rooms[Families.DUAL]
    here, _ = coil.nodes
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "there", "namespace": room.namespace},
        "spec": {
            "selector": {"app": "c"},
            "ports": [{"port": PORT}],
            "ipFamilyPolicy": "RequireDualStack",
        },
    }
    room.create(service)
    addresses = coil.read("service", "there", f"--namespace={room.namespace}")["spec"]["clusterIPs"]
    assert [ip_address(address).version for address in addresses] == [4, 6]

    def answers(address: str) -> bool:
        try:
            return here.run([*TRY_FETCH, url(address)]) == "c\n"
        except NodeCommandError:
            return False

    for address in addresses:
        # kube-proxy needs a moment.
        wait_until(lambda address=address: answers(address), what=f"the service at {address}")  # type: ignore[misc]
        assert room.kubectl("exec", "a", "--", *FETCH, url(address)) == "c\n"


def test_a_container_that_is_restarted_keeps_its_pods_addresses(open_room: OpenRoom, coil: CoilCluster) -> None:
    room = open_room()
    probe = {
        "httpGet": {"path": "/name", "port": PORT},
        "periodSeconds": 1,
        "timeoutSeconds": 10,
        "failureThreshold": 6,
    }
    room.run(room.pod("phoenix", coil.nodes[0], containers=[{**server_container(), "livenessProbe": probe}]))
    before = room.pods()
    # Its image has no such file: the next container has it again.
    room.kubectl("exec", "phoenix", "--", "rm", "/www/name")
    restarted = "jsonpath={.status.containerStatuses[0].restartCount}=1"
    room.kubectl("wait", f"--for={restarted}", "pod", "phoenix", "--timeout=180s")
    room.wait_ready("phoenix")
    assert room.pods() == before
    assert room.find_gaps() == []


def test_a_native_sidecar_has_the_network_before_the_pods_own_containers(
    open_room: OpenRoom, coil: CoilCluster
) -> None:
    room = open_room()
    here, there = coil.nodes
    room.run(room.pod("server", there))
    [server] = room.pods()
    sidecar = {**server_container(), "name": "sidecar", "restartPolicy": "Always"}
    # The kubelet starts what follows when it has reached the sidecar at the pod's address.
    sidecar["startupProbe"] = sidecar["readinessProbe"]
    fetched = [
        {**sleeper(), "name": f"init{number}", "command": [*FETCH, url(address)]}
        for number, address in enumerate(server.addresses)
    ]
    room.run(room.pod("client", here, initContainers=[sidecar, *fetched], containers=[sleeper()]))
    assert room.kubectl("logs", "client", "--container=init1") == "server\n"
    assert room.kubectl("exec", "server", "--", *FETCH, url(room.pods()[0].ipv6)) == "client\n"


def test_a_pod_whose_users_are_not_the_nodes_has_the_network(open_room: OpenRoom, coil: CoilCluster) -> None:
    """`hostUsers: false`: the pod's network namespace belongs to its user namespace."""
    room = open_room()
    here, there = coil.nodes
    handlers = coil.read("node", here.name)["status"].get("runtimeHandlers", [])
    if not any(handler.get("features", {}).get("userNamespaces") for handler in handlers):
        pytest.skip("the container runtime has no user namespaces for pods: containerd 2 with runc 1.2 or newer has")
    if kernel_version() < (6, 3):
        pytest.skip("user namespaces for pods need Linux 6.3, whose tmpfs maps users as well")
    links = coil.kernel(here).pod_links()
    room.run(room.pod("shifted", here, hostUsers=False), room.pod("neighbour", here), room.pod("far", there))
    inside, outside, count = map(int, room.kubectl("exec", "shifted", "--", "cat", "/proc/self/uid_map").split())
    assert inside == 0
    assert outside >= count == 65536  # the kubelet's default: nobody of the node is among them
    assert room.find_gaps() == []
    room.kubectl("delete", "pod", "shifted", "neighbour", "--timeout=180s")
    wait_until(lambda: coil.kernel(here).pod_links() == links, what="the pods' links are gone")


def test_a_pod_on_its_nodes_own_network_takes_no_address(open_room: OpenRoom, coil: CoilCluster) -> None:
    room = open_room()
    node = coil.nodes[0]
    links = coil.kernel(node).pod_links()
    room.run(room.pod("guest", node, hostNetwork=True, containers=[sleeper()]))
    [pod] = room.pods()
    assert pod.ipv4 == str(node.ipv4)
    assert (pod.block, pod.pool) == ("", "")
    assert room.blocks() == []
    assert coil.kernel(node).pod_links() == links


def test_a_crowd_that_the_scheduler_spreads_gets_distinct_addresses(
    open_room: OpenRoom, coil: CoilCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    room = open_room(bits=3)
    began = time.monotonic()
    room.create(deployment_document("crowd", namespace=room.namespace, replicas=CROWD))
    room.kubectl("rollout", "status", "deployment/crowd", "--timeout=180s")
    with capsys.disabled():
        print(f"\n{CROWD} pods on two nodes were Ready after {time.monotonic() - began:.1f} s", file=sys.stderr)
    pods = room.pods()
    assert len(pods) == CROWD
    assert all_distinct(pods)
    for node in coil.nodes:
        own = [pod for pod in pods if pod.node == node.name]
        assert own, "the scheduler spreads them"
        assert {pod.block for pod in own} <= {block.name for block in room.blocks() if block.node == node.name}
    # One of each node stands for all; everybody with everybody would take longer than all other tests.
    assert room.find_gaps([pods[0], pods[-1]]) == []


def all_distinct(pods: list[PodRow]) -> bool:
    addresses = [address for pod in pods for address in pod.addresses if address]
    return len(set(addresses)) == len(addresses)


def kernel_version() -> tuple[int, ...]:
    """The machine's, such as (6, 12)."""
    return tuple(map(int, platform.release().split("-")[0].split(".")[:2]))


def sleeper() -> dict[str, object]:
    """A container that takes no port."""
    container = server_container()
    del container["readinessProbe"]
    return {**container, "command": ["sleep", "infinity"]}
