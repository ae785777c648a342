"""`make demo`: a real cluster, the image on its nodes, `helm install`, pods with addresses, all of them talking; then
an address that outlives its node (`eip_part`), addresses of a VPC (`aws_part`), ports of OpenStack (`neutron_part`),
and egress NAT (`egress_part`). What is shown later is prepared meanwhile, as far as it disturbs nothing.

Each claim is checked; exit code 0 only if all of it held. KEEP=1 leaves the cluster up, whatever happened, and says how
to use and end it.
"""

import json
import os
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from shlex import quote

from integration.cluster.cluster import Cluster, Ending
from integration.cluster.control_plane import KubectlError, find_kubectl
from integration.demo.coil_command import ask_coil, print_answer
from integration.demo.eip_release import show_eip_release
from integration.demo.inventory import BlockRow, PodRow, read_blocks, read_pods
from integration.demo.narration import DemoError, print_table, step
from integration.demo.part import FAILURES, Part
from integration.demo.reach import find_gaps
from integration.demo.topology import NodeRow, render_topology
from integration.demo.workload import (
    NAMESPACES,
    POOLS,
    deployment_documents,
    namespace_documents,
    pool_documents,
    pool_of,
)
from integration.deployment import UnsupportedVersionError, apply, check_supported
from integration.helm.chart import NAMESPACE, RELEASE
from integration.helm.program import find_helm
from integration.helm.release import Release, import_image
from integration.image.build import build_image

PICTURE = Path("build") / "topology.svg"
EIP, AWS, NEUTRON, EGRESS = (f"integration.demo.{name}_part" for name in ("eip", "aws", "neutron", "egress"))
WEB, DMZ = 6, 2
COOLING_SECONDS = 5
"""A block without pods goes back after that time; by default, 30 s are waited for connections to end."""
RELEASE_SECONDS = 60.0


def main() -> int:
    keep = os.environ.get("KEEP", "") not in {"", "0"}
    started = time.monotonic()
    # What is to be read last is printed last.
    with ExitStack() as ending:
        try:
            with (
                Part("egress NAT", EGRESS) as egress,
                Part("the EIP gateway", EIP) as eip,
                Part("addresses of the VPC", AWS) as aws,
                Part("ports of OpenStack", NEUTRON) as neutron,
            ):
                # The longest part; it takes what time the others leave.
                egress.begin()
                show_cluster(ending, eip, keep=keep)
                eip.show()
                # Not earlier: while it starts, the EIP's transfers and leases would not have the time that they need.
                neutron.begin()
                aws.show()
                neutron.show()
                egress.show()
        except FAILURES as error:
            print(f"\nThe demo failed: {error}", file=sys.stderr)
            return 1
        except KeyboardInterrupt:
            print("\nInterrupted.", file=sys.stderr)
            return 130
        print(f"\nAll of it held, in {time.monotonic() - started:.0f} s.")
    return 0


def show_cluster(ending: ExitStack, following: Part, *, keep: bool) -> None:
    """The part on a real cluster, which is gone afterwards, or else `ending` tells how to use it.

    Begins the following part when this one does little but wait.
    """
    cluster = step("a Kubernetes cluster of two nodes", lambda: start_cluster(keep=keep))
    try:
        show(cluster, following, keep=keep)
    finally:
        if keep:
            ending.callback(print_use, cluster)
        else:
            cluster.down()


def start_cluster(*, keep: bool) -> Cluster:
    cluster = Cluster.up(nodes=2, ending=Ending.ON_REQUEST if keep else Ending.WITH_OWNER)
    try:
        check_supported(cluster.plane)
    except UnsupportedVersionError:
        cluster.down()
        raise
    return cluster


def show(cluster: Cluster, following: Part, *, keep: bool) -> None:
    """What is shown on the cluster. Raises DemoError at the first claim that does not hold."""
    archive = step("the image with all programs: built, or found in the cache", build_image)
    step("the image in both nodes' containerd", lambda: import_image(cluster, archive))
    release = Release(cluster.plane, {"coild.cooling": f"{COOLING_SECONDS}s"})
    step("helm install coil charts/coil", release.install)
    documents = [*pool_documents(), *namespace_documents()]
    step("two pools, as soon as a webhook admits them, and a namespace", lambda: release.apply(*documents))
    step("controllers and daemons Ready, as pods with accounts, probes and limits", release.wait_rolled_out)
    step("both nodes Ready", cluster.wait_ready)
    print_programs(cluster)
    step("helm test: two pods talk", release.test)
    step(f"{WEB} pods in web, {DMZ} in dmz, placed by the scheduler", lambda: run_pods(cluster))

    blocks, pods = take_stock(cluster)
    print_tables(blocks, pods)
    draw(cluster, blocks, pods)

    step(
        "addresses: one pool and one block per pod, none twice, both nodes in use",
        lambda: check_addresses(blocks, pods),
    )
    asked = (len(pods) + len(cluster.nodes)) * len(pods) * 2
    step(
        f"TCP: every pod and every node to every pod, both families ({asked} requests)",
        lambda: check_reach(cluster, pods),
    )
    print_answer(step("kubectl coil status", lambda: ask_coil(cluster, "status", "--wait=1m")))
    show_eip_release(cluster, release, [pod for pod in pods if pod.namespace == "dmz"])
    # Not earlier: while it starts, the agents of the cluster would not have the time that their short leases need.
    following.begin()
    step(
        f"the pods deleted: their blocks go back, {COOLING_SECONDS} s later (coild.cooling)",
        lambda: check_release(cluster),
    )
    if keep:
        step("the pods once more, for you to look at", lambda: run_pods(cluster))


