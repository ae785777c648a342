"""A network namespace with an uplink, coild and the plugin in it, and sandboxes for pods: what any node under test is.

It knows no API server; `bare_node` adds the Node object and the rest. Everything ends with the workspace.
"""

import json
import socket
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from ipaddress import IPv4Address, IPv6Address

from integration.apiserver.runtime import Runtime
from integration.apiserver.sandbox import PodName, Sandbox
from integration.cluster.network import Namespaces, Network
from integration.cluster.process import Process
from integration.cluster.workspace import Workspace
from integration.deployment import COILD_HEALTH_PORT, install_plugin
from integration.kernel_state import KernelState
from integration.service import START_TIMEOUT, Service

_COILD_METRICS_PORT = 9384

# Unlike wget it prints the text of a refusal, too.
_FETCH = """
import sys
from http.client import HTTPConnection
connection = HTTPConnection("127.0.0.1", int(sys.argv[1]), timeout=60)
connection.request("GET", sys.argv[2])
sys.stdout.write(connection.getresponse().read().decode())
"""


class PodHost:
    """A node's namespaces with coild and the plugin in them, and sandboxes for pods. Its links are somebody else's."""

    def __init__(self, workspace: Workspace, *, name: str) -> None:
        self.name = name
        self.workspace = workspace
        self.socket = workspace.make_folder(name) / "coild.sock"
        self.namespaces: Namespaces
        self._sandboxes: list[Sandbox] = []

    @property
    def kernel(self) -> KernelState:
        """What the kernel holds in the node's namespace."""
        return KernelState(str(self.namespaces.net))

    def install_plugin(self) -> Runtime:
        """Run the installer; returns the runtime that uses what it installed."""
        folder = self.workspace.make_folder(self.name, "cni")
        plugin = install_plugin(bin_dir=folder / "bin", etc_dir=folder / "net.d", socket=self.socket)
        return Runtime(plugin, {"type": "coil", "socket": str(self.socket)})

    def start_daemon(
        self, command: Sequence[str], *, env: Mapping[str, str] | None = None, patience: float = START_TIMEOUT
    ) -> Service:
        """Run coild's command line in the node's namespace. It is ready when it takes calls; that is not waited for."""
        environment = {**(env or {}), "COIL_NODE_NAME": self.name}
        spawn = partial(self.spawn, f"coild-{self.name}", command, env=environment)
        return Service(spawn, ready=self.is_served, patience=patience)

    def is_served(self) -> bool:
        """Whether somebody listens on the socket; a file alone is what a killed coild leaves."""
        with socket.socket(socket.AF_UNIX) as probe:
            try:
                probe.connect(str(self.socket))
            except OSError:
                return False
        return True

    def coild_metrics(self) -> dict[str, float]:
        """coild's samples, by name and labels as they are written."""
        lines = self.fetch(_COILD_METRICS_PORT, "/metrics").splitlines()
        samples = (line.rsplit(" ", 1) for line in lines if line and not line.startswith("#"))
        return {name: float(value) for name, value in samples}

    def fetch(self, port: int, path: str) -> str:
        """What one of coild's pages says, whatever its status; empty when nobody answers."""
        return self.kernel.run(sys.executable, "-IS", "-c", _FETCH, str(port), path, check=False)

    def unready(self) -> dict[str, str]:
        """What coild's readiness lacks, by check; empty when it is ready."""
        text = self.fetch(COILD_HEALTH_PORT, "/readyz")
        checks: dict[str, str] = json.loads(text)["checks"] if text else {"process": "no answer"}
        return {name: why for name, why in checks.items() if why != "ok"}

    def make_sandbox(self, pod: PodName, *, container_id: str) -> Sandbox:
        """A new sandbox, as the runtime makes one before an ADD; destroyed with the node at the latest."""
        sandbox = Sandbox(pod, container_id=container_id, cluster=self.workspace.id)
        self._sandboxes.append(sandbox)
        return sandbox

    def destroy_sandboxes(self) -> None:
        """Destroy every sandbox that is left."""
        for sandbox in self._sandboxes:
            sandbox.destroy()

    def spawn(self, name: str, argv: Sequence[str], *, env: Mapping[str, str] | None = None) -> Process:
        """Start a long-running program in the node's namespaces."""
        return self.workspace.spawn(name, [*self.namespaces.entrance, *argv], env=env)


class WiredNode(PodHost):
    """Number `index`, from 0, on the network's bridge."""

    def __init__(self, workspace: Workspace, network: Network, *, name: str, index: int) -> None:
        super().__init__(workspace, name=name)
        self.ipv4: IPv4Address
        self.ipv6: IPv6Address
        self.ipv4, self.ipv6 = network.node_addresses(index)
        self.namespaces = Namespaces.hold(workspace, name)
        network.attach(self.namespaces, port=name, addresses=network.node_addresses(index))
