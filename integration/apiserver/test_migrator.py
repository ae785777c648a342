"""coil-migrator as a person runs it: v1 in a real etcd and on a real API server, and v2 that goes on from there."""

import json
import secrets
import signal
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from ipaddress import IPv4Network
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from coil.crd.names import NodeName, PoolName
from coil.kube.client import KubeClient
from integration.apiserver.ipam_world import IpamWorld, until
from integration.apiserver.migrator import RUN_SECONDS, Migrator
from integration.apiserver.v1_etcd import V1Etcd
from integration.cluster.control_plane import ControlPlane
from integration.deployment import apply
from integration.patience import wait_until
from tests.coil_migrator.v1_cluster import V1Cluster

pytestmark = pytest.mark.apiserver

Document = dict[str, Any]

ANNOTATION = "coil.cybozu.com/pool"
SUBNET = IPv4Network("10.211.0.0/26")
BITS = 3
BLOCKS = ["10.211.0.0/29", "10.211.0.24/29", "10.211.0.56/29"]
"""Those that v1 has given away, of the eight: on the first node, on the second, and on the first again."""
HELD = "example.invalid/held"
BUDGET = "strict"
V1_LABEL = {"k8s-app": "coil-v1"}
TEMPLATE = {
    "metadata": {"labels": V1_LABEL},
    "spec": {"containers": [{"name": "main", "image": "example.invalid/coil:1"}]},
}
REMOVED = (
    "daemonset/coil-node",
    "deployment/coil-controllers",
    "configmap/coil-config",
    "serviceaccount/coil-node",
    "serviceaccount/coil-controller",
    "clusterrole/coil-node",
    "clusterrole/coil-controllers",
    "clusterrolebinding/coil-node",
    "clusterrolebinding/coil-controllers",
)


@dataclass
class V1World:
    """A cluster that v1 has served so far: two nodes, a pool with a namespace of its name, pods on v1's addresses."""

    ipam: IpamWorld
    migrator: Migrator
    pool: PoolName
    nodes: list[NodeName] = field(default_factory=list)

    @property
    def plane(self) -> ControlPlane:
        return self.ipam.plane

    def apply(self, manifests: str) -> None:
        self.plane.kubectl("apply", "--filename=-", stdin=manifests)

    def present(self) -> set[str]:
        """Which of v1's objects there are."""
        text = self.plane.kubectl("get", *REMOVED, "--namespace=kube-system", "--ignore-not-found", "--output=name")
        return {line.split("/")[0].partition(".")[0] + "/" + line.split("/")[1] for line in text.split()}

    def annotations(self) -> dict[str, str]:
        found: dict[str, str] = self.plane.read(f"/api/v1/namespaces/{self.pool}")["metadata"].get("annotations", {})
        return found

    def add_pod(self, name: str, address: str, *, node: int, **metadata: Any) -> None:
        """A pod that the API server forgets as soon as it is deleted, as there is no kubelet."""
        pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "namespace": self.pool, **metadata},
            "spec": {
                "nodeName": self.nodes[node],
                "containers": [{"name": "main", "image": "none"}],
                "automountServiceAccountToken": False,
                "terminationGracePeriodSeconds": 0,
            },
        }
        apply(self.plane, pod)
        status = {"phase": "Running", "podIP": address, "podIPs": [{"ip": address}]}
        patch = f"--patch={json.dumps({'status': status})}"
        place = f"--namespace={self.pool}"
        self.plane.kubectl("patch", "pod", name, place, "--subresource=status", "--type=merge", patch)

    def set_ready(self, name: str, *, ready: bool) -> None:
        """The pod's condition, as its kubelet reports it."""
        status = {"conditions": [{"type": "Ready", "status": str(ready)}]}
        patch = f"--patch={json.dumps({'status': status})}"
        place = f"--namespace={self.pool}"
        self.plane.kubectl("patch", "pod", name, place, "--subresource=status", "--type=merge", patch)

    def pod_lists(self) -> int:
        """How often anyone has listed the pods of one namespace, by the API server's own metrics."""
        wanted = {"verb": "LIST", "resource": "pods", "scope": "namespace"}.items()
        return sum(
            int(sample.value)
            for family in text_string_to_metric_families(self.plane.request("GET", "/metrics")[1].decode())
            if family.name == "apiserver_request"
            for sample in family.samples
            if wanted <= sample.labels.items()
        )

    def forbid_evictions(self) -> None:
        """By a budget for all pods, of which no controller says how many it allows."""
        budget = {
            "apiVersion": "policy/v1",
            "kind": "PodDisruptionBudget",
            "metadata": {"name": BUDGET, "namespace": self.pool},
            "spec": {"maxUnavailable": 0, "selector": {}},
        }
        apply(self.plane, budget)

    def allow_evictions(self) -> None:
        self.plane.kubectl("delete", "poddisruptionbudget", BUDGET, f"--namespace={self.pool}")

    def pods(self) -> set[str]:
        items = self.plane.read(f"/api/v1/namespaces/{self.pool}/pods")["items"]
        return {item["metadata"]["name"] for item in items}

    def is_deleting(self, name: str) -> bool:
        return "deletionTimestamp" in self.plane.read(f"/api/v1/namespaces/{self.pool}/pods/{name}")["metadata"]

    def release(self, name: str) -> None:
        patch = '--patch={"metadata":{"finalizers":null}}'
        self.plane.kubectl("patch", "pod", name, f"--namespace={self.pool}", "--type=merge", patch)

    def restarts(self) -> int:
        """How often coild's pods were to be made anew."""
        coild = self.plane.read(f"/apis/apps/v1/namespaces/{self.pool}/daemonsets/coild")
        return int(coild["metadata"]["generation"]) - 1


