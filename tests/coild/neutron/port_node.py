"""One node whose pods are ports: an API server, a kernel and a network of Neutron's in memory, and coild's parts on
them, one life after another.

`PortNode.start` wires what `coild.main` wires.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from ipaddress import ip_address, ip_interface
from pathlib import Path
from random import Random
from typing import Any
from uuid import UUID

from coil.crd.builtin import PODS, Pod, PodSpec
from coil.crd.meta import ObjectMeta
from coil.crd.names import NodeName
from coil.kernel.link import MacAddress
from coil.neutron.handoff import ANNOTATION_PORT, Handoff, PortAddress, render_handoff
from coil.neutron.port_rules import RuleSet
from coil.neutron.resource import NetworkId, PortId, ProjectId
from coild.model.address_source import NONE_ENDED, Ended
from coild.model.attachment import AddRequest, PodName
from coild.model.journal_file import JournalFile
from coild.model.port_error import BindError
from coild.neutron.binding import PortBinding
from coild.neutron.journal import PortJournal
from coild.neutron.neutron_ipam import NeutronDeps, NeutronIpam
from coild.settings import Settings
from tests.coil.kube.memory_api import MemoryApi, MemoryClient
from tests.coil.reconcile.memory_cache import MemoryCache
from tests.coild.memory_network import Kernel, MemoryNetwork, Stage, Step
from tests.coild.pods.source_contract import SourceNode
from tests.coild.scene import LOG, end, now
from tests.coild.virtual_loop import pass_turns

NODE = NodeName("node-1")
TYPE = "memory"
NETWORK = NetworkId("0f6f4fd5-7f06-4c4b-8b0c-7b9d3b6a8a55")
ACTIVE_TIMEOUT = 30.0


def handoff(number: int, pod_uid: str, **changes: Any) -> Handoff:
    """The port of that number: 10.0.0.number and fd00::number, on one network."""
    made = Handoff(
        port=PortId(str(UUID(int=number))),
        pod_uid=pod_uid,
        mac=MacAddress(f"fa:16:3e:00:{number >> 8:02x}:{number & 255:02x}"),
        addresses=(
            PortAddress(ip_interface((0x0A000000 + number, 16)), ip_address("10.0.255.254")),
            PortAddress(ip_interface(((0xFD00 << 112) + number, 64)), ip_address("fd00::ffff:1")),
        ),
        network=NETWORK,
        project=ProjectId("5e1f5a2c0d6b4b7e8d1c2a3b4c5d6e7f"),
        type=TYPE,
        mtu=1450,
        nameservers=(ip_address("10.96.0.10"),),
        active=True,
    )
    return replace(made, **changes)


@dataclass
class Network:
    """What Neutron's network holds, which outlives processes and a reboot of the node: who is plugged in where."""

    plugged: dict[PortId, tuple[str, str]] = field(default_factory=dict)
    """The host's end, and the container."""
    twice: list[PortId] = field(default_factory=list)
    """Ports that were plugged in at a second place, or that two calls were about at once: must stay empty."""
    rules: dict[PortId, RuleSet | None] = field(default_factory=dict)
    """What holds for the ports that are plugged in."""


Gate = Callable[[str], Awaitable[None]]
"""Awaited before and after each step of a binding takes effect: waits, or raises."""


async def _open(step: str) -> None:
    pass


class MemoryBinding:
    """A `Binding` that does what its seam promises. `gate` hears of "bind", "bound", "unbind", "unbound"."""

    def __init__(self, network: Network, gate: Gate = _open) -> None:
        self.network = network
        self.gate = gate
        self.killed = False
        self.prepared: list[Collection[PortBinding]] = []
        self.trouble: BindError | None = None
        self._busy: set[PortId] = set()

    async def prepare(self, bound: Collection[PortBinding]) -> None:
        self.prepared.append(tuple(bound))
        if self.trouble is not None:
            raise self.trouble
        self.network.rules.update({each.port.port: each.port.rules for each in bound})

    async def bind(self, binding: PortBinding, *, timeout: float) -> None:
        with self._alone(binding.port.port):
            await self._bind(binding)

    async def apply_rules(self, binding: PortBinding, *, timeout: float) -> None:
        await self._pass("rules")
        if self.trouble is not None:
            raise self.trouble
        if binding.port.port in self.network.plugged:
            self.network.rules[binding.port.port] = binding.port.rules

    async def unbind(self, binding: PortBinding, *, timeout: float) -> None:
        with self._alone(binding.port.port):
            await self._unbind(binding)

    @contextmanager
    def _alone(self, port: PortId) -> Iterator[None]:
        if port in self._busy:
            self.network.twice.append(port)
        self._busy.add(port)
        try:
            yield
        finally:
            self._busy.discard(port)

    async def _pass(self, step: str) -> None:
        """Nothing of a killed process has an effect, though its successor runs by now."""
        await self.gate(step)
        if self.killed:
            raise asyncio.CancelledError

    async def _bind(self, binding: PortBinding) -> None:
        await self._pass("bind")
        port, place = binding.port.port, (binding.ifname, binding.endpoint)
        if self.network.plugged.get(port, place) != place:
            self.network.twice.append(port)
        self.network.plugged[port] = place
        self.network.rules[port] = binding.port.rules
        try:
            await self.gate("bound")
        except BaseException:
            if not self.killed:
                self.network.plugged.pop(port, None)
            raise

    async def _unbind(self, binding: PortBinding) -> None:
        await self._pass("unbind")
        if self.network.plugged.get(binding.port.port) == (binding.ifname, binding.endpoint):
            del self.network.plugged[binding.port.port]
        await self.gate("unbound")