def run_pods(cluster: Cluster) -> None:
    apply(cluster.plane, *deployment_documents(web=WEB, dmz=DMZ))
    for name in NAMESPACES:
        try:
            cluster.plane.kubectl("rollout", "status", f"--namespace={name}", f"deployment/{name}", "--timeout=90s")
        except KubectlError as error:
            why = cluster.plane.kubectl("get", "pods,events", f"--namespace={name}", "--output=wide")
            raise DemoError(f"{error}\n{why}") from error


def print_programs(cluster: Cluster) -> None:
    print("\n" + cluster.plane.kubectl("get", "pods", f"--namespace={NAMESPACE}", "--output=wide"))


def take_stock(cluster: Cluster) -> tuple[list[BlockRow], list[PodRow]]:
    blocks = read_blocks(json.loads(cluster.plane.kubectl("get", "addressblocks", "--output=json")))
    pods: list[PodRow] = []
    for name in NAMESPACES:
        document = json.loads(cluster.plane.kubectl("get", "pods", f"--namespace={name}", "--output=json"))
        pods += read_pods(document, blocks)
    return blocks, sorted(pods, key=lambda pod: (pod.node, pod.namespace, pod.name))


def print_tables(blocks: list[BlockRow], pods: list[PodRow]) -> None:
    print()
    print_table(
        ("POD", "NODE", "IPV4", "IPV6", "BLOCK", "POOL"),
        [(f"{pod.namespace}/{pod.name}", pod.node, pod.ipv4, pod.ipv6, pod.block, pod.pool) for pod in pods],
    )
    print_table(
        ("BLOCK", "NODE", "NETWORKS"), [(block.name, block.node, "  ".join(block.networks)) for block in blocks]
    )


def draw(cluster: Cluster, blocks: list[BlockRow], pods: list[PodRow]) -> None:
    nodes = [NodeRow(node.name, str(node.ipv4), str(node.ipv6)) for node in cluster.nodes]
    pools = {
        name: "  ".join(network for subnet in spec["subnets"] for network in subnet.values())
        for name, spec in POOLS.items()
    }
    PICTURE.parent.mkdir(exist_ok=True)
    PICTURE.write_text(render_topology(nodes=nodes, blocks=blocks, pods=pods, pools=pools))
    print(f"The picture: {PICTURE}\n")


def check_addresses(blocks: list[BlockRow], pods: list[PodRow]) -> None:
    if len(pods) != WEB + DMZ:
        raise DemoError(f"{len(pods)} pods have addresses, not {WEB + DMZ}")
    owner = {block.name: block.node for block in blocks}
    for pod in pods:
        if not (pod.ipv4 and pod.ipv6):
            raise DemoError(f"{pod.name} lacks a family: {pod.addresses}")
        if pod.pool != pool_of(pod.namespace):
            raise DemoError(f"{pod.name} of namespace {pod.namespace} has an address of pool {pod.pool!r}")
        if owner[pod.block] != pod.node:
            raise DemoError(f"{pod.name} runs on {pod.node}, but its block {pod.block} belongs to {owner[pod.block]}")
    addresses = [address for pod in pods for address in pod.addresses]
    if len(set(addresses)) != len(addresses):
        raise DemoError("an address was given twice")
    if len({pod.node for pod in pods}) < 2:
        raise DemoError("the pods are all on one node")


def check_reach(cluster: Cluster, pods: list[PodRow]) -> None:
    if gaps := find_gaps(cluster.plane, cluster.nodes, pods):
        raise DemoError("not everybody was reached:\n  " + "\n  ".join(gaps[:20]))


def check_release(cluster: Cluster) -> None:
    for name in NAMESPACES:
        cluster.plane.kubectl("delete", f"--namespace={name}", "deployment", name, "--wait=true", "--timeout=180s")
    deadline = time.monotonic() + RELEASE_SECONDS
    while left := cluster.plane.kubectl("get", "addressblocks", "--output=name").split():
        if time.monotonic() > deadline:
            raise DemoError(f"{RELEASE_SECONDS:.0f} s after their pods, there are still {', '.join(left)}")
        time.sleep(0.5)
    for node in cluster.nodes:
        for family in ("-4", "-6"):
            if routes := node.run(["ip", family, "route", "show", "table", "119"]).strip():
                raise DemoError(f"{node.name} still exports {routes}")


def print_use(cluster: Cluster) -> None:
    # Any of these paths may have a blank.
    print(f"\nThe cluster is up: export KUBECONFIG={quote(str(cluster.plane.admin_kubeconfig))}")
    print(f"What runs: {quote(find_kubectl())} get pods --all-namespaces --output=wide")
    print(f"What is installed: {quote(str(find_helm()))} status {RELEASE} --namespace={NAMESPACE}")
    print(f"End it with: .venv/bin/python -m integration.cluster down {cluster.workspace.id}")


if __name__ == "__main__":
    sys.exit(main())