@pytest.fixture(scope="module")
def etcd() -> Iterator[V1Etcd]:
    with V1Etcd.up() as etcd:
        yield etcd


@pytest.fixture
async def world(plane: ControlPlane, admin: KubeClient, etcd: V1Etcd) -> AsyncIterator[V1World]:
    ipam = IpamWorld(plane, admin)
    pool = PoolName(f"{ipam.name}-apps")
    migrator = Migrator(plane=plane, etcd=etcd, prefix=f"/{secrets.token_hex(4)}/", coild=f"{pool}/coild")
    world = V1World(ipam, migrator, pool)
    world.nodes = [await ipam.add_node("one"), await ipam.add_node("two")]
    v1 = V1Cluster()
    v1.add_pool(world.pool, BITS, str(SUBNET))
    for number, block in enumerate(BLOCKS):
        v1.assign(world.pool, world.nodes[number % 2], block)
        v1.use(block, 1, f"container-{number}")
    etcd.put(migrator.prefix, v1.entries())
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default", "namespace": world.pool}}
    apply(plane, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": world.pool}})
    apply(plane, account, workload("DaemonSet", "coild", world.pool), *v1_documents())
    yield world
    etcd.clear(migrator.prefix)
    plane.kubectl("delete", *REMOVED, "--namespace=kube-system", "--ignore-not-found")
    for pod in world.pods():
        world.release(pod)
    plane.kubectl("delete", "pods", "--all", f"--namespace={world.pool}")
    plane.kubectl("delete", "namespace", world.pool, "--wait=false")
    await ipam.close()


def workload(kind: str, name: str, namespace: str) -> Document:
    spec = {"selector": {"matchLabels": V1_LABEL}, "template": TEMPLATE}
    return {"apiVersion": "apps/v1", "kind": kind, "metadata": {"name": name, "namespace": namespace}, "spec": spec}


def v1_documents() -> list[Document]:
    """v1's installation, as much of it as its removal is about."""
    group = "rbac.authorization.k8s.io"
    documents = [
        workload("DaemonSet", "coil-node", "kube-system"),
        workload("Deployment", "coil-controllers", "kube-system"),
    ]
    for kind, name in (
        ("ConfigMap", "coil-config"),
        ("ServiceAccount", "coil-node"),
        ("ServiceAccount", "coil-controller"),
    ):
        documents.append({"apiVersion": "v1", "kind": kind, "metadata": {"name": name, "namespace": "kube-system"}})
    for name in ("coil-node", "coil-controllers"):
        documents.append({"apiVersion": f"{group}/v1", "kind": "ClusterRole", "metadata": {"name": name}, "rules": []})
        role = {"apiGroup": group, "kind": "ClusterRole", "name": name}
        binding = {
            "apiVersion": f"{group}/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": name},
            "roleRef": role,
        }
        documents.append(binding)
    return documents


