"""A node, its coild and an ipam-controller that one can look at, for tests of the inspection and for its pictures.

coild is looked at on the ports that it has by default, from within the node's network namespace: they are on its
localhost, as they would be for a person there. The controller runs beside the control plane.
"""

import secrets
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from ipaddress import IPv4Address
from typing import Any

from integration.apiserver.bare_node import LEASE, BareNode
from integration.apiserver.runtime import Runtime
from integration.apiserver.sandbox import PodName, Sandbox
from integration.cluster.address import free_port
from integration.cluster.control_plane import ControlPlane
from integration.deployment import controller_probe, ipam_controller_command
from integration.service import Service

NODE_PAGE = "http://localhost:9383/ip-manager"
CURL_SECONDS = 60.0
LOCALHOST = IPv4Address("127.0.0.1")


class CurlError(Exception):
    """curl got no answer; the message is what it said."""


@dataclass
class InspectedWorld:
    """`cluster_page` is where the controller is looked at."""

    node: BareNode
    runtime: Runtime
    coild: Service
    controller: Service
    cluster_page: str
    pods: dict[str, Sandbox] = field(default_factory=dict)

    @classmethod
    @contextmanager
    def up(
        cls,
        plane: ControlPlane,
        pools: Mapping[str, tuple[int, Mapping[str, str]]],
        *,
        cooling: str = "1h",
        history: str = "1m",
    ) -> Iterator["InspectedWorld"]:
        """`pools` by name: block size bits and subnet. Each is that of a namespace of its name, `default` of `apps`.

        By default addresses cool for so long that a test need not hurry, and the controller's history passes by
        in a minute.
        """
        with BareNode.up(plane) as node:
            for pool, (bits, subnet) in pools.items():
                node.make_pool(pool, subnet, bits=bits)
                node.make_namespace("apps" if pool == "default" else pool, pool="" if pool == "default" else pool)
            runtime = node.install_plugin()
            metrics = free_port(LOCALHOST, 19386)
            health = free_port(LOCALHOST, metrics + 1)
            inspect = free_port(LOCALHOST, health + 1)
            flags = [LEASE, f"--inspect-addr=127.0.0.1:{inspect}", f"--inspect-history={history}"]
            command = ipam_controller_command(node.plane, ports=(metrics, health), flags=flags)
            spawn = partial(node.workspace.spawn, "coil-ipam-controller", command)
            controller = Service(spawn, ready=controller_probe(node.plane, health=health))
            controller.wait_ready()
            coild = node.start_coild(f"--cooling={cooling}")
            yield cls(node, runtime, coild, controller, f"http://localhost:{inspect}/ip-manager")

    def add(self, namespace: str, name: str) -> dict[str, Any]:
        """Start a pod by the plugin; returns the result of its ADD."""
        sandbox = self.node.make_sandbox(PodName(namespace, name), container_id=secrets.token_hex(32))
        self.pods[f"{namespace}/{name}"] = sandbox
        return self.runtime.add(sandbox)

    def delete(self, namespace: str, name: str) -> None:
        """End a pod by the plugin."""
        sandbox = self.pods.pop(f"{namespace}/{name}")
        self.runtime.delete(sandbox)
        sandbox.destroy()

    def curl(self, *arguments: str) -> str:
        """What curl prints, run on the node. Raises CurlError."""
        return curl(self.node.namespaces.entrance, *arguments)


def curl(entrance: Sequence[str], *arguments: str) -> str:
    """What curl prints, started through `entrance`, the beginning of a command line. Raises CurlError."""
    command = [*entrance, "curl", "--silent", "--show-error", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=CURL_SECONDS, check=False)
    if done.returncode:
        raise CurlError(done.stderr.strip())
    return done.stdout
