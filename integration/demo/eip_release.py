"""Floating addresses on the demo's cluster: an upgrade of the release puts an agent on each node, and pods of a
namespace are seen outside by the address that their policy got. What happens when a node is lost shows `eip_part`.
"""

import time
from collections.abc import Mapping
from urllib.parse import urlsplit

from integration.cluster.cluster import Cluster
from integration.cluster.control_plane import KubectlError
from integration.cluster.family import SERVICES_IPV4, SERVICES_IPV6
from integration.demo.coil_command import ask_coil, print_answer
from integration.demo.inventory import PodRow
from integration.demo.narration import DemoError, print_table, step
from integration.demo.outside_server import serve_outside
from integration.helm.release import Release

GATEWAY = "office"
POLICY = "partners"
LABEL = {"egress": "true"}
_HOST = 200
"""The host part of the EIP in the nodes' network, which has no more nodes than two."""
_PATIENCE = 3
"""Seconds for one question; it is asked again."""
_SECONDS = 60.0
_VALUES = {"eip.enabled": True, "eip.clusterCIDR": [str(SERVICES_IPV4), str(SERVICES_IPV6)]}


def show_eip_release(cluster: Cluster, release: Release, pods: list[PodRow]) -> None:
    """`pods` are of one namespace, whose Deployment's label `app` is its name. Raises DemoError."""
    step(
        "helm upgrade to EIP gateways: an agent on each node",
        lambda: upgrade(release),
    )
    node = cluster.nodes[0].name
    eips = {4: str(cluster.network.ipv4[_HOST]), 6: str(cluster.network.ipv6[_HOST])}
    namespace = pods[0].namespace
    with serve_outside(cluster.network) as urls:
        step(
            f"an EgressGateway on {node} with one address of each family, a policy for the pods of {namespace}",
            lambda: make_policy(cluster, release, namespace, eips),
        )
        seen = step(
            "a host outside, which has no way to pods, answers them as the EIP",
            lambda: [await_seen(cluster, pod, urls[family], eip) for pod in pods for family, eip in eips.items()],
        )
        print()
        print_table(("WHO ASKED", "ON NODE", "WITH ADDRESS", "THE HOST SAW"), seen)
        far = next((pod for pod in pods if pod.node != node), pods[0])
        why = f"kubectl coil trace: why the host sees {far.name} as the EIP"
        print_answer(step(why, lambda: trace(cluster, far, urls[4], eips[4])))


def upgrade(release: Release) -> None:
    release.upgrade(_VALUES)
    release.wait_rolled_out()


def make_policy(cluster: Cluster, release: Release, namespace: str, eips: dict[int, str]) -> None:
    node = cluster.nodes[0].name
    cluster.plane.kubectl("label", "node", node, *(f"{name}={value}" for name, value in LABEL.items()))
    gateway = {
        "ranges": {f"ipv{family}": [eip] for family, eip in eips.items()},
        "nodeSelector": {"selector": {"matchLabels": LABEL}},
    }
    release.apply(_document("EgressGateway", {"name": GATEWAY}, gateway))
    policy = {"egressGatewayName": GATEWAY, "appliedTo": {"podSelector": {"matchLabels": {"app": namespace}}}}
    release.apply(_document("EgressGatewayPolicy", {"name": POLICY, "namespace": namespace}, policy))


def await_seen(cluster: Cluster, pod: PodRow, url: str, eip: str) -> tuple[str, ...]:
    """A row of the table. Raises DemoError if the host does not see the pod as its EIP within a minute."""
    deadline = time.monotonic() + _SECONDS
    while (seen := ask(cluster, pod, url)) != eip:
        if time.monotonic() > deadline:
            raise DemoError(f"the host saw {pod.name} as {seen or 'nobody'}, not as {eip}")
    return f"{pod.namespace}/{pod.name}", pod.node, pod.ipv6 if ":" in eip else pod.ipv4, seen


def trace(cluster: Cluster, pod: PodRow, url: str, eip: str) -> str:
    """What the command prints. Raises DemoError if it says that the host sees another address."""
    answer = ask_coil(cluster, "trace", f"{pod.namespace}/{pod.name}", urlsplit(url).netloc)
    if f" sees {eip} as source." not in answer:
        raise DemoError(f"the trace does not end with {eip}:\n{answer}")
    return answer


def ask(cluster: Cluster, pod: PodRow, url: str) -> str:
    """Whom the host sees; empty if it has not answered within `_PATIENCE` seconds."""
    command = ("timeout", str(_PATIENCE), "busybox", "wget", "-q", "-O", "-", url)
    try:
        return cluster.plane.kubectl("exec", f"--namespace={pod.namespace}", pod.name, "--", *command)
    except KubectlError:
        return ""


def _document(kind: str, metadata: Mapping[str, str], spec: Mapping[str, object]) -> dict[str, object]:
    return {"apiVersion": "egressgateway.spidernet.io/v1beta1", "kind": kind, "metadata": metadata, "spec": spec}