class PortNode(SourceNode):
    """A process is a whole life of the source; `kill` ends it between two steps."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        super().__init__(lambda network: self.ipam.source, kernel=Kernel())
        folder.mkdir(exist_ok=True)
        self.path = folder / "journal"
        self.settings = Settings(
            node_name=NODE,
            neutron_binding_dir=folder / "bin",
            neutron_active_timeout=ACTIVE_TIMEOUT,
            **settings,
        )
        self.api = MemoryApi()
        self.client = MemoryClient(self.api)
        self.neutron = Network()
        self.numbers: dict[str, int] = {}
        self.tasks: list[asyncio.Task[None]] = []
        self.killed = False
        self.steps = 0
        self.kill_at = 0
        """At that step the process is killed; 0 for never."""

    async def start(self, ended: Ended = NONE_ENDED) -> None:
        await self.kill()
        self.killed, self.steps, self.kill_at = False, 0, 0
        # As `HostNetwork` does when it is entered.
        self.kernel.veths = {name: veth for name, veth in self.kernel.veths.items() if veth.stage is Stage.WHOLE}
        self.cache = MemoryCache[Pod](self.api, PODS)
        self.cache.look()
        self.binding = MemoryBinding(self.neutron, self._bind_step)
        self.journal = PortJournal(JournalFile(self.path, log=LOG))
        self._network = MemoryNetwork(self.kernel, self._kernel_step)
        self.ipam = NeutronIpam(
            self.settings,
            NeutronDeps(
                client=self.client,
                pods=self.cache,
                network=self._network,
                builtin={TYPE: self.binding},
                journal=self.journal,
                mtu=1430,
                random=Random(1).random,
                log=LOG,
                wall=now,
            ),
        )
        await super().start(ended)
        self.tasks = [asyncio.create_task(task) for task in self.ipam.tasks().values()]

    async def kill(self) -> None:
        """kill -9: nothing that this life had begun has any effect from now on."""
        self._kill()
        await end(self.tasks)
        self.tasks = []

    async def reboot(self) -> None:
        """The links go with the kernel, and what Neutron's agents keep stays."""
        await self.kill()
        self.kernel.veths.clear()
        await self.start()

    def _kill(self) -> None:
        self.killed = True
        if hasattr(self, "journal"):
            self.journal.close()
            self.binding.killed = self._network.killed = True

    async def _kernel_step(self, step: Step) -> None:
        await self._step()

    async def _bind_step(self, step: str) -> None:
        await self._step()

    async def _step(self) -> None:
        self.steps += 1
        if self.steps == self.kill_at:
            self._kill()
        if self.killed:
            raise asyncio.CancelledError
        await asyncio.sleep(0)

    # --- coil-raven's side

    def pod(self, container: str) -> PodName:
        return PodName("apps", f"pod-of-{container}", f"uid-of-{container}")

    def handoff(self, container: str, **changes: Any) -> Handoff:
        number = self.numbers.setdefault(container, len(self.numbers) + 1)
        return handoff(number, self.pod(container).uid, **changes)

    def annotate(self, container: str, text: str | None = None, **changes: Any) -> None:
        """The annotation that the container's pod has from now on: its port's, or that text; "" for none."""
        if text is None:
            text = render_handoff(self.handoff(container, **changes))
        self.annotate_pod(self.pod(container), text)

    def annotate_pod(self, pod: PodName, text: str) -> None:
        self.api.put(
            PODS,
            Pod(
                metadata=ObjectMeta(
                    namespace=pod.namespace,
                    name=pod.name,
                    uid=pod.uid,
                    annotations={ANNOTATION_PORT: text} if text else {},
                ),
                spec=PodSpec(node_name=NODE),
            ),
        )
        self.cache.look()

    # --- the runtime's side

    def request(self, container: str) -> AddRequest:
        if self.cache.get(self.pod(container).full_name) is None:
            self.annotate(container)
        return replace(super().request(container), deadline=now() + 60.0)

    async def add_and_be_killed(self, container: str, *, at: int) -> None:
        """An ADD in which the process is killed at that step, if it has so many."""
        self.kill_at = self.steps + at
        with suppress(asyncio.CancelledError):
            await self.engine.add(self.request(container))
        await self.kill()

    @property
    def remains(self) -> list[object]:
        """What is left of pods anywhere: must be nothing after the DEL of all of them."""
        return [*self.traces, *self.kernel.veths, *self.neutron.plugged, *self.ipam.ledger.left()]


async def settled() -> None:
    """Everything has happened that can happen without the clock."""
    await pass_turns(50)