async def test_from_v1_to_v2_while_pods_run(world: V1World) -> None:
    world.add_pod("old-1", "10.211.0.1", node=0)
    world.add_pod("old-2", "10.211.0.25", node=1)
    before = world.migrator.etcd.revision()

    # What a dry run prints is what the real one prints.
    rehearsal = world.migrator.run("dump", "--dry-run")
    assert (rehearsal.returncode, world.present()) == (0, set(REMOVED)), rehearsal.stderr
    assert rehearsal.stderr.count("would remove v1's") == len(REMOVED)
    assert ANNOTATION not in world.annotations()

    dump = world.migrator.run("dump")
    assert dump.returncode == 0, dump.stderr
    assert (world.present(), world.annotations().get(ANNOTATION)) == (set(), world.pool)
    assert dump.stdout == rehearsal.stdout
    again = world.migrator.run("dump")
    assert (again.returncode, again.stdout) == (0, dump.stdout), again.stderr
    assert world.migrator.etcd.revision() == before, "etcd is only read"
    documents = list(yaml.safe_load_all(dump.stdout))
    assert [item["kind"] for item in documents] == ["AddressPool", *["AddressBlock"] * len(BLOCKS)]
    assert [item["ipv4"] for item in documents[1:]] == BLOCKS

    # v2 is installed, and gives everything that v1 has not given, and nothing else.
    world.apply(dump.stdout)
    await world.ipam.start_ready()
    free = 2 ** (32 - SUBNET.prefixlen - BITS) - len(BLOCKS)
    for number in range(free + 1):
        await world.ipam.ask(f"request-{number}", node=world.nodes[0], pool=world.pool)
    await until(world.ipam.all_answered, what="all requests are answered")
    blocks = await world.ipam.blocks()
    networks = [IPv4Network(block.ipv4 or "") for block in blocks]
    assert sorted(networks) == list(SUBNET.subnets(new_prefix=32 - BITS))
    assert {block.ipv4 for block in blocks if block.reserved} == set(BLOCKS)

    # v1's pods go, and with them what was reserved for them.
    world.add_pod("new", str(next(iter(set(networks) - set(map(IPv4Network, BLOCKS))))[0]), node=0)
    declined = world.migrator.run("replace", answer="n\n")
    assert (declined.returncode, world.pods()) == (1, {"old-1", "old-2", "new"})
    assert "old-1" in declined.stderr
    assert "have no controller and will not come back" in declined.stderr
    assert world.migrator.run("replace", "--dry-run").returncode == 0
    assert world.restarts() == 0
    world.forbid_evictions()
    refused = world.migrator.run("replace", "--yes", "--timeout=1s")
    assert (refused.returncode, world.pods()) == (1, {"old-1", "old-2", "new"})
    assert "was not evicted" in refused.stderr
    assert "disruption budget" in refused.stderr
    world.allow_evictions()
    replaced = world.migrator.run("replace", answer="y\n")
    assert (replaced.returncode, world.pods()) == (0, {"new"}), replaced.stderr
    assert [block.name for block in await world.ipam.blocks() if block.reserved] == []
    assert world.restarts() == 1
    assert world.migrator.run("replace").stderr == "nothing of v1 is left\n"
    assert world.restarts() == 1

    # Who waited for a block gets one that was v1's.
    await world.ipam.ask("late", node=world.nodes[1], pool=world.pool)
    await until(world.ipam.all_answered, what="the late request is answered")
    late = {IPv4Network(block.ipv4 or "") for block in await world.ipam.blocks()} - set(networks)
    assert late <= set(map(IPv4Network, BLOCKS))
    assert world.ipam.missing_rights() == []


