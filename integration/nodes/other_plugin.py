"""Another pod network than Coil's: Debian's CNI plugins under host-local, with a subnet for each node."""

import json
from typing import Any

from integration.cluster.cluster import Cluster
from integration.cluster.node import Node
from integration.cluster.requirement import CNI_PLUGINS


def subnets(number: int) -> tuple[str, str]:
    """The pods' subnets of the node `number`, from 1."""
    return f"10.99.{number}.0/24", f"fd99:0:0:{number}::/64"


def install_plugin(node: Node, number: int, plugin: str, **options: Any) -> None:
    """Put the plugin, host-local and a configuration of theirs on the node, the binaries first."""
    for name in (plugin, "host-local"):
        target = node.cni_bin_dir / name
        target.write_bytes((CNI_PLUGINS / name).read_bytes())
        target.chmod(0o755)
    ipam = {
        "type": "host-local",
        "dataDir": f"/run/{plugin}",
        "ranges": [[{"subnet": subnet}] for subnet in subnets(number)],
        "routes": [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}],
    }
    conflist = {"cniVersion": "0.4.0", "name": plugin, "plugins": [{"type": plugin, **options, "ipam": ipam}]}
    # containerd does not look at a file that is moved in from elsewhere; at one that is renamed in place it does.
    written = node.cni_conf_dir / f".{plugin}"
    written.write_text(json.dumps(conflist))
    written.rename(node.cni_conf_dir / f"10-{plugin}.conflist")


def route_pods(cluster: Cluster) -> None:
    """Routes to each node's pods, on the other nodes and where the API server runs, which calls webhooks in pods."""
    for number, target in enumerate(cluster.nodes, start=1):
        for subnet, via in zip(subnets(number), (target.ipv4, target.ipv6), strict=True):
            route = ["ip", "route", "add", subnet, "via", str(via)]
            cluster.plane.run(*route)
            for node in cluster.nodes:
                if node is not target:
                    node.run(route)
