"""A node whose pods are ports, on this machine's kernel: coild's source with an executable that plugs links into a
Linux bridge, and the annotations of pods in memory.

`python -m integration.netns.port_life` is one ADD in a process of its own, which is killed at a step.
"""

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any

import structlog

from coil.crd.builtin import PODS, Pod, PodSpec
from coil.crd.meta import ObjectMeta
from coil.ipam.occupancy import AttachmentKey, ContainerId
from coil.netlink import attachment
from coil.netlink.connection import Connection
from coil.netlink.host import HostNetwork, NetnsPath
from coil.netlink.sysctl import apply_sysctls
from coil.neutron.handoff import ANNOTATION_PORT, render_handoff
from coil.podnet.plan import PodPlan
from coild.model.attachment import AddRequest, NoEgress, PodName, RefusedHostPorts
from coild.model.journal_file import JournalFile
from coild.model.keyed_executor import KeyedExecutor
from coild.neutron.executable import ExecutableBinding
from coild.neutron.journal import PortJournal
from coild.neutron.neutron_ipam import NeutronDeps, NeutronIpam
from coild.pods.engine import PodEngine
from coild.settings import Settings
from tests.coil.kube.memory_api import MemoryApi, MemoryClient
from tests.coil.reconcile.memory_cache import MemoryCache
from tests.coild.neutron.port_node import NODE, handoff
from tests.coild.scene import ListRecorder

TYPE = "switch"
BRIDGE = "switch"

# The name of the node's namespace is its only secret: coild runs in the node's own.
_SCRIPT = """#!/bin/sh
set -eu
[ ! -e "{folder}/fail-$1" ] || {{ echo "told to fail"; exit 1; }}
case $1 in
bind) ip -n {host} link set dev "$3" master {bridge} ;;
unbind) ip -n {host} link set dev "$3" nomaster 2>/dev/null || ! ip -n {host} link show dev "$3" >/dev/null 2>&1 ;;
esac
"""

LOG = structlog.wrap_logger(structlog.ReturnLogger(), processors=[])


def prepare_folder(folder: Path, host: str) -> None:
    """The executable. The bridge is there already."""
    script = folder / "bin" / TYPE
    script.parent.mkdir(mode=0o755)
    script.write_text(_SCRIPT.format(folder=folder, host=host, bridge=BRIDGE))
    script.chmod(0o755)


def key(container: str) -> AttachmentKey:
    return AttachmentKey(ContainerId(container), "eth0")


class PortLife:
    """One process's life."""

    def __init__(self, folder: Path, network: HostNetwork, ports: dict[str, int], **changes: Any) -> None:
        """`ports` has the number of each container's port (`tests.coild.neutron.port_node.handoff`)."""
        self.folder = folder
        api = MemoryApi()
        for container, number in ports.items():
            pod = self.pod(container)
            port = handoff(number, pod.uid, type=TYPE, **changes)
            metadata = ObjectMeta(
                namespace=pod.namespace,
                name=pod.name,
                uid=pod.uid,
                annotations={ANNOTATION_PORT: render_handoff(port)},
            )
            api.put(PODS, Pod(metadata=metadata, spec=PodSpec(node_name=NODE)))
        pods = MemoryCache(api, PODS)
        pods.look()
        self.journal = PortJournal(JournalFile(folder / "journal", log=LOG))
        self.ipam = NeutronIpam(
            Settings(node_name=NODE, neutron_binding_dir=folder / "bin", neutron_bind_timeout=120.0),
            NeutronDeps(
                client=MemoryClient(api),
                pods=pods,
                network=network,
                builtin={},
                journal=self.journal,
                mtu=1400,
                random=Random(1).random,
                log=LOG,
            ),
        )
        self.engine = PodEngine(
            source=self.ipam.source,
            egress=NoEgress(),
            host_ports=RefusedHostPorts(),
            executor=KeyedExecutor(LOG),
            acquire_timeout=60.0,
            recorder=ListRecorder(),
            log=LOG,
        )

    @classmethod
    @asynccontextmanager
    async def begun(
        cls, folder: Path, host: NetnsPath, ports: dict[str, int] | None = None, **changes: Any
    ) -> AsyncIterator["PortLife"]:
        """Recovered, and at work."""
        async with HostNetwork(host) as network:
            life = cls(folder, network, ports or {}, **changes)
            await life.ipam.source.wiring.prepare()
            await life.engine.recover()
            tasks = [asyncio.create_task(task) for task in life.ipam.tasks().values()]
            try:
                yield life
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
                life.journal.close()

    @staticmethod
    def pod(container: str) -> PodName:
        return PodName("apps", f"pod-of-{container}", f"uid-of-{container}")

    async def add(self, container: str, netns: NetnsPath) -> PodPlan:
        plan = await self.engine.add(AddRequest(key=key(container), netns=netns, pod=self.pod(container)))
        assert plan is not None
        return plan

    async def delete(self, container: str) -> None:
        await self.engine.delete(key(container))


def _kill_at(last: int) -> None:
    """Have this process killed at that step: before anything in the kernel, in the journal, or by an executable."""
    steps = 0

    def counted(function: Callable[..., Any]) -> Callable[..., Any]:
        def step(*args: Any, **kwargs: Any) -> Any:
            nonlocal steps
            steps += 1
            if steps == last:
                os.kill(os.getpid(), signal.SIGKILL)
            return function(*args, **kwargs)

        return step

    Connection.apply = counted(Connection.apply)  # type: ignore[method-assign]
    attachment.apply_sysctls = counted(apply_sysctls)  # type: ignore[attr-defined]
    JournalFile.append = counted(JournalFile.append)  # type: ignore[method-assign]
    ExecutableBinding.bind = counted(ExecutableBinding.bind)  # type: ignore[method-assign]


async def _add(folder: Path, host: NetnsPath, container: str, number: int, netns: NetnsPath, last: int) -> None:
    async with PortLife.begun(folder, host, {container: number}) as life:
        _kill_at(last)
        await life.add(container, netns)


if __name__ == "__main__":
    given = json.loads(sys.argv[1])
    asyncio.run(
        _add(
            Path(given["folder"]),
            NetnsPath(Path(given["host"])),
            given["container"],
            given["number"],
            NetnsPath(Path(given["netns"])),
            given["last"],
        )
    )