async def test_the_next_pod_of_a_workload_waits_until_a_successor_is_ready(world: V1World) -> None:
    """Of two workloads on one node; that the successor runs is not enough."""
    world.apply(world.migrator.run("dump", "--skip-uninstall").stdout)
    owners = {app: controller_of(app) for app in ("db", "web")}
    for name, address in (("db-1", "10.211.0.1"), ("db-2", "10.211.0.2"), ("web-1", "10.211.0.3")):
        world.add_pod(name, address, node=0, **owners[name.partition("-")[0]])
        world.set_ready(name, ready=True)

    with world.migrator.start("replace", "--yes") as process:
        wait_until(lambda: "db-1" not in world.pods(), what="the first pod has gone")
        world.add_pod("db-3", "10.211.0.9", node=0, **owners["db"])
        world.set_ready("db-3", ready=False)
        before = world.pod_lists()
        # It counts the pods that are Ready, and finds one too few each time. Nobody else lists them here.
        wait_until(
            lambda: world.pod_lists() >= before + 2 or process.poll() is not None,
            what="it looks for a successor that is Ready, and looks again",
        )
        assert (process.poll(), world.pods()) == (None, {"db-2", "web-1", "db-3"})
        world.set_ready("db-3", ready=True)
        wait_until(lambda: "db-2" not in world.pods(), what="the second pod has gone")
        world.add_pod("db-4", "10.211.0.10", node=0, **owners["db"])
        world.set_ready("db-4", ready=True)
        wait_until(lambda: "web-1" not in world.pods(), what="the other workload's pod has gone")
        world.add_pod("web-2", "10.211.0.11", node=0, **owners["web"])
        world.set_ready("web-2", ready=True)
        _, said = process.communicate(timeout=RUN_SECONDS)
    assert (process.returncode, world.pods()) == (0, {"db-3", "db-4", "web-2"}), said
    assert await world.ipam.blocks() == []


def controller_of(app: str) -> Document:
    """The metadata of a pod that a ReplicaSet of that name makes anew."""
    owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": app, "uid": f"uid-of-{app}", "controller": True}
    return {"ownerReferences": [owner]}


async def test_what_cannot_be_converted_changes_nothing(world: V1World) -> None:
    holder = json.dumps({"container_id": "c", "namespace": "apps", "pod": "lost"}).encode()
    world.migrator.etcd.put(world.migrator.prefix, [(b"ip/10.211.0.8/2", holder)])
    failed = world.migrator.run("dump")
    assert (failed.returncode, failed.stdout, world.present()) == (1, "", set(REMOVED))
    assert "10.211.0.10 of the pod apps/lost is in use" in failed.stderr
    assert failed.stderr.endswith("nothing was changed\n")


async def test_the_manifests_in_a_file(world: V1World, tmp_path: Path) -> None:
    path = tmp_path / "data.yaml"
    dump = world.migrator.run("dump", "--dry-run", f"--output={path}")
    assert (dump.returncode, dump.stdout) == (0, "")
    assert len(list(yaml.safe_load_all(path.read_text()))) == 1 + len(BLOCKS)


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 130)])
async def test_a_replacement_that_is_interrupted_goes_on_where_it_was(
    world: V1World, number: signal.Signals, code: int
) -> None:
    world.apply(world.migrator.run("dump", "--skip-uninstall").stdout)
    world.add_pod("old-1", "10.211.0.1", node=0)
    world.add_pod("old-2", "10.211.0.2", node=0, finalizers=[HELD])
    world.add_pod("old-3", "10.211.0.25", node=1)
    with world.migrator.start("replace", "--yes") as process:
        wait_until(lambda: world.is_deleting("old-2"), what="the second pod is being deleted")
        process.send_signal(number)
        _, said = process.communicate(timeout=RUN_SECONDS)
    assert (process.returncode, world.pods()) == (code, {"old-2", "old-3"})
    assert f"the pod {world.pool}/old-1 was evicted" in said
    assert said.endswith("run it again to go on\n")
    assert len([block for block in await world.ipam.blocks() if block.reserved]) == len(BLOCKS)

    # A pod that does not go keeps its block; everything else is done.
    stuck = world.migrator.run("replace", "--yes", "--timeout=1s")
    assert (stuck.returncode, world.pods()) == (1, {"old-2"})
    assert "has not ended within 1 s" in stuck.stderr
    assert [block.ipv4 for block in await world.ipam.blocks()] == [BLOCKS[0]]
    assert world.restarts() == 0
    world.release("old-2")
    finished = world.migrator.run("replace", "--yes")
    assert finished.returncode == 0, finished.stderr
    assert (world.pods(), await world.ipam.blocks(), world.restarts()) == (set(), [], 1)
