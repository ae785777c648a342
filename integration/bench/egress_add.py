"""What an Egress costs a pod's ADD: pods that name one beside pods that name none, on one node with the real coild.

The plugin is executed as containerd does it, one at a time. Both kinds of pods take turns, each ADD in a new namespace,
and coild has heard of all of them, of the Egress and of its Service before the first ADD. So they differ by what coild
does before it returns: it resolves the Egress and makes the tunnel.
"""

import json
import os
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from integration.apiserver.sandbox import PodName
from integration.bench.bare_client import BareClient
from integration.bench.cni_run import Command, next_serial, take_command
from integration.bench.cni_side import coil_netconf
from integration.bench.egress_result import Adds
from integration.bench.egress_text import CLIENT_NAMESPACE, NODE, create_local_pod
from integration.bench.pod_namespace import PodNamespaces, pod_namespaces
from integration.bench.process_state import CpuTime, cpu_time
from integration.bench.sample import median
from integration.deployment import COILD_HEALTH_PORT, daemon_command, ready_probe
from integration.patience import wait_until
from integration.plugin.executable import plugin_executable

_PODS: Final = 16
_RUNS: Final = 7
_START_SECONDS: Final = 120.0
_STOP_SECONDS: Final = 30.0
_SECONDS: Final = 60


class TunnelError(Exception):
    """What was measured is not what the figure promises."""


@dataclass(frozen=True, slots=True)
class CoilWiring:
    """An `integration.bench.cni_side.Wiring`, of one kind of pods. `coild` is its process id."""

    plugin: Path
    netconf: bytes
    pods: tuple[PodName, ...]
    coild: int

    def pod(self, number: int) -> PodName:
        return self.pods[number]

    def daemon_cpu(self) -> CpuTime:
        return cpu_time(self.coild)


class AddTrial:
    """`api` is the administrator's, `kubeconfig` coild's; its log goes into `folder`."""

    def __init__(self, api: BareClient, *, kubeconfig: Path, folder: Path) -> None:
        self._api = api
        self._kubeconfig = kubeconfig
        self._folder = folder

    async def run(self) -> Adds:
        """Raises PluginError when an ADD fails, TunnelError when a pod is not wired as it should be."""
        kinds = {is_client: await self._create_pods(is_client=is_client) for is_client in (True, False)}
        with (
            tempfile.TemporaryDirectory(prefix="coil-bench-node-") as folder,
            pod_namespaces(_PODS) as namespaces,
            self._coild(Path(folder) / "coild.sock") as (pid, socket),
        ):
            wirings = {
                is_client: CoilWiring(plugin_executable(), coil_netconf(socket), pods, pid)
                for is_client, pods in kinds.items()
            }
            for is_client, wiring in wirings.items():  # to warm up
                _take_run(wiring, namespaces, is_client=is_client)
            taken: dict[bool, list[float]] = {True: [], False: []}
            for _ in range(_RUNS):
                for is_client, wiring in wirings.items():
                    taken[is_client].append(_take_run(wiring, namespaces, is_client=is_client))
        return Adds(client_ms=tuple(taken[True]), plain_ms=tuple(taken[False]), count=_PODS)

    async def _create_pods(self, *, is_client: bool) -> tuple[PodName, ...]:
        pods = []
        for number in range(_PODS):
            name = f"{'client' if is_client else 'plain'}-{number:02}"
            document = json.loads(await self._api.send(create_local_pod(name, is_client=is_client)))
            pods.append(PodName(CLIENT_NAMESPACE, name, document["metadata"]["uid"]))
        return tuple(pods)

    @contextmanager
    def _coild(self, socket: Path) -> Iterator[tuple[int, Path]]:
        """Its process id and its socket, once it is ready."""
        command = daemon_command(self._kubeconfig, socket=socket)
        with (self._folder / "coild.log").open("ab") as output:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, "COIL_NODE_NAME": NODE},
            )
        ready = ready_probe(COILD_HEALTH_PORT)

        def is_ready() -> bool:
            if (code := process.poll()) is not None:
                raise RuntimeError(f"coild ended with code {code}")
            return ready()

        try:
            wait_until(is_ready, what="coild is ready", timeout=_START_SECONDS)
            yield process.pid, socket
        finally:
            process.terminate()
            try:
                process.wait(_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(_STOP_SECONDS)


def _take_run(wiring: CoilWiring, namespaces: PodNamespaces, *, is_client: bool) -> float:
    """The median of the ADDs, milliseconds. The namespaces are new before and after."""
    serial = next_serial()
    add = take_command(Command.ADD, wiring, namespaces, width=1, serial=serial)
    if {*map(_has_tunnel, namespaces.paths)} != {is_client}:
        raise TunnelError("a client has no tunnel" if is_client else "a pod without an Egress has a tunnel")
    take_command(Command.DEL, wiring, namespaces, width=1, serial=serial)
    namespaces.renew()  # tunnels go with a pod's namespace, not with its DEL
    return median(add.latencies_ms)


def _has_tunnel(netns: str) -> bool:
    command = ["ip", "-json", "-netns", Path(netns).name, "link", "show"]
    links = json.loads(subprocess.run(command, check=True, capture_output=True, timeout=_SECONDS).stdout)
    return any(link["ifname"].startswith("fou4_") for link in links)
